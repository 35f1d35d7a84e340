"""The search planned by cost: a scan of codes and a comparison of all vectors, against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from search_reference import tiny_generator, tiny_quantizer
from static_ops import TorchOps

from genius import Genius
from genius.search import CodeTrie, SearchEngine, SearchParams, batch_scan, lookups, quick, scan
from genius.search.batch_scan import BatchScan
from genius.search.decoder import CodebookHead, Decoder
from genius.search.quick import FirstRow
from genius.search.scan import CodeScan, Question

SIZES = (3, 6, 4, 5)
ALL = np.float32(-np.inf)


class Unrounded(lookups.Rounded):
    """Where brute force decides: all bits of the weights."""

    def __init__(self, weight: np.ndarray) -> None:
        self.plain = weight

    def times(self, x: np.ndarray, few: int | None = None) -> np.ndarray:
        return x @ self.plain


def own_quantizer(seed: int, own: bool, sizes: tuple[int, ...] = SIZES) -> torch.nn.Module:
    quantizer = tiny_quantizer(sizes, own_books_from=int(own))
    random = torch.Generator().manual_seed(seed)
    for name, buffer in quantizer.named_buffers():
        if name.startswith("codes"):
            buffer.copy_(torch.randn(buffer.shape, generator=random) * 0.5)
    return quantizer


def collection(seed: int, items: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    codes = np.stack([np.minimum((rng.random(items) ** 1.5 * size).astype(np.int64), size - 1) for size in SIZES], axis=1)
    vectors = torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((items, 8))).float(), dim=1)
    return codes, vectors, torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((3, 8))).float(), dim=1)


def engine_of(kind: str, quantizer, codes, vectors) -> SearchEngine:
    return SearchEngine(tiny_generator(SIZES, kind=kind), quantizer, CodeTrie.build(codes, SIZES), vectors)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 200),
    own=st.booleans(),
    target=st.sampled_from([-1, 0, 1, 2]),
    share=st.sampled_from([0.02, 0.3, 1.0]),
    budget=st.sampled_from([1, 7, 40]),
    native=st.booleans(),
)
def test_codes_below_the_nearest_pairs_rank_by_cosine(seed, items, own, target, share, budget, native) -> None:
    """Cells by log p of the decoder, pairs of codes in them by cosine until the budget is met; below, the best k by the cosine of
    the reconstruction."""
    codes, vectors, z = collection(seed, items)
    quantizer = own_quantizer(seed, own)
    engine = engine_of("own-codebooks" if own else "codebooks", quantizer, codes, vectors)
    allowed = np.random.default_rng(seed + 1).random(items) < share
    lookups._scans = lookups.WARM + 1 if native else -1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quick, "Rounded", Unrounded)
        params = SearchParams(rerank=budget, reranker="codes")
        found = engine.search(z, k=5, params=params, target=torch.full((3,), target), allowed=allowed)
    rebuilt = torch.nn.functional.normalize(quantizer.decode(torch.from_numpy(codes)), dim=1)
    for q in range(3):
        valid = allowed & ((codes[:, 0] == target) if target >= 0 else True)
        least, most = _nearest(engine, z[q], codes, target, allowed, max(quick.SCANNED * budget, 5))
        low, high = ((rebuilt @ z[q])[rows].sort(descending=True).values[:5] for rows in (least, most))
        assert torch.all(found.scores[q, : len(low)] >= low - 1e-5) and torch.all(found.scores[q, : len(high)] <= high + 1e-5)
        rows = found.rows[q, : min(5, int(valid.sum()))]
        assert valid[rows].all() and torch.allclose((rebuilt @ z[q])[rows], found.scores[q, : len(rows)], atol=1e-5)
        assert (found.rows[q, len(rows) :] == -1).all() and len(set(rows.tolist())) == len(rows)
        assert len(least) <= int(found.touched[q]) <= len(most)


def _nearest(
    engine: SearchEngine, z: torch.Tensor, codes: np.ndarray, target: int, allowed: np.ndarray, granted: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the allowed items below the nearest pairs in the likeliest cells, by brute force over the generator's own log p:
    those that must be looked at and those that may be (lengths are held in steps)."""
    generator, quantizer = engine.generator, engine.quantizer
    scores = {}
    with torch.inference_mode():
        kinds = generator.next_log_probs(z[None], torch.empty(1, 0, dtype=torch.long))[0]
        for kind, code in {(int(c[0]), int(c[1])) for c in codes if target in (-1, c[0])}:
            first = generator.next_log_probs(z[None], torch.tensor([[kind]]))[0, code]
            scores[kind, code] = float(first) + (float(kinds[kind]) if target < 0 else 0.0)
        table = torch.from_numpy(codes)
        stands_for = sum(quantizer.vectors(level, table[:, level], table[:, 0]) for level in range(3))
        cosines = (torch.nn.functional.normalize(stands_for, dim=1) @ z).numpy().astype(np.float64)
    if not allowed.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    budget, likely = int(granted / allowed.mean()), sorted(scores, key=lambda cell: -scores[cell])
    while True:
        wide: list[int] = []
        for kind, code in likely:
            if len(wide) >= scan.WIDE * budget:
                break
            wide += np.flatnonzero((codes[:, 0] == kind) & (codes[:, 1] == code)).tolist()
        near = sorted((-cosines[row], row) for row in wide)
        cut = -near[min(budget, len(near)) - 1][0] if near else 0.0
        doubt = 4 * lookups.STEP
        rows = [np.array([row for row in wide if cosines[row] >= cut + by and allowed[row]], np.int64) for by in (doubt, -doubt)]
        edge = {tuple(codes[row, :3]) for row in wide if abs(cosines[row] - cut) < doubt}
        if len(edge) <= 1:  # nothing but the last pair itself: no doubt
            rows[0] = rows[1]
        if len(rows[0]) >= 5 or budget >= sum((target in (-1, c[0])) for c in codes):
            return rows[0], rows[1]
        budget *= 4


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.sampled_from([(3, 4, 40), (3, 4, 2, 5), (3, 3, 2, 2, 4), (3, 3, 2, 2, 2, 9), (3, 2, 2, 2, 2, 2, 9)]),
    items=st.integers(2, 300),
    cut=st.floats(0, 1),
    share=st.sampled_from([None, 0.3]),
    native=st.booleans(),
)
def test_every_id_is_looked_at_once_whatever_a_trie_spells_out(seed, sizes, items, cut, share, native) -> None:
    """Two tries of one collection, of any depth: with room for everything, all allowed items and their cosines."""
    rng = np.random.default_rng(seed)
    codes = np.stack([np.minimum((rng.random(items) ** 2 * size).astype(np.int64), size - 1) for size in sizes], axis=1)
    quantizer = tiny_quantizer(sizes)
    parts = [rows for rows in np.split(np.arange(items), [int(cut * items)]) if len(rows)]
    looked = CodeScan(quantizer, [CodeTrie.build(codes[rows], sizes, rows) for rows in parts])
    lookups._scans = lookups.WARM + 1 if native else -1000
    allowed = None if share is None else rng.random(items) < share
    z = torch.from_numpy(rng.standard_normal((1, 8))).float()
    tables = [None if table is None else table[0] for table in looked.tables(z.numpy(), -1)]
    liked = rng.standard_normal(3 * sizes[1]).astype(np.float32)
    found = looked.scan(Question(-1, liked, tables, (z.numpy() @ looked.means.T)[0], allowed), 10**6)
    rebuilt = torch.nn.functional.normalize(quantizer.decode(torch.from_numpy(codes)), dim=1)
    exact = (rebuilt @ z[0]).numpy()
    kept = np.arange(items) if allowed is None else np.flatnonzero(allowed)
    assert int(found.items.sum()) == len(kept) and np.array_equal(np.sort(looked.rows_of(found, ALL, allowed)), kept)
    for place, score, held in zip(found.ids, found.scores, found.items, strict=True):
        rows, own = looked.codes_of(np.array([place]), allowed)
        assert len(rows) == held and np.array_equal(own, codes[rows])
        assert np.allclose(exact[rows], score, atol=2 * looked.doubt * float(z.norm()) + 1e-5)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), items=st.integers(50, 600), budget=st.integers(1, 40), native=st.booleans())
def test_nodes_are_ranked_level_after_level(seed, items, budget, native) -> None:
    """The likeliest cells, then the nearest nodes of every level in those that were kept above, by brute force."""
    sizes = (3, 2, 2, 2, 2, 9)
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, items) for size in sizes], axis=1)
    quantizer = own_quantizer(seed, False, sizes)
    looked = CodeScan(quantizer, [CodeTrie.build(codes, sizes)])
    levels = looked.ranked
    lookups._scans = lookups.WARM + 1 if native else -1000
    z = torch.from_numpy(rng.standard_normal((1, 8))).float()
    liked = rng.standard_normal(6).astype(np.float32)
    tables = [None if table is None else table[0] for table in looked.tables(z.numpy(), -1)]
    found = looked.scan(Question(-1, liked, tables, (z.numpy() @ looked.means.T)[0], None), budget)
    table, kept = torch.from_numpy(codes), np.arange(items)
    scores = liked[codes[:, 0] * 2 + codes[:, 1]].astype(np.float64)
    for i, level in enumerate([1, *levels]):
        if i:
            stands_for = sum(quantizer.vectors(at, table[:, at], table[:, 0]) for at in range(level + 1))
            scores = (torch.nn.functional.normalize(stands_for, dim=1) @ z[0]).numpy().astype(np.float64)
        narrowed = budget * scan.NARROW ** (len(levels) - max(i, 1))
        wanted = min(narrowed if i else scan.WIDE * narrowed, len(kept))
        cut = np.sort(scores[kept])[::-1][wanted - 1]
        edge = np.unique(codes[kept][np.abs(scores[kept] - cut) < 4 * lookups.STEP * float(z.norm())][:, : level + 1], axis=0)
        assume(len(edge) == 1)  # two nodes as near as lengths are held would be a matter of rounding
        kept = kept[scores[kept] >= cut - 1e-5]
    assert np.array_equal(np.sort(looked.rows_of(found, ALL)), kept)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 150),
    target=st.sampled_from([-1, 0, 1, 2]),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    half=st.booleans(),
)
def test_a_small_collection_is_compared_whole(seed, items, target, share, half) -> None:
    """What takes no longer than decoding is exhaustive search, filter and half precision included: with the kind told, or so few
    that all codes would be looked at. One question finds what many at once do."""
    codes, vectors, z = collection(seed, items)
    stored = vectors.half() if half else vectors
    allowed = np.random.default_rng(seed + 1).random(items) < share
    engine = engine_of("codebooks", own_quantizer(seed, False), codes, stored)
    params = SearchParams(rerank=13)  # for 150 items
    found = engine.search(z, k=4, params=params, target=torch.full((3,), target), allowed=allowed)
    alone = engine.search(z[1:2], k=4, params=params, target=torch.tensor([target]), allowed=allowed)
    assert torch.equal(found.rows[1], alone.rows[0]) and torch.equal(found.scores[1], alone.scores[0])
    assert not items or engine._quick is None or engine._quick._scan is None  # no cell was cut
    valid = np.flatnonzero(allowed & ((codes[:, 0] == target) | (target < 0)))
    scores = (stored.float() @ z.T).T[:, valid].sort(dim=1, descending=True).values[:, :4]
    assert torch.allclose(found.scores[:, : scores.shape[1]], scores, atol=1e-6)
    assert (found.rows[:, scores.shape[1] :] == -1).all()
    assert all(np.isin(rows[rows >= 0].numpy(), valid).all() for rows in found.rows)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 9000), steps=st.sampled_from([1, 3, 50, 10**6]), native=st.booleans())
def test_the_least_of_the_best_is_the_one_that_sorting_finds(seed, count, steps, native) -> None:
    """Scores with many equals among them, several items each, compiled or not; the last where more are wanted than there are."""
    rng = np.random.default_rng(seed)
    scores = (rng.integers(0, steps, count) / steps - 0.3).astype(np.float32)
    items = rng.integers(1, 4, count).astype(np.int32)
    wanted = int(rng.integers(1, items.sum() + 9))
    lookups._scans = lookups.WARM + 1 if native else -1000
    each = np.sort(np.repeat(scores, items))[::-1]
    assert lookups.Found(np.arange(count), scores, scores, items).least_of_best(wanted) == each[min(wanted, len(each)) - 1]


def test_vectors_rank_what_the_scan_found(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, vectors, z = collection(5, 400)
    codes = np.unique(codes, axis=0)  # no two look alike by their codes
    vectors = vectors[: len(codes)]
    monkeypatch.setattr(quick, "FLAT_BYTES", 0)
    monkeypatch.setattr(scan, "Rounded", Unrounded)  # codes alone are ranked by all bits
    engine = engine_of("codebooks", own_quantizer(5, False), codes, vectors)
    found = engine.search(z, k=3, params=SearchParams(rerank=10))
    codes_alone = engine.search(z, k=10 * quick.SCANNED, params=SearchParams(rerank=10, reranker="codes"))
    assert 10 * quick.SCANNED <= int(found.touched.max()) < len(codes)
    for q in range(3):
        by_codes = codes_alone.rows[q][codes_alone.rows[q] >= 0]
        best = by_codes[: quick.granted(SearchParams(rerank=10), 3)]
        assert torch.allclose(found.scores[q], (vectors[best] @ z[q]).sort(descending=True).values[:3], atol=1e-6)


def log_p(liked: np.ndarray, target: int) -> np.ndarray:
    """Of every cell, or given the kind: then what all cells share was left out."""
    flat = torch.from_numpy(liked).flatten(1)
    return (flat if target < 0 else flat.log_softmax(1)).numpy()


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("target", [-1, 1])
@pytest.mark.parametrize("kind", ["codebooks", "own-codebooks"])
def test_the_first_row_is_the_decoders(kind: str, target: int, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for its weights in 8 bits. With those, compiled and plain agree."""
    generator = tiny_generator(SIZES, kind=kind, layers=layers)
    decoder = Decoder(generator, torch.device("cpu"))
    assert isinstance(decoder.head, CodebookHead)
    scan = CodeScan(generator.nearness.quantizer, [CodeTrie.build(collection(0, 50)[0], SIZES)])
    z = torch.nn.functional.normalize(torch.randn(4, 8), dim=1)
    with torch.inference_mode():
        truth = scan.liked(decoder, z, target)
        rounded = FirstRow(decoder, decoder.head)
        monkeypatch.setattr(quick, "Rounded", Unrounded)
        exact = FirstRow(decoder, decoder.head)
    for here in (slice(None), slice(2, 3)):
        lookups._scans = -1000
        assert np.allclose(log_p(exact.liked(z[here].numpy(), target), target), truth[here], atol=1e-5)
        plain = rounded.liked(z[here].numpy(), target)
        lookups._scans = lookups.WARM + 1
        assert np.allclose(rounded.liked(z[here].numpy(), target), plain, atol=1e-4)


def test_weights_in_8_bits_move_log_p_of_the_shipped_decoder_by_a_hundredth() -> None:
    """The log p of cells, which spreads over 2.3, and the dots with codes, of which cosines are made."""
    model = Genius.from_pretrained("bundled:mini")
    decoder, sizes = Decoder(model.generator, torch.device("cpu")), model.config.quantizer.level_sizes
    scan = CodeScan(model.quantizer, [CodeTrie.build(np.zeros((1, len(sizes)), np.int64), sizes)])
    z = torch.nn.functional.normalize(torch.randn(8, 256, generator=torch.Generator().manual_seed(0)), dim=1)
    with torch.inference_mode():
        exact, rounded = (scan.tables(z.numpy(), 0, exact)[0] for exact in (True, False))
        assert 0 < (rounded - exact).std() < exact.std() / 100
        moved = np.abs(log_p(FirstRow(decoder, decoder.head).liked(z.numpy(), 0), 0) - scan.liked(decoder, z, 0))
    assert 0 < moved.mean() < 0.01 and moved.max() < 0.1


@pytest.mark.parametrize("reranker", ["codes", "embeddings"])
def test_compiled_and_plain_searches_are_bit_equal(reranker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors in half precision, as an index stores them, some very small: compiled products only say which to compare."""
    pytest.importorskip("numba")
    codes, vectors, z = collection(11, 3000)
    monkeypatch.setattr(quick, "FLAT_BYTES", 0)
    vectors[::7] *= 1e-5
    engine = engine_of("codebooks", own_quantizer(11, False), codes, vectors.half())
    some = np.random.default_rng(0).random(3000) < 0.5
    for allowed, questions, rerank in ((None, z, 300), (some, z, 300), (None, z[:1], 30), (some, z[1:2], 30)):
        answers = []
        for scans in (-1000, lookups.WARM + 1):
            lookups._scans = scans
            params = SearchParams(rerank=rerank, reranker=reranker)
            answers.append(engine.search(questions, k=20, params=params, allowed=allowed))
        assert torch.equal(answers[0].rows, answers[1].rows) and torch.equal(answers[0].scores, answers[1].scores)
        assert torch.equal(answers[0].touched, answers[1].touched) and (answers[0].rows >= 0).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 5), rows=st.integers(1, 13), columns=st.integers(1, 70))
def test_products_in_8_bits_are_those_of_their_numbers(seed, count, rows, columns) -> None:
    """Any number of rows, compiled or not; and no number is further off than half a step, a 254th of the largest of its row."""
    rng = np.random.default_rng(seed)
    weight, x = rng.standard_normal((rows, columns)).astype(np.float32), rng.standard_normal((count, rows)).astype(np.float32)
    rounded = lookups.Rounded(weight)
    assert (np.abs(rounded.plain - weight) <= 1.001 * np.abs(weight).max(1, keepdims=True) / 254).all()
    for scans in (-1000, lookups.WARM + 1):
        lookups._scans = scans
        assert np.allclose(rounded.times(x), x @ rounded.plain, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 70), width=st.integers(1, 70), exponent=st.integers(-8, 4))
def test_products_of_half_precision_are_those_of_their_values(seed, count, width, exponent) -> None:
    """Bits of 16 read as numbers: of any size and sign, zero and those too small for a full mantissa included."""
    pytest.importorskip("numba")
    random = torch.Generator().manual_seed(seed)
    stored = (torch.randn(100, width, generator=random) * 10.0**exponent).half()
    stored[:, ::5] = 0
    rows, query = torch.randint(100, (count,), generator=random), torch.randn(width, generator=random)
    out = np.empty(count, np.float32)
    lookups._scans = lookups.WARM + 1
    lookups.compiled("_products")(lookups.plain(stored.numpy().view(np.uint16)), rows.numpy(), query.numpy(), out)
    exact = stored[rows].double() @ query.double()
    size = stored[rows].double().abs() @ query.double().abs()
    assert (torch.from_numpy(out) - exact).abs().le(1e-6 * size + 1e-30).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    items=st.integers(1, 300),
    own=st.booleans(),
    share=st.sampled_from([None, 0.0, 0.1, 0.7]),
    reranker=st.sampled_from(["embeddings", "codes"]),
    cells=st.sampled_from([2, 128]),
    deep=st.sampled_from([1, 8]),
    added=st.integers(0, 30),
)
def test_many_at_once_are_scanned_as_one_by_one(seed, items, own, share, reranker, cells, deep, added) -> None:
    """The tensor form (a GPU's), run here, against brute force: with room for everything, the best of all that is allowed."""
    codes, vectors, z = collection(seed, items + added)
    quantizer = own_quantizer(seed, own)
    engine = engine_of("own-codebooks" if own else "codebooks", quantizer, codes[:items], vectors[:items])
    if added:
        engine = engine.changed(items, codes[items:], vectors[items:])
    allowed = None if share is None else torch.from_numpy(np.random.default_rng(seed + 1).random(items + added) < share)
    target = torch.tensor([-1, 0, 2])
    scale = torch.nn.functional.normalize(quantizer.decode(torch.from_numpy(codes)), dim=1)
    truth = (vectors if reranker == "embeddings" else scale) @ z.T
    params = SearchParams(rerank=2000, reranker=reranker)  # room for all
    few = {"FEWEST": cells, "SPARE": 0, "SPARED": 0} if cells == 2 else {}  # too few cells at first: all of them after that
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        for name, value in {**few, "DEEP": deep}.items():
            patch.setattr(batch_scan, name, value)
        many = BatchScan(engine.decoder, TorchOps(), quantizer, engine._views, engine.vectors)
        for _ in range(2):  # with what an earlier search left behind
            found = many.search(z, z, 6, params, target, allowed)
    for q in range(3):
        valid = torch.ones(len(codes), dtype=torch.bool) if allowed is None else allowed.clone()
        if target[q] >= 0:
            valid &= torch.from_numpy(codes[:, 0]) == target[q]
        rows = found.rows[q][found.rows[q] >= 0]
        assert len(rows) == min(6, int(valid.sum())) and valid[rows].all() and len(set(rows.tolist())) == len(rows)
        assert torch.allclose(truth[rows, q], found.scores[q, : len(rows)], atol=1e-5)
        if cells > 2:
            best = truth[:, q].masked_fill(~valid, -9).topk(len(rows)).values
            assert torch.allclose(found.scores[q, : len(rows)], best, atol=1e-5)
