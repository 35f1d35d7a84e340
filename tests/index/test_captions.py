"""Captioned and bare photos compete fairly: a constructed modality gap, as two-tower encoders have it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from genius import Index, Query
from genius.index.searching import rescaled
from genius.search import SearchRequest
from genius.types import Item, Modality

WIDTH = 64
PHOTOS = 240
CAPTIONED = 24


def cloud(count: int, centre: np.ndarray, seed: int) -> np.ndarray:
    """Unit vectors around a centre: those of one modality lie together, far from those of the other."""
    noise = np.random.default_rng(seed).normal(size=(count, WIDTH)) / WIDTH**0.5
    rows = centre + noise
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


CENTRES = np.linalg.qr(np.random.default_rng(1).normal(size=(WIDTH, 2)))[0].T


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Index:
    images = cloud(PHOTOS, CENTRES[0], 2)
    captions = cloud(CAPTIONED, CENTRES[1], 3)
    index = Index.create(tmp_path_factory.mktemp("captions") / "photos.genius", dim=WIDTH)
    items = []
    for number in range(PHOTOS):
        vector = {"image": images[number]}
        if number < CAPTIONED:
            vector["text"] = captions[number]
        items.append(Item(f"{number}", vector=vector))
    index.add(items)
    return index


def found(index: Index, queries: np.ndarray, k: int = 10) -> list[list[str]]:
    """Ids that text queries for images return."""
    asked = [Query(vector={"text": row}, target=Modality.IMAGE) for row in queries]
    return [[hit.id for hit in hits] for hits in index.search_many(asked, SearchRequest(k))]


def test_unrelated_queries_do_not_prefer_captions(photos: Index) -> None:
    assert photos.info()["modalities"] == {"image": PHOTOS - CAPTIONED, "text": 0, "pair": CAPTIONED}
    hits = [name for line in found(photos, cloud(100, CENTRES[1], 4)) for name in line]
    share = sum(int(name) < CAPTIONED for name in hits) / len(hits)
    assert share <= 1.5 * CAPTIONED / PHOTOS
    assert share > 0  # they are not shut out either


def test_a_caption_that_matches_is_found(photos: Index) -> None:
    captions = cloud(CAPTIONED, CENTRES[1], 3)
    noise = cloud(CAPTIONED, CENTRES[1], 5)
    queries = captions + 0.3 * noise
    lines = found(photos, queries / np.linalg.norm(queries, axis=1, keepdims=True), k=3)
    assert sum(str(number) in line for number, line in enumerate(lines)) >= 0.8 * CAPTIONED


def test_one_modality_alone_is_searched_as_before(tmp_path: Path) -> None:
    images = cloud(50, CENTRES[0], 2)
    index = Index.create(tmp_path / "bare.genius", dim=WIDTH)
    index.add([Item(f"{number}", vector={"image": row}) for number, row in enumerate(images)])
    queries = cloud(5, CENTRES[1], 4)
    hits = index.search_many([Query(vector={"text": row}, target=Modality.IMAGE) for row in queries], SearchRequest(50))
    for row, line in zip(queries, hits, strict=True):
        similarities = images @ row
        assert [hit.id for hit in line[:10]] == [str(number) for number in np.argsort(-similarities, kind="stable")[:10]]
        assert [hit.score for hit in line] == pytest.approx(np.sort(similarities)[::-1].tolist(), abs=2e-3)


def test_the_scale_is_that_of_the_other_modality() -> None:
    background = np.array([[0.2, 0.1], [0.0, 1.0], [0.6, 0.05]], np.float32)
    assert rescaled(np.array([0.7, 0.6], np.float32), background, 2, 0) == pytest.approx([0.4, 0.2])
    flat = background.copy()
    flat[2, 1] = 0
    assert rescaled(np.array([0.7], np.float32), flat, 2, 0) == pytest.approx([0.7])  # one item says nothing of the spread
