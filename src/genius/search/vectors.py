"""Stored item vectors by row: in memory, memory-mapped, or in several segments.

`Vectors` is what searches need of them; `StoredVectors` is that over arrays. Vectors are float16 or float32 where they lie and
float32 where they are compared. Knows arrays; nothing of items, tables or scores.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError

BLOCK = 32_768  # rows of one block: 32 MB at width 256
Array = NDArray[Any] | Tensor


class Vectors(Protocol):
    """(N, D) vectors by item row, read in pieces."""

    def __len__(self) -> int: ...

    @property
    def width(self) -> int:
        """D."""
        ...

    @property
    def device(self) -> torch.device:
        """Where `take` and `blocks` put what they read."""
        ...

    def take(self, rows: Tensor) -> Tensor:
        """(n,) rows -> (n, D) float32 on `device`."""
        ...

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, Tensor]]:
        """First row and (n, D) float32 on `device`, n <= `size`, of consecutive blocks that cover all rows in order."""
        ...


class StoredVectors:
    """Vectors in one or more segments, each an array, a memory-map or a tensor.

    Args:
        segments: Each (n, D) float16 or float32.
        order: (N,) int64, where in the concatenated segments the vector of each row lies; None: in order.
        device: Where vectors are compared.
        on_host: Keep the segments in host memory; what is read is brought to `device`. Otherwise they are moved there.

    Raises:
        GeniusError: If a segment is not (n, D) floating point numbers of one width, or `order` points outside.
    """

    def __init__(
        self,
        segments: Sequence[Array],
        order: NDArray[np.int64] | None = None,
        device: str | torch.device = "cpu",
        on_host: bool = False,
    ) -> None:
        self._device = torch.device(device)
        self._place = torch.device("cpu") if on_host else self._device
        if not segments:
            raise GeniusError("stored vectors need at least one segment")
        self.segments = [self._load(segment) for segment in segments]
        widths = {int(segment.shape[1]) for segment in self.segments}
        if len(widths) > 1:
            raise GeniusError(f"embeddings of different widths: {sorted(widths)}")
        lengths = [len(segment) for segment in self.segments]
        self._starts = np.cumsum([0, *lengths])
        self._order = None if order is None else torch.from_numpy(np.asarray(order, np.int64)).to(self._place)
        stored = int(self._starts[-1])
        known = self._order is None or not len(self._order)
        if self._order is not None and not known and (int(self._order.min()) < 0 or int(self._order.max()) >= stored):
            raise GeniusError(f"the order of vectors points outside of {stored:,} stored ones")
        self._count = stored if self._order is None else len(self._order)

    @classmethod
    def of(cls, vectors: Array, device: str | torch.device = "cpu", on_host: bool = False) -> StoredVectors:
        """All vectors in one array."""
        return cls([vectors], None, device, on_host)

    def _load(self, segment: Array) -> Tensor:
        if isinstance(segment, Tensor):
            tensor = segment.detach()
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # read-only maps are only ever read
                tensor = torch.from_numpy(np.asarray(segment))
        if tensor.ndim != 2 or not tensor.is_floating_point():
            raise GeniusError(f"embeddings must be (items, width) floating point numbers, got {tuple(tensor.shape)}")
        return tensor.to(self._place)

    def extended(self, vectors: Array) -> StoredVectors:
        """These and, after them, more; these stay as they are."""
        if self._order is None:
            return StoredVectors([*self.segments, vectors], None, self._device, self._place != self._device)
        order = self._order.cpu().numpy()
        added = int(self._starts[-1]) + np.arange(len(vectors))
        order = np.concatenate([order, added])
        return StoredVectors([*self.segments, vectors], order, self._device, self._place != self._device)

    @property
    def width(self) -> int:
        return int(self.segments[0].shape[1])

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def nbytes(self) -> int:
        """Bytes of all segments, wherever they lie."""
        return sum(int(segment.nbytes) for segment in self.segments)

    def __len__(self) -> int:
        return self._count

    def take(self, rows: Tensor) -> Tensor:
        """(n,) rows -> (n, D) float32."""
        places = rows.to(self._place)
        if self._order is not None:
            places = self._order[places]
        if len(self.segments) == 1:
            return self.segments[0].index_select(0, places).to(self._device).float()
        out = torch.empty(len(places), self.width, device=self._place)
        for segment, start, end in zip(self.segments, self._starts[:-1], self._starts[1:], strict=True):
            mine = ((places >= int(start)) & (places < int(end))).nonzero()[:, 0]
            out[mine] = segment.index_select(0, places[mine] - int(start)).float()
        return out.to(self._device)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, Tensor]]:
        """First row and (n, D) float32 of consecutive blocks."""
        if self._order is not None:
            for first in range(0, len(self), size):
                yield first, self.take(torch.arange(first, min(first + size, len(self))))
            return
        for segment, start in zip(self.segments, self._starts[:-1], strict=True):
            for first in range(0, len(segment), size):
                yield int(start) + first, segment[first : first + size].to(self._device).float()
