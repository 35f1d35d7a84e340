"""Every field of a training config does something, or is refused: none is ignored in silence, and there are few of them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from train_fixtures import change_recipe, small_config, small_data

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.search import SearchParams
from genius.train import loop, train
from genius.train.config import RULES, STAGES, Recipe, RunConfig, Schedule, TrainConfig, read_train_config
from genius.train.generator import GeneratorStage
from genius.train.loop import Runtime
from genius.train.quantizer import QuantizerStage


def fields(config: Any, before: str = "") -> list[str]:
    """The dotted names of all that can be set in a config."""
    names = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        names += fields(value, f"{before}{f.name}.") if dataclasses.is_dataclass(value) else [before + f.name]
    names.remove("search") if "search" in names else None
    return names + ([f"search.{f.name}" for f in dataclasses.fields(SearchParams)] if not before else [])


def test_a_run_has_few_switches() -> None:
    """Every field is a question to whoever trains: a new one takes the place of another, or brings a figure that earns it one."""
    assert len(fields(TrainConfig())) <= 63  # the last one that came: `encoder.chunk`, 0.8 in place of 4.9 GiB for whole towers


# Another value of every field than the small run of `SHORT` has.
OTHER: dict[str, Any] = {
    "seed": 1, "held_out": 0.3, "device": "cuda", "encoder_uri": "bundled:nothing",
    "held_out_data": "nowhere", "data": "nowhere", "output": "elsewhere",
    "run.accumulate": 2, "run.precision": "fp32", "run.patience": 1, "run.average": 0.0, "run.log_every": 2,
    "run.checkpoint_steps": 1, "run.compile": True,
    "model.recipe": "published", "model.width": 20, "model.projection": 16, "model.hidden": 16, "model.level_sizes": [3, 8],
    "model.modality_code": "classifier", "model.shared": True, "model.encode_sweeps": 0, "model.decoder": "nano",
    "model.quantizer": "nothing",
    "model.prefix_tokens": 2,
    "encoder.steps": 4, "encoder.epochs": 0.5, "encoder.batch": 16, "encoder.lr": 1e-4, "encoder.weight_decay": 0.5,
    "encoder.hard_negatives": 2, "encoder.modality_weight": 0.5, "encoder.train": "none", "encoder.hidden": 8,
    "encoder.temperature": 0.2, "encoder.dropout": 0.0, "encoder.chunk": 8, "encoder.workers": 2,
    "quantizer.steps": 5, "quantizer.epochs": 0.5, "quantizer.batch": 16, "quantizer.lr": 1e-4, "quantizer.weight_decay": 0.5,
    "quantizer.hard_negatives": 2, "quantizer.modality_weight": 0.5, "quantizer.temperature": 0.2,
    "quantizer.contrastive_weight": 0.5, "quantizer.rq_weight": 1.0, "quantizer.mse_weight": 1.0, "quantizer.codes_weight": 0.5,
    "quantizer.quantize_from": 0.7, "quantizer.kmeans_iterations": 1,
    "generator.steps": 4, "generator.epochs": 0.5, "generator.batch": 32, "generator.lr": 1e-4, "generator.weight_decay": 0.5,
    "generator.inputs": "linear",
    "search.beams": 3, "search.rerank": 7, "search.reranker": "codes", "search.plan": "scan",
    "search.item_bias": False,
}  # fmt: skip
SHORT = {"encoder.steps": 3, "quantizer.steps": 4, "generator.steps": 3, "run.patience": 0, "encoder.hard_negatives": 1,
         "quantizer.hard_negatives": 1}  # fmt: skip


class Enough(Exception):
    pass


def two_answers() -> FeatureSet:
    """The small data with a second answer to every question, of the same kind."""
    data = small_data()
    kind = data.pool.modality
    others = [
        int(rows[(rows == row).nonzero()[0, 0] - 1]) for row in data.pairs[:, 1] for rows in [(kind == kind[row]).nonzero()[:, 0]]
    ]
    second = torch.stack([data.pairs[:, 0], torch.tensor(others)], 1)
    return dataclasses.replace(data, pairs=torch.cat([data.pairs, second]))


def outcome(place: Path, name: str = "", value: Any = None, before: Path | None = None) -> Any:
    """Everything that a run leaves: weights, settings, metrics, files; or the line that refuses it. Of a stage's field only that
    stage is run: those in front of it are read back from the run `before`, and those behind it are left out."""
    saved: list[int] = []
    stage = name.partition(".")[0]
    following = {"encoder": QuantizerStage, "quantizer": GeneratorStage}.get(stage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", lambda folder, step, *rest: saved.append(step))
        if following is not None:
            patch.setattr(following, "__init__", lambda *_, **__: (_ for _ in ()).throw(Enough))
        if before is not None and stage in STAGES:
            (place / "training").mkdir(parents=True)
            for done in STAGES[: STAGES.index(stage)]:
                for path in (before / "training").glob(f"{done}.*"):
                    shutil.copy(path, place / "training")
        try:
            changes = SHORT | ({} if value is None else {name: value})
            config = small_config(place, **{key.replace(".", "__"): given for key, given in changes.items()})
            train(config, two_answers(), quiet=True)
        except GeniusError as error:
            return ("refused", str(error))
        except Enough:
            pass
    return (*left(place, stage if stage in STAGES else ""), saved)


def left(place: Path, stage: str = "") -> tuple[Any, ...]:
    """What a run has written, or one stage of it."""
    lines = [json.loads(line) for line in (place / "training" / "metrics.jsonl").read_text().splitlines()]
    if stage:
        return [line for line in lines if line["stage"] == stage], (place / "training" / f"{stage}.safetensors").read_bytes()
    files = sorted(path.relative_to(place).parts[:2] for path in place.rglob("*"))
    return lines, files, (place / "model.safetensors").read_bytes(), (place / "config.json").read_text()


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without any change."""
    place = tmp_path_factory.mktemp("usual") / "run"
    found = outcome(place)
    assert found[0] != "refused"
    return place


@pytest.mark.parametrize("name", fields(TrainConfig()))
def test_another_value_changes_the_run_or_is_refused(name: str, usual: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    place, stage = tmp_path / "run", name.partition(".")[0]
    if name == "output":
        assert outcome(place)[0] == left(usual)[0] and (place / "config.json").exists()  # the same run elsewhere
    elif name == "data":  # features in memory take its place here; from the command line it is read
        with pytest.raises(GeniusError, match="no such data: nowhere"):
            train(small_config(place, data="nowhere"), quiet=True)
    elif name == "run.precision":  # a matter of the machine: on a GPU it turns autocast off
        assert [Runtime(torch.device("cuda"), None, 0, RunConfig(precision=p)).half for p in ("auto", "fp32")] == [True, False]  # type: ignore[arg-type]
    elif name == "run.compile":  # a step through torch.compile is the same step
        compiled: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "compile", lambda module, mode: compiled.append(module.name) or module)
            assert outcome(place, name, True) == (*left(usual), []) and compiled == ["generator"]
    else:
        found = outcome(place, name, OTHER[name], usual)
        assert found != (*left(usual, stage if stage in STAGES else ""), [])
        if found[0] == "refused":
            assert len(found[1].splitlines()) == 1


CONSTANTS: dict[str, tuple[str, Any]] = {
    "head": ("generator", "table"), "codebook_scale": ("model", 100.0), "modality_codebooks": ("quantizer", False),
    "gradient": ("quantizer", "straight-through"), "published_revival": ("quantizer", True),
    "rerank_embedding": ("model", "score-fusion"), "positives": ("quantizer", "fixed"), "symmetric": ("quantizer", False),
    "all_positives": ("quantizer", False), "start_from_sum": ("quantizer", False),
    "kmeans_from": ("quantizer", "first-batch"), "refit": ("quantizer", False),
    "quantizer": ("quantizer", Schedule(betas=(0.9, 0.999), final_lr=0.5)), "generator": ("generator", Schedule(clip=0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTANTS)
def test_another_constant_of_the_recipe_changes_the_run(name: str, usual: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    assert {f.name for f in dataclasses.fields(Recipe)} == CONSTANTS.keys()
    stage, value = CONSTANTS[name]
    if name == "codebook_scale":  # of the paper's table only
        change_recipe(head="table", modality_codebooks=False)
        before = outcome(tmp_path / "before", stage, None, usual)
    else:
        before = (*left(usual, stage if stage in STAGES else ""), [])
    change_recipe(**{name: value})
    assert outcome(tmp_path / "run", stage, None, usual) != before


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_by_itself_is_that_of_the_whole_run(stage: str, usual: Path, tmp_path: Path) -> None:
    """What the test above compares is the same where nothing is changed: only then does a difference mean something."""
    name = f"{stage}.lr"
    assert outcome(tmp_path / "run", name, None, usual) == (*left(usual, stage), [])


@pytest.mark.parametrize(
    ("switch", "name"),
    [(rule.switch, name) for rule in RULES for name in rule.ignored if rule.switch != "encoder.train" or "hidden" in name],
)
def test_a_field_that_another_makes_meaningless_is_refused(switch: str, name: str) -> None:
    """Whoever names both is told; where a base names the one, the other in a file above it wins."""
    off = {"held_out": 0.0, "held_out_data": "x", "encoder.train": "none", "quantizer.contrastive_weight": 0.0,
           "generator.inputs": "linear", "search.reranker": "none"}.get(switch, 2.0)  # fmt: skip
    with pytest.raises(GeniusError, match=f"{name} has no effect with {switch} = "):
        read_train_config("builtin:default", {switch: off, name: OTHER[name]})
    alone = read_train_config("builtin:default", {switch: off})
    assert alone != read_train_config("builtin:default")


def test_a_base_s_settings_go_when_nothing_uses_them_any_more() -> None:
    config = read_train_config("builtin:tiny", {"encoder.train": "none"})
    assert config.encoder == dataclasses.replace(TrainConfig().encoder, train="none")  # tiny's steps and sizes are gone
    with pytest.raises(GeniusError, match=r"encoder.lr has no effect with encoder.train = 'none'"):
        read_train_config("builtin:paper", {"encoder.lr": 0.1})
    assert read_train_config("builtin:paper", {"encoder.train": "heads", "encoder.lr": 0.1}).encoder.lr == 0.1
    with pytest.raises(GeniusError, match=r"encoder.hidden has no effect with encoder.train = 'towers'"):
        read_train_config("builtin:default", {"encoder.train": "towers", "encoder.hidden": 8})


def test_settings_of_heads_are_refused_where_the_features_need_none(tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match=r"these features need no heads.*encoder.steps has no effect"):
        train(small_config(tmp_path, model__width=16), small_data(), quiet=True)
    with pytest.raises(GeniusError, match="'towers' needs images and texts"):
        config = read_train_config("builtin:default", {"encoder.train": "towers", "output": str(tmp_path), "device": "cpu"})
        train(config, small_data(), quiet=True)


def test_a_field_that_comes_later_does_not_stop_an_unfinished_run(tmp_path: Path) -> None:
    config = small_config(tmp_path, encoder__steps=1, quantizer__steps=1, generator__steps=1)
    whole = train(config, small_data(), quiet=True)
    path = tmp_path / "training" / "config.json"
    before = json.loads(path.read_text())
    assert before["run"].pop("accumulate") == 1  # as if an older version had written it
    path.write_text(json.dumps(before))
    assert train(config, small_data(), quiet=True).model.fingerprint() == whole.model.fingerprint()
