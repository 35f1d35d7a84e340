"""Where the vectors of a table version lie in the table's own data files.

Lance writes a column of fixed-size vectors as contiguous pages of files that never change once written. So a vector is stored
once: the cache keeps *extents* (file, byte offset, rows), and vectors are memory-mapped from the table. Pages are found by
searching for the bytes of a vector, and every vector is compared byte for byte with what LanceDB returned for its row. Where a
vector is not found (another encoding, another version of Lance), there are no extents, and the cache keeps a copy.

Guarantee: a row's extent holds exactly the row's vector, for as long as the file is as the ledger says.

Knows files and arrays; nothing of Lance's format but that.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NEAR = 1 << 20  # bytes behind the last vector that are searched first: a page's end, or rows that were deleted
FAR_SEARCHES = 256  # searches of whole files before extents are given up: the vectors lie in no order that maps are good for
UNKNOWN = -1
FEW = 4  # runs that are mapped one by one


@dataclass(frozen=True, slots=True)
class Extents:
    """Runs of consecutive rows whose vectors are consecutive in a file; together all rows."""

    files: tuple[str, ...]  # names below the table's folder
    runs: NDArray[np.int64]  # (R, 4): first row, rows, file number, byte offset

    def arrays(self, width: int) -> int:
        """How many arrays `mapped` gives for vectors of this width."""
        if len(self.runs) <= FEW:
            return len(self.runs)
        return len(np.unique(np.stack([self.runs[:, 2], self.runs[:, 3] % (2 * width)], axis=1), axis=0))

    def mapped(self, table: Path, width: int) -> tuple[list[NDArray[np.float16]], NDArray[np.int64] | None]:
        """Memory-maps of the vectors.

        Args:
            table: the table's folder.
            width: of a vector.

        Returns:
            (n, D) arrays, and (N,) where in their concatenation each row's vector is (None: in order).

        Raises:
            OSError: a file is not there, or ends early (ValueError).
        """
        size = 2 * width
        first, rows, number, offset = self.runs.T
        if len(self.runs) <= FEW:
            return [self._map(table, width, *run) for run in self.runs[:, 1:].tolist()], None
        # vectors of a file whose offsets differ by whole vectors are one array, whatever lies between them
        alignments, group = np.unique(np.stack([number, offset % size], axis=1), axis=0, return_inverse=True)
        group = group.reshape(-1)
        begin = np.full(len(alignments), np.iinfo(np.int64).max)
        end = np.zeros(len(alignments), np.int64)
        np.minimum.at(begin, group, offset)
        np.maximum.at(end, group, offset + rows * size)
        lengths = (end - begin) // size
        segments = [
            self._map(table, width, int(lengths[i]), int(alignments[i, 0]), int(begin[i])) for i in range(len(alignments))
        ]
        starts = np.cumsum(lengths) - lengths
        places = starts[group] + (offset - begin[group]) // size  # (R,) of the first row of each run
        order = np.repeat(places - first, rows) + np.arange(int(rows.sum()))
        return segments, order

    def _map(self, table: Path, width: int, rows: int, number: int, offset: int) -> NDArray[np.float16]:
        mapped = np.memmap(table / self.files[number], np.float16, mode="r", offset=offset, shape=(rows, width))
        return mapped.view(np.ndarray)


class Finder:
    """Finds vectors in data files, one batch after the other, in the order in which LanceDB returns them."""

    def __init__(self, table: Path, names: Sequence[str], rows: int, width: int) -> None:
        """`names`: data files of the version, below `table`; `rows` and `width` of the vectors."""
        self.names = tuple(names)
        self.size = 2 * width
        self.file = np.full(rows, UNKNOWN, np.int64)
        self.offset = np.full(rows, UNKNOWN, np.int64)
        self.whole = True  # every vector so far was found
        self._open = ExitStack()
        self._maps: list[mmap.mmap] = []
        self._at = (0, 0)  # file and byte where the next vector is expected
        self._far = 0
        for name in names:
            file = self._open.enter_context((table / name).open("rb"))
            self._maps.append(self._open.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))

    def close(self) -> None:
        self._open.close()

    def add(self, rows: NDArray[np.int64], vectors: NDArray[np.float16]) -> None:
        """Find the vectors (n, D) of `rows` (n,)."""
        done = 0
        while self.whole and done < len(rows):
            run = self._matching(vectors[done:])
            if not run:
                self._at = self._find(vectors[done].tobytes())
                run = 0
                if self.whole:
                    run = self._matching(vectors[done:])
            number, offset = self._at
            own = rows[done : done + run]
            self.file[own] = number
            self.offset[own] = offset + self.size * np.arange(run)
            self._at = number, offset + self.size * run
            done += run

    def _matching(self, vectors: NDArray[np.float16]) -> int:
        """How many of `vectors`, from the first on, lie where the next is expected."""
        number, offset = self._at
        if number >= len(self._maps):
            return 0
        count = min(len(vectors), (len(self._maps[number]) - offset) // self.size)
        if count <= 0:
            return 0
        there = np.frombuffer(self._maps[number][offset : offset + count * self.size], np.uint16).reshape(count, -1)
        same = (there == vectors[:count].view(np.uint16)).all(axis=1)
        if same.all():
            return count
        return int(np.argmin(same))

    def _find(self, body: bytes) -> tuple[int, int]:
        """The next place that holds these bytes: soon after the last, else anywhere in this file or another."""
        number, offset = self._at
        if number < len(self._maps):
            near = self._search(number, body, offset, offset + NEAR)
            if near >= 0:
                return number, near
        self._far += 1
        if self._far <= FAR_SEARCHES + len(self._maps):
            for step in range(len(self._maps)):
                other = (number + step) % len(self._maps)
                found = self._search(other, body, 0, len(self._maps[other]))
                if found >= 0:
                    return other, found
        self.whole = False
        return 0, 0

    def _search(self, number: int, body: bytes, start: int, end: int) -> int:
        while True:
            found = self._maps[number].find(body, start, end)
            if found < 0 or found % 2 == 0:  # a float16 begins at an even byte
                return found
            start = found + 1

    def extents(self) -> Extents | None:
        """Of all rows; None if a vector was not found."""
        if not self.whole or (self.file == UNKNOWN).any():
            return None
        if not len(self.file):
            return Extents((), np.empty((0, 4), np.int64))
        breaks = (np.diff(self.file) != 0) | (np.diff(self.offset) != self.size)
        first = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        rows = np.diff(np.append(first, len(self.file)))
        used = sorted({int(number) for number in self.file[first]})
        renumbered = np.searchsorted(used, self.file[first])
        return Extents(
            tuple(self.names[number] for number in used), np.stack([first, rows, renumbered, self.offset[first]], axis=1)
        )
