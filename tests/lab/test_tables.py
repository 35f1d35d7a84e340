"""Pages show what was measured: their tables are those that the program makes of the JSON."""

from __future__ import annotations

import pytest

from lab import tables


@pytest.mark.parametrize("name", tables.PAGES)
def test_pages_show_the_measured_figures(name: str) -> None:
    assert (tables.DOCS / f"{name}.md").read_text(encoding="utf-8") == tables.page(name), "python -m lab.tables"


def test_a_figure_that_changed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = tables.read("page")
    measured["screens"]["why"]["first_paint_ms"] += 500
    monkeypatch.setattr(tables, "read", lambda name: measured)
    assert (tables.DOCS / "serving.md").read_text(encoding="utf-8") != tables.page("serving")
