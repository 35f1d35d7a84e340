"""The page of what a card measured: made from the JSONs, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.paper import measured
from lab.paper.fair_rows import BASE

SIZES = {"width": 8, "level_sizes": [3, 4], "decoder": "nano"}


def a_line(row: str, seed: int, looks: list[list[float]], **model: Any) -> dict[str, Any]:
    hits = {"universal": {"dense": {"a": 0.5}, "genius": {"a": 0.2}, "genius-r": {"a": 0.4}}}
    return {"row": row, "seed": seed, "looks": looks, "config": {"seed": seed, "model": {**SIZES, **model}}, "hit@5": hits}


def a_body() -> dict[str, Any]:
    settings = {"data": "fashion", "same": {"generator.epochs": 8}}
    entry = {"first_row": 0.2, "by_seed": [-0.1, -0.2], "table": "table-4"}
    gone = {**entry, "row": "w/o L_cl", "mine": 0.05, "low": -0.18, "high": -0.12, "finding": "holds"}
    first = {**entry, "row": BASE, "mine": 0.2, "low": 0.0, "high": 0.0, "finding": "cannot be told"}
    lines = [a_line(BASE, 0, [[1, 0.1], [2, 0.3], [3, 0.2]]), a_line("w/o L_cl", 1, [[1, 0.1], [2, 0.2]], width=4)]
    differences = [{**e, "method": method} for e in (first, gone) for method in ("genius", "genius-r")]
    differences += [{**first, "method": "dense", "mine": 0.5}]
    return {"about": {"date": "d", "device": "card", "settings": settings}, "differences": differences, "lines": lines}


def test_rows_are_kept_as_what_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "FILES", {"fair": tmp_path / "kept.json"})
    (tmp_path / "fair.json").write_text(json.dumps(a_body()), encoding="utf-8")
    measured.take(tmp_path)
    kept = json.loads((tmp_path / "kept.json").read_text(encoding="utf-8"))
    assert kept["about"]["config"]["model"]["width"] == 8 and [line["other"] for line in kept["lines"]] == [
        {},
        {"model.width": 4},
    ]
    assert measured.compact(kept) == kept  # once is enough
    page = measured.page()
    assert "| w/o L_cl | 2 | 5.0 | -15.0 [-18.0, -12.0] | holds |" in page and "| -46.8 |" in page
    assert "### Fashion, codes 3 x 4, decoder nano (card)" in page
    assert "hits 50.0 (universal pool; plain keeps 0.40 of it, re-ranked 0.40)" in page
    assert (
        "1 of 2 decoders had passed their best value" in page
        and "in 1 the last look was the best. The best was at look 2 of" in page
    )


def test_decoder_sizes_have_a_section_of_their_own() -> None:
    body = measured.compact(a_body())
    other = {"table": "supplement-5", "first_row": 0.2, "by_seed": [0.1], "low": 0.05, "high": 0.15, "finding": "does not hold"}
    for row, mine in ((BASE, 0.2), ("T5-base", 0.3)):
        body["differences"] += [{**other, "row": row, "mine": mine, "method": m} for m in ("genius", "genius-r", "dense")]
    tables, sizes = "\n".join(measured.fair(body)), "\n".join(measured.decoders(body))
    assert "| w/o L_cl | 2 |" in tables and "T5-base" not in tables and "supplement" not in tables.lower()
    assert "| T5-base | 1 | 30.0 | +10.0 [+5.0, +15.0] |  | 30.0 |" in sizes and "w/o L_cl" not in sizes


def test_the_page_is_that_of_the_results() -> None:
    shown = Path(__file__).parents[2] / "docs" / "results" / "mbeir.md"
    there = [path.name for path in measured.FILES.values() if path.exists()]
    if not there:
        pytest.skip("nothing was measured yet")
    assert shown.read_text(encoding="utf-8") == measured.page(), "run: python -m lab.paper.measured --out docs/results/mbeir.md"
