"""Other people's identifiers: ways to give every item a sequence of codes, without GENIUS's quantizer.

IRGen's: residual codes that only reconstruct, no modality code. GRACE's: numbers, strings, words, a cluster tree.
All on the encoder's own embeddings (score fusion), as those systems have no learned fusion. Vectors are read in parts, so a pool
may be larger than the device. Knows no decoder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from genius.model.codebooks import kmeans, nearest
from genius.model.config import QuantizerConfig
from genius.model.quantizer import ResidualQuantizer
from genius.ranking import nearest_rows
from genius.train.pairs import Points

Ints = npt.NDArray[np.int64]
CHUNK = 16_384  # rows read at a time
SAMPLE = 500_000  # queries whose k-means are the words of semantic ids
SMALL = 4096  # rows of a cluster that is split on the CPU


@dataclass(frozen=True, slots=True)
class Identifiers:
    """Codes of every item; unique where the scheme says so."""

    codes: Ints  # (N, M)
    level_sizes: tuple[int, ...]
    quantizer: ResidualQuantizer | None = None  # where codes have vectors


def residual(items: Points, width: int, sizes: tuple[int, ...], seed: int = 0, sample: int = 100_000) -> Identifiers:
    """IRGen-style: residual k-means that minimises reconstruction error; nothing says the modality."""
    picked = items[torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))[:sample]]
    shape = QuantizerConfig(width=width, level_sizes=sizes, modality_code="none")
    quantizer = ResidualQuantizer(shape).to(picked.device)
    quantizer.initialise(picked, iterations=15, seed=seed)
    codes = [quantizer.encode(items[start : start + CHUNK]).cpu() for start in range(0, len(items), CHUNK)]
    return Identifiers(torch.cat(codes).numpy(), sizes, quantizer)


def numeric(items: Points, seed: int = 0) -> Identifiers:
    """GRACE's numeric ids: every item a number drawn at random, written in decimal digits."""
    return _written(np.random.default_rng(seed).permutation(len(items)), len(items), 10)


def atomic(items: Points, seed: int = 0) -> Identifiers:
    """GRACE's atomic ids: one token for every item, drawn at random."""
    return Identifiers(np.random.default_rng(seed).permutation(len(items))[:, None].astype(np.int64), (len(items),))


def string(items: Points, seed: int = 0, alphabet: int = 64) -> Identifiers:
    """GRACE's string ids: arbitrary distinct strings; a token is a piece of one, so they are shorter than numbers."""
    room = alphabet ** (math.ceil(math.log(max(len(items), 2), alphabet)) + 1)  # sparse: most strings name nothing
    rng = np.random.default_rng(seed)
    drawn = np.unique(rng.integers(room, size=2 * len(items)))
    while len(drawn) < len(items):
        drawn = np.unique(np.concatenate([drawn, rng.integers(room, size=len(items))]))
    return _written(rng.permutation(drawn)[: len(items)], room, alphabet)


def _written(values: Ints, room: int, base: int) -> Identifiers:
    digits = max(1, math.ceil(math.log(max(room, 2), base) - 1e-9))
    codes = np.stack([values // base ** (digits - 1 - place) % base for place in range(digits)], 1)
    return Identifiers(codes.astype(np.int64), (base,) * digits)


def semantic(items: Points, asked: Points, seed: int = 0, words: int = 256, length: int = 4) -> Identifiers:
    """GRACE's semantic ids: a caption of the item. Features hold no captions, so the words are learned from what people
    ask (k-means of the training queries) and an item is its nearest words, closest first, then a counter among equals."""
    words = min(words, max(2, len(asked) // 2))
    length = min(length, words)
    sample = torch.randperm(len(asked), generator=torch.Generator().manual_seed(seed))[:SAMPLE].sort().values
    vocabulary, _ = kmeans(asked[sample].float(), words, iterations=15, seed=seed)
    vocabulary = torch.nn.functional.normalize(vocabulary, dim=1)
    parts = [nearest_rows(items[start : start + CHUNK], vocabulary, length) for start in range(0, len(items), CHUNK)]
    said = torch.cat(parts).cpu().numpy()
    return _counted(said.astype(np.int64), (words,) * length)


def structured(items: Points, seed: int = 0, branches: int = 16, depth: int | None = None) -> Identifiers:
    """GRACE's structured ids: the path to the item in a tree of clusters (k-means inside k-means), then a counter."""
    if depth is None:
        depth = max(1, math.ceil(math.log(max(len(items), 2), branches)) - 1)
    codes = np.zeros((len(items), depth), np.int64)
    groups = [torch.arange(len(items))]
    for level in range(depth):
        below = []
        for number, rows in enumerate(groups):
            if len(rows) <= branches:  # a leaf: the counter tells its items apart
                below.append(rows)
                continue
            sample = items[rows[:: max(1, len(rows) // 20_000)]].float()
            if len(rows) < SMALL:  # a GPU would spend its time on launching thousands of tiny steps
                sample = sample.cpu()
            centres, _ = kmeans(sample, branches, iterations=10, seed=seed + 1000 * level + number)
            labels = torch.cat([nearest(items[part].float().to(centres.device), centres).cpu() for part in rows.split(CHUNK)])
            codes[rows.numpy(), level] = labels.numpy()
            below += [part for label in range(branches) if len(part := rows[labels == label])]
        groups = below
    return _counted(codes, (branches,) * depth)


def _counted(codes: Ints, sizes: tuple[int, ...]) -> Identifiers:
    """Add digits that tell apart items with equal codes, so that every id is unique."""
    _, group = np.unique(codes, axis=0, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    ordered = group.reshape(-1)[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    place = np.arange(len(codes)) - np.repeat(starts, np.diff(np.append(starts, len(codes))))
    counter = np.empty(len(codes), np.int64)
    counter[order] = place
    most = int(counter.max()) + 1
    extra = _written(counter, most, min(max(most, 2), 64))
    return Identifiers(np.concatenate([codes, extra.codes], 1), (*sizes, *extra.level_sizes))
