"""`TensorCells`: the cells and codes of `genius.search.cells` on a GPU, in the same arrays, scanned by one kernel.

Codes are looked up in float32, where the CPU looks them up in bytes: scores by codes are a little better, candidates hardly
differ. Knows arrays; nothing of modalities or of what a mask means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.search.arrays import Floats, Ints
from genius.search.cuda_graphs import CudaGraphs
from genius.search.tensors import TensorArrays
from genius.search.types import padded

CODE_BITS = 4
WORD = 8  # codes in 32 bits
SCORES = 1 << 28  # of codes that are held at a time: a gigabyte
FEW = 16  # queries whose kernels take less time than their launches: they run as a captured CUDA graph


@dataclass(frozen=True, slots=True)
class Found:
    """By codes, best first."""

    scores: Tensor  # (Q, C)
    rows: Tensor  # (Q, C), -1 where there are fewer


class TensorCells:
    """The codes of one modality on a device.

    Args:
        arrays: As `Cells.arrays` gives them: `means`, `query_transform`, `codebooks`, and, sorted by cell, `codes`, `rows` and
            `sizes`; numpy arrays, or tensors that are there already.
        ops: Operations of the device.
    """

    def __init__(self, arrays: dict[str, Any], ops: TensorArrays) -> None:
        self.ops = ops
        self.means = ops.put(arrays["means"])
        self.query_transform = ops.put(arrays["query_transform"])
        self.codebooks = ops.put(arrays["codebooks"])
        self.words = _words(ops.put(arrays["codes"]))
        self.rows = ops.put(arrays["rows"])
        self.sizes = ops.int64(ops.put(arrays["sizes"]))
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.count = len(self.means)
        self.graphs = CudaGraphs() if self.words.is_cuda else None
        self._seen: set[tuple[int, int, int]] = set()  # settings of earlier searches
        self._most_slots = np.sort(ops.host(self.sizes))[::-1].cumsum()  # of the largest cells

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        held = (self.means, self.query_transform, self.codebooks, self.words, self.rows, self.sizes, self.starts)
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def selector(self, mask: NDArray[np.bool_]) -> Tensor:
        """A mask over rows as `search` reads it."""
        return self.ops.put(mask)

    def search(self, queries: Floats, count: int, probes: int, allowed: Tensor | None = None) -> tuple[Floats, Ints]:
        """As `Cells.search`: scores by codes and rows, (Q, count) each, best first; rows are -1 where there are fewer."""
        on_device = self.ops.put(queries)
        found = None
        if allowed is None and len(on_device) <= FEW:
            found = self._replayed(on_device, count, probes)
        if found is None:
            found = self._search(on_device, count, probes, allowed)
        return padded(self.ops.host(found.scores), count, -np.inf), padded(self.ops.host(found.rows), count, -1)

    def _replayed(self, queries: Tensor, count: int, probes: int) -> Found | None:
        """As `_search`, by a captured CUDA graph, with slots for the largest cells; None: there is none, or not yet."""
        setting = (count, probes, len(queries))
        if self.graphs is None or not self.graphs.available:
            return None
        if setting not in self._seen:
            self._seen.add(setting)
            return None
        slots = int(self._most_slots[probes - 1])
        if 2 * FEW * slots > SCORES:
            return None

        def search(queries: Tensor) -> Found:
            return self._search(queries, count, probes, None, slots)

        found: Found | None = self.graphs.run(search, setting, len(queries), [queries], [])
        return found

    def _search(self, queries: Tensor, count: int, probes: int, allowed: Tensor | None, slots: int | None = None) -> Found:
        """As `search`, on the device. `slots`: at least as many as items in the probed cells; None: they are counted."""
        cell_scores, cells = self.ops.top_k(queries @ self.means.T, probes)
        ends = self.sizes[cells].cumsum(1)
        if slots is None:
            slots = int(ends[:, -1].max())
        width = min(count, slots)
        at_once = max(1, SCORES // max(slots, 1))
        scores = []
        rows = []
        for first in range(0, len(queries), at_once):
            part = slice(first, first + at_once)
            probed = _Probed(self, cells[part].contiguous(), cell_scores[part].contiguous(), ends[part].contiguous(), slots)
            best, places = self.ops.top_k(probed.scores(queries[part], allowed), width)
            scores.append(best)
            rows.append(self.rows[probed.positions(places)].long().masked_fill(torch.isneginf(best), -1))
        return Found(torch.cat(scores), torch.cat(rows))


class _Probed:
    """The cells that some queries probe, one after the other: every item of them has a slot.

    Args:
        index: With the codes.
        cells: (Q, P), best first.
        cell_scores: (Q, P).
        ends: (Q, P) int64, slots up to the end of each cell.
        slots: Of the query that has most.
    """

    def __init__(self, index: TensorCells, cells: Tensor, cell_scores: Tensor, ends: Tensor, slots: int) -> None:
        self.index = index
        self.cells = cells
        self.cell_scores = cell_scores
        self.ends = ends
        self.slots = slots

    def scores(self, queries: Tensor, allowed: Tensor | None) -> Tensor:
        """(Q, slots) scores by codes; -inf where there is no item, or one that may not be found."""
        if not queries.is_cuda:
            return self.plain_scores(queries, allowed)
        from genius.search.scan_kernel import look_up

        out = torch.full((len(queries), self.slots), -torch.inf, device=queries.device)
        look_up(self._tables(queries), self.index, self.cells, self.cell_scores, self.ends, allowed, out)
        return out

    def _tables(self, queries: Tensor) -> Tensor:
        """(Q, S, 16) what each code adds to a score."""
        subspaces, _, part = self.index.codebooks.shape
        transformed = (queries @ self.index.query_transform).view(len(queries), subspaces, part)
        return torch.einsum("qsp,scp->qsc", transformed, self.index.codebooks).contiguous()

    def plain_scores(self, queries: Tensor, allowed: Tensor | None) -> Tensor:
        """The same without a kernel, for devices that have none."""
        tables = self._tables(queries)
        every = torch.arange(self.slots, device=queries.device).repeat(len(queries), 1)
        exists = every < self.ends[:, -1:]
        positions = self.positions(every)
        total = self.cell_scores.gather(1, self._probe(every))
        for subspace in range(tables.shape[1]):
            word, place = divmod(subspace, WORD)
            codes = (self.index.words[word][positions] >> (CODE_BITS * place)) & (2**CODE_BITS - 1)
            total += tables[:, subspace].gather(1, codes.long())
        if allowed is not None:
            exists &= allowed[self.index.rows[positions].long()]
        return total.masked_fill(~exists, -torch.inf)

    def _probe(self, places: Tensor) -> Tensor:
        """(Q, m) slots -> which of its cells each is in; the last beyond the end."""
        return torch.searchsorted(self.ends, places.contiguous(), right=True).clamp(max=self.ends.shape[1] - 1)

    def positions(self, places: Tensor) -> Tensor:
        """(Q, m) slots -> positions among all codes; any beyond the end."""
        probe = self._probe(places)
        cell = self.cells.gather(1, probe)
        begin = self.ends.gather(1, probe) - self.index.sizes[cell]
        return (self.index.starts[cell] + places - begin).clamp(max=len(self.index.rows) - 1)


def _words(codes: Tensor) -> Tensor:
    """(n, bytes), two codes in each -> (words, n) int32, eight codes in each."""
    count, width = codes.shape
    words = -(-width // 4)
    padded = torch.zeros(count, 4 * words, dtype=torch.uint8, device=codes.device)
    padded[:, :width] = codes
    return padded.view(torch.int32).T.contiguous()
