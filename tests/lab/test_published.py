"""The paper's recipes at their own code sizes: the program runs at a tiny size, goes on, and its report reads what it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from lab.paper import published, published_report
from lab.paper.published import Row, narrowed, rows_of

PARTS = ("published", "paper", "modality", "size", "baselines", "tables")
TINY = {
    "model.projection": 8, "model.hidden": 8, "model.width": 8, "model.prefix_tokens": 2,
    "encoder.batch": 32, "quantizer.batch": 32, "generator.batch": 16, "quantizer.kmeans_iterations": 2,
}  # fmt: skip


@pytest.fixture
def features(tmp_path: Path) -> Path:
    """Made-up fashion vectors of 60 products."""
    folder, random = tmp_path / "features", np.random.default_rng(0)
    folder.mkdir()
    products = 60
    np.save(folder / "images-0.npy", random.standard_normal((products, 10)).astype(np.float16))
    np.save(folder / "texts.npy", random.standard_normal((2 * products, 6)).astype(np.float16))
    asked = [(task, p) for task in range(4) for p in range(products)]
    queries = [(task, -1 if task in (0, 2) else p, products + p, [p], int(p % 6 == 0)) for task, p in asked]
    meta = {"titles": list(range(products)), "test": list(range(0, products, 6)), "queries": queries, "texts": 2 * products}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return folder


def test_the_most_important_rows_come_first() -> None:
    rows = rows_of(PARTS, ("fashion", "icons"))
    assert [(row.part, row.data, row.seed) for row in rows[:3]] == [
        ("published", "fashion", 0), ("published", "icons", 0), ("published", "fashion", 1),
    ]  # fmt: skip
    assert len({row.key for row in rows}) == len(rows) and [row.part for row in rows] == sorted(
        [row.part for row in rows], key=PARTS.index
    )
    content = {row.name: row.changes["model.level_sizes"] for row in rows if row.part == "modality"}
    for count in (3, 4):  # equally many content codes, with a first code and without
        assert [256] * count == content[f"none + {count}"] == content[f"nearest + {count}"][1:] == content[f"given + {count}"][1:]


def test_a_trial_writes_every_kind_of_row_and_a_second_call_goes_on(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "VALIDATION_QUERIES", 20)
    monkeypatch.setattr(published, "LOOKS", 2)
    monkeypatch.setattr(published.loop, "LOOKS", 2)
    monkeypatch.setattr(published, "BEAMS", (1, 30))
    chosen = [
        Row("published", "published 4096 x 9", "fashion", beams=(1, 5, 10, 30, 50)),
        Row("modality", "none + 3", "fashion", changes={"model.level_sizes": [4, 4, 4], "model.modality_code": "none"}),
        Row("size", "30 products, 4 codes", "fashion", changes={"model.level_sizes": [3, 4, 4]}, products=30),
        Row("baselines", "grace-atomic", "fashion", baseline="grace-atomic", beams=(30, 50)),
        Row("baselines", "irgen", "fashion", baseline="irgen", beams=(30, 50)),
    ]
    settings = published.Settings({"fashion": features}, tmp_path, 1e6, "nano", 6, TINY, queries=5)
    results = published.Results(tmp_path / "out.json", {"commit": "none"})
    for row in chosen:
        results.add(published.run_row(settings, row))
    first, none, size, atomic, irgen = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["lines"]
    assert {"dense", "codes", "genius@1", "genius-r@50", "local", "fused"} <= set(first["last"])
    assert len(first["curve"]) == 2 and set(first["curve"][0]) == {"training queries", "items", "unseen queries"}
    levels = len(first["config"]["model"]["level_sizes"])
    assert all(len(values["right"]) == levels for point in first["curve"] for values in point.values())
    assert np.array(first["quantizer"]["confusion"]).sum() == 180 and 1 / 3 <= first["quantizer"]["purity"] <= 1
    assert len(first["survival"]["levels"]) == levels and "purity" not in none["quantizer"]
    assert size["test"]["pool"] == 90 and first["test"]["pool"] == 180
    assert atomic["config"]["level_sizes"] == [180] and len(irgen["config"]["level_sizes"]) == 4
    assert atomic["curve"][-1]["step"] == 2 and "genius" not in atomic["last"]
    assert len(list(tmp_path.glob("parts-*.pt"))) == 1
    known = published.Results(tmp_path / "out.json", {}).keys()  # of a second call
    assert {row.key for row in chosen} == known

    monkeypatch.setattr(published_report, "RESULTS", tmp_path / "joined.json")
    monkeypatch.setattr(published_report, "PLOT", tmp_path / "plot.png")
    monkeypatch.setattr(published_report, "KEPT_LOOKS", (0, 1))
    monkeypatch.setattr(sys, "argv", ["published_report", str(tmp_path / "out.json"), str(tmp_path / "out.json")])
    published_report.main()
    assert len(published_report.lines_of("baselines")) == 2  # each row once
    assert (tmp_path / "plot.png").stat().st_size > 1000
    report = published_report
    for part in (report.recipes, report.beams, report.survival, report.curves, report.flattening, report.last_and_best,
                 report.modality, report.sizes, report.baselines, report.further):  # fmt: skip
        assert part().count("\n") >= 1
    assert "30 products" in report.sizes() and report.confusion(report.lines_of("published")).count("\n") == 4


def test_a_row_of_one_task_trains_and_tests_on_it(features: Path) -> None:
    parts = published.parts_of("fashion", features, None, 20)
    alone = narrowed(parts, Row("tables", "task 2 alone", "fashion", task=2))
    assert set(alone.train.tasks.tolist()) == {2} == set(alone.test.tasks.tolist())
    assert len(alone.test.pool) == len(parts.test.pool)


def test_stage_3_stops_at_the_deadline(features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "VALIDATION_QUERIES", 20)
    settings = published.Settings({"fashion": features}, tmp_path, 1e6, "nano", 6, TINY, deadline=0.0, queries=5)
    with pytest.raises(published.TimeUp, match="1 of 20"):
        published.run_row(settings, Row("published", "x", "fashion"))
