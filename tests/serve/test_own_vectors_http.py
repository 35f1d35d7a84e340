"""Vectors of the user's own over HTTP: added, searched, and refused with one line where they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from genius import Index


def test_items_and_queries_may_be_vectors(tmp_path: Path, make_web: Callable[..., TestClient]) -> None:
    web = make_web(Index.create(tmp_path / "own.genius", dim=3))
    items = [{"id": "a", "vector": [1.0, 0, 0], "modality": "image"}, {"id": "b", "vector": [0, 1.0, 0], "metadata": {"n": 2}}]
    assert web.post("/v1/items", json={"items": items}).json()["added"] == 2
    assert web.put("/v1/items/c", json={"vector": [0.0, 0.0, 1.0], "text": "a note"}).status_code in (200, 201)
    hits = web.post("/v1/search", json={"vector": [0.1, 1.0, 0.2]}).json()["hits"]
    assert [hit["id"] for hit in hits] == ["b", "c", "a"] and hits[0]["metadata"] == {"n": 2}
    only = web.post("/v1/search", json={"vector": [0.1, 1.0, 0.2], "modality": "image"}).json()["hits"]
    assert [(hit["id"], hit["modality"], hit["image_url"]) for hit in only] == [("a", "image", None)]
    batch = web.post("/v1/search/batch", json={"queries": [{"vector": [1.0, 0, 0]}, {"vector": [0, 0, 1.0]}]}).json()
    assert [answer["hits"][0]["id"] for answer in batch["results"]] == ["a", "c"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"vector": [1.0, 2.0]}, "2 wide; vectors of this index are 3 wide"),
        ({"vector": [0.0, 0.0, 0.0]}, "zeros only"),
        ({"vector": [1.0, 0.0, 0.0], "text": "both"}, "either a vector"),
        ({"text": "a text"}, "holds vectors only"),
        ({"vector": []}, "vector"),
    ],
)
def test_one_line_for_a_query_that_does_not_fit(
    tmp_path: Path, make_web: Callable[..., TestClient], body: dict[str, Any], message: str
) -> None:
    web = make_web(Index.create(tmp_path / "own.genius", dim=3))
    answer = web.post("/v1/search", json=body)
    assert answer.status_code == 422 and message in answer.text and "\n" not in answer.text.strip()
