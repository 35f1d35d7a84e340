"""Files: atomic and durable writes, JSON that may be untrusted, and object-store addresses in place of paths."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import Any

from genius.errors import GeniusError, said

MAX_JSON = 64 << 20
"""Default limit of a JSON file, in bytes."""


def write_whole(path: Path, write: Callable[[Path], object], *, durable: bool = False) -> None:
    """Write a file atomically: a crash or a full disk leaves the old file or the new one.

    Args:
        path: The file.
        write: Fills the temporary file it is given, which is then renamed.
        durable: Sync the bytes and then the name to disk before returning, so that a power cut loses neither.

    Raises:
        GeniusError: If the disk is full, the folder is read-only, or writing fails otherwise.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        if durable:
            sync_file(temporary)
        _replace(temporary, path)
        if durable:
            sync_directory(path.parent)
    except GeniusError:
        raise
    except Exception as error:  # libraries tell of the disk in errors of their own
        reason = disk_problem(error)
        if reason is None and not isinstance(error, OSError):
            raise
        raise GeniusError(f"cannot write {path}: {reason or getattr(error, 'strerror', None) or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json(path: Path, body: Any, *, indent: int | None = None, durable: bool = False) -> None:
    """Write a JSON file atomically.

    Args:
        path: The file.
        body: JSON-ready values.
        indent: Spaces per level; None: one line.
        durable: It is on the disk when this returns.
    """
    text = json.dumps(body, indent=indent, ensure_ascii=False) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), durable=durable)


def _replace(temporary: Path, path: Path) -> None:
    """Put a file that only this process knows in the place of another; done is done, whatever the call reports."""
    try:
        temporary.replace(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or os.path.lexists(temporary):
            raise


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder. A call that reports an error although it did its work, as network file systems do, is no error.

    Raises:
        OSError: It was not renamed.
    """
    try:
        source.rename(target)
    except OSError:
        if os.path.lexists(source) or not os.path.lexists(target):
            raise


_SIGNS = {
    "No space left": "the disk is full",
    "StorageFull": "the disk is full",
    "File too large": "the disk is full (file too large)",
    "FileTooLarge": "the disk is full (file too large)",
    "os error 28": "the disk is full",
    "os error 27": "the disk is full (file too large)",
    "Read-only file system": "the folder is read-only",
    "os error 30": "the folder is read-only",
    "Permission denied": "no permission",
    "PermissionDenied": "no permission",
    "os error 13": "no permission",
    "os error 5)": "input/output error",
}


def disk_problem(error: BaseException) -> str | None:
    """A description if an error of any library reports a problem of the disk; else None."""
    text = str(error)
    return next((description for sign, description in _SIGNS.items() if sign in text), None)


# -- on the disk, not only in the operating system's memory ------------------------------------------------------


def sync_file(path: Path) -> None:
    """Sync the bytes of a file to disk."""
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)  # Windows flushes nothing else
    try:
        sync_handle(handle)
    finally:
        os.close(handle)


def sync_handle(handle: int) -> None:
    if sys.platform == "darwin":  # there, fsync leaves the bytes in the drive's own memory
        import fcntl

        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
    else:
        os.fsync(handle)


def sync_directory(path: Path) -> None:
    """Sync the names in a folder to disk. Windows has no such call and does not need it."""
    if sys.platform == "win32":
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(files: Iterable[Path], directories: Iterable[Path]) -> None:
    """Sync files, then the folders that name them, several at a time."""
    with ThreadPoolExecutor(8, thread_name_prefix="genius-sync") as pool:
        list(pool.map(sync_file, files))
        list(pool.map(sync_directory, directories))


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. A pipe, which may block for ever, or a device, which may never end, is an OSError."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.open("rb")


@contextlib.contextmanager
def reading(what: str | Path, *errors: type[BaseException]) -> Iterator[None]:
    """Make what goes wrong while a file is read a `GeniusError` of one line.

    Args:
        what: The file, or what to call it.
        errors: What a library raises for a broken file, besides OSError.
    """
    caught: tuple[type[BaseException], ...] = (OSError, *errors)
    try:
        yield
    except GeniusError:
        raise
    except FileNotFoundError:
        raise GeniusError(f"cannot read {what}: no such file") from None
    except caught as error:
        raise GeniusError(f"cannot read {what}: {getattr(error, 'strerror', None) or said(error)}") from None


@contextlib.contextmanager
def disk_errors(failed: str, consequence: str = "") -> Iterator[None]:
    """Make an error of the operating system a `GeniusError` of one line.

    Args:
        failed: What could not be done, for the error: "cannot write FILE".
        consequence: What follows, for the end of the error.
    """
    try:
        yield
    except OSError as error:
        raise GeniusError(f"{failed}: {error.strerror or error}{consequence}") from None


# -- JSON --------------------------------------------------------------------------------------------------------


def read_json(path: Path, limit: int = MAX_JSON) -> Any:
    """Read a JSON file that may be untrusted.

    Args:
        path: The file.
        limit: Largest size in bytes.

    Raises:
        GeniusError: If it is too large, nested too deep, or not JSON.
        FileNotFoundError: If there is no such file.
    """
    try:
        file = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(str(path)) from None
    except OSError as error:
        raise GeniusError(f"cannot read {path}: {error.strerror or error}") from None
    with reading(path, ValueError), file:
        body = file.read(limit + 1)
        if len(body) > limit:
            raise GeniusError(f"cannot read {path}: larger than {limit:,} bytes")
        return parse_json(body)


def parse_json(text: str | bytes) -> Any:
    """`json.loads`, with a ValueError for JSON that is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def url_of(path: str | Path) -> str | None:
    """The address in an object store that a path stands for; None for an ordinary path. (A `Path` drops one of its slashes.)"""
    found = re.fullmatch(r"s3:/{1,2}([^/].*)", str(path))
    if found is None:
        return None
    return f"s3://{found[1].rstrip('/')}"
