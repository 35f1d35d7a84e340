"""The ablation without L_cl drops L_cl, and nothing that is ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from train_fixtures import small_config, small_data

from genius.train.config import read_train_config
from genius.train.quantizer import QuantizerStage


def test_without_l_cl_the_modality_loss_still_teaches(tmp_path: Path) -> None:
    config = small_config(tmp_path, model__width=16, quantizer__contrastive_weight=0.0, quantizer__modality_weight=2.0)
    stage = QuantizerStage(small_data(), None, config.model, config.quantizer, 0, torch.device("cpu"))
    batch = stage.batch(0, 0, 0, 1)
    assert stage.step < stage.first_quantized
    loss, logs = stage(batch)
    assert logs["cl"] > 0  # known, and not in the sum
    assert torch.allclose(loss, 2.0 * logs["modality"])
    loss.backward()
    assert stage.modality_means.grad is not None and stage.modality_means.grad.abs().sum() > 0
    assert stage.fusion.mix_output.weight.grad is not None and stage.fusion.mix_output.weight.grad.abs().sum() > 0
    stage.initialise()
    stage.step = stage.first_quantized
    loss, logs = stage.eval()(batch)
    rest = config.quantizer.rq_weight * logs["rq"] + config.quantizer.mse_weight * logs["mse"]
    assert config.quantizer.codes_weight > 0 and "codes" not in logs
    assert torch.allclose(loss - rest, 2.0 * logs["modality"], atol=1e-4)


@pytest.mark.parametrize(("base", "modality"), [("builtin:tiny", 1.0), ("builtin:paper", 0.0)])
def test_the_row_without_l_cl_changes_nothing_else(base: str, modality: float) -> None:
    whole, without = read_train_config(base), read_train_config(base, {"quantizer.contrastive_weight": 0.0})
    gone = {name: getattr(without.quantizer, name) for name in ("temperature", "hard_negatives", "codes_weight")}
    assert gone == {"temperature": 0.05, "hard_negatives": 8, "codes_weight": 1.0}  # the defaults: they have no effect now
    assert without.quantizer == replace(whole.quantizer, contrastive_weight=0.0, **gone)  # type: ignore[arg-type]
    stage = QuantizerStage(
        small_data(), None, replace(without.model, width=16, level_sizes=(3, 8)), without.quantizer, 0, torch.device("cpu")
    )
    assert not stage.mined_at
    assert without.quantizer.modality_weight == modality
