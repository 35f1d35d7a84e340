"""Sorting codes: (N, M) small integers -> lexicographic order, by packing each code into machine words.

Knows only numbers. A code of 98 bits is two words; the first usually decides, so only ties look at the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def pack_codes(codes: Array, sizes: Sequence[int]) -> list[NDArray[np.uint64]]:
    """Columns -> as few 64-bit words as hold them, most significant level first: a list of (N,)."""
    words: list[NDArray[np.uint64]] = []
    room = 0
    for level, size in enumerate(sizes):
        bits = max(int(size - 1).bit_length(), 1)
        column = codes[:, level].astype(np.uint64)
        if bits > room:
            words.append(column)
            room = 64 - bits
        else:
            words[-1] <<= np.uint64(bits)
            words[-1] |= column
            room -= bits
    return words


def sort_codes(codes: Array, sizes: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Stable lexicographic order (N,), and for each sorted position the first level at which it differs
    from the position before (len(sizes): same code; 0 for the first)."""
    count = len(codes)
    words = pack_codes(codes, sizes)
    order = np.argsort(words[0], kind="stable")
    for depth in range(1, len(words)):
        # runs that are equal in every word so far are put in order by the next word
        same = np.ones(max(count - 1, 0), dtype=bool)
        for word in words[:depth]:
            ordered = word[order]
            same &= ordered[1:] == ordered[:-1]
        if not same.any():
            break
        inside = np.zeros(count, dtype=bool)
        inside[1:] |= same
        inside[:-1] |= same
        where = np.flatnonzero(inside)
        run = np.cumsum(~same[where[1:] - 1] | (where[1:] != where[:-1] + 1)) if len(where) > 1 else np.zeros(0, dtype=np.int64)
        run = np.concatenate([[0], run])
        order[where] = order[where][np.lexsort((words[depth][order[where]], run))]
    fresh = np.full(count, len(sizes), dtype=np.uint8)
    for level in range(len(sizes) - 1, -1, -1):
        column = codes[order, level]
        fresh[1:][column[1:] != column[:-1]] = level
    if count:
        fresh[0] = 0
    return order, fresh
