"""Every table and figure of the paper runs end to end on the synthetic M-BEIR, through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from genius.config import flat, to_dict
from genius.data.features import FeatureSet
from genius.data.mbeir import ROWS
from genius.errors import GeniusError
from genius.train import train
from genius.train.config import RULES, read_train_config
from lab.__main__ import app
from lab.paper import analyses, reproduce
from lab.paper import printed as paper
from lab.paper.alike import recipe_of, refuse_unlike
from lab.paper.figure_4 import speed
from lab.paper.reproduce import listing, read_experiment

World = Any  # tests/helpers/small_world.py

EXPERIMENTS = list(listing())


def call(*arguments: str) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.strip().splitlines()[-1])


# twins of others, and one that trains sixteen models: seconds for nothing new
TWINS = ("beyond", "supplement-figure-2", "supplement-figure-3", "supplement-figure-4", "supplement-8")


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in TWINS])
def test_every_experiment_runs(name: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyses, "flattened", lambda points: points[:, :2])  # UMAP compiles itself for a quarter of a minute
    settings = [f"--set={key}={json.dumps(value)}" for key, value in world.quick.items()]
    if name in ("supplement-5", "supplement-6", "table-5"):  # the rows' own sizes are far too large for a test
        settings += ["--set=model.decoder='tiny'", "--set=model.level_sizes=[3, 8, 8]"]
    if read_experiment(name).kind in ("ablation", "map"):  # the world's model was trained longer than these rows
        settings += [f"--variant={read_experiment(name).rows[0].name}=train"]
    found = call(
        "reproduce", name, "--data", str(world.test), "--model", str(world.model), "--train", str(world.train),
        "--base", "lab/paper/tiny.toml", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"), *settings, "--json",
    )  # fmt: skip
    text = (tmp_path / "out" / f"{name}.md").read_text()
    experiment = read_experiment(name)
    assert experiment.title in text and found["results"]
    if experiment.kind == "methods":
        tasks = {r["task"] for r in found["results"]}
        assert tasks == set(experiment.tasks or ROWS)
        assert {r["pool"] for r in found["results"]} == set(experiment.pools)
        assert "(paper)" in text
        assert set(experiment.baselines) <= {r["method"].partition("@")[0] for r in found["results"]}
    if experiment.kind == "ablation":
        assert list(dict.fromkeys(r["row"] for r in found["results"])) == [row.name for row in experiment.rows]
        assert set(paper.TABLES[name]) == {row.name for row in experiment.rows}
    if name in ("supplement-5", "supplement-6", "table-5"):  # a small model under a large one's name: said so
        assert f"{experiment.rows[0].name}: the " in text
    if experiment.kind == "text-to-image":
        assert {r["method"] for r in found["results"]} == {*experiment.methods, *experiment.baselines}
    if experiment.kind == "speed":
        assert all(r["queries_per_second"] > 0 for r in found["results"])
        assert "grace-structured@30" in {r["method"] for r in found["results"]}
    if experiment.kind == "map":
        assert [r["row"] for r in found["results"]] == ["GENIUS", "w/o L_cl"]
    if experiment.kind == "training-time":
        assert [r["stage"] for r in found["results"]] == ["quantizer", "generator"]
    if experiment.kind in ("speed", "map", "cards"):
        pictures = list((tmp_path / "out").glob("*.png"))
        assert pictures and all(Image.open(path).size[0] > 200 for path in pictures)
    if name == "supplement-2":
        assert {r["what"]: r["bytes"] for r in found["results"]}["codes"] == (2 + 4 + 4 + 4) / 8


def test_rows_that_differ_in_stage_3_alone_share_stage_2(world: World, tmp_path: Path) -> None:
    """Of Table 4 only the row without query augmentation has the first row's stage 2."""
    settings = [f"--set={key}={json.dumps(value)}" for key, value in world.quick.items()]
    call(
        "reproduce", "table-4", "--data", str(world.test), "--model", str(world.model), "--train", str(world.train),
        "--base", "lab/paper/tiny.toml", "--work", str(tmp_path), "--variant=GENIUS=train", *settings, "--json",
    )  # fmt: skip
    stages = {}
    for folder in (tmp_path / "table-4").iterdir():
        lines = (folder / "training" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        stages[folder.name] = {json.loads(line)["stage"] for line in lines}
    shared = {name for name, trained in stages.items() if "quantizer" not in trained}
    assert len(stages) == 5 and shared == {"w-o-query-augmentation"}
    assert all("generator" in trained for trained in stages.values())
    weights = [tmp_path / "table-4" / name / "training" / "quantizer.safetensors" for name in ("genius", *shared)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_papers_numbers_are_only_beside_their_own_data(world: World) -> None:
    from dataclasses import replace

    from genius.data.features import FeatureSet

    data = FeatureSet.load(world.test)
    other = replace(data, names={number: name.replace("mscoco", "mine") for number, name in data.names.items()})
    tasks = reproduce._pick_tasks(read_experiment("supplement-4"), other)
    assert [t.key for t in tasks] == ["webqa_task1", "webqa_task2", "cirr_task7"]  # what is left of the named ones
    foreign = replace(data, names={number: f"shapes{number}_task{name[-1]}" for number, name in data.names.items()})
    tasks = reproduce._pick_tasks(read_experiment("supplement-4"), foreign)
    assert {t.direction for t in tasks} == {"text->image", "image->text", "text->text", "text->pair", "pair->image"}
    assert not reproduce._is_mbeir(tasks)


def test_rows_without_a_model_say_what_to_do(world: World) -> None:
    result = CliRunner().invoke(app, ["reproduce", "table-4", "--data", str(world.test), "--model", str(world.model)])
    assert result.exit_code == 2 and "--variant 'w/o modality-decoupled=MODEL'" in result.output
    assert CliRunner().invoke(app, ["reproduce", "table-9", "--data", "x", "--model", "y"]).exit_code == 2
    assert CliRunner().invoke(app, ["reproduce", "table-2"]).exit_code == 2


def test_rows_that_were_trained_differently_are_refused(world: World, tmp_path: Path) -> None:
    """B7 of the review: a model of 24 steps beside rows of 2 says nothing about what the rows are named after."""
    where = [
        "--data",
        str(world.test),
        "--model",
        str(world.model),
        "--train",
        str(world.train),
        "--work",
        str(tmp_path / "work"),
    ]
    settings = [f"--set={key}={json.dumps(value)}" for key, value in world.quick.items()]
    result = CliRunner().invoke(app, ["reproduce", "table-4", *where, "--base", "lab/paper/tiny.toml", *settings])
    assert result.exit_code == 2 and "trained differently" in result.output and "--variant 'GENIUS=train'" in result.output
    assert not (tmp_path / "work").exists()  # refused before anything is trained
    like = {"quantizer.steps": 24, "quantizer.batch": 64, "generator.steps": 30, "generator.batch": 32, "held_out": 0.0}
    like |= {"model.level_sizes": [3, 16, 16, 16], "encoder.train": "none"}
    body = json.loads((world.model / "training" / "config.json").read_text(encoding="utf-8"))
    planned = flat(to_dict(read_train_config("builtin:tiny", {**like, "model.width": 32, "output": "elsewhere", "seed": 5})))
    refuse_unlike("a", {"a": flat(body), "b": planned}, {})  # the same recipe, another place, other dice
    for field, value in (("quantizer.lr", 1.0), ("generator.steps", 31), ("quantizer.batch", 65), ("model.decoder", "small")):
        with pytest.raises(GeniusError, match=field):
            refuse_unlike("a", {"a": flat(body), "b": {**planned, field: value}}, {})
        refuse_unlike("a", {"a": flat(body), "b": {**planned, field: value}}, {"b": [field]})  # it is what the row is about
    with pytest.raises(GeniusError, match="nothing says how"):
        recipe_of("bundled:mini")


def test_given_variants_are_used_not_trained(world: World) -> None:
    rows = [row.name for row in read_experiment("supplement-3").rows]
    found = call(
        "reproduce", "supplement-3", "--data", str(world.test), "--model", str(world.model), "--json",
        *(f"--variant={row}={world.model}" for row in rows),
    )  # fmt: skip
    per_row = {row: [r["metrics"] for r in found["results"] if r["row"] == row] for row in rows}
    assert per_row[rows[0]] == per_row[rows[1]] == per_row[rows[2]]


def test_other_methods_in_place_of_the_experiments_own(world: World, tmp_path: Path) -> None:
    """An ablation has one block for each method, with intervals and the average of the tasks."""
    rows = [row.name for row in read_experiment("supplement-3").rows]
    found = call(
        "reproduce", "supplement-3", "--data", str(world.test), "--model", str(world.model), "--methods", "genius, genius-r",
        "--out", str(tmp_path), "--json", *(f"--variant={row}={world.model}" for row in rows),
    )  # fmt: skip
    assert {r["method"] for r in found["results"]} == {"genius", "genius-r"}
    lines = [line for line in (tmp_path / "supplement-3.md").read_text().splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0] for line in lines if "Average" in line] == ["| GENIUS", "| GENIUS^R"]
    first = next(line for line in lines if line.startswith(f"| {rows[0]} "))
    own = [r["metrics"]["hit@5"] for r in found["results"] if (r["row"], r["method"]) == (rows[0], "genius")]
    assert f"**{100 * sum(own) / len(own):.1f}** ±" in first and first.count("±") == len(own) + 1


def test_an_experiment_of_ones_own_is_a_file(world: World, tmp_path: Path) -> None:
    """The same kinds, other rows; a row that is not what it is set to be is said to be another."""
    rows = ("as it is", "wide")
    text = 'title = "Two sizes"\nkind = "ablation"\npools = ["local"]\nmethods = ["genius"]\ntasks = ["mscoco_task0"]\n'
    for row, size in zip(rows, (16, 512), strict=True):
        text += f'[[rows]]\nname = "{row}"\nset = {{ "model.level_sizes" = [3, {size}, {size}, {size}] }}\n'
    (tmp_path / "sizes.toml").write_text(text)
    found = call(
        "reproduce", str(tmp_path / "sizes.toml"), "--data", str(world.test), "--model", str(world.model), "--json",
        "--out", str(tmp_path), *(f"--variant={row}={world.model}" for row in rows),
    )  # fmt: skip
    assert found["experiment"] == "sizes" and [r["row"] for r in found["results"]] == list(rows)
    written = (tmp_path / "sizes.md").read_text()
    assert "wide: the model in this row has codes 3 x 16 x 16 x 16." in written and "as it is: the" not in written


def test_single_task_rows_are_models_of_one_tasks_questions(world: World, tmp_path: Path) -> None:
    assert read_experiment("supplement-8").single
    text = 'title = "Alone"\nkind = "methods"\npools = ["local"]\nmethods = ["genius"]\nsingle = true\nbeams = [4, 5]\n'
    (tmp_path / "alone.toml").write_text(text + 'tasks = ["mscoco_task0", "cirr_task7"]\n')
    settings = [f"--set={key}={json.dumps(value)}" for key, value in world.quick.items()]
    asked = ["reproduce", str(tmp_path / "alone.toml"), "--data", str(world.test), "--json", "--train", str(world.train)]
    asked += ["--base", "lab/paper/tiny.toml", "--work", str(tmp_path / "work"), *settings]
    other = CliRunner().invoke(app, [*asked, "--model", str(world.model)])  # trained longer than the single ones would be
    assert other.exit_code == 2 and "'all tasks' and 'single task' were trained differently" in other.output
    assert "queries in" not in other.output  # said before anything is searched
    data = FeatureSet.load(world.train)
    fixed = {"encoder.train": "none", "output": str(tmp_path / "all"), "data": str(world.train), "model.width": data.pool.width}
    train(read_train_config("lab/paper/tiny.toml", {**world.quick, **fixed, "device": "cpu"}), data, quiet=True)
    found = call(*asked, "--model", str(tmp_path / "all"))
    alone = [r for r in found["results"] if r["method"] == "genius, single task"]
    assert [r["task"] for r in alone] == ["mscoco_task0", "cirr_task7"]
    kept = {path.name for path in (tmp_path / "work" / "alone").iterdir()}
    assert kept == {"single-mscoco-task0", "single-cirr-task7"}


def test_cards_show_the_candidates_of_features(world: World, tmp_path: Path) -> None:
    red = tmp_path / "red.png"
    Image.new("RGB", (96, 96), (255, 0, 0)).save(red)
    texts = {0: {"image": str(red)}, 1: {"text": "seen words"}, 2: {"image": str(red), "text": "seen"}}
    data = FeatureSet.load(world.test)
    rows = [{"id": one, **texts[kind]} for one, kind in zip(data.pool_ids, data.pool.modality.tolist(), strict=True)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = ["--data", str(world.test), "--model", str(world.model), "--out", str(tmp_path / "out"), "--json"]
    found = call("reproduce", "figure-3", *where, "--items", str(tmp_path / "items.jsonl"))
    card = Image.open(tmp_path / "out" / "figure-3-1.png").convert("RGB")
    kinds = {result["codes"]: result for result in found["results"] if result["codes"][0] != "*"}
    assert set(kinds) == {"0,*", "1,*", "2,*"}  # the first code tells the kind
    assert [label for label, many in kinds["1,*"]["counts"].items() if many] == ["text"]
    share = float((data.pool.modality == 1).sum() / (data.pool.modality != 0).sum())  # of those that have words
    assert kinds["1,*"]["telling"] == {"word": "words", "here": 1.0, "everywhere": round(share, 4)}
    assert kinds["0,*"]["telling"] == {}  # pictures have no words
    assert card.getpixel((10 + 52, 44 + 18 + 52)) == (255, 0, 0)  # in the first tile of the first kind
    assert [r["codes"].count("*") for r in found["results"]] == [1] * 3 + [2] * 3 + [
        3
    ] * 3  # the kind, the second, the third code
    assert "codebooks of its own" in (tmp_path / "out" / "figure-3.md").read_text()  # this model's codes are not shared


@pytest.mark.parametrize(("figure", "printed"), [(2, "*, 1782 , *"), (3, "* , * , 3771 , *"), (4, "*,*,*, 675, *")])
def test_the_supplements_figures_are_about_the_papers_levels(figure: int, printed: str) -> None:
    (level,) = read_experiment(f"supplement-figure-{figure}").levels
    code = int("".join(c for c in printed if c.isdigit()))
    assert analyses.pattern(level, code, 9) == printed.replace(" ", "")


def test_text_to_image_has_intervals(world: World, tmp_path: Path) -> None:
    found = call(
        "reproduce", "table-3", "--data", str(world.test), "--model", str(world.model), "--out", str(tmp_path), "--json",
    )  # fmt: skip
    first = next(r for r in found["results"] if r["method"] == "genius")
    low, high = first["intervals"]["hit@10"]
    cell = f"{100 * first['metrics']['hit@10']:.1f} ±{50 * (high - low):.1f}"
    row = next(line for line in (tmp_path / "table-3.md").read_text().splitlines() if line.startswith("| GENIUS |"))
    assert row.split(" | ")[3].rstrip(" |") == cell


def test_figure_4_names_the_sizes_that_were_searched(world: World) -> None:
    """The answers of the queries stay in a small pool, so it can be larger than asked for."""
    from dataclasses import replace

    from genius.data.features import FeatureSet
    from genius.model.genius import Genius

    data, model = FeatureSet.load(world.test), Genius.from_pretrained(world.model)
    needed = len(data.pairs[:, 1].unique())
    assert 2 < needed < len(data.pool)
    experiment = replace(read_experiment("figure-4"), sizes=(1, 2, needed), queries=0, methods=("dense",))
    found = speed("figure-4", experiment, 0, model, data, [], lambda _: None)
    assert [r["candidates"] for r in found.results if r["method"] == "dense"] == [needed, len(data.pool)]
    assert f"{needed:,}" in found.body and " 2 |" not in found.body.splitlines()[0]


def test_the_papers_averages() -> None:
    """The transcription adds up to the averages that the paper prints."""
    printed = {"CLIP-SF": 48.9, "CLIP-FF": 43.3, "BLIP-SF": 42.7, "BLIP-FF": 45.5, "genius@30": 28.1, "genius-r@30": 35.4}
    printed |= {"genius@50": 28.8, "genius-r@50": 38.3}
    for name, average in printed.items():
        row = paper.SUPPLEMENT_9[name]
        assert set(row) == set(ROWS) and sum(row.values()) / 16 == pytest.approx(average, abs=0.051)
    assert all(set(row) <= set(ROWS) for table in paper.TABLES.values() for row in table.values())


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if read_experiment(name).kind == "ablation"])
def test_rows_of_an_ablation_change_what_they_name_and_nothing_else(name: str) -> None:
    whole = to_dict(read_train_config("builtin:paper"))
    for row in read_experiment(name).rows[1:]:
        changed = to_dict(read_train_config("builtin:paper", row.set))
        assert row.set and changed != whole
        gone = [field for rule in RULES if row.set.get(rule.switch) == 0 for field in rule.ignored]  # no effect any more
        for field in (*row.set, *gone):
            table, key = field.split(".")
            changed[table][key] = whole[table][key]
        changed["model"]["level_sizes"] = whole["model"]["level_sizes"]  # without a modality code level 0 is as large as level 1
        assert changed == whole


def test_the_papers_cells_are_as_printed_and_every_contradiction_is_marked() -> None:
    """Two tables print the same cells: where they differ, a note says so. Means are those of the cells, or of the twin's."""
    same = {"CLIP-SF": "CLIP-SF", "BLIP-FF": "BLIP-FF", "genius": "genius@50", "genius-r": "genius-r@50"}
    for one, other in (("table-1", "supplement-8"), ("table-2", "supplement-9")):
        for row, twin in same.items():
            for task, value in paper.TABLES[one][row].items():
                marked = (one, row, task) in paper.MISPRINTS
                assert (value != paper.TABLES[other][twin][task]) <= marked, (one, row, task)
    for table, means in paper.AVERAGES.items():
        for row, printed in means.items():
            mean = sum(paper.TABLES[table][row].values()) / 16
            of_another = table == "table-2" and row in ("CLIP-SF", "BLIP-FF")
            assert (abs(mean - printed) < 0.0501) is not of_another, (table, row, mean, printed)
            if of_another:
                assert abs(sum(paper.SUPPLEMENT_9[row].values()) / 16 - printed) < 0.0501
    for table, row, task in paper.MISPRINTS:
        assert f"{paper.TABLES[table][row][task]:.1f}" in paper.MISPRINTS[table, row, task]
