"""The programs that measure on a GPU, tried at sizes for two cores: what they count and that they run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from genius.data.features import FeatureSet
from genius.train.config import RECIPES, RecipeName, read_train_config
from lab.mbeir import extract_rate, memory, two_ranks


def test_operations_of_clip_large_are_what_is_known_of_it() -> None:
    """ViT-L/14 at 224 pixels takes 81 billion multiplications with their additions (162 billion operations)."""
    assert extract_rate.picture_operations(extract_rate.LARGE) / 1e9 == pytest.approx(162, rel=0.03)
    text = extract_rate.text_operations(extract_rate.LARGE, 77) / 1e9
    assert text == pytest.approx(2 * 85e6 * 77 / 1e9, rel=0.05)  # 85 million weights in the layers, a product each


def test_the_rate_is_of_our_own_extraction(tmp_path: Path) -> None:
    found = extract_rate.measure(
        tmp_path / "rate.json", extract_rate.SMALL, pictures=24, texts=32, batch=8, workers=0, seconds=0.01
    )
    lines = {line["what"]: line for line in found["lines"]}
    assert len(lines) == 4 and all(line["rate"] > 0 for line in lines.values())
    line = lines["pictures/s, tower alone"]
    used = line["rate"] * found["operations"]["pictures"]
    assert line["share_of_measured_product"] == pytest.approx(used / found["measured_product"], rel=1e-3, abs=1e-4)
    assert json.loads((tmp_path / "rate.json").read_text(encoding="utf-8")) == found


def test_memory_and_time_of_every_part(tmp_path: Path) -> None:
    size = memory.Size(candidates=700, queries=200, width=16)
    memory.write_features(tmp_path / "features", size, chunk=128)
    data = FeatureSet.load(tmp_path / "features")
    assert (len(data.pool), len(data.queries)) == (700, 200) and data.pool.image.dtype == torch.float16
    assert torch.bincount(data.pool.modality).tolist() == [234, 233, 233]
    assert torch.equal(data.pairs[:, 1], memory.answer(torch.arange(200), size))
    small = {
        "model.width": 16,
        "model.projection": 16,
        "model.hidden": 16,
        "model.decoder": "nano",
        "model.level_sizes": [3, 8, 8],
    }
    batches = {f"{stage}.batch": 32 for stage in ("encoder", "quantizer", "generator")}
    config = read_train_config("builtin:paper", {**small, **batches, "encoder.train": "heads"})
    run = memory.Run(tmp_path / "features", config, memory.Meter(tmp_path / "out.json", {"device": "CPU"}, math.inf), steps=4)
    run.all(asked=8)
    body = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    parts = {part["part"]: part for part in body["parts"]}
    assert len(parts) == 9 and all(part["seconds"] >= 0 and part["host_gib"] > 0 for part in parts.values())
    assert parts["stage 2, fusion and codebooks"]["steps_in_all"] == round(20 * 200 / 32)  # the paper's epochs
    assert parts["stage 3, decoder"]["steps_in_all"] == round(30 * 200 / 32)
    late = memory.Run(tmp_path / "features", config, memory.Meter(tmp_path / "late.json", {}, 0.0), steps=4)
    with pytest.raises(memory.TimeUp, match="open the features"):  # no part begins when time is up
        late.all(asked=8)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("kind", two_ranks.KINDS)
def test_two_ranks_train_what_the_recipes_have(kind: RecipeName, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, kind, RECIPES[kind])  # put back afterwards
    config = two_ranks.config_of(kind, Path("out"), small, "cpu")
    assert config.model.recipe == kind and config.model.constants.quantizer.clip == 0 and config.run.precision == "fp32"
