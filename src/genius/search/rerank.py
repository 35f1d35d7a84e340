"""Re-ranking: the few items below the beams, scored against the query, by stored vectors or by what their codes stand for.

Knows vectors and codebooks; where candidates come from is the engine's business.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.model.quantizer import ResidualQuantizer

AT_ONCE = 65_536  # reconstructions held at a time


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """Vectors as int8 with one scale a row: 1/2 of fp16."""

    values: NDArray[np.int8] | Tensor  # (N, D)
    scales: NDArray[np.float32] | Tensor  # (N,)

    @classmethod
    def of(cls, vectors: NDArray[Any] | Tensor) -> Int8Rows:
        rows = torch.as_tensor(vectors).float()
        scales = (rows.abs().amax(1) / 127).clamp(min=1e-12)
        return cls((rows / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales)

    def __len__(self) -> int:
        return len(self.values)


Rows = NDArray[Any] | Tensor | Int8Rows


class Vectors:
    """Item vectors (N, D) by row: fp32, fp16 or int8, on the device, or `beside` it in memory or mapped; grows by parts."""

    def __init__(self, rows: Rows, device: torch.device, beside: bool = False) -> None:
        self.device = device
        self.place = torch.device("cpu") if beside else device
        self.parts: list[tuple[Tensor, Tensor | None]] = []
        self.starts: list[int] = []
        self.count = 0
        self._append(rows)

    def _append(self, rows: Rows) -> None:
        values, scales = (rows.values, rows.scales) if isinstance(rows, Int8Rows) else (rows, None)
        part = self._place(values)
        if part.ndim != 2 or (self.parts and part.shape[1] != self.width):
            raise GeniusError(f"embeddings must be (items, {self.width if self.parts else 'width'}), got {tuple(part.shape)}")
        if not part.is_floating_point() and scales is None:
            raise GeniusError("int8 embeddings need their scales: pass Int8Rows(values, scales)")
        self.parts.append((part, None if scales is None else self._place(scales)))
        self.starts.append(self.count)
        self.count += len(part)

    def extended(self, rows: Rows) -> Vectors:
        """These and more; these stay as they are."""
        more = copy.copy(self)
        more.parts, more.starts = list(self.parts), list(self.starts)
        more._append(rows)
        return more

    def _place(self, array: NDArray[Any] | Tensor) -> Tensor:
        if isinstance(array, Tensor):
            return array.detach().to(self.place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # read-only maps are only ever read
            return torch.from_numpy(np.asarray(array)).to(self.place)

    @property
    def width(self) -> int:
        return int(self.parts[0][0].shape[1])

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part, _ in self.parts)

    def __len__(self) -> int:
        return self.count

    def dots(self, query: Tensor, owner: Tensor, row: Tensor) -> Tensor:
        """query (Q, D), candidates (owner, row) flat, owners ascending -> (C,) dot products in float32."""
        counts = torch.bincount(owner, minlength=len(query)).tolist()
        # one matrix-vector product a query: its rows are read once, the query is not copied beside each
        parts = [self.take(rows) @ query[q] for q, rows in enumerate(row.split(counts)) if len(rows)]
        return torch.cat(parts) if parts else query.new_zeros(0)

    def take(self, row: Tensor) -> Tensor:
        """(C,) rows -> (C, D) float32."""
        if len(self.parts) == 1:
            return self._rows(0, row)
        out = torch.empty(len(row), self.width, device=self.device)
        for i, start in enumerate(self.starts):
            mine = ((row >= start) & (row < start + len(self.parts[i][0]))).nonzero()[:, 0]
            out[mine] = self._rows(i, row[mine] - start)
        return out

    def _rows(self, part: int, row: Tensor) -> Tensor:
        values, scales = self.parts[part]
        row = row.to(self.place)
        taken = values.index_select(0, row).to(self.device).float()  # three times as fast as values[row] on a CPU
        return taken if scales is None else taken * scales[row].to(self.device)[:, None]


class Reconstructions:
    """Cosine of queries and reconstructions, by codes."""

    def __init__(self, quantizer: ResidualQuantizer, device: torch.device) -> None:
        books = [book.detach().to(device, torch.float32) for book in quantizer.codebooks]
        self.table = torch.cat(books)  # (sum of K, D): one table, so that a reconstruction is one bag of rows
        sizes = torch.tensor([len(book) for book in books], device=device)
        self.starts = sizes.cumsum(0) - sizes
        config = quantizer.config
        own = [size * config.own_books(level) for level, size in enumerate(config.level_sizes)]
        self.steps = torch.tensor(own, device=device)  # rows between one modality's codebook and the next one's

    def cosine(self, z: Tensor, owner: Tensor, codes: Tensor) -> Tensor:
        """z (Q, D), owner (C,) row of z, codes (C, M) -> (C,) z . r / |r| with r the reconstruction."""
        parts = []
        for i in range(0, len(codes), AT_ONCE):
            rebuilt = self._rebuilt(codes[i : i + AT_ONCE])
            dots = (z[owner[i : i + AT_ONCE]] * rebuilt).sum(1)
            parts.append(dots / rebuilt.norm(dim=1).clamp(min=1e-12))
        return torch.cat(parts) if parts else z.new_zeros(0)

    def lengths(self, codes: Tensor) -> Tensor:
        """codes (C, M or the first few) -> (C,) |r|"""
        lengths: Tensor = self._rebuilt(codes).norm(dim=1).clamp(min=1e-12)
        return lengths

    def _rebuilt(self, codes: Tensor) -> Tensor:
        levels = codes.shape[1]
        rows = codes + self.starts[:levels] + codes[:, :1] * self.steps[:levels]
        rebuilt: Tensor = F.embedding_bag(rows, self.table, mode="sum")
        return rebuilt


def top_rows(owner: Tensor, row: Tensor, score: Tensor, queries: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Flat candidates (owner ascending) -> rows (Q, k), scores (Q, k), counts (Q,): best first, -1 and -inf beyond the end."""
    counts = torch.bincount(owner, minlength=queries)
    start = counts.cumsum(0) - counts
    most = int(counts.max()) if queries else 0
    table = torch.full((queries, most), -torch.inf, device=score.device)
    place = torch.arange(len(owner), device=owner.device) - start[owner]
    table[owner, place] = score
    best = table.sort(dim=1, descending=True, stable=True).indices[:, :k]
    rows = torch.full((queries, k), -1, dtype=torch.long, device=score.device)
    scores = torch.full((queries, k), -torch.inf, device=score.device)
    real = torch.arange(best.shape[1], device=owner.device) < counts[:, None]
    at = (start[:, None] + best).clamp(max=max(len(row) - 1, 0))
    if len(row):
        rows[:, : best.shape[1]] = torch.where(real, row[at], -1)
        scores[:, : best.shape[1]] = torch.where(real, score[at], -torch.inf)
    return rows, scores, counts
