"""A copy, a replacement or a repair takes no name, and removes nothing, before every row was read back.

LanceDB has been seen to commit a data file whose last write failed. Here the newest data file is damaged right after LanceDB
wrote it and before anything else happens: cut short, or with one other byte in its middle.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import lancedb
import pytest

from genius import Genius, GeniusError, Index, Item
from genius.index.check import check
from genius.index.repair import repair, restore, snapshot

ITEMS = [Item(str(i), text=f"number {i} of many", metadata={"n": i}) for i in range(40)]


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    at = body.index(b"number 7 of many") if b"number 7 of many" in body else len(body) // 3
    body[at] ^= 1
    path.write_bytes(bytes(body))


class Disk:
    """Damages what LanceDB writes, for as long as it is bad."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]) -> None:
        self.bad = False
        self.damage = damage
        create, add = lancedb.db.LanceDBConnection.create_table, lancedb.table.LanceTable.add

        def create_table(database: lancedb.db.LanceDBConnection, *args: object, **options: object) -> object:
            table = create(database, *args, **options)  # type: ignore[arg-type]
            self.strike(Path(str(database.uri)))
            return table

        def add_rows(table: lancedb.table.LanceTable, *args: object, **options: object) -> object:
            done = add(table, *args, **options)  # type: ignore[arg-type]
            self.strike(Path(str(table._conn.uri)))
            return done

        monkeypatch.setattr(lancedb.db.LanceDBConnection, "create_table", create_table)
        monkeypatch.setattr(lancedb.table.LanceTable, "add", add_rows)

    def strike(self, folder: Path) -> None:
        files = sorted((folder / "items.lance" / "data").glob("*.lance"), key=lambda path: path.stat().st_mtime_ns)
        if self.bad and files:
            self.damage(files[-1])


@pytest.fixture(params=[cut, flip])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    yield Disk(monkeypatch, request.param)


def held(folder: Path, model: Genius) -> set[str]:
    with Index.open(folder, model, read_only=True) as index:
        return {item.id for item in index.items()}


def test_a_snapshot_that_cannot_be_read_back_is_none(disk: Disk, index: Index, model: Genius, tmp_path: Path) -> None:
    index.add(ITEMS)
    disk.bad = True
    for copy in (lambda: index.snapshot(tmp_path / "copy"), lambda: restore(index.path, tmp_path / "copy")):
        with pytest.raises(GeniusError):
            copy()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["test.genius"]
    disk.bad = False
    index.snapshot(tmp_path / "copy")
    assert held(tmp_path / "copy", model) == {item.id for item in ITEMS} and check(index.path).ok


def test_a_restore_that_cannot_be_read_back_changes_nothing(disk: Disk, index: Index, model: Genius, tmp_path: Path) -> None:
    index.add(ITEMS)
    snapshot(index.path, tmp_path / "copy")
    index.delete([item.id for item in ITEMS[:30]])
    index.add([Item("later", text="came later")])
    now = {item.id for item in ITEMS[30:]} | {"later"}
    disk.bad = True
    with pytest.raises(GeniusError):
        restore(tmp_path / "copy", index.path, replace_items=True)
    assert held(index.path, model) == now and {item.id for item in index.items()} == now
    assert check(index.path).ok
    disk.bad = False
    restore(tmp_path / "copy", index.path, replace_items=True)
    assert held(index.path, model) == {item.id for item in ITEMS}


def test_a_repair_that_cannot_be_read_back_loses_nothing(disk: Disk, model: Genius, tmp_path: Path) -> None:
    folder = tmp_path / "x.genius"
    with Index(folder, model) as index:
        index.add(ITEMS[:20])
        index.add(ITEMS[20:])
    newest = max((folder / "items.lance" / "data").glob("*.lance"), key=lambda path: path.stat().st_mtime_ns)
    shutil.move(newest, tmp_path / "lost")  # half of the rows are gone: the others are written anew
    (folder / "ledger.jsonl").unlink()
    disk.bad = True
    with pytest.raises(GeniusError):
        repair(folder)
    disk.bad = False
    report = repair(folder)
    assert report.items == 20 and held(folder, model) == {item.id for item in ITEMS[:20]} and check(folder).ok
