"""Items -> rows ready to be written: pictures decoded once, embedded, quantized, and kept as path or bytes.

Knows the model; knows nothing of versions, locks or what the table holds.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from genius.encoders.base import OnError, OnPicture, encode_items
from genius.errors import GeniusError
from genius.features import Features, as_numpy, check_finite
from genius.index import metadata as meta
from genius.index.vectors import check_width, features_of_items
from genius.pictures import WORKING_SIDE, loaded, open_ahead
from genius.types import ImageInput, Item, format_text

if TYPE_CHECKING:
    from genius.model.genius import Genius

MAX_STORED = 4_000_000
"""Pictures given as bytes are kept as they are up to this size, else as a JPEG of at most `WORKING_SIDE` pixels."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The stored side of one item's image."""

    path: str | None = None  # absolute path, when it was given as one
    data: bytes | None = None  # when it was not
    thumbnail: bytes | None = None


def keep_picture(source: ImageInput, opened: Image.Image, thumbnail: int) -> Picture:
    """`opened` is `source` decoded: RGB, upright, its shorter side at least `WORKING_SIDE` or all it has.

    `thumbnail`: longest side in pixels, 0 for none.
    """
    small = None
    if thumbnail:
        small = _jpeg(opened, thumbnail)
    if isinstance(source, str | Path):
        return Picture(path=str(Path(source).absolute()), thumbnail=small)
    if isinstance(source, bytes) and len(source) <= MAX_STORED:
        return Picture(data=source, thumbnail=small)
    return Picture(data=_jpeg(opened, WORKING_SIDE, quality=92), thumbnail=small)


def _jpeg(picture: Image.Image, side: int, quality: int = 85) -> bytes:
    scale = side / max(picture.size)
    if scale < 1:
        width, height = (max(1, round(length * scale)) for length in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=2.0)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where an item was read from, and a fingerprint that changes when what was read does."""

    source: str
    mark: str
    window: tuple[int, int] = (0, 0)  # of its source (`ingest.WINDOW`): items of two windows are never encoded together


Stamped: TypeAlias = tuple[Item, Stamp | None]

AT_ONCE = 32  # items that are encoded together, at most
MAX_ID = 512
MAX_TEXT = 1_000_000
MAX_HELD = 64 << 20  # bytes of items that are held in memory at a time, whatever a caller says of their number


def held_bytes(item: Item) -> int:
    """What an item keeps in memory: pictures that are no paths, and texts."""
    picture = 0
    if isinstance(item.image, bytes):
        picture = len(item.image)
    texts = (item.text or "", *(value for value in item.metadata.values() if isinstance(value, str)))
    return picture + sum(map(len, texts))


@dataclass(frozen=True, slots=True)
class Row:
    """What the table stores of one item besides its codes and its vector."""

    item: Item
    metadata: dict[str, Any]
    picture: Picture
    stamp: Stamp | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch of items with everything the table stores of them."""

    rows: list[Row]
    codes: NDArray[np.uint16]  # (n, M)
    embeddings: NDArray[np.float16]  # (n, D)
    problems: list[str]

    @property
    def ids(self) -> list[str]:
        return [row.item.id for row in self.rows]

    def without(self, ids: Collection[str]) -> Prepared:
        keep = [i for i, row in enumerate(self.rows) if row.item.id not in ids]
        return replace(self, rows=[self.rows[i] for i in keep], codes=self.codes[keep], embeddings=self.embeddings[keep])

    def joined(self, other: Prepared) -> Prepared:
        codes = np.concatenate([self.codes, other.codes])
        embeddings = np.concatenate([self.embeddings, other.embeddings])
        return Prepared(self.rows + other.rows, codes, embeddings, self.problems + other.problems)

    def columns(self, first_seq: int, field_types: Mapping[str, meta.FieldType]) -> dict[str, Any]:
        """Table columns; `field_types` are the metadata columns of the table."""
        metadata = [row.metadata for row in self.rows]
        return {
            **{key: meta.column_values(metadata, key, field_type) for key, field_type in field_types.items()},
            "id": self.ids,
            "text": [row.item.text for row in self.rows],
            "modality": [row.item.modality.label for row in self.rows],
            "_seq": np.arange(first_seq, first_seq + len(self.rows)),
            "_codes": self.codes,
            "_embedding": self.embeddings,
            "_metadata": [meta.dump(values) for values in metadata],
            "_image": [row.picture.path for row in self.rows],
            "_image_bytes": [row.picture.data for row in self.rows],
            "_thumbnail": [row.picture.thumbnail for row in self.rows],
            "_source": [None if row.stamp is None else row.stamp.source for row in self.rows],
            "_stamp": [None if row.stamp is None else row.stamp.mark for row in self.rows],
        }


def prepare(
    model: Genius,
    batch: Sequence[Stamped],
    thumbnails: int,
    on_error: OnError,
    features: Features | None = None,
) -> Prepared:
    """Read, embed and quantize. With `on_error="skip"`, what cannot be read becomes a line in `problems`.

    Each picture is decoded once, in threads: the encoder's input and what is stored of it are made there.

    Args:
        model: Of the index.
        batch: Items, and what each was read from.
        thumbnails: Longest side of stored previews in pixels, 0 for none.
        on_error: "raise" at the first item that cannot be read, or "skip" it.
        features: The encoder's output for the batch; None: it is run.
    """
    has_vector = [item.vector is not None for item, _ in batch]
    if features is None and any(has_vector) and not all(has_vector):
        with_vectors = [one for one in batch if one[0].vector is not None]
        without = [one for one in batch if one[0].vector is None]
        parts = [prepare(model, part, thumbnails, on_error) for part in (with_vectors, without)]
        return parts[0].joined(parts[1])
    width = None
    if features is None and any(has_vector):
        width = model.config.width
    sound, metadata, problems = storable(batch, on_error, width)
    if features is None and not any(has_vector):
        passes = _passes(batch)
    else:
        passes = [0] * len(batch)
    items = [batch[position][0] for position in sound]
    pictures = [Picture()] * len(items)

    def keep(row: int, decoded: Image.Image) -> None:
        image = items[row].image
        assert image is not None
        pictures[row] = keep_picture(image, decoded, thumbnails)

    if features is None and any(has_vector):
        kept, unread = _look(items, on_error, keep)
        read = features_of_items([items[row] for row in kept], model.config.width)
    elif features is None:
        if model.encoder is None:
            raise GeniusError("this index has no encoder for images and texts: give each item a vector")
        sizes = _sizes(passes, sound)
        read, kept, unread = encode_items(model.encoder, items, batch_size=sizes, on_error=on_error, on_picture=keep)
    else:
        kept, unread = _look(items, on_error, keep)
        read = features[[sound[row] for row in kept]]
    modality = np.array([int(items[row].modality) for row in kept], np.int64)
    codes, embeddings = _quantize(model, read, modality, _sizes(passes, (sound[row] for row in kept)))
    rows = [Row(items[row], metadata[row], pictures[row], batch[sound[row]][1]) for row in kept]
    return Prepared(rows, codes, embeddings, problems + unread)


def _passes(batch: Sequence[Stamped]) -> list[int]:
    """For each item, which pass through the encoder it takes. A vector's last bits depend on who shares the pass, so that follows
    from the sources alone: workers who share them out, and one process that reads them all, make the same passes."""
    passes: list[int] = []
    current = 0
    size = 0
    window = None
    for _, stamp in batch:
        here = None
        if stamp is not None:
            here = stamp.window
        if size == AT_ONCE or here != window:
            current = current + 1
            size = 0
            window = here
        passes.append(current)
        size += 1
    return passes


def _sizes(passes: Sequence[int], positions: Iterable[int]) -> list[int]:
    """How many of these items, which are in order, each pass has."""
    return list(Counter(passes[position] for position in positions).values())


def storable(
    batch: Sequence[Stamped], on_error: OnError, width: int | None = None
) -> tuple[list[int], list[dict[str, Any]], list[str]]:
    """Check what is stored of items.

    Args:
        batch: The items.
        on_error: "raise" at the first that cannot be stored, or "skip" it.
        width: That their vectors must have; None: they are not looked at.

    Returns:
        Positions of items whose id, text, metadata and vector can be stored, that metadata, and a line for each other.
    """
    positions: list[int] = []
    metadata: list[dict[str, Any]] = []
    problems: list[str] = []
    for position, (item, _) in enumerate(batch):
        try:
            clean = _check(item)
            if width is not None:
                check_width(item, width)
            metadata.append(clean)
            positions.append(position)
        except GeniusError as error:
            if on_error == "raise":
                raise
            problems.append(str(error) if repr(item.id) in str(error) else f"{item.id}: {error}")
    return positions, metadata, problems


def _look(items: Sequence[Item], on_error: OnError, keep: OnPicture) -> tuple[list[int], list[str]]:
    """Open the pictures of items whose features are given: which could be, and a line for each that could not."""

    def show(row: int, source: ImageInput) -> bool:
        with loaded(source, least=WORKING_SIDE, name=f"the image of {items[row].id!r}", large=True) as picture:
            keep(row, picture)
        return True

    kept: list[int] = []
    problems: list[str] = []
    for start, shown in open_ahead([item.image for item in items], show, AT_ONCE):
        for row, result in enumerate(shown, start):
            if not isinstance(result, GeniusError):
                kept.append(row)
            elif on_error == "raise":
                raise result
            else:
                problems.append(f"{items[row].id}: {result}")
    return kept, problems


def _quantize(
    model: Genius, features: Features, modality: NDArray[np.int64], sizes: Sequence[int]
) -> tuple[NDArray[np.uint16], NDArray[np.float16]]:
    codes = [np.empty((0, model.config.quantizer.levels), np.uint16)]
    vectors = [np.empty((0, model.config.width), np.float16)]
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        z, dense = model.embed(features[rows])
        check_finite(dense, "vectors of the encoder")
        codes.append(as_numpy(model.assign(z, modality[rows])).astype(np.uint16))
        vectors.append(as_numpy(dense).astype(np.float16))
        start += size
    return np.concatenate(codes), np.concatenate(vectors)


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
    return meta.check_metadata(item.metadata, f"item {item.id!r}: ")
