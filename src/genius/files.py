"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from genius.errors import GeniusError


def write_whole(path: Path, write: Callable[[Path], object], *, durable: bool = False) -> None:
    """Let `write` fill a file beside `path`, then rename it: a crash or a full disk never leaves half a file.

    `durable`: the bytes are on the disk before the name is, so that a power cut does not leave half a file either. Large
    files that can be made again do without the wait.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        if durable:
            with temporary.open("rb+") as file:  # for writing: Windows flushes nothing else
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise GeniusError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
