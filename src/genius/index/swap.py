"""One index folder takes the place of another, and a kill at any moment leaves one of the two under the name.

No file system swaps two folders everywhere, so it takes two renames. A record beside the folder says what is to become of it
before the first; whoever next looks for the index finishes what the record says (`settle`). Knows folders; nothing of what is
in them.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
from pathlib import Path

from genius.errors import GeniusError
from genius.files import read_json, sync_directory, sync_tree, write_whole


def swap(folder: Path, fresh: Path) -> None:
    """Put the whole folder `fresh`, which lies beside `folder`, in its place; the old one is deleted."""
    aside = fresh.with_name(f"{fresh.name}-old")
    inside = [*fresh.rglob("*")]
    sync_tree((p for p in inside if p.is_file()), (p for p in (fresh, *inside) if p.is_dir()))
    body = json.dumps({"fresh": fresh.name, "aside": aside.name}) + "\n"
    write_whole(_record(folder), lambda path: path.write_text(body, encoding="utf-8"), durable=True)
    try:
        folder.rename(aside)
    except OSError as error:
        _record(folder).unlink(missing_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        raise GeniusError(f"cannot replace {folder}: {error.strerror or error}; it is as it was") from None
    settle(folder)


def settle(folder: Path) -> None:
    """Finish a swap that was begun, by whomever. Several may do so at once: each step is a rename that only one can win."""
    record = _record(folder)
    if not record.exists():
        return
    try:
        body = read_json(record)
        fresh, aside = (folder.with_name(Path(str(body[name])).name) for name in ("fresh", "aside"))
    except (FileNotFoundError, GeniusError, KeyError, TypeError):
        return  # finished by another meanwhile, or no record of ours
    if folder.exists() and not aside.exists():
        return  # not begun: whoever wrote the record is about to, or was killed and the index is as it was
    try:
        for stand_in in (fresh, aside):  # the new one was whole before the record was written
            if not folder.exists():
                with contextlib.suppress(FileNotFoundError):
                    stand_in.rename(folder)
        sync_directory(folder.absolute().parent)
    except OSError as error:
        raise GeniusError(
            f"{folder} was being replaced when that was broken off, and cannot be put back: {error.strerror or error}; "
            f"it is whole in {fresh if fresh.exists() else aside}"
        ) from None
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        with contextlib.suppress(OSError):
            record.unlink(missing_ok=True)


def clear(folder: Path) -> None:
    """Remove what a swap that was never begun left beside the folder. The caller holds the index's lock."""
    settle(folder)
    record = _record(folder)
    record.unlink(missing_ok=True)
    parent = folder.absolute().parent
    for half in parent.glob(f".{glob.escape(record.name)}.*"):  # a record that was being written
        half.unlink(missing_ok=True)
    for left in parent.glob(f"{glob.escape(_beside(folder))}*"):
        shutil.rmtree(left, ignore_errors=True)


def beside(folder: Path) -> Path:
    """Where the folder that is to take the place of another is written."""
    return folder.with_name(f"{_beside(folder)}{os.getpid()}")


def _beside(folder: Path) -> str:
    return f".{folder.name}.refit-"


def _record(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.swap.json")
