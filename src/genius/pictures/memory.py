"""How much memory decoding may take at a time, and giving it back.

One `Budget` for the process: threads that decode wait for room, in the order they came, so that a large picture is not
passed over for ever. glibc keeps what was freed for the next one who asks; after a large picture that is given back.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LARGE = 16_000_000  # bytes: freed blocks of this size are worth giving back


class Budget:
    """Bytes that may be in use at a time. Something larger than all of it is let in alone."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Wait until `size` more bytes fit; they are free again at the end."""
        taken, ticket = min(size, self.capacity), object()
        with self._changed:
            self._line.append(ticket)
            try:
                self._changed.wait_for(lambda: self._line[0] is ticket and self.used + taken <= self.capacity)
                self.used += taken
            finally:
                self._line.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self.used -= taken
                self._changed.notify_all()


def _find_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).malloc_trim  # type: ignore[no-any-return]
    except (OSError, AttributeError):  # another C library
        return None


_trim = _find_trim()
_left_over = threading.Event()  # something large was decoded since the last `tidy`


def give_back(freed: int) -> None:
    """Return free memory to the system, if `freed` bytes are worth the milliseconds. Does nothing where libc cannot."""
    if _trim is not None and freed >= LARGE:
        _left_over.set()
        _trim(0)


def tidy() -> None:
    """After work on several pictures: give back what was made of the large ones, too."""
    if _trim is not None and _left_over.is_set():
        _left_over.clear()
        _trim(0)
