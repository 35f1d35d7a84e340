"""Training that goes wrong says so while it runs: a quantizer that collapses, a decoder that stays at chance."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from train_fixtures import small_config, small_data

from genius.data.features import FeatureSet
from genius.features import Features
from genius.model.config import QuantizerConfig
from genius.model.quantizer import ResidualQuantizer
from genius.train import train
from genius.train.quantizer import collapsed_levels


def warnings_of(output: Path) -> list[str]:
    lines = (output / "training" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry["warning"] for entry in map(json.loads, lines) if "warning" in entry]


def test_a_level_that_uses_a_tenth_of_its_codes_has_collapsed() -> None:
    quantizer = ResidualQuantizer(QuantizerConfig(8, (3, 100, 100)))
    modality = torch.arange(3000) % 3
    healthy = torch.stack([modality, torch.arange(3000) % 100, torch.arange(3000) % 100], 1)
    assert collapsed_levels(quantizer, healthy) == {}
    healthy[:, 2] %= 11
    assert collapsed_levels(quantizer, healthy) == {}  # 11 of 100
    healthy[:, 2] %= 9
    line = collapsed_levels(quantizer, healthy)["collapse"]
    assert "level 2 uses 9 of 100 codes" in line and "Try" in line and "\n" not in line


def test_few_items_are_no_collapse() -> None:
    """Five items cannot use more than five codes."""
    quantizer = ResidualQuantizer(QuantizerConfig(8, (3, 100)))
    assert collapsed_levels(quantizer, torch.stack([torch.zeros(5), torch.arange(5)], 1).long()) == {}


def all_alike(features: Features) -> Features:
    image = torch.where(features.image_mask[:, None], torch.ones_like(features.image), features.image)
    text = torch.where(features.text_mask[:, None], torch.ones_like(features.text), features.text)
    return dataclasses.replace(features, image=image, text=text)


def test_a_collapsed_quantizer_is_reported_while_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = small_data()
    alike: FeatureSet = dataclasses.replace(data, pool=all_alike(data.pool))
    sizes = {"model__level_sizes": [3, 40, 40], "generator__steps": 2, "encoder__steps": 2}
    train(small_config(tmp_path, **sizes), alike)
    assert "quantizer has collapsed: level 1" in warnings_of(tmp_path)[0]
    shown = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: quantizer")]
    assert shown and "Try" in shown[0]


def test_a_decoder_at_chance_is_reported_once_while_training(tmp_path: Path) -> None:
    paper = {"model__recipe": "paper", "generator__inputs": "linear", "encoder__steps": 2}
    train(small_config(tmp_path / "stuck", **paper, generator__lr=1e-12, generator__steps=20), small_data(), quiet=True)
    found = [line for line in warnings_of(tmp_path / "stuck") if "at chance" in line]
    assert len(found) == 1 and "guessing is 2.08" in found[0]  # ln 8


def test_a_run_that_learns_reports_nothing(tmp_path: Path) -> None:
    train(small_config(tmp_path / "learns", generator__steps=20), small_data(), quiet=True)
    assert warnings_of(tmp_path / "learns") == []
