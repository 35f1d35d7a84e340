"""Item vectors by row: stored ones, in memory, memory-mapped or in several segments.

`Vectors` is what searches need of them; `StoredVectors` is that over numpy arrays, `genius.search.tensors` on a GPU.
Vectors are float16 or float32 where they lie and float32 where they are compared. Knows arrays; nothing of items or scores.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.features import as_numpy
from genius.search.arrays import HOST, ROOT_OF_SHRINKAGE, Array, Arrays, Floats, Ints, shrunken_halves

BLOCK = 8_192  # rows of one block: 8 MB at width 256
COMPARED = 1 << 17  # numbers of vectors that are compared with one query at a time: they stay in the processor's cache


class Vectors(Protocol):
    """(N, D) vectors by item row, read in pieces."""

    @property
    def arrays(self) -> Arrays:
        """Operations on what `take` and `blocks` return."""
        ...

    def __len__(self) -> int: ...

    @property
    def width(self) -> int:
        """D."""
        ...

    def take(self, rows: Ints) -> Array:
        """(n,) rows -> (n, D) float32.

        Args:
            rows: (n,) rows, in any order.
        """
        ...

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """First row and (n, D), as `Arrays.products` reads them, of consecutive blocks that cover all rows in order."""
        ...


class _Scratch(threading.local):
    """Memory that a thread reads vectors into, kept: fresh pages for every query take longer than the vectors themselves."""

    def __init__(self) -> None:
        self.halves: NDArray[np.float16] = np.empty(COMPARED, np.float16)
        self.floats: Floats = np.empty(COMPARED, np.float32)


_scratch = _Scratch()


class StoredVectors:
    """Vectors in one or more segments, each an array or a memory-map.

    Args:
        segments: Each (n, D) float16 or float32.
        order: (N,) int64, where in the concatenated segments the vector of each row lies; None: in order.

    Raises:
        GeniusError: If a segment is not (n, D) floating point numbers of one width, or `order` points outside.
    """

    arrays: Arrays = HOST

    def __init__(self, segments: Sequence[Any], order: NDArray[np.int64] | None = None) -> None:
        if not segments:
            raise GeniusError("stored vectors need at least one segment")
        self.parts = [_checked(segment) for segment in segments]
        widths = {int(part.shape[1]) for part in self.parts}
        if len(widths) > 1:
            raise GeniusError(f"embeddings of different widths: {sorted(widths)}")
        self._precision = np.result_type(*(part.dtype for part in self.parts))
        self._starts = np.cumsum([0, *(len(part) for part in self.parts)])
        stored = int(self._starts[-1])
        self._count = stored
        self._order: Ints | None = None
        if order is not None:
            self._order = np.asarray(order, np.int64)
            self._count = len(self._order)
            if self._count and (int(self._order.min()) < 0 or int(self._order.max()) >= stored):
                raise GeniusError(f"the order of vectors points outside of {stored:,} stored ones")

    @classmethod
    def of(cls, vectors: Any) -> StoredVectors:
        """All vectors in one array.

        Args:
            vectors: (N, D) array, in memory or mapped from a file.
        """
        return cls([vectors])

    def extended(self, vectors: NDArray[Any]) -> StoredVectors:
        """These and, after them, more; these stay as they are.

        Args:
            vectors: (n, D) array of the rows that follow.
        """
        order = self._order
        if order is not None:
            added = int(self._starts[-1]) + np.arange(len(vectors))
            order = np.concatenate([order, added])
        return StoredVectors([*self.parts, vectors], order)

    @property
    def width(self) -> int:
        return int(self.parts[0].shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(int(part.nbytes) for part in self.parts)

    @property
    def segments(self) -> int:
        """Pieces that they lie in."""
        return len(self.parts)

    def __len__(self) -> int:
        return self._count

    def take(self, rows: Ints) -> Floats:
        """(n,) rows -> (n, D) float32.

        Args:
            rows: (n,) rows, in any order.
        """
        return HOST.float32(self._stored(rows))

    def products(self, queries: Floats, rows: Ints) -> Floats:
        """Inner products of each query with the vectors of its own rows.

        Args:
            queries: (Q, D).
            rows: (Q, C); products of padding (-1) have no meaning.

        Returns:
            (Q, C).
        """
        out = np.empty(rows.shape, np.float32)
        places = np.maximum(rows, 0)
        if self._order is not None:
            places = self._order[places]
        at_once = max(1, COMPARED // self.width)
        for query in range(len(rows)):
            for first in range(0, rows.shape[1], at_once):
                part = slice(first, first + at_once)
                self._compare(queries[query], places[query, part], out[query, part])
        return out

    def _compare(self, query: Floats, places: Ints, out: Floats) -> None:
        """Inner products of a query with the vectors at positions (n,) in the concatenated segments; `out` (n,): where to."""
        shape = (len(places), self.width)
        numbers = shape[0] * shape[1]
        if numbers > COMPARED:  # one vector
            np.dot(HOST.float32(self._at(places)), query, out=out)
            return
        floats = _scratch.floats[:numbers].reshape(shape)
        if self._precision == np.float32:
            np.dot(self._at(places, floats), query, out=out)
            return
        halves = self._at(places, _scratch.halves[:numbers].reshape(shape))
        shrunken = shrunken_halves(halves, floats)
        np.dot(shrunken, query * ROOT_OF_SHRINKAGE, out=out)  # half of the way before, half after: nothing over- or underflows
        out *= ROOT_OF_SHRINKAGE

    def _stored(self, rows: Ints) -> NDArray[Any]:
        """(n,) rows -> (n, D) in the precision in which they lie."""
        if self._order is not None:
            return self._at(self._order[rows])
        return self._at(rows)

    def _at(self, places: Ints, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """(n,) positions in the concatenated segments -> (n, D) in the precision in which they lie.

        Args:
            places: In any order.
            out: Where to; None: a new array.
        """
        if len(self.parts) == 1 and out is None:
            return self.parts[0][places]
        if len(self.parts) == 1:
            return self.parts[0].take(places, axis=0, out=out, mode="clip")  # other modes fill a copy of `out` first
        if out is None:
            out = np.empty((len(places), self.width), self._precision)
        segment = np.searchsorted(self._starts, places, "right") - 1
        for number in np.unique(segment).tolist():
            own = np.flatnonzero(segment == number)
            out[own] = self.parts[number][places[own] - self._starts[number]]
        return out

    def stored_blocks(self, size: int = BLOCK) -> Iterator[tuple[int, NDArray[Any]]]:
        """First row and (n, D) of consecutive blocks, in the precision in which they lie.

        Args:
            size: Most rows of a block.
        """
        if self._order is not None:
            for first in range(0, len(self), size):
                yield first, self._stored(np.arange(first, min(first + size, len(self))))
            return
        for part, start in zip(self.parts, self._starts[:-1].tolist(), strict=True):
            for first in range(0, len(part), size):
                yield start + first, part[first : first + size]

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, Floats]]:
        """First row and (n, D) float32 of consecutive blocks.

        Args:
            size: Most rows of a block.
        """
        for first, block in self.stored_blocks(size):
            yield first, HOST.float32(block)


def _checked(segment: Any) -> NDArray[Any]:
    array = as_numpy(segment)
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.floating):
        raise GeniusError(f"embeddings must be (items, width) floating point numbers, got {array.shape}")
    if array.dtype not in (np.float16, np.float32):
        return array.astype(np.float32)
    return array
