"""`Collection`: one immutable view of the items that a search sees, at one moment.

Item rows are 0..N-1. The codes of the first rows are in a trie, those of rows added since in an array; some rows may be deleted.
Every plan and re-ranker reads this one view. Knows rows, codes and vectors; nothing of models, tables or scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.search.arrays import HOST, Arrays, Floats, Ints
from genius.search.trie import CodeTrie
from genius.search.vectors import BLOCK, Vectors

Reconstruct = Callable[[Ints], Floats]
"""Codes (n, M) -> (n, D) unit vectors that they stand for."""


@dataclass(frozen=True)
class Collection:
    """Items by row.

    Args:
        base: Trie of the rows before `first`; rows that it lacks are deleted.
        added: (n, M) codes of the rows from `first` on.
        first: First row of `added`.
        stored: (N, D) vectors by row; None: only codes are stored.
        alive: (N,) bool, which rows exist; None: all.
        device: Where vectors are compared: "cpu", "cuda" or another device of torch.
        labelled: Whether the first code of an ID is the modality.
        reconstruct: What codes stand for; None: no quantizer is known.
        by_codes: Items are compared by what their codes stand for, in place of vectors that are not stored.
    """

    base: CodeTrie
    added: NDArray[np.int64]
    first: int
    stored: Vectors | None
    alive: NDArray[np.bool_] | None
    device: str
    labelled: bool
    reconstruct: Reconstruct | None = None
    by_codes: bool = False

    @classmethod
    def of(
        cls,
        trie: CodeTrie,
        vectors: Vectors | None = None,
        *,
        device: str = "cpu",
        labelled: bool = True,
        reconstruct: Reconstruct | None = None,
        by_codes: bool = False,
    ) -> Collection:
        """A collection without additions.

        Args:
            trie: Codes of all rows; rows that have a vector and no code are deleted items.
            vectors: By row.
            device: Where vectors are compared.
            labelled: Whether the first code of an ID is the modality.
            reconstruct: What codes stand for.
            by_codes: Compare items by that, in place of vectors.

        Raises:
            GeniusError: If there are fewer vectors than rows.
        """
        rows = 0
        if trie.items:
            rows = int(np.asarray(trie.order).max()) + 1
        if vectors is not None:
            if len(vectors) < rows:
                raise GeniusError(f"{len(vectors)} embeddings for {rows} item rows")
            rows = len(vectors)
        added = np.empty((0, trie.levels), np.int64)
        made = cls(trie, added, rows, vectors, None, device, labelled, reconstruct, by_codes)
        return made._without_dead()

    def changed(
        self,
        first: int,
        added: NDArray[Any],
        vectors: NDArray[Any] | None = None,
        alive: NDArray[np.bool_] | None = None,
        trie: CodeTrie | None = None,
    ) -> Collection:
        """What this collection has become; this one stays as it is.

        Args:
            first: Rows before it are in the trie.
            added: (n, M) codes of the rows from `first` on.
            vectors: (m, D) of the rows that this collection lacks.
            alive: (N,) which rows exist; None: all that have codes.
            trie: In place of this one's.

        Raises:
            GeniusError: If the shapes do not fit.
        """
        codes = np.asarray(added).astype(np.int64)
        base = trie or self.base
        rows = first + len(codes)
        stored = self.stored
        if vectors is not None:
            extended = getattr(stored, "extended", None)
            if extended is None:
                raise GeniusError("this collection stores no embeddings that can grow")
            stored = extended(vectors)
        if stored is not None and len(stored) != rows:
            raise GeniusError(f"{len(stored)} embeddings for {rows} item rows")
        if alive is not None and alive.shape != (rows,):
            raise GeniusError(f"alive has shape {alive.shape} for {rows} item rows")
        changed = replace(self, base=base, added=codes, first=first, stored=stored, alive=alive)
        if alive is not None:
            return changed
        return changed._without_dead()

    def _without_dead(self) -> Collection:
        """This collection, in which rows without an ID are dead."""
        if self.base.items == self.first:
            return self
        return replace(self, alive=self.has_codes)

    def __len__(self) -> int:
        """Rows, dead or alive."""
        return self.first + len(self.added)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        return self.base.level_sizes

    @cached_property
    def items(self) -> int:
        """Rows that exist."""
        if self.alive is None:
            return len(self)
        return int(self.alive.sum())

    @cached_property
    def trie(self) -> CodeTrie:
        """Trie of all rows, those added since included; merged when it is first needed."""
        if not len(self.added):
            return self.base
        return self.base.merged(self.added, self.first + np.arange(len(self.added)))

    @cached_property
    def has_codes(self) -> NDArray[np.bool_]:
        """(N,) bool: rows that have an ID; the others were deleted before the trie was built."""
        known = np.zeros(len(self), bool)
        known[np.asarray(self.base.order)] = True
        known[self.first :] = True
        return known

    @property
    def vectors(self) -> Vectors | None:
        """(N, D) what items are compared by: stored vectors, or what codes stand for; None: there is nothing to compare."""
        if self.by_codes:
            return self.reconstructed
        return self.stored

    @cached_property
    def reconstructed(self) -> Vectors | None:
        """(N, D) unit vectors that IDs stand for; None: no quantizer is known."""
        if self.reconstruct is None:
            return None
        return ReconstructedVectors(self, self.reconstruct)

    @cached_property
    def modality(self) -> Ints | None:
        """(N,) int64 modality of each row, -1 of rows without a code; None where codes do not say it."""
        if not self.labelled:
            return None
        out = np.full(len(self), -1, np.int64)
        trie = self.base
        if trie.items:
            codes, counts = trie.children(())  # ascending, as items are sorted
            out[np.asarray(trie.order)] = np.repeat(codes, counts)
        out[self.first :] = self.added[:, 0]
        return out

    @cached_property
    def modality_counts(self) -> Ints:
        """(3,) living items of each modality; of a collection whose codes do not say it, all in the first."""
        if self.modality is None:
            return np.array([self.items, 0, 0])
        living = self.modality
        if self.alive is not None:
            living = living[self.alive]
        return np.bincount(living[living >= 0], minlength=3)

    @cached_property
    def has_several_modalities(self) -> bool:
        """Whether there are living items of more than one modality."""
        return int((self.modality_counts > 0).sum()) > 1

    def allowed_rows(self, allowed: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        """(N,) or (Q, N) bool: rows that pass `allowed` and exist; None: all."""
        if allowed is None:
            return self.alive
        if self.alive is None:
            return allowed
        return allowed & self.alive

    def codes_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) living rows -> (n, M) codes."""
        out = np.empty((len(rows), len(self.level_sizes)), np.int64)
        new = rows >= self.first
        out[new] = self.added[rows[new] - self.first]
        if not new.all():
            out[~new] = self.base.codes_of(rows[~new])
        return out


class ReconstructedVectors:
    """What the IDs of a collection stand for, as `Vectors`: computed from codes when they are read.

    Args:
        collection: With codes.
        reconstruct: What codes stand for.
    """

    arrays: Arrays = HOST

    def __init__(self, collection: Collection, reconstruct: Reconstruct) -> None:
        self.collection = collection
        self.reconstruct = reconstruct
        self._width = int(reconstruct(np.zeros((1, len(collection.level_sizes)), np.int64)).shape[1])

    def __len__(self) -> int:
        return len(self.collection)

    @property
    def width(self) -> int:
        return self._width

    def take(self, rows: Ints) -> Floats:
        """(n,) rows -> (n, D) float32; zeros for rows without an ID."""
        known = self.collection.has_codes[rows]
        out = np.zeros((len(rows), self.width), np.float32)
        out[known] = self.reconstruct(self.collection.codes_of(rows[known]))
        return out

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, Floats]]:
        """First row and (n, D) of consecutive blocks."""
        for first in range(0, len(self), size):
            yield first, self.take(np.arange(first, min(first + size, len(self))))
