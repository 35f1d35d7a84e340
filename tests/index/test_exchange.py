"""Results and items as other libraries hold them: lists, Arrow, pandas, Hugging Face datasets; and items in an order."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from genius import Genius, GeniusError, Index, Item
from genius.index.exchange import items_of_dataset


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
    table = hits.to_arrow()
    frame = hits.to_pandas()
    assert table.column("id").to_pylist() == frame["id"].tolist() == [hit.id for hit in hits]
    assert frame["score"].tolist() == pytest.approx([hit.score for hit in hits])
    prices = [hit.item.metadata.get("price") for hit in hits]
    assert table.column("price").to_pylist() == prices
    first = [hit.item.metadata.get("score") for hit in hits]  # a field with the name of a column
    assert table.column("metadata_score").to_pylist() == first
    empty = shop.search("a boat", where="price > 100")
    assert empty.to_list() == [] and empty.to_arrow().num_rows == 0 and len(empty.to_pandas()) == 0


def test_hits_by_a_field(shop: Index) -> None:
    hits = shop.search("a boat", k=4, target="any")
    assert [hit.id for hit in hits.sorted_by("price")] == ["b", "c", "a", "d"]
    assert [hit.id for hit in hits.sorted_by("price", descending=True)] == ["a", "c", "b", "d"]
    assert hits.sorted_by("price").plan == hits.plan
    with pytest.raises(GeniusError, match="no hit has the field 'cost'"):
        hits.sorted_by("cost")


def test_items_one_by_one_and_in_order(shop: Index) -> None:
    assert {item.id: item.text for item in shop} == {item.id: item.text for item in shop.items()} and len(list(shop)) == 4
    assert [item.id for item in shop.items(order_by="price")] == ["b", "c", "a", "d"]
    assert [item.id for item in shop.items("price < 3", order_by="price", descending=True)] == ["c", "b"]
    assert [item.id for item in shop.items(order_by="id", descending=True, limit=2)] == ["d", "c"]
    with pytest.raises(GeniusError, match="no field 'cost'"):
        list(shop.items(order_by="cost"))


def test_a_missing_library_is_one_line(shop: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(GeniusError, match="to_pandas needs pandas: pip install pandas"):
        shop.search("a boat").to_pandas()


def test_datasets_out_and_in(shop: Index, model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    pytest.importorskip("datasets", reason="an optional library")
    dataset = shop.to_dataset(vectors=True)
    rows = {row["id"]: row for row in dataset}
    assert rows["a"]["metadata_score"] == "first" and rows["b"]["sold"] is True and rows["d"]["price"] is None
    assert rows["c"]["image"].size == (20, 10) and rows["a"]["image"] is None and len(rows["a"]["vector"]) == model.config.width
    assert len(shop.to_dataset("price < 3")) == 2
    with Index(tmp_path / "again.genius", model) as again:
        again.add(items_of_dataset(dataset.remove_columns(["modality", "vector"])))
        assert {item.id: (item.text, item.modality) for item in again} == {item.id: (item.text, item.modality) for item in shop}
        assert again.get("a").metadata == {"price": 3.0, "metadata_score": "first"}
        assert [h.id for h in again.search("a boat")] == [h.id for h in shop.search("a boat")]


def test_rows_of_any_kind_become_items() -> None:
    items = list(items_of_dataset([{"title": "a", "n": 1}, {"title": "b", "n": 2}], id="n", text="title"))
    assert [(item.id, item.text) for item in items] == [("1", "a"), ("2", "b")]
    with pytest.raises(GeniusError, match="name a split"):
        list(items_of_dataset({"train": []}))  # type: ignore[arg-type]
    with pytest.raises(GeniusError, match="row 0: no text column 'caption'"):
        list(items_of_dataset([{"title": "a"}], text="caption"))
