"""The one exception users are meant to see, its kind for pictures, a list of problems that does not grow without end, and how
words and counts are written for people.

The command line prints its message on one line and exits with status 2; the server answers 4xx with it.
Anything else that escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

KEPT, LENGTH = 10_000, 500  # problems that are kept, characters of each


class GeniusError(ValueError):
    """Bad input, a foreign file, a wrong size: the message says what is wrong and what to do."""


class PictureError(GeniusError):
    """A picture that cannot be used; the message names it."""


class Problems(list[str]):
    """The first lines; `total` counts all. Every line can be printed, whatever names and values are in it."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        super().__init__()
        self.total = 0
        self.extend(lines)

    def append(self, line: str, count: int = 1) -> None:
        """One line, which may stand for several (`count`)."""
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
    short = text if len(text) <= LENGTH else f"{text[: LENGTH - 3]}..."
    whole = short.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == " " else repr(c)[1:-1] for c in " ".join(whole.split(" ")))


def said(error: BaseException) -> str:
    """What an exception of some library says, as one short line; its name where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def counted(number: int, noun: str, width: int = 0) -> str:
    """`1 item`, `1,234 items`, `2 queries`; with a width of the number in columns, where one and many take the same room."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:>{width},} {noun if number == 1 else many:<{len(many) if width else 0}}"
