"""A device changes the operations, not the search: torch finds what numpy finds, and the CPU's default search needs no torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from genius.model.config import GeneratorConfig, QuantizerConfig
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.search import CodeTrie, SearchEngine, SearchParams, StoredVectors
from genius.search.arrays import half_to_float
from genius.search.cells import Cells, _unpacked
from genius.search.flat import Flat
from genius.search.rerank import embeddings
from genius.search.scan import Scan
from genius.search.tensor_cells import TensorCells
from genius.search.tensors import TensorVectors, tensor_arrays
from genius.search.types import Candidates, QueryBatch

SIZES = (3, 16, 16)
WITHOUT_TORCH = """
import sys
import numpy as np
from types import SimpleNamespace
from genius.model.query_bank import QueryBank
from genius.search import CodeTrie, LazyPart, SearchEngine, SearchParams

def refuse():
    raise AssertionError("a part of the model was loaded")

rng = np.random.default_rng(0)
vectors = rng.standard_normal((9000, 32)).astype(np.float32)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
codes = np.stack([np.arange(9000) % 2, rng.integers(0, 64, 9000)], 1)
no_weight = np.zeros((3, 32), np.float32)
bank = QueryBank(vectors[:500], np.ones(500, np.int64), np.arange(500) % 2, no_weight, no_weight[:, 0])
config = SimpleNamespace(level_sizes=(3, 64), width=32, labelled=True)
part = LazyPart(config, refuse)
engine = SearchEngine(part, part, CodeTrie.build(codes, (3, 64)), vectors.astype(np.float16), bank=bank)
allowed = np.arange(9000) % 3 > 0
for plan in ("flat", "scan"):
    for target in (None, np.zeros(4, np.int64)):
        options = {"params": SearchParams(plan=plan), "target": target, "modality": np.ones(4, np.int64)}
        found = engine.search(vectors[1:5], k=3, allowed=allowed, **options)
        assert found.plan == plan and (found.rows >= 0).all() and allowed[found.rows].all()
assert engine.search(vectors[1:2], k=1, params=SearchParams(item_bias=False)).rows[0, 0] == 1
assert "torch" not in sys.modules, "torch was imported"
"""


def test_flat_and_scan_import_no_torch() -> None:
    """With a filter, a bank of queries, known and unknown targets."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_device_has_one_set_of_operations_by_whatever_name() -> None:
    """Where a tensor says that it is ("cuda:0") is where it was asked for ("cuda"): else a search would move its trie again."""
    assert tensor_arrays("cpu:0") is tensor_arrays("cpu") is tensor_arrays(torch.empty(0, device="cpu:0").device)
    trie = CodeTrie.build(np.zeros((4, 2), np.int64), (3, 2)).on(tensor_arrays("cpu:0"))
    assert trie.on(tensor_arrays(torch.device("cpu"))) is trie


def unit(count: int, width: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("masks", ["none", "one", "each"])
def test_tensors_find_what_arrays_find(on_host: bool, masks: str) -> None:
    """The operations of a GPU, here on the CPU: flat search and re-ranking, with a filter, targets, additions and a prior."""
    rng = np.random.default_rng(0)
    vectors = unit(900, 16, 0).half().numpy()
    codes = np.stack([rng.integers(0, size, 900) for size in SIZES], 1)
    generator = Generator(GeneratorConfig(width=16, level_sizes=SIZES, d_model=16, layers=1, heads=2, d_kv=8, d_ff=32)).eval()
    quantizer = ResidualQuantizer(QuantizerConfig(width=16, level_sizes=SIZES)).eval()
    engine = SearchEngine(generator, quantizer, CodeTrie.build(codes[:800], SIZES), vectors[:800])
    engine = engine.changed(800, codes[800:], vectors[800:])
    allowed = {"none": None, "one": rng.random(900) < 0.5, "each": rng.random((6, 900)) < 0.5}[masks]
    z = unit(6, 16, 1).numpy()
    log_probs = np.log(rng.dirichlet(np.ones(3), 6)).astype(np.float32)
    batch = QueryBatch(z, z, np.arange(6) % 4 - 1, log_probs, allowed)
    moved = TensorVectors(StoredVectors.of(vectors[:800]), tensor_arrays("cpu"), on_host).extended(vectors[800:])
    on_device = SearchEngine(generator, quantizer, CodeTrie.build(codes, SIZES), moved)
    params = SearchParams()
    here = Flat(engine.collection).run(batch, 7, params)
    there = Flat(on_device.collection).run(batch, 7, params)
    assert np.array_equal(here.rows, there.rows) and np.array_equal(here.considered, there.considered)
    assert np.allclose(here.scores, there.scores, atol=1e-5)
    candidates = Candidates(rng.integers(-1, 900, (6, 20)), np.zeros((6, 20), np.float32), np.zeros(6, np.int64))
    similarity = embeddings(batch, candidates, engine.collection)
    truth = np.einsum("qd,qcd->qc", z, vectors.astype(np.float32)[candidates.rows.clip(min=0)])
    assert np.allclose(similarity, truth, atol=1e-5)
    assert np.allclose(embeddings(batch, candidates, on_device.collection), truth, atol=1e-5)


@pytest.mark.parametrize("plan", ["auto", "flat", "scan", "beam"])
@pytest.mark.parametrize("on_host", [False, True])
def test_nothing_to_find_is_an_empty_result_on_a_device(on_host: bool, plan: str) -> None:
    """An empty collection, and a filter that nothing passes: the operations of a GPU, here on the CPU."""
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, 20) for size in SIZES], 1)
    generator = Generator(GeneratorConfig(width=16, level_sizes=SIZES, d_model=16, layers=1, heads=2, d_kv=8, d_ff=32)).eval()
    quantizer = ResidualQuantizer(QuantizerConfig(width=16, level_sizes=SIZES)).eval()
    z = unit(3, 16, 1).numpy()
    for count, allowed in ((20, np.zeros(20, bool)), (0, None)):
        vectors = TensorVectors(StoredVectors.of(unit(20, 16, 0).numpy()[:count]), tensor_arrays("cpu"), on_host)
        engine = SearchEngine(generator, quantizer, CodeTrie.build(codes[:count], SIZES), vectors)
        for reranker in ("embeddings", "codes", "none"):
            found = engine.search(z, k=4, params=SearchParams(plan=plan, reranker=reranker), allowed=allowed)
            assert (found.rows == -1).all() and found.rows.shape == (3, 4) and not found.considered.any()
            assert np.isneginf(found.scores).all()


def test_a_gpu_compares_millions_of_vectors_before_it_scans() -> None:
    """By the estimates of `Flat` and `Scan`; a query for each of which rows pass, or a prior, makes comparing dearer."""

    def flat_is_cheaper(items: int, **changes: Any) -> bool:
        vectors = type("Vectors", (), {"width": 256, "in_one_pass": True, "__len__": lambda _: items})()
        collection: Any = SimpleNamespace(items=items, vectors=vectors, device="cuda", modality=None)
        z = np.zeros((512, 256), np.float32)
        batch = replace(QueryBatch(z, z, np.full(512, -1)), **changes)
        costs = [plan.cost(batch, 10, SearchParams()) for plan in (Flat(collection), Scan(collection))]
        return costs[0] < costs[1]

    prior = {"modality_log_probs": np.zeros((512, 3), np.float32)}
    each = {"allowed": np.broadcast_to(True, (512, 5_000_000))}
    assert flat_is_cheaper(5_000_000) and not flat_is_cheaper(10_000_000)
    assert flat_is_cheaper(1_000_000, **prior) and not flat_is_cheaper(5_000_000, **prior)
    assert not flat_is_cheaper(5_000_000, **each)


@pytest.mark.parametrize("width, bank", [(64, 0), (24, 200)])
def test_cells_on_a_device_score_by_the_same_codes(width: int, bank: int) -> None:
    """In float32: candidates are those of brute force over the codes, and nearly those of Faiss, which looks up bytes."""
    rng = np.random.default_rng(0)
    vectors = unit(6000, width, 0).numpy()
    rows = rng.permutation(9000)[:6000]
    stored = np.zeros((9000, width), np.float32)
    stored[rows] = vectors
    queries = unit(7, width, 1).numpy()
    cells = Cells.build(StoredVectors.of(stored), np.sort(rows), None, unit(bank, width, 2).numpy())
    arrays = cells.arrays()
    moved = TensorCells(arrays, tensor_arrays("cpu"))
    assert len(moved) == 6000 and moved.nbytes > 0
    codes = _unpacked(arrays["codes"], len(arrays["codebooks"]))
    described = arrays["codebooks"][np.arange(codes.shape[1]), codes].reshape(6000, width)
    scores = queries @ np.repeat(arrays["means"], arrays["sizes"], axis=0).T + (queries @ arrays["query_transform"]) @ described.T
    mask = rng.random(9000) < 0.5
    for allowed in (None, mask):
        visible = scores
        selected = None
        of_faiss = None
        if allowed is not None:
            visible = np.where(allowed[arrays["rows"]], scores, -np.inf)
            selected = moved.selector(allowed)
            of_faiss = cells.selector(allowed)
        true = arrays["rows"][np.argsort(-visible, axis=1)[:, :40]]
        found_scores, found = moved.search(queries, 40, cells.count, selected)
        assert (found == true).mean() > 0.98  # sums in another order
        assert np.allclose(found_scores, -np.sort(-visible, axis=1)[:, :40], atol=1e-4)
        few = moved.search(queries, 40, 9, selected)[1]
        by_faiss = cells.search(queries, 40, 9, of_faiss)[1]
        assert np.mean([len({*mine} & {*other}) / 40 for mine, other in zip(few, by_faiss, strict=True)]) > 0.9
        captured = moved._search(torch.from_numpy(queries), 40, 9, selected, int(moved._most_slots[8])).rows.numpy()
        assert np.array_equal(captured, few)  # more slots than the probed cells have: what a CUDA graph is captured with
    assert moved._most_slots[-1] == 6000
    nothing, none = moved.search(queries, 8000, cells.count)
    assert (none[:, :6000] >= 0).all() and (none[:, 6000:] == -1).all() and np.isneginf(nothing[:, 6000:]).all()


def test_every_finite_half_becomes_the_same_float() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)].reshape(-1, 4)
    assert np.array_equal(half_to_float(finite), finite.astype(np.float32))
    assert np.array_equal(half_to_float(finite[::3, 1:]), finite[::3, 1:].astype(np.float32))
