"""When a change of the table counts: its files are on the disk, have checksums, and stand in the ledger. Until then, no.

Knows files and the ledger; LanceDB only by how it names its files. The caller holds the write lock.

A writer that dies between LanceDB's commit and the ledger's line leaves versions that nobody acknowledged. The next writer
sets them aside (`aside/`): with the power gone in between, such a version may lack half its bytes, and nothing tells.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from genius.errors import GeniusError
from genius.files import disk_errors, sync_tree
from genius.index.ledger import MISSING, Damaged, Ledger, LedgerState, difference, file_sum, size_in
from genius.index.paths import ASIDE, TABLE, remove

VERSIONS = "_versions"
HINT = "latest_version_hint.json"  # what LanceDB notes as its newest version: stale after a kill, and never trusted
BASE_PATHS = 18  # the field of a manifest (Lance's table.proto) that names other places with files of the table
ENDINGS = {".lance": b"LANC", ".manifest": b"LANC", ".arrow": b"ARROW1"}  # of files that are whole
DATA_FILE = re.compile(r"data/[0-9A-Za-z_-]+\.lance")
VERIFY_UP_TO = 1 << 30
"""Bytes of a table whose checksums are compared whenever it is opened; of a larger one only sizes (`genius check` does all)."""


def table_folder(folder: Path) -> Path:
    """The folder of the table.

    Args:
        folder: Of the index.
    """
    return folder / f"{TABLE}.lance"


def manifest_name(version: int) -> str:
    """The file that defines a version, below the table's folder.

    Args:
        version: Of the table.
    """
    return f"{VERSIONS}/{2**64 - 1 - version}.manifest"


def versions_on_disk(folder: Path) -> list[int]:
    """Versions whose defining file is there, oldest first; acknowledged or not."""
    try:
        names = [path.name for path in (table_folder(folder) / VERSIONS).iterdir()]
    except OSError:
        return []
    return sorted(2**64 - 1 - int(match[1]) for match in (re.fullmatch(r"(\d{1,20})\.manifest", name) for name in names) if match)


def table_files(folder: Path) -> list[str]:
    """Every file of the table, by its name below the table's folder. A hint that LanceDB rewrites at will is left out."""
    root = str(table_folder(folder))
    found = []
    for parent, _, names in os.walk(root):
        place = parent[len(root) :].strip(os.sep).replace(os.sep, "/")
        found += [f"{place}/{name}" if place else name for name in names if name != HINT]
    return sorted(found)


def data_files(folder: Path, version: int) -> list[str]:
    """The data files of a version, in the order in which its manifest names them."""
    manifest = (table_folder(folder) / manifest_name(version)).read_bytes()
    names = [name for name in table_files(folder) if DATA_FILE.fullmatch(name)]
    places = {name: manifest.find(name.removeprefix("data/").encode()) for name in names}
    return sorted((name for name in names if places[name] >= 0), key=lambda name: places[name])


def refuse_other_places(folder: Path, version: int) -> None:
    """Refuse a version whose manifest names other places than the table's folder: a clone of another table reads from there.

    Args:
        folder: Of the index.
        version: Of the table.

    Raises:
        FileNotFoundError: It has no manifest.
        GeniusError: It names another place, or is no manifest.
    """
    names = (manifest_name(version), f"{VERSIONS}/{version}.manifest")  # the second is how earlier versions of Lance name it
    found = [name for name in names if (table_folder(folder) / name).is_file()]
    if not found:
        raise FileNotFoundError(names[0])
    for name in found:
        try:
            body = (table_folder(folder) / name).read_bytes()
            (start,) = struct.unpack("<Q", body[-16:-8])
            (size,) = struct.unpack("<I", body[start : start + 4])
            fields = _protobuf_fields(body[start + 4 : start + 4 + size])
        except FileNotFoundError:
            raise
        except OSError as error:
            raise GeniusError(f"cannot read {name} of {folder}: {error.strerror or error}") from None
        except (ValueError, IndexError, struct.error):
            raise Damaged(f"{folder} is damaged: {name} is no manifest; genius repair {folder}") from None
        if BASE_PATHS in fields:
            raise GeniusError(f"{folder} is refused: its table reads files of another folder ({name}), as a clone does")


def _protobuf_fields(message: bytes) -> set[int]:
    """The numbers of a message's fields, at its top."""
    found = set()
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        found.add(tag >> 3)
        match tag & 7:
            case 0:
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 2:
                length, at = _varint(message, at)
                at += length
            case 5:
                at += 4
            case other:
                raise ValueError(f"wire type {other}")
    if at > len(message):
        raise ValueError("cut short")
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), at
    raise ValueError("a number without end")


def holds_data(folder: Path) -> bool:
    """Whether a table is there that ever held rows: such a one is never made anew."""
    data = table_folder(folder) / "data"
    return data.is_dir() and any(data.iterdir())


# -- writing -----------------------------------------------------------------------------------------------------


def refuse_cut_off(folder: Path, before: Collection[str]) -> None:
    """One clear line if a file that is new since `before` ends early. LanceDB has been seen to commit a data file whose last
    bytes a full disk did not take: such a change must not count."""
    for name in table_files(folder):
        ending = ENDINGS.get(Path(name).suffix)
        if ending is None or name in before:
            continue
        with _disk(folder), (table_folder(folder) / name).open("rb") as file:
            file.seek(-min(len(ending), file.seek(0, os.SEEK_END)), os.SEEK_END)
            if file.read() != ending:
                raise GeniusError("cannot add items: a file ends early, as when the disk is full; nothing that was there is lost")


def record(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Checksums of files of the table. They, and the folders that name them, are on the disk when this returns."""
    root = table_folder(folder)
    paths = {name: root / name for name in names}
    with _disk(folder):
        folders = {parent for path in paths.values() for parent in path.parents if parent.is_relative_to(folder)}
        sync_tree(paths.values(), sorted(folders, reverse=True))  # inner ones first
        return {name: file_sum(path) for name, path in paths.items()}


def set_aside(folder: Path, head: int) -> list[int]:
    """Put away versions newer than `head`, which nobody acknowledged. Their rows stay in files until those are cleaned up."""
    stray = [version for version in versions_on_disk(folder) if version > head]
    with _disk(folder):
        for version in stray:
            (folder / ASIDE).mkdir(exist_ok=True)
            target = folder / ASIDE / f"{version}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.manifest"
            shutil.move(table_folder(folder) / manifest_name(version), target)
        if stray:
            remove(table_folder(folder) / VERSIONS / HINT, folder)
    return stray


def clear_aside(folder: Path, keep: timedelta) -> None:
    """Forget what was set aside longer ago than old versions are kept."""
    for path in (folder / ASIDE).glob("*.manifest"):
        with contextlib.suppress(OSError, GeniusError):
            if time.time() - path.stat().st_ctime > keep.total_seconds():
                remove(path, folder)
    with contextlib.suppress(OSError):
        (folder / ASIDE).rmdir()  # if it is empty


def view_without_strays(folder: Path, head: int) -> tempfile.TemporaryDirectory[str]:
    """The table without versions that nobody acknowledged, as links in a temporary folder.

    LanceDB looks at the newest version first, whichever is opened; after a power cut that one may be half a file, and who
    only reads may not put it away.
    """
    view = tempfile.TemporaryDirectory(prefix="genius-view-")
    root = table_folder(Path(view.name))
    source = table_folder(folder).absolute()
    (root / VERSIONS).mkdir(parents=True)
    for path in source.iterdir():
        if path.name != VERSIONS:
            (root / path.name).symlink_to(path)
    for version in versions_on_disk(folder):
        if version <= head:
            (root / manifest_name(version)).symlink_to(source / manifest_name(version))
    return view


def forget_cleaned(folder: Path, ledger: Ledger) -> None:
    """After files of old versions were removed: a ledger of those that are left."""
    state = ledger.read()
    if state is not None:
        there = set(table_files(folder))
        files = {name: s for name, s in state.files.items() if name in there}
        shown = state.shown & set(versions_on_disk(folder))
        ledger.rewrite(replace(state, files=files, shown=shown, cleaning=False))


def _disk(folder: Path) -> contextlib.AbstractContextManager[None]:
    return disk_errors(f"cannot write to {folder}", "; nothing that was there is lost")


# -- reading -----------------------------------------------------------------------------------------------------


def verify(folder: Path, ledger: Ledger) -> None:
    """Compare the files that are read from with the ledger; one line if they are not the same.

    Notes of what older versions were (their manifests, transactions) do not keep an index from being opened: `genius check`
    looks at them. While another process cleans up, files may be gone a moment before the ledger says so: it is read again.
    """
    for _ in range(10):
        state = ledger.read()
        if state is None:
            return
        used = {name: s for name, s in state.files.items() if name.startswith(("data/", "_deletions/", "_indices/"))}
        used |= {name: s for name, s in state.files.items() if name == manifest_name(state.head)}
        deep = sum(size_in(s) for s in used.values()) <= VERIFY_UP_TO
        problems = differences(folder, used, deep, tolerate_missing=state.cleaning)
        if manifest_name(state.head) not in state.files or not (table_folder(folder) / manifest_name(state.head)).is_file():
            problems.insert(0, missing_head(folder, state))
        if not problems:
            return
        if ledger.read() is state:
            break
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    raise Damaged(f"{folder} is damaged: {problems[0]}{more}; genius check {folder} lists all, genius repair {folder} repairs it")


def missing_head(folder: Path, state: LedgerState) -> str:
    newest = max((v for v in versions_on_disk(folder) if v < state.head), default=0)
    return f"version {state.head}, the last that was acknowledged, is not there (the newest before it: {newest or 'none'})"


def differences(folder: Path, files: Mapping[str, str], deep: bool, tolerate_missing: bool = False) -> list[str]:
    """One line for each file that is not as the ledger says. `deep`: by checksum; else by size, manifests excepted."""
    problems = []
    for name, noted in files.items():
        problem = difference(table_folder(folder) / name, noted, deep or name.startswith(VERSIONS))
        if problem is not None and not (tolerate_missing and problem == MISSING):
            problems.append(f"{TABLE}.lance/{name} {problem}")
    return problems
