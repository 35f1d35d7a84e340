"""The slow truth: beam search by python loops over prefixes, straight from `Generator`, no cache, no trie."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from genius.model.generator import Generator, GeneratorConfig
from genius.model.quantizer import QuantizerConfig, ResidualQuantizer


def tiny_generator(level_sizes: tuple[int, ...], seed: int = 0, normalizer: str = "vocabulary", width: int = 8) -> Generator:
    torch.manual_seed(seed)
    config = GeneratorConfig(
        width=width,
        level_sizes=level_sizes,
        d_model=16,
        layers=2,
        heads=2,
        d_kv=8,
        d_ff=24,
        prefix_tokens=3,
        normalizer=normalizer,
    )
    generator = Generator(config).eval()
    with torch.no_grad():  # norm weights that are not all one
        for name, weight in generator.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    return generator


def tiny_quantizer(level_sizes: tuple[int, ...], width: int = 8, own_books_from: int = 0) -> ResidualQuantizer:
    kind = "given" if own_books_from else "none"
    return ResidualQuantizer(
        QuantizerConfig(width=width, level_sizes=level_sizes, modality_code=kind, own_books_from=own_books_from)  # type: ignore[arg-type]
    )


def book_at(quantizer: ResidualQuantizer, level: int, prefix: tuple[int, ...]) -> Tensor:
    """The codebook that a code at `level` is read from, after this prefix."""
    book = quantizer.codebook(level)
    own = quantizer.config.own_books_from
    return book.view(3, -1, book.shape[1])[prefix[0]] if own and level >= own else book


@torch.no_grad()
def step_scores(
    generator: Generator | None,
    z: Tensor,
    prefix: tuple[int, ...],
    children: list[int],
    normalizer: str,
    quantizer: ResidualQuantizer | None,
    geometry: float,
) -> dict[int, float]:
    """Worth of each child of one prefix for one query z (D,)."""
    level = len(prefix)
    total = torch.zeros(len(children))
    if generator is not None:
        inputs = torch.tensor([[0, *(generator.config.offsets[i] + c for i, c in enumerate(prefix))]])
        hidden, _ = generator.hidden(inputs, generator.cross_memory(z[None]))
        logits = (hidden[0, -1] * generator.config.d_model**-0.5) @ generator.tokens.weight.T
        start = generator.config.offsets[level]
        mine = logits[start : start + generator.config.level_sizes[level]]
        pool = {"vocabulary": logits, "level": mine, "children": mine[children]}[normalizer]
        told = level == 0 and geometry > 0 and quantizer is not None and quantizer.config.labelled
        total += (mine[children] - pool.logsumexp(0)) * (1 + geometry if told else 1)
    if quantizer is not None and (generator is None or geometry > 0):
        residual = z - sum((book_at(quantizer, i, prefix)[c] for i, c in enumerate(prefix)), torch.zeros_like(z))
        book = book_at(quantizer, level, prefix)
        closeness = 2 * book @ residual - (1 if generator is None else 0.5) * book.square().sum(1)
        if level == 0 and quantizer.config.labelled:
            closeness = torch.zeros_like(closeness)
        if generator is None:
            total += closeness[children]
        else:
            total += geometry * ((closeness - closeness.mean()) / closeness.std(correction=0).clamp(min=1e-6))[children]
    return dict(zip(children, total.tolist(), strict=True))


def reference_beam(
    generator: Generator | None,
    codes: np.ndarray,
    z: Tensor,
    beams: int,
    *,
    normalizer: str = "vocabulary",
    quantizer: ResidualQuantizer | None = None,
    geometry: float = 0.0,
    target: int = -1,
) -> list[tuple[tuple[int, ...], float]]:
    """(code, sum of worth / M), best first, for one query."""
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
            worth = step_scores(generator, z, prefix, children, normalizer, quantizer, geometry)
            grown += [((*prefix, c), score + w) for c, w in worth.items()]
        states = sorted(grown, key=lambda s: -s[1])[:beams]
    return [(prefix, score / levels) for prefix, score in states]
