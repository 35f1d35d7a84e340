"""Batches that others encode, without Ray: the same index as one process makes, whatever breaks off where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from index_differences import contents, differences, make_sources
from scale_fixtures import Killed

from genius.index import Index
from genius.index.check import check
from genius.index.ingest import Indexed, IngestConfig, ingest
from genius.index.store import Store
from genius.scale.bulk import BulkConfig, bulk_index

CONFIG = IngestConfig(batch_size=32)
Spread = Callable[..., Any]


def run(sources: Path, output: Path, model: str, spread: Any, **options: Any) -> Indexed:
    return bulk_index([sources], output, model, options.pop("ingest", CONFIG), BulkConfig(), spread=spread)


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Path, set[str]]:
    return tmp_path / "sources", make_sources(tmp_path / "sources", rows=150, pictures=12)


def test_it_is_the_index_that_one_process_makes(tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread) -> None:
    folder, ids = sources
    plain = Index(tmp_path / "plain.genius", model_folder)
    told = ingest(plain, [folder], CONFIG)
    report = run(folder, tmp_path / "bulk.genius", model_folder, in_turn())
    assert report.report.added == len(ids) == told.added
    assert sorted(report.report.problems) == sorted(told.problems)  # both bad pictures, by name
    with Index.open(tmp_path / "bulk.genius") as opened:
        assert contents(opened).keys() == ids
        assert set(differences(plain, opened).values()) == {0}
        assert opened.count("price < 10") == plain.count("price < 10") > 0
    assert not check(tmp_path / "bulk.genius").problems


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_run_that_was_killed_is_gone_on_with(
    tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread, after: int
) -> None:
    folder, ids = sources
    output = tmp_path / "bulk.genius"
    with pytest.raises(Killed):
        run(folder, output, model_folder, in_turn(after))
    with Index.open(output, read_only=True) as opened:
        before = len(opened)
        assert before <= 32 * after  # whole batches of at most 32 items
    report = run(folder, output, model_folder, in_turn())
    assert report.report.added == len(ids) - before and report.report.unchanged == before
    again = run(folder, output, model_folder, in_turn())
    assert again.report.added == again.report.replaced == 0 and again.report.unchanged == len(ids)
    with Index.open(output, read_only=True) as opened:
        assert contents(opened).keys() == ids  # `contents` fails for an id that comes twice
    assert not check(output).problems


@pytest.mark.parametrize("commits", [0, 2])
def test_a_run_that_was_killed_in_a_commit_is_gone_on_with(
    tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commits count, the one that was killed does not."""
    folder, ids = sources
    output = tmp_path / "bulk.genius"
    append = Store.append
    done: list[int] = []

    def die(store: Store, rows: Any) -> None:
        append(store, rows)
        if len(done) == commits:
            raise Killed
        done.append(rows.num_rows)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", die)
        with pytest.raises(Killed):
            run(folder, output, model_folder, in_turn())
    with Index.open(output, read_only=True) as opened:
        assert len(opened) == sum(done)
    report = run(folder, output, model_folder, in_turn())
    assert report.report.added == len(ids) - sum(done) and report.report.unchanged == sum(done)
    with Index.open(output, read_only=True) as opened:
        assert contents(opened).keys() == ids
    assert not check(output).problems


def test_a_living_index_is_added_to_while_others_write(tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread) -> None:
    from genius import Item

    folder, ids = sources
    output = tmp_path / "bulk.genius"
    run(folder, output, model_folder, in_turn())
    lines = (folder / "rows.jsonl").read_text().splitlines()
    changed = {**json.loads(lines[0]), "text": "quite another text"}
    (folder / "rows.jsonl").write_text(
        "\n".join([json.dumps(changed), *lines[1:], json.dumps({"id": "new", "text": "new"})]) + "\n"
    )
    other = Index(output, model_folder)

    def meanwhile(*work: Any) -> Any:
        yield from in_turn()(*work)
        other.add([Item("foreign", text="written while the workers were at it")])

    report = run(folder, output, model_folder, meanwhile)
    assert (report.report.added, report.report.replaced, report.report.unchanged) == (1, 1, len(ids) - 1)
    assert other.get("r0").text == "quite another text" and "foreign" in other and len(other) == len(ids) + 2
    assert {hit.id for hit in other.search("quite another text", k=3, target="any")} >= {"r0"}
    with Index.open(output) as fresh:
        assert contents(fresh) == contents(other) and not check(output).problems


def test_ids_that_come_twice_and_columns_that_contradict_are_named(tmp_path: Path, model_folder: str, in_turn: Spread) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    one = [{"id": f"a{i}", "text": f"text {i}", "size": i} for i in range(40)]
    two = [{"id": f"b{i}", "text": f"word {i}", "size": f"size {i}" if i % 2 else None} for i in range(40)]
    for name, rows in (("1.jsonl", one), ("2.jsonl", [*two, {"id": "a7", "text": "again"}])):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = run(folder, tmp_path / "bulk.genius", model_folder, in_turn())
    plain = Index(tmp_path / "plain.genius", model_folder)
    told = ingest(plain, [folder], CONFIG)
    assert report.report.added == told.added == 60
    assert sorted(report.report.problems) == sorted(told.problems)
    with Index.open(tmp_path / "bulk.genius") as opened:
        assert contents(opened) == contents(plain)
        assert opened.columns() == plain.columns() and opened.get("a7").text == "text 7"


def test_two_runs_at_once_add_every_item_once(tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread) -> None:
    folder, ids = sources
    output = tmp_path / "bulk.genius"

    def second(*work: Any) -> Any:
        encoded = list(in_turn()(*work))
        assert run(folder, output, model_folder, in_turn()).report.added == len(ids)
        yield from encoded

    report = run(folder, output, model_folder, second)
    assert (report.report.added, report.report.replaced) == (0, len(ids))
    with Index.open(output, read_only=True) as opened:
        assert contents(opened).keys() == ids
    assert not check(output).problems


def test_what_was_deleted_by_hand_stays_so_until_it_is_asked_for(
    tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread
) -> None:
    folder, ids = sources
    output = tmp_path / "bulk.genius"
    run(folder, output, model_folder, in_turn())
    with Index.open(output) as opened:
        opened.delete(["r1"])
    left = run(folder, output, model_folder, in_turn()).report
    assert (left.added, left.left_deleted) == (0, 1)
    brought = run(folder, output, model_folder, in_turn(), ingest=IngestConfig(undelete=True)).report
    assert (brought.added, brought.left_deleted) == (1, 0)
    assert run(folder, output, model_folder, in_turn()).report.unchanged == len(ids)


def test_a_batch_that_fails_is_named_and_the_others_are_added(
    tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread
) -> None:
    folder, ids = sources
    output = tmp_path / "bulk.genius"

    def one_fails(*work: Any) -> Any:
        for number, (batch, done) in enumerate(in_turn()(*work)):
            yield batch, "3 workers died over it" if number == 1 else done

    report = run(folder, output, model_folder, one_fails).report
    (line,) = [line for line in report.problems if line.endswith(": 3 workers died over it")]
    assert 0 < report.added < len(ids) and report.problems.total == len(ids) - report.added + 2
    assert line.startswith(f"{len(ids) - report.added} items, ")
    assert run(folder, output, model_folder, in_turn()).report.added == len(ids) - report.added


def test_what_is_gone_is_pruned(tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread) -> None:
    folder, ids = sources
    output = tmp_path / "bulk.genius"
    run(folder, output, model_folder, in_turn())
    (folder / "rows.parquet").unlink()
    pruned = run(folder, output, model_folder, in_turn(), ingest=IngestConfig(prune=True)).report
    assert (pruned.added, pruned.deleted) == (0, 75)
    with Index.open(output) as opened:
        assert len(opened) == len(ids) - 75
