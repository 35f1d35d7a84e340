"""What both contrastive stages add to the paper's loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from train_fixtures import small_config, small_data

from genius import ranking
from genius.train.quantizer import QuantizerStage


def a_stage(tmp_path: Path, weight: float) -> QuantizerStage:
    config = small_config(tmp_path, model__width=16, quantizer__modality_weight=weight, quantizer__hard_negatives=0)
    return QuantizerStage(small_data(), None, config.model, config.quantizer, 0, torch.device("cpu"))


def test_modality_loss_wants_the_direction_of_the_answer(tmp_path: Path) -> None:
    stage = a_stage(tmp_path, 1.0)
    modality = torch.tensor([0, 1, 2])
    right = F.normalize(stage.modality_means.detach(), dim=1)[modality]
    wrong = right.roll(1, 0)
    assert stage.modality_loss(right, right, modality) < stage.modality_loss(wrong, right, modality)
    assert stage.modality_loss(right, right, modality) < stage.modality_loss(right, wrong, modality)


def test_the_weight_counts_and_zero_leaves_the_paper(tmp_path: Path) -> None:
    losses = {}
    for weight in (0.0, 2.0):
        stage = a_stage(tmp_path / str(weight), weight)
        losses[weight], logs = stage(stage.batch(0, 0, 0, 1))
        assert ("modality" in logs) == (weight > 0)
        if weight:
            assert torch.allclose(losses[weight], losses[0.0] + weight * logs["modality"], atol=1e-5)
    assert not hasattr(a_stage(tmp_path / "none", 0.0), "modality_means")


def test_exhaustive_ranks_do_not_depend_on_how_much_is_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    queries, pool = torch.randn(7, 4, generator=random), torch.randn(30, 4, generator=random)
    whole = ranking.nearest_rows(queries, pool, 5)
    monkeypatch.setattr(ranking, "PRODUCTS", 70)  # two queries at a time
    assert torch.equal(ranking.nearest_rows(queries, pool, 5), whole)
    assert torch.equal(whole, (queries @ pool.T).argsort(dim=1, descending=True)[:, :5])


def test_codes_are_ranked_as_they_will_be_searched(tmp_path: Path) -> None:
    """`codes_weight` adds, so many times, the contrast of queries and their targets' unit reconstructions."""
    plain, ranked = (
        QuantizerStage(small_data(), None, config.model, config.quantizer, 0, torch.device("cpu")).eval()
        for config in (
            small_config(tmp_path, model__width=16, quantizer__hard_negatives=0, quantizer__codes_weight=weight)
            for weight in (0.0, 2.0)
        )
    )
    for stage in (plain, ranked):
        stage.initialise()
        stage.step = stage.first_quantized
    batch = ranked.batch(0, 0, 0, 1)
    z = torch.cat([ranked.embed(ranked.queries[batch.rows]), ranked.embed(ranked.pool[batch.targets])])
    size, config = len(batch.rows), ranked.config
    kinds = ranked.pool[batch.targets].modality
    rebuilt = F.normalize(ranked.quantizer.decode(ranked.quantizer.encode(z[size:], kinds)), dim=1)
    expected, _ = ranked.contrast(batch, z[:size], rebuilt, None, temperature=config.temperature, symmetric=False)
    with torch.no_grad():
        extra = ranked.losses(z, batch)[0] - plain.losses(z, batch)[0]
    assert torch.allclose(extra, 2 * expected, rtol=1e-4)
