"""What a power cut may leave of a folder: everything that was synced, and of the rest any part.

`powercut.c`, preloaded into a writer, keeps what is synced. Here is how a folder that could be found afterwards is
put together: names that were not synced are the old or the new ones, bytes that were not are old, new, or a mixture of
blocks, zeros among them.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = 4096
Key = str
Names = dict[str, tuple[str, Key]]  # name -> ("f" or "d", key)


def compile_shim(folder: Path) -> Path:
    source = Path(__file__).with_name("powercut.c")
    target = folder / "powercut.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-w", "-o", str(target), str(source), "-ldl"], check=True)
    return target


@dataclass
class Disk:
    """Names and bytes, by inode and time of birth."""

    names: dict[Key, Names] = field(default_factory=dict)
    bodies: dict[Key, bytes] = field(default_factory=dict)
    root: Key = ""


def look(path: Path) -> Disk:
    """A folder as it is, whether synced or not."""
    disk = Disk(root=key_of(path))
    for parent, _, _ in os.walk(path):
        entries: Names = {}
        for child in Path(parent).iterdir():
            key = key_of(child)
            entries[child.name] = ("d" if child.is_dir() else "f", key)
            if child.is_file():
                disk.bodies[key] = child.read_bytes()
        disk.names[key_of(Path(parent))] = entries
    return disk


def synced(before: Disk, store: Path) -> Disk:
    """What is certainly on the disk: what was there before, and what the shim saw being synced since."""
    disk = Disk(dict(before.names), dict(before.bodies), before.root)
    for path in store.iterdir():
        kind, _, key = path.name.partition("-")
        if kind == "f":
            disk.bodies[key] = path.read_bytes()
        elif kind == "d":
            rows = [line.split(" ", 2) for line in path.read_text().splitlines()]
            disk.names[key] = {name: (what, child) for what, child, name in rows}
    return disk


def after_cut(safe: Disk, actual: Disk, target: Path, rng: random.Random, strict: bool) -> None:
    """Write one folder that a power cut could leave. `strict`: nothing that was not synced survives."""
    shutil.rmtree(target, ignore_errors=True)
    bodies: dict[Key, bytes] = {}

    def body(key: Key) -> bytes:
        if key not in bodies:
            bodies[key] = _mixed(safe.bodies.get(key), actual.bodies.get(key), rng, strict)
        return bodies[key]

    def build(key: Key, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        old, new = safe.names.get(key, {}), actual.names.get(key, {})
        for name in sorted(old.keys() | new.keys()):
            entry = old.get(name)
            if entry != new.get(name) and not strict and rng.random() < 0.5:
                entry = new.get(name)
            if entry is None:
                continue
            if entry[0] == "d":
                build(entry[1], folder / name)
            else:
                (folder / name).write_bytes(body(entry[1]))

    build(safe.root, target)


def _mixed(old: bytes | None, new: bytes | None, rng: random.Random, strict: bool) -> bytes:
    if old == new and old is not None:
        return old
    before, after = old or b"", new if new is not None else old or b""
    kind = "old" if strict else rng.choice(["old", "new", "mixed", "mixed"])
    if kind != "mixed":
        return before if kind == "old" else after
    size = rng.choice([len(before), len(after), rng.randint(0, len(after))])
    out = bytearray()
    for start in range(0, size, BLOCK):
        choice = rng.choice([before, after, after, b""])
        part = choice[start : min(start + BLOCK, size)]
        out += part + bytes(min(BLOCK, size - start) - len(part))
    return bytes(out)


# -- inode and time of birth, as the shim writes them --------------------------------------------------------------


def key_of(path: Path) -> Key:
    buffer = (ctypes.c_ubyte * 256)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statx(-100, os.fsencode(path), 0x100, 0x900 | 0x1, buffer):  # STATX_BTIME | STATX_INO | STATX_TYPE
        raise OSError(ctypes.get_errno(), "statx", str(path))
    raw = bytes(buffer)
    inode = int.from_bytes(raw[32:40], "little")
    seconds, nanoseconds = int.from_bytes(raw[80:88], "little", signed=True), int.from_bytes(raw[88:92], "little")
    return f"{inode}-{seconds}-{nanoseconds}"
