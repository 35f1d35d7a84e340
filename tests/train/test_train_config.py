"""Config files: bases, and one clear line for every mistake."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from train_fixtures import small_config, small_data
from typer.testing import CliRunner

from genius.cli import app
from genius.errors import GeniusError
from genius.features import Features
from genius.model.codebooks import choose_level_sizes
from genius.model.genius import Genius
from genius.model.quantizer import ResidualQuantizer
from genius.train import train
from genius.train.config import BUILTIN, TrainConfig, builtin_names, read_train_config, with_steps
from genius.train.generator import Augmentation
from lab.recipes import recipes_page


@pytest.mark.parametrize("name", builtin_names())
def test_every_builtin_config_is_valid(name: str) -> None:
    assert isinstance(read_train_config(BUILTIN + name), TrainConfig)


def test_the_page_of_recipes_is_that_of_the_configs() -> None:
    page = Path(__file__).parents[2] / "docs" / "recipes.md"
    assert page.read_text(encoding="utf-8") == recipes_page(), "run: python -m lab recipes --out docs/recipes.md"


def test_the_paper_to_the_letter() -> None:
    """Section 5.2 and the equations, written down once more, apart from the config."""
    config = read_train_config("builtin:paper")
    assert (config.quantizer.epochs, config.generator.epochs) == (20, 30)
    assert config.quantizer.batch == config.generator.batch == 256
    assert config.quantizer.lr == config.generator.lr == 1e-4
    assert (config.quantizer.temperature, config.quantizer.rq_weight, config.quantizer.mse_weight) == (0.01, 100, 100)
    recipe = config.model.constants
    assert (config.quantizer.contrastive_weight, recipe.symmetric) == (1, False)
    assert recipe.kmeans_from == "first-batch" and recipe.quantizer.final_lr == 1.0 and recipe.generator.final_lr == 0.0
    assert config.model.level_sizes == (3,) + (4096,) * 8 and config.model.prefix_tokens == 30 and config.model.decoder == "small"
    assert (config.generator.inputs, Augmentation("linear").alpha) == ("linear", 2)
    assert config.search == {"beams": 50, "rerank": 0}


def test_epochs_are_counted_over_the_training_questions(tmp_path: Path) -> None:
    config = read_train_config("builtin:paper", {"quantizer.steps": 7})
    assert (config.quantizer.steps, config.quantizer.epochs, config.generator.epochs) == (7, 0.0, 30)  # the last word counts
    assert with_steps(config.generator, 1_000).steps == round(30 * 1_000 / 256) and with_steps(config.quantizer, 5).steps == 7
    with pytest.raises(GeniusError, match=r"quantizer.steps has no effect with quantizer.epochs = 1.0"):
        read_train_config("builtin:paper", {"quantizer.steps": 7, "quantizer.epochs": 1})
    data = small_data()
    data.times = torch.full((len(data.queries),), 2)
    small = small_config(tmp_path, encoder__train="none", generator__steps=1, held_out=0.0, model__width=0)
    longer = dataclasses.replace(small.quantizer, steps=800, epochs=1.5, batch=64)
    train(dataclasses.replace(small, quantizer=longer), data, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "training" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines if line["stage"] == "quantizer") == round(1.5 * 2 * len(data.queries) / 64)


def test_bases_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "below.toml").write_text("seed = 5\n[generator]\nsteps = 3\nlr = 0.5\n")
    (tmp_path / "above.toml").write_text('base = "below.toml"\ngenerator.lr = 0.25\n')
    config = read_train_config(str(tmp_path / "above.toml"))
    assert (config.seed, config.generator.steps, config.generator.lr) == (5, 3, 0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sede = 1", "unknown field 'sede'"),
        ("[generator]\nstepz = 1", "unknown field 'stepz'"),
        ("seed = 'one'", "seed must be int"),
        ('[model]\ndecoder = "huge"', "unknown decoder"),
        ('[model]\nmodality_code = "none"', "use recipe 'paper' or 'published'"),
        ("[generator]\nsteps = 0", "must be above zero"),
        ("[search]\nbeam = 5", "unknown field 'beam'"),
        ("[run]\naccumulate = 2\n[quantizer]\nbatch = 7", "do not fit together"),
        ('base = "builtin:nothing"', "no built-in config"),
        ('base = "config.toml"', "form a cycle"),
        ("[model", "cannot read"),
    ],
)
def test_mistakes_in_a_config_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["train", str(path), "--output", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_bad_data_is_one_line_and_leaves_no_model(tmp_path: Path) -> None:
    data = small_data()
    nan = data.pool.image.clone()
    nan[0] = math.nan
    zero = data.pool.text.clone()
    row = int(data.pool.text_mask.nonzero()[0])
    zero[row] = 0
    pool = data.pool
    cases = [
        (dataclasses.replace(data, pool=Features(nan, pool.text, pool.image_mask | True, pool.text_mask)), "NaN"),
        (dataclasses.replace(data, pool=Features(pool.image, zero, pool.image_mask, pool.text_mask)), "all zero"),
        (dataclasses.replace(data, pairs=data.pairs[:0]), "no \\(query, positive\\) pairs"),
        (dataclasses.replace(data, pairs=data.pairs[:-1]), "no positive"),
        (dataclasses.replace(data, pool=pool[:0], pool_ids=[], pairs=data.pairs[:0], pools={}), "pool is empty"),
    ]
    for number, (broken, message) in enumerate(cases):
        with pytest.raises(GeniusError, match=message):
            train(small_config(tmp_path / str(number)), broken, quiet=True)
        assert not (tmp_path / str(number) / "config.json").exists()
    with pytest.raises(GeniusError, match="16 wide, the model expects 24"):
        train(small_config(tmp_path / "wide", encoder__train="none"), data, quiet=True)


def test_another_config_does_not_continue_in_the_same_folder(tmp_path: Path) -> None:
    short = {"encoder__steps": 1, "quantizer__steps": 1, "generator__steps": 1}
    train(small_config(tmp_path / "a", **short), small_data(), quiet=True)
    (tmp_path / "a").rename(tmp_path / "b")  # a moved folder is the same run
    train(small_config(tmp_path / "b", **short), small_data(), quiet=True)
    (tmp_path / "b").rename(tmp_path / "a")
    with pytest.raises(GeniusError, match=r"another config \(generator.lr was"):
        train(small_config(tmp_path / "a", **short, generator__lr=0.5), small_data(), quiet=True)


def test_missing_data_and_encoder_are_said(tmp_path: Path) -> None:
    for data, message in (("nowhere", "no such data"), ("synthetic:huge", "no synthetic data"), ("", "names no data")):
        with pytest.raises(GeniusError, match=message):
            train(small_config(tmp_path / "x", data=data), quiet=True)
    (tmp_path / "pairs.jsonl").write_text('{"query_text": "a", "text": "b", "target": "text"}\n')
    with pytest.raises(GeniusError, match="encoder_uri"):
        train(small_config(tmp_path / "y", data=str(tmp_path / "pairs.jsonl")), quiet=True)


def test_tiny_in_full_from_the_command_line(tmp_path: Path) -> None:
    """The built-in config, whole: it learns to write IDs of items it must find."""
    torch.set_num_threads(1)  # waiting threads spin where the machine is busy
    result = CliRunner().invoke(app, ["train", "builtin:tiny", "--output", str(tmp_path / "tiny"), "--json"])
    assert result.exit_code == 0, result.output
    import json

    metrics = json.loads(result.stdout)["metrics"]
    assert metrics["generator"]["dense_hit@5"] > 0.95
    assert metrics["generator"]["genius_r_hit@5"] > 0.9
    assert metrics["generator"]["genius_hit@5"] > 0.9  # by log p alone, of 1,600 items: chance is under 0.01


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        ([24_000, 24_000, 24_000], (3, 2048, *(4096,) * 7)),  # the fashion pool
        ([1_000_000, 0, 0], (3, 4096, *(4096,) * 7)),
        ([300, 300, 0], (3, 16, *(32,) * 7)),
        ([5, 0, 0], (3, *(16,) * 8)),
    ],
)
def test_codebook_sizes_fit_the_pool(counts: list[int], sizes: tuple[int, ...]) -> None:
    assert choose_level_sizes(counts) == sizes


def test_the_recommended_recipe_follows_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """builtin:default, only shorter: width and code sizes come from the data."""
    few = {"quantizer.steps": 6, "generator.steps": 6, "quantizer.batch": 32, "generator.batch": 16, "model.decoder": "tiny"}
    config = read_train_config("builtin:default", {**few, "output": str(tmp_path / "model")})
    data = small_data()
    asked = []
    fitted = ResidualQuantizer.initialise
    monkeypatch.setattr(ResidualQuantizer, "initialise", lambda *given: (asked.append(given[-2:]), fitted(*given))[1])
    trained = train(config, data, quiet=True)
    assert trained.model.config.width == data.pool.width and trained.heads is None
    quantizer = trained.model.config.quantizer
    assert (quantizer.modality_codebooks_from, quantizer.encode_sweeps, quantizer.settled) == (1, 3, 3)
    assert asked == [(0, 0), (3, 8)]  # only the last codebooks are fitted together, with points between few items
    found = Genius.from_pretrained(tmp_path / "model").encode(data.pool)
    assert found.shape == (len(data.pool), 9)


def test_sizes_are_chosen_where_the_config_names_none(tmp_path: Path) -> None:
    config = small_config(tmp_path / "model")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, level_sizes=()))
    trained = train(config, small_data(), quiet=True)
    counts = torch.bincount(small_data().pool.modality, minlength=3).tolist()
    assert trained.model.config.quantizer.level_sizes == choose_level_sizes(counts)
