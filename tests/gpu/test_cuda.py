"""What only a CUDA device can show: searches and captured training steps are those of a CPU.

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

from genius.errors import GeniusError
from genius.model.config import GeneratorConfig, QuantizerConfig
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.search.beam import Beam
from genius.search.cuda_graphs import MAX_GRAPHS, CudaGraphs
from genius.search.tensor_cells import TensorCells, _Probed
from genius.search.tensors import tensor_arrays
from genius.search.types import QueryBatch, SearchResult
from genius.train import generator, train
from genius.train.config import read_train_config
from genius.train.sources import synthetic

if not torch.cuda.is_available() and os.environ.get("GENIUS_GPU"):
    pytest.fail("make test-gpu needs a GPU that torch can use", pytrace=False)
if torch.cuda.is_available():  # kernels need triton, which comes with CUDA
    from genius.model.log_sum_exp import log_sum_exp, token_log_probs
    from genius.search.flat_kernel import nearest
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: make test-gpu, on a machine that has one")

SIZES = (3, 64, 64, 64)
ITEMS = 18_000
FOUND_BY_BOTH = 0.97  # of the hits of a scan, which looks codes up in bytes on a CPU and in floats on a GPU
PLANS = [
    SearchParams(plan="flat"),
    SearchParams(plan="scan"),
    SearchParams(beams=20, rerank=0, reranker="none"),
    SearchParams(beams=20, rerank=0),
    SearchParams(reranker="codes"),
]


def model(head: Any = "codebooks") -> tuple[Generator, ResidualQuantizer]:
    torch.manual_seed(0)
    quantizer = ResidualQuantizer(QuantizerConfig(width=64, level_sizes=SIZES, modality_codebooks_from=1))
    for name, buffer in quantizer.named_buffers():
        if name.startswith("codes"):
            buffer.copy_(torch.randn_like(buffer) * 0.1)
    shape: dict[str, Any] = {"d_model": 64, "layers": 2, "heads": 2, "d_kv": 32, "d_ff": 128, "dropout": 0.0}
    config = GeneratorConfig(width=64, level_sizes=SIZES, normalizer="level", head=head, **shape)
    return Generator(config, quantizer).eval(), quantizer


@pytest.mark.parametrize("params", PLANS)
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_every_plan_finds_on_a_gpu_what_it_finds_on_a_cpu(params: SearchParams, on_host: bool, half: bool) -> None:
    """With targets, a filter for all and one for each query, deletions and additions."""
    if params.plan == "scan":
        pytest.importorskip("faiss")
    generator, quantizer = model()
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, ITEMS) for size in SIZES], 1)
    vectors, z = (F.normalize(torch.randn(count, 64), dim=1) for count in (ITEMS, 16))
    if half:
        vectors = vectors.half()
    alive = rng.random(ITEMS) < 0.9
    target = torch.arange(16) % 4 - 1
    found: dict[str, list[SearchResult]] = {"cpu": [], "cuda": []}
    for device in found:
        trie = CodeTrie.build(codes[:16_000], SIZES)
        engine = SearchEngine(generator.to(device), quantizer.to(device), trie, vectors[:16_000], device, on_host=on_host)
        grown = engine.changed(16_000, codes[16_000:], vectors[16_000:].numpy(), alive)
        for allowed in (
            None,
            rng.random(ITEMS) < 2,
            np.arange(ITEMS) % 3 == 0,
            np.arange(16 * ITEMS).reshape(16, -1) % 7 == 0,
        ):
            found[device].append(grown.search(z.to(device), k=10, params=params, target=target.to(device), allowed=allowed))
    for on_cpu, on_gpu in zip(found["cpu"], found["cuda"], strict=True):
        if params.plan == "scan":
            both = [len({*mine} & {*other}) / 10 for mine, other in zip(on_cpu.rows.tolist(), on_gpu.rows.tolist(), strict=True)]
            assert np.mean(both) > FOUND_BY_BOTH
            continue
        assert np.allclose(on_cpu.scores, on_gpu.scores, atol=1e-4)
        assert (on_cpu.rows == on_gpu.rows).mean() > 0.99


def test_a_beam_search_moves_its_trie_to_the_gpu_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor on "cuda" says "cuda:0"."""
    generator, quantizer = model()
    codes = np.stack([np.random.default_rng(0).integers(0, size, 500) for size in SIZES], 1)
    engine = SearchEngine(generator.to("cuda"), quantizer.to("cuda"), CodeTrie.build(codes, SIZES), None, "cuda")
    params = SearchParams(beams=5, rerank=0, reranker="none")
    engine.search(torch.zeros(2, 64), k=3, params=params)
    monkeypatch.setattr(CodeTrie, "_place", lambda *_: pytest.fail("the trie was moved again"))
    engine.search(torch.zeros(2, 64), k=3, params=params)


@pytest.mark.parametrize("head", ["table", "codebooks"])
def test_captured_beams_are_those_of_single_steps(head: str) -> None:
    """Batches of several sizes, more beams than before, targets that are unknown, mixed and all the same, and a filter."""
    generator, quantizer = model(head)
    quantizer.to("cuda")
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, 3000) for size in SIZES], 1)
    trie = CodeTrie.build(codes, SIZES)
    captured = Beam(generator.to("cuda"), trie, device="cuda")
    stepped = Beam(generator, trie, device="cuda")
    stepped.graphs = None
    assert captured.graphs is not None
    z = F.normalize(torch.randn(7, 64), dim=1).numpy()
    for count, beams in ((7, 5), (1, 5), (3, 5), (7, 20), (5, 5)):
        for target in (np.full(count, -1), np.arange(count) % 4 - 1, np.full(count, 2)):
            for allowed in (None, np.arange(3000) % 5 == 0):
                batch = QueryBatch(z[:count], z[:count], target, None, allowed)
                found, expected = (plan.run(batch, 4, SearchParams(beams=beams)) for plan in (captured, stepped))
                assert np.array_equal(found.considered, expected.considered)
                assert np.allclose(found.scores, expected.scores, atol=1e-4)
                assert (found.rows == expected.rows).mean() > 0.99
    assert 0 < len(captured.graphs._graphs) <= MAX_GRAPHS


def test_a_broken_generator_is_an_error_of_captured_beams_too() -> None:
    generator, quantizer = model()
    quantizer.to("cuda")
    with torch.no_grad():
        generator.final_norm.weight.fill_(torch.nan)
    codes = np.stack([np.random.default_rng(0).integers(0, size, 500) for size in SIZES], 1)
    plan = Beam(generator.to("cuda"), CodeTrie.build(codes, SIZES), device="cuda")
    z = np.eye(64, dtype=np.float32)[:2]
    for _ in range(2):
        with pytest.raises(GeniusError, match="NaN"):
            plan.run(QueryBatch(z, z, np.full(2, -1)), 3, SearchParams(beams=5))


def test_the_sum_over_the_vocabulary_is_that_of_all_products() -> None:
    """One row and many, a vocabulary that no tile divides, precisions by weights and by autocast; NaN stays NaN."""
    for rows, count, width in ((1, 33, 64), (50, 1003, 128), (1000, 5003, 512), (70, 400, 48)):
        states = torch.randn(rows, width, device="cuda") / width**0.5
        tokens = 3 * torch.randn(count, width, device="cuda")
        expected = (states.double() @ tokens.double().T).logsumexp(1).float()
        assert torch.allclose(log_sum_exp(states, tokens), expected, atol=1e-4)
        assert torch.allclose(log_sum_exp(states.half(), tokens.half()), expected, atol=2e-2)
        with torch.autocast("cuda", dtype=torch.float16):
            assert torch.allclose(log_sum_exp(states, tokens), expected, atol=2e-2)
            own = token_log_probs(states, tokens, slice(5, 25))
            assert torch.allclose(own, states @ tokens[5:25].T - expected[:, None], atol=3e-2)
        own = token_log_probs(states, tokens, slice(5, 25))
        assert torch.allclose(own, states @ tokens[5:25].T - expected[:, None], atol=1e-3)
        states[0, 0] = torch.nan
        assert log_sum_exp(states.half(), tokens.half()).isnan().tolist() == [True] + [False] * (rows - 1)


@pytest.mark.parametrize("masked", [False, True])
def test_one_pass_over_all_vectors_finds_the_best(masked: bool) -> None:
    """One query and many, equal vectors, a last group that is not whole, more wanted than there are groups."""
    vectors = F.normalize(torch.randn(10_007, 64, device="cuda"), dim=1).half()
    vectors[500:600] = vectors[499]
    visible = None
    if masked:
        visible = torch.rand(len(vectors), device="cuda") < 0.3
    for count, k in ((1, 26), (33, 26), (200, 400)):
        queries = F.normalize(torch.randn(count, 64, device="cuda"), dim=1)
        scores, rows = nearest(queries, vectors, k, visible)
        products = queries @ vectors.float().T
        if visible is not None:
            products.masked_fill_(~visible, -torch.inf)
        expected = products.sort(dim=1, descending=True, stable=True)
        assert torch.allclose(scores[:, :10], expected.values[:, :10], atol=1e-5)
        assert (rows[:, :10] == expected.indices[:, :10]).float().mean() > 0.99
        assert torch.allclose(products.gather(1, rows), scores, atol=1e-5)


def test_one_pass_reaches_the_last_of_many_vectors() -> None:
    """More blocks than a second axis of a grid holds (65,535)."""
    vectors = torch.zeros(2**23 + 77, 64, dtype=torch.float16, device="cuda")
    vectors[-1] = 0.125
    scores, rows = nearest(torch.ones(1, 64, device="cuda"), vectors, 3, None)
    assert int(rows[0, 0]) == len(vectors) - 1 and scores[0].tolist() == [8.0, 0.0, 0.0]


@pytest.mark.parametrize("masked", [False, True])
def test_the_kernel_looks_up_what_plain_operations_look_up(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of any size, empty ones too; more candidates than there are items in the cells."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 900, 50)
    sizes[::7] = 0
    count = int(sizes.sum())
    arrays = {
        "means": rng.standard_normal((50, 64)).astype(np.float32),
        "query_transform": rng.standard_normal((64, 64)).astype(np.float32),
        "codebooks": rng.standard_normal((16, 16, 4)).astype(np.float32),
        "codes": rng.integers(0, 256, (count, 8)).astype(np.uint8),
        "rows": rng.permutation(count),
        "sizes": sizes,
    }
    cells = TensorCells(arrays, tensor_arrays("cuda"))
    queries = rng.standard_normal((33, 64)).astype(np.float32)
    allowed = None
    mask = np.ones(count, bool)
    if masked:
        mask = rng.random(count) < 0.3
        allowed = cells.selector(mask)
    for probes, candidates in ((1, 50), (7, 1000), (50, 50_000)):
        scores, rows = cells.search(queries, candidates, probes, allowed)
        with monkeypatch.context() as patch:
            patch.setattr(_Probed, "scores", _Probed.plain_scores)
            true_scores, true_rows = cells.search(queries, candidates, probes, allowed)
        assert np.array_equal(rows >= 0, true_rows >= 0)
        assert np.allclose(scores, true_scores, atol=1e-3)
        assert (rows == true_rows).mean() > 0.99
        assert mask[rows[rows >= 0]].all()


def test_captured_scans_are_those_of_single_steps() -> None:
    """One query and a few, the same request several times and another in between."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 900, 50)
    count = int(sizes.sum())
    arrays = {
        "means": rng.standard_normal((50, 64)).astype(np.float32),
        "query_transform": rng.standard_normal((64, 64)).astype(np.float32),
        "codebooks": rng.standard_normal((16, 16, 4)).astype(np.float32),
        "codes": rng.integers(0, 256, (count, 8)).astype(np.uint8),
        "rows": rng.permutation(count),
        "sizes": sizes,
    }
    captured, stepped = (TensorCells(arrays, tensor_arrays("cuda")) for _ in range(2))
    stepped.graphs = None
    assert captured.graphs is not None
    for queries, candidates, probes in ((1, 50, 7), (1, 50, 7), (1, 50, 7), (5, 50, 7), (5, 2000, 2), (5, 2000, 2), (1, 50, 7)):
        asked = rng.standard_normal((queries, 64)).astype(np.float32)
        scores, rows = captured.search(asked, candidates, probes)
        true_scores, true_rows = stepped.search(asked, candidates, probes)
        assert np.array_equal(rows >= 0, true_rows >= 0) and (rows == true_rows).mean() > 0.99
        assert np.allclose(scores, true_scores, atol=1e-3)
    assert len(captured.graphs._graphs) == 2


@pytest.mark.parametrize("plan", ["auto", "flat", "scan", "beam"])
def test_bad_input_is_one_clear_line_in_every_plan_on_a_gpu(plan: str) -> None:
    """And what is no error, only empty: a collection, or a filter, without items; more hits wanted than there are items."""
    generator, quantizer = model()
    rng = np.random.default_rng(0)
    codes = np.stack([rng.permutation(np.arange(20) % size) for size in SIZES], 1)
    vectors, z = (F.normalize(torch.randn(count, 64), dim=1) for count in (20, 3))
    parts = (generator.to("cuda"), quantizer.to("cuda"))
    engine = SearchEngine(*parts, CodeTrie.build(codes, SIZES), vectors, "cuda")
    empty = SearchEngine(*parts, CodeTrie.build(codes[:0], SIZES), vectors[:0], "cuda")
    spoilt = z.clone()
    spoilt[1, 2] = torch.nan

    def search(queries: torch.Tensor = z, k: int = 3, reranker: str = "embeddings", **options: Any) -> SearchResult:
        return engine.search(queries.to("cuda"), k=k, params=SearchParams(plan=plan, reranker=reranker), **options)

    for call, message in [
        (lambda: search(spoilt), r"1 queries' z are NaN or infinite \(first: row 1\)"),
        (lambda: search(dense=spoilt), r"1 queries' dense are NaN or infinite \(first: row 1\)"),
        (lambda: search(z[:, :5]), r"z must be \(queries, 64\), got \(3, 5\)"),
        (lambda: search(k=0), "k must be at least 1, got 0"),
        (lambda: search(allowed=np.ones(19, bool)), r"allowed must be bool with 20 items last, got bool of shape \(19,\)"),
        (lambda: search(allowed=np.ones(20)), "allowed must be bool with 20 items last, got float64"),
        (lambda: search(target=np.array([0, 1, 3])), r"target codes must be -1\.\.2, got 0\.\.3"),
        (lambda: search(reranker="nobody"), "reranker must be one of 'codes', 'embeddings', 'none', got 'nobody'"),
    ]:
        with pytest.raises(GeniusError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)
    more = search(k=25)
    assert more.rows.shape == (3, 25) and all(sorted(row[row >= 0]) == list(range(20)) for row in more.rows)
    assert np.isneginf(more.scores[more.rows < 0]).all()
    for found in (search(allowed=np.zeros(20, bool)), empty.search(z, k=3, params=SearchParams(plan=plan))):
        assert (found.rows == -1).all() and np.isneginf(found.scores).all() and (found.considered == 0).all()
    assert search(z[:0]).rows.shape == (0, 3)


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


def test_beams_are_found_where_capture_fails(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, the results of single steps, and random numbers as before; another plan is captured after that."""
    generator, quantizer = model()
    quantizer.to("cuda")
    codes = np.stack([np.random.default_rng(0).integers(0, size, 500) for size in SIZES], 1)
    trie = CodeTrie.build(codes, SIZES)
    plans = [Beam(generator.to("cuda"), trie, device="cuda") for _ in range(3)]
    refused, stepped, captured = plans
    stepped.graphs = None
    z = np.eye(64, dtype=np.float32)[:2]
    batch = QueryBatch(z, z, np.full(2, -1))
    expected = stepped.run(batch, 3, SearchParams(beams=5))
    with monkeypatch.context() as patch:
        # what waits for the device is refused during a capture
        patch.setattr("genius.search.beam._best_of_padded", lambda totals, *_: totals.sum().item())
        patch.setattr(CudaGraphs, "_warm_up", lambda *_: None)
        found = [refused.run(batch, 3, SearchParams(beams=5)) for _ in range(2)]
    assert refused.graphs is not None and not refused.graphs.available
    assert len([line for line in caplog.records if "capture failed" in line.message]) == 1
    torch.randn(3, device="cuda")
    found.append(captured.run(batch, 3, SearchParams(beams=5)))
    assert captured.graphs is not None and captured.graphs.available
    for one in found:
        assert np.array_equal(one.rows, expected.rows) and np.allclose(one.scores, expected.scores, atol=1e-4)
