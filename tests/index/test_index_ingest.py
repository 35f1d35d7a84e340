"""`genius index` and its sisters on real files: what is found, what is skipped and why, what a second run does."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from genius import Genius, GeniusError, Index, Item, Modality
from genius.cli import app
from genius.index.ingest import IngestConfig, ingest
from genius.index.metadata import ColumnTypes, TableColumns

runner = CliRunner()


def png(colour: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (20, 10), colour).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """photos/: two pictures (one captioned), a text, things that cannot be indexed."""
    photos = tmp_path / "photos"
    (photos / "deep").mkdir(parents=True)
    (photos / "red.png").write_bytes(png("red"))
    (photos / "red.txt").write_text("a red square")
    (photos / "deep" / "blue.PNG").write_bytes(png("blue"))
    (photos / "note.md").write_text("# a note")
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    (photos / "empty.txt").write_text("  ")
    (photos / "latin.txt").write_bytes(b"caf\xe9")
    (photos / "film.mp4").write_bytes(b"0")
    (photos / ".hidden.png").write_bytes(png("green"))
    return photos


def test_a_folder_becomes_items_and_skips_say_why(index: Index, folder: Path) -> None:
    heard: list[int] = []
    report = ingest(index, [folder], on_progress=heard.append)
    items = {item.id: item for item in index.items()}
    assert set(items) == {"photos/red.png", "photos/deep/blue.PNG", "photos/note.md"}
    assert items["photos/red.png"].modality is Modality.PAIR and items["photos/red.png"].text == "a red square"
    assert items["photos/red.png"].image == str(folder / "red.png")
    assert report.added == 3 and dict(report.ignored) == {".mp4": 1}
    problems = "\n".join(report.problems)
    assert (
        len(report.problems) == 3
        and "broken.jpg" in problems
        and "empty.txt: empty" in problems
        and "latin.txt is not UTF-8" in problems
    )
    assert sum(heard) == 6


def claims(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is this large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def test_odd_pictures_are_items_or_say_why(index: Index, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    names = ("with spaces (1).png", "ünïcødé 日本 🎨.png", "long" + "x" * 200 + ".png", "-rf.png", "a'b\"c;--.png")
    for name in (*names, "new\nline.png", "bare.png", "blank.png", "latin.png", "marked.png"):
        (folder / name).write_bytes(png("red"))
    (folder / "bare.txt").write_text("")  # an empty caption says nothing of its picture
    (folder / "blank.txt").write_text(" \n")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "marked.txt").write_text("a red square", encoding="utf-8-sig")
    (folder / "loop").symlink_to(folder)
    (folder / "dangling.png").symlink_to("nowhere.png")
    red, blue = (Image.new("RGB", (20, 10), colour) for colour in ("red", "blue"))
    red.save(folder / "film.gif", save_all=True, append_images=[blue, red], duration=40)
    red.convert("CMYK").save(folder / "press.jpg")
    Image.fromarray(np.arange(200, dtype=np.uint16).reshape(10, 20) * 300).save(folder / "deep.png")
    red.quantize(4).save(folder / "clear.png", transparency=0)
    (folder / "bomb.png").write_bytes(claims(60_000, 60_000))
    (folder / "nothing.jpg").write_bytes(b"")
    report = ingest(index, [folder])
    items = {item.id.removeprefix("odd/"): item for item in index.items()}
    assert set(items) == {*names, "bare.png", "blank.png", "marked.png", "film.gif", "press.jpg", "deep.png", "clear.png"}
    assert items["bare.png"].text is None and items["blank.png"].text is None and items["marked.png"].text == "a red square"
    problems = "\n".join(report.problems)
    for name, why in (
        ("bomb.png", "more than"),
        ("nothing.jpg", "cannot read"),
        ("latin.png", "latin.txt is not UTF-8 text"),
        ("new\\nline.png", "no control characters"),
    ):
        assert any(name in line and why in line for line in report.problems), (name, problems)
    assert report.problems.total == 4 and all("\n" not in line for line in report.problems)
    assert ingest(index, [folder]).unchanged == len(items)
    for name in items:
        assert index.get(f"odd/{name}").id == f"odd/{name}"


def test_tables_with_marks_and_holes(index: Index, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("red"))
    (tmp_path / "b.png").write_bytes(png("blue"))
    rows = "file_name,text,price\na.png,red shoes,3\nb.png,,\nmissing.png,gone,4\n"
    (tmp_path / "marked.csv").write_text(rows, encoding="utf-8-sig")
    holes = {"id": ["p1", None, "p3", "p4"], "text": ["words", "more", None, ""], "price": [1.5, None, 2.0, float("nan")]}
    pq.write_table(pa.table({**holes, "when": [None] * 4}), tmp_path / "holes.parquet")
    report = ingest(index, [tmp_path / "marked.csv", tmp_path / "holes.parquet"])
    found = {item.text: item for item in index.items()}
    assert set(found) == {"red shoes", None, "words", "more"} and found["red shoes"].modality is Modality.PAIR
    assert found["red shoes"].metadata["price"] == 3 and found[None].modality is Modality.IMAGE
    assert found["words"].id == "p1" and "price" not in found["more"].metadata and "when" not in found["words"].metadata
    problems = "\n".join(report.problems)
    assert report.problems.total == 3 and "missing.png" in problems and problems.count("holes.parquet, row") == 2


def test_a_second_run_reads_only_what_changed(index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest(index, [folder])
    before = index.version
    again = ingest(index, [folder])
    assert (again.added, again.replaced, again.unchanged) == (0, 0, 3) and index.version == before
    (folder / "red.txt").write_text("a dark red square")
    (folder / "deep" / "blue.PNG").write_bytes(png("navy") + b"\0")
    (folder / "new.txt").write_text("new")
    changed = ingest(index, [folder])
    assert (changed.added, changed.replaced, changed.unchanged) == (1, 2, 1)
    assert index.get("photos/red.png").text == "a dark red square" and len(index) == 4
    touched = folder / "note.md"
    os.utime(touched, (1, 1))
    assert ingest(index, [folder]).replaced == 1  # by time


def test_by_content_ignores_times(index: Index, folder: Path) -> None:
    config = IngestConfig(by_content=True)
    ingest(index, [folder], config)
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    assert ingest(index, [folder], config).unchanged == 3
    (folder / "note.md").write_text("# b note")
    os.utime(folder / "note.md", (1, 1))
    assert ingest(index, [folder], config).replaced == 1


def test_prune_deletes_what_is_gone_and_only_that(index: Index, folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "rows.jsonl"
    table.write_text('{"id": "r1", "text": "one"}\n{"id": "r2", "text": "two"}\n')
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.txt").write_text("x")
    ingest(index, [folder, table, other])
    assert len(index) == 6
    (folder / "note.md").unlink()
    table.write_text('{"id": "r1", "text": "one"}\n')
    assert ingest(index, [folder, table]).deleted == 0 and len(index) == 6
    report = ingest(index, [folder, table], IngestConfig(prune=True))
    assert report.deleted == 2 and {"photos/note.md", "r2"} & {i.id for i in index.items()} == set()
    assert "other/x.txt" in index  # its folder was not named this time
    table.write_text("{broken\n")
    kept = ingest(index, [table], IngestConfig(prune=True))
    assert kept.deleted == 0 and "r1" in index and len(kept.problems) == 1  # an unreadable row may be that item


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_list_of_strings_in_a_table_is_a_list_that_a_filter_searches(index: Index, tmp_path: Path, suffix: str) -> None:
    index.add([Item("old", text="a list that an earlier run stored as text", metadata={"kept": '["x"]'})])
    rows = [
        {"id": "a", "text": "one", "tags": ["sea", "sun"], "sizes": [1, 2], "kept": ["y"]},
        {"id": "b", "text": "two", "tags": [], "sizes": [], "kept": []},
        {"id": "c", "text": "three", "tags": ["sun"], "sizes": [3], "kept": ["z", "é"]},
    ]
    path = tmp_path / f"rows.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    assert ingest(index, [path]).problems == []
    assert index.columns()["tags"] == "texts"
    assert {hit.id for hit in index.search("one", target="text", where="has(tags, 'sun')")} == {"a", "c"}
    assert index.get("b").metadata == {"tags": [], "sizes": "[]", "kept": "[]"}
    assert index.get("c").metadata == {"tags": ["sun"], "sizes": "[3]", "kept": '["z", "é"]'}
    again = tmp_path / "again.jsonl"
    again.write_text('{"id": "d", "text": "four", "tags": ["rain"]}\n{"id": "e", "text": "five", "tags": "rain"}\n')
    report = ingest(index, [again])
    assert report.added == 1
    (problem,) = report.problems
    assert "'tags' is a list of texts, not 'rain'" in problem


def test_jsonl_rows_with_images_texts_and_metadata(index: Index, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(png("red"))
    rows = [
        {"id": "a", "text": "one", "price": 3, "tags": ["x", "y"], "big": 2**60, "none": None},
        {"id": "b", "image": "red.png", "caption": "ignored as text? no: metadata", "price": 4.5},
        {"id": "c", "image": "missing.png"},
        {"id": "d", "image": "https://example.com/x.png"},
        {"id": "e", "image": "data:image/png;base64," + base64.b64encode(png("blue")).decode()},
        {"text": "no id"},
        {"id": "g", "price": 1},
        {"id": "a", "text": "twice"},
        {"id": 7, "text": "a number as id"},
        {"id": "h", "text": "price of another kind", "price": "cheap"},
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\nnot json\n[1]\n", encoding="utf-8")
    report = ingest(index, [path])
    items = {item.id: item for item in index.items()}
    assert set(items) == {"a", "b", "e", "data.jsonl#6", "7"}
    assert items["a"].metadata == {"price": 3, "tags": ["x", "y"], "big": str(2**60)}
    assert items["b"].modality is Modality.PAIR and items["e"].image == png("blue")
    problems = "\n".join(report.problems)
    for part in (
        "row 3: no such image",
        "is not fetched",
        "row 7: ",
        "came before",
        "cheap",
        "row 11: not JSON",
        "row 12: not a JSON object",
    ):
        assert part in problems
    assert index.count("price > 3.5") == 1
    rows[0]["price"] = 30
    path.write_text("\n".join(json.dumps(row) for row in rows))
    again = ingest(index, [path])
    assert (again.replaced, again.unchanged) == (1, 4) and index.get("a").metadata["price"] == 30


def test_csv_columns_get_one_kind_each(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sku", "title", "Unit price (EUR)", "code", "sold", "mixed", "2nd"])
        writer.writerow(["s1", "red, round", "3.50", "007", "true", "1", "x"])
        writer.writerow(["s2", 'say "hi"', "4", "008", "False", "one", ""])
        writer.writerow(["s3", "", "5", "009", "true", "2", "y"])
    report = ingest(index, [path], IngestConfig(columns=TableColumns(id="sku")))
    assert report.added == 2 and "row 3" in report.problems[0]
    assert index.columns() == {"Unit_price_EUR": "number", "code": "text", "sold": "boolean", "mixed": "text", "c_2nd": "text"}
    assert index.get("s1").metadata == {"Unit_price_EUR": 3.5, "code": "007", "sold": True, "mixed": "1", "c_2nd": "x"}
    assert index.get("s2").text == 'say "hi"' and "c_2nd" not in index.get("s2").metadata
    wrong = ingest(index, [path], IngestConfig(columns=TableColumns(id="sku", text="words")))
    assert wrong.added == 0 and "no text column 'words'; there are" in wrong.problems[0]


def test_parquet_with_picture_bytes(index: Index, tmp_path: Path) -> None:
    pictures = [{"bytes": png("red"), "path": None}, {"bytes": png("blue"), "path": "x.png"}, None]
    table = pa.table({"image": pictures, "text": ["red", None, "words only"], "n": pa.array([1, 2, 3], pa.int32())})
    pq.write_table(table, tmp_path / "data.parquet")
    assert ingest(index, [tmp_path / "data.parquet"]).added == 3
    assert [index.get(f"data.parquet#{i}").modality.label for i in (1, 2, 3)] == ["pair", "image", "text"]
    assert index.get("data.parquet#2").image == png("blue") and index.count("n >= 2") == 2
    assert ingest(index, [tmp_path / "data.parquet"]).unchanged == 3
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    assert "cannot read" in ingest(index, [tmp_path / "bad.parquet"]).problems[0]


def test_paths_that_cannot_be_indexed_are_errors(index: Index, tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"0")
    for paths, message in (
        ([], "name at least one"),
        ([tmp_path / "no"], "no such file"),
        ([tmp_path / "a.mp4"], "cannot index .mp4"),
    ):
        with pytest.raises(GeniusError, match=message):
            ingest(index, paths)


# -- the command line ------------------------------------------------------------------------------------------


def genius(*args: object) -> Result:
    return runner.invoke(app, [str(arg) for arg in args])


def as_json(*args: object, status: int = 0) -> dict[str, object]:
    result = genius(*args, "--json")
    assert result.exit_code == status, result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_one_bad_cell_does_not_turn_a_column_into_text(folder: Path, model_folder: Path, tmp_path: Path) -> None:
    """The worst place for it is the first row. A row that is skipped anyway (no text) has no say."""
    cells = ["cheap", *map(str, range(10, 30))]
    lines = ["id,text,price", *(f"c{i},thing {i},{cell}" for i, cell in enumerate(cells)), "c98,,expensive", "c99,,dear"]
    (tmp_path / "shop.csv").write_text("\n".join(lines))
    rows = [{"id": f"j{i}", "text": f"thing {i}", "price": 40 + i} for i in range(6)]
    rows[0]["price"] = "x"
    (tmp_path / "shop.jsonl").write_text("\n".join(map(json.dumps, rows)))
    path = tmp_path / "my.genius"
    for source, added, skipped in ((tmp_path / "shop.jsonl", 5, 1), (tmp_path / "shop.csv", 20, 3)):
        done = as_json("index", source, "-o", path, "--model", model_folder, status=1)
        assert (done["added"], done["skipped"]) == (added, skipped), done
        assert f"{source.name}, row 1: the column 'price' is a number, not" in str(done["problems"])
        assert "--as-text price" in str(done["problems"])
    hits = as_json("search", path, "--text", "thing", "--target", "text", "--where", "price < 12", "-k", 9)["hits"]
    assert {hit["id"] for hit in hits} == {"c1", "c2"}  # type: ignore[attr-defined, index]
    again = as_json("index", tmp_path / "shop.csv", "-o", path, status=1)
    assert again["unchanged"] == 20
    (tmp_path / "sizes.csv").write_text("id,text,size\n" + "\n".join(f"s{i},shoe,{i}" for i in range(36, 45)) + "\ns45,shirt,XL")
    sizes = as_json("index", tmp_path / "sizes.csv", "-o", path, "--as-text", "size")
    assert sizes["added"] == 10
    with Index.open(path) as index:
        assert index.columns() == {"price": "number", "size": "text"} and index.get("s36").metadata["size"] == "36"


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2", "x"], "text"),  # too few to tell
        (["1", "2", "3", "4", "x"], "number"),
        (["1"] * 8 + ["x", "y"], "text"),
        (["1"] * 38 + ["x", "y"], "number"),
        (["1"] * 37 + ["x", "y"], "text"),  # 94.9 %
        (["true"] * 9 + ["1"], "boolean"),
        (["a"] * 9 + ["1"], "text"),
    ],
)
def test_the_type_of_a_csv_column(cells: list[str], expected: str) -> None:
    types = ColumnTypes(TableColumns(), True, {}, ())
    for cell in cells:
        types.add({"text": "t", "n": cell})
    assert types.decide() == ({"text": "text", "n": expected}, {"n": expected})


def test_a_csv_column_is_read_as_the_index_has_it(index: Index, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text,code\na,x,A7\n")
    (tmp_path / "b.csv").write_text("id,text,code\nb,x,12\n")
    assert ingest(index, [tmp_path / "a.csv"]).added == 1
    assert ingest(index, [tmp_path / "b.csv"]).added == 1
    assert index.get("b").metadata == {"code": "12"}


def test_ids_are_never_skipped_for_their_type(index: Index, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n" + "\n".join(f"{i},{i}" for i in range(30)) + "\nA1,words\n")
    report = ingest(index, [tmp_path / "a.csv"])
    assert (report.added, report.problems.total) == (31, 0) and index.get("A1").text == "words"


def test_undelete_and_exif_are_two_options(folder: Path, model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.genius"
    as_json("index", folder, "-o", path, "--model", model_folder, status=1)
    genius("delete", path, "photos/note.md")
    assert as_json("index", folder, "-o", path, "--exif", status=1)["left_deleted"] == 1
    assert as_json("index", folder, "-o", path, "--undelete", status=1)["added"] == 1


def test_the_commands_work_together(folder: Path, model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.genius"
    built = as_json("index", folder, "-o", path, "--model", model_folder, status=1)  # something was skipped
    assert built["added"] == 3 and built["skipped"] == 3 and built["items"] == 3 and built["ignored"] == {".mp4": 1}
    assert as_json("index", folder, "-o", path, status=1)["unchanged"] == 3  # the model is remembered
    about = as_json("info", path, "--versions")
    assert about["items"] == 3 and about["modalities"] == {"image": 1, "text": 1, "pair": 1} and about["versions"]
    hits = as_json("search", path, "--text", "a red square", "--target", "pair", "-k", 5)["hits"]
    assert [hit["id"] for hit in hits] == ["photos/red.png"]  # type: ignore[index, attr-defined]
    assert set(hits[0]) == {"id", "score", "probability", "codes", "modality", "text", "image", "metadata"}  # type: ignore[index]
    by_image = as_json("search", path, "--image", folder / "deep" / "blue.PNG", "-k", 1)["hits"]
    assert by_image[0]["id"] == "photos/deep/blue.PNG"  # type: ignore[index]
    assert as_json("search", path, "--text", "x", "--where", "id = 'photos/note.md'")["hits"][0]["id"] == "photos/note.md"  # type: ignore[index]
    (explained,) = as_json("explain", path, "--id", "photos/note.md")["results"]  # type: ignore[misc]
    codes = explained["codes"]  # type: ignore[has-type]
    assert len(explained["path"]) == 4 and explained["path"][0]["prefix"] == codes[:1]  # type: ignore[has-type]
    under = as_json("explain", path, "--prefix", ",".join(map(str, codes[:2])))
    assert under["count"] == 1 and under["items"][0]["id"] == "photos/note.md"  # type: ignore[index]
    found = as_json("explain", path, "a red square", "--target", "pair", "-k", 1)
    assert found["answers"][0]["id"] == "photos/red.png" and found["traces"][0]["tree"][0]["prefix"] == [2]  # type: ignore[index]
    assert as_json("delete", path, "photos/note.md") == {"deleted": 1, "items": 2}
    assert as_json("delete", path, "--where", "modality = 'image'") == {"deleted": 1, "items": 1}
    assert set(as_json("optimize", path)) == {"bytes_before", "bytes_after"}
    old = [v["version"] for v in about["versions"] if v["items"] == 3][0]  # type: ignore[attr-defined]  # noqa: RUF015
    assert len(as_json("search", path, "x", "--target", "any", "--version", old)["hits"]) == 3  # type: ignore[arg-type]


def test_people_get_readable_answers(folder: Path, model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.genius"
    built = genius("index", folder, "-o", path, "--model", model_folder)
    assert built.exit_code == 1 and f"{path}: 3 items" in built.stdout
    assert "3 entries skipped: correct what is named above and run the same command again" in built.stderr
    assert "3 added" in built.stderr and "skipped photos/broken.jpg" in built.stderr and ".mp4 (1)" in built.stderr
    found = genius("search", path, "--text", "a red square")
    assert found.exit_code == 0 and "photos/red.png  a red square" in found.stdout
    assert "nothing found" in genius("search", path, "--text", "a", "--where", "id = 'x'").stdout
    assert "ID 1 " in genius("explain", path, "--id", "photos/note.md").stdout
    told = genius("explain", path, "--text", "a red square", "-k", 1).stdout
    assert "plan: flat (" in told and "target: image" in told and "* " in told and "log-probabilities given" in told
    assert "items under everything" in genius("explain", path, "--prefix", "").stdout
    assert "3 items (1 image, 1 text, 1 pair)" in genius("info", path).stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["search", "{path}"], "the query is empty"),
        (["search", "{path}", "--text", "  "], "the query is empty"),
        (["search", "{path}", "--text", "a", "-k", "0"], "k must be"),
        (["search", "{path}", "--text", "a", "--where", "nope = 1"], "unknown column 'nope'"),
        (["search", "{path}", "--text", "a", "--target", "film"], "unknown modality"),
        (["search", "{path}", "--image", "nowhere.png"], "no such image"),
        (["search", "nowhere.genius", "--text", "a"], "no index at nowhere.genius"),
        (["info", "nowhere.genius"], "no index at nowhere.genius"),
        (["index", "nowhere", "-o", "{path}"], "no such file or folder: nowhere"),
        (["delete", "{path}", "nope"], "no item 'nope'"),
        (["delete", "{path}"], "give ids to delete"),
        (["explain", "{path}"], "explain a query"),
        (["explain", "{path}", "--prefix", "a,b"], "codes with commas"),
        (["explain", "{path}", "--prefix", "9"], "not in 0..2"),
        (["search", "{path}", "--text", "a", "--model", "nowhere"], "no such model"),
    ],
)
def test_bad_calls_end_with_one_line_and_status_2(
    model: Genius, model_folder: Path, tmp_path: Path, args: list[str], message: str
) -> None:
    path = tmp_path / "my.genius"
    Index(path, str(model_folder))
    result = genius(*(arg.format(path=path) for arg in args))
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("genius: ") and message in result.stderr and result.stderr.count("\n") == 1
