"""What only a CUDA device can show: its kernels, recorded searches and recorded training steps against their plain twins.

`make test-gpu` runs these and fails where there is no device; the whole suite skips them there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from genius.model.generator import Generator, GeneratorConfig
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train import train
from genius.train.config import read_train_config
from genius.train.generator import GeneratorStage
from genius.train.sources import synthetic

if not torch.cuda.is_available() and os.environ.get("GENIUS_GPU"):
    pytest.fail("make test-gpu needs a GPU that torch can use", pytrace=False)
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: make test-gpu, on a machine that has one")

SIZES = (3, 64, 64, 64)
EXACT = SearchParams(beams=20, rerank=0, reranker="none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kernels_compute_what_torch_does(dtype: torch.dtype) -> None:
    from static_ops import TorchOps

    from genius.search.cuda_kernels import TritonOps

    torch.manual_seed(0)
    h, head = torch.randn(300, 512, device="cuda").to(dtype), (torch.randn(1000, 512, device="cuda") * 0.044).to(dtype)
    q, kv = torch.randn(8 * 25, 512, device="cuda").to(dtype), torch.randn(8 * 30, 1024, device="cuda").to(dtype)
    cache, bias = torch.randn(500, 1536, device="cuda").to(dtype), torch.randn(8, 9, device="cuda")
    ancestors = torch.randint(0, 200, (40, 4), device="cuda", dtype=torch.int32)

    def results(ops: Any) -> dict[str, torch.Tensor]:
        return {
            "add_norm": ops.add_norm(h.float() * 3, h, 1e-6, dtype),
            "self_attention": ops.self_attention(cache * 0.1, ancestors, bias, 200, 5, 8),
            "cross_attention": ops.cross_attention(q * 0.1, kv, 8, 8),
            "log_normalizer": ops.log_normalizer(h, head.contiguous()),
            "logits": ops.logits(h, head[:512]),
        }

    ours, plain = results(TritonOps()), results(TorchOps())
    for name, value in ours.items():
        scale = plain[name].float().abs().mean().item()
        assert (value.float() - plain[name].float()).abs().max().item() < 0.02 * max(scale, 1.0), name


@pytest.mark.parametrize("params", [EXACT, SearchParams(beams=20, rerank=200)])
def test_a_recorded_search_finds_what_the_plain_one_finds(params: SearchParams) -> None:
    torch.manual_seed(0)
    config = GeneratorConfig(width=64, level_sizes=SIZES, d_model=64, layers=2, heads=2, d_kv=32, d_ff=128, dropout=0.0)
    generator = Generator(config).eval()
    codes = np.stack([np.random.default_rng(level).integers(0, size, 5000) for level, size in enumerate(SIZES)], 1)
    trie = CodeTrie.build(codes, SIZES)
    vectors, z = (F.normalize(torch.randn(count, 64), dim=1) for count in (5000, 16))
    plain = SearchEngine(generator, None, trie, vectors).search(z, k=10, params=params)
    for precision, error in (("exact", 1e-4), ("fast", 0.1)):
        engine = SearchEngine(generator, None, trie, vectors.cuda(), device="cuda", precision=precision)  # type: ignore[arg-type]
        for _ in range(3):  # the first calls record
            found = engine.search(z.cuda(), k=10, params=params)
        same = found.rows.cpu() == plain.rows
        assert same.float().mean() >= (1.0 if precision == "exact" else 0.9)
        assert (found.scores.cpu() - plain.scores)[same].abs().max() < error


def test_a_recorded_training_step_is_the_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same losses at every step, with and without a CUDA graph."""
    losses = []
    for record in (True, False):
        output = tmp_path / str(record)
        monkeypatch.setattr(GeneratorStage, "fixed_shapes", record)
        changes = {
            "output": str(output), "device": "cuda", "run.precision": "fp32", "run.log_every": 1,
            "run.patience": 0, "encoder.steps": 2, "quantizer.steps": 4, "generator.steps": 12, "model.decoder": "tiny",
        }  # fmt: skip
        train(read_train_config("builtin:tiny", changes), synthetic("tiny", 0), quiet=True)
        lines = [json.loads(line) for line in (output / "training" / "metrics.jsonl").read_text().splitlines()]
        losses.append([line["loss"] for line in lines if line["stage"] == "generator" and "loss" in line])
    assert len(losses[0]) == 12 and losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_vectors_beside_the_card_are_compared_and_not_held() -> None:
    torch.manual_seed(0)
    generator = Generator(GeneratorConfig(width=64, level_sizes=SIZES, d_model=64, layers=1, heads=2, d_kv=32, d_ff=64)).cuda()
    codes = np.stack([np.random.default_rng(0).integers(0, size, 200_000) for size in SIZES], 1)
    vectors = F.normalize(torch.randn(200_000, 64), dim=1).half()
    z, params = F.normalize(torch.randn(16, 64), dim=1), SearchParams(beams=20, rerank=500)
    found, held = [], []
    for beside in (False, True):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        engine = SearchEngine(generator, None, CodeTrie.build(codes, SIZES), vectors, "cuda", "exact", beside=beside)
        held.append(torch.cuda.memory_allocated() - before)
        found.append(engine.search(z, k=5, params=params).rows.cpu())
        del engine
    assert torch.equal(*found) and held[0] - held[1] >= vectors.nbytes
