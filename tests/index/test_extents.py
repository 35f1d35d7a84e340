"""A vector is stored once: the cache says where it lies in the table's files, and what it says is exact."""

from __future__ import annotations

import json
import tarfile
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from genius import Genius, Index, Item
from genius.index import cache, extents, opened
from genius.index.check import check
from genius.index.commit import data_files, table_folder
from genius.index.extents import Finder

KEPT = Path(__file__).parent / "kept"


def vectors_in_table(index: Index) -> dict[int, np.ndarray]:
    found = {}
    for seqs, vectors in index.reader().embeddings():
        found.update(zip(seqs.tolist(), vectors, strict=True))
    return found


def located(index: Index) -> extents.Extents | None:
    """Extents of everything that an index holds now."""
    reader = index.reader()
    seqs = reader.seqs()
    width = index.about.width
    finder = Finder(table_folder(index.path), data_files(index.path, reader.version), len(seqs), width)
    for part, vectors in reader.embeddings():
        finder.add(np.searchsorted(seqs, part), vectors)
    finder.close()
    return finder.extents()


def exact(index: Index) -> int:
    """Every row's extent holds its vector; how many arrays there are."""
    found = located(index)
    assert found is not None
    segments, order = found.mapped(table_folder(index.path), index.about.width)
    table = vectors_in_table(index)
    whole = np.concatenate(segments) if segments else np.empty((0, index.about.width), np.float16)
    rows = whole if order is None else whole[order]
    assert len(rows) == len(table)
    for row, seq in zip(rows, sorted(table), strict=True):
        assert row.tobytes() == table[seq].tobytes()
    return len(segments)


def texts(first: int, last: int) -> list[Item]:
    return [Item(f"t{i}", text=f"word{i} and word{i * 7 % 11}", metadata={"n": i}) for i in range(first, last)]


def test_every_vector_is_found_whatever_happened_to_the_table(index: Index) -> None:
    for first in range(0, 60, 10):
        index.add(texts(first, first + 10))
        exact(index)
    index.delete([f"t{i}" for i in range(0, 60, 3)])
    exact(index)
    index.upsert([Item(f"t{i}", text=f"other{i}") for i in range(1, 60, 5)])
    exact(index)
    index.add([Item(f"same{i}", text="the very same words") for i in range(20)])  # vectors that are equal
    exact(index)
    index.optimize(keep=timedelta(0))
    assert exact(index) <= 2
    index.add(texts(100, 120))
    exact(index)


@pytest.mark.parametrize("width", [16, 31])
@pytest.mark.parametrize("pages", [1, 3, 12])
def test_pages_in_any_place_and_order_become_few_arrays(pages: int, width: int, tmp_path: Path) -> None:
    """Made-up files: pages at even offsets with other bytes between, rows permuted, some rows deleted."""
    random = np.random.default_rng(pages)
    (tmp_path / "data").mkdir()
    names = ["data/a.lance", "data/b.lance"]
    stored = [random.standard_normal((50, width)).astype(np.float16) for _ in range(pages)]
    for number, name in enumerate(names):
        with (tmp_path / name).open("wb") as file:
            file.write(b"LANC")
            for page in stored[number::2]:
                file.write(random.bytes(2 * int(random.integers(1, 40))))
                file.write(page.tobytes())
    scanned = np.concatenate([*stored[0::2], *stored[1::2]])  # as a scan returns them: file by file
    alive = np.sort(random.permutation(len(scanned))[: len(scanned) * 2 // 3])
    rows = random.permutation(len(alive)) if pages == 12 else np.arange(len(alive))
    finder = Finder(tmp_path, names, len(alive), width)
    for part in np.array_split(np.arange(len(alive)), 7):
        finder.add(rows[part], scanned[alive[part]])
    finder.close()
    found = finder.extents()
    assert found is not None
    segments, order = found.mapped(tmp_path, width)
    whole = np.concatenate(segments)
    result = whole if order is None else whole[order]
    assert np.array_equal(result[rows], scanned[alive]) and len(segments) <= max(pages, extents.FEW)


def test_vectors_in_no_order_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents, "FAR_SEARCHES", 3)
    random = np.random.default_rng(0)
    stored = random.standard_normal((64, 8)).astype(np.float16)
    (tmp_path / "a.lance").write_bytes(stored.tobytes())
    finder = Finder(tmp_path, ["a.lance"], 64, 8)
    finder.add(np.arange(64), stored[::-1].copy())
    finder.close()
    assert finder.extents() is None
    changed = Finder(tmp_path, ["a.lance"], 64, 8)
    stored[40, 3] += 1  # what LanceDB returns is not what the file holds
    changed.add(np.arange(64), stored)
    changed.close()
    assert changed.extents() is None


def test_an_encoding_that_is_not_plain_means_a_copy(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add(texts(0, 30))
    before = [(hit.id, hit.score) for hit in index.search("word3", k=30)]
    monkeypatch.setattr(cache, "data_files", lambda *_: [])
    index.optimize()
    (folder,) = (index.path / "cache").iterdir()
    assert (folder / "embeddings.npy").exists() and not (folder / "extents.npy").exists()
    assert [(hit.id, hit.score) for hit in Index.open(index.path, index.model).search("word3", k=30)] == before
    assert check(index.path).ok


def test_a_cache_without_copies_answers_as_the_table_does(index: Index, model: Genius) -> None:
    index.add(texts(0, 40))
    before = [(hit.id, hit.score) for hit in index.search("word3", k=40)]
    index.optimize(keep=timedelta(0))
    (folder,) = (index.path / "cache").iterdir()
    assert (folder / "extents.npy").exists() and not (folder / "embeddings.npy").exists()
    again = Index.open(index.path, model)
    assert again.live.base.extents is not None
    assert [(hit.id, hit.score) for hit in again.search("word3", k=40)] == before and check(index.path).ok


def test_vectors_in_several_pieces_are_searched_as_one(index: Index, model: Genius, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in several files and out of order: mapped in pieces, with the same answers as a copy."""
    monkeypatch.setattr(opened, "CACHE_FROM", 10)
    monkeypatch.setattr(cache, "MAX_RUNS_PER_ROW", 1.0)
    for first in range(0, 60, 10):
        index.add(texts(first, first + 10))
    index.delete([f"t{i}" for i in range(0, 60, 7)])
    index.upsert([Item(f"t{i}", text=f"other{i}") for i in range(1, 60, 9)])
    expected = {hit.id: hit.score for hit in index.search("word3", k=100)}  # some score the same
    mapped = Index.open(index.path, model)
    assert mapped.live.base.extents is not None and len(mapped.live.base.segments) > 1
    assert {hit.id: hit.score for hit in mapped.search("word3", k=100)} == pytest.approx(expected, abs=1e-6)
    mapped.add(texts(100, 105))
    assert len(mapped.search("word3", k=100)) == len(expected) + 5 and check(index.path).ok


def test_a_cache_whose_data_file_is_gone_is_built_anew(index: Index, model: Genius) -> None:
    """Another process may clean up the files that a cache points into."""
    index.add(texts(0, 30))
    index.optimize()  # old files stay
    kept = {path: path.read_bytes() for path in (index.path / "cache").rglob("*") if path.is_file()}
    index.delete("t3")
    index.optimize(keep=timedelta(0))
    for path, body in kept.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body)
    again = Index.open(index.path, model)
    assert len(again) == 29 and {hit.id for hit in again.search("word3", k=30)} == {f"t{i}" for i in range(30) if i != 3}


def test_vectors_that_were_just_written_are_not_read_back(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add(texts(0, 10))
    index.search("word1")
    reads = []
    monkeypatch.setattr(type(index.reader()), "embeddings", lambda *_: reads.append(1) or iter(()))
    monkeypatch.setattr(type(index.reader()), "codes", lambda *_: reads.append(1) or iter(()))
    index.add(texts(10, 14))
    index.upsert([Item("t2", text="quite another thing")])
    index.add(texts(14, 16))
    assert index.search("quite another thing", k=1)[0].id == "t2" and len(index.search("word1", k=30)) == 16 and not reads


# -- indexes of earlier versions ---------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An index of format 2 with a cache of format 3, as commit 93ca01f wrote it with the tests' tiny model."""
    with tarfile.open(KEPT / "format2.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.parametrize("read_only", [True, False])
def test_an_index_of_an_earlier_version_opens_and_answers_equally(old: Path, model: Genius, read_only: bool) -> None:
    expected = json.loads((old / "format2.json").read_text())
    folder = old / "format2.genius"
    with Index.open(folder, model, read_only=read_only) as index:
        assert index.version == expected["version"]
        assert {item.id: [item.text, dict(item.metadata)] for item in index.items()} == expected["items"]
        for query, answers in expected["answers"].items():
            text, _, where = query.partition(" | ")
            hits = index.search(text, target="any", k=10, where=where or None)
            assert [hit.id for hit in hits] == [item_id for item_id, _ in answers], query
            assert [hit.score for hit in hits] == pytest.approx([score for _, score in answers], abs=1e-5)
        assert {item_id: list(index.codes(item_id)) for item_id in expected["codes"]} == expected["codes"]
    assert check(folder).ok


def test_an_index_of_an_earlier_version_takes_writes(old: Path, model: Genius) -> None:
    expected = json.loads((old / "format2.json").read_text())["items"]
    folder = old / "format2.genius"
    with Index.open(folder, model) as index:
        index.add([Item("new", text="something new", metadata={"n": 1})])
        index.upsert([Item("t1", text="t1 anew")])
        index.delete("t2")
    with Index.open(folder, model) as index:
        assert {item.id for item in index.items()} == {*expected, "new"} - {"t2"}
        assert index.search("something new", target="any", k=1)[0].id == "new" and index.get("t1").text == "t1 anew"
        index.optimize()
        assert index.search("something new", target="any", k=1)[0].id == "new" and check(folder).ok


def found(index: Index) -> list[tuple[str, float]]:
    return [(hit.id, round(hit.score, 4)) for hit in index.search("word1 and word7", k=40)]


def test_an_open_index_searches_the_vectors_of_two_writers(index: Index, model: Genius) -> None:
    """What it wrote itself is at hand, what another wrote in between is read; an item may be gone before it was ever searched."""
    index.add(texts(0, 5))
    found(index)
    other = Index(index.path, model)
    other.add(texts(5, 10))
    index.add(texts(10, 15))
    assert found(index) == found(Index(index.path, model)) and len(found(index)) == 15
    other.add(texts(15, 20))
    assert "t16" in index  # it has seen the new items, and not yet searched them
    other.delete("t16")
    assert found(index) == found(Index(index.path, model)) and len(found(index)) == 19
