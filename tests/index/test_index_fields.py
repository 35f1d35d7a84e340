"""Metadata fields live and die: they are listed; those that no item has any more are free."""

from __future__ import annotations

import pytest

from genius import GeniusError, Index, Item
from genius.index.check import check


@pytest.fixture
def shop(index: Index) -> Index:
    index.add([Item(f"t{i}", text=f"thing{i}", metadata={"price": i, "size": str(i), "sold": bool(i % 2)}) for i in range(10)])
    index.add([Item("bare", text="bare"), Item("odd", text="odd", metadata={"size": "large"})])
    return index


def test_fields_are_listed_with_their_items(shop: Index) -> None:
    assert {f.name: (f.type, f.items) for f in shop.fields()} == {
        "price": ("number", 10),
        "size": ("text", 11),
        "sold": ("boolean", 10),
    }


def test_deleted_items_free_their_fields(index: Index) -> None:
    index.add([Item("a", text="a", metadata={"price": "n/a"})])
    with pytest.raises(GeniusError, match="'price' is a text in this index"):
        index.add([Item("b", text="b", metadata={"price": 3})])
    index.delete("a")
    assert index.add([Item("b", text="b", metadata={"price": 3})]).added == 1
    assert index.columns() == {"price": "number"} and index.count("price = 3") == 1
    index.upsert([Item("b", text="b", metadata={"price": "n/a"})])  # the only one that has it
    assert index.columns() == {"price": "text"} and index.get("b").metadata == {"price": "n/a"} and check(index.path).ok
    report = index.upsert(
        [Item("b", text="b", metadata={"price": 1}), Item("c", text="c", metadata={"price": "x"})], on_error="skip"
    )
    assert report.replaced + report.added == 1 and report.problems.total == 1 and check(index.path).ok


def test_the_limit_is_of_fields_that_items_have(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    import genius.index.metadata

    monkeypatch.setattr(genius.index.metadata, "MAX_KEYS", 4)
    index.add([Item("a", text="a", metadata={f"k{i}": i for i in range(4)})])
    with pytest.raises(GeniusError, match="4 metadata keys"):
        index.add([Item("b", text="b", metadata={"more": 1})])
    index.delete("a")
    index.add([Item("b", text="b", metadata={"more": 1})])
    assert index.columns() == {"more": "number"}
