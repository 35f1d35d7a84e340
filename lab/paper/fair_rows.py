"""Which rows the fair tables have: those of the paper's tables, and what two rows share.

Knows names and changes of settings; nothing of training or results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from lab.paper.experiment import read_experiment

BASE, SUMS = "GENIUS", "norms as printed"


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    name: str
    tables: tuple[str, ...]
    changes: dict[str, Any] = field(default_factory=dict)


@cache
def pool_of(table: str) -> str:
    """Where the paper's table searches."""
    return read_experiment(table).pools[0]


def rows_of(tables: tuple[str, ...]) -> list[Row]:
    """The rows of the paper's tables; what both tables have, once."""
    found: dict[str, Row] = {}
    for table in tables:
        for number, row in enumerate(read_experiment(table).rows):
            name = BASE if number == 0 else row.name
            known = found.get(name, Row(name, (), dict(row.set)))
            found[name] = replace(known, tables=(*known.tables, table))
    if "table-4" in tables:  # not in the paper's table: what its printed norms do with its own weights
        found[SUMS] = Row(SUMS, ("table-4",), {"model.recipe": "paper-sums"})
    return list(found.values())


def before_stage_3(row: Row) -> str:
    """What a row changes before its decoder is trained."""
    early = {name: value for name, value in row.changes.items() if not name.startswith(("generator.", "model.decoder"))}
    return json.dumps(early, sort_keys=True)


def grouped(rows: list[Row]) -> Iterator[tuple[Row, ...]]:
    """Rows of one table that differ in stage 3 alone, together."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.tables[0], before_stage_3(row)), []).append(row)
    return (tuple(group) for group in groups.values())
