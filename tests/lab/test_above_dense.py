"""Results of single trainings are merged as the pages say, and docs/engine.md has the tables of the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab import ROOT, above_dense, report
from lab.facts import ours


def training(seed: int, shares: list[float], searches: list[str]) -> dict[str, Any]:
    """A result of one training with two tasks."""
    about = dict.fromkeys(("command", "commit", "date", "device", "changes"), "")
    lines = []
    for search in searches:
        line: dict[str, Any] = {"candidates": "unseen", "search": search, "target": "unknown", "items": 7}
        line["share"] = dict(zip(("a", "b"), shares, strict=True))
        line["hit"] = {task: [0.1, share / 2] for task, share in line["share"].items()}
        lines.append({**line, "mean": sum(shares) / 2, "worst": min(shares)})
    return {**about, "threads": 1, "seed": seed, "benchmark": "fashion", "lines": lines}


def test_trainings_are_merged_task_by_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [training(0, [0.9, 1.0], ["flat", "late"]), training(1, [1.1, 0.9], ["flat"])]
    for run in runs:
        (tmp_path / f"above-dense-fashion-{run['seed']}.json").write_text(json.dumps(run), encoding="utf-8")
    monkeypatch.setattr(above_dense, "result_file", lambda benchmark: tmp_path / f"{benchmark}.json")
    above_dense.merge(tmp_path)
    body = json.loads((tmp_path / "fashion.json").read_text(encoding="utf-8"))
    flat, late = body["summary"]
    assert flat["share"] == {"a": 1.0, "b": 0.95} and (flat["mean"], flat["worst"]) == (0.975, 0.95)
    assert (flat["seeds"], late["seeds"]) == (2, 1) and flat["by_seed"] == [[0.95, 0.9], [1.0, 0.9]]
    assert not (tmp_path / "icons.json").exists()


def test_the_page_of_the_engine_has_the_measured_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = above_dense.PAGE.read_text(encoding="utf-8")
    assert f"{above_dense.BEGIN}\n{above_dense.page_part()}\n{above_dense.END}" in page, "python -m lab.above_dense table"


def test_pages_show_no_row_of_a_search_without_its_commit() -> None:
    for name in ("fashion", "icons"):
        assert report.read(f"above_dense_{name}")["commit"]
    assert report.read("accuracy_fashion")["commit"]
    assert "default-codes" not in report.shown(report.read("bundled")["lines"][0], current=False)


def test_a_row_with_fewer_trainings_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_one_training_less(path: str) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((ROOT / path).read_text(encoding="utf-8"))
        for line in body.get("summary", ()):
            if line["search"] == "default, with bias":
                line["seeds"] = 2
        return body

    assert "(two trainings)" not in ours()
    monkeypatch.setattr("lab.facts.read", with_one_training_less)
    assert ours().count("(two trainings)") == 4
