"""Scan: recall against brute force, filters, deletions, additions, large k; what is kept on disk and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from search_reference import tiny_generator, tiny_quantizer

from genius.errors import GeniusError
from genius.model.query_bank import QueryBank
from genius.search import CodeTrie, ScanCache, SearchEngine, SearchParams, flat, scan
from genius.search.cells import Cells
from genius.search.scan import ARRAYS, META, ScanIndex

SIZES = (3, 16, 16, 16)
WIDTH = 64
GENERATOR, QUANTIZER = tiny_generator(SIZES, width=WIDTH), tiny_quantizer(SIZES, WIDTH)
ITEMS = 24_000
SCAN = SearchParams(plan="scan")
FLAT = SearchParams(plan="flat")


class World:
    """Clustered items of three modalities, the third of them few; queries near items, which see some directions only."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        centres = torch.randn(300, WIDTH, generator=random) * torch.linspace(2, 0.1, WIDTH)
        near = centres[torch.randint(300, (ITEMS,), generator=random)]
        self.vectors = F.normalize(near + 0.4 * torch.randn(ITEMS, WIDTH, generator=random), dim=1).half()
        self.codes = torch.stack([torch.randint(size, (ITEMS,), generator=random) for size in SIZES], 1).numpy()
        self.codes[:, 0] = np.where(np.arange(ITEMS) % 20 == 0, 2, np.arange(ITEMS) % 2)  # 1,200 pairs
        self.seen = torch.where(torch.arange(WIDTH) < 24, 1.0, 0.2)  # queries look in few directions
        queries = self.vectors[torch.randint(ITEMS, (90,), generator=random)].float()
        noise = 0.05 * torch.randn(90, WIDTH, generator=random)
        self.z = F.normalize((queries + noise) * self.seen, dim=1)
        self.target = torch.arange(90) % 4 - 1
        noise = 0.05 * torch.randn(4000, WIDTH, generator=random)
        bank = F.normalize((self.vectors[:4000].float() + noise) * self.seen, dim=1)
        modality = torch.from_numpy(self.codes[:4000, 0])
        self.bank = QueryBank.of(bank, torch.ones(4000).long(), modality)
        self.engine = self.engine_of(slice(0, ITEMS))

    def engine_of(self, rows: slice, cache: ScanCache | None = None) -> SearchEngine:
        trie = CodeTrie.build(self.codes[rows], SIZES)
        return SearchEngine(GENERATOR, QUANTIZER, trie, self.vectors[rows], bank=self.bank, cache=cache)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the cells are probed: with the usual budget this small collection would be scanned whole."""
    monkeypatch.setattr(scan, "SCANNED", 4_000)
    monkeypatch.setattr(scan, "PROBED", 96)


def recall(engine: SearchEngine, world: World, k: int, **more: object) -> float:
    """Share of the true k nearest that a scan finds; it must not find what brute force may not."""
    ours = engine.search(world.z, k=k, params=SCAN, target=world.target, **more)  # type: ignore[arg-type]
    truth = engine.search(world.z, k=k, params=FLAT, target=world.target, **more)  # type: ignore[arg-type]
    assert ours.plan == "scan" and truth.plan == "flat"
    assert ((ours.rows >= 0).sum(1) == (truth.rows >= 0).sum(1)).all()  # k while k exist
    shared = 0
    for mine, true, scores, best in zip(ours.rows, truth.rows, ours.scores, truth.scores, strict=True):
        by_row = dict(zip(true.tolist(), best.tolist(), strict=True))
        found = [row for row in mine.tolist() if row >= 0 and row in by_row]
        shared += len(found)
        for row, score in zip(mine.tolist(), scores.tolist(), strict=True):
            if row >= 0 and row in by_row:
                assert score == pytest.approx(by_row[row], abs=1e-5)
    return shared / int((truth.rows >= 0).sum())


@pytest.mark.parametrize("k", [1, 10, 100, 1000])
def test_a_scan_finds_the_nearest_for_any_k(world: World, k: int) -> None:
    assert recall(world.engine, world, k) >= 0.98
    assert set(world.engine.scan.prepare().cells) == {0, 1}  # by codes: they passed the calibration, and not all was compared


def test_codes_fitted_to_the_metric_of_queries_say_more(world: World) -> None:
    """By codes alone, without vectors, the ten nearest are found more often than with codes that know items only."""
    without = SearchEngine(GENERATOR, QUANTIZER, CodeTrie.build(world.codes, SIZES), world.vectors)
    by_codes = SearchParams(plan="scan", reranker="none")
    target = torch.arange(90) % 2
    truth = world.engine.search(world.z, k=10, params=FLAT, target=target).rows

    def found(engine: SearchEngine) -> float:
        rows = engine.search(world.z, k=10, params=by_codes, target=target).rows
        return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows.tolist(), truth.tolist(), strict=True)]))

    assert found(world.engine) > found(without) > 0.3


@pytest.mark.parametrize("share", [0.9, 0.3, 0.05, 0.001, 0.0])
def test_filters_are_obeyed_and_fill_k(world: World, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "EXACT", 200)  # so that most filters really are scanned
    monkeypatch.setattr(scan, "comparing_is_cheaper", lambda *_: False)
    allowed = np.random.default_rng(1).random(ITEMS) < share
    assert recall(world.engine, world, 10, allowed=allowed) >= 0.98 if share else True
    found = world.engine.search(world.z, k=10, params=SCAN, target=world.target, allowed=allowed).rows
    assert allowed[found[found >= 0]].all()


def test_a_filter_widens_the_scan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes lies deeper: twice as many cells where a seventh passes."""
    monkeypatch.setattr(scan, "EXACT", 10)
    monkeypatch.setattr(scan, "comparing_is_cheaper", lambda *_: False)
    monkeypatch.setattr(scan, "PROBED", 24)
    given = {"k": 10, "params": SCAN, "target": torch.zeros(90).long()}
    whole = world.engine.search(world.z, **given).considered
    allowed = np.random.default_rng(6).random(ITEMS) < 1 / 7
    filtered = world.engine.search(world.z, allowed=allowed, **given).considered
    assert (1.8 * whole < filtered).all() and (filtered < 2.4 * whole).all()


def test_a_filter_far_from_the_query_still_fills_k(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the items pass, and they lie in the cells that would be probed last."""
    monkeypatch.setattr(scan, "EXACT", 10)
    monkeypatch.setattr(scan, "comparing_is_cheaper", lambda *_: False)
    monkeypatch.setattr(scan, "SCANNED", 0)
    monkeypatch.setattr(scan, "PROBED", 4)
    near = world.vectors.float() @ world.z[0]
    allowed = (near < near.median()).numpy() & (world.codes[:, 0] == 1)
    target = torch.tensor([1])
    found = world.engine.search(world.z[:1], k=50, params=SCAN, target=target, allowed=allowed)
    assert (found.rows >= 0).all() and allowed[found.rows[0]].all()


def test_a_narrow_filter_is_answered_exactly(world: World) -> None:
    """All that it lets through are compared: by the plan's own scores, without a re-ranker, the answer is brute force's."""
    allowed = np.random.default_rng(5).random(ITEMS) < 0.1
    exact = world.engine.search(world.z, k=10, params=FLAT, target=world.target, allowed=allowed)
    found = world.engine.search(
        world.z, k=10, params=SearchParams(plan="scan", reranker="none"), target=world.target, allowed=allowed
    )
    np.testing.assert_allclose(found.scores, exact.scores, atol=1e-5, rtol=0)


def test_a_modality_that_may_hold_a_better_item_is_searched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that may want any modality, each as likely: their nearest items are spread over all."""
    monkeypatch.setattr(SearchEngine, "modality_log_probs", lambda _, z: np.full((len(z), 3), -np.log(3), np.float32))
    everything = torch.full((90,), -1)
    truth = world.engine.search(world.z, k=10, params=FLAT, target=everything).rows
    found = world.engine.search(world.z, k=10, params=SCAN, target=everything).rows
    assert len(np.unique(world.codes[truth, 0])) == 3
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), truth.tolist(), strict=True)]) >= 0.98


def test_a_comparison_in_blocks_is_one_without(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "COMPARED", 64)
    rows = np.arange(7, ITEMS, 40)
    vectors = world.engine.collection.vectors
    assert vectors is not None
    scores, found = flat.compare_all(vectors.take, vectors.arrays, rows, world.z.numpy(), 12)
    best = (world.z @ world.vectors[rows].float().T).topk(12, dim=1)
    np.testing.assert_allclose(scores, best.values, atol=1e-5, rtol=0)
    own = (world.z[:, None] * world.vectors[found].float()).sum(2)  # of the rows that it names
    np.testing.assert_allclose(own, scores, atol=1e-5, rtol=0)


def test_a_filter_that_is_used_again_is_read_once_and_a_changed_one_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a caller changes the array that it gave before."""
    monkeypatch.setattr(scan, "EXACT", 200)
    monkeypatch.setattr(scan, "comparing_is_cheaper", lambda *_: False)
    monkeypatch.setattr(scan, "KEPT_FILTERS", 2)
    engine = world.engine_of(slice(0, ITEMS))
    engine.scan._index = world.engine.scan.prepare()
    read: list[int] = []
    selector = Cells.selector
    monkeypatch.setattr(Cells, "selector", lambda own, mask: read.append(int(mask.sum())) or selector(own, mask))
    target = torch.ones(90).long()

    def found(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        rows = engine.search(world.z, k=10, params=SCAN, target=target, allowed=mask).rows
        truth = engine.search(world.z, k=10, params=FLAT, target=target, allowed=mask).rows
        shared = [len({*mine} & {*true}) / 10 for mine, true in zip(rows.tolist(), truth.tolist(), strict=True)]
        assert mask[rows].all() and np.mean(shared) > 0.98
        return rows

    masks = [np.random.default_rng(seed).random(ITEMS) < 0.3 for seed in range(3)]
    before = found(masks[0])
    assert np.array_equal(found(masks[0].copy()), before) and len(read) == 1
    masks[0][before[:, 0]] = False
    assert not np.array_equal(found(masks[0]), before) and read[1] < read[0]
    for mask in masks:
        found(mask)
    assert len(read) == 4 and len(engine.scan._filters) == 2


def test_many_queries_of_one_filter_compare_where_one_scans(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each vector is read once for all of them. What they find is nearly the same."""
    monkeypatch.setattr(scan, "EXACT", 10)
    monkeypatch.setattr(scan, "REFINED", 20)
    allowed = np.random.default_rng(4).random(ITEMS) < 0.12
    target = torch.zeros(90).long()
    together = world.engine.search(world.z, k=10, params=SCAN, target=target, allowed=allowed)
    assert (together.considered == (allowed & (world.codes[:, 0] == 0)).sum()).all()
    shared = []
    for query in range(0, 90, 9):
        own = slice(query, query + 1)
        alone = world.engine.search(world.z[own], k=10, params=SCAN, target=target[own], allowed=allowed)
        assert alone.considered[0] != together.considered[0]
        shared.append(len({*alone.rows[0].tolist()} & {*together.rows[query].tolist()}) / 10)
    assert np.mean(shared) >= 0.9


def test_every_query_has_its_own_filter(world: World) -> None:
    """Nobody sees what only another's filter lets through."""
    rng = np.random.default_rng(2)
    allowed = rng.random((6, ITEMS)) < np.array([0.5, 0.4, 0.01, 0.001, 0.0, 1.0])[:, None]
    target = torch.tensor([0, 1, -1, 0, 1, -1])
    found = world.engine.search(world.z[:6], k=8, params=SCAN, target=target, allowed=allowed)
    for query in range(6):
        alone = world.engine.search(
            world.z[query : query + 1], k=8, params=SCAN, target=target[query : query + 1], allowed=allowed[query]
        )
        rows = found.rows[query]
        assert alone.rows[0].tolist() == rows.tolist() and allowed[query][rows[rows >= 0]].all()
        assert (rows >= 0).sum() == (0 if query == 4 else 8)


def test_a_query_finds_alone_what_it_finds_in_a_batch(world: World) -> None:
    """Cells are ranked by another kernel for a batch; targets of the batch differ."""
    together = world.engine.search(world.z, k=10, params=SCAN, target=world.target)
    for query in range(0, 90, 7):
        own = slice(query, query + 1)
        alone = world.engine.search(world.z[own], k=10, params=SCAN, target=world.target[own])
        assert alone.rows[0].tolist() == together.rows[query].tolist()
        assert alone.considered[0] == together.considered[query] > 0
        np.testing.assert_allclose(alone.scores[0], together.scores[query], atol=1e-6, rtol=0)


def test_deleted_items_are_gone_and_added_ones_found(world: World) -> None:
    first = ITEMS - 3000
    engine = world.engine_of(slice(0, first))
    engine.search(world.z[:1], k=3, params=SCAN)
    before = len(engine.scan.prepare().cells[0])
    alive = np.random.default_rng(3).random(ITEMS) < 0.9
    grown = engine.changed(first, world.codes[first:], world.vectors[first:].numpy(), alive)
    assert recall(grown, world, 10) >= 0.98
    found = grown.search(world.z, k=20, params=SCAN, target=world.target).rows
    assert alive[found].all() and (found >= first).any()
    assert len(engine.scan.prepare().cells[0]) == before  # the engine of before shows what it showed
    assert set(engine.scan.prepare().few[2]) < set(grown.scan.prepare().few[2])  # a small modality keeps its items
    assert grown.search(world.z[:1], k=3).plan in ("flat", "scan")


def test_a_scan_that_was_outgrown_is_built_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "OUTGROWN", 1.1)
    first = ITEMS // 2
    engine = world.engine_of(slice(0, first))
    fitted = engine.scan.prepare().cells[0].fitted
    grown = engine.changed(first, world.codes[first:], world.vectors[first:].numpy())
    assert grown.scan.prepare().cells[0].fitted > 1.5 * fitted
    assert recall(grown, world, 10) >= 0.98


def test_what_is_kept_on_disk_finds_the_same(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ScanCache(tmp_path / "scan", "this")
    world.engine.scan.prepare().save(cache.folder, cache.identity)
    monkeypatch.setattr(ScanIndex, "build", lambda *_: pytest.fail("it was built although it is on disk"))
    again = world.engine_of(slice(0, ITEMS), cache)
    ours = again.search(world.z, k=10, params=SCAN, target=world.target)
    theirs = world.engine.search(world.z, k=10, params=SCAN, target=world.target)
    assert np.array_equal(ours.rows, theirs.rows) and np.array_equal(ours.scores, theirs.scores)
    assert ScanIndex.load(cache.folder, "another") is None


def test_a_saved_scan_of_another_number_of_items_is_not_used(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ScanCache(tmp_path, "this")
    own = world.engine.scan.prepare()
    replace(own, rows=ITEMS + 5).save(cache.folder, cache.identity)
    monkeypatch.setattr(ScanIndex, "build", lambda *_: own)
    assert world.engine_of(slice(0, ITEMS), cache).scan.prepare().rows == ITEMS


def _spoil(name: str, change: object) -> object:
    def spoil(folder: Path) -> None:
        arrays = load_file(folder / ARRAYS)
        arrays[name] = change(arrays[name])  # type: ignore[operator]
        save_file(arrays, folder / ARRAYS)
        meta = json.loads((folder / META).read_text())
        meta["sha256"] = scan._sha256(folder / ARRAYS)  # whoever spoilt it knows checksums, too
        (folder / META).write_text(json.dumps(meta))

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / META).unlink(),
        lambda folder: (folder / META).write_text("{}"),
        lambda folder: (folder / META).write_text("not json"),
        lambda folder: (folder / ARRAYS).unlink(),
        lambda folder: (folder / ARRAYS).write_bytes((folder / ARRAYS).read_bytes()[:-100]),
        lambda folder: (folder / ARRAYS).write_bytes((folder / ARRAYS).read_bytes()[:-1] + b"!"),
        _spoil("0.rows", lambda rows: rows + ITEMS),
        _spoil("0.rows", lambda rows: -rows),
        _spoil("0.sizes", lambda sizes: sizes * 2),
        _spoil("0.codes", lambda codes: codes[:, :-1].copy()),
        _spoil("0.codebooks", lambda books: books[:, :10].copy()),
        _spoil("0.means", lambda means: means * np.float32(np.nan)),
        _spoil("2.few", lambda rows: rows.astype(np.float32)),
    ],
)
def test_a_file_that_is_damaged_or_lies_is_not_used(world: World, tmp_path: Path, spoil) -> None:
    world.engine.scan.prepare().save(tmp_path, "this")
    spoil(tmp_path)
    assert ScanIndex.load(tmp_path, "this") is None


def test_a_scan_is_written_only_where_it_may_be(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScanIndex, "build", lambda *_: world.engine.scan.prepare())
    world.engine_of(slice(0, ITEMS), ScanCache(tmp_path / "a", "this", writable=False)).scan.prepare()
    assert not (tmp_path / "a").exists()
    world.engine_of(slice(0, ITEMS), ScanCache(tmp_path / "b", "this")).scan.prepare()
    assert ScanIndex.load(tmp_path / "b", "this") is not None
    (tmp_path / "c").write_text("a file where the folder should be")
    world.engine_of(slice(0, ITEMS), ScanCache(tmp_path / "c", "this")).scan.prepare()  # does without


def test_bad_queries_are_one_clear_error(world: World) -> None:
    for call, said in (
        (lambda: world.engine.search(world.z * torch.nan, k=3, params=SCAN), "queries' z"),
        (lambda: world.engine.search(world.z, k=0, params=SCAN), "k must be"),
        (lambda: world.engine.search(world.z[:, :3], k=3, params=SCAN), "z must be"),
        (lambda: world.engine.search(world.z, k=3, params=SCAN, allowed=np.ones(3, bool)), "allowed"),
    ):
        with pytest.raises(GeniusError, match=said):
            call()
    more = world.engine.search(world.z[:2], k=ITEMS + 5, params=SCAN)
    assert ((more.rows >= 0).sum(1) == ITEMS).all()


def test_vectors_that_the_cells_do_not_follow_get_a_larger_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "PROBED", 20)
    monkeypatch.setattr(scan, "SCANNED", 500)
    random = torch.Generator().manual_seed(1)
    vectors = F.normalize(torch.randn(6_000, WIDTH, generator=random), dim=1).half()  # no structure at all
    codes = torch.stack([torch.randint(size, (6_000,), generator=random) for size in SIZES], 1).numpy()
    codes[:, 0] = 1
    engine = SearchEngine(GENERATOR, QUANTIZER, CodeTrie.build(codes, SIZES), vectors)
    queries = F.normalize(torch.randn(40, WIDTH, generator=random), dim=1)
    found = engine.search(queries, k=10, params=SCAN, target=torch.ones(40).long())
    truth = engine.search(queries, k=10, params=FLAT, target=torch.ones(40).long())
    shares = [len(set(a) & set(b)) / 10 for a, b in zip(found.rows.tolist(), truth.rows.tolist(), strict=True)]
    assert np.mean(shares) > 0.97


def test_queries_of_the_bank_that_lie_far_from_items_get_a_larger_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same items with and without a bank of queries whose neighbours are spread over many cells."""
    monkeypatch.setattr(scan, "PROBED", 4)
    monkeypatch.setattr(scan, "SCANNED", 100)
    random = np.random.default_rng(3)
    centres = random.standard_normal((100, WIDTH))
    items = centres[random.integers(100, size=6_000)] + 0.1 * random.standard_normal((6_000, WIDTH))
    items = (items / np.linalg.norm(items, axis=1, keepdims=True)).astype(np.float16)
    codes = np.zeros((6_000, 4), np.int64)
    far = random.standard_normal((200, WIDTH)).astype(np.float32)
    far /= np.linalg.norm(far, axis=1, keepdims=True)
    bank = QueryBank.of(far, np.ones(200), np.zeros(200))
    efforts = []
    for known in (None, bank):
        engine = SearchEngine(GENERATOR, QUANTIZER, CodeTrie.build(codes, SIZES), items, bank=known)
        efforts.append(engine.scan.prepare().efforts[0][scan.UNKNOWN])
    assert efforts[1] > efforts[0]


def test_each_query_modality_has_an_effort_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images lie near items, texts far from all. A batch of both finds what each finds alone; a file keeps both efforts."""
    monkeypatch.setattr(scan, "PROBED", 4)
    monkeypatch.setattr(scan, "SCANNED", 100)
    random = np.random.default_rng(3)
    centres = random.standard_normal((100, WIDTH))
    items = centres[random.integers(100, size=6_000)] + 0.1 * random.standard_normal((6_000, WIDTH))
    items = (items / np.linalg.norm(items, axis=1, keepdims=True)).astype(np.float16)
    queries = random.standard_normal((400, WIDTH)).astype(np.float32)
    queries[:200] = items[:200] + 0.02 * random.standard_normal((200, WIDTH))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    modality = np.repeat([0, 1], 200)
    bank = QueryBank.of(queries, modality, np.zeros(400))
    engine = SearchEngine(GENERATOR, QUANTIZER, CodeTrie.build(np.zeros((6_000, 4), np.int64), SIZES), items, bank=bank)
    index = engine.scan.prepare()
    assert index.efforts[0][0] < index.efforts[0][1] == index.efforts[0][scan.UNKNOWN]
    target = np.zeros(400, np.int64)
    together = engine.search(queries, k=10, params=SCAN, target=target, modality=modality)
    unknown = engine.search(queries, k=10, params=SCAN, target=target)
    for own, other in ((slice(0, 200), "fewer"), (slice(200, 400), "as many")):
        alone = engine.search(queries[own], k=10, params=SCAN, target=target[own], modality=modality[own])
        assert np.array_equal(alone.rows, together.rows[own])
        assert np.array_equal(alone.considered, together.considered[own])
        assert (alone.considered < unknown.considered[own]).all() == (other == "fewer")
    index.save(tmp_path, "this")
    loaded = ScanIndex.load(tmp_path, "this")
    assert loaded is not None and loaded.efforts == index.efforts


def test_a_file_with_one_effort_for_all_queries_keeps_it(world: World, tmp_path: Path) -> None:
    """As files were written before each query modality had its own."""
    world.engine.scan.prepare().save(tmp_path, "this")
    meta = json.loads((tmp_path / META).read_text())
    meta["efforts"] = dict.fromkeys(meta["efforts"], 3.0)
    (tmp_path / META).write_text(json.dumps(meta))
    loaded = ScanIndex.load(tmp_path, "this")
    assert loaded is not None and loaded.efforts == {0: {scan.UNKNOWN: 3.0}, 1: {scan.UNKNOWN: 3.0}}
    for wrong in (5.0, {"0": 1.0}, {"-1": -1.0}, {"x": 1.0}, None):
        meta["efforts"] = dict.fromkeys(meta["efforts"], wrong)
        (tmp_path / META).write_text(json.dumps(meta))
        assert ScanIndex.load(tmp_path, "this") is None


def test_the_effort_is_chosen_by_queries_that_codes_do_not_follow(world: World) -> None:
    """Half of the queries of each modality at most; those of a modality that is rare choose nothing."""
    modality = np.where(np.arange(4000) < 1000, 0, 1)
    modality[:10] = 2
    bank = QueryBank(world.bank.z, modality, np.where(np.arange(4000) < 1500, 1, 0))
    followed, judges = scan._queries_of(bank, 1, WIDTH)
    assert {one: len(own) for one, own in judges.items()} == {0: scan.CALIBRATION_QUERIES, 1: scan.CALIBRATION_QUERIES}
    assert len(followed) == 1500 - 2 * scan.CALIBRATION_QUERIES
    together = np.concatenate([followed, *judges.values()])
    assert np.array_equal(np.unique(together, axis=0), np.unique(bank.z[:1500], axis=0))
    again, _ = scan._queries_of(bank, 1, WIDTH)
    assert np.array_equal(again, followed)  # additions are coded by the same queries


def test_the_item_bias_has_a_say_in_what_is_compared(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few comparisons, more of the best by similarity less bias are found than among the best by codes alone."""
    monkeypatch.setattr(scan, "REFINED", 8)
    strong = np.full((3, 3), 2, np.float32)
    biased = replace(world.bank, bias_weights=strong, bias_temperatures=strong / 40)
    trie = CodeTrie.build(world.codes, SIZES)
    engine = SearchEngine(GENERATOR, QUANTIZER, trie, world.vectors, bank=world.bank, bias_bank=biased)
    given = {"target": torch.arange(90) % 2, "modality": torch.ones(90).long()}
    truth = engine.search(world.z, k=10, params=FLAT, **given).rows
    shares = []
    for times in (1, scan.BIASED):
        monkeypatch.setattr(scan, "BIASED", times)
        found = engine.search(world.z, k=10, params=SCAN, **given).rows
        shares.append(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), truth.tolist(), strict=True)]))
    assert shares[1] > shares[0] + 0.02


def test_wide_vectors_have_more_codes() -> None:
    from genius.search.cells import Cells
    from genius.search.vectors import StoredVectors

    vectors = np.random.default_rng(0).normal(size=(600, 512)).astype(np.float32)
    cells = Cells.build(StoredVectors([vectors]), np.arange(600), None)
    assert len(cells.codebooks) == 64


def test_codes_are_unpacked_as_they_were_packed_and_additions_change_no_other() -> None:
    from genius.search.cells import Cells, _product_quantizer
    from genius.search.vectors import StoredVectors

    vectors = np.random.default_rng(0).normal(size=(5_000, 30)).astype(np.float32)  # 30 codes of one dimension
    stored = StoredVectors([vectors])
    cells = Cells.build(stored, np.arange(4_900), None)
    grown = cells.extended(stored, np.arange(4_900, 5_000))
    before = cells.arrays()
    after = Cells(grown.arrays(), grown.fitted).arrays()
    assert len(cells) == 4_900 and len(grown) == 5_000 and sorted(after["rows"].tolist()) == list(range(5_000))
    cell_of_row = np.empty(5_000, np.int64)
    cell_of_row[after["rows"]] = np.repeat(np.arange(grown.count), after["sizes"])
    residuals = (vectors - grown.means[cell_of_row]) @ grown.item_transform
    expected = _product_quantizer(grown.codebooks).compute_codes(np.ascontiguousarray(residuals))
    assert np.array_equal(after["codes"], expected[after["rows"]])
    assert np.array_equal(before["codes"], expected[before["rows"]])


def test_scores_by_codes_approximate_similarities() -> None:
    """Items are transformed by the root of the queries' metric, queries by its inverse: their products stay."""
    from genius.search.cells import Cells
    from genius.search.vectors import StoredVectors

    random = np.random.default_rng(7)
    vectors = random.normal(size=(3_000, 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = random.normal(size=(50, 32)) / (1 + np.arange(32))  # they lie along few directions
    queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    cells = Cells.build(StoredVectors([vectors]), np.arange(3_000), queries.T @ queries / len(queries))
    scores, rows = cells.search(queries, 100, cells.count)
    similarities = np.take_along_axis(queries @ vectors.T, rows, axis=1)
    assert np.abs(scores - similarities).mean() < 0.03  # similarities of 0.38 on the mean


def test_cells_are_chosen_in_groups_as_by_a_product_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly the same cells for queries that see some directions only, and where all groups are ranked the same. Few cells are
    ranked at once."""
    from genius.search import cells as module
    from genius.search.vectors import StoredVectors

    random = np.random.default_rng(9)
    scale = 1 / (1 + np.arange(32))
    vectors = random.normal(size=(30_000, 32)).astype(np.float32) * np.sqrt(scale).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = (random.normal(size=(40, 32)) * scale).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    monkeypatch.setattr(module, "FEWEST_RANKED", 160)
    built = Cells.build(StoredVectors([vectors]), np.arange(30_000), queries.T @ queries / len(queries))
    assert built.count == 640 and built.groups.ntotal == 640
    exact_scores, exact = built._best_cells(queries, 20)  # a batch: by a product
    assert np.allclose(exact_scores, np.take_along_axis(queries @ built.means.T, exact, 1), atol=1e-6)
    monkeypatch.setattr(module, "HOST", None)  # no product from here on
    monkeypatch.setattr(module, "BATCH", 100)

    def shared() -> float:
        """The share of the best cells that are chosen in groups."""
        built._probed_groups.clear()
        scores, chosen = built._best_cells(queries, 20)
        assert np.allclose(scores, np.take_along_axis(queries @ built.means.T, chosen, 1), atol=2e-3)
        return float(np.mean([len({*mine} & {*true}) / 20 for mine, true in zip(chosen.tolist(), exact.tolist(), strict=True)]))

    assert shared() > 0.95
    monkeypatch.setattr(module, "FEWEST_RANKED", 40)
    monkeypatch.setattr(module, "RANKED", 2)
    in_metric = shared()
    built.groups = module._grouped(built.means, np.eye(32, dtype=np.float32))
    assert in_metric > shared() + 0.02
    monkeypatch.setattr(module, "FEWEST_RANKED", 640)
    monkeypatch.setattr(module, "RANKED_SHARE", 1.0)
    assert shared() > 0.99


def test_a_scan_goes_on_where_the_groups_have_fewer_cells_than_it_would_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    from genius.search import cells as module
    from genius.search.vectors import StoredVectors

    vectors = np.random.default_rng(2).normal(size=(30_000, 32)).astype(np.float32)
    monkeypatch.setattr(module, "FEWEST_RANKED", 1)
    monkeypatch.setattr(module, "RANKED", 0.01)
    built = Cells.build(StoredVectors([vectors]), np.arange(30_000), None)
    numbers = built._best_cells(vectors[:1], 60)[1][0]
    known = numbers[numbers >= 0]
    assert 0 < len(known) < 60
    sizes = built.arrays()["sizes"]
    rows = built.search(vectors[:1], 3_000, 60)[1][0]
    assert (rows >= 0).sum() == sizes[known].sum()


def test_codes_follow_the_queries_nearest_to_an_item() -> None:
    """The error along the queries that may find an item is smaller where queries are known; that of added items, too."""
    from genius.search.cells import NEAREST_QUERIES, Cells, _product_quantizer
    from genius.search.vectors import StoredVectors

    random = np.random.default_rng(5)
    vectors = random.normal(size=(4_000, 54)).astype(np.float32)  # 27 codes: the last byte holds one
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = random.normal(size=(300, 54)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    stored = StoredVectors([vectors])
    first = np.arange(3_500)
    added = np.arange(3_500, 4_000)
    nearest = np.argsort(-vectors @ queries.T, axis=1)[:, :NEAREST_QUERIES]
    directions = queries[nearest].mean(1)

    def errors(cells: Cells) -> NDArray[np.float64]:
        """(n,) squared error of each row along the queries nearest to it."""
        arrays = cells.arrays()
        cell_of_row = np.empty(4_000, np.int64)
        cell_of_row[arrays["rows"]] = np.repeat(np.arange(cells.count), arrays["sizes"])
        codes = np.empty_like(arrays["codes"])
        codes[arrays["rows"]] = arrays["codes"]
        residuals = (vectors - cells.means[cell_of_row]) @ cells.item_transform
        left = residuals - _product_quantizer(cells.codebooks).decode(codes)
        return (left * (directions @ cells.query_transform)).sum(1) ** 2

    plain = errors(Cells.build(stored, first, None).extended(stored, added))
    directed = errors(Cells.build(stored, first, None, queries).extended(stored, added, queries))
    assert directed[first].mean() < 0.5 * plain[first].mean()
    assert directed[added].mean() < 0.5 * plain[added].mean()
