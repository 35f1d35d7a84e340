"""Ids of files, and the ids that people deleted.

The id of a file is its path relative to the root of the index: the folder that holds everything that was indexed first. A file
elsewhere has its whole path. The root is read from the items themselves: each remembers the file it came from. So a file is the
same item however it is reached, and files of two folders never share an id. Links are resolved.

An item that was deleted by hand stays deleted when its folder is indexed again: its id is kept in `deleted.json`. Knows paths and
ids; nothing of pictures and models.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from genius.errors import GeniusError, said
from genius.files import read_json, write_json
from genius.index.paths import DELETED
from genius.index.searching import stream

if TYPE_CHECKING:
    from genius.index import Index

MAX_DELETED = 64 << 20  # bytes of the file of deleted ids


@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def real_path(path: str | Path) -> Path:
    """A file's path without links in its folders, whether it is there or not."""
    absolute = Path(path).absolute()
    return Path(_real_folder(str(absolute.parent))) / absolute.name


def file_id(path: Path, root: Path) -> str:
    """The id of a file.

    Args:
        path: Without links (`real_path`).
        root: Folder that ids are relative to.
    """
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return path.as_posix()


def common_root(paths: Sequence[str | Path]) -> Path:
    """The root of an index that holds no files yet: the folder that holds all of `paths`.

    Args:
        paths: Files and folders, at least one.
    """
    if not paths:
        raise GeniusError("name at least one file or folder to index")
    parents = []
    for path in map(Path, paths):
        parents.append(path.resolve().parent if path.is_dir() else real_path(path).parent)
    return Path(os.path.commonpath(parents))


def root_of(index: Index, paths: Sequence[str | Path], tables: Iterable[str]) -> Path:
    """The root of an index, as its items tell it.

    Args:
        index: The index.
        paths: What is indexed now: decides if the index holds no files, or its files have moved away.
        tables: Suffixes of tables: their rows have ids of their own.
    """
    _real_folder.cache_clear()  # links may have changed since
    suffixes = tuple(tables)
    for row in stream(index, ["id", "_source"]):
        source = row["_source"]
        if source is None or source.lower().endswith(suffixes):
            continue
        path = real_path(source).as_posix()
        root = Path(path.removesuffix(f"/{row['id']}") or "/")
        if path.endswith(f"/{row['id']}") and root.is_dir():
            return root
    return common_root(paths)


def deleted_ids(folder: Path) -> set[str]:
    """Ids of files that were deleted from the index by hand.

    Raises:
        GeniusError: They cannot be read. Taken for none, they would come back, and the next deletion would forget them for good.
    """
    try:
        body = read_json(folder / DELETED, MAX_DELETED)
    except FileNotFoundError:
        return set()
    except GeniusError as error:
        raise GeniusError(f"{said(error)}; nothing is changed (without the file, no id counts as deleted)") from None
    if not isinstance(body, list):
        raise GeniusError(
            f"{folder / DELETED} is not a list of ids; nothing is changed (without the file, no id counts as deleted)"
        )
    return {value for value in body if isinstance(value, str)}


def keep_deleted(folder: Path, ids: Iterable[str]) -> None:
    """Write the ids that stay deleted. The caller holds the lock of the index."""
    write_json(folder / DELETED, sorted(set(ids)), durable=True)
