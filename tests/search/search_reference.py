"""The slow reference: beam search by Python loops over prefixes, straight from the weights, no cache, no trie."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from genius.model.config import FAST, GeneratorConfig, QuantizerConfig
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer

HEADS = (
    "vocabulary",  # table, normalised over all codes
    "level",  # table, normalised over one level
    "codebooks",  # one codebook per level
    "own-codebooks",  # one per level and modality
)


def tiny_generator(
    level_sizes: tuple[int, ...], seed: int = 0, head: str = "vocabulary", width: int = 8, layers: int = 2
) -> Generator:
    torch.manual_seed(seed)
    tied = "codebooks" in head
    config = GeneratorConfig(
        width=width,
        level_sizes=level_sizes,
        d_model=16,
        layers=layers,
        heads=2,
        d_kv=8,
        d_ff=24,
        prefix_tokens=3,
        normalizer="level" if tied else head,  # type: ignore[arg-type]
        head="codebooks" if tied else "table",
    )
    quantizer = tiny_quantizer(level_sizes, width, modality_codebooks_from=1 if head == "own-codebooks" else 0)
    generator = Generator(config, quantizer).eval()
    with torch.no_grad():  # nothing that is zero or one by chance of its start
        for name, weight in generator.named_parameters():
            if "norm" in name and "norm_weight" not in name:
                weight.uniform_(0.5, 1.5)
            if any(part in name for part in ("residual_shift", "log_scale", "norm_weight")):
                weight += 0.1 * torch.randn_like(weight) / (FAST if weight.ndim == 1 and "residual_shift" not in name else 1)
    return generator


def tiny_quantizer(level_sizes: tuple[int, ...], width: int = 8, modality_codebooks_from: int = 0) -> ResidualQuantizer:
    config = QuantizerConfig(width=width, level_sizes=level_sizes, modality_codebooks_from=modality_codebooks_from)
    return ResidualQuantizer(config)


def book_at(quantizer: ResidualQuantizer, level: int, prefix: tuple[int, ...]) -> Tensor:
    """The codebook that a code at `level` is read from, after this prefix."""
    book = quantizer.codebook(level)
    own = quantizer.config.modality_codebooks_from
    return book.view(3, -1, book.shape[1])[prefix[0]] if own and level >= own else book


@torch.no_grad()
def step_scores(generator: Generator, z: Tensor, prefix: tuple[int, ...], children: list[int]) -> dict[int, float]:
    """log p of each child of one prefix for one query z (D,)."""
    level, config = len(prefix), generator.config
    before = torch.tensor([prefix], dtype=torch.long).view(1, level)
    hidden, _ = generator.hidden(generator.inputs(before), generator.cross_memory(z[None]))
    state = hidden[0, -1]
    if config.head == "codebooks":
        logits = codebook_logits(generator, z, prefix, state)
        log_p = logits - logits.logsumexp(0)
        return {child: float(log_p[child]) for child in children}
    logits = (state * config.d_model**-0.5) @ generator.tokens.weight.T
    start = config.offsets[level]
    mine = logits[start : start + config.level_sizes[level]]
    normalizer = (logits if config.normalizer == "vocabulary" else mine).logsumexp(0)
    return {child: float(mine[child] - normalizer) for child in children}


def codebook_logits(generator: Generator, z: Tensor, prefix: tuple[int, ...], state: Tensor) -> Tensor:
    """The formula at the head of `genius.model.generator`, code by code."""
    head, level = generator.codebook_head, len(prefix)
    if level == 0:
        return head.modality_out(state)  # type: ignore[no-any-return]
    quantizer = head.quantizer
    left = z - sum((book_at(quantizer, i, prefix)[c] for i, c in enumerate(prefix)), torch.zeros_like(z))
    r = left + head.residual_shift[level - 1](state)
    own = (level - 1) * head.modalities + (prefix[0] if quantizer.config.has_modality_codebooks(level) else 0)
    a, b = torch.exp(FAST * head.log_scale[own]), FAST * head.norm_weight[own]
    book = book_at(quantizer, level, prefix)
    return torch.stack([a * (2 * r @ c - b * c @ c) for c in book])


def reference_beam(
    generator: Generator, codes: np.ndarray, z: Tensor, beams: int, *, target: int = -1
) -> list[tuple[tuple[int, ...], float]]:
    """(code, sum of log p / M), best first, for one query."""
    levels = codes.shape[1]
    existing = {tuple(int(c) for c in row) for row in codes}
    states: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for level in range(levels):
        grown = []
        for prefix, score in states:
            children = sorted({c[level] for c in existing if c[:level] == prefix})
            if level == 0 and target >= 0:
                grown += [((target,), 0.0)] if target in children else []
                continue
            log_probs = step_scores(generator, z, prefix, children)
            grown += [((*prefix, c), score + log_p) for c, log_p in log_probs.items()]
        states = sorted(grown, key=lambda s: -s[1])[:beams]
    return [(prefix, score / levels) for prefix, score in states]
