"""Results and items as other libraries hold them: lists, Arrow, pandas."""

from __future__ import annotations

import json
from io import BytesIO

import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

from genius import Index, Item


@pytest.fixture
def shop(index: Index) -> Index:
    picture = BytesIO()
    Image.new("RGB", (20, 10), "red").save(picture, "PNG")
    index.add(
        [
            Item("a", text="a red boat", metadata={"price": 3, "score": "first"}),
            Item("b", text="a blue boat", metadata={"price": 1.5, "sold": True}),
            Item("c", image=picture.getvalue(), text="a red square", metadata={"price": 2}),
            Item("d", text="nothing else"),
        ]
    )
    return index


def test_hits_as_lists_tables_and_frames(shop: Index) -> None:
    hits = shop.search("a boat", k=3, target="any")
    listed = hits.to_list()
    assert json.loads(json.dumps(listed)) == [hit.to_dict() for hit in hits]
    table = pa.Table.from_pylist(listed)
    frame = pd.json_normalize(listed)
    assert table.column("id").to_pylist() == frame["id"].tolist() == [hit.id for hit in hits]
    assert frame["score"].tolist() == pytest.approx([hit.score for hit in hits])
    assert [row["price"] for row in table.column("metadata").to_pylist()] == [hit.item.metadata.get("price") for hit in hits]
    assert shop.search("a boat", where="price > 100").to_list() == []


def test_items_one_by_one(shop: Index) -> None:
    assert {item.id: item.text for item in shop} == {item.id: item.text for item in shop.items()} and len(list(shop)) == 4
    assert [item.id for item in shop.items("price < 2")] == ["b"] and len(list(shop.items(limit=2))) == 2
