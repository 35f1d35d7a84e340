"""Items -> rows ready to be written: pictures read once, embedded, quantized, and kept as path or bytes.

Knows the model; knows nothing of versions, locks or what the table holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.features import Features
from genius.index import metadata as meta
from genius.index.pictures import Picture, keep_picture
from genius.instructions import format_text
from genius.model.genius import Genius
from genius.types import Item, load_image


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where an item was read from, and a fingerprint that changes when what was read does."""

    source: str
    mark: str


Stamped: TypeAlias = tuple[Item, Stamp | None]

AT_ONCE = 32  # pictures in memory at a time
MAX_ID = 512
MAX_TEXT = 1_000_000


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch of items with everything the table stores of them, row by row."""

    items: list[Item]
    metadata: list[dict[str, Any]]
    pictures: list[Picture]
    stamps: list[Stamp | None]
    codes: NDArray[np.uint16]  # (n, M)
    embeddings: NDArray[np.float16]  # (n, D)
    problems: list[str]

    def without(self, ids: Collection[str]) -> Prepared:
        keep = [i for i, item in enumerate(self.items) if item.id not in ids]
        return Prepared(
            [self.items[i] for i in keep],
            [self.metadata[i] for i in keep],
            [self.pictures[i] for i in keep],
            [self.stamps[i] for i in keep],
            self.codes[keep],
            self.embeddings[keep],
            self.problems,
        )

    def columns(self, first_seq: int, kinds: Mapping[str, meta.Kind]) -> dict[str, Any]:
        """Table columns; `kinds` are the metadata columns of the table."""
        n = len(self.items)
        columns: dict[str, Any] = {key: meta.column_values(self.metadata, key, kind) for key, kind in kinds.items()}
        columns["id"] = [item.id for item in self.items]
        columns["text"] = [item.text for item in self.items]
        columns["modality"] = [item.modality.label for item in self.items]
        columns["_seq"] = np.arange(first_seq, first_seq + n)
        columns["_codes"] = self.codes
        columns["_embedding"] = self.embeddings
        columns["_metadata"] = [meta.dump(row) for row in self.metadata]
        columns["_image"] = [picture.path for picture in self.pictures]
        columns["_image_bytes"] = [picture.data for picture in self.pictures]
        columns["_thumbnail"] = [picture.thumbnail for picture in self.pictures]
        columns["_source"] = [None if stamp is None else stamp.source for stamp in self.stamps]
        columns["_stamp"] = [None if stamp is None else stamp.mark for stamp in self.stamps]
        return columns


def prepare(
    model: Genius,
    batch: Sequence[Stamped],
    thumbnails: int,
    on_error: Literal["raise", "skip"],
    features: Features | None = None,
) -> Prepared:
    """Read, embed and quantize. With `on_error="skip"`, what cannot be read becomes a line in `problems`."""
    items: list[Item] = []
    metadata: list[dict[str, Any]] = []
    pictures: list[Picture] = []
    stamps: list[Stamp | None] = []
    problems: list[str] = []
    vectors: list[tuple[Tensor, Tensor]] = []  # z, dense
    for start in range(0, len(batch), AT_ONCE):
        opened: list[Item] = []
        kept: list[int] = []
        for position in range(start, min(start + AT_ONCE, len(batch))):
            item, stamp = batch[position]
            try:
                clean = _check(item)
                picture, ready = Picture(), item
                if item.image is not None:
                    decoded = load_image(item.image)
                    picture = keep_picture(item.image, decoded, thumbnails)
                    ready = replace(item, image=decoded)
            except GeniusError as error:
                if on_error == "raise":
                    raise
                problems.append(str(error) if repr(item.id) in str(error) else f"{item.id}: {error}")
                continue
            opened.append(ready)
            kept.append(position)
            items.append(item)
            metadata.append(clean)
            pictures.append(picture)
            stamps.append(stamp)
        if not opened:
            continue
        if features is None:
            embedded = model.embed_items(opened, batch_size=AT_ONCE)
            vectors.append((embedded.z, embedded.dense))
        else:
            vectors.append(model.embed(features[torch.tensor(kept)]))
    codes, embeddings = _quantize(model, vectors, torch.tensor([int(item.modality) for item in items], dtype=torch.long))
    return Prepared(items, metadata, pictures, stamps, codes, embeddings, problems)


def _quantize(
    model: Genius, vectors: list[tuple[Tensor, Tensor]], modality: Tensor
) -> tuple[NDArray[np.uint16], NDArray[np.float16]]:
    quantizer = model.quantizer
    if not vectors:
        return np.empty((0, quantizer.config.levels), np.uint16), np.empty((0, model.config.width), np.float16)
    z, dense = torch.cat([part[0] for part in vectors]), torch.cat([part[1] for part in vectors])
    if not bool(torch.isfinite(dense).all()):
        raise GeniusError("the encoder gave NaN or infinity for some items")
    codes = quantizer.encode(z, modality.to(z.device) if quantizer.config.labelled else None)
    return codes.cpu().numpy().astype(np.uint16), dense.float().cpu().numpy().astype(np.float16)


def _check(item: Item) -> dict[str, Any]:
    meta.check_unicode(item.id, "an item's id")
    if len(item.id) > MAX_ID or any(ord(c) < 32 for c in item.id):
        raise GeniusError(f"item {item.id[:40]!r}: an id has at most {MAX_ID} characters and no control characters")
    if item.text is not None:
        meta.check_unicode(item.text, f"item {item.id!r}: text")
        if item.image is None and not format_text(item.text):
            raise GeniusError(f"item {item.id!r}: the text has no words")
        if len(item.text) > MAX_TEXT:
            raise GeniusError(f"item {item.id!r}: the text has {len(item.text):,} characters, more than {MAX_TEXT:,}")
    return meta.check_metadata(item.id, item.metadata)
