"""`where`: random conditions against Python's own evaluation, and everything that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genius import Genius, GeniusError, Index, Item
from genius.index.check import check

COLUMNS = {"price": "number", "shop": "text", "sold": "boolean"}
SHOPS = ["a", "B", "it's", 'say "x"', "50%", "under_score", "", "日本", "`tick`", "a;b--c", "\\"]
PRICES = [-2.5, 0, 1, 2, 1e6]

ROWS: list[dict[str, Any]] = [
    {k: v for k, v in (("price", p), ("shop", s), ("sold", b)) if v is not None}
    for p in [None, *PRICES]
    for s in [None, *SHOPS]
    for b in (None, True, False)
]


Condition = tuple[str, Callable[[dict[str, Any]], bool | None]]  # SQL, and its three-valued meaning


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def compare(column: str, operator: str, value: Any) -> Condition:
    tests: dict[str, Callable[[Any], bool]] = {
        "=": lambda x: x == value,
        "!=": lambda x: x != value,
        "<>": lambda x: x != value,
        "<": lambda x: x < value,
        "<=": lambda x: x <= value,
        ">": lambda x: x > value,
        ">=": lambda x: x >= value,
    }
    shown = str(value).lower() if isinstance(value, bool) else quote(value) if isinstance(value, str) else repr(value)
    return f"{column} {operator} {shown}", lambda m: tests[operator](m[column]) if column in m else None


def member(column: str, values: list[Any], negated: bool) -> Condition:
    shown = ", ".join(quote(v) if isinstance(v, str) else repr(v) for v in values)
    return (
        f"{column} {'NOT ' if negated else ''}IN ({shown})",
        lambda m: ((m[column] in values) != negated) if column in m else None,
    )


leaves: st.SearchStrategy[Condition] = st.one_of(
    st.builds(compare, st.just("price"), st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="]), st.sampled_from(PRICES)),
    st.builds(compare, st.just("shop"), st.sampled_from(["=", "!=", "<", ">="]), st.sampled_from(SHOPS)),
    st.builds(compare, st.just("sold"), st.sampled_from(["=", "!="]), st.booleans()),
    st.builds(member, st.just("price"), st.lists(st.sampled_from(PRICES), min_size=1, max_size=3), st.booleans()),
    st.builds(member, st.just("shop"), st.lists(st.sampled_from(SHOPS), min_size=1, max_size=3), st.booleans()),
    st.sampled_from(["price", "shop", "sold"]).map(lambda c: (f"{c} IS NULL", lambda m: c not in m)),
    st.sampled_from(["price", "shop", "sold"]).map(lambda c: (f"{c} is not null", lambda m: c in m)),
    st.just(("sold", lambda m: m.get("sold"))),
    st.just(("starts_with(shop, 'a')", lambda m: m["shop"].startswith("a") if "shop" in m else None)),
    st.just(("lower(shop) = 'b'", lambda m: m["shop"].lower() == "b" if "shop" in m else None)),
    st.just(("length(shop) > 3", lambda m: len(m["shop"]) > 3 if "shop" in m else None)),
    st.just(("price BETWEEN 0 AND 2", lambda m: 0 <= m["price"] <= 2 if "price" in m else None)),
    st.just(("shop LIKE '%s%'", lambda m: "s" in m["shop"] if "shop" in m else None)),
    st.just(("TRUE", lambda m: True)),
)


def negate(inner: Condition) -> Condition:
    def meaning(m: dict[str, Any]) -> bool | None:
        value = inner[1](m)
        return None if value is None else not value

    return f"NOT ({inner[0]})", meaning


def join(word: str, parts: list[Condition]) -> Condition:
    decides = word == "OR"  # the value that decides alone

    def meaning(m: dict[str, Any]) -> bool | None:
        values = [part[1](m) for part in parts]
        if decides in values:
            return decides
        return None if None in values else not decides

    return "(" + f" {word} ".join(part[0] for part in parts) + ")", meaning


conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(negate),
        st.builds(join, st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def shop(model: Genius, tmp_path_factory: pytest.TempPathFactory) -> Index:
    index = Index(tmp_path_factory.mktemp("filters") / "shop.genius", model)
    index.add([Item(str(i), text=f"thing {i}", metadata=row) for i, row in enumerate(ROWS)])
    return index


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(condition=conditions)
def test_conditions_mean_what_sql_says(shop: Index, condition: Condition) -> None:
    where, meaning = condition
    expected = {str(i) for i, row in enumerate(ROWS) if meaning(row) is True}
    assert {item.id for item in shop.items(where)} == expected, where
    assert shop.count(where) == len(expected)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("price <", "expected a column or a value, found 'the end'"),
        ("price < 3 price", "unexpected 'price'"),
        ("1=1; DROP TABLE items", "unexpected ';'"),
        ("price < 3 -- comment", "unexpected '-'"),
        ("id IN (SELECT id FROM items)", "unknown column 'SELECT'"),
        ("repeat(shop, 1000000000) = 'x'", "unknown function 'repeat'"),
        ("sleep(10)", "unknown function 'sleep'"),
        ("_seq > 0", "unknown column '_seq'"),
        ("_embedding IS NULL", "unknown column"),
        ("price = 'a'", "is a number"),
        ("shop = 3", "is a text"),
        ("shop LIKE '" + "%a" * 50 + "'", "wildcards"),
        ("(" * 100 + "sold" + ")" * 100, "nested"),
        ("price = " + "9" * 400, "too large"),
        ("shop = 'open", "unclosed quote"),
        ("price", "expected a comparison"),
        ("price IN ()", "expected a column or a value"),
        ("price IN (price)", "single value"),
        ("sold > false", "no order"),
        ("x" * 200_000, "more than"),
        ("CASE WHEN sold THEN true END", "unknown column 'CASE'"),
        ("price = 1 UNION SELECT 1", "unexpected 'UNION'"),
        ("", "empty"),
        ("  ", "empty"),
    ],
)
def test_refused_with_one_clear_line(shop: Index, where: str, message: str) -> None:
    with pytest.raises(GeniusError) as caught:
        shop.search(text="a", where=where)
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_long_conditions_work(shop: Index) -> None:
    assert shop.count(" OR ".join(f"id = '{i}'" for i in range(100))) == 100
    assert shop.count("id IN (" + ", ".join(f"'{i}'" for i in range(5000)) + ")") == len(ROWS)
    assert shop.count("NOT " * 501 + "sold") == sum(row.get("sold") is False for row in ROWS)
    assert shop.count("(" * 15 + "sold" + ")" * 15) == sum(row.get("sold") is True for row in ROWS)


def test_names_are_found_in_any_case_and_quoting(shop: Index) -> None:
    counts = {
        shop.count(where) for where in ("price = 1", "PRICE = 1", "`price` = 1", '"price" = 1', "1 = price", "price = +1.0e0")
    }
    assert len(counts) == 1 and counts != {0}


def test_literals_cannot_break_out(shop: Index, tmp_path: Path) -> None:
    assert shop.count("shop = 'x'' OR TRUE OR ''' ") == 0
    assert shop.count("id = 'x' OR modality = 'text'") == len(ROWS)


@pytest.fixture(scope="module")
def diary(model: Genius, tmp_path_factory: pytest.TempPathFactory) -> Index:
    index = Index(tmp_path_factory.mktemp("diary") / "diary.genius", model)
    index.add(
        [
            Item("may", text="a", metadata={"taken": datetime(2024, 5, 31, 23, 59, 59), "tags": ["sea", "it's"]}),
            Item("june", text="b", metadata={"taken": date(2024, 6, 1), "tags": ["sea", "sun", "sand"]}),
            Item("late june", text="c", metadata={"taken": "2024-06-30T18:00:00", "tags": []}),
            Item("july", text="d", metadata={"taken": "2024-07-01", "tags": ("sun",)}),
            Item("old", text="e", metadata={"taken": "2019-12-31T00:00:00"}),
        ]
    )
    return index


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("taken = date('2024-06')", {"june", "late june"}),
        ("taken != date('2024-06')", {"may", "july", "old"}),
        ("taken < date('2024-06')", {"may", "old"}),
        ("taken <= date('2024-06')", {"may", "june", "late june", "old"}),
        ("taken > date('2024-05-31')", {"june", "late june", "july"}),
        ("taken >= date('2024-06-30')", {"late june", "july"}),
        ("taken = date('2019')", {"old"}),
        ("taken BETWEEN date('2024-05-31') AND date('2024-06-30')", {"may", "june", "late june"}),
        ("taken NOT BETWEEN date('2024') AND date('2024')", {"old"}),
        ("has(tags, 'sea')", {"may", "june"}),
        ("has(tags, 'it''s')", {"may"}),
        ("NOT has(tags, 'sea')", {"late june", "july"}),  # an absent list is neither
        ("has_any(tags, 'sand', 'it''s')", {"may", "june"}),
        ("has_all(tags, 'sun', 'sea') AND taken = date('2024-06-01')", {"june"}),
        ("length(tags) > 1", {"may", "june"}),
        ("tags IS NULL", {"old"}),
    ],
)
def test_dates_and_lists(diary: Index, where: str, expected: set[str]) -> None:
    assert {item.id for item in diary.items(where)} == expected
    assert {hit.id for hit in diary.search("a", where=where)} == expected


def test_dates_and_lists_come_back(diary: Index) -> None:
    assert diary.get("may").metadata == {"taken": "2024-05-31T23:59:59", "tags": ["sea", "it's"]}
    assert diary.columns()["tags"] == "texts"
    assert check(diary.path).ok


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("taken = date('June')", "is no date"),
        ("taken = date('2024-02-30')", "is no date"),
        ("taken = date('9999-12-31')", "is no date"),
        ("taken = date(2024)", "a date is a text"),
        ("date('2024') < taken", "write the column first"),
        ("taken IN (date('2024'))", "use BETWEEN"),
        ("tags = 'sea'", "use has(tags"),
        ("has(taken, 'sea')", "needs a list of texts"),
        ("has(tags)", "takes a column and one text"),
        ("has(tags, 3)", "compares with texts"),
        ("has_any(tags, taken)", "compares with texts"),
    ],
)
def test_one_line_for_dates_and_lists_that_do_not_fit(diary: Index, where: str, message: str) -> None:
    with pytest.raises(GeniusError) as caught:
        diary.count(where)
    assert message in str(caught.value)


def test_lists_of_other_things_are_refused(index: Index) -> None:
    with pytest.raises(GeniusError, match="a list of strings"):
        index.add([Item("a", text="a", metadata={"tags": [1, 2]})])
    index.add([Item("a", text="a", metadata={"tags": ["x"]})])
    with pytest.raises(GeniusError, match="is a list of texts in this index"):
        index.add([Item("b", text="b", metadata={"tags": "x"})])
