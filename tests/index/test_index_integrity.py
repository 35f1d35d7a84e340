"""Nothing is wrong in silence: damage is found, named and mended; a table with rows is never made anew."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import genius.index.commit
import genius.index.opened
import genius.index.store
from genius import Genius, GeniusError, Index, Item
from genius.cli import app
from genius.index.check import check
from genius.index.commit import HINT, manifest_name, table_folder, versions_on_disk
from genius.index.ledger import Ledger
from genius.index.reader import Reader
from genius.index.repair import repair
from genius.index.store import Store

runner = CliRunner()


def texts(start: int, stop: int) -> list[Item]:
    return [Item(f"t{i}", text=f"word{i % 7} thing{i}", metadata={"n": i, "odd": bool(i % 2)}) for i in range(start, stop)]


def contents(index: Index) -> dict[str, tuple[object, ...]]:
    return {item.id: (item.text, tuple(sorted(item.metadata.items()))) for item in index.items()}


def everything(index: Index) -> dict[str, tuple[object, ...]]:
    return {h.id: (h.item.text, h.codes) for h in index.search(text="word1", target="any", k=10_000, beams=10_000, rerank=10**6)}


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small indexes leave caches and have an index of rows, so that there is a file of every kind."""
    monkeypatch.setattr(genius.index.opened, "CACHE_FROM", 1)
    monkeypatch.setattr(genius.index.store, "INDEX_FROM", 10)


@pytest.fixture
def busy(index: Index, model: Genius, cached: None) -> Index:
    index.add(texts(0, 40))
    index.delete(["t3", "t4"])
    index.upsert([Item("t5", text="five again", metadata={"n": 5.5})])
    index.optimize()
    index.add(texts(40, 50))
    index.delete(["t7"])
    return index


# -- bits --------------------------------------------------------------------------------------------------------


def test_every_flipped_bit_is_found(busy: Index, model: Genius, tmp_path: Path) -> None:
    """One flip in every file, and some more: found when the index is opened, or by `check`. Many more: lab/results/durability."""
    rng = random.Random(3)
    before, found = contents(busy), everything(busy)
    assert check(busy.path).ok
    files = sorted(p.relative_to(busy.path) for p in busy.path.rglob("*") if p.is_file() and p.stat().st_size)
    assert {f.parts[0] for f in files} == {"cache", "genius.json", "items.lance", "ledger.jsonl"}
    kinds = {p.parts[1] for p in files if p.parts[0] == "items.lance"}
    assert {"data", "_versions", "_deletions", "_transactions", "_indices"} <= kinds
    opened = 0
    for name in [*files, *rng.choices(files, k=20)]:
        copy = tmp_path / "copy.genius"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(busy.path, copy)
        body = bytearray((copy / name).read_bytes())
        bit = rng.randrange(8 * len(body))
        body[bit // 8] ^= 1 << bit % 8
        (copy / name).write_bytes(body)
        report = check(copy)
        assert not report.ok or name.name == HINT, (name, bit)  # nothing relies on the hint
        assert all("\n" not in line for line in report.problems)
        try:
            index = Index(copy, model, read_only=True)
        except GeniusError as error:
            assert "\n" not in str(error)
            continue
        opened += 1
        assert contents(index) == before and everything(index) == found, (name, bit)  # a cache that is damaged is not used
    assert opened > 5


def test_a_row_that_is_not_as_it_was_written_is_named(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files are whole and the table reads another text: only the row's own checksum tells."""
    index.add(texts(0, 4))
    batches = Reader.batches

    def altered(reader: Reader, columns: Any = None) -> Any:
        for batch in batches(reader, columns):
            place = batch.schema.get_field_index("text")
            words = batch.column(place).to_pylist()
            words[2] = "another text"
            yield batch.set_column(place, batch.schema.field(place), pa.array(words))

    monkeypatch.setattr(Reader, "batches", altered)
    assert check(index.path).problems == ["item 't2': the row has another checksum than when it was written"]


def test_a_fast_check_finds_what_is_missing_or_cut(busy: Index) -> None:
    assert check(busy.path, fast=True).ok
    data = sorted((table_folder(busy.path) / "data").iterdir())
    body = data[0].read_bytes()
    data[0].write_bytes(body[:-1])
    assert "another size" in check(busy.path, fast=True).problems[0]
    data[0].unlink()
    assert "is missing" in check(busy.path, fast=True).problems[0]
    data[0].write_bytes(bytes(len(body)))
    assert check(busy.path, fast=True).ok and not check(busy.path).ok  # what it does not promise


# -- caches ------------------------------------------------------------------------------------------------------


def cache_of(index: Index) -> Path:
    (folder,) = [p for p in (index.path / "cache").iterdir() if p.name.isdigit()]
    return folder


@pytest.mark.parametrize("name", ["vectors", "shown.bin", "hashes.npy", "hash_rows.npy", "seqs.npy", "trie_order.npy"])
def test_a_cache_of_noise_is_built_anew(busy: Index, model: Genius, name: str) -> None:
    before = everything(busy)
    if name == "vectors":
        name = "extents.npy" if (cache_of(busy) / "extents.npy").exists() else "embeddings.npy"
    path = cache_of(busy) / name
    body = path.read_bytes()
    path.write_bytes(body[:100] + np.random.default_rng(0).bytes(len(body) - 100))
    assert f"cache/{path.parent.name}/{name} is not as it was written" in check(busy.path).problems[0]
    again = Index(busy.path, model)
    assert everything(again) == before and check(busy.path).ok  # and it was repaired


def test_a_lying_cache_cannot_damage_the_table(busy: Index, model: Genius) -> None:
    """A cache that went wrong after it was compared with its checksums: ids that it does not find are not added twice."""
    busy.optimize()
    again = Index(busy.path, model)
    base = again.live.base
    assert base.cached
    lying = np.zeros(base.items, np.uint32)
    object.__setattr__(base, "hashes", lying)
    assert "t10" not in again
    assert again.add([Item("t10", text="twice?")]).existing == 1
    assert again.count("id = 't10'") == 1 and "t10" in again and len(again) == len(contents(again))
    object.__setattr__(again.live.base, "hashes", np.zeros(again.live.base.items, np.uint64))


# -- what is missing ---------------------------------------------------------------------------------------------


def test_without_genius_json_nothing_is_made_anew(busy: Index, model: Genius, model_folder: Path, tmp_path: Path) -> None:
    before = contents(busy)
    (busy.path / "genius.json").unlink()
    for attempt in (
        lambda: Index(busy.path, model),
        lambda: Index.open(busy.path, model),
        lambda: Store.create(busy.path, 4, 32),
    ):
        with pytest.raises(GeniusError, match="genius repair"):
            attempt()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.txt").write_text("a")
    result = runner.invoke(app, ["index", str(tmp_path / "more"), "-o", str(busy.path), "--model", str(model_folder)])
    assert result.exit_code == 2 and "holds a table with items but no genius.json" in result.stderr
    assert repair(busy.path).lost == []
    assert contents(Index(busy.path, model)) == before and check(busy.path).ok


def test_without_genius_json_and_ledger_the_model_is_named_and_tried(busy: Index, model: Genius, model_folder: Path) -> None:
    from fake_encoder import fake_model

    before = contents(busy)
    (busy.path / "genius.json").unlink()
    (busy.path / "ledger.jsonl").unlink()
    with pytest.raises(GeniusError, match="name it"):
        repair(busy.path)
    with pytest.raises(GeniusError, match="other codes: it is not the model"):
        repair(busy.path, fake_model(seed=1))
    result = runner.invoke(app, ["repair", str(busy.path), "--model", str(model_folder), "--json"])
    assert result.exit_code == 0 and json.loads(result.stdout)["items"] == len(before)
    assert contents(Index.open(busy.path)) == before and check(busy.path).ok


def test_a_missing_ledger_is_noticed(busy: Index, model: Genius) -> None:
    before = contents(busy)
    (busy.path / "ledger.jsonl").unlink()
    with pytest.raises(GeniusError, match=r"ledger\.jsonl is missing"):
        Index(busy.path, model)
    repair(busy.path)
    assert contents(Index(busy.path, model)) == before


def test_an_older_version_than_was_acknowledged_is_noticed(busy: Index, model: Genius) -> None:
    head = busy.version
    (table_folder(busy.path) / manifest_name(head)).unlink()
    for read_only in (False, True):
        with pytest.raises(GeniusError, match=f"version {head}, the last that was acknowledged, is not there"):
            Index(busy.path, model, read_only=read_only)
    with pytest.raises(GeniusError, match="is not there"):
        busy.add(texts(90, 91))
    report = repair(busy.path)
    assert f"version {head}" in report.lost[0] and report.version > head and len(busy) == 48  # who had it open follows
    again = Index(busy.path, model)
    assert len(again) == 48 and again.add(texts(90, 91)).added == 1 and check(busy.path).ok  # t7 is back, that is all
    assert contents(busy) == contents(again)


def test_repair_keeps_every_row_but_the_damaged(busy: Index, model: Genius) -> None:
    """A bit in a row's text: one item is lost, and named; all others come back as they were."""
    busy.optimize(keep=timedelta(0))
    before = contents(busy)
    word = b"thing33"
    (victim,) = [
        p for p in (table_folder(busy.path) / "data").iterdir() if word in p.read_bytes() and b"thing9" in p.read_bytes()
    ][:1]
    victim.write_bytes(victim.read_bytes().replace(word, b"thing99", 1))
    with pytest.raises(GeniusError, match="another checksum"):
        Index(busy.path, model)
    report = repair(busy.path)
    assert report.lost.total == 1 and "'t33'" in report.lost[0]
    again = Index(busy.path, model)
    assert contents(again) == {i: v for i, v in before.items() if i != "t33"} and check(busy.path).ok
    assert again.add(texts(33, 34)).added == 1 and everything(again).keys() == before.keys()


def test_repair_goes_back_where_that_brings_more(index: Index, model: Genius) -> None:
    """The merged file cannot be read at all, those that it was made of can: an older version holds more."""
    index.add(texts(0, 20))
    index.add(texts(20, 40))
    before = contents(index)
    older = set((table_folder(index.path) / "data").iterdir())
    index.optimize()
    (merged,) = set((table_folder(index.path) / "data").iterdir()) - older
    body = merged.read_bytes()
    merged.write_bytes(body[:-40] + bytes(40))
    report = repair(index.path)
    assert "only 0 of 40 items" in report.lost[0] and report.items == 40
    assert contents(Index(index.path, model)) == before and check(index.path).ok


def test_repair_of_a_sound_index_changes_nothing(busy: Index) -> None:
    files = {p: p.read_bytes() for p in busy.path.rglob("*") if p.is_file() and p.name != ".lock"}
    assert repair(busy.path).done == ["the table is as it was written"]
    assert {p: p.read_bytes() for p in busy.path.rglob("*") if p.is_file() and p.name != ".lock"} == files


def test_there_must_be_something_to_repair(tmp_path: Path) -> None:
    for args, message in ((["repair", str(tmp_path)], "nothing to bring back"), (["check", str(tmp_path / "no")], "no index at")):
        result = runner.invoke(app, args)
        assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1


def test_check_from_the_shell(busy: Index) -> None:
    good = runner.invoke(app, ["check", str(busy.path)])
    assert good.exit_code == 0 and "all is well" in good.stdout
    next((table_folder(busy.path) / "data").iterdir()).write_bytes(b"x")
    bad = runner.invoke(app, ["check", str(busy.path)])
    assert bad.exit_code == 1 and "damaged: items.lance/data/" in bad.stdout and "DAMAGED" in bad.stdout
    assert not json.loads(runner.invoke(app, ["check", str(busy.path), "--json", "--fast"]).stdout)["ok"]


def test_check_finds_no_damage_where_others_only_write(busy: Index, model: Genius) -> None:
    stop = threading.Event()

    def churn() -> None:
        writer, number = Index(busy.path, model), 0
        while not stop.is_set():
            number += 1
            writer.upsert([Item(f"t{number % 20}", text=f"again {number}", metadata={"n": number})])
            writer.optimize(keep=timedelta(0))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        reports = [check(busy.path) for _ in range(12)]
    finally:
        stop.set()
        thread.join()
    assert [line for report in reports for line in report.problems] == []


# -- what was never acknowledged ---------------------------------------------------------------------------------


def stray(index: Index, torn: bool) -> int:
    """A version that LanceDB committed and nobody acknowledged: a writer died, or the power."""
    store = Store(index.path)
    store.append(store._table.to_arrow().slice(0, 2))
    (version,) = [v for v in versions_on_disk(index.path) if v > index.version]
    if torn:
        (table_folder(index.path) / manifest_name(version)).write_bytes(b"")
    return version


@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_what_a_dead_writer_left_is_not_shown_and_set_aside(busy: Index, model: Genius, torn: bool) -> None:
    before = contents(busy)
    version = stray(busy, torn)
    reader = Index(busy.path, model, read_only=True)
    assert contents(reader) == before and everything(reader).keys() == before.keys()
    report = check(busy.path)
    assert report.ok and f"version {version} was never acknowledged" in report.notes[0]
    writer = Index(busy.path, model)
    assert writer.add(texts(80, 81)).added == 1
    assert [p.name.split("-")[0] for p in (busy.path / "aside").iterdir()] == [str(version)]
    for handle in (writer, reader, busy):
        assert contents(handle).keys() == {*before, "t80"}
    assert check(busy.path).ok


def test_a_change_of_several_steps_is_one(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """New columns, then rows: if the rows cannot be written, the columns were never there."""
    index.add([Item("a", text="a")])
    version = index.version

    def full(*_: object) -> None:
        raise GeniusError("cannot add items: the disk is full")

    monkeypatch.setattr(Store, "append", full)
    with pytest.raises(GeniusError, match="disk is full"):
        index.add([Item("b", text="b", metadata={"price": 3})])
    monkeypatch.undo()
    assert index.version == version and index.columns() == {} and check(index.path).ok
    assert index.add([Item("b", text="b", metadata={"price": "dear"})]).added == 1 and index.columns() == {"price": "text"}


def test_a_clean_up_that_was_broken_off_is_finished(busy: Index, model: Genius, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(busy)
    monkeypatch.setattr(genius.index.commit, "forget_cleaned", lambda *_: (_ for _ in ()).throw(GeniusError("killed")))
    with pytest.raises(GeniusError, match="killed"):
        busy.optimize(keep=timedelta(0))
    monkeypatch.undo()
    state = Ledger(busy.path).read()
    assert state is not None and state.cleaning
    assert check(busy.path).ok and contents(Index(busy.path, model)) == before
    Index(busy.path, model).add(texts(80, 81))
    state = Ledger(busy.path).read()
    assert state is not None and not state.cleaning and check(busy.path).ok


def test_commits_are_synced_before_they_count(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    index.add(texts(0, 5))
    assert synced[-1].endswith("ledger.jsonl")  # last
    before = [Path(p).relative_to(index.path).as_posix() for p in synced[:-1]]
    assert any(p.endswith(".manifest") for p in before) and any(p.startswith("items.lance/data/") for p in before)
    assert {"items.lance/data", "items.lance/_versions", "items.lance"} <= set(before)


@pytest.mark.parametrize("failures", [2, 10**6])
def test_a_disk_that_fails_while_repairing_costs_no_version(
    busy: Index, model: Genius, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    before = contents(busy)
    (busy.path / "ledger.jsonl").unlink()
    alone = Store.alone
    calls = []

    def fails(folder: Path, version: int) -> Any:
        calls.append(version)
        if len(calls) <= failures:
            raise GeniusError("cannot read: Input/output error")
        return alone(folder, version)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "alone", staticmethod(fails))
        if failures > 2:
            with pytest.raises(GeniusError, match="no version of"):
                repair(busy.path, model)
        else:
            repair(busy.path, model)
    repair(busy.path, model)
    assert contents(Index(busy.path, model)) == before and check(busy.path).ok


def test_a_later_format_is_refused(busy: Index, model: Genius) -> None:
    path = busy.path / "genius.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 4'))
    with pytest.raises(GeniusError, match="format 4; this version reads 2 and 3"):
        Index(busy.path, model)


def test_a_repair_keeps_the_newest_version_where_an_older_one_has_fewer_rows(index: Index, model: Genius) -> None:
    """A file in the middle is lost: five rows of the newest version are left, and an older version is whole, with three."""
    for first, last in ((0, 3), (3, 30), (30, 32)):
        index.add(texts(first, last))
    data = sorted((table_folder(index.path) / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    data[1].unlink()
    assert repair(index.path).items == 5
    assert {item.id for item in Index(index.path, model).items()} == {"t0", "t1", "t2", "t30", "t31"}


def test_an_index_with_a_data_file_missing_is_not_opened(index: Index, model: Genius) -> None:
    """It would answer until somebody asks for what is gone."""
    index.add([Item(f"gone {i}", text=f"word{i}") for i in range(5)])
    newest = max((index.path / "items.lance" / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    newest.unlink()
    with pytest.raises(GeniusError, match=r"is damaged: .*is missing"):
        Index(index.path, model)
