"""Synthetic collections for the index benchmarks, written through the index's own commit path.

Vectors are points around random centres; codebooks are residual k-means on a sample of them; there is no encoder and
the decoder is untrained, which is nearness with a temperature (`genius.model.generator`): what is measured is the index and the
engine, not a model.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius import Genius, Index, Item
from genius.index.prepare import Picture, Prepared
from genius.index.results import AddReport
from genius.index.writing import commit
from genius.model.codebooks import kmeans, nearest
from genius.model.config import FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.search import SearchParams
from lab import current_commit

SEARCH = SearchParams()
WORDS = ["red", "green", "blue", "old", "new", "round", "square", "tall"]


def vectors(count: int, width: int, centres: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(count, width) unit vectors around `centres` points, and which point each belongs to."""
    draw = np.random.default_rng(seed)
    middle = np.random.default_rng(12345).standard_normal((centres, width)).astype(np.float32)
    group = draw.integers(0, centres, count)
    points = middle[group] + 0.7 * draw.standard_normal((count, width)).astype(np.float32)
    return points / np.linalg.norm(points, axis=1, keepdims=True), group


def make_model(width: int, levels: tuple[int, ...], sample: NDArray[np.float32]) -> Genius:
    """Random weights, but codebooks that fit the data."""
    torch.manual_seed(0)
    model = Genius(
        GeniusConfig(
            fusion=FusionConfig(width=width, projection=16, hidden=16),
            quantizer=QuantizerConfig(width=width, level_sizes=levels),
            generator=GeneratorConfig(width, levels, 32, 1, 2, 16, 64, normalizer="level", head="codebooks"),
        )
    )
    residual = torch.from_numpy(sample)
    model.quantizer.codebook(0).zero_()  # every item here is a text: the modality says nothing
    for level in range(1, len(levels)):
        book, _ = kmeans(residual, levels[level], iterations=8)
        model.quantizer.codebook(level).copy_(book)
        residual = residual - book[nearest(residual, book)]
    return model


def fill(index: Index, points: NDArray[np.float32], start: int = 0, batch: int = 100_000) -> Iterator[int]:
    """Commit `points` as text items in large batches; yields how many are in."""
    draw = np.random.default_rng(start + 1)
    for first in range(0, len(points), batch):
        part = points[first : first + batch]
        z = torch.from_numpy(part)
        codes = index.model.quantizer.encode(z, torch.ones(len(part), dtype=torch.long)).numpy().astype(np.uint16)
        share = draw.integers(0, 100, len(part)).tolist()
        items, metadata = [], []
        for i in range(len(part)):
            number = start + first + i
            metadata.append({"share": share[i], "word": WORDS[number % len(WORDS)], "even": number % 2 == 0})
            items.append(Item(f"item-{number}", text=f"item number {number}", metadata=metadata[-1]))
        nothing: list[Any] = [None] * len(items)
        ready = Prepared(items, metadata, [Picture()] * len(items), nothing, codes, part.astype(np.float16), [])
        commit(index, ready, index.model, False, "raise", AddReport())
        yield first + len(part)


def environment() -> dict[str, Any]:
    """Machine, versions, date: what a number means nothing without."""
    import lancedb

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": current_commit(),
        "cpu": cpu or platform.processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lancedb": lancedb.__version__,
    }
