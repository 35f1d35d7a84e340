"""One writer at a time: an advisory lock on a file in the index folder.

The kernel frees it when the process dies, however it dies, so a crash never leaves an index locked.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from genius.errors import GeniusError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: threads of this process only
    fcntl = None  # type: ignore[assignment]


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
            handle = self._acquire(deadline)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                os.close(handle)  # closing frees the lock
        finally:
            self._thread.release()

    def _acquire(self, deadline: float) -> int:
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise GeniusError(f"cannot write to {self.path.parent}: {error.strerror or error}") from None
        if fcntl is None:  # pragma: no cover
            return handle
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    owner = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
                    os.close(handle)
                    raise GeniusError(
                        f"{self.path.parent} is being written by another process ({owner}); waited {self.timeout:g} s"
                    ) from None
                time.sleep(0.02)
            except OSError as error:
                os.close(handle)
                raise GeniusError(f"cannot lock {self.path}: {error.strerror or error}") from None
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"pid {os.getpid()}".encode(), 0)
        except OSError:
            pass  # a full disk: the name of the owner is a courtesy only
        return handle
