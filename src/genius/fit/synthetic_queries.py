"""Synthetic queries of a collection that nobody has searched yet.

Texts: parts of captions and texts, file names and tags that say something, and a list of everyday words. Images: crops
of the collection's own. Knows items and an encoder; nothing of files or models.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from genius.encoders.base import Encoder, encode_queries
from genius.errors import GeniusError
from genius.features import Features
from genius.pictures import LARGE, give_back, loaded
from genius.types import Item, Modality, Query, name_of

MOST = 400  # queries of each source
SIDE = 400  # pixels of a crop: more than encoders read
CROP = (0.5, 0.9)  # sides of a crop, as a share of the image's
CAPTION, NAME, EVERYDAY, IMAGE = range(4)  # what a query is made from: its task
WORDS = (
    "a dog", "a cat", "a bird", "a horse", "a flower", "a tree", "a forest", "mountains", "the sea", "a beach", "a river",
    "snow", "the sky at sunset", "a street at night", "a city", "a house", "a bridge", "a church", "a kitchen",
    "a living room", "a bedroom", "an office", "a garden", "a car", "a bicycle", "a train", "an aeroplane", "a boat",
    "a child", "a baby", "a woman smiling", "a man with a beard", "a group of people", "a crowd", "a wedding",
    "a birthday cake", "a party", "people eating", "food on a plate", "a cup of coffee", "fruit", "vegetables", "bread",
    "a glass of wine", "black shoes", "a red dress", "a blue shirt", "a hat", "a watch", "a handbag", "a ring", "glasses",
    "a book", "a page of text", "a map", "a chart", "a screenshot", "a computer", "a telephone", "a guitar",
    "a football game", "running", "swimming", "skiing", "a tent", "a fire", "fireworks", "the moon", "clouds", "rain",
    "a statue", "a painting", "a drawing", "a sign", "a door", "a window", "a chair", "a table", "a lamp", "a bottle",
    "a toy", "a teddy bear", "a clock", "an insect", "a butterfly", "fish", "a cow", "sheep", "an elephant", "something red",
    "something green", "something yellow", "black and white", "a close-up", "a view from above", "a pattern", "a machine",
    "a tool", "medicine", "a letter",
)  # fmt: skip


@dataclass(frozen=True)
class SyntheticQueries:
    """Synthetic queries as features."""

    features: Features  # (Q)
    positives: Tensor  # (Q,) rows of the collection; -1: unknown
    targets: Tensor  # (Q,) modality of the wanted item
    tasks: Tensor  # (Q,) what they are made from

    def __len__(self) -> int:
        return len(self.positives)

    def take(self, rows: Tensor) -> SyntheticQueries:
        return SyntheticQueries(self.features[rows], self.positives[rows], self.targets[rows], self.tasks[rows])

    def split(self, seed: int) -> tuple[SyntheticQueries, SyntheticQueries]:
        """Half to learn from, half to measure on."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        half = len(order) // 2
        return self.take(order[half:]), self.take(order[:half])


def synthesize_queries(
    encoder: Encoder, items: Sequence[Item], seed: int = 0, rows: Sequence[int] | None = None
) -> SyntheticQueries:
    """Make synthetic queries from some items and encode them.

    Args:
        encoder: Of the collection.
        items: Items of the collection that queries are made from.
        seed: Of everything random.
        rows: Where in the collection each of them is; None: they are its first rows.
    """
    rng = random.Random(seed)
    queries: list[Query] = []
    labels: list[tuple[int, int, int]] = []  # positive, target modality, task
    captions = [(row, words) for row, item in enumerate(items) if (words := word_span(item.text, rng))]
    for row, words in rng.sample(captions, min(MOST, len(captions))):
        queries.append(Query(text=words))
        labels.append((row, int(items[row].modality), CAPTION))
    names = [(row, words) for row, item in enumerate(items) if item.image is not None and (words := name_of(item))]
    for row, words in rng.sample(names, min(MOST, len(names))):
        queries.append(Query(text=words))
        labels.append((row, int(items[row].modality), NAME))
    modalities = {item.modality for item in items}
    for words in WORDS:
        for modality in (Modality.IMAGE, Modality.PAIR):
            if modality in modalities:
                queries.append(Query(text=words))
                labels.append((-1, int(modality), EVERYDAY))
    for row, image in _crops(items, rng):
        queries.append(Query(image=image))
        labels.append((row, int(items[row].modality), IMAGE))
    features = encode_queries(encoder, queries, batch_size=32)
    positives, targets, tasks = torch.tensor(labels, dtype=torch.long).view(-1, 3).unbind(1)
    if rows is not None:
        known = positives >= 0
        positives = torch.where(known, torch.tensor([*rows, -1])[positives], -1)
    queries.clear()
    give_back(LARGE)  # the crops: else the memory of the fit comes on top of them
    return SyntheticQueries(features, positives, targets, tasks)


def word_span(text: str | None, rng: random.Random) -> str | None:
    """A few consecutive words of a text, about as many as people search with."""
    words = (text or "").split()[:200]
    if not words:
        return None
    count = min(len(words), rng.randint(2, 6))
    start = rng.randint(0, len(words) - count)
    return " ".join(words[start : start + count])


def _crops(items: Sequence[Item], rng: random.Random) -> list[tuple[int, Image.Image]]:
    with_image = [row for row, item in enumerate(items) if item.image is not None]
    out = []
    for row in sorted(rng.sample(with_image, min(MOST // 2, len(with_image)))):
        image = items[row].image
        assert image is not None
        try:
            with loaded(image, least=SIDE, large=True) as opened:
                out.append((row, crop(opened, rng)))
        except GeniusError:
            continue  # it was readable a moment ago
    return out


def crop(image: Image.Image, rng: random.Random) -> Image.Image:
    """A random part of an image, perhaps mirrored."""
    width, height = (max(1, round(side * rng.uniform(*CROP))) for side in image.size)
    left = rng.randint(0, image.width - width)
    top = rng.randint(0, image.height - height)
    part = image.crop((left, top, left + width, top + height))
    part.thumbnail((SIDE, SIDE))  # many are held at a time
    if rng.random() < 0.5:
        return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return part
