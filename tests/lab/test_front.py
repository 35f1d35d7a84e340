"""The search benchmark: its data are neutral and exact, it measures what it says, and its page says what the files say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from lab.front import data, gpu, report, summary

faiss = pytest.importorskip("faiss")


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def small(items: int = 600) -> data.Dataset:
    """Clustered items; queries that look elsewhere: one half of the dimensions is ten times as large."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((20, 32))
    train = unit(centres[random.integers(20, size=items)] + 0.5 * random.standard_normal((items, 32)))
    scale = np.r_[np.ones(16), 0.1 * np.ones(16)]
    asked = unit(random.standard_normal((120, 32)) * scale)
    learn, validation, test = asked[:60], asked[60:90], asked[90:]
    near = [data.nearest(train, part, k) for part, k in ((learn, 10), (validation, 100), (test, 100))]
    return data.Dataset("small", train, learn, near[0], validation, near[1], test, near[2])


def test_nearest_is_brute_force() -> None:
    dataset = small()
    scores = dataset.test @ dataset.train.T
    assert (np.argsort(-scores, axis=1)[:, :10] == dataset.neighbors[:, :10]).all()
    near = data.nearest(dataset.train, dataset.train[:5], 3, skip_self=True, step=100)
    assert all(row not in near[row] for row in range(5))


def test_filling_keeps_the_items_and_adds_unit_vectors_between_neighbours() -> None:
    items = small(80).train
    out = data.filled(items, 200, seed=0)
    assert (out[:80] == items).all() and np.allclose(np.linalg.norm(out, axis=1), 1, atol=1e-5)
    assert ((out[80:] @ items.T).max(1) > 0.7).all()  # near a real one
    assert (data.filled(items, 200, seed=0) == out).all() and (data.filled(items, 200, seed=1)[80:] != out[80:]).any()


def test_the_gpu_program_makes_what_the_package_makes() -> None:
    """Codes of items, and the trie of drawn IDs; here on a CPU."""
    import torch

    from genius.search import CodeTrie, StoredVectors
    from genius.search.cells import Cells, ProductEncoder

    dataset = small(5000)
    vectors = StoredVectors.of(dataset.train)
    cells = Cells.build(vectors, np.arange(5000), None, dataset.learn)
    arrays = cells.arrays()
    encoder = ProductEncoder(cells.means, cells.item_transform, cells.query_transform, cells.codebooks, dataset.learn)
    carried = {name: torch.from_numpy(arrays[name]) for name in ("item_transform", "query_transform", "codebooks")}
    carried["learn"] = torch.from_numpy(dataset.learn)
    cell = np.arange(500) % len(cells.means)
    codes = gpu.codes_of(torch.from_numpy(dataset.train[:500]), torch.from_numpy(cells.means[cell]), carried)
    assert (codes.numpy() == encoder.codes(dataset.train[:500], cell)).mean() > 0.999
    sizes = (3, *([16] * 9))
    drawn = gpu.drawn_trie(20_000, sizes, torch.device("cpu"))
    built = CodeTrie.build(drawn.codes_at(np.arange(20_000)), sizes)
    assert drawn.top == built.top and drawn.arrays().keys() == built.arrays().keys()
    assert all(np.array_equal(array, built.arrays()[name]) for name, array in drawn.arrays().items())


def test_towers_of_two_widths_meet_in_one_space() -> None:
    import torch

    from genius.features import Features

    random = torch.Generator().manual_seed(0)
    meaning = torch.randn(2000, 6, generator=random)
    image = meaning @ torch.randn(6, 40, generator=random) + 0.1 * torch.randn(2000, 40, generator=random)
    text = meaning @ torch.randn(6, 20, generator=random) + 0.1 * torch.randn(2000, 20, generator=random)
    yes, no = torch.ones(2000, dtype=torch.bool), torch.zeros(2000, dtype=torch.bool)
    towers = data.Towers(Features(image, text, yes, yes)[torch.arange(1000)])
    images, texts = towers(Features(image, text, yes, no))[1000:], towers(Features(image, text, no, yes))[1000:]
    assert torch.allclose(images.norm(dim=1), torch.ones(1000), atol=1e-4)
    right = ((texts @ images.T).argmax(1) == torch.arange(1000)).float().mean()
    assert right > 0.9  # pairs that were not fitted on find each other


def test_codes_in_the_metric_of_queries_rank_better_and_additions_are_found() -> None:
    from lab.front.metric import Cells, MetricIVF

    dataset = small()
    cells = Cells.fit(dataset.train, 8)
    found = {}
    for power in (0.0, 0.5):
        index = MetricIVF("PQ4", "", power=power)
        index.build(dataset.train, dataset.learn, cells)
        index.set(8)
        rows = index.index.search(dataset.test, 10)[1]
        found[power] = np.mean([len(set(a) & set(b)) for a, b in zip(rows, dataset.neighbors[:, :10], strict=True)])
    assert found[0.5] > found[0.0]
    exact = MetricIVF("PQ4", "fp16")
    exact.build(dataset.train, dataset.learn, cells)
    exact.set(8, 600)
    assert (np.sort(exact.index.search(dataset.test, 10)[1]) == np.sort(dataset.neighbors[:, :10])).mean() > 0.99
    exact.add(dataset.test[:3])
    assert exact.index.search(dataset.test[:3], 1)[1][:, 0].tolist() == [600, 601, 602]


def test_a_small_run_is_measured_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("h5py")
    from lab.front import run
    from lab.front.algorithms import ALGORITHMS, Faiss, grid

    small().write(tmp_path / "small_text_image.hdf5", {"task": "text -> image"})
    monkeypatch.setitem(ALGORITHMS, "flat", lambda: Faiss("Flat", grid(unused=(0,))))
    monkeypatch.setattr(run, "ADDED", 5)
    out = tmp_path / "fashion_24k.json"
    given = [str(tmp_path / "small_text_image.hdf5"), "--algorithms", "flat,nobody", "--out", str(out), "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", ["run", *given])
    run.main()
    body = json.loads(out.read_text())
    (line,) = body["lines"]
    assert line["test"]["small_text_image"]["0.995"]["recall@10"] == 1.0 and line["add_10000_s"] >= 0
    assert "nobody" in body["failed"] and body["threads"] == 1 and body["commit"] and body["test_queries"] == 30
    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    page = report.page()
    assert "| flat |" in page and "Not measured: nobody" in page


def raced(name: str, memory: float, single: float, batch: float) -> dict[str, object]:
    found = {"setting": {}, "recall@10": 0.96, "single_ms": single, "batch_ms": batch}
    tests = {"fashion_1m_text_image": {"0.95": found}}
    return {"name": name, "memory_bytes_per_item": memory, "disk_bytes_per_item": 0, "build_s": 100.0, "test": tests}


def test_the_summary_names_the_fastest_whoever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        raced("GENIUS", 30, 0.2, 0.1),
        raced("small", 20, 0.4, 0.05),
        raced("middling", 55, 0.3, 0.3),
        raced("Faiss HNSW32", 1300, 0.1, 0.2),
    ]
    (tmp_path / "fashion_1m.json").write_text(json.dumps({"lines": lines, "failed": {}}))
    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    sentences = " ".join(summary.sentences())
    assert "Faiss HNSW32 (1,300 bytes per item in memory) is the fastest for single queries (GENIUS has 0.50 times" in sentences
    assert "small (20 bytes per item in memory) is the fastest for batches of 32 (GENIUS has 0.50 times" in sentences
    (row,) = [line for line in summary.ratios() if "| 0.95 |" in line]
    assert (
        "| 5,000 / 10,000 | 2.00 / 0.50 (small) | 1.50 / 0.50 (middling / small) | 0.50 / 2.00 | 0.50 / 0.50 (HNSW32 / small) |"
        in row
    )
    bars = {bar.what: bar for bar in summary.every_bar()}
    hnsw = bars["throughput against HNSW32 at 0.95, 1,000,000 images filled from fashion, single and batches"]
    assert hnsw.measured == "0.50 and 2.00" and hnsw.met is False and hnsw.wall in hnsw.line()
    assert bars["build of 1,000,000 against HNSW32"].met is False
    assert bars["memory against HNSW32, 1,000,000"].met is True
    growth = bars["growth from 163,000 to 10,000,000 at 0.95, single"]
    assert growth.met is None and "not measured" in growth.line()


def test_the_fastest_of_a_column_is_bold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"lines": [raced("GENIUS", 30, 0.2, 0.1), raced("other", 20, 0.1, 0.2)], "failed": {}}
    rows = report.table(summary.Race("fashion_1m", body, "fashion_1m_text_image"))
    assert "5,000 / **10,000** (0.960)" in rows[2] and "**10,000** / 5,000 (0.960)" in rows[3]


def test_slow_settings_of_a_sweep_are_ruled_out_and_those_that_may_win_are_not() -> None:
    from lab.front.run import Point, promising

    points = [Point(0.9, 1.0, {}), Point(0.95, 2.0, {}), Point(0.94, 2.2, {}), Point(0.9, 5.0, {}), Point(0.99, 9.0, {})]
    assert promising(points) == [points[0], points[1], points[2], points[4]]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_every_item_is_added_in_blocks(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.front import metric

    monkeypatch.setattr(metric, "BLOCK", 64)
    items = small(200).train.astype(kind)
    store = metric.fp16_store(items)
    assert store.ntotal == 200 and np.allclose(store.reconstruct(199), items[199], atol=1e-3)


def test_half_precision_items_are_read_from_the_file(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    dataset = small(80)
    items = data.filled(dataset.train, 200, 0, tmp_path / "items.npy")
    assert items.dtype == np.float16 and np.allclose(items, data.filled(dataset.train, 200, 0), atol=1e-3)
    dataset.train = items
    dataset.write(tmp_path / "half.hdf5", {})
    read = data.Dataset.read(tmp_path / "half.hdf5")
    assert isinstance(read.train, np.memmap) and (read.train == items).all()


def test_a_kept_index_is_read_and_finds_the_same(tmp_path: Path) -> None:
    from lab.front.run import fitted

    dataset = small(5000)
    for name in ("GENIUS", "Faiss HNSW32"):
        made = [fitted(name, dataset, 1, tmp_path) for _ in range(2)]
        found = []
        for contender in made:
            contender.algorithm.set(contender.algorithm.settings[-1])
            found.append(contender.algorithm.query(dataset.test, 10))
        assert (found[0] == found[1]).all() and made[0].line == made[1].line


def test_the_page_says_what_the_files_say() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.page(), "python -m lab.front.report"


def test_collections_of_a_size_hold_every_positive_and_are_filled_by_modality() -> None:
    from types import SimpleNamespace

    from lab.front import sizes

    random = np.random.default_rng(0)
    items = unit(random.standard_normal((300, 8)))
    positives = [[int(row)] for row in random.integers(300, size=80)]
    test = SimpleNamespace(tasks=np.array(["a", "b"] * 40), positives=positives)
    bench = SimpleNamespace(test=test, items=items, modality=np.arange(300) % 3)
    queries, rows = sizes.drawn(bench, 60, np.random.default_rng(1), 40)
    assert len(rows) == 60 and len(set(rows.tolist())) == 60 and len(queries) > 20
    needed = {row for query in queries.tolist() for row in positives[query]}
    assert needed <= set(rows.tolist()) and len(needed) <= 30
    everything = np.arange(300)
    vectors, modality = sizes.collection(bench, everything, 400, 0)
    assert (vectors[:300] == items).all() and np.bincount(modality).tolist() == [134, 133, 133]
    hits: sizes.Hits = {}
    sizes.add_hits(hits, bench, np.array([0, 1]), everything, np.array([[399, positives[0][0]], [-1, 399]]))
    assert hits == {"a": [True], "b": [False]}
