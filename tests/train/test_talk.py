"""What training says to people: what it is worth, what to do next; and what Ctrl-C leaves."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from train_fixtures import SMALL, small_config, small_data
from typer.testing import CliRunner

from genius.cli import app
from genius.train import journal, train
from genius.train.config import builtin_about, builtin_names, read_train_config
from genius.train.generator import GeneratorStage
from genius.train.journal import hit_rate_table, next_command, verdict
from genius.train.loop import latest_checkpoint
from lab.config_fields import fields_page

PAGE = Path(__file__).parents[2] / "docs" / "training-fields.md"


def figures(dense: float, genius: float, again: float) -> dict[str, float]:
    rates = {"dense": dense, "genius": genius, "genius_r": again}
    return {f"{name}_hit@{k}": rate for name, rate in rates.items() for k in (1, 5, 10)}


@pytest.mark.parametrize(
    ("values", "train", "said"),
    [
        (
            figures(0.25, 0.20, 0.24),
            "none",
            "the encoder is the limit: exhaustive search finds only 25% in the top 5; try heads",
        ),
        (figures(0.25, 0.20, 0.24), "heads", "try towers"),
        (figures(0.80, 0.40, 0.60), "none", "the decoder is the limit: it keeps 75%"),
        (figures(0.80, 0.70, 0.79), "none", "the codes keep what the vectors find"),
        (figures(0.0, 0.0, 0.0), "none", "finds only 0%"),
    ],
)
def test_the_verdict_names_what_limits(values: dict[str, float], train: str, said: str) -> None:
    assert said in (verdict(values, train) or "")


def test_the_table_shows_shares_of_dense() -> None:
    lines = hit_rate_table(figures(0.5, 0.4, 0.45))
    assert len(lines) == 4 and "0.80" in lines[2] and "0.90" in lines[3] and "50.0 %" in lines[1]
    assert hit_rate_table({}) == [] and verdict({}, "none") is None  # nothing was held out


def test_the_command_ends_with_a_table_and_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "EVERY", 0.0)
    changes = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    done = CliRunner().invoke(app, ["train", "builtin:tiny", "-o", str(tmp_path / "m"), *changes])
    assert done.exit_code == 0, done.output
    assert "held-out (n = " in done.output and "GENIUS^R" in done.output and "is the limit" in done.output
    assert f"next: genius eval {tmp_path / 'm'}" in done.output
    for stage in ("encoder", "quantizer", "generator"):  # a line now and then
        assert f"{stage}: step 10 of 10" in done.output, done.output


def test_next_command_of_a_model_with_an_encoder() -> None:
    assert next_command("out", True, "pairs.jsonl") == "genius index FILES -o my.genius --model out"


def test_every_built_in_config_has_a_sentence() -> None:
    said = builtin_about()
    assert set(said) == {f"builtin:{name}" for name in builtin_names()} >= {"builtin:small"}
    assert all(len(line) > 20 and not line.endswith(":") for line in said.values())
    listed = CliRunner().invoke(app, ["train", "--list"]).output
    assert all(name in listed and line in listed for name, line in said.items())


def test_every_field_is_documented() -> None:
    assert PAGE.read_text(encoding="utf-8") == fields_page(), "python -m lab.config_fields > docs/training-fields.md"
    rows = [line for line in fields_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 40 and not [row for row in rows if row.endswith("|  |")]


def test_the_small_recipe_trains_pairs(tmp_path: Path) -> None:
    """Its sizes on little data and few steps."""
    few = {"quantizer.steps": 2, "generator.steps": 2, "quantizer.kmeans_iterations": 1}
    config = read_train_config("builtin:small", {"output": str(tmp_path), "model.level_sizes": [3, 8, 8], "device": "cpu", **few})
    assert config.generator.batch == 128 and config.model.decoder == "tiny"
    trained = train(config, small_data(), quiet=True)
    assert "dense_hit@5" in trained.metrics["generator"]


def test_after_ctrl_c_the_run_goes_on_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    data = small_data()
    whole = train(small_config(tmp_path / "whole"), data, quiet=True)
    original, calls = GeneratorStage.forward, {"n": 0}

    def pressed(self: GeneratorStage, batch: object) -> object:
        calls["n"] += 1
        if calls["n"] == 4:
            signal.raise_signal(signal.SIGINT)  # in the middle of a step
        return original(self, batch)  # type: ignore[arg-type]

    broken = small_config(tmp_path / "broken", run__checkpoint_steps=2)
    with monkeypatch.context() as patch:
        patch.setattr(GeneratorStage, "forward", pressed)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts this in the background has it ignored
        with pytest.raises(KeyboardInterrupt):
            train(broken, data, quiet=True)
    kept = latest_checkpoint(tmp_path / "broken" / "training" / "generator")
    assert kept is not None and kept.name.endswith("2")
    again = train(broken, data, quiet=True)
    assert again.model.fingerprint() == whole.model.fingerprint()
