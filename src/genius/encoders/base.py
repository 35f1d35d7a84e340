"""The encoder protocol, and how items and queries become `Features`.

An encoder turns pictures and texts into vectors of one width. It is frozen here: its own training is
`genius.train.encoder`. Everything that needs batching, progress or error policy is written once, below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeVar, runtime_checkable

import torch
from PIL import Image
from torch import Tensor

from genius.errors import GeniusError
from genius.features import Features
from genius.instructions import format_text, query_text
from genius.types import Item, Query, load_image

OnError = Literal["raise", "skip"]
T = TypeVar("T")


@runtime_checkable
class Encoder(Protocol):
    """Two towers of one output width. Implementations are nn.Modules in eval mode, on any device."""

    width: int

    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB pictures -> (n, width) float32 on the CPU, raw (not unit length)."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Texts -> (n, width) float32 on the CPU, raw (not unit length)."""
        ...

    def save(self, directory: Path) -> None:
        """Write what `genius.encoders.load_encoder("local-dir:…")` reads."""
        ...

    def fingerprint(self) -> str:
        """A hex digest that changes when any weight does."""
        ...


def batched(values: Iterable[T], size: int) -> Iterator[list[T]]:
    batch: list[T] = []
    for value in values:
        batch.append(value)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def encode_items(
    encoder: Encoder,
    items: Sequence[Item],
    *,
    batch_size: int = 64,
    on_error: OnError = "raise",
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Features, list[int], list[str]]:
    """Items -> features of those that could be read, their positions, and one line for each that could not.

    Pictures are opened batch by batch, so memory does not grow with the collection.
    """
    return _encode(
        [(item.image, format_text(item.text or ""), item.id) for item in items], encoder, batch_size, on_error, on_progress
    )


def encode_queries(encoder: Encoder, queries: Sequence[Query], *, batch_size: int = 64) -> Features:
    """Queries -> features. The text side reads instruction + text, so it is present whenever either is."""
    rows = [(query.image, query_text(query), "the query") for query in queries]
    return _encode(rows, encoder, batch_size, "raise", None)[0]


def _encode(
    rows: Sequence[tuple[object, str, str]],
    encoder: Encoder,
    batch_size: int,
    on_error: OnError,
    on_progress: Callable[[int], None] | None,
) -> tuple[Features, list[int], list[str]]:
    parts: list[Features] = []
    kept: list[int] = []
    problems: list[str] = []
    for batch in batched(range(len(rows)), batch_size):
        pictures: list[Image.Image] = []
        pictured: list[int] = []  # positions in this batch's kept rows
        texts: list[str] = []
        written: list[int] = []
        n = 0
        for position in batch:
            source, text, name = rows[position]
            if source is not None:
                try:
                    pictures.append(load_image(source))  # type: ignore[arg-type]
                except GeniusError as error:
                    if on_error == "raise":
                        raise
                    problems.append(f"{name}: {error}")
                    continue
                pictured.append(n)
            if text:
                texts.append(text)
                written.append(n)
            kept.append(position)
            n += 1
        image, text_rows = torch.zeros(n, encoder.width), torch.zeros(n, encoder.width)
        image_mask, text_mask = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
        if pictures:
            image[pictured] = encoder.encode_images(pictures).float().cpu()
            image_mask[pictured] = True
        if texts:
            text_rows[written] = encoder.encode_texts(texts).float().cpu()
            text_mask[written] = True
        parts.append(Features(image, text_rows, image_mask, text_mask))
        if on_progress is not None:
            on_progress(len(batch))
    if not parts:
        empty = torch.zeros(0, encoder.width)
        parts.append(Features(empty, empty, torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.bool)))
    return Features.cat(parts), kept, problems
