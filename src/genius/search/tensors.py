"""Search on a GPU: the array operations of `genius.search.arrays` in torch, and vectors that lie on a device.

Beam search uses the same operations for the trie on any device, because the decoder's beams are tensors. Imported only then.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.model.cuda import TRITON, WIDE_SUMS
from genius.search.arrays import Ints
from genius.search.vectors import StoredVectors
from genius.top_k import tensor_top_k

ROWS = 1 << 19  # of vectors on a device that are compared together
HOST_ROWS = 1 << 16  # of vectors in host memory that are brought there together
PINNED = (1 << 16, 1 << 26)  # bytes of a copy from a device through pinned host memory: smaller ones gain nothing
RESIDENT = 16  # arrays that are kept on the device
SIGNED: dict[Any, Any] = {np.dtype(np.uint16): np.int16, np.dtype(np.uint32): np.int32}
UNSIGNED_BITS = {torch.int16: 0xFFFF, torch.int32: 0xFFFFFFFF}


class TensorArrays:
    """torch.

    Args:
        device: Of all tensors.
    """

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)
        self._resident: dict[int, tuple[NDArray[Any], Tensor]] = {}

    def put(self, array: Any) -> Tensor:
        if isinstance(array, Tensor):
            return array.detach().to(self.device)
        array = np.asarray(array)
        signed = SIGNED.get(array.dtype)
        if signed is not None:
            array = array.view(signed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # read-only maps are only ever read
            return torch.from_numpy(array).to(self.device)

    def resident(self, array: NDArray[Any]) -> Tensor:
        known = self._resident.get(id(array))
        if known is not None:
            return known[1]
        while len(self._resident) >= RESIDENT:
            self._resident.pop(next(iter(self._resident)))
        tensor = self.put(array)
        self._resident[id(array)] = (array, tensor)  # the array is kept, so that its id stays its own
        return tensor

    def host(self, array: Tensor) -> NDArray[Any]:
        if array.is_cuda and PINNED[0] <= array.numel() * array.element_size() <= PINNED[1]:
            on_host = torch.empty(array.shape, dtype=array.dtype, pin_memory=True)
            on_host.copy_(array, non_blocking=True)
            torch.cuda.current_stream(array.device).synchronize()
        else:
            on_host = array.cpu()
        numbers: NDArray[Any] = on_host.numpy()
        return numbers

    def int64(self, array: Tensor) -> Tensor:
        mask = UNSIGNED_BITS.get(array.dtype)
        if mask is None:
            return array.long()
        return array.long() & mask

    def float32(self, array: Tensor) -> Tensor:
        return array.float()

    def arange(self, count: int) -> Tensor:
        return torch.arange(count, device=self.device)

    def where(self, condition: Tensor, one: Any, other: Any) -> Tensor:
        return torch.where(condition, one, other)

    def minimum(self, array: Tensor, value: int) -> Tensor:
        return array.clamp(max=value)

    def concatenate(self, parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        return torch.cat(list(parts), axis)

    def repeat(self, values: Tensor, counts: Tensor) -> Tensor:
        return values.repeat_interleave(counts)

    def nonzero(self, mask: Tensor) -> Tensor:
        return mask.nonzero()[:, 0]

    def cumsum(self, values: Tensor) -> Tensor:
        return values.cumsum(0, dtype=torch.long)

    def searchsorted(self, ascending: Tensor, values: Tensor, right: bool = False) -> Tensor:
        return torch.searchsorted(ascending, values.to(ascending.dtype), right=right)

    def products(self, queries: Tensor, vectors: Tensor) -> Tensor:
        """Halves are multiplied as halves and summed in float32 where the device can: queries then lose some 1e-5."""
        if WIDE_SUMS and vectors.is_cuda and vectors.dtype == torch.float16:
            return torch.mm(queries.half(), vectors.T, out_dtype=torch.float32)
        return queries @ vectors.float().T

    def top_k(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return tensor_top_k(scores, k)


@lru_cache(maxsize=16)
def _arrays_of(device: torch.device) -> TensorArrays:
    return TensorArrays(device)


def tensor_arrays(device: str | torch.device) -> TensorArrays:
    """The operations of a device: the same object for the same device, by whatever name ("cuda" is one of "cuda:0", ...)."""
    return _arrays_of(torch.empty(0, device=device).device)


class TensorVectors:
    """Stored vectors for a search on a device.

    Args:
        source: The vectors in host memory.
        arrays: Operations of the device.
        on_host: Leave them in host memory and bring to the device what is compared. Otherwise they are moved there.
    """

    def __init__(self, source: StoredVectors, arrays: TensorArrays, on_host: bool = False) -> None:
        self.source = source
        self.arrays = arrays
        self.on_host = on_host
        self._moved: Tensor | None = None
        if not on_host:
            blocks = [arrays.put(block) for _, block in source.stored_blocks()]
            self._moved = torch.cat(blocks) if blocks else torch.empty(0, source.width, device=arrays.device)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def width(self) -> int:
        return self.source.width

    @property
    def nbytes(self) -> int:
        """Bytes, wherever they lie."""
        return self.source.nbytes

    @property
    def segments(self) -> int:
        """Pieces that they lie in."""
        return self.source.segments

    def take(self, rows: Ints) -> Tensor:
        """(n,) rows -> (n, D) float32 on the device."""
        if self._moved is None:
            return self.arrays.put(self.source.take(rows))
        return self._moved.index_select(0, self.arrays.put(rows)).float()

    def products(self, queries: Tensor, rows: Ints) -> Tensor:
        """Inner products of each query with the vectors of its own rows.

        Args:
            queries: (Q, D) float32 on the device.
            rows: (Q, C); products of padding (-1) have no meaning.

        Returns:
            (Q, C).
        """
        if self._moved is None:
            taken = self.take(np.maximum(rows, 0).reshape(-1))
        else:
            taken = self._moved.index_select(0, self.arrays.put(rows).clamp(min=0).flatten()).float()
        return (taken.view(*rows.shape, self.width) @ queries[:, :, None])[:, :, 0]

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """First row and (n, D) on the device, in the precision in which they lie, of consecutive blocks."""
        if self._moved is None:
            for first, block in self.source.stored_blocks(HOST_ROWS):
                yield first, self.arrays.put(block)
            return
        for first in range(0, len(self), ROWS):
            yield first, self._moved[first : first + ROWS]

    @cached_property
    def in_one_pass(self) -> bool:
        """Whether `nearest` suits them."""
        if self._moved is None or not self._moved.is_cuda or not TRITON:
            return False
        from genius.search.flat_kernel import suited

        return suited(self._moved)

    def nearest(self, queries: Tensor, k: int, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        """The largest inner products of queries (Q, D), best first, and their rows: (Q, min(k, N)) each.

        Args:
            queries: (Q, D) float32 on the device.
            k: How many.
            visible: (N,) bool rows that may be found; None: all. Beyond them products are -inf.
        """
        from genius.search.flat_kernel import nearest

        assert self._moved is not None
        return nearest(queries, self._moved, k, visible)

    def extended(self, vectors: NDArray[Any]) -> TensorVectors:
        """These and, after them, more; these stay as they are."""
        new = TensorVectors.__new__(TensorVectors)
        new.source = self.source.extended(vectors)
        new.arrays = self.arrays
        new.on_host = self.on_host
        new._moved = None
        if self._moved is not None:
            added = self.arrays.put(np.asarray(vectors)).to(self._moved.dtype)
            new._moved = torch.cat([self._moved, added])
        return new
