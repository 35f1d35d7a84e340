"""Synthetic data for a first training run, tutorials and tests: coloured shapes, and random features.

A thing is a colour, a shape and a size; its image is drawn, its text is "a small red circle". The same seed gives the
same bytes. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from genius.data.features import FeatureSet
from genius.features import Features
from genius.types import Modality

COLOURS = {
    "red": (214, 40, 40), "green": (46, 160, 67), "blue": (38, 84, 214), "yellow": (240, 200, 20),
    "purple": (140, 60, 190), "orange": (245, 130, 30), "brown": (120, 75, 40), "black": (20, 20, 20),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
SIZES = {"small": 8, "large": 14}


@dataclass(frozen=True, slots=True)
class Thing:
    """One thing of the synthetic world. `serial` keeps things with equal attributes apart."""

    colour: str
    shape: str
    size: str
    serial: int

    @property
    def text(self) -> str:
        return f"a {self.size} {self.colour} {self.shape}"

    def draw(self) -> Image.Image:
        image = Image.new("RGB", (32, 32), (255, 255, 255))
        draw = ImageDraw.Draw(image)
        r = SIZES[self.size]
        c = COLOURS[self.colour]
        x = 16 + self.serial % 3 - 1  # equal things are drawn a pixel apart
        y = 16 + self.serial // 3 % 3 - 1
        box = (x - r, y - r, x + r, y + r)
        if self.shape == "circle":
            draw.ellipse(box, fill=c)
        elif self.shape == "ring":
            draw.ellipse(box, outline=c, width=3)
        elif self.shape == "square":
            draw.rectangle(box, fill=c)
        elif self.shape == "triangle":
            draw.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=c)
        elif self.shape == "diamond":
            draw.polygon([(x, y - r), (x - r, y), (x, y + r), (x + r, y)], fill=c)
        else:
            draw.rectangle((x - 2, y - r, x + 2, y + r), fill=c)
            draw.rectangle((x - r, y - 2, x + r, y + 2), fill=c)
        return image


def synthetic_features(
    queries: int,
    pool: int,
    width: int,
    *,
    directions: Sequence[tuple[Modality, Modality]] = ((Modality.TEXT, Modality.IMAGE), (Modality.IMAGE, Modality.TEXT)),
    clusters: int = 64,
    noise: float = 0.6,  # of a query around its target, in units of an item's spread in its cluster
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> FeatureSet:
    """A random but structured FeatureSet: items in clusters, queries near their positive, a modality gap.

    For measurements of speed and for tests: no number obtained on it says anything about a model on real data.

    Args:
        queries: How many.
        pool: How many candidates.
        width: Of all vectors.
        directions: (query modality, target modality) of the tasks; each task has its own part of the pool.
        clusters: Of the items.
        noise: Of a query around its positive, in units of an item's spread in its cluster.
        seed: Of everything random.
        dtype: Of the vectors.
    """
    random_ = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random_)

    centres = normal(clusters, width)
    gap = normal(2, width) * 0.7  # between images and texts
    owner = torch.arange(pool) % len(directions)
    content = centres[torch.randint(clusters, (pool,), generator=random_)] + 0.8 * normal(pool, width)
    modality = torch.tensor([int(target) for _, target in directions])[owner]
    task = torch.arange(queries) % len(directions)
    wanted = torch.empty(queries, dtype=torch.long)
    for number in range(len(directions)):
        task_rows = task == number
        rows = (owner == number).nonzero()[:, 0]
        wanted[task_rows] = rows[torch.randint(len(rows), (int(task_rows.sum()),), generator=random_)]
    query_content = content[wanted] + noise * 0.8 * normal(queries, width)
    query_modality = torch.tensor([int(query) for query, _ in directions])[task]
    instruction = normal(3, width)[modality[wanted]] * 0.5  # the query's text says which modality it wants
    return FeatureSet(
        queries=_two_towers(query_content, query_modality, gap, instruction, dtype),
        pool=_two_towers(content, modality, gap, None, dtype),
        pairs=torch.stack([torch.arange(queries), wanted], 1),
        query_ids=[f"20:{i}" for i in range(queries)],
        pool_ids=[f"20:{i}" for i in range(pool)],
        tasks=task,
        names={i: f"{query.label}->{target.label}" for i, (query, target) in enumerate(directions)},
        pools={i: (owner == i).nonzero()[:, 0] for i in range(len(directions))},
    )


def _two_towers(content: Tensor, modality: Tensor, gap: Tensor, instruction: Tensor | None, dtype: torch.dtype) -> Features:
    image_mask = modality != int(Modality.TEXT)
    text_mask = modality != int(Modality.IMAGE)
    text = content * text_mask[:, None] + gap[1]
    if instruction is not None:  # a query always has a text: its instruction
        text = text + instruction
        text_mask = torch.ones_like(text_mask)
    return Features((content + gap[0]).to(dtype), text.to(dtype), image_mask, text_mask)
