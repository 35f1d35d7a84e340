"""Which items of an index are duplicates: the same file twice, the same image resized or compressed again, nearly equal texts.

Two comparisons:

1. Images that are equal byte for byte, with or without a caption.
2. Items of one modality with similar vectors. The similarity from which two count is calibrated for the encoder: images of the
   collection are made smaller, compressed again and encoded. Images must also look the same in small (`Small`): encoders see
   little difference between things of one shape and different colours.

Knows vectors and images; nothing of files but that they can be read.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from genius.encoders.base import batched
from genius.errors import GeniusError
from genius.index import Index, searching
from genius.pictures import ImageInput, loaded
from genius.search import SearchRequest
from genius.types import Item, Modality

AT_ONCE = 64  # items compared with the others in one pass
NEAR = 10  # most similar items that each is compared with
TEXT_SIMILARITY = 0.97  # from which two texts are duplicates; also of images where nothing can be calibrated
CALIBRATION_ITEMS = 32  # images that are made smaller and encoded again
FEWEST = 8  # of them, below which nothing is calibrated
CALIBRATION_SHARE = 0.05  # of the changed images that may be missed
CALIBRATION_MARGIN = 0.002  # below that
QUALITY = 60  # of the JPEG that an image is compressed to
LOWEST = 0.8  # bounds of a calibrated similarity
HIGHEST = 0.995

LUMA_SIDE = 16  # pixels of an image in small
CHROMA_SIDE = 8
TENTH = 10  # one part of so many: the pixels that differ most decide
# Chosen on 42 drawn shapes and 200 crops of sample photos. Made smaller, compressed again or cropped by 2 %, they differ by at
# most 7.5 in colour and (95 %) by 49 in brightness; the same shape in another colour differs by at least 18 in colour.
SAME_COLOURS = 16.0
SAME_BRIGHTNESS = 60.0

Pixels = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Alike:
    """Items that look the same, with how like the last is to one of the others."""

    ids: tuple[str, ...]  # in the order of the index
    least: float


@dataclass(frozen=True, slots=True)
class Small:
    """An image in a few pixels: brightness finely, colour coarsely, as JPEG stores them."""

    luma: Pixels  # (16, 16)
    chroma: Pixels  # (8, 8, 2)

    @classmethod
    def of(cls, image: Image.Image) -> Small:
        """Scale an image down.

        Args:
            image: Of any size.
        """
        small = image.convert("RGB").resize((LUMA_SIDE, LUMA_SIDE), Image.Resampling.BOX).convert("YCbCr")
        pixels = np.asarray(small, np.float32)
        block = LUMA_SIDE // CHROMA_SIDE
        chroma = pixels[..., 1:].reshape(CHROMA_SIDE, block, CHROMA_SIDE, block, 2).mean((1, 3))
        return cls(pixels[..., 0], chroma)

    def difference(self, other: Small) -> tuple[float, float]:
        """How far brightness and colour of two images differ, from 0 to 255: means over the tenth of the pixels that differ most.

        A pixel is compared with the nearest of nine of the other image, so that a small shift matters little.

        Args:
            other: The other image.
        """
        luma = np.maximum(
            _apart(self.luma[..., None], other.luma[..., None]), _apart(other.luma[..., None], self.luma[..., None])
        )
        chroma = np.maximum(_apart(self.chroma, other.chroma), _apart(other.chroma, self.chroma))
        return _largest(luma), _largest(chroma)


def _apart(one: Pixels, other: Pixels) -> Pixels:
    """(S, S) distance of each pixel of (S, S, C) to the nearest of nine of the other image."""
    side = len(one)
    wide = np.pad(other, ((1, 1), (1, 1), (0, 0)), mode="edge")
    shifted = [wide[y : y + side, x : x + side] for y in range(3) for x in range(3)]
    nearest: Pixels = np.min([np.abs(one - near).max(2) for near in shifted], axis=0)
    return nearest


def _largest(differences: Pixels) -> float:
    """Mean over the largest tenth."""
    count = max(1, differences.size // TENTH)
    return float(np.sort(differences.ravel())[-count:].mean())


def _looks(index: Index, ids: AbstractSet[str]) -> dict[str, Small | None]:
    """Thumbnails of items in small, or their images where they have none; None: there is nothing to look at."""
    looks: dict[str, Small | None] = {}
    for chunk in batched(sorted(ids), AT_ONCE):
        for item_id, row in index._columns(chunk, ["_thumbnail", "_image"], "skip").items():
            looks[item_id] = _small(row["_thumbnail"] or row["_image"])
        without = [item_id for item_id in chunk if looks.get(item_id) is None]
        for item_id, row in index._columns(without, ["_image_bytes"], "skip").items():
            looks[item_id] = _small(row["_image_bytes"])
    return looks


def _same_look(one: Small | None, other: Small | None) -> bool:
    """Whether two items look the same, or cannot both be looked at."""
    if one is None or other is None:
        return True
    brightness, colour = one.difference(other)
    return brightness <= SAME_BRIGHTNESS and colour <= SAME_COLOURS


def _small(image: ImageInput | None) -> Small | None:
    if image is None:
        return None
    try:
        with loaded(image, least=4 * LUMA_SIDE, large=True) as picture:
            return Small.of(picture)
    except GeniusError:
        return None


class _Groups:
    """Items that are joined with each other, directly or through others."""

    def __init__(self) -> None:
        self._owner: dict[str, str] = {}
        self._least: dict[str, float] = {}

    def _root(self, name: str) -> str:
        while self._owner.setdefault(name, name) != name:
            name = self._owner[name]
        return name

    def join(self, name: str, double: str, score: float) -> None:
        one, other = sorted((self._root(name), self._root(double)))
        self._owner[other] = one
        self._least[one] = min(self._least.get(one, 1.0), self._least.get(other, 1.0), score)

    def all(self) -> Iterator[Alike]:
        members: dict[str, list[str]] = {}
        for name in self._owner:
            members.setdefault(self._root(name), []).append(name)
        for first, names in members.items():
            if len(names) > 1:
                yield Alike(tuple(names), self._least[first])


def duplicates(index: Index, threshold: float | None = None, near: int = NEAR) -> Iterator[Alike]:
    """Groups of items of which each is a duplicate of another of the group.

    Args:
        index: The index.
        threshold: Cosine similarity from which two items count as duplicates; None: calibrated (`image_similarity`).
        near: Most similar items that each is compared with.
    """
    groups = _Groups()
    for same in equal_images(index):
        for name in same[1:]:
            groups.join(same[0], name, 1.0)
    if threshold is None:
        text_similarity = TEXT_SIMILARITY
        similarity = image_similarity(index)
    else:
        text_similarity = threshold
        similarity = threshold
    looks: dict[str, Small | None] = {}
    lowest = min(similarity, text_similarity)
    request = SearchRequest(near + 1, min_score=lowest)
    for names, vectors, modalities in index.vectors(AT_ONCE):
        targets = torch.tensor([int(modality) for modality in modalities])
        found = index.search_embedded(vectors, targets=targets, request=request)
        pairs = []
        for name, modality, hits in zip(names, modalities, found, strict=True):
            least = similarity
            if modality == Modality.TEXT:
                least = text_similarity
            pairs += [(name, hit) for hit in hits if hit.id != name and hit.score >= least]
        looks |= _looks(index, {item_id for name, hit in pairs for item_id in (name, hit.id)} - looks.keys())
        for name, hit in pairs:
            if _same_look(looks.get(name), looks.get(hit.id)):
                groups.join(name, hit.id, hit.score)
    yield from groups.all()


def image_similarity(index: Index) -> float:
    """The similarity that an image of this index has to itself, made half as large and compressed again, nearly always.

    Args:
        index: With an encoder and readable images; `TEXT_SIMILARITY` where there are fewer than `FEWEST`.
    """
    if index.model.encoder is None:
        return TEXT_SIMILARITY
    with_image = [row["id"] for row in searching.stream(index, ["id", "modality"]) if row["modality"] != Modality.TEXT.label]
    places = np.linspace(0, len(with_image) - 1, min(CALIBRATION_ITEMS, len(with_image))).astype(np.int64)
    originals: list[Item] = []
    changed: list[Item] = []
    for item_id in [with_image[place] for place in np.unique(places)]:
        picture = _image_of(index, item_id)
        if picture is not None:
            originals.append(Item(item_id, image=picture))
            changed.append(Item(item_id, image=_compressed(picture)))
    if len(originals) < FEWEST:
        return TEXT_SIMILARITY
    before = index.model.embed_items(originals).dense
    after = index.model.embed_items(changed).dense
    similarities = np.asarray((before * after).sum(1).cpu())
    found = float(np.quantile(similarities, CALIBRATION_SHARE)) - CALIBRATION_MARGIN
    return min(max(found, LOWEST), HIGHEST)


def _image_of(index: Index, item_id: str) -> Image.Image | None:
    """An item's image of a size that encoders read; None if it cannot be read."""
    row = index._columns([item_id], ["_image_bytes", "_image"], "skip").get(item_id, {})
    source = row.get("_image_bytes") or row.get("_image")
    if source is None:
        return None
    try:
        with loaded(source, least=512, large=True) as picture:
            return picture.copy()
    except GeniusError:
        return None


def _compressed(picture: Image.Image) -> Image.Image:
    """An image half as large, as a JPEG."""
    width, height = picture.size
    buffer = io.BytesIO()
    picture.resize((max(1, width // 2), max(1, height // 2))).save(buffer, "JPEG", quality=QUALITY)
    buffer.seek(0)
    return Image.open(buffer).convert("RGB")


def equal_images(index: Index) -> list[list[str]]:
    """Ids of items whose images are equal byte for byte. Images are hashed only if another one has the same size.

    Args:
        index: The index. Images that were indexed by path and are gone are left out.
    """
    by_size: dict[int, list[tuple[str, str | None]]] = {}  # size -> ids, and paths of those that have one
    without_path: list[str] = []
    for row in searching.stream(index, ["id", "_image", "modality"]):
        if row["_image"] is not None:
            try:
                size = os.stat(row["_image"]).st_size  # noqa: PTH116 - one of many: no object for each
            except OSError:
                continue
            by_size.setdefault(size, []).append((row["id"], row["_image"]))
        elif row["modality"] != Modality.TEXT.label:
            without_path.append(row["id"])
    for chunk in batched(without_path, AT_ONCE):
        for item_id, row in index._columns(chunk, ["_image_bytes"], "skip").items():
            if row["_image_bytes"] is not None:
                by_size.setdefault(len(row["_image_bytes"]), []).append((item_id, None))
    by_content: dict[bytes, list[str]] = {}
    for same_size in by_size.values():
        if len(same_size) > 1:
            for item_id, path in same_size:
                digest = _digest(index, item_id, path)
                if digest is not None:
                    by_content.setdefault(digest, []).append(item_id)
    return [ids for ids in by_content.values() if len(ids) > 1]


def _digest(index: Index, item_id: str, path: str | None) -> bytes | None:
    """Hash of an image's bytes; None if it is gone."""
    if path is not None:
        try:
            with Path(path).open("rb") as file:
                return hashlib.file_digest(file, "blake2b").digest()
        except OSError:
            return None
    rows = index._columns([item_id], ["_image_bytes"], "skip")
    if item_id not in rows:
        return None
    return hashlib.blake2b(rows[item_id]["_image_bytes"]).digest()
