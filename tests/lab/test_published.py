"""The paper's recipes at their own code sizes: the program runs at a tiny size, goes on, and its report reads what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from genius.train.config import GeneratorStageConfig, Schedule
from lab.paper import published, published_report
from lab.paper.published import Row, narrowed, rows_of
from lab.paper.watched import CurvesAreFlat, WatchedGenerator, flat

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
    first_sizes = [row.name for row in rows if row.part == "size"][:4]
    assert len({name.split(",")[0] for name in first_sizes}) == 2  # the corners of the table
    others = [row for row in rows if row.part != "published"]
    assert all(row.until_flat and row.limit < 300 for row in others) and not rows[0].until_flat
    little = rows_of(("little",), ("fashion",))
    assert [row.name for row in little[:3]] == ["nearest + 4", "grace-structured", "grace-atomic"]
    assert len({row.key for row in little}) == len(little) == 3 * 8 + 6


def test_a_trial_writes_every_kind_of_row_and_a_second_call_goes_on(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "VALIDATION_QUERIES", 20)
    monkeypatch.setattr(published, "LOOKS", 2)
    monkeypatch.setattr(published.loop, "LOOKS", 2)
    monkeypatch.setattr(published, "BEAMS", (1, 30))
    monkeypatch.setattr(published, "FEWEST_QUERIES", 1)
    sizes = {"model.level_sizes": [3, 4, 4]}
    chosen = [
        Row("published", "published 4096 x 9", "fashion", beams=(1, 5, 10, 30, 50)),
        Row("modality", "none + 3", "fashion", changes={"model.level_sizes": [4, 4, 4], "model.modality_code": "none"}),
        Row("size", "30 products, 4 codes", "fashion", changes={"model.level_sizes": [3, 4, 4]}, products=30),
        Row(
            "modality", "classifier + 2", "fashion", changes={"model.level_sizes": [3, 4, 4], "model.modality_code": "classifier"}
        ),
        Row("baselines", "grace-structured", "fashion", baseline="grace-structured", beams=(30, 50), limit=60),
        Row("baselines", "nearest + 4", "fashion", changes=sizes, beams=(30, 50)),
        Row("little", "grace-atomic", "fashion", baseline="grace-atomic", beams=(50,)),
        Row("little", "irgen", "fashion", baseline="irgen", beams=(50,)),
        Row("little", "nearest + 4", "fashion", changes={"model.level_sizes": [3, 4, 4, 4]}, beams=(30, 50)),
    ]
    settings = published.Settings({"fashion": features}, tmp_path, 1e6, "nano", 6, TINY, queries=5)
    results = published.Results(tmp_path / "out.json", {"commit": "none"})
    for row in chosen:
        results.add(published.run_row(settings, row))
    first, none, size, classifier, structured, own, atomic, irgen, nearest = json.loads(
        (tmp_path / "out.json").read_text(encoding="utf-8")
    )["lines"]
    assert {"dense", "codes", "genius@1", "genius-r@50", "local", "fused"} <= set(first["last"])
    assert len(first["curve"]) == 2 == first["looks"][-1] and set(first["curve"][0]) == {
        "training queries",
        "items",
        "unseen queries",
    }
    levels = len(first["config"]["model"]["level_sizes"])
    assert all(len(values["right"]) == levels for point in first["curve"] for values in point.values())
    assert np.array(first["quantizer"]["confusion"]).sum() == 180 and 1 / 3 <= first["quantizer"]["purity"] <= 1
    assert len(first["survival"]["levels"]) == levels and "purity" not in none["quantizer"]
    assert classifier["config"]["model"]["modality_code"] == "classifier" and "genius" in classifier["last"]
    assert structured["test"]["pool"] == own["test"]["pool"] == 180 and structured["flat at"] is None is structured["late at"]
    assert {"grace-structured@30", "grace-structured-r@50"} <= set(structured["last"])
    for line in (structured, own):
        assert ("best" in line) == (line["best step"] != line["steps"])
    assert size["test"]["pool"] == 90 and first["test"]["pool"] == 180
    assert atomic["config"]["level_sizes"] == [180] and len(irgen["config"]["level_sizes"]) == 4
    assert {"dense", "grace-atomic@50", "grace-atomic-r@50"} == set(atomic["last"])
    for line in (atomic, irgen, nearest):
        assert line["looks"][-1] == line["steps"] == 2 and len(line["curve"]) == 2 and line["flat at"] is None
        assert set(line["curve"][-1]) == {"training queries", "items", "unseen queries"}
        assert line["queries per second of one thread"] > 0
        low, high = line["last"]["dense"]["interval"]
        assert low <= np.mean(list(line["last"]["dense"]["hit@5"].values())) <= high
    assert len(list(tmp_path.glob("parts-*.pt"))) == 1
    known = published.Results(tmp_path / "out.json", {}).keys()  # of a second call
    assert {row.key for row in chosen} == known

    monkeypatch.setattr(published_report, "RESULTS", tmp_path / "joined.json")
    monkeypatch.setattr(published_report, "PLOT", tmp_path / "plot.png")
    monkeypatch.setattr(published_report, "CURVES", tmp_path / "curves.png")
    monkeypatch.setattr(published_report, "FEWEST_STEPS", 0)  # else rows that were cut are left out
    monkeypatch.setattr(sys, "argv", ["published_report", str(tmp_path / "out.json"), str(tmp_path / "out.json")])
    published_report.main()
    assert len(published_report.lines_of("little")) == 3  # each row once
    assert (tmp_path / "plot.png").stat().st_size > 1000 and (tmp_path / "curves.png").stat().st_size > 1000
    report = published_report
    for part in (report.recipes, report.beams, report.survival, report.curves, report.flattening, report.last_and_best,
                 report.tasks, report.modality, report.purities, report.sizes, report.baselines,
                 report.first_codes, report.codebooks):  # fmt: skip
        assert part().count("\n") >= 1
    assert report.identifiers().count("\n") == 5 and "(not flat)" in report.identifiers()  # dense, GENIUS and two others
    assert report.flat_curves().count("\n") == 4
    assert report.baselines().count("\n") == 4  # dense, GENIUS and GRACE's structured IDs
    assert {line["commit"] for line in report.lines_of("published")} == {"none"}
    assert "30 products" in report.sizes() and report.confusion(report.lines_of("published")).count("\n") == 4


def test_a_task_with_few_queries_is_left_out_of_a_small_set(features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = published.parts_of("fashion", features, None, 20)
    thin = parts.test.take_queries(torch.cat([(parts.test.tasks != 2).nonzero()[:, 0], (parts.test.tasks == 2).nonzero()[:3, 0]]))
    monkeypatch.setattr(published, "FEWEST_QUERIES", 4)
    little = narrowed(replace(parts, test=thin), Row("little", "nearest + 4", "fashion"))
    assert set(little.test.tasks.tolist()) == {0, 1, 3} and len(little.test.pool) == len(parts.test.pool)
    others = narrowed(replace(parts, test=thin), Row("published", "x", "fashion"))
    assert set(others.test.tasks.tolist()) == {0, 1, 2, 3}


def points(right: list[float], nats: list[float]) -> list[dict[str, object]]:
    names = ("training queries", "items", "unseen queries")
    return [{name: {"right": [1.0, r], "nats": [0.0, n]} for name in names} for r, n in zip(right, nats, strict=True)]


def test_a_curve_is_flat_when_nothing_moves() -> None:
    still = [0.5, 0.502, 0.498, 0.501, 0.5, 0.5]
    assert flat(points(still, [2.0] * 6))
    assert not flat(points(still[:5], [2.0] * 5))  # too few looks
    assert not flat(points([0.40, 0.42, 0.44, 0.46, 0.48, 0.50], [2.0] * 6))  # accuracy rises
    falling = [2.0, 1.95, 1.9, 1.85, 1.8, 1.75]
    assert not flat(points(still, falling))  # log loss still falls
    overfitted = points(still, [2.0] * 6)
    for step, point in enumerate(overfitted):
        point["unseen queries"] = {"right": [1.0, 0.3], "nats": [0.0, 3.0 + step]}
    assert flat(overfitted)  # the log loss of unseen queries may rise


def test_the_rate_is_constant_until_the_curves_are_flat() -> None:
    stage = WatchedGenerator.__new__(WatchedGenerator)
    config = GeneratorStageConfig(steps=200, batch=8)
    stage.__dict__.update(until_flat=True, config=config)
    schedule = Schedule(warm_up=500)
    assert stage.decay_steps == 20
    assert stage.learning_rate(schedule, 200, 49) == 0.5
    assert stage.learning_rate(schedule, 200, 150) == 1.0
    assert stage.learning_rate(schedule, 200, 199) == 0.0  # never flat: it falls with the last steps
    stage.__dict__.update(flat_at=120)
    assert stage.learning_rate(schedule, 200, 119) == 1.0
    assert stage.learning_rate(schedule, 200, 129) == pytest.approx(0.5)
    stage.before_step(139)
    with pytest.raises(CurvesAreFlat):
        stage.before_step(140)


def test_the_command_runs_rows_and_goes_on(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    words = [str(out), "--fashion", str(features), "--only", "nearest + 3 | fashion | 0", "--parts", "modality",
             "--scale", "1e6", "--decoder", "nano", "--codes", "6", "--queries", "5",
             "--work", str(tmp_path / "work"), "--commit", "abc",
             *(f"--set={name}={value}" for name, value in TINY.items())]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["published", *words])
    published.main()
    body = json.loads(out.read_text(encoding="utf-8"))
    assert [line["row"] for line in body["lines"]] == ["nearest + 3"] and body["about"]["commit"] == "abc"
    assert "purity" in capsys.readouterr().out
    published.main()  # nothing is left
    assert "purity" not in capsys.readouterr().out


def test_a_row_is_claimed_by_one_process(tmp_path: Path) -> None:
    row = Row("size", "30 products, 4 codes", "fashion")
    assert published.claimed(tmp_path / "claims", row)
    assert not published.claimed(tmp_path / "claims", row)
    assert published.claimed(tmp_path / "claims", replace(row, seed=1))
    published.run_all(published.Settings({}, tmp_path), [row], published.Results(tmp_path / "out.json", {}), tmp_path / "claims")
    assert not (tmp_path / "out.json").exists()  # another one has the row


def test_a_part_of_the_pool_is_the_same_in_training_and_test(features: Path) -> None:
    parts = published.parts_of("fashion", features, None, 20)
    part = narrowed(parts, Row("baselines", "irgen", "fashion", part_of_pool=3))
    assert 0 < len(part.test.pool) < len(parts.test.pool) / 2
    assert set(part.train.pool_ids) <= set(part.test.pool_ids) and len(part.train.queries) > 0
    assert all(int(rows.max()) < len(part.test.pool) for rows in part.test.pools.values())


def test_the_rate_comes_down_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = WatchedGenerator.__new__(WatchedGenerator)
    stage.__dict__.update(until_flat=True, config=GeneratorStageConfig(steps=200, batch=8), limit=10.0)
    now = [0.0]
    monkeypatch.setattr("lab.paper.watched.time.monotonic", lambda: now[0])
    stage.before_step(0)
    now[0] = 9.0
    stage.before_step(49)
    assert stage.decay_from is None
    now[0] = 11.0
    stage.before_step(50)
    assert stage.late_at == 50 and stage.flat_at is None
    schedule = Schedule(warm_up=500)
    assert stage.learning_rate(schedule, 200, 59) == pytest.approx(0.5)
    with pytest.raises(CurvesAreFlat):
        stage.before_step(50 + stage.decay_steps)


def test_weights_that_processes_share_are_trained_by_one(tmp_path: Path) -> None:
    code = (
        "import sys, time, torch, pathlib\n"
        "from lab.paper.parts import trained_once\n"
        "def train():\n"
        "    with open(sys.argv[2], 'a') as file: file.write('trained ')\n"
        "    time.sleep(0.5)\n"
        "    return {'x': torch.ones(2)}\n"
        "assert trained_once(pathlib.Path(sys.argv[1]), train)['x'].sum() == 2\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "shared.pt"), str(tmp_path / "log")]
    both = [subprocess.Popen(words) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert (tmp_path / "log").read_text() == "trained "


def baseline(right: list[float], steps: list[int]) -> dict[str, object]:
    """A row of GRACE's string IDs whose items are learned as far as `right` says."""
    figures = {"hit@5": {"a": 0.2, "b": 0.4}, "interval": [0.25, 0.35]}
    last = {"dense": figures, "grace-string@50": figures, "grace-string-r@50": figures}
    return {
        "part": "baselines", "row": "grace-string", "data": "fashion", "seed": 0, "steps": steps[-1],
        "curve": points(right, [1.0] * len(right)), "curve steps": steps, "last": last,
    }  # fmt: skip


@pytest.mark.parametrize("end, told", [(0.3, "30.0, not learned"), (0.6, "30.0 [25, 35]")])
def test_identifiers_that_the_decoder_has_not_memorised_are_not_ranked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: float, told: str
) -> None:
    body = {"lines": [baseline([0.1, 0.2, end], [100, 200, 400])]}
    (tmp_path / "joined.json").write_text(json.dumps(body), encoding="utf-8")
    monkeypatch.setattr(published_report, "RESULTS", tmp_path / "joined.json")
    row = published_report.baselines().splitlines()[-1].split(" | ")
    assert row[-2] == told
    assert row[3] == " / ".join([f"+{100 * (end - 0.2):.0f}"] * 3)  # since step 200


def test_two_codes_alone_tell_the_two_largest_modalities_apart() -> None:
    assert published_report.two_largest([[0, 14, 0], [5, 0, 0], [1, 0, 0]]) == 19 / 20
    assert published_report.two_largest([[3, 0, 0], [0, 3, 0], [0, 0, 3]]) == 2 / 3
