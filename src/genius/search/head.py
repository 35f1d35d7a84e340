"""What a decoder's head is, and the paper's: a free row for every code. Ours is `decoder.CodebookHead`: nearness to codebooks.

A head says what a code is read as, and log p of every code of a level. Rows are beams of all queries, flat. Matrices may be int8
on the CPU (`Int8Matrix`). Knows weights; nothing of attention, beams or tries.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.model.generator import START, Generator

Place = Callable[[Tensor], Tensor]


class Int8Matrix:
    """x @ weight with weight (in, out) held as int8; like a tensor, it answers `@` from the right.

    One scale a column; activations are quantized row-block by row-block as they come. About 3.5 times as fast as float32 on a CPU
    with VNNI. Used where beams only pick what is re-ranked; see `engine.py`.
    """

    def __init__(self, weight: Tensor) -> None:
        rows = weight.detach().float().T.contiguous()  # (out, in): one scale per output
        scale = (rows.abs().amax(1) / 127).clamp(min=1e-12).double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch announces a successor of this kind of tensor
            packed = torch.quantize_per_channel(rows, scale, torch.zeros(len(rows), dtype=torch.long), 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(packed, None)

    def __rmatmul__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.quantized.linear_dynamic(x, self.packed, False)
        return out


def int8_works() -> bool:
    """Whether this build of torch has int8 products."""
    try:
        out = torch.ones(1, 16) @ Int8Matrix(torch.ones(16, 16))
        return bool((out - 16).abs().max() < 1)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


class Products(Protocol):
    """The matrix products of a recorded search (`genius.search.cuda_kernels`)."""

    def logits(self, h: Tensor, head: Tensor) -> Tensor: ...
    def log_normalizer(self, h: Tensor, head: Tensor) -> Tensor: ...
    def pick(self, h: Tensor, head: Tensor, token: Tensor) -> Tensor: ...


class Head(Protocol):
    """`TableHead` or `CodebookHead`."""

    def inputs(self, codes: Tensor, begin: int) -> Tensor:
        """What is read for codes (R, l), from the input `begin` on (0 is the start): (R, l + 1 - begin, d)."""
        ...

    def rest(self, z: Tensor, codes: Tensor) -> Tensor | None:
        """(R, D) z minus the codes so far, where log p depends on it."""
        ...

    def log_p(
        self, level: int, hidden: Tensor, rest: Tensor | None, modality: Tensor | None, mass: Tensor | None = None
    ) -> Tensor:
        """States (R, d) -> (R, K_level) float32. `modality` (R,) are the first codes, None at level 0."""
        ...

    def mass(self, hidden: Tensor) -> Tensor | None:
        """Log of what every level's logits are divided by, where all levels share it: (R, d) -> (R,)."""
        ...

    def path(self, level: int, hidden: Tensor, rest: Tensor | None, codes: Tensor) -> Tensor:
        """Sum of log p of the codes (R, M) from `level` on; hidden (R, M - level, d) -> (R,)."""
        ...

    def narrow(self) -> None:
        """Use int8 products from now on, where that is worth it."""
        ...

    # the same for a recorded search: shapes depend on no value, products are `ops`'
    def fixed(
        self, level: int, hidden: Tensor, rest: Tensor | None, modality: Tensor | None, ops: Products
    ) -> tuple[Tensor, Tensor]:
        """Logits (R, K_level) and the log of what they are divided by (R,)."""
        ...

    def fixed_path(self, level: int, hidden: Tensor, rest: Tensor | None, codes: Tensor, ops: Products) -> Tensor:
        """As `path`."""
        ...


class TableHead:
    """A free row for every code (the paper's)."""

    def __init__(self, generator: Generator, place: Place) -> None:
        config = generator.config
        self.config, weight = config, generator.tokens.weight.detach()
        self.tokens = place(weight)  # (V, d) inputs
        # T5 scales tied embeddings; the final norm's weight goes into the head as well
        self.table = place(weight.float() * generator.final_norm.weight.detach().float() * config.d_model**-0.5)  # (V, d)
        # logits are at most |h| |w|: where that cannot overflow, exp needs no shift
        self.calm = float(self.table.float().norm(dim=1).max()) * config.d_model**0.5 < 80
        self.pieces = 1024 if self.table.device.type == "cpu" else 8192  # columns at a time: on a CPU they stay in cache
        self.int8: list[Int8Matrix] | None = None

    def inputs(self, codes: Tensor, begin: int) -> Tensor:
        tokens = [codes.new_full((len(codes), 1), START)]
        tokens += [codes[:, i : i + 1] + self.config.offsets[i] for i in range(codes.shape[1])]
        return F.embedding(torch.cat(tokens[begin:], 1), self.tokens)

    def rest(self, z: Tensor, codes: Tensor) -> None:
        return None

    def rows(self, level: int) -> Tensor:
        """(K_level, d) of the output table."""
        start = self.config.offsets[level]
        return self.table[start : start + self.config.level_sizes[level]]

    def log_p(
        self, level: int, hidden: Tensor, rest: Tensor | None, modality: Tensor | None, mass: Tensor | None = None
    ) -> Tensor:
        logits = self._logits(level, hidden)
        if self.config.normalizer == "level":
            return logits.log_softmax(1)
        if mass is None:
            mass = self._normalizer(hidden, level, logits)
        return logits - mass[:, None]

    def mass(self, hidden: Tensor) -> Tensor | None:
        return self._normalizer(hidden) if self.config.normalizer == "vocabulary" else None

    def path(self, level: int, hidden: Tensor, rest: Tensor | None, codes: Tensor) -> Tensor:
        count, length, width = hidden.shape
        if self.config.normalizer == "level":
            steps = [self._logits(level + i, hidden[:, i]).log_softmax(1) for i in range(length)]
            return torch.stack([s.gather(1, codes[:, level + i, None])[:, 0] for i, s in enumerate(steps)], 1).sum(1)
        chosen = torch.stack([self.rows(level + i)[codes[:, level + i]].float() for i in range(length)], 1)  # (R, L, d)
        own = (hidden.float() * chosen).sum(2)
        return (own - self._normalizer(hidden.reshape(count * length, width)).view(count, length)).sum(1)

    def narrow(self) -> None:
        self.specials = self.table[: self.config.offsets[0]].T.contiguous()
        self.int8 = [Int8Matrix(self.rows(level).T) for level in range(self.config.levels)]

    def fixed(
        self, level: int, hidden: Tensor, rest: Tensor | None, modality: Tensor | None, ops: Products
    ) -> tuple[Tensor, Tensor]:
        logits = ops.logits(hidden, self.rows(level))
        return logits, ops.log_normalizer(hidden, self.table) if self.config.normalizer == "vocabulary" else logits.logsumexp(1)

    def fixed_path(self, level: int, hidden: Tensor, rest: Tensor | None, codes: Tensor, ops: Products) -> Tensor:
        count, length, width = hidden.shape
        flat = hidden.reshape(count * length, width)
        tokens = torch.stack([codes[:, level + i] + self.config.offsets[level + i] for i in range(length)], 1)
        own = ops.pick(flat, self.table, tokens.flatten()).view(count, length)
        if self.config.normalizer == "vocabulary":
            return (own - ops.log_normalizer(flat, self.table).view(count, length)).sum(1)
        masses = [ops.logits(hidden[:, i].contiguous(), self.rows(level + i)).logsumexp(1) for i in range(length)]
        return (own - torch.stack(masses, 1)).sum(1)

    def _logits(self, level: int, hidden: Tensor) -> Tensor:
        if self.int8 is not None:
            return hidden @ self.int8[level]
        return (hidden @ self.rows(level).T).float()

    def _normalizer(self, hidden: Tensor, level: int = -1, logits: Tensor | None = None) -> Tensor:
        """log of the sum of exp over the whole table, (R, d) -> (R,) float32: the published normaliser.

        `logits` (R, K) of one `level` are not computed again.
        """
        if self.int8 is not None:
            others = [hidden @ matrix for i, matrix in enumerate(self.int8) if logits is None or i != level]
            parts = [hidden @ self.specials, *others, *([] if logits is None else [logits])]
            if self.calm:
                return torch.stack([part.exp().sum(1) for part in parts]).sum(0).log()
            return torch.stack([part.logsumexp(1) for part in parts]).logsumexp(0)
        if logits is None:
            spans = [(0, self.config.vocabulary)]
        else:
            start = self.config.offsets[level]
            spans = [(0, start), (start + logits.shape[1], self.config.vocabulary)]
        pieces = [(i, min(i + self.pieces, end)) for start, end in spans for i in range(start, end, self.pieces)]
        if not self.calm:
            sums = [(hidden @ self.table[i:j].T).float().logsumexp(1) for i, j in pieces]
            return torch.stack(sums if logits is None else [*sums, logits.logsumexp(1)]).logsumexp(0)
        rows = 512 if hidden.device.type == "cpu" else max(len(hidden), 1)
        mass = [self._mass(part, pieces) for part in hidden.split(rows)]
        total = torch.cat(mass) if mass else hidden.new_zeros(0)
        return (total if logits is None else total + logits.exp().sum(1)).log()

    def _mass(self, hidden: Tensor, pieces: list[tuple[int, int]]) -> Tensor:
        total = torch.zeros(len(hidden), device=hidden.device)
        for i, j in pieces:
            total += (hidden @ self.table[i:j].T).float().exp_().sum(1)
        return total
