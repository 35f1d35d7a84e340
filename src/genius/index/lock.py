"""One writer at a time, on every system: the operating system's lock on a file in the index folder.

The system frees it when the process dies, however it dies, so a crash never leaves an index locked.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from genius.errors import GeniusError

# where a file system has no locks, newer releases would fall back to a file that outlives its process: refuse instead
_STRICT: dict[str, Any] = {"fallback_to_soft": False} if "fallback_to_soft" in signature(FileLock.__init__).parameters else {}


class WriterLock:
    """`with lock.hold():` waits up to `timeout` seconds for other threads and processes, then says who holds it."""

    def __init__(self, path: Path, timeout: float) -> None:
        self.path = path
        self.timeout = timeout
        self._thread = threading.RLock()
        self._depth = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        deadline = time.monotonic() + self.timeout
        if not self._thread.acquire(timeout=max(self.timeout, 0.0)):
            raise GeniusError(f"{self.path.parent} is being written by another thread; waited {self.timeout:g} s")
        try:
            if self._depth:  # the same thread again
                yield
                return
            lock = self._acquire(deadline)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                self._sign("")
                lock.release()
        finally:
            self._thread.release()

    def _acquire(self, deadline: float) -> FileLock:
        lock = FileLock(self.path, thread_local=False, **_STRICT)
        try:
            lock.acquire(timeout=max(deadline - time.monotonic(), 0.0), poll_interval=0.02)
        except Timeout:
            raise GeniusError(
                f"{self.path.parent} is being written by another process ({self._owner()}); waited {self.timeout:g} s"
            ) from None
        except OSError as error:
            raise GeniusError(f"cannot write to {self.path.parent}: {error.strerror or error}") from None
        self._sign(f"pid {os.getpid()}")
        return lock

    def _sign(self, owner: str) -> None:
        """Say who holds the lock: a courtesy, for which there may be no room, or (Windows) no permission."""
        with contextlib.suppress(OSError):
            self.path.write_text(owner)

    def _owner(self) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return self.path.read_text(encoding="ascii")[:32].strip() or "unknown"
        return "unknown"
