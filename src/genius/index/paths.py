"""Which paths belong to an index, and the one function that deletes any of them.

An index folder may come from somebody else. So nothing in it may lead out of it: a link, a pipe, a socket or a device anywhere
below the folder is refused before anything is read (`refuse_foreign`). Deletion proves first that the path lies in the index, or
is a folder next to it that this index made (`remove`). Knows names and files; nothing of tables, models or ledgers.

Beside an index `NAME` there may be

    .NAME.previous         what the last replacement (a refit, `genius reencode`) put aside: one generation, removed by the next
    .NAME.next             a replacement that is being written
    .NAME.snapshot         a snapshot to `NAME` that is being written

each of which has a file `origin.json` with the id of the index that it was made from, or (`.NAME.previous`) had it there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from genius.files import read_json, write_json

ABOUT = "genius.json"
LEDGER = "ledger.jsonl"
TABLE = "items"
ASIDE = "aside"
CACHE = "cache"
MODEL = "model"
ENCODED = "encoded"  # features of items on their way in, while a model is fitted to them
REENCODED = "reencoded"  # features of all items by another encoder, until the index is switched to it
PUBLISHED = "published.json"  # where copies of it were put
LEARNED = "queries.safetensors"  # queries that the index has learned from
DELETED = "deleted.json"  # ids of files that people deleted: they stay deleted when their folder is indexed again
ORIGIN = "origin.json"  # the id of the index that this one was made from, to take its place
OWN = frozenset(
    {
        ".lock",
        f"{TABLE}.lance",
        CACHE,
        ABOUT,
        LEDGER,
        ASIDE,
        MODEL,
        ENCODED,
        REENCODED,
        PUBLISHED,
        LEARNED,
        DELETED,
        ORIGIN,
    }
)
"""Names at the top of an index folder."""

HALF = tuple(
    f".{name}." for name in (ABOUT, LEDGER, ORIGIN, LEARNED, DELETED, PUBLISHED)
)  # how names of half-written files begin
MAX_SMALL = 1 << 20  # bytes of a small JSON file


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder that holds anything but regular files and folders.

    Args:
        folder: an index, or where one would be.

    Raises:
        GeniusError: a link, pipe, socket or device lies below the folder; one line names it.
    """
    waiting = [os.fspath(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False):
                        raise GeniusError(f"{entry.path} is {_what(entry)}: an index holds regular files and folders only")
        except (FileNotFoundError, NotADirectoryError):
            continue  # there is no index, or another process has removed this folder meanwhile
        except OSError as error:
            raise GeniusError(f"cannot read {folder}: {error.strerror or error}") from None


def _what(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "a link"
    return "a pipe, a socket or a device"


def remove(path: Path, index: Path, owner: str | None = None) -> None:
    """Delete a file or folder of an index. What is not there, or cannot be removed now, is left to the next time.

    Args:
        path: what to delete: inside of `index`, or next to it.
        index: the folder of the index.
        owner: the id of the index that made `path`; needed for what lies next to it.

    Raises:
        GeniusError: the path is not provably the index's own, or a link leads to it.
    """
    if path != index and path.is_relative_to(index):
        reached = index
        for step in path.relative_to(index).parts:
            reached = reached / step
            if step == ".." or reached.is_symlink():
                raise GeniusError(f"{reached} is a link, or leads out of {index}: it is not deleted")
    elif not is_sibling(path, index, owner):
        raise GeniusError(f"{path} was not made by the index {index}: it is not deleted")
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)  # does not follow links inside
    else:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            if os.path.lexists(path):
                raise GeniusError(f"cannot remove {path}: {error.strerror or error}") from None


# -- folders next to an index -------------------------------------------------------------------------------------


def previous_of(folder: Path) -> Path:
    """Where the generation before the present one is kept.

    Args:
        folder: Of the index.
    """
    return folder.with_name(f".{folder.name}.previous")


def replacement_of(folder: Path) -> Path:
    """Where a folder that is to take the place of `folder` is written.

    Args:
        folder: Of the index.
    """
    return folder.with_name(f".{folder.name}.next")


def snapshot_of(folder: Path) -> Path:
    """Where a snapshot is written that is to become `folder`.

    Args:
        folder: That the snapshot will be.
    """
    return folder.with_name(f".{folder.name}.snapshot")


def is_sibling(path: Path, folder: Path, owner: str | None) -> bool:
    """Whether `path`, next to the index `folder`, was made from the index with the id `owner`, and is nothing but that.

    Args:
        path: A folder, or a link.
        folder: Of the index.
        owner: The id of the index that should have made it.
    """
    beside = (previous_of(folder), replacement_of(folder), snapshot_of(folder))
    if path.absolute() not in [place.absolute() for place in beside]:
        return False
    if path.is_symlink() or not path.is_dir():
        return False
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError:
        return False
    if not all(name in OWN or name.startswith(HALF) for name in names):
        return False
    if all(name == ".lock" or name.startswith(HALF) for name in names):
        return True  # a folder that was just begun: there is nothing in it
    return owner is not None and owner in (origin_of(path), id_of(path), _copied_from(path))


def write_origin(folder: Path, owner: str) -> None:
    """Note from which index a folder is made, before anything else is in it.

    Args:
        folder: The new folder.
        owner: The id of the index that it is made from.
    """
    write_json(folder / ORIGIN, {"id": owner}, durable=True)


def origin_of(folder: Path) -> str | None:
    """The id of the index that `folder` was made from; None if nothing says so.

    Args:
        folder: Any folder.
    """
    return _text(folder / ORIGIN, "id")


def id_of(folder: Path) -> str | None:
    """The id of the index in `folder`; None if there is none, or it cannot be read."""
    return _text(folder / ABOUT, "id")


def _copied_from(folder: Path) -> str | None:
    """The id of the index that a snapshot was taken from."""
    return _text(folder / ABOUT, "copied", "id")


def _text(path: Path, *names: str) -> str | None:
    if path.is_symlink():
        return None
    try:
        body: Any = read_json(path, MAX_SMALL)
    except (FileNotFoundError, GeniusError):
        return None
    value = body
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    if isinstance(value, str):
        return value
    return None
