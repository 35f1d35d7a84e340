"""What the stages do, on data small enough to see it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from train_fixtures import small_config, small_data

from genius.model.genius import Genius
from genius.model.quantizer import QuantizerConfig, ResidualQuantizer
from genius.train.config import GeneratorStageConfig
from genius.train.generator import GeneratorStage, freeze
from genius.train.indexing import Indexing
from genius.train.quantizer import QuantizerStage
from genius.train.run import train


@pytest.fixture(scope="module")
def quantizer() -> ResidualQuantizer:
    torch.manual_seed(0)
    made = ResidualQuantizer(QuantizerConfig(width=16, level_sizes=(3, 8, 8)))
    z = torch.nn.functional.normalize(torch.randn(200, 16), dim=1)
    made.initialise(z, torch.arange(200) % 3)
    return made


def make_indexing(quantizer: ResidualQuantizer, **changes: float) -> tuple[Indexing, torch.Tensor, torch.Tensor]:
    z = torch.nn.functional.normalize(torch.randn(90, 16), dim=1)
    modality = torch.arange(90) % 3
    offsets = torch.randn(30, 16)
    config = GeneratorStageConfig(**{"neighbours": 4, **changes})  # type: ignore[arg-type]
    made = Indexing(z, modality, quantizer.encode(z, modality), offsets, torch.zeros(30, dtype=torch.long), quantizer, config)
    return made, z, modality


def test_indexing_pairs_lead_to_the_items_own_id(quantizer: ResidualQuantizer) -> None:
    indexing, z, modality = make_indexing(quantizer, shift=0.0)
    inputs, codes = indexing.items(50)
    nearest = (inputs @ z.T).argmax(1)  # not shifted: the input is the item
    assert torch.equal(codes, quantizer.encode(z, modality)[nearest])


def test_virtual_items_carry_the_id_the_quantizer_would_give(quantizer: ResidualQuantizer) -> None:
    indexing, z, _ = make_indexing(quantizer, shift=0.0, virtual_noise=0.2)
    inputs, codes = indexing.virtual(50)
    assert torch.equal(codes, quantizer.encode(inputs, codes[:, 0]))
    assert ((inputs @ z.T).max(1).values < 1 - 1e-4).float().mean() > 0.5  # most are no item at all


def test_shifts_stay_in_length_and_take_offsets_of_their_modality(quantizer: ResidualQuantizer) -> None:
    indexing, z, _ = make_indexing(quantizer, shift=1.2, real_offsets=1.0)
    points = z[:30]
    moved = indexing.shift(points, torch.zeros(30, dtype=torch.long))
    assert torch.allclose(moved.norm(dim=1), torch.ones(30), atol=1e-5)
    steps = torch.nn.functional.normalize(moved * (moved * points).sum(1, keepdim=True).sign() - points, dim=1)
    assert torch.isfinite(steps).all()
    # along a real offset d, moved is in the plane of point and some d: the part of moved outside that plane vanishes
    residue = []
    for m, p in zip(moved, points, strict=True):
        planes = torch.stack([torch.linalg.lstsq(torch.stack([p, d], 1), m[:, None]).solution[:, 0] for d in indexing.offsets])
        rebuilt = planes[:, :1] * p + planes[:, 1:] * indexing.offsets
        residue.append((rebuilt - m).norm(dim=1).min())
    assert torch.stack(residue).max() < 1e-4
    none = indexing.shift(points, torch.ones(30, dtype=torch.long))  # no offsets lead to modality 1: random directions
    assert torch.isfinite(none).all()


def test_all_stages_train_and_the_model_loads_again(tmp_path: Path) -> None:
    trained = train(small_config(tmp_path / "model", tensorboard=True), small_data(), quiet=True)
    assert list((tmp_path / "model" / "training" / "tensorboard").glob("events*"))
    again = Genius.from_pretrained(str(tmp_path / "model"))
    assert again.fingerprint() == trained.model.fingerprint()
    codes = again.encode(trained.data.pool)
    assert torch.equal(codes[:, 0], trained.data.pool.modality)  # the first code is the modality, always
    assert {"dense_hit@5", "genius_hit@5", "genius_r_hit@5"} <= trained.metrics["generator"].keys()
    assert {"level1_usage", "level1_perplexity", "level2_collisions"} <= trained.metrics["quantizer"].keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"model__modality_code": "none"},
        {"model__modality_code": "classifier"},
        {"model__modality_code": "nearest", "model__published_revival": True, "quantizer__all_positives": False},
        {"model__shared": True},
        {"model__encode_beam": 3},
        {
            "generator__augmentation": "sqrt-per-dimension",
            "generator__codebook_scale": 100.0,
            "model__own_books_from": 0,
            "model__normalizer": "vocabulary",
        },
        {"generator__distill_weight": 0.5, "generator__ranking_weight": 0.5, "generator__modality_dropout": 0.5},
        {
            "quantizer__contrastive_weight": 0.0,
            "quantizer__reduction": "sum",
            "quantizer__rq_weight": 1.0,
            "quantizer__mse_weight": 1.0,
        },
        {
            "generator__indexing": 0.0,
            "generator__virtual": 0.0,
            "generator__soft_positives": False,
            "generator__label_smoothing": 0.1,
        },
        {"encoder__noise": 0.2, "generator__accumulate": 2},
    ],
)
def test_every_switch_trains(changes: dict[str, object], tmp_path: Path) -> None:
    short = {"encoder__steps": 2, "quantizer__steps": 4, "generator__steps": 3}
    trained = train(small_config(tmp_path / "model", **short, **changes), small_data(), quiet=True)
    assert all(torch.isfinite(p).all() for p in trained.model.parameters())


def test_quantizer_training_improves_the_reconstruction(tmp_path: Path) -> None:
    config = small_config(tmp_path, encoder__train="none", model__width=16, quantizer__steps=60, quantizer__quantize_from=0.5)
    data = small_data()
    stage = QuantizerStage(data, None, config.model, config.quantizer, 0, torch.device("cpu"))
    z = stage.embed(data.pool)
    before = (stage.quantizer.decode(stage.quantizer.encode(z, data.pool.modality)) - z).square().sum(1).mean()
    stage.initialise()
    after = (stage.quantizer.decode(stage.quantizer.encode(z, data.pool.modality)) - z).square().sum(1).mean()
    assert after < 0.5 * before


def test_the_generator_reads_frozen_codes(tmp_path: Path) -> None:
    config = small_config(tmp_path, encoder__train="none", model__width=16)
    data = small_data()
    second = QuantizerStage(data, None, config.model, config.quantizer, 0, torch.device("cpu"))
    second.initialise()
    frozen = freeze(second.embed, data, second.quantizer, dropout=True)
    stage = GeneratorStage(data, None, frozen, None, second.quantizer, config.model, config.generator, 0)
    assert not [name for name, _ in stage.named_parameters() if "quantizer" in name]
    batch = stage.batch(0, 0, 0, 1)
    rows = config.generator.batch * (1 + config.generator.indexing + config.generator.virtual)
    assert batch.z.shape == (round(rows), 16) and batch.codes.shape[0] == batch.z.shape[0]
    assert torch.equal(batch.weights[:, 0], torch.ones(len(batch.z)))
