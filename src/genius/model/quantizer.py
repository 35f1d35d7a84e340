"""Quantizer: z -> codes, codes -> reconstruction (paper 4.2.2 - 4.2.3).

Residual quantization with one codebook per level. Level 0 says the modality *by construction*: it is given,
not guessed, so purity is 100 %; its three vectors are the running means of each modality, and subtracting
them leaves the semantics to the later levels. Knows nothing of losses' weights or training loops.

The published variant (an unsupervised 3-means at level 0) and the paper's ablations are `modality_code`s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from genius.errors import GeniusError
from genius.model.codebooks import choose_again, fit_codebooks, nearest, nearest_as_published

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


class Quantized(NamedTuple):
    """What one training pass through the quantizer gives."""

    codes: Tensor  # (N, M)
    vectors: Tensor  # (N, D) sum of the chosen codes; gradients pass to z
    residuals: list[Tensor]  # r_0 .. r_{M-1}, each (N, D), with gradients
    chosen: list[Tensor]  # e_1 .. e_M, each (N, D), detached


class ResidualQuantizer(nn.Module):
    """M codebooks, nearest neighbour on residuals (Eq. 4-6), moved by exponential averages, not by gradients."""

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

    # -- inference ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, z: Tensor, modality: Tensor | None = None, chunk: int = 8192) -> Tensor:
        """(N, D) unit vectors -> (N, M) int64 codes. `modality` (N,) is required when level 0 says it."""
        self._check(z, modality)
        parts = []
        for i in range(0, z.shape[0], chunk):
            labels = None if modality is None else modality[i : i + chunk]
            part = z[i : i + chunk].float()
            codes = self._encode(part, labels)
            parts.append(choose_again(self, part, codes, self.config.encode_sweeps) if self.config.encode_sweeps else codes)
        return torch.cat(parts) if parts else torch.empty(0, self.config.levels, dtype=torch.long, device=z.device)

    def _encode(self, z: Tensor, modality: Tensor | None) -> Tensor:
        residual, codes = z, []
        for level in range(self.config.levels):
            code = self.pick(residual, level, modality)
            codes.append(code)
            residual = residual - self.vectors(level, code, modality)  # Eq. 6
        return torch.stack(codes, dim=1)

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
        return self.codebook(level)[code if modality is None else self.rows_of(level, code, modality)]

    def decode(self, codes: Tensor, levels: int | None = None) -> Tensor:
        """Sum of the code vectors of the first `levels` levels: (N, D), not normalised."""
        self.check_codes(codes)
        return self.decode_prefix(codes[:, : self.config.levels if levels is None else levels])

    def decode_prefix(self, codes: Tensor) -> Tensor:
        """Sum of the code vectors of the first codes (N, l), l at least 1: (N, D). Codes are not checked."""
        out = self.codebook(0)[codes[:, 0]]
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

    def _check(self, z: Tensor, modality: Tensor | None) -> None:
        if z.ndim != 2 or z.shape[1] != self.config.width:
            raise GeniusError(f"vectors have shape {tuple(z.shape)}, expected (N, {self.config.width})")
        if not torch.isfinite(z).all():
            raise GeniusError("vectors hold NaN or infinity")
        if self.config.labelled:
            if modality is None:
                raise GeniusError("this quantizer's first code is the modality: pass `modality`")
            if modality.shape != (z.shape[0],) or (modality.numel() and not ((modality >= 0) & (modality < 3)).all()):
                raise GeniusError("modality must hold one of 0, 1, 2 for every vector")

    # -- training ----------------------------------------------------------------------------------------------

    def quantize(self, z: Tensor, modality: Tensor | None = None) -> Quantized:
        """Codes of `z` (N, D) with a gradient path, for the losses. Does not move the codebooks."""
        residual, total = z, torch.zeros_like(z)
        codes, residuals, chosen = [], [], []
        for level in range(self.config.levels):
            code = self.pick(residual.detach(), level, modality)
            vector = self.vectors(level, code, modality)
            codes.append(code)
            residuals.append(residual)
            chosen.append(vector)
            total = total + self._pass_gradient(residual, vector, level)
            residual = residual - vector
        return Quantized(torch.stack(codes, 1), total, residuals, chosen)

    def _pass_gradient(self, residual: Tensor, vector: Tensor, level: int) -> Tensor:
        if level == 0 and self.config.labelled:
            return vector  # told, not chosen by the residual: a constant
        return rotate_to(residual, vector) if self.config.gradient == "rotation" else residual + (vector - residual).detach()

    @torch.no_grad()
    def update(self, codes: Tensor, residuals: list[Tensor]) -> None:
        """Move the codebooks towards the mean of what they were chosen for (EMA, 4.2.4).

        Sums are taken over all processes, so that every process holds the same codebooks.
        """
        counts = [torch.zeros_like(self.get_buffer(f"sizes_{b}")) for b in range(self.books)]
        sums = [torch.zeros_like(self.get_buffer(f"sums_{b}")) for b in range(self.books)]
        for level, residual in enumerate(residuals):
            book, rows = self._book(level), self.rows_of(level, codes[:, level], codes[:, 0])
            counts[book].index_add_(0, rows, torch.ones_like(rows, dtype=counts[book].dtype))
            sums[book].index_add_(0, rows, residual.detach().to(sums[book].dtype))
        if _several_processes():
            for tensor in (*counts, *sums):
                dist.all_reduce(tensor)
        for book in range(self.books):
            if book == 0 and self.config.modality_code == "classifier":
                continue  # its vectors stay zero: the label takes no part in the residuals
            if not self.config.own_books(book):
                self._move(book, slice(None), counts[book], sums[book], residuals[book])
                continue
            for kind in range(3):
                own, block = residuals[book][codes[:, 0] == kind], self._block(book, kind)
                # a process without this modality in its share must still take part in the revival
                self._move(book, block, counts[book][block], sums[book][block], own if len(own) else residuals[book])

    def _move(self, book: int, block: slice, counts: Tensor, sums: Tensor, residual: Tensor) -> None:
        """Move one codebook, or one modality's block of it; `residual` (n, D) is what its codes were chosen for here."""
        decay, eps = self.config.decay, self.config.epsilon
        sizes, averages = self.get_buffer(f"sizes_{book}")[block], self.get_buffer(f"sums_{book}")[block]
        sizes.lerp_(counts, 1 - decay)
        averages.lerp_(sums, 1 - decay)
        total = sizes.sum()
        smoothed = (sizes + eps) / (total + sizes.numel() * eps) * total
        fresh = averages / smoothed[:, None]
        vectors, unused = self.get_buffer(f"codes_{book}")[block], self.get_buffer(f"unused_{book}")[block]
        unused.add_(1).masked_fill_(counts > 0, 0)
        if self.config.published_revival:
            vectors.copy_(fresh)
            dead = sizes < 2 if book > 0 or self.config.modality_code == "none" else torch.zeros_like(sizes, dtype=torch.bool)
        else:
            # a code that got nothing keeps its place: decaying averages would pull it to the origin
            vectors.copy_(torch.where((counts > 0)[:, None], fresh, vectors))
            expected = sizes.numel() / counts.sum().clamp(min=1)  # steps between two uses of an average code
            dead = unused > self.config.patience * expected.clamp(min=1)
            if book == 0 and self.config.labelled:
                dead = torch.zeros_like(dead)  # an absent modality is absent, not dead
        self._revive(book, block, dead, residual)

    def _revive(self, book: int, block: slice, dead: Tensor, residual: Tensor) -> None:
        """Put dead codes on random residuals of this step (the same on every process)."""
        rows = dead.nonzero()[:, 0]
        if rows.numel() == 0 or residual.shape[0] == 0:
            return
        picks = residual[torch.randint(residual.shape[0], (rows.numel(),), device=residual.device)].detach().float()
        if _several_processes():
            dist.broadcast(picks, src=0)
        sizes = self.get_buffer(f"sizes_{book}")[block]
        weight = 2.0 if self.config.published_revival else sizes.mean().clamp(min=1e-3)
        self.get_buffer(f"codes_{book}")[block][rows] = picks  # slices are views: this writes into the buffers
        self.get_buffer(f"sums_{book}")[block][rows] = picks * weight
        sizes[rows] = weight
        self.get_buffer(f"unused_{book}")[block][rows] = 0

    def initialise(
        self, z: Tensor, modality: Tensor | None = None, iterations: int = 20, seed: int = 0, together: int = 0, between: int = 0
    ) -> None:
        """k-means on a large sample, level after level (the paper: on the first batch). `together`: so many sweeps that fit the
        later levels to each other. `between`: a modality with fewer vectors a code also learns from points between them."""
        self._check(z, modality)
        fit_codebooks(self, z, modality, iterations, seed, together, between)

    def set_codebook(self, level: int, centres: Tensor, counts: Tensor) -> None:
        """Take code vectors (K, D) and how many vectors each stands for (K,) as where the moving averages start."""
        weight = (counts * (1.0 / max(counts.mean().item(), 1e-6))).clamp(min=1e-3)  # sizes relative to an average code
        self.get_buffer(f"codes_{level}").copy_(centres)
        self.get_buffer(f"sizes_{level}").copy_(weight)
        self.get_buffer(f"sums_{level}").copy_(centres * weight[:, None])
        self.get_buffer(f"unused_{level}").zero_()

    @torch.no_grad()
    def statistics(self, codes: Tensor) -> list[dict[str, float]]:
        """Per level: share of codes used, perplexity of their distribution; and how many IDs collide up to it."""
        out = []
        for level, size in enumerate(self.config.level_sizes):
            counts = torch.bincount(codes[:, level], minlength=size).float()
            p = counts / counts.sum().clamp(min=1)
            perplexity = torch.exp(-(p * p.clamp(min=1e-12).log()).sum()).item()
            distinct = torch.unique(codes[:, : level + 1], dim=0).shape[0]
            out.append(
                {
                    "usage": (counts > 0).float().mean().item(),
                    "perplexity": perplexity,
                    "collisions": 1.0 - distinct / max(codes.shape[0], 1),
                }
            )
        return out


def _several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rotate_to(source: Tensor, target: Tensor) -> Tensor:
    """`target` in value; backwards, the rotation and scaling that take source to target (arXiv 2410.06424)."""
    norm_s, norm_t = source.norm(dim=-1, keepdim=True).clamp(min=1e-6), target.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    u, q = (source / norm_s).detach(), (target / norm_t).detach()
    w = F.normalize(u + q, dim=-1)
    rotated = source - 2 * (source * w).sum(-1, keepdim=True) * w + 2 * (source * u).sum(-1, keepdim=True) * q
    out: Tensor = rotated * (norm_t / norm_s).detach()
    return out
