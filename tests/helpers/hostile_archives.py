"""Files of `torch.save` that an attacker may send: pickles that call, zips that lie, tars. See `hostile_models`.

A case is a name, the door it comes in by, and a function that writes it into a folder. What acts, creates the marker.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Writer = Callable[[Path, Path], Path]
"""(folder, marker) -> what the door is shown."""


@dataclass(frozen=True)
class Case:
    """`harmless`: reading it may succeed, with the hostile part left out."""

    name: str
    door: str  # convert, uniir, optimizer, model or encoder
    write: Writer
    harmless: bool = False


# -- archives of torch.save, by hand -----------------------------------------------------------------------------


def archive(path: Path, pickled: bytes, storages: dict[str, bytes] | None = None, **options: Any) -> Path:
    """What torch.save writes, with any pickle in it. `extra`: more records; `compress`, `comment`, `root`, `before`, `after`."""
    body = io.BytesIO()
    root = options.get("root", "archive")
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED if options.get("compress") else zipfile.ZIP_STORED) as file:
        for name, content in options.get("first", {}).items():
            file.writestr(name, content)
        file.writestr(f"{root}/data.pkl", pickled)
        file.writestr(f"{root}/version", "3\n")
        for key, content in (storages or {}).items():
            file.writestr(f"{root}/data/{key}", content)
        for name, content in options.get("extra", {}).items():
            file.writestr(name, content)
        file.comment = options.get("comment", b"")
    path.write_bytes(options.get("before", b"") + body.getvalue() + options.get("after", b""))
    return path


class Call:
    """Pickles as a call of any function with any arguments."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments

    def __call__(self) -> None:
        """Pickle asks for a callable."""


def op(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


def word(text: str) -> bytes:
    body = text.encode()
    return b"X" + struct.pack("<I", len(body)) + body


def number(value: int) -> bytes:
    return (
        b"J" + struct.pack("<i", value) if -(2**31) <= value < 2**31 else b"\x8a\x0a" + value.to_bytes(10, "little", signed=True)
    )


def tensor(
    key: str = "0", kind: str = "torch\nFloatStorage", count: int = 4, offset: int = 0, shape: Any = (4,), stride: Any = (1,)
) -> bytes:
    """The operations that describe one tensor."""

    def row(values: Any) -> bytes:
        return b"(" + b"".join(number(v) for v in values) + b"t"

    reference = b"(" + word("storage") + b"c" + kind.encode() + b"\n" + word(key) + word("cpu") + number(count) + b"tQ"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + reference + number(offset) + row(shape) + row(stride) + b"\x89}tR"


def state(*entries: bytes) -> bytes:
    """{"model": {"a": entry, ...}} as operations."""
    inner = b"}(" + b"".join(word(f"t{i}") + entry for i, entry in enumerate(entries)) + b"u"
    return op(b"}", word("model"), inner, b"s")


FOUR = {"0": np.arange(4, dtype=np.float32).tobytes()}


def pickled(make: Callable[[str], Any], name: str, *, in_config: bool = False) -> Case:
    """A pickle that calls something; in_config: beside a good state dict, where it can be left out."""

    def write(folder: Path, mark: Path) -> Path:
        value = make(str(mark))
        good = {"t0": torch.arange(4.0)}
        if in_config:
            torch.save({"model": good, "config": value}, folder / "f.pth")
            return folder / "f.pth"
        return archive(folder / "f.pth", pickle.dumps({"model": value}, 2))

    return Case(f"pickle: {name}" + (" beside weights" if in_config else ""), "convert", write)


def operations(name: str, body: Callable[[], bytes], storages: dict[str, bytes] | None = None, door: str = "convert") -> Case:
    return Case(f"pickle: {name}", door, lambda folder, _: archive(folder / "f.pth", body(), storages))


PAYLOADS: dict[str, Callable[[str], Any]] = {
    "os.system": lambda mark: Call(os.system, f"touch {mark}"),
    "eval": lambda mark: Call(eval, f"open({mark!r}, 'w')"),
    "exec": lambda mark: Call(exec, f"open({mark!r}, 'w')"),
    "open": lambda mark: Call(open, mark, "w"),
    "os.mkdir": lambda mark: Call(os.mkdir, mark),
    "subprocess": lambda mark: Call(__import__("subprocess").check_call, ["touch", mark]),
    "import_module": lambda mark: Call(__import__("importlib").import_module, "antigravity"),
    "getattr": lambda mark: Call(Call(getattr, Call(__import__, "os"), "system"), f"touch {mark}"),
    "torch.load": lambda mark: Call(torch.load, mark),
    "torch.jit.load": lambda mark: Call(torch.jit.load, mark),
    "torch from bytes": lambda mark: Call(torch.storage._load_from_bytes, b"x"),
    "torch.from_file": lambda mark: Call(torch.from_file, mark, True, 8),
    "numpy memmap": lambda mark: Call(np.memmap, mark, "uint8", "w+", 0, 8),
    "partial": lambda mark: Call(Call(__import__("functools").partial, os.mkdir, mark)),
    "pathlib touch": lambda mark: Call(Path.touch, Path(mark)),
}


def pickle_cases() -> list[Case]:
    cases = [pickled(make, name) for name, make in PAYLOADS.items()]
    cases += [pickled(PAYLOADS[name], name, in_config=True) for name in ("os.system", "eval", "getattr", "torch.jit.load")]
    deep = 250_000
    cases += [
        operations("memo place 2^31", lambda: op(b"}r\xff\xff\xff\x7f")),
        operations("memo place never filled", lambda: op(b"j\xff\xff\xff\x7f")),
        operations("string of 2^60 bytes", lambda: op(b"\x8d" + struct.pack("<Q", 2**60) + b"x")),
        operations("bytes of 2^60 bytes", lambda: op(b"\x8e" + struct.pack("<Q", 2**60) + b"x")),
        operations("number of 2^31 bytes", lambda: op(b"\x8b\xff\xff\xff\x7f")),
        operations("number of -1 bytes", lambda: op(b"\x8b\xff\xff\xff\xff")),
        operations("frame of 2^63 bytes", lambda: op(b"\x95" + struct.pack("<Q", 2**63) + b"}")),
        operations("lists in lists", lambda: op(b"]" * deep + b"a" * (deep - 1))),
        operations("tuples in tuples", lambda: op(b")" + b"\x85" * deep)),
        operations("a nested tuple as a key", lambda: op(b"})" + b"\x85" * deep + b"Ns")),
        operations(
            "keys that collide", lambda: op(b"}(" + b"".join(number(k * (2**61 - 1)) + b"N" for k in range(1, 60_000)) + b"u")
        ),
        operations("a list in itself", lambda: op(b"}", word("model"), b"}", word("a"), b"]q\x01h\x01ass")),
        operations(
            "sharing that explodes",
            lambda: op(
                b"}",
                word("model"),
                b"}",
                word("a"),
                b"]q\x00"
                + b"".join(b"0](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(60))
                + b"ss",
            ),
        ),
        operations("four million steps of nothing", lambda: op(b"N0" * 2_000_000)),
        operations("protocol 0", lambda: b"cos\nsystem\n(S'true'\ntR."),
        operations("extension registry", lambda: op(b"\x82\x01")),
        operations("inst", lambda: b"\x80\x02(X\x04\x00\x00\x00trueios\nsystem\n."),
        operations("obj", lambda: b"\x80\x02(cos\nsystem\nX\x04\x00\x00\x00trueo."),
        operations("stack_global", lambda: op(b"\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R")),
        operations("reduce of a name from the memo", lambda: op(b"cos\nsystem\nq\x00X\x04\x00\x00\x00true\x85R")),
        operations("state for a name", lambda: op(b"cos\nsystem\n}", word("x"), b"Ksb")),
        operations("no end", lambda: b"\x80\x02}"),
        operations("an empty stack", lambda: op(b"0")),
        operations("marks that are not there", lambda: op(b"tu")),
        operations("2^40 numbers that are not there", lambda: state(tensor(count=2**40, shape=(2**40,))), FOUR),
        operations("a larger tensor than its storage", lambda: state(tensor(shape=(4_000_000_000,), stride=(0,))), FOUR),
        operations("a tensor beyond the end", lambda: state(tensor(offset=2**40)), FOUR),
        operations("a negative offset", lambda: state(tensor(offset=-1)), FOUR),
        operations("negative strides", lambda: state(tensor(stride=(-1,))), FOUR),
        operations("negative sizes", lambda: state(tensor(shape=(-4,))), FOUR),
        operations("shape and stride unequal", lambda: state(tensor(shape=(4, 1))), FOUR),
        operations("a thousand dimensions", lambda: state(tensor(shape=(1,) * 1000, stride=(1,) * 1000)), FOUR),
        operations("sizes that overflow", lambda: state(tensor(shape=(2**62, 2**62), stride=(1, 1))), FOUR),
        operations("a storage that is not there", lambda: state(tensor(key="7")), FOUR),
        operations("a storage outside", lambda: state(tensor(key="../../etc/passwd")), FOUR),
        operations("an unknown kind of number", lambda: state(tensor(kind="torch\nQInt8Storage")), FOUR),
        operations("a class as a kind of number", lambda: state(tensor(kind="os\nsystem")), FOUR),
        operations("one storage ten thousand times", lambda: state(*[tensor()] * 10_000), FOUR),
        operations("texts instead of tensors", lambda: op(b"}", word("model"), b"}", word("a"), word("b"), b"ss")),
        operations("a number instead of a dictionary", lambda: op(b"K\x01")),
        operations(
            "ids that are no rows",
            lambda: op(
                b"}("
                + b"".join(word(k) + tensor() for k in ("img", "text", "img_mask", "text_mask"))
                + word("id_to_index")
                + b"}"
                + number(1)
                + word("x")
                + b"su"
            ),
            FOUR,
            "convert",
        ),
        operations(
            "rows that are not there",
            lambda: op(
                b"}("
                + b"".join(
                    word(k) + tensor(shape=(2, 2) if "mask" not in k else (2,), stride=(2, 1) if "mask" not in k else (1,))
                    for k in ("img", "text", "img_mask", "text_mask")
                )
                + word("id_to_index")
                + b"}"
                + number(1)
                + number(10**9)
                + b"su"
            ),
            FOUR,
            "convert",
        ),
    ]
    return cases


# -- zip and tar -------------------------------------------------------------------------------------------------


class Scripted(nn.Module):
    """Loading it as TorchScript runs `__setstate__`, which maps a file for writing."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark, self.seen = mark, 0
        self.training = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return (self.mark, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.mark = state[0]
        self.training = state[1]
        opened = torch.from_file(state[0], True, 16, dtype=torch.uint8)
        opened.fill_(88)
        self.seen = int(opened.sum().item())  # something must come of it, or the compiler leaves it out


def torchscript(folder: Path, mark: Path) -> Path:
    module = torch.jit.script(Scripted(str(mark)))
    torch.jit.save(module, str(folder / "f.pth"))
    Path(mark).unlink(missing_ok=True)
    return folder / "f.pth"


def with_bytes(name: str, make: Callable[[bytes], bytes], harmless: bool = False) -> Case:
    """A good file, changed."""

    def write(folder: Path, _: Path) -> Path:
        good = archive(folder / "good.pth", state(tensor()), FOUR).read_bytes()
        (folder / "f.pth").write_bytes(make(good))
        return folder / "f.pth"

    return Case(f"zip: {name}", "uniir", write, harmless)


def zipped(name: str, **options: Any) -> Case:
    return Case(f"zip: {name}", "uniir", lambda folder, _: archive(folder / "f.pth", state(tensor()), FOUR, **options))


def _overlapping(folder: Path, _: Path) -> Path:
    """Ten thousand entries of the table of contents that share one record of a megabyte."""
    body = bytes(1 << 20)
    name = b"archive/data/0"
    local = (
        b"PK\x03\x04"
        + struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0, zlib.crc32(body), len(body), len(body), len(name), 0)
        + name
        + body
    )
    entries = []
    for i in range(10_000):
        label = f"archive/data/{i}".encode()
        entries.append(
            b"PK\x01\x02"
            + struct.pack(
                "<HHHHHHIIIHHHHHII", 20, 20, 0, 0, 0, 0, zlib.crc32(body), len(body), len(body), len(label), 0, 0, 0, 0, 0, 0
            )
            + label
        )
    central = b"".join(entries)
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 10_000, 10_000, len(central), len(local), 0)
    (folder / "f.pth").write_bytes(local + central + end)
    return folder / "f.pth"


def _many_entries(folder: Path, _: Path) -> Path:
    label = b"archive/data/0"
    entry = b"PK\x01\x02" + struct.pack("<HHHHHHIIIHHHHHII", 20, 20, 0, 0, 0, 0, 0, 0, 0, len(label), 0, 0, 0, 0, 0, 0) + label
    central = entry * 400_000
    local = b"PK\x03\x04" + struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0, 0, 0, 0, len(label), 0) + label
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, len(central), len(local), 0)
    (folder / "f.pth").write_bytes(local + central + end)
    return folder / "f.pth"


def _tar(folder: Path, mark: Path) -> Path:
    """Torch's oldest format: pickles in a tar."""
    with tarfile.open(folder / "f.pth", "w") as file:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            body = pickle.dumps(PAYLOADS["os.mkdir"](str(mark)))
            info = tarfile.TarInfo(name)
            info.size = len(body)
            file.addfile(info, io.BytesIO(body))
    return folder / "f.pth"


def _bare(folder: Path, mark: Path) -> Path:
    torch.save(
        {"model": {"t0": torch.arange(4.0)}, "x": PAYLOADS["os.mkdir"](str(mark))},
        folder / "f.pth",
        _use_new_zipfile_serialization=False,
    )
    return folder / "f.pth"


def _pipe(folder: Path, _: Path) -> Path:
    os.mkfifo(folder / "f.pth")
    return folder / "f.pth"


def _link_outside(folder: Path, _: Path) -> Path:
    (folder / "f.pth").symlink_to("/dev/zero")
    return folder / "f.pth"


def zip_cases() -> list[Case]:
    return [
        Case("zip: TorchScript that writes a file", "convert", torchscript),
        Case("zip: TorchScript through uniir:", "uniir", torchscript),
        zipped("code beside weights", extra={"archive/code/__torch__.py": "x"}),
        zipped("constants beside weights", extra={"archive/constants.pkl": b"\x80\x02)."}),
        zipped("an unknown file beside weights", extra={"archive/evil.py": "x"}),
        zipped("../ in a name", extra={"../../evil": "x"}),
        zipped("an absolute name", extra={"/etc/evil": "x"}),
        zipped("two roots", extra={"other/data.pkl": b"\x80\x02}."}),
        Case(
            "zip: two pickles of one name",
            "uniir",
            lambda folder, mark: archive(
                folder / "f.pth", pickle.dumps(PAYLOADS["os.mkdir"](str(mark))), extra={"archive/data.pkl": state(tensor())}
            ),
        ),
        Case(
            "zip: a gigabyte of zeros, compressed",
            "uniir",
            lambda folder, _: archive(folder / "f.pth", bytes(1 << 30), compress=True),
        ),
        zipped("compressed", compress=True),
        zipped("a comment", comment=b"hello"),
        zipped("something before", before=b"#!/bin/sh\n"),
        zipped("a tar before", before=bytes(512)),
        zipped("something after", after=b"more"),
        zipped("another archive after", after=b"PK\x05\x06" + bytes(18)),
        Case("zip: overlapping records", "uniir", _overlapping),
        Case("zip: 400,000 entries", "uniir", _many_entries),
        with_bytes("cut off", lambda good: good[: len(good) // 2]),
        with_bytes("only the start", lambda good: good[:4]),
        with_bytes("a name that differs", lambda good: good.replace(b"archive/data/0", b"archive/data/1", 1)),
        with_bytes("a flipped number", lambda good: good.replace(FOUR["0"], bytes(16), 1)),
        with_bytes(
            "encrypted", lambda good: good.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00")
        ),
        with_bytes("a table of contents elsewhere", lambda good: good[:-6] + struct.pack("<I", 2**31) + good[-2:]),
        with_bytes("a table of contents of 4 GB", lambda good: good[:-10] + struct.pack("<I", 2**32 - 1) + good[-6:]),
        Case("tar: torch's oldest format", "convert", _tar),
        Case("pickle: torch before 1.6", "convert", _bare),
        Case("a pipe", "uniir", _pipe),
        Case("/dev/zero", "uniir", _link_outside),
        Case("a folder", "convert", lambda folder, _: folder),
        with_bytes("gzip", lambda good: b"\x1f\x8b" + good),
        with_bytes("nothing", lambda good: b""),
    ]
