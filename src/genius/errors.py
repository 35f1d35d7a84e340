"""The exception that users see (`GeniusError`), a bounded list of problems, and text for people: one-line messages, counts.

The command line prints the message of a `GeniusError` on one line and exits with status 2; the server responds with 4xx. Any
other exception that escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

KEPT = 10_000  # problems that are stored
LENGTH = 500  # characters of each


class GeniusError(ValueError):
    """Bad input, a foreign file, a wrong size: the message says what is wrong and what to do."""


class PictureError(GeniusError):
    """A picture that cannot be used; the message names it."""


class Problems(list[str]):
    """The first `KEPT` problems as printable lines; `total` counts all."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        super().__init__()
        self.total = 0
        self.extend(lines)

    def append(self, line: str, count: int = 1) -> None:
        """Add a line that stands for `count` problems."""
        self.total += count
        if len(self) < KEPT:
            super().append(printable(line))

    def extend(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.append(line)
        if isinstance(lines, Problems):
            self.total += lines.total - len(lines)

    def __iadd__(self, lines: Iterable[str]) -> Problems:  # type: ignore[override,misc]
        self.extend(lines)
        return self

    def insert(self, index: SupportsIndex, line: str) -> None:
        self.total += 1
        super().insert(index, printable(line))

    @property
    def left_out(self) -> int:
        return self.total - len(self)


def printable(text: str) -> str:
    """One line of text that any terminal and any JSON reader takes: no lone surrogates, no control characters."""
    if len(text) > LENGTH:
        text = f"{text[: LENGTH - 3]}..."
    return without_controls(text)


def without_controls(text: str) -> str:
    """Text in which what a terminal would obey is spelt out: items may come from anybody."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == " " else repr(c)[1:-1] for c in whole)


def said(error: BaseException) -> str:
    """The message of a library's exception as one short line; its class name if it has no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def counted(number: int, noun: str, width: int = 0) -> str:
    """A number with its noun: `1 item`, `1,234 items`, `2 queries`.

    Args:
        number: The number.
        noun: The noun in the singular.
        width: Columns of the number; singular and plural are then padded to one length, for tables.
    """
    plural = f"{noun}s"
    if noun.endswith("y"):
        plural = f"{noun[:-1]}ies"
    word = plural
    if number == 1:
        word = noun
    if width:
        word = word.ljust(len(plural))
    return f"{number:>{width},} {word}"
