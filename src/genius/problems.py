"""A list of what went wrong, one line each, that does not grow without end: a stranger's file may hold a million bad rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

KEPT, LENGTH = 10_000, 500


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
