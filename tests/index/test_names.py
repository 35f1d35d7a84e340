"""Ids of files: a file is the same item however it is reached, and nothing is overwritten or brought back unasked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from genius import Genius, GeniusError, Index, Item
from genius.index.folder import deleted_ids
from genius.index.ingest import IngestConfig, ingest
from genius.index.repair import restore, snapshot


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "A" / "photos"
    (folder / "sub").mkdir(parents=True)
    for name, colour in (("1.png", "red"), ("2.png", "blue"), ("sub/3.png", "green")):
        Image.new("RGB", (8, 8), colour).save(folder / name)
    (folder / "2.txt").write_text("a blue square")
    return folder


@pytest.fixture
def index(tmp_path: Path, model: Genius) -> Index:
    return Index(tmp_path / "i.genius", model)


def ids(index: Index) -> set[str]:
    return {item.id for item in index.items()}


def test_a_file_is_one_item_however_it_is_reached(
    index: Index, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ingest(index, [photos / "sub"]).added == 1 and ids(index) == {"sub/3.png"}
    assert ingest(index, [photos]).added == 2
    everything = ids(index)
    (tmp_path / "link").symlink_to(photos.parent)
    monkeypatch.chdir(photos.parent)
    for way in ([photos.parent], [photos / "2.png"], ["photos"], [tmp_path / "link" / "photos"], [photos, photos / "sub"]):
        report = ingest(index, way)
        assert (report.added, report.replaced, report.gone, report.problems.total) == (0, 0, 0, 0), way
        assert report.unchanged and ids(index) == everything


def test_folders_of_one_name_do_not_overwrite_each_other(index: Index, photos: Path, tmp_path: Path) -> None:
    other = tmp_path / "B" / "photos"
    other.mkdir(parents=True)
    Image.new("RGB", (8, 8), "yellow").save(other / "1.png")
    assert ingest(index, [photos]).added == 3 and "photos/1.png" in ids(index)
    report = ingest(index, [other])
    assert (report.added, report.replaced, report.gone) == (1, 0, 0) and len(ids(index)) == 4
    assert ingest(index, [photos, other]).unchanged == 4


def test_an_id_of_another_item_is_refused(index: Index, photos: Path) -> None:
    index.add([Item("photos/1.png", text="by a program")])
    report = ingest(index, [photos])
    assert report.added == 2 and "its id photos/1.png belongs to another item" in report.problems[0]
    assert index.get("photos/1.png").text == "by a program"


def test_files_that_are_gone_are_counted_and_pruned(index: Index, photos: Path) -> None:
    ingest(index, [photos])
    (photos / "1.png").rename(photos / "one.png")
    report = ingest(index, [photos])
    assert (report.added, report.gone) == (1, 1) and "photos/1.png" in ids(index)
    assert ingest(index, [photos], IngestConfig(prune=True)).deleted == 1
    assert ids(index) == {"photos/one.png", "photos/2.png", "photos/sub/3.png"}
    (photos / "one.png").rename(photos / "1.png")  # pruned items come back with their file
    assert ingest(index, [photos]).added == 1


def test_what_was_deleted_stays_deleted(index: Index, photos: Path, model: Genius) -> None:
    ingest(index, [photos])
    index.delete("photos/1.png")
    for _ in range(2):
        report = ingest(index, [photos])
        assert (report.added, report.left_deleted) == (0, 1) and "photos/1.png" not in ids(index)
    index.close()
    with Index.open(index.path, model) as again:
        assert ingest(again, [photos]).left_deleted == 1
        assert ingest(again, [photos], IngestConfig(undelete=True)).added == 1
        assert ingest(again, [photos]).left_deleted == 0 and len(ids(again)) == 3


@pytest.mark.parametrize("body", ["[", "{}"])
def test_deleted_ids_that_cannot_be_read_are_not_forgotten(body: str, index: Index, photos: Path) -> None:
    """A disk that fails for a moment made the next deletion the only one that was remembered."""
    ingest(index, [photos])
    first, second, *_ = sorted(item.id for item in index.items())
    index.delete(first)
    path = index.path / "deleted.json"
    noted = path.read_text()
    path.write_text(body)
    with pytest.raises(GeniusError, match=r"deleted\.json.*nothing is changed"):
        index.delete(second)
    with pytest.raises(GeniusError, match=r"deleted\.json.*nothing is changed"):
        ingest(index, [photos])
    assert second in index and first not in index and path.read_text() == body
    path.write_text(noted)
    index.delete(second)
    assert ingest(index, [photos]).left_deleted == 2


def test_a_moved_folder_keeps_its_items(index: Index, photos: Path, tmp_path: Path) -> None:
    ingest(index, [photos])
    before = ids(index)
    shutil.move(photos.parent, tmp_path / "moved")
    report = ingest(index, [tmp_path / "moved" / "photos"])
    assert (report.added, report.replaced) == (0, 3) and ids(index) == before
    assert Path(str(index.get("photos/1.png").image)).is_file()


def test_what_was_deleted_stays_deleted_in_copies(index: Index, photos: Path, model: Genius, tmp_path: Path) -> None:
    """A snapshot and a restored index know it, too; what an older version brings back is no longer deleted."""
    ingest(index, [photos])
    before = index.version
    index.delete("photos/1.png")
    snapshot(index.path, tmp_path / "copy.genius")
    snapshot(index.path, tmp_path / "older.genius", version=before)
    assert deleted_ids(tmp_path / "copy.genius") == {"photos/1.png"} and not deleted_ids(tmp_path / "older.genius")
    with Index.open(tmp_path / "copy.genius", model) as copy:
        assert ingest(copy, [photos]).left_deleted == 1 and "photos/1.png" not in copy
    with Index.open(tmp_path / "older.genius", model) as older:
        assert ingest(older, [photos]).left_deleted == 0 and "photos/1.png" in older
        older.delete("photos/2.png")
    restore(tmp_path / "copy.genius", tmp_path / "older.genius", replace_items=True)
    with Index.open(tmp_path / "older.genius", model) as restored:
        assert ingest(restored, [photos]).left_deleted == 1  # as in the copy: 2.png is back, 1.png is not
        assert ids(restored) == {"photos/2.png", "photos/sub/3.png"}
