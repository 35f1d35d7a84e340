"""Kills, full disks, read-only folders, several writers: clear errors, nothing lost, nothing twice."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import processes
import pytest

from genius import Genius, GeniusError, Index, Item
from genius.index.commit import table_folder
from genius.index.folder import WriteLock
from genius.index.store import Store


def test_a_full_disk_is_one_clear_line_and_loses_nothing(model: Genius, tmp_path: Path) -> None:
    done, count, works, error = processes.call(processes.fill_until_full, str(tmp_path / "full.genius"), 200_000)
    assert 0 < done < 100 and count == 20 * done and works
    assert "disk is full" in error and "\n" not in error
    index = Index(tmp_path / "full.genius", model)  # with room again
    assert len(index) == 20 * done
    assert index.add([Item("more", text="more")]).added == 1 and index.search(text="more", where="id = 'more'")[0].id == "more"


@pytest.mark.parametrize("limit", [1_000, 20_000, 60_000], ids=["nothing fits", "some files fit", "most files fit"])
def test_without_room_for_a_cache_an_index_still_opens(index: Index, limit: int) -> None:
    index.add([Item(str(i), text=f"words {i}") for i in range(1000)])  # embeddings of 64 kB
    assert processes.call(processes.open_without_room, str(index.path), limit) == (1000, 5, [])
    assert processes.call(processes.open_without_room, str(index.path), 10**8)[2] == [str(index.version)]


def test_a_read_only_folder_can_be_searched_and_says_no_to_writes(model: Genius, tmp_path: Path) -> None:
    folder = tmp_path / "frozen.genius"
    Index(folder, model).add([Item("a", text="a")])
    for path in sorted([*tmp_path.rglob("*"), tmp_path], reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    if os.getuid() == 0:  # root may write anywhere, so the process below becomes nobody: let it reach the folder
        temporary = Path(tempfile.gettempdir()).resolve()
        for parent in tmp_path.resolve().parents:
            if temporary in parent.parents:
                parent.chmod(0o755)
            elif not parent.stat().st_mode & 0o001:
                pytest.skip(f"nobody cannot reach {parent}")
    try:
        lines = processes.call(processes.use_read_only, str(folder))
    finally:
        for path in [tmp_path, *tmp_path.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert lines[0] == "1 a" and len(lines) == 5, lines
    for line in lines[1:4]:
        assert "cannot write to" in line and "Permission denied" in line
    assert "cannot create an index" in lines[4]
    assert len(Index(folder, model)) == 1


def test_read_only_handles_refuse_to_write(index: Index, model: Genius) -> None:
    index.add([Item("a", text="a")])
    reader = Index(index.path, model, read_only=True)
    for change in (lambda: reader.add([Item("b", text="b")]), lambda: reader.delete("a"), reader.optimize):
        with pytest.raises(GeniusError, match="open read-only"):
            change()
    index.add([Item("b", text="b")])
    assert len(reader) == 2  # but they follow


def test_a_second_writer_waits_and_then_fails_clearly(index: Index, model: Genius) -> None:
    index.add([Item("a", text="a")])
    other = Index(index.path, model, lock_timeout=0.3)
    released = threading.Event()
    with WriteLock(index.path / ".lock", 1).hold():
        with pytest.raises(GeniusError, match=rf"written by another process \(pid {os.getpid()}\); waited 0.3 s"):
            other.add([Item("b", text="b")])
        assert other.search(text="a")[0].id == "a"  # reading needs no lock
        patient = threading.Thread(target=lambda: (index.add([Item("c", text="c")]), released.set()))
        patient.start()
        assert not released.wait(0.3)
    assert released.wait(10)
    patient.join()
    assert len(other) == 2


def test_processes_adding_the_same_items_add_each_once(model: Genius, tmp_path: Path) -> None:
    folder = tmp_path / "race.genius"
    racers = [processes.start(processes.add_numbers, str(folder), 40) for _ in range(3)]
    results = [answer.recv() for _, answer in racers]
    for process, _ in racers:
        process.join()
    assert sum(r["added"] for r in results) == 40 and sum(r["existing"] for r in results) == 80, results
    index = Index(folder, model)
    assert sorted(item.id for item in index.items()) == sorted(map(str, range(40)))


def test_a_creation_that_crashed_half_way_can_be_repeated(model: Genius, tmp_path: Path) -> None:
    index = Index(tmp_path / "half.genius", model)
    (index.path / "genius.json").unlink()  # it is written last
    for name in (".genius.json.123-456", ".ledger.jsonl.123-456"):  # files that were being written
        (index.path / name).write_text("{")
    again = Index(tmp_path / "half.genius", model)
    assert again.add([Item("a", text="a")]).added == 1 and again.search(text="a")[0].id == "a"


def test_damage_is_reported_in_one_line(index: Index, model: Genius) -> None:
    index.add([Item("a", text="a")])
    about = index.path / "genius.json"
    body = about.read_text()
    about.write_text("{")
    with pytest.raises(GeniusError, match="cannot read"):
        Index(index.path, model)
    about.write_text(body.replace('"format": 2', '"format": 99'))
    with pytest.raises(GeniusError, match="format 99"):
        Index(index.path, model)
    about.write_text(body)
    shutil.rmtree(index.path / "items.lance")
    with pytest.raises(GeniusError) as caught:
        Index(index.path, model)
    assert "\n" not in str(caught.value)


def test_a_file_that_ends_early_does_not_count(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """LanceDB may commit a data file whose last bytes the disk did not take."""
    index.add([Item("a", text="a")])
    append = Store.append

    def cut_off(self: Store, rows: Any) -> None:
        append(self, rows)
        newest = max((table_folder(self.folder) / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.truncate(newest, newest.stat().st_size - 30)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", cut_off)
        with pytest.raises(GeniusError, match="ends early"):
            index.add([Item("b", text="b")])
    assert len(index) == 1 and [hit.id for hit in index.search(text="a")] == ["a"]
    assert index.add([Item("b", text="b")]).added == 1 and len(index) == 2  # what was cut off is in nobody's way
