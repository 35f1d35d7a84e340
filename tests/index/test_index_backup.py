"""Snapshots and restoring, while others write and search."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_encoder import fake_model
from PIL import Image
from typer.testing import CliRunner

from genius import Genius, GeniusError, Index, Item
from genius.cli import app
from genius.index import folder as folder_module
from genius.index import repair as repair_module
from genius.index.check import check
from genius.index.commit import table_folder
from genius.index.paths import snapshot_of, write_origin
from genius.index.reader import Vanished
from genius.index.repair import restore, snapshot


def texts(start: int, stop: int) -> list[Item]:
    return [Item(f"t{i}", text=f"thing{i}", metadata={"n": i}) for i in range(start, stop)]


def contents(index: Index) -> dict[str, object]:
    return {item.id: (item.text, dict(item.metadata), item.image) for item in index.items()}


def found(index: Index) -> set[str]:
    return {hit.id for hit in index.search(text="thing1", target="any", k=10_000, beams=10_000, rerank=10**6)}


def test_a_snapshot_is_an_index_and_comes_back(index: Index, model: Genius, tmp_path: Path) -> None:
    index.add([*texts(0, 20), Item("p", image=Image.new("RGB", (9, 9), "red"), text="red")])
    index.delete("t3")
    before = contents(index)
    copied = index.snapshot(tmp_path / "sub" / "s.genius")
    assert (copied.items, copied.version) == (20, index.version) and check(copied.target).ok
    saved = Index(copied.target, model)
    assert contents(saved) == before and found(saved) == before.keys() and saved.about.id != index.about.id
    assert saved.codes("t9") == index.codes("t9") and saved.thumbnail("p") == index.thumbnail("p")
    other = Index(index.path, model)  # someone who goes on searching
    index.delete([f"t{i}" for i in range(5, 15)])
    index.add([Item("new", text="new", metadata={"colour": "red"})])
    changed = index.version
    with pytest.raises(GeniusError, match="--replace"):
        restore(copied.target, index.path)
    assert restore(copied.target, index.path, replace_items=True).items == 20
    for handle in (index, other, Index(index.path, model)):
        assert contents(handle) == before and found(handle) == before.keys() and handle.columns() == {"n": "number"}
    assert check(index.path).ok and index.add(texts(50, 51)).added == 1
    restore(index.path, index.path, changed, replace_items=True)  # what was there before stayed a version
    assert "new" in other and "t9" not in other and index.columns() == {"n": "number", "colour": "text"}


def test_restoring_elsewhere_makes_a_copy(index: Index, model: Genius, tmp_path: Path) -> None:
    index.add(texts(0, 5))
    old = index.version
    index.add(texts(5, 9))
    assert restore(index.path, tmp_path / "a.genius").items == 9 and restore(index.path, tmp_path / "b.genius", old).items == 5
    assert contents(Index(tmp_path / "b.genius", model)).keys() == {f"t{i}" for i in range(5)}


def test_a_rename_that_reports_an_error_although_done(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add([Item("a", text="a")])
    rename = Path.rename

    def lying(path: Path, target: Path) -> object:
        rename(path, target)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", lying)
    assert restore(index.path, tmp_path / "copy.genius").items == 1
    assert check(tmp_path / "copy.genius").ok


def test_a_copy_whose_name_cannot_be_synced_is_said_to_be_made(
    index: Index, model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> None:
        if (tmp_path / "s.genius").exists():
            raise OSError(5, "Input/output error")

    index.add(texts(0, 3))
    monkeypatch.setattr(folder_module, "sync_directory", failing)
    with pytest.raises(GeniusError, match=r"s\.genius is made, but a power cut may undo it: Input/output error$"):
        index.snapshot(tmp_path / "s.genius")
    assert contents(Index.open(tmp_path / "s.genius", model)) == contents(index)


def test_what_cannot_be_copied_is_refused_in_one_line(index: Index, tmp_path: Path) -> None:
    index.add(texts(0, 5))
    stranger = Index(tmp_path / "other.genius", fake_model(seed=1))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    attempts = [
        (lambda: snapshot(tmp_path / "no.genius", tmp_path / "s.genius"), "no index at"),
        (lambda: snapshot(index.path, tmp_path / "full"), "is there already"),
        (lambda: snapshot(index.path, index.path), "is there already"),
        (lambda: snapshot(index.path, tmp_path / "s.genius", 99), "99"),
        (lambda: restore(index.path, stranger.path, replace_items=True), "different models"),
    ]
    for attempt, message in attempts:
        with pytest.raises(GeniusError, match=message) as caught:
            attempt()
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "s.genius").exists() and not list(tmp_path.glob(".s.genius*"))


def test_a_damaged_row_is_not_copied(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row's own checksum, where the file's was not looked at (a table too large to be read when opened)."""
    import genius.index.commit

    index.add(texts(0, 30))
    (path,) = (table_folder(index.path) / "data").iterdir()
    path.write_bytes(path.read_bytes().replace(b"thing17", b"thing71", 1))
    monkeypatch.setattr(genius.index.commit, "VERIFY_UP_TO", 0)
    with pytest.raises(GeniusError, match="'t17' is not as it was written"):
        snapshot(index.path, tmp_path / "s.genius")
    assert not (tmp_path / "s.genius").exists()


def test_snapshots_while_a_writer_works_are_of_one_moment(index: Index, model: Genius, tmp_path: Path) -> None:
    """The writer keeps all items on one number, replaced in single changes, and drops old versions."""
    names = [f"t{i}" for i in range(8)]
    index.add([Item(i, text=i, metadata={"gen": 0}) for i in names])
    stop, failures = threading.Event(), []

    def write() -> None:
        try:
            number = 0
            while not stop.is_set():
                number += 1
                index.upsert([Item(i, text=i, metadata={"gen": number}) for i in names])
                if number % 3 == 0:
                    index.optimize(keep=timedelta(0))
        except Exception as error:
            failures.append(repr(error))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for i in range(6):
            snapshot(index.path, tmp_path / f"s{i}.genius")
            seen = {item.metadata["gen"] for item in Index(tmp_path / f"s{i}.genius", model).items()}
            assert len(seen) == 1
    finally:
        stop.set()
        writer.join()
    assert failures == []


def test_from_the_shell(index: Index, model_folder: Path, tmp_path: Path) -> None:
    runner, path, copy = CliRunner(), tmp_path / "i.genius", tmp_path / "s.genius"
    Index(path, str(model_folder)).add(texts(0, 4))
    made = runner.invoke(app, ["snapshot", str(path), str(copy), "--json"])
    assert made.exit_code == 0 and json.loads(made.stdout)["items"] == 4
    Index.open(path).delete(["t1"])
    refused = runner.invoke(app, ["restore", str(copy), str(path)])
    assert refused.exit_code == 2 and "--replace" in refused.stderr
    assert "4 items" in runner.invoke(app, ["restore", str(copy), str(path), "--replace"]).stdout
    assert "t1" in Index.open(path)


def test_what_a_killed_snapshot_left_goes_with_the_next(index: Index, tmp_path: Path) -> None:
    index.add([Item("a", text="a")])
    target = tmp_path / "copy.genius"
    half = snapshot_of(target)
    (half / "items.lance").mkdir(parents=True)
    (half / "items.lance" / "half").write_text("half")
    write_origin(half, "of any index")
    assert index.snapshot(target).items == 1 and check(target).ok and not half.exists()


def test_two_snapshots_of_one_name_do_not_mix(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_module, "LOCK_S", 0.1)
    index.add([Item("a", text="a")])
    target = tmp_path / "copy.genius"
    with repair_module._half_made(target, index.about.id), pytest.raises(GeniusError, match="is being written by another"):
        index.snapshot(target)
    assert index.snapshot(target).items == 1


def test_a_snapshot_that_another_one_sweeps_away_at_its_start_begins_anew(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add([Item("a", text="a")])
    make = repair_module.make_folder
    swept = []

    def make_and_lose(folder: Path) -> None:
        make(folder)
        if not swept:
            swept.append(folder)
            repair_module._sweep(folder.parent, index.about.id)

    monkeypatch.setattr(repair_module, "make_folder", make_and_lose)
    assert index.snapshot(tmp_path / "copy.genius").items == 1 and swept
    assert not snapshot_of(tmp_path / "copy.genius").exists()


def test_a_place_where_no_folder_can_be_made_is_named(index: Index, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("no folder")
    with pytest.raises(GeniusError, match="Not a directory"):
        index.snapshot(tmp_path / "a file" / "copy.genius")


def test_a_folder_of_others_in_the_place_of_a_snapshot_stays(index: Index, tmp_path: Path) -> None:
    index.add([Item("a", text="a")])
    half = snapshot_of(tmp_path / "copy.genius")
    half.mkdir()
    (half / "letters").write_text("dear")
    with pytest.raises(GeniusError, match="in the way"):
        index.snapshot(tmp_path / "copy.genius")
    assert (half / "letters").read_text() == "dear"


def test_rows_that_vanish_while_they_are_copied_are_copied_anew(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process cleans the version away in the middle: LanceDB wraps what our rows raise in an error of its own."""
    index.add([Item("a", text="a")])
    read = repair_module.good_rows
    calls = []

    def gone_at_first(reader: Any) -> Iterator[Any]:
        calls.append(reader)
        if len(calls) == 1:
            raise Vanished("cannot read the index: a file of this version is gone")
        yield from read(reader)

    monkeypatch.setattr(repair_module, "good_rows", gone_at_first)
    assert index.snapshot(tmp_path / "copy.genius").items == 1 and len(calls) == 2
