"""Coverage-guided fuzzing of what strangers hand in: conditions, JSONL, CSV, Parquet, files of torch.save.

    pip install 'genius-search[fuzz]'
    python benchmarks/fuzz.py [--seconds 600] [--only filters] [--out benchmarks/fuzz.json]

Each target runs in a process of its own under atheris (libFuzzer), which mutates inputs towards new paths through the code.
Anything that escapes other than a `GeniusError`, a crash, more than 10 s for one input, or 2 GB of memory counts as a find.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

WORDS = [
    *("AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ILIKE", "BETWEEN", "TRUE", "FALSE", "price", "shop", "sold", "id", "text"),
    *("lower(", "upper(", "length(", "starts_with(", "ends_with(", "contains(", "modality"),
]
SIGNS = [
    "<",
    "<=",
    ">",
    ">=",
    "=",
    "!=",
    "<>",
    "(",
    ")",
    ",",
    "'",
    "''",
    '"',
    "`",
    "%",
    "_",
    "-",
    "+",
    "1e308",
    "0.5",
    ";",
    "--",
    "\\",
]


# -- targets: bytes in, nothing or GeniusError out -----------------------------------------------------------------


def filters() -> tuple[Callable[[bytes], None], list[bytes]]:
    """A condition is refused in one line, or the database takes it."""
    from fake_encoder import fake_model

    from genius import GeniusError, Index, Item
    from genius.index.filters import compile_where

    folder = tempfile.mkdtemp()
    index = Index(f"{folder}/i.genius", fake_model(), durable=False)
    index.add([Item(f"t{i}", text=f"t{i}", metadata={"price": i, "shop": f"s{i}", "sold": bool(i % 2)}) for i in range(5)])
    columns = index._state.reader().columns

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
    from genius.index.tables import Columns, to_item

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
                    to_item(row, Columns(), path.parent, f"#{number}")
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

    from genius.plain_pickle import Refused, Unknown, load

    def target(body: bytes) -> None:
        with contextlib.suppress(Refused):
            load(body, lambda name, arguments: Unknown(), lambda reference: None, 20_000)

    return target, [pickle.dumps({"a": [1, (2.5, "x")], "b": {3: None}}, 2), pickle.dumps([b"x", {1}, 2**70], 5)]


TARGETS: dict[str, Callable[[], tuple[Callable[[bytes], None], list[bytes]]]] = {
    "filters": filters,
    "jsonl": jsonl,
    "csv": csv,
    "parquet": parquet,
    "checkpoint": checkpoint,
    "pickles": pickles,
}


# -- running -----------------------------------------------------------------------------------------------------------


def fuzz(name: str, seconds: int, folder: Path) -> None:
    """In a process of its own; does not return."""
    import atheris

    with atheris.instrument_imports(
        include=[
            "genius.index.filters",
            "genius.index.tables",
            "genius.data.readers",
            "genius.plain_pickle",
            "genius.torch_file",
            "genius.files",
        ]
    ):
        import genius.data.readers
        import genius.index.filters
        import genius.index.tables
        import genius.torch_file  # noqa: F401
    target, seeds = TARGETS[name]()
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    quoted = [json.dumps(word).replace("\\", "\\\\") if word == "\\" else json.dumps(word) for word in (*WORDS, *SIGNS)]
    (folder / "words").write_text("\n".join(quoted) + "\n")
    limits = [
        f"-max_total_time={seconds}",
        "-max_len=8192",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={folder}/find-",
    ]
    if name in ("filters", "jsonl", "csv"):
        limits.append(f"-dict={folder}/words")
    atheris.Setup([sys.argv[0], str(corpus), *limits], target)
    atheris.Fuzz()


def run(name: str, seconds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, __file__, "--inside", name, "--seconds", str(seconds), "--folder", scratch]
        begin = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        log = done.stderr
        finds = sorted(Path(scratch).glob("find-*"))
        kept = [{"input": finds[0].read_bytes()[:400].hex(), "tail": log[-1500:]}] if finds or done.returncode else []
        numbers = {key: int(value) for key, value in re.findall(r"stat::(\w+):\s+(\d+)", log)}
        coverage = re.findall(r"cov: (\d+)", log)
        return {
            "seconds": round(time.perf_counter() - begin),
            "inputs": numbers.get("number_of_executed_units", 0),
            "edges covered": int(coverage[-1]) if coverage else 0,
            "inputs that reached something new": numbers.get("new_units_added", 0),
            "slowest input, seconds": numbers.get("slowest_unit_time_sec", 0),
            "peak megabytes": numbers.get("peak_rss_mb", 0),
            "finds": kept,
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--inside", choices=TARGETS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.inside:
        fuzz(args.inside, args.seconds, args.folder)
        return
    import index_data as data

    names = [args.only] if args.only else list(TARGETS)
    body: dict[str, Any] = {**data.environment(), "seconds each": args.seconds}
    for name in names:
        body[name] = run(name, args.seconds)
        print(f"{name}: {body[name]}", file=sys.stderr, flush=True)
    text = json.dumps(body, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    if any(body[name]["finds"] for name in names):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
