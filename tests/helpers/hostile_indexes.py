"""Index folders that somebody else made, to do harm: what each tries, and how to make it out of a good one.

Around the index lies a home with things that must stay as they are, and a secret that must not be read.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa

from genius.index.folder import about_of, open_store, write_about
from genius.index.ledger import Ledger, _line, seal
from genius.index.paths import OWN
from genius.index.reader import good_rows, resealed
from genius.index.store import Store

SECRET = "the secret of the house"
HALF = np.float16(0.5)


@dataclass(frozen=True)
class Hostile:
    """`make(home, index)` turns the good index at `home/x.genius` into a hostile one. `opens`: it may be answered from."""

    name: str
    make: Callable[[Path, Path], None]
    opens: bool = False


def write_home(home: Path) -> None:
    """What an attacker would like to read or to have deleted."""
    (home / "docs" / "sub").mkdir(parents=True)
    (home / "docs" / "thesis.txt").write_text("all of it")
    (home / "docs" / "10").mkdir()
    (home / "docs" / "10" / "photo").write_text("dear")
    (home / "secret.txt").write_text(SECRET)


def state_of(home: Path) -> dict[str, bytes]:
    """Everything in a home but the index and what lies beside it under its name."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and not path.is_symlink() and "x.genius" not in path.relative_to(home).parts[0]
    }


# -- parts -------------------------------------------------------------------------------------------------------


def instead(path: Path, make: Callable[[Path], object]) -> None:
    """Something else in place of a file or folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make(path)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # such names are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def about(index: Path, **changes: Any) -> None:
    """Another `genius.json`, with the right checksum."""
    body = json.loads((index / "genius.json").read_text())
    body.pop("sum")
    model = {**body["model"], **changes.pop("model", {})}
    (index / "genius.json").write_text(seal({**body, "model": model, **changes}))


def ledger(index: Path, *events: dict[str, Any], first: dict[str, Any] | None = None) -> None:
    """Another ledger, with the right checksums: the events in place of what follows the first line."""
    state = Ledger(index).read()
    assert state is not None
    begin = {"ledger": 1, "about": dict(state.about), "nonce": "0"} if first is None else first
    (index / "ledger.jsonl").write_bytes(b"".join(map(_line, (begin, *events))))


def noted(index: Path, **changes: Any) -> dict[str, Any]:
    """What the ledger of an index says of its head, changed."""
    state = Ledger(index).read()
    assert state is not None
    body = {"version": state.head, "items": state.items, "time": "", "files": dict(state.files), "shown": sorted(state.shown)}
    files = {**body["files"], **changes.pop("files", {})}  # type: ignore[dict-item]
    return {**body, "files": files, **changes}


def base_json(index: Path, **changes: Any) -> None:
    """Another `base.json` of the cache, with the right checksum."""
    path = cache(index) / "base.json"
    body = json.loads(path.read_text())
    body.pop("sum")
    path.write_text(seal({**body, **changes}))


def cache(index: Path) -> Path:
    return next(path for path in (index / "cache").iterdir() if path.name.isdecimal())


def newest(index: Path, folder: str) -> Path:
    found = [path for path in (index / "items.lance" / folder).iterdir() if path.suffix in (".lance", ".manifest")]
    return max(found, key=lambda path: path.stat().st_mtime_ns)


# -- all of them -------------------------------------------------------------------------------------------------


def all_hostile() -> list[Hostile]:
    found = [
        *[Hostile(f"link: {name} -> a folder", _link(name, "docs")) for name in sorted(OWN)],
        *[
            Hostile(f"link: {name} -> a file", _link(name, "secret.txt"))
            for name in ("genius.json", "ledger.jsonl", "published.json")
        ],
        *[
            Hostile(f"pipe: {name}", _odd(name, fifo))
            for name in ("genius.json", "ledger.jsonl", "published.json", "origin.json")
        ],
        *[Hostile(f"socket: {name}", _odd(name, unix_socket)) for name in ("genius.json", "ledger.jsonl")],
        Hostile("device: genius.json -> /dev/zero", _link("genius.json", "/dev/zero")),
        Hostile("device: ledger.jsonl -> /dev/zero", _link("ledger.jsonl", "/dev/zero")),
        Hostile("device: the cache's base.json -> /dev/zero", lambda h, i: instead(cache(i) / "base.json", _to("/dev/zero"))),
        Hostile("link: items.lance/data", lambda h, i: instead(i / "items.lance" / "data", _to(h / "docs"))),
        Hostile("link: items.lance/_versions", lambda h, i: instead(i / "items.lance" / "_versions", _to(h / "docs"))),
        Hostile("link: a data file", lambda h, i: instead(newest(i, "data"), _to(h / "secret.txt"))),
        Hostile("link: a manifest", lambda h, i: instead(newest(i, "_versions"), _to(h / "secret.txt"))),
        Hostile("link: a cache of a version", lambda h, i: instead(cache(i), _to(h / "docs" / "10"))),
        Hostile("link: a cache that is being built", lambda h, i: (i / "cache" / ".building-x").symlink_to(h / "docs")),
        Hostile("link: the trie of a cache", lambda h, i: instead(cache(i) / "trie_order.npy", _to(h / "secret.txt"))),
        Hostile("link: into itself", lambda h, i: instead(i / "aside", _to(i))),
        Hostile("link: dangling", lambda h, i: instead(i / "aside", _to(h / "nowhere"))),
        Hostile("link: a model folder's file", _model_link),
        Hostile("pipe: a data file", lambda h, i: instead(newest(i, "data"), fifo)),
        Hostile("pipe: a manifest", lambda h, i: instead(newest(i, "_versions"), fifo)),
        Hostile("pipe: an extra data file", lambda h, i: fifo(i / "items.lance" / "data" / "more.lance")),
        Hostile("pipe: the cache's base.json", lambda h, i: instead(cache(i) / "base.json", fifo)),
        Hostile("pipe: an array of the cache", lambda h, i: instead(cache(i) / "seqs.npy", fifo)),
        Hostile("pipe: the lock", lambda h, i: instead(i / ".lock", fifo)),
        Hostile(
            "pipe: deep in the model", lambda h, i: ((i / "model" / "a").mkdir(parents=True), fifo(i / "model" / "a" / "b"))[0]
        ),
        Hostile("genius.json: huge", lambda h, i: _sparse(i / "genius.json")),
        Hostile("genius.json: nested without end", lambda h, i: _text(i / "genius.json", "[" * 200_000)),
        Hostile("genius.json: a list", lambda h, i: _text(i / "genius.json", "[]")),
        Hostile("genius.json: no text", lambda h, i: (i / "genius.json").write_bytes(b"\xff\xfe\x00") and None),
        Hostile("genius.json: width of 2^31", lambda h, i: about(i, width=2**31)),
        Hostile("genius.json: width of 0", lambda h, i: about(i, width=0)),
        Hostile("genius.json: another width", lambda h, i: about(i, width=64)),
        Hostile("genius.json: levels that are words", lambda h, i: about(i, levels=["a", "b"])),
        Hostile("genius.json: a million levels", lambda h, i: about(i, levels=[2] * 100_000)),
        Hostile("genius.json: format of tomorrow", lambda h, i: about(i, format=99)),
        Hostile("genius.json: an id that is a path", lambda h, i: about(i, id="../docs")),
        Hostile("genius.json: a fingerprint that is a list", lambda h, i: about(i, model={"fingerprint": []})),
        Hostile("ledger: huge", lambda h, i: _sparse(i / "ledger.jsonl")),
        Hostile("ledger: empty", lambda h, i: _text(i / "ledger.jsonl", "")),
        Hostile("ledger: a file above", lambda h, i: ledger(i, noted(i, files={"../../secret.txt": "23:0"}))),
        Hostile("ledger: an absolute file", lambda h, i: ledger(i, noted(i, files={str(h / "secret.txt"): "23:0"}))),
        Hostile("ledger: a data file above", lambda h, i: ledger(i, noted(i, files={"data/../../../secret.txt": "23:0"}))),
        Hostile(
            "ledger: a data file that is a device",
            lambda h, i: ledger(i, noted(i, files={"data/../../../../../../dev/zero": "0:0"})),
        ),
        Hostile("ledger: a name with a null", lambda h, i: ledger(i, noted(i, files={"data/a\0b": "1:0"}))),
        Hostile("ledger: a name without end", lambda h, i: ledger(i, noted(i, files={"data/" + "x" * 5000: "1:0"}))),
        Hostile("ledger: names that are numbers", lambda h, i: ledger(i, noted(i, files={"data/x.lance": 7}))),
        Hostile("ledger: a checksum of nonsense", lambda h, i: ledger(i, noted(i, files={"data/x.lance": "big:small"}))),
        Hostile("ledger: files that are a list", lambda h, i: ledger(i, {**noted(i), "files": ["a"]})),
        Hostile("ledger: a version that is not there", lambda h, i: ledger(i, noted(i, version=10**6))),
        Hostile("ledger: a version below zero", lambda h, i: ledger(i, noted(i, version=-5))),
        Hostile("ledger: a version of 2^80", lambda h, i: ledger(i, noted(i, version=2**80))),
        Hostile("ledger: a version of 1e400", lambda h, i: ledger(i, noted(i, version=1e308))),
        Hostile(
            "ledger: of another index", lambda h, i: ledger(i, noted(i), first={"ledger": 1, "about": {"id": "x"}, "nonce": "0"})
        ),
        Hostile(
            "ledger: an about that is a text", lambda h, i: ledger(i, noted(i), first={"ledger": 1, "about": "x", "nonce": "0"})
        ),
        Hostile("table: a manifest of noise", lambda h, i: newest(i, "_versions").write_bytes(os.urandom(500)) and None),
        Hostile("table: a data file of noise", lambda h, i: newest(i, "data").write_bytes(os.urandom(5000)) and None),
        Hostile("table: a data file that is a folder", lambda h, i: instead(newest(i, "data"), Path.mkdir)),
        Hostile("table: a manifest cut short, the ledger lying with it", _lying_manifest),
        Hostile("table: a data file of noise, the ledger lying with it", _lying_data),
        Hostile("table: a file in its place", lambda h, i: instead(i / "items.lance", lambda p: p.write_text("x"))),
        Hostile("table: a clone that reads from another folder", _clone),
        Hostile("table: without codes", _rows(lambda t: t.drop_columns(["_codes"]))),
        Hostile("table: without vectors", _rows(lambda t: t.drop_columns(["_embedding"]))),
        Hostile("table: ids that are numbers", _column("id", pa.int64(), lambda n: n)),
        Hostile("table: texts that are numbers", _column("text", pa.int64(), lambda n: n)),
        Hostile("table: numbers of 32 bits", _column("_seq", pa.int32(), lambda n: n)),
        Hostile("table: codes of two levels", _column("_codes", pa.list_(pa.uint16(), 2), lambda n: [1, 1])),
        Hostile("table: vectors of another width", _column("_embedding", pa.list_(pa.float16(), 16), lambda n: [HALF] * 16)),
        Hostile("table: vectors of 32-bit floats", _column("_embedding", pa.list_(pa.float32(), 32), lambda n: [0.5] * 32)),
        Hostile("table: 300 columns", _rows(_with_columns), opens=True),
        Hostile("rows: the same number", _column("_seq", pa.int64(), lambda n: 7)),
        Hostile("rows: numbers far apart", _column("_seq", pa.int64(), lambda n: n << 56), opens=True),
        Hostile("rows: codes beyond the codebooks", _column("_codes", pa.list_(pa.uint16(), 4), lambda n: [65535] * 4)),
        Hostile("rows: codes of nothing", _column("_codes", pa.list_(pa.uint16(), 4), lambda n: [None] * 4)),
        Hostile("rows: vectors of nothing", _column("_embedding", pa.list_(pa.float16(), 32), lambda n: [None] * 32)),
        Hostile("rows: metadata that is no JSON", _column("_metadata", pa.string(), lambda n: "{")),
        Hostile("rows: metadata of another type", _column("_metadata", pa.string(), lambda n: '{"n": "x"}'), opens=True),
        Hostile("rows: an unknown modality", _column("modality", pa.string(), lambda n: "smell\n")),
        Hostile("cache: items beyond count", lambda h, i: base_json(i, items=2**40), opens=True),
        Hostile("cache: files above", lambda h, i: base_json(i, files={"../../../secret.txt": "23:0"}), opens=True),
        Hostile("cache: vectors above", lambda h, i: base_json(i, vectors={"../../secret.txt": 23}), opens=True),
        Hostile("cache: vectors in a device", lambda h, i: base_json(i, vectors={"/dev/zero": 0}), opens=True),
        Hostile("cache: no object", lambda h, i: _text(cache(i) / "base.json", "[1]"), opens=True),
        Hostile("cache: a huge base.json", lambda h, i: _sparse(cache(i) / "base.json"), opens=True),
        Hostile("cache: a trie whose header lies", _lying_trie, opens=True),
        Hostile("cache: an array that is a pickle", _pickled_array, opens=True),
        Hostile("cache: a version of 10^30", lambda h, i: cache(i).rename(i / "cache" / ("9" * 30)) and None, opens=True),
        Hostile("cache: foreign folders", lambda h, i: (i / "cache" / "photos").mkdir(), opens=True),
        Hostile("beside: a record that names docs", _record({"fresh": "nothing", "aside": "docs"}), opens=True),
        Hostile("beside: a record that names ..", _record({"fresh": "nothing", "aside": ".."}), opens=True),
        Hostile("beside: a record that is a pipe", lambda h, i: fifo(h / ".x.genius.swap.json"), opens=True),
        Hostile("beside: a replacement that is a link", lambda h, i: (h / ".x.genius.next").symlink_to(h / "docs"), opens=True),
        Hostile(
            "beside: a previous generation that is a link",
            lambda h, i: (h / ".x.genius.previous").symlink_to(h / "docs"),
            opens=True,
        ),
        Hostile("beside: a replacement with other things in it", _strange_replacement, opens=True),
        Hostile("swap: no index, but two links that look like a swap", _linked_swap),
        Hostile("published.json: nonsense", lambda h, i: _text(i / "published.json", "{" * 9999), opens=True),
    ]
    return found


def _to(target: Path | str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _link(name: str, target: str) -> Callable[[Path, Path], None]:
    return lambda home, index: instead(index / name, _to(target if target.startswith("/") else home / target))


def _odd(name: str, make: Callable[[Path], None]) -> Callable[[Path, Path], None]:
    return lambda home, index: instead(index / name, make)


def _text(path: Path, body: str) -> None:
    path.write_text(body)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _model_link(home: Path, index: Path) -> None:
    (index / "model").mkdir()
    (index / "model" / "model.safetensors").symlink_to(home / "secret.txt")
    about(index, model={"source": "inside:"})


def _lying_manifest(home: Path, index: Path) -> None:
    path = newest(index, "_versions")
    path.write_bytes(path.read_bytes()[:50])
    _agree(index, path)


def _lying_data(home: Path, index: Path) -> None:
    path = newest(index, "data")
    path.write_bytes(os.urandom(path.stat().st_size))
    _agree(index, path)


def _clone(home: Path, index: Path) -> None:
    """A manifest that names another place with files of the table."""
    path = newest(index, "_versions")
    body = path.read_bytes()
    (start,) = struct.unpack("<Q", body[-16:-8])
    (size,) = struct.unpack("<I", body[start : start + 4])
    place = str(home / "docs").encode()
    base = b"\x18\x01\x22" + bytes([len(place)]) + place  # is the root of a dataset, path
    field = b"\x92\x01" + bytes([len(base)]) + base  # number 18
    end = start + 4 + size
    path.write_bytes(body[:start] + struct.pack("<I", size + len(field)) + body[start + 4 : end] + field + body[end:])
    _agree(index, path)


def _rows(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path, Path], None]:
    """Other rows, with the right checksums."""

    def make(home: Path, index: Path) -> None:
        described = about_of(index)
        store = open_store(index, described)
        table = change(pa.Table.from_batches(list(good_rows(store.at(store.latest())))))
        fresh = index.with_name("fresh")
        fresh.mkdir()
        database = lancedb.connect(fresh)
        batches = list(resealed(iter(table.to_batches()), table.schema))
        database.create_table("items", data=pa.Table.from_batches(batches, table.schema))
        Store(fresh).begin_ledger(described.to_dict())
        write_about(fresh, described)
        shutil.rmtree(index)
        fresh.rename(index)

    return make


def _column(name: str, data_type: pa.DataType, value: Callable[[int], object]) -> Callable[[Path, Path], None]:
    """A column of another type, or of other values: `value` of the number of each row."""

    def change(table: pa.Table) -> pa.Table:
        values = pa.array([value(number) for number in range(table.num_rows)], data_type)
        return table.set_column(table.schema.get_field_index(name), pa.field(name, data_type), values)

    return _rows(change)


def _with_columns(table: pa.Table) -> pa.Table:
    for number in range(300):
        table = table.append_column(f"c{number}", pa.array([0.0] * table.num_rows))
    return table


def _agree(index: Path, path: Path) -> None:
    """Let the ledger say that a file is as it should be."""
    from genius.index.ledger import file_sum

    ledger(index, noted(index, files={str(path.relative_to(index / "items.lance")): file_sum(path)}))


def _lying_trie(home: Path, index: Path) -> None:
    import numpy as np

    with (cache(index) / "trie_order.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (2**40,)})


def _pickled_array(home: Path, index: Path) -> None:
    import numpy as np

    np.save(cache(index) / "seqs.npy", np.array([{"a": 1}], object), allow_pickle=True)


def _record(body: dict[str, str]) -> Callable[[Path, Path], None]:
    return lambda home, index: _text(home / ".x.genius.swap.json", json.dumps(body))


def _strange_replacement(home: Path, index: Path) -> None:
    (home / ".x.genius.next" / "letters").mkdir(parents=True)
    (home / ".x.genius.next" / "letters" / "one").write_text("dear")


def _linked_swap(home: Path, index: Path) -> None:
    index.rename(home / "docs" / "index")
    (home / ".x.genius.next").symlink_to(home / "docs" / "index")
    (home / ".x.genius.previous").symlink_to(home / "docs" / "index")
