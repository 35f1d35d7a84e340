"""How many files one has to open to read what a training step does: those whose functions run in it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from train_fixtures import small_config, small_data

import genius
from genius.train.encoder import HeadsStage
from genius.train.generator import GeneratorStage
from genius.train.handover import freeze
from genius.train.holdout import split
from genius.train.journal import Journal
from genius.train.loop import Runtime, Stage, make_optimizer, take_step
from genius.train.quantizer import QuantizerStage

ROOT = Path(genius.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
CPU = torch.device("cpu")


def stages(tmp_path: Path) -> dict[str, tuple[Stage, Any]]:
    config, data = small_config(tmp_path, model__width=16, encoder__train="heads"), small_data()
    first = HeadsStage(data, None, 16, config.encoder, 0, CPU)
    second = QuantizerStage(data, None, config.model, config.quantizer, 0, CPU)
    second.initialise()
    second.first_quantized = 0
    frozen, _ = freeze(second, split(data, 0.0, 0), config)
    third = GeneratorStage(data, frozen, None, second.quantizer, config.model, config.generator, 0)
    return {"encoder": (first, config.encoder), "quantizer": (second, config.quantizer), "generator": (third, config.generator)}


@pytest.mark.parametrize("name", ["encoder", "quantizer", "generator"])
def test_a_training_step_is_read_in_few_files(name: str, tmp_path: Path) -> None:
    """At most nine, and the page that leads through them names each."""
    stage, config = stages(tmp_path)[name]
    runtime = Runtime(CPU, Journal(tmp_path, quiet=True), 0, small_config(tmp_path).run)
    stage.train()
    ran: set[str] = set()

    def seen(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            ran.add(str(path.relative_to(ROOT)))

    optimizer = make_optimizer(stage, config)
    sys.setprofile(seen)
    try:
        take_step(stage, stage, optimizer, config, runtime, 5)  # no step at which hard negatives are looked up
    finally:
        sys.setprofile(None)
    assert len(ran) <= 9, sorted(ran)
    walk = PAGE.read_text(encoding="utf-8").partition("## A training step")[2].partition("\n## ")[0]
    assert [file for file in ran if f"`{file}`" not in walk] == []
