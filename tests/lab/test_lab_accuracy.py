"""The laboratory's accuracy program: what it leaves out and adds is what it says."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from genius.train.sources import synthetic
from lab.accuracy import Bench, Data, added_later, filled, run, without
from lab.report import PAGE, page


def test_items_that_come_later_are_the_answers_first() -> None:
    data = synthetic("tiny", 0)
    answers = data.pairs[:, 1].unique()
    new = added_later(data, len(answers) / 2 / len(data.pool), seed=0)
    assert new[answers].sum() == new.sum() == len(answers) // 2
    more = added_later(data, 1.0, seed=0)
    assert more.all()


def test_a_set_without_some_items_keeps_only_questions_that_have_an_answer() -> None:
    data = synthetic("tiny", 0)
    new = torch.zeros(len(data.pool), dtype=torch.bool)
    new[data.pairs[: len(data.pairs) // 2, 1]] = True
    fewer = without(data, new)
    kept = [name for name, gone in zip(data.pool_ids, new.tolist(), strict=True) if not gone]
    assert fewer.pool_ids == kept and 0 < len(fewer.queries) < len(data.queries)
    pairs = {(data.query_ids[q], data.pool_ids[p]) for q, p in data.pairs.tolist()}
    assert {(fewer.query_ids[q], fewer.pool_ids[p]) for q, p in fewer.pairs.tolist()} == {p for p in pairs if p[1] in set(kept)}
    assert torch.bincount(fewer.pairs[:, 0], minlength=len(fewer.queries)).min() > 0


def test_a_filled_pool_keeps_its_rows_and_lies_between_them() -> None:
    data = synthetic("tiny", 0)
    larger = filled(data, len(data.pool) + 500, seed=0)
    own = len(data.pool)
    assert len(larger.pool) == own + 500 and torch.equal(larger.pool.image[:own], data.pool.image)
    extra = larger.pool[torch.arange(own, own + 500)]
    assert set(extra.modality.tolist()) <= set(data.pool.modality.tolist())
    assert extra.image[extra.image_mask].norm(dim=1).max() <= data.pool.image.norm(dim=1).max() + 1e-4


def test_a_run_measures_every_part(tmp_path: Path) -> None:
    from genius.train.config import read_train_config

    data = synthetic("tiny", 0)
    test = data.take_queries(torch.arange(0, len(data.queries), 8))
    train = data.take_queries(torch.tensor([i for i in range(len(data.queries)) if i % 8]))
    few = {"encoder.steps": 2, "quantizer.steps": 4, "generator.steps": 4, "generator.batch": 64, "device": "cpu"}
    config = read_train_config("builtin:tiny", few)
    bench = Bench(Data(train, test), config, tmp_path / "out.json", {"data": "tiny"})
    run(bench, ["main", "told", "added", "large"], [0], [0.2], len(data.pool) + 50, 4, None)
    body = json.loads((tmp_path / "out.json").read_text())
    assert [line["name"] for line in body["lines"]] == ["all items", "all items", "filled", "20 % added"]
    for name, found in body["lines"][0]["methods"].items():
        assert set(found["share"]) == set(found["share_of_dense_given"]) == set(found["hit@5"]) and found["bytes"] > 0, name


def test_the_page_is_what_the_files_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_robustness_page_has_the_measured_values() -> None:
    text = (PAGE.parent / "robustness.md").read_text(encoding="utf-8")
    body = json.loads((PAGE.parents[2] / "lab" / "results" / "robustness.json").read_text(encoding="utf-8"))
    assert len(body["cases"]) == 12
    for case in body["cases"][1:]:
        cells = []
        for mode in ("dense", "GENIUS^R", "GENIUS"):
            found = case["modes"][mode]
            cells.append(f"{found['hit@5']:.1f} ({0.0 - found['loss']:+.1f} [")
        row = next(line for line in text.splitlines() if all(cell in line for cell in cells))
        assert f"| {len(case['tasks'])} |" in row, case["name"]
