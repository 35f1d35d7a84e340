"""Targets of `test_fuzz`: conditions, JSONL, CSV, Parquet, files of torch.save. Bytes in, nothing or `GeniusError` out."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = (
    "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ILIKE", "BETWEEN", "TRUE", "FALSE", "price", "shop", "sold", "id", "text",
    "lower(", "upper(", "length(", "starts_with(", "ends_with(", "contains(", "modality", "<", "<=", ">", ">=", "=", "!=", "<>",
    "(", ")", ",", "'", "''", '"', "`", "%", "_", "-", "+", "1e308", "0.5", ";", "--", "\\",
)  # fmt: skip


def filters() -> tuple[Callable[[bytes], None], list[bytes]]:
    """A condition is refused in one line, or the database takes it."""
    from fake_encoder import fake_model

    from genius import GeniusError, Index, Item
    from genius.index.filters import compile_where

    folder = tempfile.mkdtemp()
    index = Index(f"{folder}/i.genius", fake_model(), durable=False)
    index.add([Item(f"t{i}", text=f"t{i}", metadata={"price": i, "shop": f"s{i}", "sold": bool(i % 2)}) for i in range(5)])
    columns = index.reader().columns

    def target(body: bytes) -> None:
        where = body.decode("utf-8", "surrogateescape")
        try:
            compile_where(where, columns)
        except GeniusError as error:
            assert "\n" not in str(error)
            return
        index.count(where)

    return target, [
        b"price < 50 AND shop IN ('a', 'b''s')",
        b"NOT (sold OR lower(shop) LIKE '%x_') AND price BETWEEN 1 AND 2",
        b"id IS NOT NULL",
    ]


def _table(suffix: str) -> Callable[[bytes], None]:
    from genius import GeniusError
    from genius.data.readers import read_rows
    from genius.index.metadata import TableColumns, item_of_table_row

    path = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)) / f"a{suffix}"

    def target(body: bytes) -> None:
        path.write_bytes(body)
        try:
            for number, row in read_rows(path):
                if number > 500:
                    return
                if isinstance(row, str):
                    continue
                # `ingest` makes a line of each of these
                with contextlib.suppress(GeniusError, ValueError, TypeError, ArithmeticError, RecursionError):
                    item_of_table_row(row, TableColumns(), path.parent, f"#{number}")
        except GeniusError as error:
            assert "\n" not in str(error)

    return target


def jsonl() -> tuple[Callable[[bytes], None], list[bytes]]:
    rows = [
        {"id": "a", "text": "x", "n": 1, "l": [1, {"a": None}]},
        {"image": {"bytes": None, "path": "a.png"}},
        {"image": "data:image/png;base64,AAAA"},
    ]
    return _table(".jsonl"), ["\n".join(map(json.dumps, rows)).encode(), b"\xef\xbb\xbf[1]\n{}\n\xff"]


def csv() -> tuple[Callable[[bytes], None], list[bytes]]:
    return _table(".csv"), [b'id,text,"a b"\n1,"x ""y""",true\n007,"two\nlines",1.5e3\n', b"a,a,\n1,2,3,4\n"]


def parquet() -> tuple[Callable[[bytes], None], list[bytes]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def body(table: Any, **options: Any) -> bytes:
        out = io.BytesIO()
        pq.write_table(table, out, **options)
        return out.getvalue()

    plain = pa.table({"id": ["a", "b"], "text": ["x", None], "n": [1, 2]})
    rich = pa.table(
        {
            "image": [{"bytes": b"x", "path": "p"}, None],
            "when": pa.array([1, 2], pa.timestamp("us")),
            "day": pa.array([1, None], pa.date32()),
            "lists": [[1, 2], []],
            "money": pa.array([1, 2], pa.decimal128(9, 2)),
        }
    )
    kinds = [body(plain), body(rich, compression="NONE"), body(plain, compression="zstd", use_dictionary=False)]
    return _table(".parquet"), kinds


def checkpoint() -> tuple[Callable[[bytes], None], list[bytes]]:
    import torch

    from genius import GeniusError
    from genius.torch_file import read_torch_file

    path = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)) / "a.pth"

    def target(body: bytes) -> None:
        path.write_bytes(body)
        try:
            read_torch_file(path)
        except GeniusError as error:
            assert "\n" not in str(error)

    seeds = []
    for content in ({"model": {"a": torch.arange(4.0)}}, {"x": [1, (2, "y")], "b": torch.tensor([True])}):
        out = io.BytesIO()
        torch.save(content, out)
        seeds.append(out.getvalue())
    return target, seeds


def pickles() -> tuple[Callable[[bytes], None], list[bytes]]:
    import pickle

    from hostile_archives import archive

    from genius import GeniusError
    from genius.torch_file import read_torch_file

    path = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)) / "a.pth"

    def target(body: bytes) -> None:
        with contextlib.suppress(GeniusError):
            read_torch_file(archive(path, body))

    return target, [pickle.dumps({"a": [1, (2.5, "x")], "b": {3: None}}, 2), pickle.dumps([b"x", {1}, 2**70], 5)]


TARGETS = {"filters": filters, "jsonl": jsonl, "csv": csv, "parquet": parquet, "checkpoint": checkpoint, "pickles": pickles}
