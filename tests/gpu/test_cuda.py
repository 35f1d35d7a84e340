"""What only a CUDA device can show: its kernels, recorded searches and recorded training steps against their plain twins.

`make test-gpu` runs these and fails where there is no device; the whole suite skips them there.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from genius.model.generator import Generator, GeneratorConfig
from genius.model.quantizer import QuantizerConfig, ResidualQuantizer
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.search.cuda_search import Looked, Ranges
from genius.train import generator, train
from genius.train.config import read_train_config
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
    held, lo = torch.randint(0, 90, (5, 70), device="cuda"), torch.randint(0, 2900, (5, 70), device="cuda")
    ends, shared = held.cumsum(1), torch.randn(5, 70, device="cuda")
    block = 96 * torch.randint(0, 3, (5, 70), device="cuda", dtype=torch.int32)
    ranges = Ranges(ends.int(), (lo - ends + held).int(), shared, block)
    codes, inverse = torch.randint(0, 32, (3, 3000), device="cuda").short(), torch.rand(3000, device="cuda").half()
    starts, tables = torch.arange(0, 96, 32, device="cuda", dtype=torch.int32), torch.randn(5, 288, device="cuda").to(dtype)
    looked = [Looked(codes, inverse, starts, which) for which in (None, torch.randperm(3000, device="cuda").int())]

    def results(ops: Any) -> dict[str, torch.Tensor]:
        return {
            "add_norm": ops.add_norm(h.float() * 3, h, 1e-6, dtype),
            "self_attention": ops.self_attention(cache * 0.1, ancestors, bias, 200, 5, 8),
            "cross_attention": ops.cross_attention(q * 0.1, kv, 8, 8),
            "log_normalizer": ops.log_normalizer(h, head.contiguous()),
            "logits": ops.logits(h, head[:512]),
            "look_up": ops.look_up(ranges, looked[0], tables, 2000)[0].exp(),
            "look_up of some": ops.look_up(ranges, looked[1], tables, 5000)[0].exp(),  # more slots than there are places
            "places": ops.look_up(ranges, looked[1], tables, 5000)[1],
        }

    ours, plain = results(TritonOps()), results(TorchOps())
    for name, value in ours.items():
        scale = plain[name].float().abs().mean().item()
        assert (value.float() - plain[name].float()).abs().max().item() < 0.02 * max(scale, 1.0), name


@pytest.mark.parametrize("params", [EXACT, SearchParams(beams=20, rerank=0)])
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


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("reranker", ["embeddings", "codes"])
def test_the_default_search_finds_the_best_of_what_is_allowed(precision: Any, reranker: Any) -> None:
    """Budgets that hold everything: brute force, with a filter, deletions, additions, and a second look through the recording."""
    torch.manual_seed(0)
    quantizer = ResidualQuantizer(QuantizerConfig(width=64, level_sizes=SIZES, own_books_from=1))
    for name, buffer in quantizer.named_buffers():
        if name.startswith("codes"):
            buffer.copy_(torch.randn_like(buffer) * 0.1)
    shape: dict[str, Any] = {"d_model": 64, "layers": 2, "heads": 2, "d_kv": 32, "d_ff": 128, "dropout": 0.0}
    config = GeneratorConfig(width=64, level_sizes=SIZES, normalizer="level", head="codebooks", **shape)
    generator = Generator(config, quantizer).eval()
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, 9000) for size in SIZES], 1)
    vectors, z = (F.normalize(torch.randn(count, 64), dim=1) for count in (9000, 16))
    alive, mask, target = rng.random(9000) < 0.9, rng.random(9000) < 0.3, torch.arange(16) % 4 - 1
    engine = SearchEngine(generator, quantizer, CodeTrie.build(codes[:8000], SIZES), vectors[:8000].cuda(), "cuda", precision)
    grown = engine.changed(8000, codes[8000:], vectors[8000:].cuda(), alive)
    params = SearchParams(rerank=15_000, reranker=reranker)
    rebuilt = F.normalize(quantizer.decode(torch.from_numpy(codes)), dim=1)
    truth = z @ (vectors if reranker == "embeddings" else rebuilt).T
    kinds = torch.from_numpy(codes[:, 0])
    for here, allowed, count in ((engine, None, 8000), (grown, None, 9000), (grown, mask, 9000)):
        valid = ((target[:, None] < 0) | (target[:, None] == kinds)) & (torch.arange(9000) < count)
        valid &= torch.from_numpy((alive if here is grown else alive | True) & (mask if allowed is not None else mask | True))
        best = truth.masked_fill(~valid, -9).topk(10).values
        for _ in range(3):
            found = here.search(z.cuda(), k=10, params=params, target=target.cuda(), allowed=allowed)
            assert valid.gather(1, found.rows.cpu()).all() and (found.scores.cpu() - best).abs().max() < 1e-3


def test_a_compiled_training_step_has_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without `run.compile`. Dropout is left out: a compiled step draws its own."""
    losses = []
    shape = generator.generator_config
    monkeypatch.setattr(generator, "generator_config", lambda model: dataclasses.replace(shape(model), dropout=0.0))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)  # the stages before this one must end alike
    for compiled in (True, False):
        output = tmp_path / str(compiled)
        changes = {
            "output": str(output), "device": "cuda", "run.precision": "fp32", "run.log_every": 1, "run.compile": compiled,
            "run.patience": 0, "encoder.steps": 2, "quantizer.steps": 4, "generator.steps": 12, "model.decoder": "tiny",
            "generator.lr": 1e-4,
        }  # fmt: skip
        train(read_train_config("builtin:tiny", changes), synthetic("tiny", 0), quiet=True)
        lines = [json.loads(line) for line in (output / "training" / "metrics.jsonl").read_text().splitlines()]
        losses.append([line["loss"] for line in lines if line["stage"] == "generator" and "loss" in line])
    torch.use_deterministic_algorithms(False)
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
