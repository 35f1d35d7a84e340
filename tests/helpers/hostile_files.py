"""A folder from a stranger: every kind of file that `genius index` may meet, with good ones in between.

`write_all(folder)` makes it and says what must become of each file; `judge` looks whether it did.
"""

from __future__ import annotations

import datetime
import io
import json
import os
import socket
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hostile_pictures import Fate, Kind, picture, pictures, saved

NEIGHBOURS = 12  # good items among the bad ones


def texts() -> Iterator[Kind]:
    yield "fine.txt", b"a plain sentence", "indexed"
    yield "fine-bom.txt", b"\xef\xbb\xbfa sentence after a mark", "indexed"
    yield "fine-crlf.md", b"# a title\r\n\r\nand words\r\n", "indexed"
    yield "fine-emoji.txt", "🙂 a face, and ﷽ and Z̸a̸l̸g̸o̸".encode(), "indexed"
    yield "nul.txt", b"words\0and more", "either"
    yield "control.txt", bytes(range(1, 32)) + b" words", "either"
    yield "empty.txt", b"", "refused"
    yield "blank.txt", b" \n\t\r\n ", "refused"
    yield "latin.txt", "Müller".encode("latin-1"), "refused"
    yield "utf-16.txt", "words".encode("utf-16"), "refused"
    yield "surrogate.txt", b"lone \xed\xa0\x80 surrogate", "refused"
    yield "overlong.txt", b"\xc0\xaf overlong", "refused"
    yield "large.txt", b"word " * 400_000, "refused"
    yield "one-line.txt", b"x" * 999_000, "indexed"
    yield "punctuation.txt", b"... !!! ???", "either"
    yield "no-words.rst", b"=====\n", "either"


def lines() -> Iterator[Kind]:
    def jsonl(*rows: Any) -> bytes:
        return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)

    good = {"id": "good-{}", "text": "a good row"}

    def among(name: str, *bad: Any, fate: Fate = "refused") -> Kind:
        first, last = ({**good, "id": f"{name} {n}"} for n in (1, 2))
        return f"{name}.jsonl", jsonl(first, *bad, last), fate

    yield "fine.jsonl", jsonl({"id": "fine-jsonl", "text": "a row"}), "indexed"
    yield among("deep", b'{"id": "deep x", "text": "t", "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}")
    yield among("deep-object", b'{"id": "deep-object x", "x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}")
    yield among("broken", b"{", b'{"id": 1,}', b"nonsense", b"[1, 2]", b"null", b'"text"')
    yield among("surrogate", b'{"id": "\\ud800", "text": "t"}')
    yield among("surrogate-text", b'{"id": "surrogate-text x", "text": "\\ud800"}')
    yield among("surrogate-metadata", b'{"id": "surrogate-metadata x", "text": "t", "note": "\\udfff"}')
    yield among("surrogate-key", b'{"id": "surrogate-key x", "text": "t", "\\ud800": 1}', fate="either")
    yield among("numbers", b'{"id": "numbers x", "text": "t", "n": 1e999, "m": -1e999, "k": NaN}', fate="either")
    yield among("long-number", b'{"id": "long-number x", "text": "t", "n": ' + b"9" * 5000 + b"}", fate="either")
    yield among("ids", {"id": ["a"], "text": "t"}, {"id": {"a": 1}, "text": "t"}, {"id": 1.5, "text": "t"}, fate="either")
    yield among("long-id", {"id": "long-id " + "x" * 100_000, "text": "t"})
    yield among("control-id", {"id": "control-id \n\0c", "text": "t"})
    yield among("twice", {"id": "twice 1", "text": "again"})
    yield among("nothing", {"id": "nothing x"}, {"id": "nothing y", "text": ""}, {})
    yield among("types", {"id": "types x", "text": 5}, {"id": "types y", "text": [1]}, {"id": "types z", "image": 7})
    yield among("no-image", {"id": "no-image x", "image": "nowhere.png"})
    yield among("link-image", {"id": "link-image x", "image": "http://localhost/x.png"})
    yield among("data-image", {"id": "data-image x", "image": "data:image/png;base64,!!!"})
    yield among("outside-image", {"id": "outside-image x", "image": "../../../../../../etc/hostname"})
    yield among("folder-image", {"id": "folder-image x", "image": "."})
    yield among("nul-image", {"id": "nul-image x", "image": "a\0b.png"})
    odd = {"": 1, "_seq": 2, "ключ": 3, "a b": 4, "SELECT": 5, "k" * 500: 6}
    yield among("keys", {"id": "keys x", "text": "t", **odd}, fate="either")
    yield among("many-keys", {"id": "many-keys x", "text": "t", **{f"key{n}": n for n in range(400)}}, fate="either")
    yield among("kinds", *({"id": f"kinds {kind}", "text": "t", "price": kind} for kind in (3, "cheap", True)), fate="either")
    yield among("latin", b'{"id": "latin x", "text": "M\xfcller"}')
    yield "bom.jsonl", b"\xef\xbb\xbf" + jsonl({"id": "bom", "text": "after a mark"}), "indexed"
    yield "utf-16.jsonl", jsonl({"id": "u", "text": "t"}).decode().encode("utf-16"), "refused"
    yield "cut.jsonl", jsonl({"id": "cut 1", "text": "t"}, {"id": "cut 2", "text": "t"})[:-9], "refused"
    yield "empty.jsonl", b"", "either"
    yield "zeros.ndjson", bytes(5000), "refused"
    yield "one-line.jsonl", b'{"id": "long", "text": "' + b"x" * 30_000_000, "refused"


def sheets() -> Iterator[Kind]:
    yield "fine.csv", b"id,text,price\nfine-csv,a row,3\n", "indexed"
    yield "fine.tsv", b"id\ttext\nfine-tsv\ta row\n", "indexed"
    yield "quotes.csv", b'id,text\nquotes 1,"never closed\nquotes 2,row\n', "either"
    yield "columns.csv", b"id,text\ncolumns 1,a,b,c,d\ncolumns 2\ncolumns 3,row\n", "either"
    yield "nul.csv", b"id,text\nnul 1,a\0b\nnul 2,row\n", "either"
    yield "latin.csv", "id,text\nlatin 1,Müller\n".encode("latin-1"), "refused"
    yield "utf-16.csv", "id,text\nu,row\n".encode("utf-16"), "refused"
    yield "empty.csv", b"", "either"
    yield "header.csv", b"id,text\n", "either"
    yield "no-text.csv", b"a,b\n1,2\n3,4\n", "refused"
    yield "same-names.csv", b"id,text,text,id\nsame-names 1,a,b,same-names 2\n", "either"
    yield "large-cell.csv", b"id,text\nlarge-cell," + b"x" * 11_000_000 + b"\n", "refused"
    wide = ",".join(["id", "text", *(f"c{n}" for n in range(3000))])
    yield "wide.csv", wide.encode() + b"\nwide 1,row" + b",1" * 3000 + b"\n", "either"
    yield "semicolons.csv", b"id;text\nsemi;row\n", "refused"
    yield "formula.csv", b'id,text,note\nformula,"=cmd|calc!A1","@SUM(1)"\n', "indexed"
    yield "numbers.csv", b"id,text,n\nnumbers 1,row,1e99\nnumbers 2,row,99999999999999999999\nnumbers 3,row,-0\n", "either"


def parquets() -> Iterator[Kind]:
    def table(name: str, fate: Fate = "indexed", **columns: Any) -> Kind:
        count = max((len(column) for column in columns.values()), default=1)
        ids = pa.array([f"{name} {n}" for n in range(count)])
        buffer = io.BytesIO()
        pq.write_table(pa.table({"id": ids, "text": pa.array(["a row"] * count), **columns}), buffer)
        return f"{name}.parquet", buffer.getvalue(), fate

    far = 2**62
    yield table("plain", price=pa.array([1.5, None]))
    for unit in ("s", "ms", "us", "ns"):
        some = far // 1000 if unit == "s" else far  # Parquet keeps seconds as milliseconds
        yield table(f"timestamp-{unit}", "either", at=pa.array([some, 0], pa.int64()).cast(pa.timestamp(unit)))
        yield table(f"duration-{unit}", "either", took=pa.array([some, 0], pa.int64()).cast(pa.duration(unit)))
    yield table("zone", "either", at=pa.array([0, 1], pa.timestamp("us", tz="Nowhere/Land")))
    yield table("date32", "either", on=pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32()))
    yield table("date64", "either", on=pa.array([far // 86_400_000 * 86_400_000, 0], pa.int64()).cast(pa.date64()))
    yield table("time64", at=pa.array([datetime.time(1, 2, 3)], pa.time64("us")))
    yield table("decimal", price=pa.array([Decimal("1" * 38)], pa.decimal128(38)))
    yield table("nested", "either", deep=pa.array([[[[1, 2], None]], None]))
    yield table("struct", "either", about=pa.array([{"a": {"b": "\x00"}}, None]))
    yield table("map", "either", about=pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())))
    yield table("unsigned", n=pa.array([2**64 - 1, 0], pa.uint64()))
    yield table("float", n=pa.array([float("nan"), float("inf"), -float("inf"), 1e308]))
    yield table("null", n=pa.nulls(2))
    yield table("binary", raw=pa.array([b"\xff\x00", None]))
    yield table("image", image=pa.array([saved(picture(), "PNG"), None]))
    yield table("bad-image", "refused", image=pa.array([b"no picture", saved(picture(), "PNG")]))
    yield table("struct-image", image=pa.array([{"bytes": saved(picture(), "PNG"), "path": None}]))
    yield table("dictionary", kind=pa.array(["a", "b"]).dictionary_encode())
    yield table("half", n=pa.array([1.0, 2.0], pa.float16()))
    buffer = io.BytesIO()
    pq.write_table(pa.table({"number": pa.array(range(3000))}), buffer)
    yield "no-text.parquet", buffer.getvalue(), "refused"
    good = table("cut")[1]
    yield "cut.parquet", good[: len(good) // 2], "refused"
    yield "head.parquet", b"PAR1", "refused"
    yield "empty.parquet", b"", "refused"
    yield "garbage.parquet", b"PAR1" + bytes(range(256)) * 8 + b"\xff\xff\xff\x7fPAR1", "refused"
    damaged = bytearray(table("damaged")[1])
    for position in range(len(damaged) - 300, len(damaged) - 12, 7):
        damaged[position] ^= 0x55
    yield "damaged.parquet", bytes(damaged), "either"


def names() -> Iterator[Kind]:
    """Names that trip up programs: spaces, quotes, bytes that are no text."""
    data = saved(picture(), "PNG")
    for name in ("-rf.png", "a b.png", "quote'\".png", "🙂.png", "%2e%2e.png", "a;b&c.png", "x" * 240 + ".png", "UPPER.PNG"):
        yield name, data, "indexed"
    yield "line\nbreak.png", data, "refused"
    yield os.fsdecode(b"\xff\xfe.png"), data, "refused"


def kinds() -> dict[str, tuple[bytes, Fate]]:
    """File name -> (content, fate). All names differ."""
    found: dict[str, tuple[bytes, Fate]] = {}
    for make in (pictures, texts, lines, sheets, parquets, names):
        for name, data, fate in make():
            found[f"{make.__name__}/{name}"] = (data, fate)
    return found


def write_all(folder: Path, only: set[str] | None = None) -> dict[str, Fate]:
    """Write every kind (or only some), things that are no files, and good neighbours before, between and after. Returns
    the fate of each, by its path below `folder`."""
    fates: dict[str, Fate] = {}
    for name, (data, fate) in kinds().items():
        if only is None or name in only:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            fates[name] = fate
    for n in range(NEIGHBOURS):
        name = f"{('', 'lines/', 'pictures/', 'zz/')[n % 4]}neighbour {n:02d}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(saved(picture(40 + n, 40), "PNG"))
        fates[name] = "indexed"
    _no_files(folder / "things")
    return fates


def _no_files(folder: Path) -> None:
    """Things that are called like pictures and are none: to be passed over."""
    folder.mkdir()
    (folder / "folder.png").mkdir()
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "dangling.png").symlink_to("nowhere.png")
    (folder / "around").symlink_to(folder)
    os.mkfifo(folder / "pipe.png")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(folder)  # an address has room for a hundred characters
        try:
            listener.bind("socket.png")
        finally:
            os.chdir(here)


def judge(fates: dict[str, Fate], ids: set[str], problems: list[str], root: str) -> list[str]:
    """What went wrong: good files that are missing, bad ones that nobody mentions. `root` begins the ids of files."""
    wrong = []
    for name, fate in fates.items():
        stem, suffix = Path(name).stem, Path(name).suffix
        mentions = {name, name.replace("\n", " "), repr(name)[1:-1], ascii(name)[1:-1]}
        if suffix in (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet"):  # rows have ids that begin like their file
            indexed = any(item_id.startswith((stem, f"{root}/{name}#")) for item_id in ids)
            mentions.add(f"{stem} ")
        else:
            indexed = f"{root}/{name}" in ids
        shown = name.replace("\n", " ")
        named = any(part in line for line in problems for part in mentions)
        if fate == "indexed" and not indexed:
            wrong.append(f"{shown}: not indexed")
        elif fate == "refused" and not named:
            wrong.append(f"{shown}: not named")
        elif not indexed and not named and Path(name).stem not in ("empty", "header"):  # a table without rows is no problem
            wrong.append(f"{shown}: neither indexed nor named")
    return wrong
