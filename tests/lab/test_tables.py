"""A page shows what was measured: its table is the one that the program makes of the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import tables


def test_the_page_shows_the_measured_figures() -> None:
    assert tables.PAGE.read_text(encoding="utf-8") == tables.page(), "python -m lab.tables"


def test_a_figure_that_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = json.loads(tables.ATTACKS.read_text(encoding="utf-8"))
    measured["results"]["resets"]["during"]["search_p99_s"] += 5
    changed = tmp_path / "attacks.json"
    changed.write_text(json.dumps(measured), encoding="utf-8")
    monkeypatch.setattr(tables, "ATTACKS", changed)
    assert tables.PAGE.read_text(encoding="utf-8") != tables.page()
