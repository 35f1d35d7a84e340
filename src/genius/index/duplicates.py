"""Which items of an index are duplicates: the same file twice, the same image resized or compressed again, nearly equal texts.

Two comparisons:

1. Images that are equal byte for byte, with or without a caption.
2. Items of one modality with similar vectors. Images must also look the same in small (`Small`): encoders see little difference
   between things of one shape and different colours.

Knows vectors and images; nothing of files but that they can be read.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
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
from genius.types import Modality

AT_ONCE = 64  # items compared with the others in one pass
NEAR = 10  # most similar items that each is compared with
TEXT_SIMILARITY = 0.97  # from which two texts are duplicates
# From which two images may be. Of 80 crops of photos that were made half as large and compressed again (JPEG, quality 60), the
# bundled encoder gives all at least 0.97; it gives 4 of the 3,160 pairs of crops more than 0.95, of which 3 look the same.
IMAGE_SIMILARITY = 0.95

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


def duplicates(index: Index, threshold: float | None = None) -> Iterator[Alike]:
    """Groups of items of which each is a duplicate of another of the group.

    Args:
        index: The index.
        threshold: Cosine similarity from which two items count as duplicates; None: `TEXT_SIMILARITY` or `IMAGE_SIMILARITY`.
    """
    groups = _Groups()
    for same in equal_images(index):
        for name in same[1:]:
            groups.join(same[0], name, 1.0)
    text_similarity = TEXT_SIMILARITY
    similarity = IMAGE_SIMILARITY
    if threshold is not None:
        text_similarity = threshold
        similarity = threshold
    looks: dict[str, Small | None] = {}
    lowest = min(similarity, text_similarity)
    request = SearchRequest(NEAR + 1, min_score=lowest)
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


def equal_images(index: Index) -> list[list[str]]:
    """Ids of items whose images are equal byte for byte. Files are hashed only if another image has the same size.

    Args:
        index: The index. Images that were indexed by path and are gone are left out.
    """
    files: list[tuple[str, str, int]] = []  # id, path, size
    without_path: list[str] = []
    for row in searching.stream(index, ["id", "_image", "modality"]):
        if row["_image"] is not None:
            with contextlib.suppress(OSError):
                files.append((row["id"], row["_image"], Path(row["_image"]).stat().st_size))
        elif row["modality"] != Modality.TEXT.label:
            without_path.append(row["id"])
    sizes = Counter(size for _, _, size in files)
    by_content: dict[bytes, list[str]] = {}
    for chunk in batched(without_path, AT_ONCE):
        for item_id, row in index._columns(chunk, ["_image_bytes"], "skip").items():
            if row["_image_bytes"] is not None:
                sizes[len(row["_image_bytes"])] += 1
                by_content.setdefault(hashlib.blake2b(row["_image_bytes"]).digest(), []).append(item_id)
    for item_id, path, size in files:
        if sizes[size] > 1:
            with contextlib.suppress(OSError), Path(path).open("rb") as file:
                by_content.setdefault(hashlib.file_digest(file, "blake2b").digest(), []).append(item_id)
    return [ids for ids in by_content.values() if len(ids) > 1]
