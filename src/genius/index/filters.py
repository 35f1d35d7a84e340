"""`where`: a small, safe part of SQL. Parsed here, checked against the index's columns, written out anew.

Only what this grammar knows ever reaches the database: comparisons, IN, BETWEEN, LIKE, IS NULL, AND, OR, NOT,
brackets, a few text functions, tests of lists, and dates. So a filter can be handed over the network: no statement, subquery or
expensive function can hide in it, and every mistake has one clear line. As in SQL, a comparison with an absent
value is neither true nor false: such items never match, under NOT either.

    expression := term (OR term)*          term := factor (AND factor)*      factor := NOT factor | predicate
    predicate  := ( expression ) | TRUE | FALSE | boolean column | starts_with(a, 'b') … | has(list, 'b') …
                | value (= | != | <> | < | <= | > | >=) value | value IS [NOT] NULL
                | value [NOT] IN (literal, …) | value [NOT] BETWEEN literal AND literal | value [NOT] [I]LIKE 'pattern'
    value      := column | literal | lower(value) | upper(value) | length(value) | date('2024-06-01' | '2024-06' | '2024')

A date stands for all of its day, month or year: `taken <= date('2024-06')` holds for every moment of June. Dates are stored as
ISO 8601 texts, which sort as dates do.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from genius.errors import GeniusError
from genius.index.metadata import BUILT_IN, Columns, FieldType, type_name
from genius.types import is_unicode

MAX_LENGTH = 100_000  # characters
MAX_DEPTH = 20  # brackets and NOTs inside each other
MAX_WILDCARDS = 8  # of one LIKE pattern: matching time grows with each
COMPARISONS = ("=", "!=", "<>", "<=", ">=", "<", ">")
KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "like", "ilike", "between", "true", "false"})
FUNCTIONS: dict[str, tuple[FieldType, FieldType]] = {
    "lower": ("text", "text"),
    "upper": ("text", "text"),
    "length": ("text", "number"),
}
TESTS = {
    "starts_with": "starts_with",
    "ends_with": "ends_with",
    "contains": "contains",
    "has": "array_has",
    "has_any": "array_has_any",
    "has_all": "array_has_all",
}
"""Name of a test -> its name in the database. Those of lists begin with "has"; the last two take several texts."""

_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?")

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"])+"|`(?:[^`])+`)
    | (?P<word>[^\W\d]\w*)
    | (?P<symbol><=|>=|!=|<>|[=<>(),+-])
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Token:
    category: str  # number, string, quoted, word, symbol, end
    text: str


@dataclass(frozen=True, slots=True)
class _Value:
    sql: str
    type: FieldType
    literal: bool
    until: str | None = None  # of a date: what comes right after it; `sql` is where it begins


def compile_where(where: str, columns: Columns) -> str:
    """A checked `where` over metadata `columns` (and id, text, modality) -> SQL for the database."""
    if not isinstance(where, str) or not where.strip():
        raise GeniusError("where is empty: leave it out, or write a condition such as price < 50")
    if len(where) > MAX_LENGTH:
        raise GeniusError(f"where has {len(where):,} characters, more than {MAX_LENGTH:,}")
    if not is_unicode(where):
        raise GeniusError("where is not valid Unicode text")
    try:
        parser = _Parser(_tokens(where), {**BUILT_IN, **columns})
        sql = parser.expression(0)
        if parser.peek().category != "end":
            raise GeniusError(f"where: unexpected {parser.peek().text!r}")
    except GeniusError as error:  # one line, however long the words in it
        raise GeniusError(" ".join(str(error).split())[:300]) from None
    return sql


def _tokens(where: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    end = len(where.rstrip())
    while at < end:
        match = _TOKEN.match(where, at)
        if match is None or match.lastgroup is None:
            remaining = where[at:].strip()
            if remaining[0] in "'\"`":
                raise GeniusError(f"where: unclosed quote at {remaining[:20]!r}")
            raise GeniusError(f"where: unexpected {remaining[0]!r}")
        tokens.append(_Token(match.lastgroup, match.group(match.lastgroup)))
        at = match.end()
    tokens.append(_Token("end", "the end"))
    return tokens


class _Parser:
    def __init__(self, tokens: list[_Token], columns: Columns) -> None:
        self.tokens = tokens
        self.columns = columns
        self.names = {name.lower(): name for name in columns}
        self.at = 0

    # -- tokens ------------------------------------------------------------------------------------------------

    def peek(self) -> _Token:
        return self.tokens[self.at]

    def next(self) -> _Token:
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def take(self, word: str) -> bool:
        """Consume this keyword if it comes next."""
        token = self.peek()
        if token.category != "word" or token.text.lower() != word:
            return False
        self.at += 1
        return True

    def symbol(self, text: str) -> bool:
        if self.peek().category == "symbol" and self.peek().text == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.symbol(text):
            raise GeniusError(f"where: expected {text!r}, found {self.peek().text!r}")

    # -- conditions --------------------------------------------------------------------------------------------

    def expression(self, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise GeniusError(f"where is nested more than {MAX_DEPTH} deep")
        return self.joined("or", lambda: self.joined("and", lambda: self.factor(depth)))

    def joined(self, word: str, part: Callable[[], str]) -> str:
        """One part, or several with this keyword between them."""
        parts = [part()]
        while self.take(word):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        return f"({f' {word.upper()} '.join(parts)})"

    def factor(self, depth: int) -> str:
        negated = False
        while self.take("not"):
            negated = not negated
        inner = self.predicate(depth)
        if negated:
            return f"(NOT {inner})"
        return inner

    def predicate(self, depth: int) -> str:
        if self.symbol("("):
            inner = self.expression(depth + 1)
            self.expect(")")
            return inner
        name = self.peek().text.lower()
        if name in TESTS and self.calls():
            return self.test(name)
        return self.comparison(self.value(0))

    def comparison(self, left: _Value) -> str:
        token = self.peek()
        if token.category == "symbol" and token.text in COMPARISONS:
            self.next()
            right = self.value(0)
            self.check_same_type(left, right)
            if left.type == "boolean" and token.text not in ("=", "!=", "<>"):
                raise GeniusError(f"where: booleans have no order, {token.text!r} does not apply")
            return _compared(left, token.text, right)
        if self.take("is"):
            negated = self.take("not")
            if not self.take("null"):
                raise GeniusError(f"where: expected NULL after IS, found {self.peek().text!r}")
            return f"({left.sql} IS {'NOT ' if negated else ''}NULL)"
        negation = "NOT " if self.take("not") else ""
        if self.take("in"):
            return self.membership(left, negation)
        if self.take("between"):
            low = self.literal_like(left)
            if not self.take("and"):
                raise GeniusError(f"where: expected AND in BETWEEN, found {self.peek().text!r}")
            high = self.literal_like(left)
            return f"({negation}({_compared(left, '>=', low)} AND {_compared(left, '<=', high)}))"
        for operator in ("like", "ilike"):
            if self.take(operator):
                pattern = self.literal_like(left)
                if left.type != "text":
                    raise GeniusError(f"where: {operator.upper()} needs text, {left.sql} is a {left.type}")
                if sum(pattern.sql.count(c) for c in "%_") > MAX_WILDCARDS:
                    raise GeniusError(f"where: a LIKE pattern may have {MAX_WILDCARDS} wildcards")
                return f"({left.sql} {negation}{operator.upper()} {pattern.sql})"
        if left.type == "boolean" and not negation:
            return left.sql
        raise GeniusError(f"where: expected a comparison after {left.sql}, found {self.peek().text!r}")

    def membership(self, left: _Value, negation: str) -> str:
        self.expect("(")
        values = [self.literal_like(left)]
        while self.symbol(","):
            values.append(self.literal_like(left))
        self.expect(")")
        if any(value.until is not None for value in values):
            raise GeniusError("where: IN compares with single values: use BETWEEN, or OR, for dates")
        return f"({left.sql} {negation}IN ({', '.join(value.sql for value in values)}))"

    def calls(self) -> bool:
        """Whether a name with a bracket after it comes next."""
        after = self.tokens[min(self.at + 1, len(self.tokens) - 1)]
        return self.peek().category == "word" and after.text == "("

    def test(self, name: str) -> str:
        """starts_with(column, 'x'), has(column, 'x'), has_any(column, 'x', 'y') and the like."""
        self.at += 2  # the name and its bracket
        column = self.value(0)
        wanted: FieldType = "texts" if name.startswith("has") else "text"
        if column.type != wanted:
            raise GeniusError(f"where: {name} needs a {type_name(wanted)}, {column.sql} is a {column.type}")
        values = []
        while self.symbol(","):
            value = self.value(0)
            if not value.literal or value.type != "text":
                raise GeniusError(f"where: {name} compares with texts, found {value.sql}")
            values.append(value.sql)
        self.expect(")")
        several = name in ("has_any", "has_all")
        if not values or (len(values) > 1 and not several):
            raise GeniusError(f"where: {name} takes a column and {'texts' if several else 'one text'}")
        values_sql = values[0]
        if several:
            values_sql = f"make_array({', '.join(values)})"
        return f"{TESTS[name]}({column.sql}, {values_sql})"

    # -- values ------------------------------------------------------------------------------------------------

    def value(self, depth: int) -> _Value:
        token = self.next()
        if token.category == "number":
            return _number(token.text, "")
        if token.category == "symbol" and token.text in ("-", "+") and self.peek().category == "number":
            return _number(self.next().text, "-" if token.text == "-" else "")
        if token.category == "string":
            return _Value(token.text, "text", True)
        if token.category == "quoted":
            return self.column(token.text[1:-1])
        if token.category == "word":
            word = token.text.lower()
            if word in ("true", "false"):
                return _Value(word.upper(), "boolean", True)
            if word == "date" and self.symbol("("):
                return self.date()
            if word in FUNCTIONS and self.symbol("("):
                if depth >= 3:
                    raise GeniusError("where: functions are nested too deep")
                inner = self.value(depth + 1)
                self.expect(")")
                takes, gives = FUNCTIONS[word]
                if word == "length" and inner.type == "texts":
                    return _Value(f"array_length({inner.sql})", "number", False)
                if inner.type != takes:
                    raise GeniusError(f"where: {word} needs {takes}, {inner.sql} is a {inner.type}")
                return _Value(f"{word}({inner.sql})", gives, False)
            if word not in KEYWORDS:
                return self.column(token.text)
        raise GeniusError(f"where: expected a column or a value, found {token.text!r}")

    def date(self) -> _Value:
        token = self.next()
        self.expect(")")
        if token.category != "string":
            raise GeniusError(f"where: a date is a text such as date('2024-06-01'), found {token.text!r}")
        begin, end = _period(token.text[1:-1])
        return _Value(f"'{begin}'", "text", True, f"'{end}'")

    def column(self, name: str) -> _Value:
        column_of_name = self.names.get(name.lower())
        if column_of_name is None:
            if self.peek().text == "(":
                raise GeniusError(f"where: unknown function {name!r}; known: {', '.join(sorted({*FUNCTIONS, *TESTS, 'date'}))}")
            shown = sorted(self.columns)
            more = f" and {len(shown) - 20} more" if len(shown) > 20 else ""
            raise GeniusError(f"where: unknown column {name!r}; known: {', '.join(shown[:20])}{more}")
        return _Value(f"`{column_of_name}`", self.columns[column_of_name], False)

    def literal_like(self, left: _Value) -> _Value:
        value = self.value(0)
        if not value.literal:
            raise GeniusError(f"where: expected a single value, found {value.sql}")
        self.check_same_type(left, value)
        return value

    def check_same_type(self, left: _Value, right: _Value) -> None:
        if left.until is not None:
            raise GeniusError("where: write the column first: taken >= date('2024-06-01')")
        if "texts" in (left.type, right.type):
            raise GeniusError(f"where: {left.sql} is a list of texts: use has({left.sql.strip('`')}, 'a') or has_any(...)")
        if left.type != right.type:
            raise GeniusError(f"where: {left.sql} is a {left.type}, {right.sql} a {right.type}")


def _compared(left: _Value, operator: str, right: _Value) -> str:
    """A comparison. A date is a period: what is compared lies before it, in it, or after it."""
    if right.until is None:
        return f"({left.sql} {operator} {right.sql})"
    inside = f"({left.sql} >= {right.sql} AND {left.sql} < {right.until})"
    return {
        "=": inside,
        "!=": f"(NOT {inside})",
        "<>": f"(NOT {inside})",
        "<": f"({left.sql} < {right.sql})",
        ">=": f"({left.sql} >= {right.sql})",
        "<=": f"({left.sql} < {right.until})",
        ">": f"({left.sql} >= {right.until})",
    }[operator]


def _period(text: str) -> tuple[str, str]:
    """A day, month or year as ISO texts: its first moment, and the first one after it."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise GeniusError(f"where: {text[:20]!r} is no date: use '2024-06-01', '2024-06' or '2024'")
    year, month, day = match.groups()
    try:
        first = datetime.date(int(year), int(month or 1), int(day or 1))
        if day is not None:
            after = first + datetime.timedelta(days=1)
            return first.isoformat(), after.isoformat()
        if month is not None:
            after = (first + datetime.timedelta(days=31)).replace(day=1)
            return first.isoformat()[:7], after.isoformat()[:7]
        return f"{first.year:04d}", f"{first.year + 1:04d}"
    except (ValueError, OverflowError):
        raise GeniusError(f"where: {text!r} is no date") from None


def _number(text: str, sign: str) -> _Value:
    value = float(text)
    if not math.isfinite(value):
        raise GeniusError(f"where: {text[:20]}... is too large")
    return _Value(f"{sign}{value!r}", "number", True)
