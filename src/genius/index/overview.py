"""The collection as a whole: which items are duplicates, and a map of a sample of items in two dimensions.

Duplicates: images that are equal byte for byte; and each item is the query of a search, and what is very similar is its
duplicate. The map is drawn by UMAP where the
extra `map` is installed, else (and until UMAP is done) by the first two principal components. Two dimensions keep little of many:
distance on the map is a hint, not a similarity. Modalities are centred separately: they lie apart in every model, and would
otherwise be all that the map shows.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

import genius.flatten as flatten
from genius.encoders.base import batched
from genius.errors import GeniusError
from genius.index import Index, searching
from genius.index import metadata as meta
from genius.index.reader import Reader
from genius.search import SearchRequest
from genius.types import Modality

AT_ONCE = 64  # items compared with the others in one pass


@dataclass(frozen=True, slots=True)
class Alike:
    """Items that look the same, with how like the last is to one of the others."""

    ids: tuple[str, ...]  # in the order of the index
    least: float


def duplicates(index: Index, threshold: float = 0.97, near: int = 5) -> Iterator[Alike]:
    """Groups of items of which each is a duplicate of another of the group.

    Two items are duplicates if their images are equal byte for byte, with or without a caption, or if they are of one modality
    and their vectors are similar, which the usual search for each item finds.

    Args:
        index: The index.
        threshold: Cosine similarity from which two items count as duplicates.
        near: Most similar items that each is compared with.
    """
    owner: dict[str, str] = {}
    least: dict[str, float] = {}

    def root(name: str) -> str:
        while owner.setdefault(name, name) != name:
            name = owner[name]
        return name

    def join(name: str, double: str, score: float) -> None:
        one, other = sorted((root(name), root(double)))
        owner[other] = one
        least[one] = min(least.get(one, 1.0), least.get(other, 1.0), score)

    for same in equal_images(index):
        for name in same[1:]:
            join(same[0], name, 1.0)
    request = SearchRequest(near + 1, min_score=threshold)
    for names, vectors, modalities in index.vectors(AT_ONCE):
        targets = torch.tensor([int(modality) for modality in modalities])
        found = index.search_embedded(vectors, targets=targets, request=request)
        for name, hits in zip(names, found, strict=True):
            for hit in hits:
                if hit.id != name:
                    join(name, hit.id, hit.score)
    groups: dict[str, list[str]] = {}
    for name in owner:
        groups.setdefault(root(name), []).append(name)
    for first, group in groups.items():
        if len(group) > 1:
            yield Alike(tuple(group), least[first])


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


MOST = 1500  # items: enough to zoom into, and quick to draw
TITLE = 120  # letters of an item's words
AMONG = 5  # neighbours between which an item is put that the sample does not hold
PAUSE = 9  # times as long as a drawing took: an index that changes all the time is drawn a tenth of the time
COLUMNS = ("_seq", "id", "text", "modality", "_metadata", "_codes", "_embedding")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Placed:
    """What is drawn of an item: both coordinates are from 0 to 1."""

    id: str
    modality: Modality
    title: str
    codes: tuple[int, ...]
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Plane:
    """A sample of one version of an index, and where it lies."""

    version: int
    method: Literal["umap", "pca"]
    rows: Sequence[Row]
    vectors: torch.Tensor  # (n, D) unit, centred by modality
    centres: torch.Tensor  # (3, D) means of the modalities
    places: torch.Tensor  # (n, 2)

    def placed(self, alive: np.ndarray) -> list[Placed]:
        """The sample, without what is gone since."""
        still_stored = np.isin([row["_seq"] for row in self.rows], alive)
        return [_placed(row, at) for row, at, kept in zip(self.rows, self.places.tolist(), still_stored, strict=True) if kept]

    def located(self, rows: Sequence[Row]) -> list[Placed]:
        """Any items: in their own place, or amid those of the sample that are nearest to them."""
        vectors, modalities = _vectors(rows)
        scores, nearest = (_centred(vectors, modalities, self.centres) @ self.vectors.T).topk(min(AMONG, len(self.vectors)))
        amid = (self.places[nearest] * (20.0 * scores).softmax(1)[..., None]).sum(1).tolist()
        place_by_seq = {row["_seq"]: place for row, place in zip(self.rows, self.places.tolist(), strict=True)}
        return [_placed(row, place_by_seq.get(row["_seq"], guess)) for row, guess in zip(rows, amid, strict=True)]


class Planes:
    """The plane of an index as it is now: kept for its version, drawn better in the background."""

    def __init__(self, index: Index, most: int = MOST) -> None:
        self._index = index
        self._most = most
        self._lock = threading.Lock()
        self._plane: Plane | None = None
        self._running: flatten.Flattening | None = None
        self._drawing: threading.Thread | None = None
        self._rested = 0.0  # when the next one may be begun
        self._given_up = not flatten.available()

    def now(self) -> tuple[Plane | None, np.ndarray, bool]:
        """(the plane, or None of an empty index; all that is alive; whether a better one is being drawn)"""
        version, alive, _ = _live(self._index)
        if not len(alive):
            return None, alive, False
        with self._lock:
            plane = self._plane
            if plane is None or (plane.version != version and plane.method == "pca"):
                plane = self._plane = _sampled(self._index, self._most)
            stale = plane.version != version or plane.method == "pca"
            drawing = self._drawing is not None and self._drawing.is_alive()
            rested = time.monotonic() >= self._rested
            if stale and rested and not drawing and not self._given_up and len(alive) >= flatten.FEWEST:
                self._drawing = threading.Thread(target=self._draw, name="genius-plane", daemon=True)
                self._drawing.start()
                drawing = True
            return plane, alive, drawing

    def _draw(self) -> None:
        """UMAP of the newest version takes the place of what was drawn before."""
        began = time.monotonic()
        try:
            sample = _sampled(self._index, self._most)
            with self._lock:
                if self._given_up:
                    return
                self._running = flatten.Flattening(sample.vectors.numpy())
            places = _within(torch.from_numpy(self._running.result()))
        except GeniusError as error:
            with self._lock:
                if not self._given_up:
                    logging.getLogger("genius").warning("%s; the plane stays as it is", error)
                self._given_up = True  # it would fail again
            return
        with self._lock:
            self._plane = replace(sample, method="umap", places=places)
            self._rested = time.monotonic() + PAUSE * (time.monotonic() - began)

    def locate(self, plane: Plane, ids: Sequence[str]) -> list[Placed]:
        """Items by id, wherever they belong on the plane; unknown ids are left out."""
        rows = list(self._index._columns(list(ids), COLUMNS, "skip").values())
        if not rows:
            return []
        return plane.located(rows)

    def wait(self) -> None:
        """Until nothing is being drawn."""
        if self._drawing is not None:
            self._drawing.join()

    def close(self) -> None:
        with self._lock:
            self._given_up = True
            if self._running is not None:
                self._running.stop()


def _live(index: Index) -> tuple[int, np.ndarray, Reader]:
    with index.lock:
        live = index.current()
        return live.reader.version, live.seqs[~live.dead], live.reader


def _sampled(index: Index, most: int) -> Plane:
    """Evenly from all that are there, at the two directions in which they differ most."""
    version, alive, reader = _live(index)
    picked = alive[np.unique(np.linspace(0, len(alive) - 1, min(most, len(alive))).astype(np.int64))]
    rows = list(reader.rows(picked, COLUMNS).values())
    vectors, modalities = _vectors(rows)
    means = []
    for modality in Modality:
        modality_vectors = vectors[modalities == int(modality)]
        means.append(modality_vectors.mean(0) if len(modality_vectors) else vectors.mean(0))
    centres = torch.stack(means)
    centred = _centred(vectors, modalities, centres)
    slim = [{name: value for name, value in row.items() if name != "_embedding"} for row in rows]
    return Plane(version, "pca", slim, centred, centres, principal(centred))


def _placed(row: Row, at: Sequence[float]) -> Placed:
    facts = meta.load(row["_metadata"])
    title = str(row["text"] or facts.get("title") or facts.get("name") or row["id"])
    return Placed(row["id"], Modality.parse(row["modality"]), title[:TITLE], tuple(row["_codes"]), at[0], at[1])


def _vectors(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    vectors = torch.from_numpy(np.array([row["_embedding"] for row in rows], np.float32))
    return vectors, torch.tensor([int(Modality.parse(row["modality"])) for row in rows])


def _centred(vectors: torch.Tensor, modalities: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    return F.normalize(vectors - centres[modalities], dim=1)


def principal(centred: torch.Tensor) -> torch.Tensor:
    """(n, D) -> (n, 2) by the first two principal directions, half by rank, so that crowds stay apart."""
    if len(centred) < 3:
        return torch.full((len(centred), 2), 0.5)
    _, _, directions = torch.linalg.svd(centred.T @ centred)
    flat = centred @ directions[:2].T
    ranks = flat.argsort(0).argsort(0).float() / (len(flat) - 1)
    size = flat.abs().amax(0).clamp(min=1e-9)
    spread: torch.Tensor = (0.5 * ranks + 0.5 * (0.5 + flat / (2 * size))).clamp(0, 1)
    return spread


def _within(flat: torch.Tensor) -> torch.Tensor:
    """Stretched to 0 to 1 in both directions; the farthest hundredth of each side stands at the edge."""
    low = flat.quantile(0.01, 0)
    high = flat.quantile(0.99, 0)
    return ((flat - low) / (high - low).clamp(min=1e-9)).clamp(0, 1) * 0.96 + 0.02
