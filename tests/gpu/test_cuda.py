"""What only a CUDA device can show: searches and recorded training steps are those of a CPU.

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

from genius.model.config import GeneratorConfig, QuantizerConfig
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.search.types import SearchResult
from genius.train import generator, train
from genius.train.config import read_train_config
from genius.train.sources import synthetic

if not torch.cuda.is_available() and os.environ.get("GENIUS_GPU"):
    pytest.fail("make test-gpu needs a GPU that torch can use", pytrace=False)
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: make test-gpu, on a machine that has one")

SIZES = (3, 64, 64, 64)
PLANS = [
    SearchParams(plan="flat"),
    SearchParams(plan="scan"),
    SearchParams(beams=20, rerank=0, reranker="none"),
    SearchParams(beams=20, rerank=0),
    SearchParams(reranker="codes"),
]


@pytest.mark.parametrize("params", PLANS)
@pytest.mark.parametrize("on_host", [False, True])
def test_every_plan_finds_on_a_gpu_what_it_finds_on_a_cpu(params: SearchParams, on_host: bool) -> None:
    """With targets, a filter for all and one for each query, deletions and additions."""
    torch.manual_seed(0)
    quantizer = ResidualQuantizer(QuantizerConfig(width=64, level_sizes=SIZES, modality_codebooks_from=1))
    for name, buffer in quantizer.named_buffers():
        if name.startswith("codes"):
            buffer.copy_(torch.randn_like(buffer) * 0.1)
    shape: dict[str, Any] = {"d_model": 64, "layers": 2, "heads": 2, "d_kv": 32, "d_ff": 128, "dropout": 0.0}
    config = GeneratorConfig(width=64, level_sizes=SIZES, normalizer="level", head="codebooks", **shape)
    generator = Generator(config, quantizer).eval()
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, 18_000) for size in SIZES], 1)
    vectors, z = (F.normalize(torch.randn(count, 64), dim=1) for count in (18_000, 16))
    alive = rng.random(18_000) < 0.9
    target = torch.arange(16) % 4 - 1
    found: dict[str, list[SearchResult]] = {"cpu": [], "cuda": []}
    for device in found:
        trie = CodeTrie.build(codes[:16_000], SIZES)
        engine = SearchEngine(generator.to(device), quantizer.to(device), trie, vectors[:16_000], device, on_host=on_host)
        grown = engine.changed(16_000, codes[16_000:], vectors[16_000:].numpy(), alive)
        for allowed in (
            None,
            rng.random(18_000) < 2,
            np.arange(18_000) % 3 == 0,
            np.arange(16 * 18_000).reshape(16, -1) % 7 == 0,
        ):
            found[device].append(grown.search(z.to(device), k=10, params=params, target=target.to(device), allowed=allowed))
    for on_cpu, on_gpu in zip(found["cpu"], found["cuda"], strict=True):
        assert np.allclose(on_cpu.scores, on_gpu.scores, atol=1e-4)
        assert (on_cpu.rows == on_gpu.rows).mean() > 0.99


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
