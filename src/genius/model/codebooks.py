"""The tables of code vectors, one a level: which row a code stands for, which code is nearest, what codes add up to; how large
tables are and how they are fitted to vectors: k-means level after level (the paper: on the first batch), and what is beyond it.

Level 0 says the modality *by construction*: it is given, not guessed, so purity is 100 %; its three vectors are the running means
of each modality, and subtracting them leaves the semantics to the later levels. The published variant (an unsupervised 3-means at
level 0) and the paper's ablations are `modality_code`s.

Three things beyond the paper, each off where the quantizer's config or the caller says so: the first codes of all modalities
start alike; a modality of few items learns its later codes from points between its items too, so that codes do not know these
items by heart and no others; later levels are fitted to each other at the end.

Level by level a codebook does not know that later ones will mend its errors. `fit_together` moves the later levels' vectors with
all other levels in view: the same bits, a smaller error. The `settled` levels stay: they are what prefixes rank by. Knows
vectors; nothing of how training moves tables, nor of choosing codes with the others in view (`quantizer`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.errors import GeniusError
from genius.ranking import nearest_rows

ModalityCode = Literal["given", "nearest", "classifier", "none"]
GradientEstimator = Literal["straight-through", "rotation"]


@dataclass(frozen=True, slots=True)
class QuantizerConfig:
    """Shape and update rule of the codebooks; the defaults are the paper's sizes."""

    width: int = 768  # of z
    level_sizes: tuple[int, ...] = (3,) + (4096,) * 8  # K_i of every level, modality first
    # given: level 0 is the item's modality. nearest: unsupervised, as published. classifier: a label that takes
    # no part in the residuals (supplement C.2). none: no modality code at all (Table 4).
    modality_code: ModalityCode = "given"
    shared: bool = False  # one codebook for all levels but the first (supplement C.5)
    gradient: GradientEstimator = "rotation"  # how L_mse reaches the fusion through the argmin
    decay: float = 0.9  # of the moving averages
    epsilon: float = 1e-5  # Laplace smoothing of cluster sizes
    # A code unused for `patience` times its expected interval is moved onto a random residual. The published
    # rule (moving-average size below 2, every step) is `published_revival`: it redraws most of a large codebook.
    patience: float = 4.0
    published_revival: bool = False
    encode_sweeps: int = 0  # how often later codes are chosen again in view of all the others (lower error; 0: as the paper)
    settled: int = 2  # the levels below are never chosen again, nor moved when levels are fitted to each other
    # > 0: from this level on every modality has codebooks of its own. A code is read after the modality's, so three tables
    # cost no bit of the ID, and texts do not share their codes with pictures. 0: one codebook a level, as the paper.
    own_books_from: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "level_sizes", tuple(int(k) for k in self.level_sizes))
        if len(self.level_sizes) < 2 or min(self.level_sizes) < 1:
            raise GeniusError(f"a quantizer needs at least two levels of positive size, got {self.level_sizes}")
        if self.modality_code != "none" and self.level_sizes[0] != 3:
            raise GeniusError(f"level 0 has one code per modality, so size 3, not {self.level_sizes[0]}")
        if self.shared and len(set(self.level_sizes[1:])) > 1:
            raise GeniusError("a shared codebook needs levels of equal size")
        if self.settled < 1:
            raise GeniusError(f"settled is {self.settled}; the modality at least is never chosen again")
        if self.own_books_from and (self.shared or not self.labelled):
            raise GeniusError("codebooks of each modality (own_books_from) need a modality code that is told, and are not shared")

    @property
    def levels(self) -> int:
        return len(self.level_sizes)

    @property
    def labelled(self) -> bool:
        """Whether level 0 is told rather than searched."""
        return self.modality_code in ("given", "classifier")

    def own_books(self, level: int) -> bool:
        """Whether every modality has a codebook of its own at this level."""
        return 0 < self.own_books_from <= level and level > 0


def nearness(vectors: Tensor, centres: Tensor, halves: Tensor) -> Tensor:
    """(N, K) v.c - |c|^2 / 2, the largest for the centre of least squared distance (Eq. 5); `halves` (K,) are |c|^2 / 2."""
    return (vectors @ centres.T).sub_(halves)


def largest(scores: Tensor) -> Tensor:
    """(N,) where each row's largest number stands. On a CPU numpy finds it in a tenth of torch's time."""
    return torch.from_numpy(scores.float().numpy().argmax(1)) if scores.device.type == "cpu" else scores.argmax(1)


def nearest(vectors: Tensor, centres: Tensor, chunk: int = 4096) -> Tensor:
    """(N,) index of the nearest centre."""
    halves = centres.square().sum(1) / 2
    return torch.cat([largest(nearness(part, centres, halves)) for part in vectors.split(chunk)])


def nearest_as_published(vectors: Tensor, centres: Tensor) -> Tensor:
    """`nearest` with the published order of operations, so that near-ties round the same way."""
    squared = vectors.square().sum(1, keepdim=True) + centres.square().sum(1) + vectors @ centres.T * -2
    return squared.clamp(min=0).sqrt().argmin(1)


class Codebooks(nn.Module):
    """M tables and the moving averages that they are made from."""

    def __init__(self, config: QuantizerConfig) -> None:
        super().__init__()
        self.config = config
        for level in range(self.books):
            size = config.level_sizes[level] * (3 if config.own_books(level) else 1)
            # distinct, tiny, reproducible: an untrained quantizer still gives valid codes
            start = torch.randn(size, config.width, generator=torch.Generator().manual_seed(level)) * config.width**-0.5
            if level == 0 and config.modality_code == "classifier":
                start = torch.zeros_like(start)
            self.register_buffer(f"codes_{level}", start)
            self.register_buffer(f"sizes_{level}", torch.ones(size))
            self.register_buffer(f"sums_{level}", start.clone())
            self.register_buffer(f"unused_{level}", torch.zeros(size))

    @property
    def books(self) -> int:
        return min(2, self.config.levels) if self.config.shared else self.config.levels

    def _book(self, level: int) -> int:
        return min(level, self.books - 1)

    def codebook(self, level: int) -> Tensor:
        """(K_level, D) code vectors; (3 K_level, D), one modality after the other, where each has its own."""
        return self.get_buffer(f"codes_{self._book(level)}")

    def book_of(self, level: int, modality: int) -> Tensor:
        """(K_level, D) code vectors of one modality's items."""
        return self.codebook(level)[self._block(level, modality)] if self.config.own_books(level) else self.codebook(level)

    def rows_of(self, level: int, code: Tensor, modality: Tensor) -> Tensor:
        """Rows of `codebook(level)` that codes (N,) of items with these modalities (N,) stand for."""
        return code + modality * self.config.level_sizes[level] if self.config.own_books(level) else code

    def _block(self, level: int, modality: int) -> slice:
        size = self.config.level_sizes[level]
        return slice(modality * size, (modality + 1) * size)

    @property
    def codebooks(self) -> list[Tensor]:
        """Every level's table, by `rows_of`."""
        return [self.codebook(level) for level in range(self.config.levels)]

    def pick(self, residual: Tensor, level: int, modality: Tensor | None) -> Tensor:
        """Nearest codes (N,) of the level to residuals (N, D)."""
        if level == 0 and self.config.labelled:
            assert modality is not None
            return modality.long()
        search = nearest_as_published if self.config.modality_code == "nearest" else nearest
        if not self.config.own_books(level):
            return search(residual, self.codebook(level))  # Eq. 5
        assert modality is not None
        code = torch.empty(len(residual), dtype=torch.long, device=residual.device)
        for kind in range(3):
            own = (modality == kind).nonzero()[:, 0]
            code[own] = search(residual[own], self.book_of(level, kind))
        return code

    def vectors(self, level: int, code: Tensor, modality: Tensor | None) -> Tensor:
        """Code vectors (..., D) of codes (...) whose first codes are `modality` (...; None: level 0, or no modality)."""
        return F.embedding(code if modality is None else self.rows_of(level, code, modality), self.codebook(level))

    def decode(self, codes: Tensor, levels: int | None = None) -> Tensor:
        """Sum of the code vectors of the first `levels` levels: (N, D), not normalised."""
        self.check_codes(codes)
        return self.decode_prefix(codes[:, : self.config.levels if levels is None else levels])

    def decode_prefix(self, codes: Tensor) -> Tensor:
        """Sum of the code vectors of the first codes (N, l), l at least 1: (N, D). Codes are not checked."""
        out = self.vectors(0, codes[:, 0], None)
        for level in range(1, codes.shape[1]):
            out = out + self.vectors(level, codes[:, level], codes[:, 0])
        return out

    def closeness(self, level: int, residual: Tensor, modality: Tensor | None) -> Tensor:
        """2 r.c - |c|^2 for every code of the level: (N, K). `modality` (N,) is the first code, None at level 0.
        It is |r|^2 - |r - c|^2, which summed over levels is |z|^2 - |z - reconstruction|^2."""
        if level == 0 and self.config.labelled:
            return residual.new_zeros(len(residual), self.config.level_sizes[0])  # the modality is told, not near
        if modality is None or not self.config.own_books(level):
            book = self.codebook(level)
            return 2 * residual @ book.T - book.square().sum(1)
        out = residual.new_empty(len(residual), self.config.level_sizes[level])
        for kind in range(3):
            own, book = (modality == kind).nonzero()[:, 0], self.book_of(level, kind)
            out[own] = 2 * residual[own] @ book.T - book.square().sum(1)
        return out

    def check_codes(self, codes: Tensor) -> None:
        """Raise one clear line unless `codes` (N, M) are of this quantizer's shape and range."""
        if codes.ndim != 2 or codes.shape[1] != self.config.levels:
            raise GeniusError(f"codes have shape {tuple(codes.shape)}, expected (N, {self.config.levels})")
        sizes = torch.tensor(self.config.level_sizes, device=codes.device)
        if codes.numel() and ((codes < 0) | (codes >= sizes)).any():
            raise GeniusError(f"codes out of range for levels of sizes {self.config.level_sizes}")

    def set_codebook(self, level: int, centres: Tensor, counts: Tensor) -> None:
        """Take code vectors (K, D) and how many vectors each stands for (K,) as where the moving averages start."""
        weight = (counts * (1.0 / max(counts.mean().item(), 1e-6))).clamp(min=1e-3)  # sizes relative to an average code
        self.get_buffer(f"codes_{level}").copy_(centres)
        self.get_buffer(f"sizes_{level}").copy_(weight)
        self.get_buffer(f"sums_{level}").copy_(centres * weight[:, None])
        self.get_buffer(f"unused_{level}").zero_()


NEIGHBOURS = 8  # of an item, towards which points between items lie
BETWEEN = 2  # levels from here on learn from points between items too

LEVELS = 8  # after the modality, where a collection's sizes are chosen
BELOW_FIRST = 40  # items below a first code, of all modalities together
PER_CODE = 12  # items that k-means should see for each code of the later levels
LEAST, MOST = 16, 4096


def choose_level_sizes(modality_counts: list[int]) -> tuple[int, ...]:
    """Items of each modality in the pool -> sizes of all levels, the modality first.

    The first code after the modality is the one that a decoder must get right, and what is below 50 of its values should be at
    most what the default search re-ranks (2,000 items): where it is less, more values are taken. The later ones say what no
    decoder needs to know: large codebooks keep more at the same bytes (docs/results/accuracy.md), as long as k-means has several
    items for each code. 8 codes of at most 12 bits are the paper's 12 bytes an item.
    """
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


@torch.no_grad()
def fit_codebooks(
    quantizer: Codebooks, z: Tensor, modality: Tensor | None, iterations: int, seed: int, together: int, between: int
) -> None:
    """Set every codebook from z (N, D). See `ResidualQuantizer.initialise`."""
    z, real = z.float(), len(z)
    residual, kinds = z, modality
    if between and modality is not None and quantizer.config.own_books_from:
        points, more = _between_few(quantizer, z, modality, between, seed)
        residual, kinds = torch.cat([z, points]), torch.cat([modality, more])
    codes = []
    for level in range(quantizer.config.levels):
        seen = real if level < BETWEEN else len(residual)
        if not (quantizer.config.shared and level > 1):
            _fit_level(quantizer, level, residual[:seen], None if kinds is None else kinds[:seen], iterations, seed + level)
        codes.append(quantizer.pick(residual, level, kinds))
        residual = residual - quantizer.vectors(level, codes[-1], kinds)
    if together and real and not quantizer.config.shared:
        fit_together(quantizer, z, torch.stack(codes, 1)[:real], together)


def _between_few(quantizer: Codebooks, z: Tensor, modality: Tensor, between: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points (P, D) and modalities (P,) that bring each modality to `between` vectors a code of the later levels."""
    size = max(quantizer.config.level_sizes[BETWEEN:], default=0)
    points, kinds = [z[:0]], [modality[:0]]
    random = torch.Generator(z.device).manual_seed(seed)
    for kind in range(3):
        own = z[modality == kind]
        missing = between * size - len(own)
        if missing <= 0 or len(own) < max(size, 2):  # fewer than codes: it learns from all modalities
            continue
        near = neighbours(own, torch.zeros(len(own), device=z.device), NEIGHBOURS)
        rows = torch.randint(len(own), (missing,), device=z.device, generator=random)
        points.append(F.normalize(points_between(own, near, rows, random), dim=1))
        kinds.append(torch.full((missing,), kind, dtype=modality.dtype, device=z.device))
    return torch.cat(points), torch.cat(kinds)


def _fit_level(quantizer: Codebooks, level: int, residual: Tensor, modality: Tensor | None, iterations: int, seed: int) -> None:
    config, size = quantizer.config, quantizer.config.level_sizes[level]
    if level == 0 and config.modality_code == "classifier":
        return
    if level == 0 and config.labelled:
        assert modality is not None
        centres = quantizer.codebook(0).clone()
        for kind in range(3):
            if (modality == kind).any():
                centres[kind] = residual[modality == kind].mean(0)
        counts = torch.bincount(modality, minlength=3).float()
    elif config.own_books(level):
        assert modality is not None
        # the first code is what a decoder learns: it starts alike for all, so that it says much the same in every modality
        start = kmeans(residual, size, iterations=iterations, seed=seed)[0] if level == 1 else None
        own = [residual[modality == kind] for kind in range(3)]
        # a modality of fewer items than codes learns from all: what comes later of it must find codes too
        few = [len(vectors) < size for vectors in own]
        everyone = kmeans(residual, size, iterations=iterations, seed=seed, start=start) if any(few) else None
        fitted = [
            everyone if lacking and everyone else kmeans(vectors, size, iterations=iterations, seed=seed, start=start)
            for vectors, lacking in zip(own, few, strict=True)
        ]
        centres, counts = (torch.cat(parts) for parts in zip(*fitted, strict=True))
    else:
        centres, counts = kmeans(residual, size, iterations=iterations, seed=seed)
    quantizer.set_codebook(level, centres, counts)


def kmeans(
    vectors: Tensor, size: int, *, iterations: int = 20, seed: int = 0, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm from random distinct rows, or from `start` (size, D); empty clusters are moved into the largest ones.

    Returns (size, D) centres and (size,) counts. With fewer rows than centres the surplus centres are slightly
    moved copies, so that every code stays a valid, distinct vector.
    """
    n, _ = vectors.shape
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator)
    if n < size:
        order = torch.cat([order, torch.randint(n, (size - n,), generator=generator)])
    centres = vectors[order[:size].to(vectors.device)].clone().float()
    scale = vectors.float().std(dim=0, correction=min(n - 1, 1)).mean().clamp(min=1e-6)  # one row has none
    if n < size:
        noise = torch.randn(size - n, vectors.shape[1], generator=generator).to(centres)
        centres[n:] += 0.1 * scale * noise
    if start is not None:
        centres = start.to(vectors.device).clone().float()
    counts = torch.ones(size, device=vectors.device)
    before: Tensor | None = None
    for _ in range(iterations):
        labels = nearest(vectors.float(), centres)
        if before is not None and torch.equal(labels, before):
            break  # nothing moves any more
        counts = torch.bincount(labels, minlength=size).float()
        sums = torch.zeros_like(centres).index_add_(0, labels, vectors.float())
        centres = torch.where((counts > 0)[:, None], sums / counts.clamp(min=1)[:, None], centres)
        empty = (counts == 0).nonzero()[:, 0]
        before = labels
        if empty.numel() and n > size:
            donors = counts.topk(empty.numel()).indices  # split the largest clusters
            noise = torch.randn(empty.numel(), vectors.shape[1], generator=generator).to(centres)
            centres[empty] = centres[donors] + 0.05 * scale * noise
            before = None
    return centres, counts


# -- points between items: what could still come. Learning from them keeps room for items that are added later ------------------


def neighbours(z: Tensor, modality: Tensor, count: int, limit: int = 100_000) -> Tensor:
    """(N, count) near items of the same modality. Beyond `limit` items, near among a fixed random sample."""
    near = torch.empty(z.shape[0], count, dtype=torch.long, device=z.device)
    for kind in modality.unique().tolist():
        rows = (modality == kind).nonzero()[:, 0]
        others = rows
        if rows.numel() > limit:
            others = rows[torch.randperm(rows.numel(), generator=torch.Generator().manual_seed(0))[:limit].to(rows.device)]
        k = min(count + 1, others.numel())
        found = others[nearest_rows(z[rows], z[others], k)[:, min(1, k - 1) :]]  # the first is the item itself
        near[rows] = found[:, torch.arange(count, device=z.device) % found.shape[1]]
    return near


def points_between(z: Tensor, near: Tensor, rows: Tensor, random: torch.Generator | None = None) -> Tensor:
    """(n, D) somewhere between each of the items `rows` (n,) and one of its `near` (N, count); not normalised."""
    column = torch.randint(near.shape[1], rows.shape, device=z.device, generator=random)
    return torch.lerp(z[rows], z[near[rows, column]], torch.rand(len(rows), 1, device=z.device, generator=random))


# -- levels in view of each other ---------------------------------------------------------------------------------------------


@torch.no_grad()
def fit_together(quantizer: Codebooks, z: Tensor, codes: Tensor, sweeps: int = 3, prior: float = 0.5) -> None:
    """Move the code vectors to where the items (N, D) with these codes (N, M) want them, the other levels being as they are.

    `prior` is how many items a vector's old place counts as: codes of few items stay near what k-means said, so that
    items that come later lose nothing.
    """
    rest = z.float() - quantizer.decode(codes)
    counts: dict[int, Tensor] = {}
    for _ in range(sweeps):
        for level in reversed(range(quantizer.config.settled, quantizer.config.levels)):
            book = quantizer.codebook(level)
            rows = quantizer.rows_of(level, codes[:, level], codes[:, 0])
            wanted = torch.zeros_like(book).index_add_(0, rows, rest + book[rows])
            counts[level] = torch.bincount(rows, minlength=len(book)).to(book)
            moved = (wanted + prior * book) / (counts[level][:, None] + prior)
            rest += book[rows] - moved[rows]
            book.copy_(moved)
    for level, count in counts.items():
        quantizer.set_codebook(level, quantizer.codebook(level), count)
