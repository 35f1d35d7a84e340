"""Metadata fields live and die: listed, dropped, renamed, retyped; those that no item has any more are free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genius import Genius, GeniusError, Index, Item
from genius.index.check import check
from genius.index.writing import convert


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


def test_drop_rename_and_retype_change_items_and_filters(shop: Index, model: Genius) -> None:
    other = Index(shop.path, model)
    codes = {f"t{i}": shop.codes(f"t{i}") for i in range(10)}
    assert shop.drop_field("sold") == 10 and shop.rename_field("price", "cost") == 10
    assert shop.get("t3").metadata == {"size": "3", "cost": 3}
    with pytest.raises(GeniusError, match=r"1 value of 'size' cannot become number \(first: 'odd'\)"):
        shop.retype_field("size", "number")
    assert shop.get("t3").metadata["size"] == "3"  # nothing was changed
    assert shop.retype_field("size", "number", lossy=True) == 10
    for handle in (shop, other, Index(shop.path, model)):
        assert handle.columns() == {"cost": "number", "size": "number"}
        assert handle.get("t3").metadata == {"cost": 3, "size": 3} and handle.get("odd").metadata == {}
        assert handle.count("size >= 8") == 2 and len(handle.search(text="thing3", where="cost < 3")) == 3
        with pytest.raises(GeniusError, match="unknown column 'sold'"):
            handle.count("sold")
    assert {i: shop.codes(i) for i in codes} == codes and check(shop.path).ok
    shop.add([Item("new", text="new", metadata={"sold": "last year"})])  # the name is free
    assert shop.columns()["sold"] == "text"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda i: i.drop_field("nope"), "no field 'nope'; there are: price, size, sold"),
        (lambda i: i.rename_field("price", "size"), "there is a field 'size' already"),
        (lambda i: i.rename_field("price", "SIZE"), "there is a field 'size' already"),
        (lambda i: i.rename_field("price", "_seq"), "use a letter"),
        (lambda i: i.rename_field("price", "id"), "reserved"),
        (lambda i: i.retype_field("price", "date"), "unknown field type 'date'"),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_nothing(shop: Index, call: object, message: str) -> None:
    version = shop.version
    with pytest.raises(GeniusError, match=message):
        call(shop)  # type: ignore[operator]
    assert shop.version == version and check(shop.path).ok


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


@given(
    st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.text(max_size=12))
)
def test_values_keep_their_meaning(value: object) -> None:
    text = convert(value, "text")
    assert isinstance(text, str)
    if not isinstance(value, str):
        back = convert(text, "boolean" if isinstance(value, bool) else "number")
        assert back == value
    for kind in ("number", "boolean"):
        assert convert(value, kind) is None or isinstance(convert(value, kind), bool if kind == "boolean" else int | float)  # type: ignore[arg-type]
