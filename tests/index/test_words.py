"""Search by words and hybrid search: against BM25 computed here, exact names first, incremental, and as durable as the table."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from genius import Genius, GeniusError, Index, Item, Query
from genius.fit import FitConfig
from genius.index.check import check
from genius.index.reader import Reader
from genius.index.repair import repair, restore
from genius.index.words import RANK_CONSTANT
from genius.search import SearchRequest
from genius.search.params import WORDS_WEIGHT

TEXTS = {
    "shop/red-bicycle.txt": "a red bicycle with a basket",
    "shop/blue-boat.txt": "a blue boat on the lake, and a red flag",
    "shop/lamp.txt": "a lamp for the kitchen table",
    "shop/table.txt": "a kitchen table of oak, a table for six",
    "shop/chair.txt": "an oak chair",
}


@pytest.fixture
def shop(index: Index) -> Index:
    items = [Item(name, text=text, metadata={"sku": f"XK-{i}/7", "price": i}) for i, (name, text) in enumerate(TEXTS.items())]
    index.add(items)
    assert index.index_words(["sku"]) == ["id", "sku", "text"]
    return index


def ids(index: Index, text: str, **options: object) -> list[str]:
    return [hit.id for hit in index.search(text, **options)]  # type: ignore[arg-type]


def bm25(query: str, k1: float = 1.2, b: float = 0.75) -> list[str]:
    """The texts by BM25, best first; those without any of the words are left out."""
    words = {name: re.findall(r"\w+", text.lower()) for name, text in TEXTS.items()}
    average = sum(map(len, words.values())) / len(words)
    scores: Counter[str] = Counter()
    for term in query.lower().split():
        having = sum(term in own for own in words.values())
        idf = math.log(1 + (len(words) - having + 0.5) / (having + 0.5))
        for name, own in words.items():
            count = own.count(term)
            if count:
                scores[name] += idf * count * (k1 + 1) / (count + k1 * (1 - b + b * len(own) / average))
    return sorted(scores, key=lambda name: -scores[name])


@pytest.mark.parametrize("query", ["basket", "kitchen table", "red flag", "oak chair"])
def test_words_rank_as_bm25(shop: Index, query: str) -> None:
    found = [name for name in ids(shop, query, mode="words") if name in bm25(query)]
    assert found == bm25(query)


def test_an_exact_name_comes_first(shop: Index) -> None:
    for query in ("lamp.txt", "XK-3/7", "xk-3/7", "shop/chair.txt", "red-bicycle"):
        wanted = {"lamp.txt": "shop/lamp.txt", "shop/chair.txt": "shop/chair.txt", "red-bicycle": "shop/red-bicycle.txt"}
        for mode in ("words", "hybrid"):
            assert ids(shop, query, mode=mode)[0] == wanted.get(query, "shop/table.txt"), (query, mode)


def test_words_in_the_same_form_come_before_words_of_the_same_stem(index: Index) -> None:
    texts = {"a": "black shoes", "b": "white sports shoe of a runner", "c": "an umbrella", "d": "a boat", "e": "a lamp"}
    index.add([Item(name, text=text) for name, text in texts.items()])
    index.index_words()
    assert ids(index, "shoe", mode="words") == ["b", "a"]  # BM25 of stems alone: the shorter text first
    assert ids(index, "shoes", mode="words") == ["a", "b"]
    assert ids(index, "SHOE", mode="words") == ["b", "a"]


def test_hybrid_is_the_fusion_of_both_rankings(shop: Index) -> None:
    query = "kitchen table"
    by_words = shop.search(query, mode="words")
    by_similarity = ids(shop, query, k=100)
    for weight in (0.0, 1.0, 3.0):
        hits = shop.search(query, mode="hybrid", words_weight=weight)
        scores = {name: 1 / (RANK_CONSTANT + 1 + by_similarity.index(name)) for name in by_similarity}
        for hit in by_words:
            better = sum(other.score > hit.score + 1e-4 for other in by_words)  # equal scores share a rank
            scores[hit.id] += weight / (RANK_CONSTANT + 1 + better)
        assert [hit.score for hit in hits] == pytest.approx(sorted(scores.values(), reverse=True))
        assert all(hit.score == pytest.approx(scores[hit.id]) for hit in hits)
        assert hits.fusion == {"similarity": 1.0, "words": weight, "rank_constant": RANK_CONSTANT}
        assert hits[0].ranks is not None and hits[0].ranks["similarity"] == by_similarity.index(hits[0].id) + 1
    explained = shop.explain(Query(query), SearchRequest(3, mode="hybrid"))
    assert "similarity 1, words 4" in explained["summary"] and explained["fusion"]["words"] == WORDS_WEIGHT


def test_stems_alone_have_half_of_the_weight(index: Index) -> None:
    index.add([Item("stem", text="shoes"), Item("form", text="shoe")])
    index.index_words()
    scores = {}
    for hit in index.search("shoe", mode="hybrid", target="any", words_weight=100.0):
        assert hit.ranks is not None
        scores[hit.id] = (hit.score - 1 / (RANK_CONSTANT + hit.ranks["similarity"])) * (RANK_CONSTANT + hit.ranks["words"])
    assert scores == pytest.approx({"form": 100.0, "stem": 50.0})


def test_what_is_written_later_is_found_and_what_is_deleted_is_not(shop: Index) -> None:
    shop.add([Item("late.txt", text="a purple umbrella", metadata={"sku": "QQ-1"})])
    assert ids(shop, "umbrella", mode="words") == ["late.txt"] and ids(shop, "QQ-1", mode="words")[0] == "late.txt"
    shop.upsert([Item("late.txt", text="a purple raincoat")])
    assert ids(shop, "umbrella", mode="words") == [] and ids(shop, "raincoat", mode="words") == ["late.txt"]
    shop.optimize()
    assert ids(shop, "raincoat", mode="words") == ["late.txt"] and check(shop.path).ok
    shop.delete("late.txt")
    assert ids(shop, "raincoat", mode="words") == []


def test_filters_and_targets_hold(shop: Index) -> None:
    assert set(ids(shop, "table", mode="words", where="price < 3")) == {"shop/lamp.txt"}
    assert ids(shop, "table", mode="words", target="image") == []
    assert len(ids(shop, "table", mode="hybrid", where="price >= 2", k=2)) == 2


def test_copies_repairs_and_refits_keep_the_words(shop: Index, tmp_path: Path, model: Genius) -> None:
    shop.snapshot(tmp_path / "copy.genius")
    with Index.open(tmp_path / "copy.genius", model, read_only=True) as copy:
        assert copy.words_fields() == ["id", "sku", "text"] and ids(copy, "basket", mode="words") == ["shop/red-bicycle.txt"]
    shop.delete("shop/red-bicycle.txt")
    restore(tmp_path / "copy.genius", shop.path, replace_items=True)
    assert ids(shop, "basket", mode="words") == ["shop/red-bicycle.txt"] and check(shop.path).ok
    (shop.path / "ledger.jsonl").unlink()
    repair(shop.path, model)
    with Index.open(shop.path, model) as repaired:
        assert ids(repaired, "basket", mode="words") == ["shop/red-bicycle.txt"]
    assert check(shop.path).ok


def test_refitted_vectors_keep_the_words(tmp_path: Path) -> None:
    from genius.fit.folder import refit

    own = Index.create(tmp_path / "own.genius", dim=4)
    own.add([Item(str(i), text=f"note number n{i}", vector=[1, i, i * i, 3]) for i in range(40)])
    own.index_words()
    assert ids(own, "n7", mode="words") == ["7"]
    hits = own.search("n7", vector=[1, 9, 81, 3], mode="hybrid", k=3)
    assert {hit.id for hit in hits} >= {"7", "9"}
    refit(tmp_path / "own.genius", FitConfig(steps=1, iterations=1))
    assert ids(Index.open(tmp_path / "own.genius"), "n7", mode="words") == ["7"]


def test_an_old_version_is_searched_as_it_was(shop: Index, model: Genius) -> None:
    version = shop.version
    shop.add([Item("late.txt", text="another basket")])
    with Index.open(shop.path, model, version=version) as old:
        assert ids(old, "basket", mode="words") == ["shop/red-bicycle.txt"]
    assert set(ids(shop, "basket", mode="words")) == {"shop/red-bicycle.txt", "late.txt"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda i: i.search("a", mode="grep"), "mode must be one of"),
        (lambda i: i.search("a", mode="hybrid", words_weight=-1), "words_weight must be"),
        (lambda i: i.index_words(["price"]), "holds numbers"),
        (lambda i: i.index_words(["nothing"]), "no field 'nothing'"),
        (lambda i: i.explain(Query("a"), SearchRequest(mode="words")), "generates no codes"),
    ],
)
def test_one_line_for_what_does_not_fit(shop: Index, call: Callable[[Index], object], message: str) -> None:
    with pytest.raises(GeniusError, match=re.escape(message)):
        call(shop)


def test_once_words_are_indexed_nothing_more_is_read_that_could_fail(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise GeniusError("cannot read the index: Input/output error")

    index.add([Item("a", text="a note")])
    with monkeypatch.context() as broken:
        broken.setattr(Reader, "words_columns", failing)
        assert index.index_words() == ["id", "text"]
    assert index.words_fields() == ["id", "text"]


def test_without_a_full_text_index_one_line_says_what_to_do(index: Index) -> None:
    index.add([Item("a", text="a note")])
    with pytest.raises(GeniusError, match="index_words"):
        index.search("note", mode="hybrid")
    assert index.words_fields() == [] and [hit.id for hit in index.search("note")] == ["a"]
