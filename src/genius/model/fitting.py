"""Codebooks from vectors: how large they are, k-means level after level (the paper: on the first batch), and what is beyond it.

Three things beyond the paper, each off where the quantizer's config or the caller says so: the first codes of all modalities
start alike; a modality of few items learns its later codes from points between its items too, so that codes do not know
these items by heart and no others; later levels are fitted to each other at the end.

Level by level a codebook does not know that later ones will mend its errors. `fit_together` moves the later levels' vectors, and
`choose_again` picks codes, with all other levels in view: the same bits, a smaller error. The `settled` levels stay: they are
what prefixes rank by. Knows codebooks and vectors, no training.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.errors import GeniusError
from genius.model.codebooks import Codebooks, nearest
from genius.ranking import nearest_rows

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


def choose_again(quantizer: Codebooks, z: Tensor, codes: Tensor, sweeps: int = 1) -> Tensor:
    """Codes (N, M) -> codes whose reconstruction is nearer z: each level's nearest code, the other levels being as they are."""
    codes, modality = codes.clone(), codes[:, 0]
    rest = z.float() - quantizer.decode_prefix(codes)
    for _ in range(sweeps):
        for level in range(quantizer.config.settled, quantizer.config.levels):
            rest = rest + quantizer.vectors(level, codes[:, level], modality)
            codes[:, level] = quantizer.pick(rest, level, modality)
            rest = rest - quantizer.vectors(level, codes[:, level], modality)
    return codes
