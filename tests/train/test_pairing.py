"""What both contrastive stages add to the paper's loss, and how the search settings are chosen."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from train_fixtures import small_config, small_data

from genius.search import SearchParams
from genius.train import validate
from genius.train.calibrate import GEOMETRY, WEIGHTS, WORTH, Calibration, budgets
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


@pytest.mark.parametrize(("gain", "chosen"), [(WORTH / 2, 0.0), (2 * WORTH, GEOMETRY[1])])
def test_geometry_must_be_worth_its_cost(gain: float, chosen: float, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Calibration.__new__(Calibration)
    trial.budget, trial.pool, trial.weight = 2000, torch.zeros(1, 1), 0.0
    monkeypatch.setattr(Calibration, "rows", lambda _, params: params.geometry)
    monkeypatch.setattr(Calibration, "hit", lambda _, geometry: 0.5 + gain * (geometry > 0))
    monkeypatch.setattr(Calibration, "kept", lambda _, geometry: 0.9 + gain * (geometry > 0))
    assert trial.geometry()[0] == chosen


@pytest.mark.parametrize(
    ("items", "enough", "chosen"), [(10_000, 400, 400), (10_000, 800, 800), (10_000, 2500, 2500), (10**6, 1, 2500)]
)
def test_no_more_items_are_looked_at_than_help(items: int, enough: int, chosen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Calibration.__new__(Calibration)
    trial.budgets, trial.pool, trial.weight = budgets(items), torch.zeros(1, 1), 0.5
    trial.budget = trial.budgets[0]

    def rows(_: Calibration, params: SearchParams) -> int:
        assert params.geometry == 0.5
        return params.rerank

    monkeypatch.setattr(Calibration, "rows", rows)
    monkeypatch.setattr(Calibration, "hit", lambda _, rerank: 0.5 if rerank >= enough else 0.49)
    monkeypatch.setattr(Calibration, "kept", lambda _, rerank: 1.0)
    assert trial.rerank()[0] == chosen


def test_what_is_kept_is_of_the_wanted_kind() -> None:
    """A query for a text does not miss the image that dense search would rank first."""
    trial = Calibration.__new__(Calibration)
    trial.pool = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]]), dim=1)
    trial.kinds, trial.best = torch.tensor([0, 1, 1, 0]), None
    trial.asked = torch.tensor([[1.0, 0.0]])
    trial.data = SimpleNamespace(positives=lambda: [[1]])  # type: ignore[assignment]
    assert trial.kept(torch.tensor([[1, 2, -1, -1, -1]])) == 1.0
    assert trial.best is not None and trial.best.tolist() == [[1, 2, -1, -1, -1]]
    assert trial.kept(torch.tensor([[0, 3, 2, -1, -1]])) == 0.5
    trial.kinds, trial.best = None, None
    assert trial.kept(torch.tensor([[0, 1, 2, -1, -1]])) == 0.75


def test_of_equally_good_finishes_the_middle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Calibration.__new__(Calibration)
    trial.leaves, trial.weight = 2000, 0.5

    def rows(_: Calibration, params: SearchParams) -> float:
        assert params.geometry == 0.5  # what was chosen for the beams holds here too
        return params.finish

    monkeypatch.setattr(Calibration, "rows", rows)
    monkeypatch.setattr(Calibration, "hit", lambda _, finish: float(finish >= WEIGHTS[1]))
    assert trial.finish()[0] == WEIGHTS[1:][(len(WEIGHTS) - 1) // 2]


def test_exhaustive_ranks_do_not_depend_on_how_much_is_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    queries, pool = torch.randn(7, 4, generator=random), torch.randn(30, 4, generator=random)
    whole = validate.nearest_rows(queries, pool, 5)
    monkeypatch.setattr(validate, "SCORES", 70)  # two queries at a time
    assert torch.equal(validate.nearest_rows(queries, pool, 5), whole)
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
