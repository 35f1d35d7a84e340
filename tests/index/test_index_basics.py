"""What an index promises in one process: add, upsert, delete, get, count, search, errors in one line."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_encoder import fake_model
from PIL import Image

from genius import Genius, GeniusError, Index, Item, Modality, Query
from genius.index.searching import why_nothing
from genius.search import SearchEngine, SearchParams, SearchRequest, scan

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "white": (250, 250, 250)}


def picture(colour: str, size: tuple[int, int] = (48, 32)) -> Image.Image:
    return Image.new("RGB", size, COLOURS[colour])


def texts(n: int, **metadata: object) -> list[Item]:
    return [Item(f"t{i}", text=f"word{i % 7} thing{i}", metadata={"rank": i, **metadata}) for i in range(n)]


def test_an_empty_index_answers_everything_with_nothing(index: Index) -> None:
    assert len(index) == 0 and index.search(text="anything") == [] and list(index.items()) == []
    assert index.below().count == 0 and index.count() == 0 and "x" not in index


def test_items_come_back_as_they_went_in(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    picture("red").save(path)
    buffer = io.BytesIO()
    picture("green").save(buffer, "PNG")
    given = [
        Item("by path", image=path, metadata={"price": 9, "ratio": 0.5, "sold": True, "shop": "a"}),
        Item("by bytes", image=buffer.getvalue(), text="a green thing"),
        Item("opened", image=picture("blue")),
        Item("words ü 中文 '\"%", text="nothing but words"),
    ]
    assert index.add(given).added == 4
    back = index.get([item.id for item in given])
    assert back[0].image == str(path) and dict(back[0].metadata) == {"price": 9, "ratio": 0.5, "sold": True, "shop": "a"}
    assert isinstance(back[0].metadata["price"], int)
    assert back[1].image == buffer.getvalue() and back[1].text == "a green thing"
    assert isinstance(back[2].image, bytes) and Image.open(io.BytesIO(back[2].image)).size == (48, 32)
    assert back[3] == given[3]
    assert [item.modality for item in back] == [Modality.IMAGE, Modality.PAIR, Modality.IMAGE, Modality.TEXT]
    small = index.thumbnail("by path")
    assert small is not None and Image.open(io.BytesIO(small)).format == "JPEG"
    assert index.thumbnail(given[3].id) is None


def test_search_finds_the_item_itself_and_target_chooses_the_kind(index: Index) -> None:
    index.add([Item(f"image {c}", image=picture(c)) for c in COLOURS])
    index.add([Item(f"text {c}", text=f"a {c} thing") for c in COLOURS])
    index.add([Item(f"pair {c}", image=picture(c), text=f"a {c} thing") for c in COLOURS])
    for target in ("image", "text", "pair"):
        hits = index.search(text="a red thing", modality=target, k=20)
        assert len(hits) == 4 and {hit.modality.label for hit in hits} == {target}
        assert {hit.codes[0] for hit in hits} == {int(Modality.parse(target))}
    hits = index.search(image=picture("blue"), target="any", k=12)
    assert hits[0].id == "image blue" and len(hits) == 12
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert index.search(image=picture("blue"), target="any", k=12, min_score=scores[2])[-1].score >= scores[2]
    assert [h.id for h in index.search(image=picture("blue"), target="any", k=3)] == [h.id for h in hits[:3]]


def test_a_target_is_what_people_mean_by_it(index: Index) -> None:
    index.add([Item(f"pair {c}", image=picture(c), text=f"a {c} thing") for c in COLOURS])
    for target in ("image", "text", "pair"):  # a folder of captioned photos: all of them have a picture, and words
        assert {hit.id for hit in index.search(text="a red thing", target=target, k=9)} == {f"pair {c}" for c in COLOURS}
    assert index.search(text="a red thing", modality="image") == []
    assert index.search(text="a red thing").target == Modality.IMAGE  # what is looked for where nobody says it
    index.add([Item(f"image {c}", image=picture(c)) for c in COLOURS] + [Item(f"text {c}", text=f"a {c} thing") for c in COLOURS])
    hits = index.search(text="a red thing", target="image", k=20)
    assert {hit.id.split()[0] for hit in hits} == {"pair", "image"} and len(hits) == 8
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert [hit.id for hit in index.search(text="a red thing", target="image", k=3)] == [hit.id for hit in hits[:3]]
    assert {hit.id.split()[0] for hit in index.search(text="a red thing", target="text", k=20)} == {"pair", "text"}
    many = index.search_many(
        [Query(text="a red thing", target=kind) for kind in (Modality.TEXT, None, Modality.IMAGE)],
        SearchRequest(20, any_modality=True),
    )
    assert [len(found) for found in many] == [8, 12, 8] and [hit.id for hit in many[2]] == [hit.id for hit in hits]
    with pytest.raises(GeniusError, match="not both"):
        index.search(text="a", target="image", modality="image")


@pytest.mark.parametrize(
    "asked, strict, counts, where, least, said",
    [
        (None, False, {"image": 0, "text": 0, "pair": 0}, None, None, "the index is empty"),
        (
            "image",
            False,
            {"image": 0, "text": 3, "pair": 0},
            None,
            None,
            "no item has a picture, there are 3 texts; the target any",
        ),
        ("image", True, {"image": 0, "text": 0, "pair": 1}, None, None, "is of the modality image, there are 1 pair;"),
        ("pair", False, {"image": 2, "text": 0, "pair": 0}, None, None, "has a picture and words, there are 2 images"),
        (None, False, {"image": 2, "text": 0, "pair": 0}, "price < 1", None, "'price < 1'"),
        (None, False, {"image": 2, "text": 0, "pair": 0}, None, 0.9, "scores 0.9 or more"),
    ],
)
def test_nothing_found_says_why(
    asked: str | None, strict: bool, counts: dict[str, int], where: str | None, least: float | None, said: str
) -> None:
    target = None if asked is None else Modality.parse(asked)
    assert said in why_nothing(target, SearchRequest(10, where, least, strict=strict), counts)


def test_nothing_found_says_why_to_python_too(index: Index) -> None:
    assert "the index is empty" in repr(index.search("a"))
    index.add([Item("a", text="a")])
    found = index.search("a", target="image")
    assert found == [] and found.why is not None and "no item has a picture, there are 1 text" in repr(found)
    assert index.search("a").why is None


def test_hits_know_codes_that_the_model_gives(index: Index, model: Genius) -> None:
    items = texts(30)
    index.add(items)
    embedded = model.embed_items(items)
    codes = model.quantizer.encode(embedded.z, embedded.modality).tolist()
    for hit in index.search(text="word3", k=30):
        expected = tuple(codes[int(hit.id[1:])])
        assert hit.codes == expected == index.codes(hit.id)


def test_add_keeps_what_is_there_and_upsert_replaces_it(index: Index) -> None:
    first, second = Item("a", text="first words", metadata={"n": 1}), Item("a", text="second words", metadata={"m": "x"})
    assert index.add([first]).added == 1
    again = index.add([second, Item("b", text="b"), Item("b", text="other b")])
    assert (again.added, again.existing) == (1, 2) and index.get("a") == first and index.get("b").text == "b"
    report = index.upsert([Item("a", text="lost"), second, Item("c", text="c")])
    assert (report.added, report.replaced) == (1, 1) and index.get("a") == second and len(index) == 3
    assert index.search(text="second words", k=3)[0].id == "a"
    assert index.count("n = 1") == 0 and index.count("m = 'x'") == 1


def test_deleted_items_are_gone_from_everything(index: Index) -> None:
    index.add(texts(20))
    assert index.delete(["t3", "t4"]) == 2 and len(index) == 18
    assert not {"t3", "t4"} & {hit.id for hit in index.search(text="word3 thing3", k=20)}
    assert index.count("rank IN (3, 4, 5)") == 1 and index.below([1]).count == 18
    with pytest.raises(GeniusError, match="no item 't3' and 1 more"):
        index.delete(["t3", "t5", "nope"])
    assert "t5" in index  # nothing was deleted by the failing call
    assert index.delete(["t3", "t5"], missing="skip") == 1
    assert index.get(["t5", "t6"], missing="skip") == [texts(20)[6]]


def test_filters_run_inside_the_search(index: Index) -> None:
    index.add([Item(f"t{i}", text=f"thing{i}", metadata={"rank": i, "odd": bool(i % 2)}) for i in range(400)])
    hits = index.search(text="thing5", k=10, where="rank >= 390 AND NOT odd", beams=1, rerank=1)
    assert {hit.id for hit in hits} == {f"t{i}" for i in range(390, 400, 2)}  # all that match, though far away
    assert len(index.search(text="thing5", k=10, where="odd")) == 10
    assert index.search(text="thing5", where="rank > 1000") == []
    index.upsert([Item("t390", text="thing390", metadata={"rank": 0})])
    assert {hit.id for hit in index.search(text="x", k=10, where="rank >= 390 AND NOT odd")} == {
        f"t{i}" for i in range(392, 400, 2)
    }


def test_new_metadata_keys_may_appear_at_any_time(index: Index) -> None:
    index.add([Item("a", text="a")])
    index.add([Item("b", text="b", metadata={"price": 3})])
    index.add([Item("c", text="c", metadata={"price": 3.5, "größe": 2, "order": "x"})])
    assert index.columns() == {"price": "number", "größe": "number", "order": "text"}
    assert index.count("price >= 3") == 2 and index.count("größe = 2") == 1 and index.count("`order` = 'x'") == 1
    assert index.count("price IS NULL") == 1
    with pytest.raises(GeniusError, match="'price' is a number in this index, not 'cheap'"):
        index.add([Item("d", text="d", metadata={"price": "cheap"})])
    with pytest.raises(GeniusError, match="differs only in case from 'price'"):
        index.add([Item("d", text="d", metadata={"Price": 1})])
    report = index.add([Item("d", text="d", metadata={"price": "cheap"}), Item("e", text="e")], on_error="skip")
    assert report.added == 1 and "cheap" in report.problems[0] and "e" in index and "d" not in index


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"x": float("nan")}, "finite"),
        ({"x": float("inf")}, "finite"),
        ({"x": [1]}, "a list of strings"),
        ({"x": 2**60}, "2\\^53"),
        ({"id": 1}, "reserved"),
        ({"TEXT": 1}, "reserved"),
        ({"_seq": 1}, "letter"),
        ({"a b": 1}, "letter"),
        ({"x": "\ud800"}, "Unicode"),
        ({"x" * 100: 1}, "letter"),
    ],
)
def test_metadata_that_cannot_be_stored_is_refused(index: Index, metadata: dict[str, object], message: str) -> None:
    with pytest.raises(GeniusError, match=message) as caught:
        index.add([Item("a", text="a", metadata=metadata)])
    assert "\n" not in str(caught.value) and len(index) == 0
    assert len(index.add([Item("a", text="a", metadata=metadata)], on_error="skip").problems) == 1


def test_none_in_metadata_is_absence(index: Index) -> None:
    index.add([Item("a", text="a", metadata={"x": None})])
    assert index.get("a").metadata == {} and index.columns() == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a text, an image"),
        ({"text": "   "}, "needs a text, an image"),
        ({"text": "a", "k": 0}, "k must be"),
        ({"text": "a", "k": -3}, "k must be"),
        ({"text": "a", "k": 10**9}, "k must be"),
        ({"text": "a", "k": True}, "k must be"),
        ({"text": "a", "min_score": float("nan")}, "min_score"),
        ({"text": "a", "beams": 0}, "beams"),
        ({"text": "a", "rerank": -1}, "rerank"),
        ({"text": "a", "target": "video"}, "unknown modality"),
        ({"text": "a", "where": ""}, "where is empty"),
        ({"text": "a", "where": "nope = 1"}, "unknown column"),
        ({"image": b"not a picture"}, "cannot read"),
        ({"image": "missing.jpg"}, "no such image"),
    ],
)
def test_bad_questions_get_one_clear_line(index: Index, arguments: dict[str, object], message: str) -> None:
    index.add([Item("a", text="a")])
    with pytest.raises(GeniusError, match=message) as caught:
        index.search(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_bad_items_get_one_clear_line_and_change_nothing(index: Index, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff nothing")
    bad = [
        Item("x" * 600, text="long id"),
        Item("a\nb", text="newline"),
        Item("c", image=broken),
        Item("d", image=tmp_path / "no.png"),
    ]
    bad += [Item("quote", text='"'), Item("surrogate", text="\ud800")]
    for item in bad:
        with pytest.raises(GeniusError):
            index.add([item])
    report = index.add([*bad, Item("good", text="good")], on_error="skip")
    assert report.added == 1 and len(report.problems) == len(bad) and len(index) == 1
    with pytest.raises(GeniusError, match="'a' has neither an image nor a text"):
        index.add([{"id": "a"}])
    with pytest.raises(GeniusError, match="no item 'nope'"):
        index.get("nope")


def test_streams_in_batches_and_reports_each(index: Index) -> None:
    seen = []

    def endless() -> object:
        for i, item in enumerate(texts(25)):
            seen.append(i)
            yield item

    done: list[int] = []
    safe: list[int] = []
    index.add(
        endless(),  # type: ignore[arg-type]
        batch_size=10,
        on_progress=lambda report: (done.append(report.added), safe.append(len(Index(index.path, index.model)))),  # type: ignore[func-returns-value]
    )
    assert done == [10, 10, 5] and safe == [10, 20, 25]  # a second handle sees each batch when it is reported


def test_many_queries_in_one_call_equal_one_by_one(index: Index) -> None:
    index.add(texts(60) + [Item(f"image {c}", image=picture(c)) for c in COLOURS])
    queries = [
        Query(text="word3"),
        Query(text="thing9", target=Modality.TEXT),
        Query(image=picture("red"), target=Modality.IMAGE),
    ]
    together = index.search_many(queries, SearchRequest(7))
    for query, hits in zip(queries, together, strict=True):
        alone = index.search_many([query], SearchRequest(7))[0]
        assert [h.id for h in alone] == [h.id for h in hits]
        np.testing.assert_allclose([h.score for h in alone], [h.score for h in hits], atol=1e-5)
    assert index.search_many([]) == []


def test_queries_with_requests_of_their_own_equal_one_by_one(index: Index) -> None:
    index.add(texts(40) + [Item(f"image {c}", image=picture(c)) for c in COLOURS])
    queries = [Query(text="word3"), Query(image=picture("red"), target=Modality.IMAGE), Query(text="word5"), Query(text="thing9")]
    requests = [SearchRequest(5, where=where) for where in ("id <> '3'", None, "modality = 'text'", "id <> '3'")]
    together = index.search_each(queries, requests)
    for query, request, hits in zip(queries, requests, together, strict=True):
        alone = index.search_many([query], request)[0]
        assert [h.id for h in alone] == [h.id for h in hits] and len(hits) >= 4
        np.testing.assert_allclose([h.score for h in alone], [h.score for h in hits], atol=1e-5)
    with pytest.raises(GeniusError, match="1 requests for 2 queries"):
        index.search_each(queries[:2], requests[:1])


def test_searches_with_filters_of_their_own_are_as_if_alone(index: Index) -> None:
    """Requests that share one pass through the encoder find what each finds alone."""
    index.add([Item(f"{i}", text=f"word{i} thing{i % 9}", metadata={"n": i}) for i in range(60)])
    index.delete(["5", "17"])
    wheres = ["n < 30", "n >= 30", "n < 0", None, "n = 12 OR n = 13", "n < 30", "n < 59"]
    requests = [SearchRequest(1 + 3 * (i % 2), where) for i, where in enumerate(wheres)]
    requests.append(SearchRequest(4, "n < 40", rerank=5))
    queries = [Query(text=f"word{3 * i}", target=Modality.TEXT if i % 3 else None) for i in range(len(requests))]
    narrow = SearchParams(beams=2, rerank=0)  # IDs written to the end, beside the same beams with everything compared
    requests += [SearchRequest(4, "n < 40", params=params) for params in (narrow, replace(narrow, rerank=30), SearchParams(2, 3))]
    queries += [Query(text="word24")] * 3
    together = index.search_each(queries, requests)
    for query, request, hits in zip(queries, requests, together, strict=True):
        alone = index.search_many([query], request)[0]
        assert [(h.id, h.probability) for h in alone] == [(h.id, h.probability) for h in hits]
        np.testing.assert_allclose([h.score for h in alone], [h.score for h in hits], atol=1e-5)
    assert [len(hits) for hits in together] == [1, 4, 0, 4, 1, 4, 1, *[4] * 4]


def test_features_can_stand_in_for_the_encoder(index: Index, model: Genius, tmp_path: Path) -> None:
    from genius.encoders.base import encode_items

    items = texts(20)
    assert model.encoder is not None
    features = encode_items(model.encoder, items)[0]
    bare = Index(tmp_path / "features.genius", model)
    index.add(items)
    bare.add(items, features=features, batch_size=7)
    assert [index.codes(i.id) for i in items] == [bare.codes(i.id) for i in items]
    with pytest.raises(GeniusError, match="features end"):
        bare.upsert(texts(30), features=features)


def test_what_lives_under_a_prefix(index: Index) -> None:
    items = texts(50)
    index.add(items)
    whole = index.below(limit=100)
    assert whole.count == 50 and whole.children == {1: 50} and [item.id for item in whole.items] == [item.id for item in items]
    codes = index.codes("t7")
    for depth in range(len(codes) + 1):
        view = index.below(codes[:depth], limit=100)
        expected = [i.id for i in items if index.codes(i.id)[:depth] == codes[:depth]]
        assert [item.id for item in view.items] == expected and view.count == len(expected)
        assert sum(view.children.values()) == (view.count if depth < len(codes) else 0)
    assert [item.id for item in index.below(limit=3, offset=4).items] == ["t4", "t5", "t6"]
    for pattern in ([None, codes[1]], [None, None, codes[2]], [1, None, codes[2]], [None]):  # None: any code
        view = index.below(pattern, limit=100)
        fits = [all(want is None or want == own for want, own in zip(pattern, index.codes(i.id), strict=False)) for i in items]
        assert [item.id for item in view.items] == [item.id for item, fit in zip(items, fits, strict=True) if fit]
        assert sum(view.children.values()) == view.count
    with pytest.raises(GeniusError, match=r"not in 0\.\.15"):
        index.below([1, 16])
    with pytest.raises(GeniusError, match="IDs have 4"):
        index.below([1, 1, 1, 1, 1])


def test_another_model_is_refused(index: Index, model_folder: Path, tmp_path: Path) -> None:
    index.add([Item("a", text="a")])
    with pytest.raises(GeniusError, match=r"was built with another model .* not with this model"):
        Index(index.path, fake_model(seed=1))
    stored = Index(tmp_path / "stored.genius", str(model_folder))
    stored.add([Item("a", text="a")])
    opened = Index.open(tmp_path / "stored.genius")  # finds its model again
    assert opened.model.fingerprint() == stored.model.fingerprint() and opened.search(text="a")[0].id == "a"
    with pytest.raises(GeniusError, match="does not say where its model lies"):
        Index.open(index.path)
    with pytest.raises(GeniusError, match="no index at"):
        Index.open(tmp_path / "nowhere.genius")
    assert not (tmp_path / "nowhere.genius").exists()


def test_a_folder_with_other_things_is_not_overwritten(model: Genius, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(GeniusError, match=r"not empty \(it holds 'thesis.tex'\)"):
        Index(tmp_path, model)
    assert (tmp_path / "thesis.tex").read_text() == "important"
    with pytest.raises(GeniusError, match="cannot create an index"):
        Index(tmp_path / "thesis.tex", model)


def test_a_model_without_modality_codes_still_obeys_target(tmp_path: Path) -> None:
    from dataclasses import replace

    model = fake_model()
    config = replace(model.config, quantizer=replace(model.config.quantizer, modality_code="nearest"))
    index = Index(tmp_path / "n.genius", Genius(config, model.encoder))
    index.add([Item(f"image {c}", image=picture(c)) for c in COLOURS] + texts(10))
    hits = index.search_many(
        [Query(text="red", target=Modality.IMAGE), Query(text="red", target=Modality.TEXT), Query(text="red")],
        SearchRequest(20, any_modality=True),
    )
    assert [len(part) for part in hits] == [4, 10, 14]
    assert {hit.modality for hit in hits[0]} == {Modality.IMAGE} and {hit.modality for hit in hits[1]} == {Modality.TEXT}
    filtered = index.search_many([Query(text="red", target=Modality.TEXT)], SearchRequest(20, where="rank < 3"))
    assert {hit.id for hit in filtered[0]} == {"t0", "t1", "t2"}  # the filter and the target hold together


def test_search_defaults_come_from_the_model(tmp_path: Path) -> None:
    index = Index(tmp_path / "a.genius", fake_model(search={"beams": 3, "rerank": 0, "reranker": "none"}))
    index.add(texts(40))
    plain = index.search(text="word1", k=3)
    assert all(hit.score <= 0 for hit in plain)  # log-probabilities: the paper's plain GENIUS
    other = index.search(text="word1", k=3, params=SearchParams())
    assert all(0 < hit.score <= 1.001 for hit in other)
    wrong = Index(tmp_path / "b.genius", fake_model(search={"beam": 3}))
    with pytest.raises(GeniusError, match="unknown field 'beam'"):
        wrong.search(text="a")


def test_query_vectors_must_be_finite(index: Index) -> None:
    index.add(texts(5))
    with pytest.raises(GeniusError, match=r"NaN|finite"):
        index.search_embedded(torch.full((1, 32), float("nan")))


def test_given_features_go_to_the_items_that_are_kept(model: Genius, tmp_path: Path) -> None:
    """Of a batch half is there already: each new item has its own vector, not that of a known one."""
    from genius.encoders.base import encode_items

    items = texts(12)
    assert model.encoder is not None
    features = encode_items(model.encoder, items)[0]
    index = Index(tmp_path / "part.genius", model)
    index.add(items[:6])
    assert index.add(items, features=features).added == 6
    z, dense = model.embed(features)
    for row, hits in enumerate(index.search_embedded(z, dense, request=SearchRequest(1))):
        assert hits[0].id == items[row].id and hits[0].score == pytest.approx(1, abs=2e-3)


def test_ids_whose_hashes_collide_are_told_apart(model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.index.cache.hash_id", lambda item_id: 7)
    Index(tmp_path / "same.genius", model).add(texts(5))
    index = Index(tmp_path / "same.genius", model)  # reopened: ids are looked up by their hashes
    names = [item.id for item in texts(5)]
    assert [item.id for item in index.get(names)] == names
    assert index.get(["stranger"], missing="skip") == []
    assert index.add([*texts(5), Item("stranger", text="new")]).added == 1
    index.delete([names[2]])
    assert {item.id for item in Index(tmp_path / "same.genius", model).items()} == {*names, "stranger"} - {names[2]}


def test_under_a_filter_all_that_match_are_compared(model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little effort the settings name, and in a scan, too: the answer is brute force's."""
    monkeypatch.setattr(scan, "FEWEST", 150)  # so that this collection has cells
    items = [Item(f"t{i}", text=f"word{i} thing{i % 7}", metadata={"n": i}) for i in range(200)]
    index = Index(tmp_path / "filtered.genius", model)
    index.add(items)
    asked = model.embed_queries([Query(text=f"word{i}") for i in range(8)])
    matching = [item for item in items if item.metadata["n"] % 5 == 0]
    stored = model.embed_items(matching).dense.half().float()
    where = " OR ".join(f"n = {item.metadata['n']}" for item in matching)
    request = SearchRequest(10, where, params=SearchParams(1, 10, plan="scan"))
    for row, hits in enumerate(index.search_embedded(asked.z, asked.dense, request=request)):
        best = (stored @ asked.dense[row]).sort(descending=True, stable=True)
        assert [hit.score for hit in hits] == pytest.approx(best.values[:10].tolist(), abs=2e-3)
        assert hits[0].id == matching[int(best.indices[0])].id


def test_the_engine_is_asked_what_the_caller_asked(model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings reach the engine as they are, filter or not."""
    asked: list[SearchParams] = []
    search = SearchEngine.search

    def spy(engine: SearchEngine, *args: object, params: SearchParams, **options: object) -> object:
        asked.append(params)
        return search(engine, *args, params=params, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SearchEngine, "search", spy)
    index = Index(tmp_path / "asked.genius", model)
    index.add([Item(f"t{i}", text=f"word{i}", metadata={"n": i}) for i in range(60)])
    own = SearchParams.of_model(model)
    given = SearchParams(4, 6)
    index.search(text="word1")
    index.search(text="word1", beams=3, rerank=7, where="n < 40")
    index.search(text="word1", params=given, rerank=5)
    index.search(text="word1", params=given, where="n < 40")
    assert asked == [own, SearchParams(3, 7), SearchParams(4, 5), given]
