"""Parts and their commits, without Ray: the same index as one process makes, whatever breaks off where."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_differences import contents, differences, make_sources
from scale_fixtures import Killed

from genius.data.readers import cut_rows, read_rows
from genius.errors import GeniusError
from genius.index import Index, prepare, writing
from genius.index import ingest as read
from genius.index.check import check
from genius.index.ingest import IngestConfig, IngestReport, SourceFile, ingest
from genius.index.store import Store
from genius.scale.bulk import BulkConfig, BulkReport, bulk_index, cut

SMALL = BulkConfig(part_rows=32)
CONFIG = IngestConfig(batch_size=32)
Spread = Callable[..., Any]


def run(sources: Path, output: Path, model: str, spread: Any, **options: Any) -> BulkReport:
    return bulk_index([sources], output, model, options.pop("ingest", CONFIG), options.pop("config", SMALL), spread=spread)


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Path, set[str]]:
    return tmp_path / "sources", make_sources(tmp_path / "sources", rows=150, pictures=12)


def test_it_is_the_index_that_one_process_makes(tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread) -> None:
    folder, ids = sources
    plain = Index(tmp_path / "plain.genius", model_folder)
    told = ingest(plain, [folder], CONFIG)
    report = run(folder, tmp_path / "bulk.genius", model_folder, in_turn())
    assert report.report.added == len(ids) == told.added and report.parts > 4
    assert sorted(report.report.problems) == sorted(told.problems)  # both bad pictures, by name
    with Index.open(tmp_path / "bulk.genius") as opened:
        assert contents(opened).keys() == ids
        assert set(differences(plain, opened).values()) == {0}
        assert opened.count("price < 10") == plain.count("price < 10") > 0
    assert not check(tmp_path / "bulk.genius").problems


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sources=st.lists(st.one_of(st.just(None), st.lists(st.booleans(), max_size=40)), max_size=40),
    parts=st.integers(1, 4),
    size=st.integers(1, 20),
)
def test_who_is_encoded_together_follows_from_the_sources_alone(
    sources: list[list[bool] | None], parts: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else vectors of workers and of one process would differ in their last bits. None: a text file; bools: rows, good or bad."""
    for module, name, value in ((read, "WINDOW", 8), (prepare, "AT_ONCE", 4), (writing, "AT_ONCE", 4)):
        monkeypatch.setattr(module, name, value)
    with TemporaryDirectory() as folder:
        for number, rows in enumerate(sources):
            path = Path(folder) / f"{number:02}"
            if rows is None:
                path.with_suffix(".txt").write_text("words" if number % 5 else "")  # an empty one is skipped
            else:
                lines = [json.dumps({"id": f"{number}-{i}", "text": "words"}) if good else "{" for i, good in enumerate(rows)]
                path.with_suffix(".jsonl").write_text("".join(f"{line}\n" for line in lines))
        told = IngestReport()

        def passes(files: Iterable[SourceFile]) -> list[list[str]]:
            found = []
            for batch in writing.item_batches(read.read_items(files, CONFIG, told, lambda _: None), size):
                assert len(batch) <= size
                numbered = zip(prepare._passes(batch), batch, strict=True)
                found += [[item.id for _, (item, _) in some] for _, some in groupby(numbered, lambda pair: pair[0])]
            return found

        alone = passes(list(read.find_files([folder], CONFIG, told)))
        assert [ids for part in cut([folder], CONFIG, 8 * parts, told) for ids in passes(part.files)] == alone


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
        assert before <= 32 * after  # whole parts of at most 32 items
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
    assert report.report.problems.total == told.problems.total == 21
    assert {"b1", "a7"} <= {word.strip("':") for line in report.report.problems for word in line.split()}
    with Index.open(tmp_path / "bulk.genius") as opened:
        assert contents(opened) == contents(plain)
        assert opened.columns() == plain.columns() and opened.get("a7").text == "text 7"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
@pytest.mark.parametrize("size", [1, 7, 32, 1000])
def test_stretches_are_the_whole_table(sources: Any, name: str, size: int) -> None:
    path = sources[0] / name
    whole = list(read_rows(path))
    parts = [list(read_rows(path, stretch)) for stretch in cut_rows(path, size)]
    assert [row for part in parts for row in part] == whole and all(len(part) <= size for part in parts)


def test_two_runs_at_once_add_every_item_once(tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread) -> None:
    folder, ids = sources
    output = tmp_path / "bulk.genius"

    def second(*work: Any) -> Any:
        encoded = list(in_turn()(*work))
        assert run(folder, output, model_folder, in_turn()).report.added == len(ids)
        yield from encoded

    report = run(folder, output, model_folder, second)
    assert not report.failed and (report.report.added, report.report.replaced) == (0, len(ids))
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


def test_a_part_that_fails_is_named_and_the_others_are_added(
    tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread
) -> None:
    folder, ids = sources
    output = tmp_path / "bulk.genius"

    def one_fails(*work: Any) -> Any:
        for number, (part, done) in enumerate(in_turn()(*work)):
            yield part, "3 workers died over it" if number == 1 else done

    report = run(folder, output, model_folder, one_fails)
    assert len(report.failed) == 1 and report.failed[0].endswith(": 3 workers died over it")
    assert 0 < report.report.added < len(ids)
    assert run(folder, output, model_folder, in_turn()).report.added == len(ids) - report.report.added


def test_pruning_needs_a_run_without_ray(tmp_path: Path, sources: Any, model_folder: str, in_turn: Spread) -> None:
    with pytest.raises(GeniusError, match="--prune"):
        run(sources[0], tmp_path / "a.genius", model_folder, in_turn(), ingest=IngestConfig(prune=True))
