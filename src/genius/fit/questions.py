"""Questions made up out of a collection, where nobody has asked any yet.

Words: parts of captions and texts, file names and tags that say something, and a list of everyday words. Pictures: cut-outs of
the collection's own. They show the decoder where questions stand next to answers, and measure what a search keeps. Knows items
and an encoder; nothing of codes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from genius.encoders.base import Encoder, encode_queries
from genius.errors import GeniusError
from genius.features import Features
from genius.pictures.load import loaded
from genius.types import Item, Modality, Query, name_of

MOST = 400  # questions of each sort
SIDE = 400  # pixels of a cut-out: more than encoders see
CUT = (0.5, 0.9)  # sides of a cut-out, as a share of the picture's
CAPTION, NAME, EVERYDAY, PICTURE = range(4)  # sorts of questions
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
class Questions:
    """Made-up questions as features."""

    features: Features  # (Q)
    answers: Tensor  # (Q,) rows of the collection; -1: nobody knows
    wanted: Tensor  # (Q,) kind of item asked for
    tasks: Tensor  # (Q,) the sort of question

    def __len__(self) -> int:
        return len(self.answers)

    def take(self, rows: Tensor) -> Questions:
        return Questions(self.features[rows], self.answers[rows], self.wanted[rows], self.tasks[rows])

    def split(self, seed: int) -> tuple[Questions, Questions]:
        """Half to learn from, half to judge by."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        half = len(order) // 2
        return self.take(order[half:]), self.take(order[:half])


def make_up(
    encoder: Encoder, items: Sequence[Item], seed: int = 0, on_progress: Callable[[int], None] | None = None
) -> Questions:
    """Questions about `items`, which are the rows of the collection."""
    rng = random.Random(seed)
    asked: list[tuple[Query, int, Modality, int]] = []
    for row, words in _few([(i, w) for i, item in enumerate(items) if (w := part_of(item.text, rng))], rng):
        asked.append((Query(text=words), row, items[row].modality, CAPTION))
    for row, words in _few([(i, w) for i, item in enumerate(items) if item.image is not None and (w := name_of(item))], rng):
        asked.append((Query(text=words), row, items[row].modality, NAME))
    kinds = {item.modality for item in items}
    for words in WORDS:
        asked += [(Query(text=words), -1, kind, EVERYDAY) for kind in (Modality.IMAGE, Modality.PAIR) if kind in kinds]
    for row, picture in _cut_outs(items, rng):
        asked.append((Query(image=picture), row, items[row].modality, PICTURE))
    features = encode_queries(encoder, [query for query, *_ in asked], on_progress=on_progress)
    numbers = torch.tensor([(row, int(kind), sort) for _, row, kind, sort in asked], dtype=torch.long).view(-1, 3)
    return Questions(features, *numbers.unbind(1))


def _few(values: list[tuple[int, str]], rng: random.Random) -> list[tuple[int, str]]:
    return rng.sample(values, min(MOST, len(values)))


def part_of(text: str | None, rng: random.Random) -> str | None:
    """Some words in a row of a text, about as many as people ask with."""
    words = (text or "").split()[:200]
    if not words:
        return None
    count = min(len(words), rng.randint(2, 6))
    start = rng.randint(0, len(words) - count)
    return " ".join(words[start : start + count])


def _cut_outs(items: Sequence[Item], rng: random.Random) -> list[tuple[int, Image.Image]]:
    pictured = [i for i, item in enumerate(items) if item.image is not None]
    out = []
    for row in sorted(rng.sample(pictured, min(MOST // 2, len(pictured)))):
        image = items[row].image
        assert image is not None
        try:
            with loaded(image, least=SIDE) as picture:
                out.append((row, cut_out(picture, rng)))
        except GeniusError:
            continue  # it was there a moment ago
    return out


def cut_out(picture: Image.Image, rng: random.Random) -> Image.Image:
    """A part of a picture, perhaps mirrored."""
    width, height = (max(1, round(side * rng.uniform(*CUT))) for side in picture.size)
    left, top = rng.randint(0, picture.width - width), rng.randint(0, picture.height - height)
    part = picture.crop((left, top, left + width, top + height))
    part.thumbnail((SIDE, SIDE))  # many are held at a time
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else part
