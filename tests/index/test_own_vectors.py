"""Vectors of the user's own: an index without an encoder, brute force as the judge, and one line for what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from genius import Genius, GeniusError, Index, Item, Query
from genius.cli import app
from genius.fit import FitConfig
from genius.fit.folder import refit
from genius.index.check import check
from genius.search import SearchRequest

WIDTH = 12
QUICK = FitConfig(steps=2, iterations=2)


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float32]:
    chance = np.random.default_rng(0)
    centres = chance.normal(size=(8, WIDTH))
    return np.asarray(centres[chance.integers(0, 8, 120)] + 0.4 * chance.normal(size=(120, WIDTH)), np.float32)


@pytest.fixture(scope="module")
def own(vectors: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> Index:
    index = Index.create(tmp_path_factory.mktemp("own") / "own.genius", dim=WIDTH)
    modalities = ("image", "text", "pair")
    index.add(Item(str(i), vector=row, modality=modalities[i % 3], metadata={"n": i}) for i, row in enumerate(vectors))  # type: ignore[arg-type]
    return index


def nearest(vectors: NDArray[np.float32], query: NDArray[np.float32], rows: list[int], k: int) -> list[str]:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = unit[rows] @ query
    return [str(rows[i]) for i in np.argsort(-scores, kind="stable")[:k]]


@pytest.mark.parametrize("target", [None, "image", "pair"])
def test_search_is_exhaustive_cosine(own: Index, vectors: NDArray[np.float32], target: str | None) -> None:
    wanted = {None: {0, 1, 2}, "image": {0, 2}, "pair": {2}}[target]
    rows = [i for i in range(len(vectors)) if i % 3 in wanted and i >= 6]
    for query in vectors[:6] + 0.1:
        hits = own.search(vector=query, target=target, k=5, where="n >= 6")
        assert [hit.id for hit in hits] == nearest(vectors, query, rows, 5)
        assert hits[0].item.metadata["n"] == int(hits[0].id) and hits[0].item.text is None


def test_an_image_and_a_text_vector_become_their_unit_sum(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "pairs.genius", dim=2)
    index.add([Item("both", vector={"image": [3, 0], "text": [0, 0.5]}), Item("one", vector=[1, 0], modality="image")])  # type: ignore[arg-type]
    best = index.search(vector=[1, 1])
    assert [hit.id for hit in best] == ["both", "one"] and best[0].score == pytest.approx(1.0, abs=2e-3)
    assert index.get("both").modality.label == "pair"


def test_texts_with_vectors_come_back_and_the_folder_can_be_copied(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "texts.genius", dim=3)
    index.add([Item("a", text="a note", vector=[1, 0, 0]), Item("b", vector=[0, 1, 0])])
    index.snapshot(tmp_path / "copy.genius")
    with Index.open(tmp_path / "copy.genius") as copy:
        assert copy.get("a").text == "a note" and copy.search(vector=[1, 0.1, 0])[0].id == "a"
        assert sorted(item.id for item in copy.items()) == ["a", "b"]
    assert check(tmp_path / "copy.genius").ok


def test_codes_are_fitted_later_and_answers_stay(own: Index, vectors: NDArray[np.float32], tmp_path: Path) -> None:
    own.snapshot(tmp_path / "grown.genius")
    before = [[hit.id for hit in own.search(vector=query, k=5)] for query in vectors[:5]]
    refit(tmp_path / "grown.genius", QUICK, queries=vectors[:80] + 0.05)
    with Index.open(tmp_path / "grown.genius") as grown:
        assert grown.model.queries is not None and len(grown.model.queries) == 80
        assert [[hit.id for hit in grown.search(vector=query, k=5)] for query in vectors[:5]] == before
        assert len({grown.codes(str(i)) for i in range(60)}) > 30  # random codes tell far fewer apart
        explained = grown.explain(Query(vector=vectors[0]))
        assert [answer["id"] for answer in explained["answers"]] == before[0][:3]


def test_vectors_and_an_encoder_share_an_index(model: Genius, tmp_path: Path) -> None:
    index = Index(tmp_path / "mixed.genius", model)
    width = model.config.width
    report = index.add([Item("t", text="a red boat"), Item("v", vector=np.eye(width)[0]), Item("u", text="a blue cup")])
    assert report.added == 3 and index.search("a red boat", k=1)[0].id == "t"
    found = index.search_many(
        [Query("a red boat"), Query(vector=np.eye(width)[0]), Query("a blue cup")], SearchRequest(any_modality=True)
    )
    assert [hits[0].id for hits in found] == ["t", "v", "u"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda i: i.search("a text"), "holds vectors only and has no encoder"),
        (lambda i: i.search(vector=[1.0] * 5), "5 wide; vectors of this index are 12 wide"),
        (lambda i: i.search(vector=[float("nan")] * WIDTH), "NaN or infinity"),
        (lambda i: i.search(vector=[0.0] * WIDTH), "zeros only"),
        (lambda i: i.search(vector="no"), "not a sequence of numbers"),
        (lambda i: i.search(vector=[[1.0]]), "one dimension"),
        (lambda i: i.search("a", vector=[1.0] * WIDTH), "use either"),
        (lambda i: i.search(vector={"sound": [1.0]}), "'image' and 'text'"),
        (lambda i: i.add([Item("x", vector=[1.0] * 3)]), "item 'x': its vector is 3 wide"),
        (lambda i: i.add([Item("x", text="no vector")]), "no encoder for images and texts"),
        (lambda i: i.add([Item("x", modality="image")]), "no encoder for images and texts"),
        (lambda i: Item("x"), "neither an image nor a text nor a vector"),
        (lambda i: Index.create(i.path, dim=3), "is an index already"),
        (lambda i: Index.create(i.path.parent / "new", dim=0), "dim must be a whole number"),
        (lambda i: Index.create(i.path.parent / "new"), "either a model or"),
    ],
)
def test_one_line_for_what_does_not_fit(own: Index, call: Callable[[Index], object], message: str) -> None:
    before = own.count()
    with pytest.raises(GeniusError) as caught:
        call(own)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert own.count() == before


def test_bad_vectors_are_skipped_and_named(own: Index) -> None:
    report = own.add([Item("bad", vector=[1.0]), Item("good", vector=[1.0] * WIDTH)], on_error="skip")
    assert (report.added, report.problems.total) == (1, 1) and "'bad'" in report.problems[0]
    own.delete("good")


def run(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_files_of_vectors_on_the_command_line(
    vectors: NDArray[np.float32], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr("genius.fit.vectors.FitConfig", lambda: QUICK)
    with_nan = vectors.copy()
    with_nan[7] = np.nan
    np.save(tmp_path / "v.npy", with_nan)
    names = [f"row{i}" for i in range(len(vectors))]
    (tmp_path / "ids.txt").write_text("\n".join(names))
    output = str(tmp_path / "npy.genius")
    result = CliRunner().invoke(
        app, ["index", str(tmp_path / "v.npy"), "--ids", str(tmp_path / "ids.txt"), "-o", output, "--modality", "image", "--json"]
    )
    body = json.loads(result.stdout)
    assert result.exit_code == 1 and (body["added"], body["skipped"]) == (len(vectors) - 1, 1) and "row7" in body["problems"][0]
    with Index.open(output) as index:
        assert index.search(vector=vectors[3], k=1)[0].id == "row3" and index.get("row3").modality.label == "image"
    rows = {"key": names, "embedding": list(vectors), "caption": [f"caption {i}" for i in range(len(vectors))]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    table = str(tmp_path / "rows.parquet")
    body = run("index", table, "--vector-column", "embedding", "-o", str(tmp_path / "table.genius"))
    assert body["added"] == len(vectors)
    with Index.open(tmp_path / "table.genius") as index:
        best = index.search(vector=vectors[9], k=1)[0]
        assert (best.id, best.item.text) == ("row9", "caption 9") and "embedding" not in best.item.metadata
    body = run("index", table, "--vector-column", "embedding", "-o", str(tmp_path / "table.genius"))
    assert (body["added"], body["unchanged"]) == (0, len(vectors))
    (tmp_path / "ids.txt").write_text("only one")
    refused = CliRunner().invoke(app, ["index", str(tmp_path / "v.npy"), "--ids", str(tmp_path / "ids.txt"), "-o", output])
    assert refused.exit_code == 2 and "1 lines, but there are 120 vectors" in refused.output


def test_the_next_command_that_a_run_names_is_one_that_the_index_answers(
    vectors: NDArray[np.float32], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", vectors)
    np.save("query.npy", vectors[3])
    made = CliRunner().invoke(app, ["index", "v.npy", "-o", "my.genius"])
    following = made.output.split("next: genius ")[1].split()
    done = CliRunner().invoke(app, following)
    assert done.exit_code == 0, (following, done.output)


def test_an_item_takes_its_vector_and_few_bytes_more_on_disk(tmp_path: Path) -> None:
    """A vector of width 256 is 512 bytes in half precision, stored once; codes, id and the cache are at most 120."""
    count = 4000
    rows = np.random.default_rng(0).standard_normal((count, 256)).astype(np.float32)
    index = Index.create(tmp_path / "wide.genius", dim=256, thumbnails=0)
    index.add((Item(f"{i:07}", vector=row) for i, row in enumerate(rows)), batch_size=count)
    index.optimize(keep=timedelta(0))
    parts = ("items.lance", "cache")
    used = sum(path.stat().st_size for part in parts for path in (index.path / part).rglob("*") if path.is_file())
    assert 512 < used / count < 512 + 120
