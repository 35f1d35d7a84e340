"""The few array operations that a search is written in, by device: numpy on the CPU; torch on a GPU (`genius.search.tensors`).

Plans, re-rankers and the trie use these and what numpy arrays and tensors have in common (indexing, arithmetic, `@`), so each is
written once; a device changes the kernels. Knows arrays; nothing of searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from genius.features import as_numpy
from genius.top_k import top_k

Array = Any
"""A numpy array, or a tensor where the operations are torch's."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

HALF_SIGN_AND_FRACTION = np.int32(-0x70000001)  # the bits of a sign-extended half that are left after a shift by 13
SHRINKAGE = np.float32(2.0**112)  # exponents of halves are biased by 15, those of floats by 127
ROOT_OF_SHRINKAGE = np.float32(2.0**56)
HALVES_AT_ONCE = 1 << 18  # converted together: they stay in the processor's cache


class Arrays(Protocol):
    """Operations on the arrays of one device."""

    def put(self, array: Any) -> Array:
        """An array or tensor, on this device; numbers of unsigned types keep their bits (`int64` reads them)."""
        ...

    def resident(self, array: NDArray[Any]) -> Array:
        """As `put`, for an array that does not change: it is moved once, however often it is asked for."""
        ...

    def host(self, array: Array) -> NDArray[Any]:
        """A numpy array."""
        ...

    def int64(self, array: Array) -> Array:
        """Whole numbers of any type, unsigned ones included."""
        ...

    def float32(self, array: Array) -> Array:
        """Numbers of any type; quick for halves."""
        ...

    def arange(self, count: int) -> Array:
        """0..count-1, int64."""
        ...

    def where(self, condition: Array, one: Array, other: Array) -> Array:
        """`one` where the condition holds, `other` elsewhere."""
        ...

    def minimum(self, array: Array, value: int) -> Array:
        """Elements that are at most `value`."""
        ...

    def concatenate(self, parts: Sequence[Array], axis: int = 0) -> Array:
        """Parts one after the other."""
        ...

    def repeat(self, values: Array, counts: Array) -> Array:
        """Each of (n,) values as often as (n,) counts say."""
        ...

    def nonzero(self, mask: Array) -> Array:
        """(n,) positions where a mask (N,) holds."""
        ...

    def cumsum(self, values: Array) -> Array:
        """Cumulative sums of (n,) whole numbers or bool, int64."""
        ...

    def searchsorted(self, ascending: Array, values: Array, right: bool = False) -> Array:
        """Where values belong in an ascending array: before equal elements, or after them (`right`)."""
        ...

    def products(self, queries: Array, vectors: Array) -> Array:
        """(Q, n) float32 inner products of queries (Q, D) with vectors (n, D) of any precision."""
        ...

    def top_k(self, scores: Array, k: int) -> tuple[Array, Array]:
        """The k best of every row of (Q, n) scores: their scores and positions, (Q, min(k, n)), best first (`genius.top_k`)."""
        ...


class HostArrays:
    """numpy."""

    def put(self, array: Any) -> NDArray[Any]:
        return as_numpy(array)

    def resident(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def host(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def int64(self, array: NDArray[Any]) -> Ints:
        return array.astype(np.int64, copy=False)

    def float32(self, array: NDArray[Any]) -> Floats:
        if array.dtype == np.float16:
            return half_to_float(array)
        return array.astype(np.float32, copy=False)

    def arange(self, count: int) -> Ints:
        return np.arange(count)

    def where(self, condition: NDArray[np.bool_], one: Any, other: Any) -> NDArray[Any]:
        chosen: Any = np.where(condition, one, other)
        return np.asarray(chosen)

    def minimum(self, array: NDArray[Any], value: int) -> NDArray[Any]:
        smaller: NDArray[Any] = np.minimum(array, value)
        return smaller

    def concatenate(self, parts: Sequence[NDArray[Any]], axis: int = 0) -> NDArray[Any]:
        return np.concatenate(parts, axis)

    def repeat(self, values: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
        return np.repeat(values, counts)

    def nonzero(self, mask: NDArray[np.bool_]) -> Ints:
        return np.flatnonzero(mask)

    def cumsum(self, values: NDArray[Any]) -> Ints:
        return np.cumsum(values, dtype=np.int64)

    def searchsorted(self, ascending: NDArray[Any], values: NDArray[Any], right: bool = False) -> Ints:
        side: Any = "right" if right else "left"
        return np.searchsorted(ascending, values.astype(ascending.dtype), side)

    def products(self, queries: Floats, vectors: NDArray[Any]) -> Floats:
        found: Floats = queries @ self.float32(vectors).T
        return found

    def top_k(self, scores: Floats, k: int) -> tuple[Floats, Ints]:
        return top_k(scores, k)


HOST = HostArrays()


def half_to_float(halves: NDArray[np.float16]) -> Floats:
    """float16 -> float32, exactly, for finite numbers. Several times as fast as numpy's own conversion.

    Args:
        halves: Any shape.
    """
    out = np.empty(halves.shape, np.float32)
    flat = np.ascontiguousarray(halves).reshape(-1)
    flat_out = out.reshape(-1)
    for first in range(0, len(flat), HALVES_AT_ONCE):
        part = slice(first, first + HALVES_AT_ONCE)
        np.multiply(shrunken_halves(flat[part], flat_out[part]), SHRINKAGE, out=flat_out[part])
    return out


def shrunken_halves(halves: NDArray[np.float16], out: Floats) -> Floats:
    """float16 / `SHRINKAGE` -> float32, exactly, for finite numbers.

    A shift moves exponent and fraction of a half to where a float has them; their exponents are biased differently, which makes
    the numbers smaller. Products are made right by one multiplication each, where a conversion needs one for every number.

    Args:
        halves: Any shape, contiguous.
        out: Of the same shape, contiguous.
    """
    bits = out.view(np.int32)
    np.copyto(bits, halves.view(np.int16))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, HALF_SIGN_AND_FRACTION, out=bits)
    return out


class Best:
    """The k best of what comes in blocks, by query.

    Args:
        queries: Q.
        k: How many.
        arrays: Operations on scores.
    """

    def __init__(self, queries: int, k: int, arrays: Arrays) -> None:
        self.k = k
        self.arrays = arrays
        self.scores: Array = arrays.put(np.empty((queries, 0), np.float32))  # (Q, min(k, rows so far)), best first
        self.rows: Array = arrays.put(np.empty((queries, 0), np.int64))

    def add(self, rows: Array, scores: Array) -> None:
        """Rows (n,) and their scores (Q, n)."""
        arrays = self.arrays
        values, places = arrays.top_k(scores, self.k)
        self.scores = arrays.concatenate([self.scores, values], 1)
        self.rows = arrays.concatenate([self.rows, rows[places]], 1)
        if self.scores.shape[1] > self.k:
            self.scores, places = arrays.top_k(self.scores, self.k)
            self.rows = self.rows[arrays.arange(len(self.rows))[:, None], places]
