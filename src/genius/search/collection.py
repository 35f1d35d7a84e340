"""`Collection`: one immutable view of the items that a search sees, at one moment.

Item rows are 0..N-1. The codes of the first rows are in a trie, those of rows added since in an array beside it; some rows may be
deleted. Every plan and re-ranker reads this one view. Knows rows, codes and vectors; nothing of models, tables or scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.search.trie import CodeTrie
from genius.search.vectors import BLOCK, StoredVectors, Vectors


@dataclass(frozen=True)
class Collection:
    """Items by row.

    Args:
        base: Trie of the rows before `first`; rows that it lacks are deleted.
        added: (n, M) codes of the rows from `first` on.
        first: First row of `added`.
        vectors: (N, D) by row; None: only codes are stored.
        alive: (N,) bool, which rows exist; None: all.
        device: Where rows are scored.
        labelled: Whether the first code of an ID is the modality.
        reconstruct: Codes (n, M) -> (n, D) unit vectors that they stand for; None: no quantizer is known.
    """

    base: CodeTrie
    added: NDArray[np.int64]
    first: int
    vectors: Vectors | None
    alive: Tensor | None
    device: torch.device
    labelled: bool
    reconstruct: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(
        cls,
        trie: CodeTrie,
        vectors: Vectors | None = None,
        *,
        device: str | torch.device = "cpu",
        labelled: bool = True,
        reconstruct: Callable[[Tensor], Tensor] | None = None,
    ) -> Collection:
        """A collection without additions.

        Args:
            trie: Codes of all rows; rows that have a vector and no code are deleted items.
            vectors: By row.
            device: Where rows are scored.
            labelled: Whether the first code of an ID is the modality.
            reconstruct: Codes (n, M) -> (n, D) unit vectors that they stand for.

        Raises:
            GeniusError: If there are fewer vectors than rows.
        """
        place = torch.device(device)
        rows = int(np.asarray(trie.order).max()) + 1 if trie.items else 0
        if vectors is not None and len(vectors) < rows:
            raise GeniusError(f"{len(vectors)} embeddings for {rows} item rows")
        rows = rows if vectors is None else len(vectors)
        added = np.empty((0, trie.levels), np.int64)
        made = cls(trie, added, rows, vectors, None, place, labelled, reconstruct)
        return made if trie.items == rows else replace(made, alive=made.has_codes)

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
        base = self.base if trie is None else trie
        rows = first + len(codes)
        stored = self.vectors
        if vectors is not None:
            if not isinstance(stored, StoredVectors):
                raise GeniusError("this collection stores no embeddings that can grow")
            stored = stored.extended(vectors)
        if stored is not None and len(stored) != rows:
            raise GeniusError(f"{len(stored)} embeddings for {rows} item rows")
        changed = replace(self, base=base, added=codes, first=first, vectors=stored, alive=None)
        if alive is not None:
            if alive.shape != (rows,):
                raise GeniusError(f"alive has shape {alive.shape} for {rows} item rows")
            return replace(changed, alive=torch.as_tensor(alive, device=self.device))
        return changed if base.items == first else replace(changed, alive=changed.has_codes)

    def __len__(self) -> int:
        """Rows, dead or alive."""
        return self.first + len(self.added)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        return self.base.level_sizes

    @cached_property
    def items(self) -> int:
        """Rows that exist."""
        return len(self) if self.alive is None else int(self.alive.sum())

    @cached_property
    def trie(self) -> CodeTrie:
        """Trie of all rows, those added since included; merged when it is first asked for."""
        if not len(self.added):
            return self.base
        return self.base.merged(self.added, self.first + np.arange(len(self.added)))

    @cached_property
    def has_codes(self) -> Tensor:
        """(N,) bool: rows that have an ID; the others were deleted before the trie was built."""
        known = torch.zeros(len(self), dtype=torch.bool)
        known[torch.from_numpy(np.asarray(self.base.order).astype(np.int64))] = True
        known[self.first :] = True
        return known.to(self.device)

    @cached_property
    def reconstructed(self) -> Vectors | None:
        """(N, D) unit vectors that IDs stand for; None: no quantizer is known."""
        return None if self.reconstruct is None else ReconstructedVectors(self, self.reconstruct)

    @cached_property
    def modality(self) -> Tensor | None:
        """(N,) int64 modality of each row, -1 of rows without a code; None where codes do not say it."""
        if not self.labelled:
            return None
        out = np.full(len(self), -1, np.int64)
        trie = self.base
        if trie.items:
            codes, counts = trie.children(())  # ascending, as items are sorted
            out[np.asarray(trie.order)] = np.repeat(codes, counts)
        out[self.first :] = self.added[:, 0]
        return torch.from_numpy(out).to(self.device)

    @cached_property
    def modality_counts(self) -> NDArray[np.int64]:
        """(3,) living items of each modality; of a collection whose codes do not say it, all in the first."""
        if self.modality is None:
            return np.array([self.items, 0, 0])
        living = self.modality if self.alive is None else self.modality[self.alive]
        return torch.bincount(living[living >= 0], minlength=3).cpu().numpy()

    def allowed_rows(self, allowed: Tensor | None) -> Tensor | None:
        """(N,) or (Q, N) bool: rows that pass `allowed` and exist; None: all."""
        if allowed is None:
            return self.alive
        return allowed if self.alive is None else allowed & self.alive

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
        reconstruct: Codes (n, M) -> (n, D) unit vectors.
    """

    def __init__(self, collection: Collection, reconstruct: Callable[[Tensor], Tensor]) -> None:
        self.collection = collection
        self.reconstruct = reconstruct
        self._width = int(reconstruct(torch.zeros(1, len(collection.level_sizes), dtype=torch.long, device=self.device)).shape[1])

    def __len__(self) -> int:
        return len(self.collection)

    @property
    def width(self) -> int:
        return self._width

    @property
    def device(self) -> torch.device:
        return self.collection.device

    def take(self, rows: Tensor) -> Tensor:
        """(n,) rows -> (n, D) float32; zeros for rows without an ID."""
        known = self.collection.has_codes[rows]
        out = torch.zeros(len(rows), self.width, device=self.device)
        codes = self.collection.codes_of(rows[known].cpu().numpy())
        out[known] = self.reconstruct(torch.from_numpy(codes).to(self.device))
        return out

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, Tensor]]:
        """First row and (n, D) of consecutive blocks."""
        for first in range(0, len(self), size):
            yield first, self.take(torch.arange(first, min(first + size, len(self)), device=self.device))
