"""The fair ablation tables: what is compared, and a small run of the program itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from genius.data.features import FeatureSet
from lab.accuracy import Data
from lab.paper import fair, fair_results, parts
from lab.paper.compare import difference
from lab.paper.fair_results import Results
from lab.paper.fair_rows import BASE, Row, grouped, rows_of


def hits(rate: float, seeds: int, questions: int = 400) -> dict[int, dict[str, np.ndarray]]:
    random = np.random.default_rng(int(1000 * rate))
    return {s: {t: (random.random(questions) < rate).astype(float) for t in ("a", "b")} for s in range(seeds)}


def test_a_difference_is_found_only_where_there_is_one() -> None:
    low, high = hits(0.3, 3), hits(0.5, 3)
    found = difference(low, high)
    by_hand = np.mean([[low[s][t].mean() - high[s][t].mean() for t in ("a", "b")] for s in range(3)])
    assert found.mine - found.other == pytest.approx(by_hand) and found.finding == "holds"
    assert found.low < by_hand < found.high and found.high - found.low < 0.15
    assert difference(high, low).finding == "does not hold"
    assert difference(low, low).finding == "cannot be told" and difference(low, low).low == 0
    one_seed_differs = {**high, 0: {t: low[0][t] - 0.001 for t in ("a", "b")}}
    assert difference(one_seed_differs, high).finding == "cannot be told"  # every seed must say so


def test_a_task_that_hardly_anyone_asks_has_no_say_in_a_mean(tmp_path: Path) -> None:
    results = Results(tmp_path / "out.json", {}, rows_of(("table-4",)))
    for row, hit in ((BASE, 1.0), ("w/o L_mse", 0.0)):
        results.hits[f"{row}|0|universal|genius|many"] = np.full(40, 0.5) > 0.4
        results.hits[f"{row}|0|universal|genius|two"] = np.full(2, hit) > 0.5
    ((_, _, first), (_, row, other)) = results.differences("genius")
    assert row == "w/o L_mse" and first.mine == other.mine == 1.0 and other.low == other.high == 0


def test_rows_share_what_they_can() -> None:
    rows = rows_of(("table-4", "table-5"))
    assert [row.name for row in rows][:2] == [BASE, "w/o modality-decoupled"] and len(rows) == 12
    assert rows[0].tables == ("table-4", "table-5")  # 4096 x 9 is the first row of both
    groups = list(grouped(rows))
    assert len(groups) == 11 and [row.name for row in groups[0]] == [BASE, "w/o query augmentation"]


def a_set(tasks: list[int], pairs: list[tuple[int, int]], pool: int = 12) -> FeatureSet:
    from genius.features import Features

    random = torch.Generator().manual_seed(0)
    yes, no = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)
    items = Features(torch.randn(pool, 6, generator=random), torch.randn(pool, 6, generator=random),
                     torch.cat([yes, no, yes]), torch.cat([no, yes, yes]))  # fmt: skip
    asked = torch.ones(len(tasks), dtype=torch.bool)
    queries = Features(torch.randn(len(tasks), 6, generator=random), torch.randn(len(tasks), 6, generator=random), asked, asked)
    ids = [f"q{i}" for i in range(len(tasks))], [str(i) for i in range(pool)]
    return FeatureSet(queries, items, torch.tensor(pairs), *ids, torch.tensor(tasks), {0: "a", 1: "b"})


def test_nothing_that_is_asked_for_in_the_test_is_trained_with(monkeypatch: pytest.MonkeyPatch) -> None:
    train = a_set([0, 0, 0, 1, 1, 1], [(0, 0), (1, 1), (2, 2), (2, 3), (3, 4), (4, 5), (5, 6)])
    test = a_set([0, 1], [(0, 3), (1, 7)])
    monkeypatch.setattr(parts, "fashion", lambda *_: Data(train, test))
    monkeypatch.setattr(parts, "HELD_OUT", 0.5)
    data = parts.parts_of.__wrapped__("fashion", Path(), None, 600)
    assert set(data.train.pool_ids) == set(map(str, range(12))) - {"3", "7"}
    trained = {data.train.pool_ids[row] for row in data.train.pairs[:, 1].tolist()}
    judged = {data.validation.pool_ids[row] for row in data.validation.pairs[:, 1].tolist()}
    assert trained and judged and not trained & judged
    assert not set(data.train.query_ids) & set(data.validation.query_ids)
    assert len(data.test.pool) == 12  # the test is over everything
    assert {task: rows.tolist() for task, rows in data.test.pools.items()} == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}


def test_rows_are_trained_alike_and_a_second_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On made-up fashion vectors: every row as builtin:paper but for its own change, kept as soon as it is there."""
    folder, random = tmp_path / "features", np.random.default_rng(0)
    folder.mkdir()
    products = 60
    np.save(folder / "images-0.npy", random.standard_normal((products, 10)).astype(np.float16))
    asked = [(task, p) for task in range(4) for p in range(products)]
    questions = [(task, -1 if task in (0, 2) else p, products + p, [p], int(p >= 50)) for task, p in asked]
    np.save(folder / "texts.npy", random.standard_normal((2 * products, 6)).astype(np.float16))
    meta = {"titles": list(range(products)), "test": list(range(50, products)), "queries": questions, "texts": 2 * products}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    fields = {"model.decoder": "nano", "model.width": 8, "model.projection": 8, "model.hidden": 8}
    stages = {"encoder": 4, "quantizer": 3, "generator": 3}
    fields |= {f"{stage}.batch": 16 for stage in stages} | {f"{stage}.steps": steps for stage, steps in stages.items()}
    monkeypatch.setattr(fair_results, "FEWEST", 1)
    rows = rows_of(("table-4", "table-5"))
    about = {"settings": {"same": fields}}
    results = Results(tmp_path / "out.json", about, rows)
    group = next(grouped(rows))
    for entry in fair.attempt(fair.Job(0, group, "fashion", folder, tmp_path, None, fields)):
        results.add(entry)
    larger = Row("larger", ("supplement-5",), {"model.decoder": "tiny"})
    (entry,) = fair.attempt(fair.Job(0, (larger,), "fashion", folder, tmp_path, None, fields))
    first = {key.rsplit("|")[-1]: values for key, values in results.hits.items() if key.startswith(f"{BASE}|0|local|dense")}
    assert len(list(tmp_path.glob("second-*.pt"))) == 1  # it stands on the stage 2 that the first row has left
    assert all((first[task] == values).all() for task, values in entry["found"]["local"]["dense"].items())
    results = Results(tmp_path / "out.json", about, rows)  # another call
    assert results.has(group[0].name, 0) and not results.has(group[0].name, 1) and not results.has("256 x 5", 0)
    small = fair.Job(0, tuple(row for row in rows if row.name == "256 x 5"), "fashion", folder, tmp_path, None, fields)
    elsewhere = Results(tmp_path / "elsewhere.json", about, rows)
    elsewhere.add(next(fair.attempt(small)))
    alone = Results(tmp_path / "alone.json", about, rows)
    alone.join(tmp_path / "elsewhere.json")
    alone.lines[0]["seed"], alone.hits = 7, {key.replace("|0|", "|7|"): value for key, value in alone.hits.items()}
    alone.join(tmp_path / "out.json")
    alone.write()  # a row whose seed the first row does not have yet: nothing to say, and nothing breaks
    assert {entry["row"] for entry in json.loads(alone.path.read_text())["differences"]} == {"GENIUS", "w/o query augmentation"}
    results.join(tmp_path / "elsewhere.json")
    results.join(tmp_path / "elsewhere.json")  # once is enough
    results.write()
    assert [line["row"] for line in results.lines] == ["GENIUS", "w/o query augmentation", "256 x 5"]
    body = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    lines = {line["row"]: line for line in body["lines"]}
    assert set(lines) == {"GENIUS", "w/o query augmentation", "256 x 5"}
    assert set(lines["GENIUS"]["hit@5"]) == {"universal", "local"} and set(lines["256 x 5"]["hit@5"]) == {"local"}
    assert lines["GENIUS"]["looks"] and lines["w/o query augmentation"]["config"]["generator"]["inputs"] == "queries"
    first = lines["GENIUS"]["config"]
    assert first["encoder"]["hard_negatives"] == 0 == first["quantizer"]["hard_negatives"] == first["encoder"]["modality_weight"]
    other = lines["256 x 5"]["config"]
    assert {**other, "model": {**other["model"], "level_sizes": first["model"]["level_sizes"]}} == first  # nothing else differs
    found = {(entry["table"], entry["row"]) for entry in body["differences"]}
    assert ("table-4", "w/o query augmentation") in found and ("table-5", "256 x 5") in found
    assert "256 x 5" in results.table()
    with pytest.raises(SystemExit, match="trained differently"):
        Results(tmp_path / "out.json", {"settings": {"same": {}}}, rows)
