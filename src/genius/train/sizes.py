"""Codebook sizes that fit a collection, where the config names none.

The first code after the modality is the one that a decoder must get right, and what is below 50 of its values should be at
most what the default search re-ranks (2,000 items): where it is less, more values are taken. The later ones say what no
decoder needs to know: large codebooks keep more at the same bytes (docs/results/accuracy.md), as long as k-means has several
items for each code. 8 codes of at most 12 bits are the paper's 12 bytes an item. Knows counts only.
"""

from __future__ import annotations

from genius.errors import GeniusError

LEVELS = 8  # after the modality
BELOW_FIRST = 40  # items below a first code, of all modalities together
PER_CODE = 12  # items that k-means should see for each code of the later levels
LEAST, MOST = 16, 4096


def choose_level_sizes(modality_counts: list[int]) -> tuple[int, ...]:
    """Items of each modality in the pool -> sizes of all levels, the modality first."""
    if not modality_counts or max(modality_counts) < 1:
        raise GeniusError("the candidate pool is empty")
    first = _power_of_two(sum(modality_counts) / BELOW_FIRST * 2**0.5)  # the nearest one, by ratio
    later = _power_of_two(sum(modality_counts) / PER_CODE)
    return (3, first, *(max(first, later),) * (LEVELS - 1))


def _power_of_two(number: float) -> int:
    """The largest one that is not above `number`, within bounds."""
    size = LEAST
    while 2 * size <= min(number, MOST):
        size *= 2
    return size
