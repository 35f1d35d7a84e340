"""Varied answers, unwanted ones, duplicates; what may be given for an item or a question; hits in a notebook."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from genius import Genius, GeniusError, Index, Item, Modality, Query
from genius.cli import app
from genius.index import Hit, Hits
from genius.index.duplicates import duplicates, equal_images
from genius.index.searching import apart
from genius.search import SearchRequest

COLOURS = ("red", "green", "blue", "orange")


def hit(codes: tuple[int, ...], place: int) -> Hit:
    return Hit(str(place), 1.0 - place / 100, codes, Item(str(place), text="x"), Modality.TEXT)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40), st.integers(1, 12))
def test_varied_answers_are_the_best_of_their_subtrees(codes: list[tuple[int, int, int]], k: int) -> None:
    hits = Hits(hit(code, place) for place, code in enumerate(codes))
    chosen = apart(hits, k)
    assert len(chosen) == min(k, len(hits)) and [h.score for h in chosen] == sorted((h.score for h in chosen), reverse=True)
    assert chosen[0].id == "0"  # the best answer is always among them
    if len(set(codes)) >= k:  # then no two have the same ID, and each is the best of its subtree
        depth = next(d for d in range(1, 4) if len({code[:d] for code in codes}) >= k)
        own = [h.codes[:depth] for h in chosen]
        assert len(hits) <= k or len(set(own)) == len(own)
        assert len(hits) <= k or all(
            next(h for h in hits if h.codes[:depth] == code).id == c.id for code, c in zip(own, chosen, strict=True)
        )


def test_what_is_unwanted_is_taken_out_of_each_question_that_says_so(model: Genius) -> None:
    words = [f"{colour} {thing}" for colour in COLOURS for thing in ("box", "ball", "car", "hat")]
    unwanted = [None if i % 3 == 0 else f"{words[-i]} old" for i in range(len(words))]
    plain, bare = model.embed_queries([Query(word) for word in words]), {None: None}
    bare |= {said: model.embed_queries([Query(said)]).z[0] for said in unwanted if said is not None}  # type: ignore[dict-item]
    mixed = model.embed_queries([Query(word, minus=said) for word, said in zip(words, unwanted, strict=True)])  # type: ignore[arg-type]
    assert len(mixed.z) == len(mixed.dense) == len(mixed.modality) == len(words)
    for before, after, said in zip(plain.z, mixed.z, unwanted, strict=True):
        away = bare[said]
        if away is None or float(before @ away) <= 0:
            assert torch.allclose(before, after, atol=1e-6)
        else:
            assert abs(float(after @ away)) < 1e-5 and abs(float(after.norm()) - 1) < 1e-5


def fill(index: Index, each: int = 3) -> None:
    for colour in COLOURS:
        index.add([Item(f"{colour}{i}", image=Image.new("RGB", (8 + i, 8), colour), metadata={"c": colour}) for i in range(each)])


def test_minus_and_diverse_through_the_index_and_the_command(index: Index, model_folder: Path) -> None:
    fill(index)
    red = Image.new("RGB", (8, 8), "red")
    plain = index.search(image=red, target="any", k=3)
    assert {hit.item.metadata["c"] for hit in plain} == {"red"}
    orange = Image.new("RGB", (8, 8), "orange")
    before, after = (index.search(image=orange, minus=minus, target="any", k=12) for minus in (None, red))
    scores = [[hit.score for hit in hits if hit.item.metadata["c"] == "red"] for hits in (before, after)]
    assert min(scores[0]) > 0.3 and max(map(abs, scores[1])) < 0.02  # nothing red is left in the question
    with pytest.raises(GeniusError, match="nothing is left to search for"):
        index.search(image=red, minus=red, target="any")
    kinds = [hit.item.metadata["c"] for hit in index.search(image=red, target="any", k=4, diverse=True)]
    assert kinds[0] == "red" and len(set(kinds)) >= 3
    call = ["search", str(index.path), "a thing", "--minus", "a red thing", "--diverse", "-k", "4", "--json"]
    done = CliRunner().invoke(app, [*call, "--model", str(model_folder)])
    assert done.exit_code == 0 and len(json.loads(done.stdout)["hits"]) == 4, done.output


def test_duplicates_are_found_and_nothing_else(index: Index, model_folder: Path) -> None:
    rng = np.random.default_rng(0)
    noise = [Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in range(12)]
    pictures = [picture.resize((64, 64), Image.Resampling.BOX) for picture in noise]  # JPEG blurs the colours of single pixels
    index.add([Item(f"p{i}", image=picture) for i, picture in enumerate(pictures)])
    index.add([Item("again3", image=pictures[3].resize((128, 128), Image.Resampling.BOX)), Item("again3b", image=pictures[3])])
    index.add([Item("again7", image=pictures[7])])
    groups = {frozenset(group.ids) for group in duplicates(index, 0.999)}
    assert groups == {frozenset(("p3", "again3", "again3b")), frozenset(("p7", "again7"))}
    done = CliRunner().invoke(app, ["duplicates", str(index.path), "--threshold", "0.999", "--model", str(model_folder)])
    assert done.exit_code == 0 and "2 groups, 3 items more than needed" in done.output, done.output


def star(colour: str, side: int = 200) -> Image.Image:
    picture = Image.new("RGB", (200, 200), "white")
    ImageDraw.Draw(picture).polygon([(100, 20), (125, 150), (30, 70), (170, 70), (75, 150)], fill=colour)
    return picture.resize((side, side))


@pytest.mark.parametrize("thumbnails", [256, 0])
def test_other_colours_are_not_duplicates(
    model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thumbnails: int
) -> None:
    """Whatever the encoder thinks: a threshold of -1 takes all vectors as similar. Copies are found."""
    monkeypatch.setattr("genius.index.duplicates.NEAR", 12)
    colours = ("red", "orange", "black", "green", "purple")
    with Index(tmp_path / "my.genius", model, thumbnails=thumbnails) as index:
        for colour in colours:
            index.add([Item(colour, image=star(colour)), Item(f"small {colour}", image=star(colour, 130))])
        index.add([Item("a text", text="red"), Item("another text", text="green")])
        groups = {frozenset(group.ids) for group in duplicates(index, -1.0)}
        same = {colour: {colour, f"small {colour}"} for colour in colours}
        assert groups == {frozenset(ids) for ids in same.values()} | {frozenset(("a text", "another text"))}


def test_a_captioned_copy_of_a_file_is_a_duplicate(index: Index, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for name in ("a.png", "other.png"):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(tmp_path / name)
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())
    index.add([Item("bare", image=tmp_path / "a.png"), Item("captioned", image=tmp_path / "copy.png", text="noise")])
    index.add([Item("other", image=tmp_path / "other.png"), Item("bytes", image=(tmp_path / "a.png").read_bytes())])
    index.add([Item("gone", image=tmp_path / "other.png", text="gone")])
    assert sorted(sorted(ids) for ids in equal_images(index)) == [["bare", "bytes", "captioned"], ["gone", "other"]]
    groups = {frozenset(group.ids) for group in duplicates(index, 0.9999)}
    assert groups == {frozenset(("bare", "captioned", "bytes")), frozenset(("gone", "other"))}
    (tmp_path / "other.png").unlink()
    assert [sorted(ids) for ids in equal_images(index)] == [["bare", "bytes", "captioned"]]


def test_items_and_questions_may_be_given_as_people_have_them(model: Genius, tmp_path: Path) -> None:
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 255
    buffer = tmp_path / "red.png"
    Image.fromarray(red).save(buffer)
    anything = SearchRequest(any_modality=True)
    with Index(tmp_path / "i.genius", model) as index:
        index.add([{"id": "array", "image": red, "metadata": {"n": 1}}, {"id": "words", "text": "red"}])  # type: ignore[list-item]
        index.add([Item("grey", image=np.full((8, 8), 90, np.uint8)), Item("bytes", image=buffer.read_bytes())])  # type: ignore[arg-type]
        for asked in (red, buffer, str(buffer), buffer.read_bytes(), Image.fromarray(red), {"image": red}):
            assert index.search_many([asked], anything)[0][0].id in ("array", "bytes"), type(asked)  # type: ignore[list-item]
        assert index.search_many(["red", Query("red")], anything)[0][0].id == "words"
        with pytest.raises(GeniusError, match="search_many"):
            index.search(["red", "blue"])  # type: ignore[arg-type]
        with pytest.raises(GeniusError, match="no 'price': use id, image, text, vector, modality, and metadata"):
            index.add([{"id": "a", "text": "b", "price": 3}])  # type: ignore[list-item]
        with pytest.raises(GeniusError, match="expected an Item or a dict, got str"):
            index.add(["a"])  # type: ignore[list-item]
        with pytest.raises(GeniusError, match="is no image"):
            Query(image=np.zeros((3, 4, 5)))  # type: ignore[arg-type]
