"""Sorting codes: (N, M) small integers -> lexicographic order, by packing each code into machine words.

Knows only numbers. A code of 98 bits is two words, so two radix sorts; everything later reads the sorted words in
sequence instead of gathering rows. Any device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WORD = 63  # bits used of an int64: words stay non-negative


class SortedCodes:
    """The codes of a collection in order."""

    def __init__(self, codes: Tensor, sizes: Sequence[int]) -> None:
        """codes (N, M) integers, already known to be in range."""
        self.fields: list[tuple[int, int, int]] = []  # of each level: word, shift, mask
        words: list[Tensor] = []
        room = 0
        for level, size in enumerate(sizes):
            bits = max(int(size - 1).bit_length(), 1)
            if bits > room:
                words.append(codes[:, level].to(torch.int64, copy=True))
                room = WORD - bits
            else:
                words[-1] = words[-1].bitwise_left_shift_(bits).bitwise_or_(codes[:, level].to(torch.int64))
                room -= bits
            self.fields.append((len(words) - 1, bits, (1 << bits) - 1))
        shift, above = 0, len(words)
        for level in range(len(sizes) - 1, -1, -1):
            word, bits, mask = self.fields[level]
            shift = 0 if word != above else shift
            above = word
            self.fields[level] = (word, shift, mask)
            shift += bits
        # least significant word first: each sort is stable, so earlier orders survive among equals
        last, self.order = words[-1].sort(stable=True)
        self.words = [last]
        for earlier in reversed(words[:-1]):
            first, by = earlier[self.order].sort(stable=True)
            self.order = self.order[by]
            self.words = [first, *(later[by] for later in self.words)]

    def column(self, level: int) -> Tensor:
        """Codes of one level in sorted order: (N,) int64."""
        word, shift, mask = self.fields[level]
        return (self.words[word] >> shift) & mask

    def first_difference(self) -> Tensor:
        """(N,) uint8: the first level at which each differs from the one before; M: same code; 0 for the first."""
        levels = len(self.fields)
        fresh = torch.full((len(self.order),), levels, dtype=torch.uint8, device=self.order.device)
        for level in range(levels - 1, -1, -1):
            column = self.column(level)
            fresh[1:].masked_fill_(column[1:] != column[:-1], level)
        fresh[:1] = 0
        return fresh
