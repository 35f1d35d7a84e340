"""What the fair tables say so far: every query's hits, the difference of each row to the first, with its interval.

Knows rows and hits; nothing of training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lab.paper.compare import Difference, difference
from lab.paper.fair_rows import BASE, Row, pool_of

FEWEST = 20  # test queries of a task that takes part in a mean: all tasks weigh alike there, however few ask


class Results:
    """What is known so far: JSON for people, beside it every query's hits."""

    def __init__(self, path: Path, about: dict[str, Any], rows: list[Row]) -> None:
        self.path, self.about, self.rows = path, about, rows
        self.lines: list[dict[str, Any]] = []
        self.hits: dict[str, np.ndarray] = {}
        if path.exists():
            self.join(path)

    def join(self, path: Path) -> None:
        """Rows of an earlier call or of another machine."""
        before = json.loads(path.read_text(encoding="utf-8"))
        if before["about"]["settings"] != self.about["settings"]:
            raise SystemExit(f"{path} holds rows trained differently: give another --output")
        new = [line for line in before["lines"] if not self.has(line["row"], line["seed"])]
        names = {(line["row"], str(line["seed"])) for line in new}
        self.lines += new
        self.about = before["about"]  # when and where most of it was trained
        with np.load(path.with_suffix(".npz")) as stored:
            self.hits |= {key: stored[key] for key in stored if tuple(key.split("|")[:2]) in names}

    def has(self, row: str, seed: int) -> bool:
        return any(line["row"] == row and line["seed"] == seed for line in self.lines)

    def add(self, entry: dict[str, Any]) -> None:
        found = entry.pop("found")
        for pool, methods in found.items():
            for method, tasks in methods.items():
                for task, values in tasks.items():
                    self.hits["|".join((entry["row"], str(entry["seed"]), pool, method, task))] = values.astype(bool)
        shown = {
            pool: {m: {t: round(float(v.mean()), 4) for t, v in tasks.items()} for m, tasks in methods.items()}
            for pool, methods in found.items()
        }
        self.lines.append({**entry, "hit@5": shown})
        self.write()

    def of(self, row: str, pool: str, method: str) -> dict[int, dict[str, np.ndarray]]:
        """seed -> task -> hits, of tasks with enough queries."""
        out: dict[int, dict[str, np.ndarray]] = {}
        for key, values in self.hits.items():
            name, seed, where, how, task = key.split("|")
            if (name, where, how) == (row, pool, method) and len(values) >= FEWEST:
                out.setdefault(int(seed), {})[task] = values.astype(np.float64)
        return out

    def differences(self, method: str) -> Iterator[tuple[str, str, Difference]]:
        """(table, row, against the first row)."""
        for table in dict.fromkeys(table for row in self.rows for table in row.tables):
            base = self.of(BASE, pool_of(table), method)
            for row in self.rows:
                mine = self.of(row.name, pool_of(table), method) if table in row.tables else {}
                if mine.keys() & base.keys():  # else: no seed in common, nothing to say yet
                    yield table, row.name, difference(mine, base)

    def write(self) -> None:
        told = [
            {"method": method, "table": table, "row": row, **value.to_dict()}
            for method in ("genius", "genius-r", "dense")
            for table, row, value in self.differences(method)
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"about": self.about, "differences": told, "lines": self.lines}, indent=1) + "\n")
        np.savez_compressed(self.path.with_suffix(".npz"), **self.hits)  # type: ignore[arg-type]

    def table(self) -> str:
        """Hits at five, the difference to the first row in points, and whether the paper's finding holds."""
        title = f"{'':8} {'row':24} seeds  plain {'difference to GENIUS':26} re-ranked {'difference':26} the paper's finding"
        lines = [title]
        ranked = {(table, row): value for table, row, value in self.differences("genius-r")}
        for table, row, value in self.differences("genius"):
            other = ranked[table, row]
            finding = "" if row == BASE else value.finding
            lines.append(
                f"{table:8} {row:24} {value.seeds:5d} {100 * value.mine:6.2f} {value.words:26} {100 * other.mine:9.2f} "
                f"{other.words:26} {finding}"
            )
        return "\n".join(lines)
