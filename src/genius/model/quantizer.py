"""Fusion h(x, y): image and text vectors -> one unit vector z (4.2.1). Quantizer: z -> codes -> reconstruction (4.2.2 - 4.2.3).

The layer shapes of fusion are CLIP4Cir's Combiner, as published, so that the published weights load one to one. The
quantizer is residual, with one codebook per level (`codebooks`). Here z becomes codes, and training moves the codebooks
by exponential averages. Knows nothing of items, losses' weights or training loops.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from genius.errors import GeniusError
from genius.features import Features, check_finite
from genius.model.assignment import fill_codes
from genius.model.codebooks import Codebooks, fit_codebooks
from genius.model.config import FusionConfig, QuantizerConfig


class Fusion(nn.Module):
    """h(x, y) = lambda x + (1 - lambda) y + MLP([x; y]), lambda from a second MLP. The output has unit length."""

    def __init__(self, config: FusionConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        projection = config.projection
        hidden = config.hidden
        self.project_text = nn.Linear(width, projection)
        self.project_image = nn.Linear(width, projection)
        self.mix_hidden = nn.Linear(2 * projection, hidden)
        self.mix_output = nn.Linear(hidden, width)
        self.balance_hidden = nn.Linear(2 * projection, hidden)
        self.balance_output = nn.Linear(hidden, 1)

    def forward(self, features: Features) -> Tensor:
        """(N, width) unit vectors. A missing modality enters as exact zeros (the biases still fire, as published)."""
        image, text = features.masked()
        joined = torch.cat([F.relu(self.project_text(text)), F.relu(self.project_image(image))], dim=1)
        balance = torch.sigmoid(self.balance_output(F.relu(self.balance_hidden(joined))))  # lambda, (N, 1)
        mixed = self.mix_output(F.relu(self.mix_hidden(joined)))
        return F.normalize(mixed + balance * text + (1 - balance) * image, dim=1)  # 4.2.1

    @torch.no_grad()
    def embed(self, features: Features, chunk: int = 8192) -> Tensor:
        """z (N, width) of any number of rows, without gradients.

        Args:
            features: N items or queries, on any device.
            chunk: Rows at a time, so that memory does not grow with N.
        """
        device = self.mix_output.weight.device
        parts = [self(features[i : i + chunk].to(device, torch.float32)) for i in range(0, max(len(features), 1), chunk)]
        return torch.cat(parts)


def score_fusion(features: Features) -> Tensor:
    """The encoder's own embedding phi = psi_image + psi_text (Eq. 2), unit length: the dense baseline CLIP-SF."""
    image, text = features.masked()
    return F.normalize(image + text, dim=1)


__all__ = [
    "Quantized",
    "ResidualQuantizer",
    "build_quantizer",
    "register",
    "rotate_to",
]
GROUP = "genius.quantizers"  # entry points of packages that bring a quantizer


class Quantized(NamedTuple):
    """What one training pass through the quantizer gives."""

    codes: Tensor  # (N, M)
    vectors: Tensor  # (N, D) sum of the chosen codes; gradients pass to z
    residuals: list[Tensor]  # r_0 .. r_{M-1}, each (N, D), with gradients
    chosen: list[Tensor]  # e_1 .. e_M, each (N, D), detached


class ResidualQuantizer(Codebooks):
    """M codebooks, nearest neighbour on residuals (Eq. 4-6), moved by exponential averages, not by gradients."""

    # -- inference ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, z: Tensor, modality: Tensor | None = None) -> Tensor:
        """Codes of unit vectors.

        Args:
            z: (N, D) unit vectors.
            modality: (N,) required when level 0 is the modality.

        Returns:
            (N, M) int64 codes.

        Raises:
            GeniusError: If shapes do not fit, numbers are not finite or a modality is unknown.
        """
        self._check(z, modality)
        if modality is not None:
            modality = modality.long()
        codes = torch.empty(len(z), self.config.levels, dtype=torch.long, device=z.device)
        fill_codes(self.config, self.codebook_of, z, modality, codes)
        return codes

    def _check(self, z: Tensor, modality: Tensor | None) -> None:
        if z.ndim != 2 or z.shape[1] != self.config.width:
            raise GeniusError(f"vectors have shape {tuple(z.shape)}, expected (N, {self.config.width})")
        check_finite(z, "vectors")
        if self.config.labelled:
            if modality is None:
                raise GeniusError("this quantizer's first code is the modality: pass `modality`")
            if modality.shape != (z.shape[0],) or (modality.numel() and not ((modality >= 0) & (modality < 3)).all()):
                raise GeniusError("modality must hold one of 0, 1, 2 for every vector")

    # -- training ----------------------------------------------------------------------------------------------

    def quantize(self, z: Tensor, modality: Tensor | None = None) -> Quantized:
        """Codes of `z` (N, D) with a gradient path, for the losses. Does not move the codebooks.

        Args:
            z: (N, D) embeddings.
            modality: (N,) of the embeddings; None: no codebook depends on it.
        """
        residual = z
        total = torch.zeros_like(z)
        codes = []
        residuals = []
        chosen = []
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
            return vector  # given, not chosen by the residual: a constant
        if self.config.gradient == "rotation":
            return rotate_to(residual, vector)
        return residual + (vector - residual).detach()

    @torch.no_grad()
    def update(self, codes: Tensor, residuals: list[Tensor], gather: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        """Move the codebooks towards the mean residual of their codes (EMA, 4.2.4).

        Sums are taken over all processes, so that every process holds the same codebooks.

        Args:
            codes: (N, M) of this process's rows.
            residuals: Of every level, (N, D).
            gather: Rows of all processes in the order in which one process would have them, so that dead codes are
                revived as one process does.
        """
        counts = [torch.zeros_like(self.get_buffer(f"sizes_{number}")) for number in range(self.count)]
        sums = [torch.zeros_like(self.get_buffer(f"sums_{number}")) for number in range(self.count)]
        for level, residual in enumerate(residuals):
            number = self.config.codebook_number(level)
            rows = self.rows_of(level, codes[:, level], codes[:, 0])
            counts[number].index_add_(0, rows, torch.ones_like(rows, dtype=counts[number].dtype))
            sums[number].index_add_(0, rows, residual.detach().to(sums[number].dtype))
        if _several_processes():
            for tensor in (*counts, *sums):
                dist.all_reduce(tensor)
        for number in range(self.count):
            if number == 0 and self.config.modality_code == "classifier":
                continue  # its vectors stay zero: the label takes no part in the residuals
            for modality, block in self._blocks(number):
                dead = self._move(number, block, counts[number][block], sums[number][block]).nonzero()[:, 0]
                if not len(dead):  # equal on every process
                    continue
                candidates = gather(residuals[number].detach())
                modality_candidates = candidates[gather(codes[:, 0]) == modality]
                if not len(modality_candidates):
                    modality_candidates = candidates
                self._revive(number, block, dead, modality_candidates)

    def _blocks(self, number: int) -> list[tuple[int, slice]]:
        """Modality (-1: all) and rows of each part of a codebook."""
        if self.config.has_modality_codebooks(number):
            return [(modality, self.config.codebook_rows(number, modality)) for modality in range(3)]
        return [(-1, slice(None))]

    def _move(self, number: int, block: slice, counts: Tensor, sums: Tensor) -> Tensor:
        """Move one codebook, or one modality's block of it; which of its codes are dead."""
        decay = self.config.decay
        eps = self.config.epsilon
        sizes = self.get_buffer(f"sizes_{number}")[block]
        averages = self.get_buffer(f"sums_{number}")[block]
        sizes.lerp_(counts, 1 - decay)
        averages.lerp_(sums, 1 - decay)
        total = sizes.sum()
        smoothed = (sizes + eps) / (total + sizes.numel() * eps) * total
        fresh = averages / smoothed[:, None]
        vectors = self.get_buffer(f"codes_{number}")[block]
        unused = self.get_buffer(f"unused_{number}")[block]
        unused.add_(1).masked_fill_(counts > 0, 0)
        if self.config.published_revival:
            vectors.copy_(fresh)
            if number == 0 and self.config.modality_code != "none":
                return torch.zeros_like(sizes, dtype=torch.bool)
            return sizes < 2
        # a code that was not chosen keeps its place: decaying averages would pull it to the origin
        vectors.copy_(torch.where((counts > 0)[:, None], fresh, vectors))
        expected = sizes.numel() / counts.sum().clamp(min=1)  # steps between two uses of an average code
        dead = unused > self.config.patience * expected.clamp(min=1)
        if number == 0 and self.config.labelled:
            return torch.zeros_like(dead)  # an absent modality is absent, not dead
        return dead

    def _revive(self, number: int, block: slice, rows: Tensor, residual: Tensor) -> None:
        """Move dead codes to random residuals (n, D) of this step; the first process draws for all."""
        if residual.shape[0] == 0:
            return
        picks = residual[torch.randint(residual.shape[0], (len(rows),), device=residual.device)].float()
        if _several_processes():
            dist.broadcast(picks, src=0)
        sizes = self.get_buffer(f"sizes_{number}")[block]
        weight = sizes.mean().clamp(min=1e-3)
        if self.config.published_revival:
            weight = torch.full_like(weight, 2.0)
        self.get_buffer(f"codes_{number}")[block][rows] = picks  # slices are views: this fills the buffers
        self.get_buffer(f"sums_{number}")[block][rows] = picks * weight
        sizes[rows] = weight
        self.get_buffer(f"unused_{number}")[block][rows] = 0

    def initialise(
        self,
        z: Tensor,
        modality: Tensor | None = None,
        iterations: int = 20,
        seed: int = 0,
        together: int = 0,
        between: int = 0,
    ) -> None:
        """Fit the codebooks by k-means on a sample, level after level (the paper: on the first batch).

        Args:
            z: (N, D) unit vectors.
            modality: (N,) required when level 0 is the modality.
            iterations: Of each k-means.
            seed: Of its start.
            together: Sweeps that fit the later levels to each other.
            between: A modality with fewer vectors per code also learns from points between its items.
        """
        self._check(z, modality)
        fit_codebooks(self, z, modality, iterations, seed, together, between)

    @torch.no_grad()
    def statistics(self, codes: Tensor) -> list[dict[str, float]]:
        """Per level: share of codes used, perplexity of their distribution, and share of IDs that collide up to it.

        Args:
            codes: (N, L) codes of a collection.
        """
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
    """`target` in value; backwards, the rotation and scaling that take source to target (arXiv 2410.06424).

    Args:
        source: (N, D) vectors that get the gradient.
        target: (N, D) vectors.
    """
    norm_s = source.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    norm_t = target.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    u = (source / norm_s).detach()
    q = (target / norm_t).detach()
    w = F.normalize(u + q, dim=-1)
    rotated = source - 2 * (source * w).sum(-1, keepdim=True) * w + 2 * (source * u).sum(-1, keepdim=True) * q
    out: Tensor = rotated * (norm_t / norm_s).detach()
    return out


# -- other quantizers ------------------------------------------------------------------------------------------

Build = Callable[[QuantizerConfig], ResidualQuantizer]
_families: dict[str, Build] = {"residual": ResidualQuantizer}


def register(family: str, build: Build) -> Build:
    """Make a quantizer known by a name, which `QuantizerConfig.family` may then have.

    Args:
        family: Not yet taken.
        build: A subclass of `ResidualQuantizer`, or a function that makes one. Only its codebooks are read elsewhere.

    Raises:
        GeniusError: If another quantizer has this name.
    """
    if _families.get(family, build) is not build:
        raise GeniusError(f"there is a quantizer {family!r} already")
    _families[family] = build
    return build


def build_quantizer(config: QuantizerConfig) -> ResidualQuantizer:
    """The quantizer that a config names; one of an installed package is imported when it is first needed.

    Args:
        config: Of the quantizer.

    Raises:
        GeniusError: If nobody registered it.
    """
    if config.family not in _families:
        entries = list(entry_points(group=GROUP, name=config.family))
        if not entries:
            raise GeniusError(f"there is no quantizer {config.family!r}; there are {', '.join(sorted(_families))}")
        _families[config.family] = entries[0].load()
    return _families[config.family](config)
