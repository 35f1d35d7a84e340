"""Files and folders from strangers: one bad row costs one row, and what is outside of the folder stays outside."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
from datetime import date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

import genius.index.ingest
from genius import GeniusError, Index, Item
from genius.cli import app
from genius.data import readers
from genius.data.readers import BATCH_ROWS, _batch_size, read_rows
from genius.errors import KEPT, Problems
from genius.index import writing
from genius.index.filters import compile_where
from genius.index.ingest import IngestConfig, ingest
from genius.index.metadata import TableColumns, item_of_table_row

QUIET = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def png(colour: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (12, 9), colour).save(buffer, "PNG")
    return buffer.getvalue()


# -- bad rows ----------------------------------------------------------------------------------------------------


def test_a_bad_line_of_json_costs_one_item(index: Index, tmp_path: Path) -> None:
    lines = [
        b'{"id": "good1", "text": "one"}',
        b'{"id": "deep", "text": "x", "a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"id": "deep2", "text": "x", "a": ' + b'{"b":' * 900 + b"1" + b"}" * 900 + b"}",
        b'{"id": "\\ud800", "text": "a lone surrogate as an id"}',
        b'{"id": "s", "text": "\\udfff lone"}',
        b'{"id": "m", "text": "x", "k": "\\ud800"}',
        b'{"id": "latin", "text": "caf\xe9"}',
        b'{"id": "huge", "text": "x", "n": ' + b"9" * 10_000 + b"}",
        b'{"id": "bytes", "image": {"bytes": 1000000000000}}',
        b'{"id": "path", "image": {"path": {"path": 1}}}',
        b'{"id": ["a", "list"], "text": "x"}',
        b'{"id": "t", "text": {"not": "a text"}}',
        b'{"id": "nul", "image": "a\\u0000b.png"}',
        b'{"id": "long", "image": "' + b"x" * 5000 + b'.png"}',
        b"null",
        b"{",
        json.dumps({f"k{i}": i for i in range(3000)} | {"id": "wide", "text": "x"}).encode(),
        b'{"id": "good2", "text": "two", "when": NaN, "list": [1, 2]}',
    ]
    path = tmp_path / "odd.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    (tmp_path / "fine.jsonl").write_text('{"id": "good3", "text": "three"}')
    report = ingest(index, [path, tmp_path / "fine.jsonl"])
    kept = {item.id for item in index.items()}
    assert {"good1", "good2", "good3"} <= kept <= {"good1", "good2", "good3", "deep2"}
    assert report.problems.total >= len(lines) - 3 and all(line.isprintable() for line in report.problems)
    for word in ("row 2: not JSON: nested too deep", "row 7: not JSON", "row 17: 3,002 columns"):
        assert any(word in line for line in report.problems), word
    assert json.loads(json.dumps(report.to_dict()))["skipped"] == report.problems.total


def test_dates_that_python_has_no_value_for_cost_one_item(index: Index, tmp_path: Path) -> None:
    far = 400_000_000_000_000_000
    columns = {
        "when": pa.array([0, far, 5], pa.timestamp("ms")),
        "day": pa.array([0, 1, 2_000_000_000], pa.date32()),
        "lasts": pa.array([1, 2, 3], pa.duration("s")),
    }
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": ["a", "b", "c"], **columns}), tmp_path / "dates.parquet")
    pq.write_table(
        pa.table({"id": ["d"], "text": ["d"], "when": [datetime(2020, 1, 1)], "day": [date(2020, 1, 1)]}), tmp_path / "e.parquet"
    )
    report = ingest(index, [tmp_path / "dates.parquet", tmp_path / "e.parquet"])
    assert {item.id for item in index.items()} == {"a", "d"} and report.problems.total == 2
    assert all("a value cannot be read" in line for line in report.problems)


def test_a_table_of_nothing_is_given_up(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bytes may hold millions of rows: neither the list of problems nor the time grows with them."""
    monkeypatch.setattr(genius.index.ingest, "MAX_BAD", 300)
    for name, column in (("none", {"n": pa.nulls(100_000, pa.int8())}), ("empty", {"text": pa.nulls(100_000, pa.string())})):
        pq.write_table(pa.table(column), tmp_path / f"{name}.parquet")
    report = ingest(index, [tmp_path / "none.parquet", tmp_path / "empty.parquet"])
    assert report.problems.total == 602 and sum("all further rows are left out" in line for line in report.problems) == 2


def test_the_list_of_problems_is_bounded_and_counts_all() -> None:
    problems = Problems(f"line {i} \ud800 \x1b[31m\n" for i in range(KEPT + 500))
    assert len(problems) == KEPT and problems.total == KEPT + 500 and problems.left_out == 500
    assert all(line.isprintable() and "\n" not in line for line in problems)
    both = Problems(["first"])
    both += problems
    assert both.total == KEPT + 501 and len(both) == KEPT
    assert len(Problems(["x" * 10_000])[0]) <= 600


def test_bad_rows_of_one_table_do_not_crowd_out_other_files(index: Index, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[]\n" * (KEPT - 1) + '{"id": "good", "text": "good"}\n[]')
    (tmp_path / "b.txt").write_text("")
    report = ingest(index, [tmp_path])
    assert report.added == 1 and report.problems.total == KEPT + 1 and len(report.problems) < KEPT / 2
    assert "b.txt" in report.problems[-1] and "more rows" in report.problems[-2]


def test_a_parquet_file_that_unfolds_without_measure_is_refused(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"id": ["a"], "text": ["x" * 5_000_000]}), path, compression="zstd")
    assert "expand to" not in ingest(index, [path]).problems[0]  # small enough, whatever its ratio
    monkeypatch.setattr(readers, "MAX_UNFOLDED", 4_000_000)
    assert "expand to" in ingest(index, [path]).problems[0]


def test_large_values_that_many_rows_name_are_unfolded_few_at_a_time(tmp_path: Path) -> None:
    table = pa.table({"id": [str(i) for i in range(200)], "text": ["x" * 20_000_000] * 2 + ["y"] * 198})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", dictionary_pagesize_limit=1 << 30)
    pq.write_table(table.slice(2), tmp_path / "b.parquet")
    rows = {path.stem: _batch_size(pq.read_metadata(path), path.stat().st_size) for path in tmp_path.glob("*.parquet")}
    assert rows == {"a": 13, "b": BATCH_ROWS}


def test_items_held_in_memory_are_bounded_by_their_bytes(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_HELD", 1000)
    sizes: list[int] = []
    index.add([Item(f"t{i}", text="x" * 300) for i in range(20)], on_progress=lambda report: sizes.append(report.added))
    assert sizes == [4, 4, 4, 4, 4] and len(index) == 20


def test_a_bad_byte_in_a_csv_costs_one_row(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text,n\na,one,1\nb,caf\xe9,2\nc,three,3,and,more\n" + b"d," + b"x" * 11_000_000 + b",4\ne,\x00five,5\n")
    report = ingest(index, [path])
    assert {item.id for item in index.items()} >= {"a", "c"} and report.problems.total >= 2
    assert any("row 2: not UTF-8" in line for line in report.problems)
    (tmp_path / "b.csv").write_bytes(b"id,t\xe9xt\na,b\n")
    assert "names the columns" in ingest(index, [tmp_path / "b.csv"]).problems[0]


# -- inside and outside ------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """photos/ with every way of pointing outside, and private things beside it."""
    photos = tmp_path / "photos"
    (photos / "sub").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("a secret")
    (tmp_path / "private.png").write_bytes(png("red"))
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "more.txt").write_text("more secrets")
    (photos / "own.png").write_bytes(png("blue"))
    (photos / "note.txt").symlink_to(tmp_path / "secret.txt")
    (photos / "users.md").symlink_to("/etc/passwd")
    (photos / "sub" / "up.txt").symlink_to("../../secret.txt")
    (photos / "chain.txt").symlink_to(photos / "note.txt")
    (photos / "dir").symlink_to(tmp_path / "private")
    (photos / "inside.png").symlink_to("own.png")
    (photos / "own.txt").symlink_to(tmp_path / "secret.txt")  # as a caption
    rows = [
        {"id": "up", "image": "../private.png"},
        {"id": "absolute", "image": str(tmp_path / "private.png")},
        {"id": "through", "image": "dir/../../private.png"},
        {"id": "linked", "image": "dir/x.png"},
        {"id": "good", "image": "own.png"},
        {"id": "around", "image": "sub/../own.png"},
        {"id": "whole", "image": str(photos / "own.png")},
    ]
    (photos / "table.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return photos


def test_what_leads_out_of_the_folder_is_refused_and_listed(index: Index, folder: Path) -> None:
    report = ingest(index, [folder])
    assert {item.id for item in index.items()} == {"photos/own.png", "photos/inside.png", "good", "around", "whole"}
    text = "\n".join(report.problems)
    for name in ("note.txt", "users.md", "up.txt", "chain.txt", "own.txt", "dir: a link", "row 1", "row 2", "row 3"):
        assert name in text, name
    assert "--outside" in text and "secret" not in "".join(item.text or "" for item in index.items())
    assert index.get("photos/own.png").text is None  # the caption was a link


def test_outside_is_read_when_asked_for(index: Index, folder: Path) -> None:
    report = ingest(index, [folder], IngestConfig(outside=True))
    ids = {item.id for item in index.items()}
    assert {"photos/note.txt", "up", "absolute", "photos/sub/up.txt"} <= ids and index.get("photos/own.png").text == "a secret"
    again = ingest(index, [folder], IngestConfig(prune=True))  # what is refused now is not taken for deleted
    assert again.deleted == 0 and report.added == len(index)


def test_a_table_that_is_named_itself_stays_in_its_folder(index: Index, folder: Path) -> None:
    assert ingest(index, [folder / "table.jsonl"]).added == 3


def test_names_that_are_no_text_are_listed(index: Index, tmp_path: Path, model_folder: Path) -> None:
    photos = tmp_path / "odd"
    photos.mkdir()
    (photos / "good.txt").write_text("good")
    try:
        Path(os.fsdecode(os.fsencode(photos) + b"/bad\xff.txt")).write_text("bad")
        Path(os.fsdecode(os.fsencode(photos) + b"/film.\xfe")).write_text("bad")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    os.mkfifo(photos / "pipe.txt")
    result = CliRunner().invoke(
        app, ["index", str(photos), "-o", str(tmp_path / "i.genius"), "--model", str(model_folder), "--json"]
    )
    assert result.exit_code == 1, result.stderr
    body = json.loads(result.stdout)
    assert body["added"] == 1 and body["skipped"] == 1 and "bad\\udcff.txt" in body["problems"][0]


# -- anything ----------------------------------------------------------------------------------------------------

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)),
    max_leaves=8,
)
names = st.one_of(st.sampled_from(["id", "text", "image", "title", "path", "ID", "bytes"]), st.text(max_size=8))


def consume(path: Path) -> int:
    """Read a table to its end, every row into an item; only clear lines may come out."""
    good = 0
    try:
        for number, row in read_rows(path):
            if isinstance(row, str):
                assert row
                continue
            try:
                item_of_table_row(row, TableColumns(), path.parent, f"#{number}")
                good += 1
            except (GeniusError, ValueError, TypeError, ArithmeticError):
                pass  # what `ingest` turns into a line
    except GeniusError as error:
        assert "\n" not in str(error)
    return good


@QUIET
@given(st.lists(st.dictionaries(names, values, max_size=5), max_size=6), st.binary(max_size=60), st.integers(0, 400))
def test_any_jsonl(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]], junk: bytes, at: int) -> None:
    body = "\n".join(map(json.dumps, rows)).encode()
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    path.write_bytes(body[:at] + junk + body[at:])
    consume(path)


@QUIET
@given(st.binary(max_size=300), st.sampled_from([".csv", ".tsv"]), st.booleans())
def test_any_csv(tmp_path_factory: pytest.TempPathFactory, body: bytes, suffix: str, headed: bool) -> None:
    path = tmp_path_factory.mktemp("csv") / f"a{suffix}"
    path.write_bytes((b"id,text\n" if headed else b"") + body)
    consume(path)


@QUIET
@given(st.integers(0, 10**6), st.integers(0, 255), st.integers(0, 3))
def test_any_parquet(tmp_path_factory: pytest.TempPathFactory, at: int, value: int, kind: int) -> None:
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["x", "y"], "when": pa.array([1, 2], pa.timestamp("s"))}), path)
    body = bytearray(path.read_bytes())
    if kind == 0:
        body[at % len(body)] ^= value
    elif kind == 1:
        body = body[: at % len(body)]
    elif kind == 2:
        body[-8:-4] = struct.pack("<I", at * 4000 % 2**32)
    else:
        body[at % len(body) : at % len(body) + 3] = bytes([value]) * 3
    path.write_bytes(body)
    consume(path)


WORDS = (
    "price", "shop", "sold", "id", "text", "AND", "OR", "NOT", "IN", "LIKE", "IS", "NULL", "BETWEEN", "(", ")", ",", "=", "<",
    ">=", "'x'", "5", "-", "lower(", "true", "''", "`", '"', ";", "--", "_seq", "\ud800", "9" * 400,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)))
def test_any_condition_is_sql_or_one_line(where: str) -> None:
    columns = {"price": "number", "shop": "text", "sold": "boolean"}
    try:
        sql = compile_where(where, columns)  # type: ignore[arg-type]
    except GeniusError as error:
        assert "\n" not in str(error) and len(str(error)) <= 300
        return
    outside = sql.replace("''", "").split("'")[::2]  # what is not inside of quotes
    assert not any(sign in part for part in outside for sign in (";", "--", "/*", "_seq", "\\"))
    sql.encode()


def test_conditions_that_compile_run(index: Index) -> None:
    """What the grammar lets through, the database takes."""
    from genius import Item

    index.add([Item("a", text="a", metadata={"price": 1, "shop": "x", "sold": True})])
    with pytest.raises(GeniusError, match="not valid Unicode"):
        index.count("shop = '\ud800'")
    for where in (
        "price < 1e308",
        "shop LIKE '%_%'",
        "NOT NOT sold",
        "id = '\u202e\u0000'",
        "shop = '\U0001f600'",
        "length(shop) = 1",
    ):
        assert index.count(where) >= 0


@pytest.mark.skipif(sys.platform == "win32", reason="names")
def test_the_recursion_limit_is_not_ours_to_break() -> None:
    depth = 3000
    with pytest.raises(GeniusError, match="nested"):
        compile_where("(" * depth + "price = 1" + ")" * depth, {"price": "number"})


def test_texts_of_strangers_do_not_command_the_terminal(model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.genius"
    with Index(path, model_folder) as index:
        index.add([Item(f"t{n}", text="a \x1b]0;owned\x07\x1b[2J car", metadata={"note": "b\x1b[31m"}) for n in range(3)])
        index.index_words()
    for command in (["search", str(path), "a car"], ["search", str(path), "a car", "--mode", "words"], ["duplicates", str(path)]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert "t0" in result.output
        assert not [line for line in result.output.splitlines() if not line.isprintable()]
    assert "\\x1b[2J car" in CliRunner().invoke(app, ["search", str(path), "a car"]).output
