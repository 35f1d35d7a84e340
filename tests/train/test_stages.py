"""What the stages do and what they learn, on data small enough to see it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from train_fixtures import change_recipe, small_config, small_data

from genius.features import Features
from genius.model.genius import Genius
from genius.train import train
from genius.train.config import QuantizerStageConfig, RunConfig, StageConfig, TrainConfig
from genius.train.encoder import HeadsStage
from genius.train.generator import CORRECTION_PENALTY, Augmentation, Frozen, GeneratorStage, ValidationSet, query_offsets
from genius.train.handover import freeze
from genius.train.holdout import Split, split
from genius.train.journal import Journal
from genius.train.loop import Runtime, Stage, make_optimizer, run_stage
from genius.train.metrics import mean_hits
from genius.train.quantizer import QuantizerStage

CPU = torch.device("cpu")
PAPER = {"generator__inputs": "linear", "model__recipe": "paper"}


def learn(stage: Stage, config: StageConfig, tmp_path: Path) -> None:
    run = RunConfig(patience=0, log_every=1)
    runtime = Runtime(CPU, Journal(tmp_path / "log", quiet=True), 0, run)
    run_stage(stage, config, runtime, tmp_path / "checkpoint")
    stage.eval()


def a_quantizer(config: TrainConfig) -> QuantizerStage:
    torch.manual_seed(0)
    return QuantizerStage(small_data(), None, config.model, config.quantizer, 0, CPU)


def test_all_stages_train_and_the_model_loads_again(tmp_path: Path) -> None:
    trained = train(small_config(tmp_path / "model"), small_data(), quiet=True)
    again = Genius.from_pretrained(str(tmp_path / "model"))
    assert again.fingerprint() == trained.model.fingerprint()
    codes = again.encode(trained.data.pool)
    assert torch.equal(codes[:, 0], trained.data.pool.modality)  # the first code is the modality, always
    metrics = trained.metrics["generator"]
    assert {"dense_hit@5", "genius_hit@5", "genius_r_hit@5", "validation_ce", "code1_right"} <= metrics.keys()
    assert {"level1_usage", "level1_perplexity", "level2_collisions"} <= trained.metrics["quantizer"].keys()


@pytest.mark.parametrize(
    "changes",
    [
        {**PAPER, "model__modality_code": "none"},
        {"model__modality_code": "classifier"},
        {"model__recipe": "published", "model__modality_code": "nearest", "generator__inputs": "sqrt-per-dimension"},
        {**PAPER, "model__shared": True, "generator__inputs": "queries"},
        {"quantizer__contrastive_weight": 0.0, "quantizer__rq_weight": 1.0, "quantizer__mse_weight": 1.0},
        {"run__accumulate": 2, "held_out": 0.0},
    ],
)
def test_every_switch_trains(changes: dict[str, object], tmp_path: Path) -> None:
    short = {"encoder__steps": 2, "quantizer__steps": 4, "generator__steps": 3}
    trained = train(small_config(tmp_path / "model", **short, **changes), small_data(), quiet=True)
    assert all(torch.isfinite(p).all() for p in trained.model.network.parameters())


def test_heads_learn_to_find_answers(tmp_path: Path) -> None:
    data = small_data()
    config = small_config(tmp_path, encoder__steps=40, encoder__dropout=0.0)
    stage = HeadsStage(data, None, 24, config.encoder, 0, CPU)
    before = mean_hits(stage.embed(data.queries), stage.embed(data.pool), data)
    learn(stage, config.encoder, tmp_path)
    assert mean_hits(stage.embed(data.queries), stage.embed(data.pool), data) > before + 0.1


def test_codebooks_follow_the_vectors_that_they_stand_for(tmp_path: Path) -> None:
    """Without the refit at the end, moving averages alone must bring the codes nearer to the vectors."""
    changes = {"steps": 30, "quantize_from": 0.0, "kmeans_iterations": 0}
    change_recipe(refit=False)
    config = small_config(tmp_path, model__width=16, **{f"quantizer__{name}": value for name, value in changes.items()})
    stage = a_quantizer(config)

    def error(books: dict[str, torch.Tensor]) -> float:
        stage.quantizer.load_state_dict(books)
        z = stage.embed(stage.pool)
        return (stage.quantizer.decode(stage.quantizer.encode(z, stage.pool.modality)) - z).square().sum(1).mean().item()

    stage.initialise()
    start = {name: tensor.clone() for name, tensor in stage.quantizer.state_dict().items()}
    learn(stage, config.quantizer, tmp_path)
    end = {name: tensor.clone() for name, tensor in stage.quantizer.state_dict().items()}
    assert not torch.allclose(start["codes_1"], end["codes_1"])
    assert error(end) < 0.9 * error(start)  # of the same, trained fusion


def test_weight_decay_is_for_matrices_alone(tmp_path: Path) -> None:
    config = small_config(tmp_path, model__width=16)
    second = a_quantizer(config)
    second.initialise()
    frozen, _ = freeze(second, split(small_data(), 0.0, 0), config)
    stage = GeneratorStage(small_data(), frozen, None, second.quantizer, config.model, config.generator, 0)
    decayed, plain = make_optimizer(stage, config.generator).param_groups
    assert decayed["weight_decay"] == config.generator.weight_decay > 0 and plain["weight_decay"] == 0
    names = {id(p): name for name, p in stage.named_parameters()}
    free = {names[id(p)] for p in plain["params"]}
    assert all(p.ndim >= 2 for p in decayed["params"]) and "generator.position_bias.weight" in free
    assert {name for name in names.values() if "norm" in name or name.endswith("bias")} <= free


def a_decoder(tmp_path: Path, trained: bool = True, **changes: object) -> tuple[GeneratorStage, ValidationSet]:
    """A short stage 3 on honest offsets, and honest questions to judge it by."""
    chosen = {"generator__steps": 60, "generator__batch": 64, **changes}
    config = small_config(tmp_path, model__width=16, **chosen)
    data = small_data()
    second = a_quantizer(config)
    second.initialise(pool_only=True)
    z = second.embed(data.pool)
    frozen = Frozen(z, data.pool.modality, second.quantizer.encode(z, data.pool.modality), second.embed(data.queries))
    frozen.offsets = query_offsets(frozen.queries, data.tasks, data.pairs, z, data.pool.modality, 0)  # type: ignore[arg-type]
    honest = ValidationSet(data, frozen.queries, z, frozen.codes)  # type: ignore[arg-type]
    stage = GeneratorStage(data, frozen, honest, second.quantizer, config.model, config.generator, 0)
    if trained:
        learn(stage, config.generator, tmp_path)
    return stage, honest


def test_a_decoder_within_two_percent_of_guessing_is_at_chance(tmp_path: Path) -> None:
    stage, _ = a_decoder(tmp_path, trained=False)
    chance = math.log(8)  # both levels after the modality have 8 codes
    assert "guessing is 2.08" in stage.problems(0.5, {"nats": 0.99 * chance})["chance"]
    assert stage.problems(0.5, {"nats": 0.95 * chance}) == {}
    assert stage.problems(0.2, {"nats": 0.99 * chance}) == {}  # too early to tell


def test_the_correction_of_the_similarity_is_penalised(tmp_path: Path) -> None:
    """The loss is the cross-entropy and a penalty on |U h|^2, which is 0 only where U is."""
    stage, _ = a_decoder(tmp_path, trained=False)
    batch = stage.batch(0, 0, 0, 1)
    stage.eval()
    loss, logs = stage(batch)
    assert logs["correction"] == 0 and torch.equal(loss, logs["ce"])
    bends = [p for name, p in stage.named_parameters() if ".residual_shift." in name and p.ndim == 2]
    for weight in bends:
        torch.nn.init.normal_(weight)
    loss, logs = stage(batch)
    assert logs["correction"] > 0
    assert torch.isclose(loss, logs["ce"] + CORRECTION_PENALTY * logs["correction"])


def test_the_decoder_learns_what_honest_questions_ask_for(tmp_path: Path) -> None:
    """Before training it knows nearness; training teaches it the wanted kind and how far to trust z."""
    (untrained, _), (trained, honest) = a_decoder(tmp_path / "a", trained=False), a_decoder(tmp_path / "b")
    pairs = honest.data.pairs
    judged = [stage._code_metrics(honest.queries[pairs[:, 0]], honest.codes[pairs[:, 1]]) for stage in (untrained, trained)]
    assert judged[1][0][0] < 0.5 * judged[0][0][0]  # nats of the modality
    assert judged[1][1][0] > 0.8  # share of questions whose kind is foretold
    ranks = [stage.quick() for stage in (untrained, trained)]
    assert ranks[1] > ranks[0]  # type: ignore[operator]


def test_the_papers_inputs_are_augmented_questions(tmp_path: Path) -> None:
    """Eq. 11: every input lies between the question and its answer, and is neither."""
    config = small_config(tmp_path, model__width=16, **PAPER)
    data = small_data()
    second = a_quantizer(config)
    second.initialise()
    z = second.embed(data.pool)
    queries = second.embed(data.queries)
    frozen = Frozen(z, data.pool.modality, second.quantizer.encode(z, data.pool.modality), queries)
    stage = GeneratorStage(data, frozen, None, second.quantizer, config.model, config.generator, 0)
    torch.manual_seed(0)
    batch = stage.batch(0, 0, 0, 1)
    rows = stage.draws.order.visits[stage.draws.order.places(0)]
    assert not torch.isclose(batch.z, queries[rows], atol=1e-4).all(1).any()
    answers = [[r for q, r in data.pairs.tolist() if q == row] for row in rows.tolist()]
    for got, row, own in zip(batch.z, rows.tolist(), answers, strict=True):
        spans = [torch.stack([queries[row], z[answer]], 1) for answer in own]
        weights = [torch.linalg.lstsq(span, got[:, None]).solution for span in spans]
        assert min((span @ w - got[:, None]).norm() + (w.min() < 0) for span, w in zip(spans, weights, strict=True)) < 1e-3


def test_augmentation_stays_between_query_and_target() -> None:
    torch.manual_seed(0)
    query, target = (F.normalize(torch.randn(200, 8), dim=1) for _ in range(2))
    augment = Augmentation("sqrt-per-dimension")
    mixed = augment(query, target, augment.draw(200, query.shape[1], CPU, 0))
    assert mixed.norm(dim=1).allclose(torch.ones(200))
    assert ((mixed * (query + target)).sum(1) > 0).all()
    assert torch.equal(Augmentation(form="queries")(query, target, torch.zeros(200, 1)), query)


def test_the_generator_reads_frozen_codes(tmp_path: Path) -> None:
    stage, _ = a_decoder(tmp_path, trained=False)
    assert not [name for name, _ in stage.named_parameters() if "quantizer" in name]
    batch = stage.batch(0, 0, 0, 1)
    assert batch.z.shape == (64, 16) and batch.codes.shape == (64, 3)


def test_equation_11_as_printed_keeps_its_length_and_the_first_batch_starts_the_codebooks(tmp_path: Path) -> None:
    query, target = (F.normalize(torch.randn(5, 8, generator=torch.Generator().manual_seed(s)), dim=1) for s in (0, 1))
    mu = torch.full((5, 1), 0.25)
    printed = Augmentation("linear")(query, target, mu)
    assert torch.allclose(printed, 0.25 * query + 0.75 * target) and not torch.allclose(printed.norm(dim=1), torch.ones(5))
    change_recipe(kmeans_from="first-batch")
    config = small_config(tmp_path, quantizer__quantize_from=0.0, model__width=16)
    data = small_data()
    seen: list[torch.Tensor] = []
    stage = QuantizerStage(data, None, config.model, config.quantizer, 0, torch.device("cpu"))
    stage.quantizer.initialise = lambda z, *_: seen.append(z)  # type: ignore[method-assign]
    stage.before_step(0)
    batch = stage.batch(0, 0, 0, 1)
    expected = torch.cat([stage.embed(data.queries[batch.rows]), stage.embed(data.pool[batch.targets])])
    assert len(seen) == 1 and torch.allclose(seen[0], expected)


def test_features_left_on_the_disk_train_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the rows of a step is brought to the device, and k-means embeds no more than its sample."""
    settings = {"quantizer__hard_negatives": 1, "encoder__hard_negatives": 1}
    monkeypatch.setattr("genius.train.quantizer.KMEANS_SAMPLE", 50)
    held = train(small_config(tmp_path / "held", **settings), small_data(), quiet=True)
    monkeypatch.setattr("genius.train.pairs.HELD", 0)
    brought: list[int] = []
    real = Features.to

    def counted(self: Features, *to: Any) -> Features:
        brought.append(len(self))
        return real(self, *to)

    monkeypatch.setattr(Features, "to", counted)
    stage = QuantizerStage(small_data(), None, small_config(tmp_path, model__width=16, **settings).model, held_config(), 0, CPU)
    stage.before_step(0)
    assert brought and max(brought) <= 50
    left = train(small_config(tmp_path / "left", **settings), small_data(), quiet=True)
    assert left.model.fingerprint() == held.model.fingerprint()


@pytest.mark.parametrize("changes", [PAPER, {}])
def test_the_decoder_learns_the_same_from_z_that_is_made_row_by_row(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large pool's z is nowhere whole: a step embeds its own rows, moved items are a sample, codes are written in passes."""
    held = train(small_config(tmp_path / "held", **changes), small_data(), quiet=True)
    monkeypatch.setattr("genius.train.pairs.HELD", 0)
    made: list[int] = []
    real = QuantizerStage.embed

    def counted(self: QuantizerStage, features: Features) -> torch.Tensor:
        made.append(len(features))
        return real(self, features)

    left = train(small_config(tmp_path / "left", **changes), small_data(), quiet=True)
    for name, tensor in left.model.network.state_dict().items():
        assert torch.allclose(tensor, held.model.network.state_dict()[name], atol=1e-4), name
    config, data = small_config(tmp_path, model__width=16, **PAPER), small_data()
    second = QuantizerStage(data, None, config.model, config.quantizer, 0, CPU)
    second.initialise()
    monkeypatch.setattr(QuantizerStage, "embed", counted)
    frozen, _ = freeze(second, Split(data, None, None, ""), config)
    third = GeneratorStage(data, frozen, None, second.quantizer, config.model, config.generator, 0)
    made.clear()
    third.batch(0, 0, 0, 1)
    assert made == [config.generator.batch] * 2  # the questions and their answers


def held_config() -> QuantizerStageConfig:
    return QuantizerStageConfig(steps=4, batch=16, hard_negatives=0, quantize_from=0.0, kmeans_iterations=2)
