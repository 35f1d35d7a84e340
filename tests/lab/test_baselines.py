"""Other identifiers: unique where they must be, shaped as their papers say, learnable by the same generator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from genius.data.features import FeatureSet
from genius.data.synthetic import synthetic_features
from genius.errors import GeniusError
from genius.evaluate import EvalConfig, evaluate
from genius.evaluate.generative import IdSource
from genius.evaluate.methods import code_bits
from genius.model.config import FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.model.genius import Genius
from lab.paper import baselines, identifiers
from lab.paper.baselines import BASELINES, build_baselines


def vectors(n: int, clusters: int = 9, width: int = 16, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    label = torch.randint(clusters, (n,), generator=random)
    centres = torch.randn(clusters, width, generator=random)
    return F.normalize(centres[label] + 0.05 * torch.randn(n, width, generator=random), dim=1), label


def unique(codes: np.ndarray) -> bool:
    return len(np.unique(codes, axis=0)) == len(codes)


def test_numbers_and_strings_are_unique_and_random() -> None:
    items, label = vectors(1234)
    for ids, base in ((identifiers.numeric(items), 10), (identifiers.string(items), 64)):
        assert unique(ids.codes) and set(ids.level_sizes) == {base} and ids.codes.max() < base
        same = np.array([len(set(label[ids.codes[:, 0] == c].tolist())) for c in range(10)])
        assert same.max() == 9  # a first token says nothing about the content
    assert len(identifiers.numeric(items).level_sizes) == 4 and len(identifiers.numeric(items[:7]).level_sizes) == 1
    assert len(identifiers.string(items).level_sizes) == 3


def test_structured_ids_follow_the_clusters() -> None:
    items, label = vectors(600)
    ids = identifiers.structured(items, branches=9, depth=2)
    assert unique(ids.codes)
    purity = np.mean(
        [np.bincount(label[ids.codes[:, 0] == c]).max() / (ids.codes[:, 0] == c).sum() for c in np.unique(ids.codes[:, 0])]
    )
    assert purity > 0.8


def test_semantic_ids_are_words_of_the_queries() -> None:
    items, label = vectors(300)
    asked, _ = vectors(200, seed=0)
    ids = identifiers.semantic(items, asked, words=9, length=2)
    assert unique(ids.codes) and ids.level_sizes[:2] == (9, 9)
    first = ids.codes[:, 0]
    purity = np.mean([np.bincount(label[first == c]).max() / (first == c).sum() for c in np.unique(first)])
    assert purity > 0.7
    assert (ids.codes[:, 0] != ids.codes[:, 1]).all()  # no word twice


def test_residual_ids_reconstruct_and_know_no_modality() -> None:
    items, _ = vectors(500)
    ids = identifiers.residual(items, 16, (16, 16, 16))
    assert ids.quantizer is not None and ids.quantizer.config.modality_code == "none"
    error = (ids.quantizer.decode(torch.from_numpy(ids.codes)) - items).square().sum(1)
    assert error.mean() < 0.05 and error.mean() < (items - items.mean(0)).square().sum(1).mean()


@pytest.fixture(scope="module")
def sets() -> tuple[FeatureSet, FeatureSet]:
    whole = synthetic_features(160, 60, 24, clusters=20, noise=0.2, seed=1)
    return whole.take_queries(torch.arange(110)), whole.take_queries(torch.arange(110, 160))


def tiny(width: int) -> Genius:
    torch.manual_seed(0)
    sizes = (3, 8, 8)
    shape = GeneratorConfig(
        width=width, level_sizes=sizes, d_model=48, layers=2, heads=3, d_kv=16, d_ff=96, prefix_tokens=4, dropout=0.0
    )
    return Genius(GeniusConfig(FusionConfig(width, 32, 32), QuantizerConfig(width=width, level_sizes=sizes), shape))


def test_baselines_learn_with_the_same_generator(sets: tuple[FeatureSet, FeatureSet]) -> None:
    train, test = sets
    model = tiny(24)
    config = EvalConfig(methods=(), pools=("universal",), beams=(10,), bootstrap=0)
    names = ("irgen", "grace-structured")
    trained = build_baselines(names, model, train, test, beams=(10,), steps=90)
    lazy = build_baselines(names, model, train, test, beams=(10,), steps=1)
    good, bad = evaluate(model, test, config, extra=trained), evaluate(model, test, config, extra=lazy)
    for name in names:
        assert good.average(name, "universal") > bad.average(name, "universal") + 0.15, name
        assert {r.method for r in good.results} == set(names)
    assert trained[0].source.level_sizes == (8, 8)  # type: ignore[attr-defined]


def test_all_baselines_run_over_local_pools_and_several_beams(sets: tuple[FeatureSet, FeatureSet]) -> None:
    train, test = sets
    model = tiny(24)
    methods = build_baselines(tuple(BASELINES), model, train, test, beams=(3, 6), steps=2)
    config = EvalConfig(methods=(), pools=("local", "universal"), target="given", bootstrap=0, reference="irgen@3")
    found = evaluate(model, test, config, extra=methods)
    assert found.methods == [f"{name}@{b}" for name in BASELINES for b in (3, 6)] and found.pools == ["local", "universal"]
    with pytest.raises(GeniusError, match="unknown baseline 'bm25'"):
        build_baselines(("bm25",), model, train, test)


def test_trained_baselines_are_found_again_and_only_for_the_same_data(
    sets: tuple[FeatureSet, FeatureSet], tmp_path: Path
) -> None:
    train, test = sets
    model, names = tiny(24), ("irgen", "grace-structured")

    def build(steps: int = 2, data: FeatureSet = train) -> tuple[list[IdSource], list[str]]:
        said: list[str] = []
        methods = build_baselines(names, model, data, test, steps=steps, batch=16, folder=tmp_path, say=said.append)
        return [method.source for method in methods], said  # type: ignore[attr-defined]

    (first, said), (second, again) = build(), build()
    assert all("training" in line for line in said) and again == [f"{name}: already trained" for name in names]
    for old, new in zip(first, second, strict=True):
        assert np.array_equal(old.codes, new.codes) and old.level_sizes == new.level_sizes
        kept = new.scorer.state_dict()
        assert all(torch.equal(value, kept[name]) for name, value in old.scorer.state_dict().items())
    assert first[0].quantizer is not None and second[0].quantizer is not None and second[1].quantizer is None
    assert torch.equal(first[0].quantizer.codebook(1), second[0].quantizer.codebook(1))
    assert all("training" in line for line in build(steps=1)[1] + build(data=train.take_queries(torch.arange(100)))[1])


def test_items_of_a_large_pool_are_read_by_row(monkeypatch: pytest.MonkeyPatch, sets: tuple[FeatureSet, FeatureSet]) -> None:
    """Nothing of the pool is kept on the device, and identifiers and training inputs are the same."""
    train, test = sets
    model = tiny(24)
    kept = baselines._World.of(model, train, test)
    monkeypatch.setattr("genius.train.pairs.HELD", 0)
    monkeypatch.setattr(identifiers, "CHUNK", 7)
    read = baselines._World.of(model, train, test)
    assert all(part.kept is None for part in (*read.items.parts, read.queries)) and kept.queries.kept is not None
    rows = torch.tensor([len(read.items) - 1, 0, 3, 3])
    assert torch.allclose(read.items[rows], kept.items[rows]) and len(read.items[:0]) == 0
    assert torch.allclose(read.items[:], kept.items[:])
    for name in BASELINES:
        assert np.array_equal(baselines.assign(name, read, model, 0).codes, baselines.assign(name, kept, model, 0).codes), name


def test_the_papers_bits() -> None:
    assert code_bits((3,) + (4096,) * 8) == 98  # 12.25 bytes
