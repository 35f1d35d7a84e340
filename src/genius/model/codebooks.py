"""Codebooks, one per level: rows, nearest codes, reconstructions, sizes; and how they are fitted by k-means.

Level 0 is the modality *by construction*: it is given, not predicted, so purity is 100 %. Its three vectors are the
running means of each modality, and subtracting them leaves the semantics to the later levels. The published variant (an
unsupervised 3-means at level 0) and the paper's ablations are `modality_code`s.

Fitting is k-means, level after level (the paper: on the first batch). Three additions to the paper, each off where the
config or the caller says so: the first codebooks of all modalities start alike; a modality of few items also fits its
later codebooks to points between its items, so that codes generalise; later levels are fitted to each other at the end.
Level by level, a codebook ignores that later ones correct its errors. `fit_together` moves the later levels' vectors
given all other levels: the same bits, a smaller error. The `settled` levels stay, because prefixes rank by them. Knows
vectors; nothing of how training moves codebooks, nor of choosing codes jointly (`quantizer`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.errors import GeniusError
from genius.model.assignment import half_squares, nearest_as_published, row_argmax, similarity
from genius.model.config import QuantizerConfig
from genius.ranking import nearest_rows
from genius.top_k import tensor_top_k


def nearest(vectors: Tensor, centroids: Tensor, chunk: int = 4096) -> Tensor:
    """(N,) index of the nearest centroid."""
    halves = half_squares(centroids)
    return torch.cat([row_argmax(similarity(part, centroids, halves)) for part in vectors.split(chunk)])


class Codebooks(nn.Module):
    """M codebooks and the moving averages that they are computed from."""

    def __init__(self, config: QuantizerConfig) -> None:
        super().__init__()
        self.config = config
        for level in range(self.count):
            size = config.codebook_size(level)
            # distinct, tiny, reproducible: an untrained quantizer still gives valid codes
            start = torch.randn(size, config.width, generator=torch.Generator().manual_seed(level)) * config.width**-0.5
            if level == 0 and config.modality_code == "classifier":
                start = torch.zeros_like(start)
            self.register_buffer(f"codes_{level}", start)
            self.register_buffer(f"sizes_{level}", torch.ones(size))
            self.register_buffer(f"sums_{level}", start.clone())
            self.register_buffer(f"unused_{level}", torch.zeros(size))

    @property
    def count(self) -> int:
        """How many codebooks there are: one per level, or two where they are shared."""
        return self.config.codebook_number(self.config.levels - 1) + 1

    def codebook(self, level: int) -> Tensor:
        """(K_level, D) code vectors; (3 K_level, D), one modality after the other, where each has its own."""
        return self.get_buffer(f"codes_{self.config.codebook_number(level)}")

    def codebook_of(self, level: int, modality: int | None) -> Tensor:
        """(K_level, D) code vectors of one modality's items; None: those of all."""
        codebook = self.codebook(level)
        if modality is None:
            return codebook
        return codebook[self.config.codebook_rows(level, modality)]

    def rows_of(self, level: int, code: Tensor, modality: Tensor) -> Tensor:
        """Rows of `codebook(level)` of codes (N,) whose items have these modalities (N,)."""
        if self.config.has_modality_codebooks(level):
            return code + modality * self.config.level_sizes[level]
        return code

    @property
    def codebooks(self) -> list[Tensor]:
        """Every level's codebook, by `rows_of`."""
        return [self.codebook(level) for level in range(self.config.levels)]

    def pick(self, residual: Tensor, level: int, modality: Tensor | None) -> Tensor:
        """Nearest codes (N,) of the level to residuals (N, D)."""
        if level == 0 and self.config.labelled:
            assert modality is not None
            return modality.long()
        search = nearest_as_published if self.config.modality_code == "nearest" else nearest
        if not self.config.has_modality_codebooks(level):
            return search(residual, self.codebook(level))  # Eq. 5
        assert modality is not None
        code = torch.empty(len(residual), dtype=torch.long, device=residual.device)
        for value in range(3):
            rows = (modality == value).nonzero()[:, 0]
            code[rows] = search(residual[rows], self.codebook_of(level, value))
        return code

    def vectors(self, level: int, code: Tensor, modality: Tensor | None) -> Tensor:
        """Code vectors (..., D) of codes (...) whose first codes are `modality` (...; None: level 0, or no modality)."""
        if modality is not None:
            code = self.rows_of(level, code, modality)
        return F.embedding(code, self.codebook(level))

    def decode(self, codes: Tensor) -> Tensor:
        """Sum of the code vectors of whole IDs (N, M): (N, D), not normalised."""
        self.check_codes(codes)
        return self.decode_prefix(codes)

    def decode_prefix(self, codes: Tensor) -> Tensor:
        """Sum of the code vectors of the first codes (N, l), l at least 1: (N, D). Codes are not checked."""
        out = self.vectors(0, codes[:, 0], None)
        for level in range(1, codes.shape[1]):
            out = out + self.vectors(level, codes[:, level], codes[:, 0])
        return out

    def code_scores(self, level: int, residual: Tensor, modality: Tensor | None) -> Tensor:
        """2 r.c - |c|^2 of every code of a level: (N, K).

        It is |r|^2 - |r - c|^2, which summed over levels is |z|^2 - |z - reconstruction|^2.

        Args:
            level: The level.
            residual: (N, D).
            modality: (N,) the first code; None at level 0.
        """
        if level == 0 and self.config.labelled:
            return residual.new_zeros(len(residual), self.config.level_sizes[0])  # the modality is given
        if modality is None or not self.config.has_modality_codebooks(level):
            return _reduction_of_error(residual, self.codebook(level))
        out = residual.new_empty(len(residual), self.config.level_sizes[level])
        for value in range(3):
            rows = (modality == value).nonzero()[:, 0]
            out[rows] = _reduction_of_error(residual[rows], self.codebook_of(level, value))
        return out

    def check_codes(self, codes: Tensor) -> None:
        """Raise one clear line unless `codes` (N, M) are of this quantizer's shape and range."""
        if codes.ndim != 2 or codes.shape[1] != self.config.levels:
            raise GeniusError(f"codes have shape {tuple(codes.shape)}, expected (N, {self.config.levels})")
        sizes = torch.tensor(self.config.level_sizes, device=codes.device)
        if codes.numel() and ((codes < 0) | (codes >= sizes)).any():
            raise GeniusError(f"codes out of range for levels of sizes {self.config.level_sizes}")

    def set_codebook(self, level: int, centroids: Tensor, counts: Tensor) -> None:
        """Set code vectors (K, D) and their cluster sizes (K,) as the start of the moving averages."""
        weight = (counts * (1.0 / max(counts.mean().item(), 1e-6))).clamp(min=1e-3)  # relative to an average code
        self.get_buffer(f"codes_{level}").copy_(centroids)
        self.get_buffer(f"sizes_{level}").copy_(weight)
        self.get_buffer(f"sums_{level}").copy_(centroids * weight[:, None])
        self.get_buffer(f"unused_{level}").zero_()


def _reduction_of_error(residual: Tensor, codebook: Tensor) -> Tensor:
    """(N, K) |r|^2 - |r - c|^2."""
    return 2 * residual @ codebook.T - codebook.square().sum(1)


NEIGHBOURS = 8  # of an item, towards which points between items lie
BETWEEN_FROM = 2  # levels from here on also learn from points between items

LEVELS = 8  # after the modality, where a collection's sizes are chosen
BELOW_FIRST = 40  # items below a first code, of all modalities together
PER_CODE = 12  # items that k-means should see for each code of the later levels
SMALLEST = 16  # codebook size
LARGEST = 4096


def choose_level_sizes(modality_counts: list[int]) -> tuple[int, ...]:
    """Sizes of all levels, the modality first, for items of each modality in the pool.

    The first code after the modality is the one that a decoder must get right, and at most 2,000 items (what the default
    search re-ranks) should be below 50 of its values. The later codes need no decoder: large codebooks keep more at the
    same bytes (docs/results/accuracy.md), as long as k-means has several items per code. 8 codes of at most 12 bits are
    the paper's 12 bytes per item.
    """
    if not modality_counts or max(modality_counts) < 1:
        raise GeniusError("the candidate pool is empty")
    first = _power_of_two(sum(modality_counts) / BELOW_FIRST * 2**0.5)  # the nearest one, by ratio
    later = _power_of_two(sum(modality_counts) / PER_CODE)
    return (3, first, *(max(first, later),) * (LEVELS - 1))


def _power_of_two(number: float) -> int:
    """The largest power of two that is not above `number`, within bounds."""
    size = SMALLEST
    while 2 * size <= min(number, LARGEST):
        size *= 2
    return size


@torch.no_grad()
def fit_codebooks(
    quantizer: Codebooks, z: Tensor, modality: Tensor | None, iterations: int, seed: int, together: int, between: int
) -> None:
    """Set every codebook from z (N, D). See `ResidualQuantizer.initialise`."""
    z = z.float()
    items = len(z)
    residual = z
    if between and modality is not None and quantizer.config.modality_codebooks_from:
        points, modality_of_points = _points_of_small_modalities(quantizer, z, modality, between, seed)
        residual = torch.cat([z, points])
        modality = torch.cat([modality, modality_of_points])
    codes = []
    for level in range(quantizer.config.levels):
        seen = len(residual)
        if level < BETWEEN_FROM:
            seen = items
        if not (quantizer.config.shared and level > 1):
            modality_of_seen = None if modality is None else modality[:seen]
            _fit_level(quantizer, level, residual[:seen], modality_of_seen, iterations, seed + level)
        codes.append(quantizer.pick(residual, level, modality))
        residual = residual - quantizer.vectors(level, codes[-1], modality)
    if together and items and not quantizer.config.shared:
        fit_together(quantizer, z, torch.stack(codes, 1)[:items], together)


def _points_of_small_modalities(
    quantizer: Codebooks, z: Tensor, modality: Tensor, between: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Points (P, D) and modalities (P,) that bring each modality to `between` vectors per code of the later levels."""
    size = max(quantizer.config.level_sizes[BETWEEN_FROM:], default=0)
    points = [z[:0]]
    modality_of_points = [modality[:0]]
    random = torch.Generator(z.device).manual_seed(seed)
    for value in range(3):
        modality_z = z[modality == value]
        missing = between * size - len(modality_z)
        if missing <= 0 or len(modality_z) < max(size, 2):  # fewer than codes: it learns from all modalities
            continue
        neighbour_rows = neighbours(modality_z, torch.zeros(len(modality_z), device=z.device), NEIGHBOURS)
        rows = torch.randint(len(modality_z), (missing,), device=z.device, generator=random)
        points.append(F.normalize(points_between(modality_z, neighbour_rows, rows, random), dim=1))
        modality_of_points.append(torch.full((missing,), value, dtype=modality.dtype, device=z.device))
    return torch.cat(points), torch.cat(modality_of_points)


def _fit_level(quantizer: Codebooks, level: int, residual: Tensor, modality: Tensor | None, iterations: int, seed: int) -> None:
    """Fit one level to residuals (N, D) of items with these modalities (N,)."""
    config = quantizer.config
    size = config.level_sizes[level]
    if level == 0 and config.modality_code == "classifier":
        return
    if level == 0 and config.labelled:
        assert modality is not None
        centroids = quantizer.codebook(0).clone()
        for value in range(3):
            if (modality == value).any():
                centroids[value] = residual[modality == value].mean(0)
        counts = torch.bincount(modality, minlength=3).float()
    elif config.has_modality_codebooks(level):
        assert modality is not None
        centroids, counts = _fit_modality_codebooks(residual, modality, size, level == 1, iterations, seed)
    else:
        centroids, counts = kmeans(residual, size, iterations=iterations, seed=seed)
    quantizer.set_codebook(level, centroids, counts)


def _fit_modality_codebooks(
    residual: Tensor, modality: Tensor, size: int, start_alike: bool, iterations: int, seed: int
) -> tuple[Tensor, Tensor]:
    """A codebook per modality, one after the other: centroids (3 size, D) and counts (3 size,).

    The first codebooks start alike, so that a code means much the same in every modality: a decoder learns it. A
    modality with fewer items than codes learns from all modalities: items that are added later must find codes too.
    """
    start = None
    if start_alike:
        start = kmeans(residual, size, iterations=iterations, seed=seed)[0]
    modality_residuals = [residual[modality == value] for value in range(3)]
    of_all: tuple[Tensor, Tensor] | None = None
    if any(len(vectors) < size for vectors in modality_residuals):
        of_all = kmeans(residual, size, iterations=iterations, seed=seed, start=start)
    fitted = []
    for vectors in modality_residuals:
        if len(vectors) < size and of_all is not None:
            fitted.append(of_all)
        else:
            fitted.append(kmeans(vectors, size, iterations=iterations, seed=seed, start=start))
    centroids, counts = zip(*fitted, strict=True)
    return torch.cat(centroids), torch.cat(counts)


def kmeans(
    vectors: Tensor, size: int, *, iterations: int = 20, seed: int = 0, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm; empty clusters are moved into the largest ones.

    With fewer rows than centroids the surplus centroids are slightly moved copies, so that every code stays a valid,
    distinct vector.

    Args:
        vectors: (N, D).
        size: Number of centroids.
        iterations: At most.
        seed: Of the random distinct rows that it starts from.
        start: (size, D) to start from instead.

    Returns:
        Centroids (size, D) and counts (size,).
    """
    n = len(vectors)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator)
    if n < size:
        order = torch.cat([order, torch.randint(n, (size - n,), generator=generator)])
    centroids = vectors[order[:size].to(vectors.device)].clone().float()
    scale = vectors.float().std(dim=0, correction=min(n - 1, 1)).mean().clamp(min=1e-6)  # one row has none
    if n < size:
        noise = torch.randn(size - n, vectors.shape[1], generator=generator).to(centroids)
        centroids[n:] += 0.1 * scale * noise
    if start is not None:
        centroids = start.to(vectors.device).clone().float()
    counts = torch.ones(size, device=vectors.device)
    before: Tensor | None = None
    for _ in range(iterations):
        labels = nearest(vectors.float(), centroids)
        if before is not None and torch.equal(labels, before):
            break  # nothing moves any more
        counts = torch.bincount(labels, minlength=size).float()
        sums = torch.zeros_like(centroids).index_add_(0, labels, vectors.float())
        centroids = torch.where((counts > 0)[:, None], sums / counts.clamp(min=1)[:, None], centroids)
        empty = (counts == 0).nonzero()[:, 0]
        before = labels
        if empty.numel() and n > size:
            donors = tensor_top_k(counts[None], empty.numel())[1][0]  # split the largest clusters
            noise = torch.randn(empty.numel(), vectors.shape[1], generator=generator).to(centroids)
            centroids[empty] = centroids[donors] + 0.05 * scale * noise
            before = None
    return centroids, counts


# -- points between items: learning from them keeps codes general for items that are added later ----------------


def neighbours(z: Tensor, modality: Tensor, count: int, limit: int = 100_000) -> Tensor:
    """(N, count) nearest items of the same modality. Beyond `limit` items, among a fixed random sample."""
    neighbour_rows = torch.empty(z.shape[0], count, dtype=torch.long, device=z.device)
    for value in modality.unique().tolist():
        rows = (modality == value).nonzero()[:, 0]
        others = rows
        if rows.numel() > limit:
            others = rows[torch.randperm(rows.numel(), generator=torch.Generator().manual_seed(0))[:limit].to(rows.device)]
        k = min(count + 1, others.numel())
        nearest = others[nearest_rows(z[rows], z[others], k)[:, min(1, k - 1) :]]  # the first is the item itself
        neighbour_rows[rows] = nearest[:, torch.arange(count, device=z.device) % nearest.shape[1]]
    return neighbour_rows


def points_between(z: Tensor, near: Tensor, rows: Tensor, random: torch.Generator | None = None) -> Tensor:
    """(n, D) somewhere between each of the items `rows` (n,) and one of its `near` (N, count); not normalised."""
    column = torch.randint(near.shape[1], rows.shape, device=z.device, generator=random)
    return torch.lerp(z[rows], z[near[rows, column]], torch.rand(len(rows), 1, device=z.device, generator=random))


# -- levels fitted to each other -----------------------------------------------------------------------------------


@torch.no_grad()
def fit_together(quantizer: Codebooks, z: Tensor, codes: Tensor, sweeps: int = 3, prior: float = 0.5) -> None:
    """Move code vectors to the mean residual of their items, given all other levels.

    Args:
        quantizer: Its levels from `settled` on are moved in place.
        z: (N, D) items.
        codes: (N, M) their codes.
        sweeps: Passes over the levels.
        prior: How many items a vector's old place counts as: codes of few items stay near the k-means centroid, so that
            items added later lose nothing.
    """
    residual = z.float() - quantizer.decode(codes)
    counts: dict[int, Tensor] = {}
    for _ in range(sweeps):
        for level in reversed(range(quantizer.config.settled, quantizer.config.levels)):
            codebook = quantizer.codebook(level)
            rows = quantizer.rows_of(level, codes[:, level], codes[:, 0])
            sums = torch.zeros_like(codebook).index_add_(0, rows, residual + codebook[rows])
            counts[level] = torch.bincount(rows, minlength=len(codebook)).to(codebook)
            moved = (sums + prior * codebook) / (counts[level][:, None] + prior)
            residual += codebook[rows] - moved[rows]
            codebook.copy_(moved)
    for level, count in counts.items():
        quantizer.set_codebook(level, quantizer.codebook(level), count)
