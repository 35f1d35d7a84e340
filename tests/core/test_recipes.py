"""The recipes of CONTRIBUTING.md run as they stand: what they add works with one file and no change of the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from genius import ranking
from genius.errors import GeniusError
from genius.fit import FitConfig, fit_vectors
from genius.model.config import FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.model.genius import Genius
from genius.model.quantizer import Fusion, _families, build_quantizer
from genius.ranking import hit_at, judge, per_query, register_metric
from genius.search import CodeTrie, SearchEngine, SearchParams, rerank
from genius.train.config import ModelConfig, QuantizerStageConfig
from genius.train.quantizer import QuantizerStage
from genius.train.sources import synthetic

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SIZES = (3, 8, 8)


def recipe(title: str) -> dict[str, Any]:
    """Run the code of one recipe; what it defines."""
    section = PAGE.partition(f"**{title}**")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code.group(1), names)
    return names


def model_of(family: str = "residual") -> Genius:
    shape: dict[str, Any] = {"d_model": 16, "layers": 1, "heads": 2, "d_kv": 8, "d_ff": 16, "prefix_tokens": 2}
    return Genius(
        GeniusConfig(
            fusion=FusionConfig(16, 8, 8),
            quantizer=QuantizerConfig(width=16, level_sizes=SIZES, family=family),
            generator=GeneratorConfig(width=16, level_sizes=SIZES, head="codebooks", normalizer="level", **shape),
        )
    )


def engine_of(model: Genius, items: int = 300) -> tuple[SearchEngine, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    z = F.normalize(torch.randn(items, 16), dim=1)
    codes = model.quantizer.encode(z, torch.arange(items) % 3)
    return SearchEngine(model.generator, model.quantizer, CodeTrie.build(codes, SIZES), z), z, codes


@pytest.mark.parametrize("plan", ["flat", "scan", "beam"])
def test_a_reranker(plan: str) -> None:
    recipe("A re-ranker.")
    try:
        engine, z, codes = engine_of(model_of())
        wanted = torch.zeros(4, dtype=torch.long)
        params = SearchParams(beams=300, reranker="newest-first", plan=plan)
        found = engine.search(z[:4], k=5, target=wanted, params=params)
        truth = (z[:4] @ z.T + 0.1 * torch.arange(300) / 300).masked_fill(codes[:, 0] != 0, -torch.inf)
        assert found.plan == plan and np.allclose(found.scores, truth.topk(5).values, atol=1e-5)
    finally:
        rerank._registry.pop("newest-first")


def test_a_residual_fsq_quantizer(tmp_path: Path) -> None:
    """It encodes, searches, is saved and loaded by its name; its codes are the nearest of its grid."""
    names = recipe("A quantizer.")
    try:
        model = model_of("residual-fsq")
        assert isinstance(model.quantizer, names["ResidualFSQ"])
        engine, z, codes = engine_of(model)
        residual = z - model.quantizer.codebook(0)[codes[:, 0]]
        for level in (1, 2):
            grid = model.quantizer.codebook(level)
            nearest = torch.cdist(residual, grid).argmin(1)
            assert torch.equal(nearest, codes[:, level])
            residual = residual - grid[nearest]
        by_codes = engine.search(z[:4], k=5, target=codes[:4, 0], params=SearchParams(reranker="codes"))
        assert (by_codes.rows >= 0).all()
        model.save_pretrained(tmp_path)
        loaded = Genius.from_pretrained(tmp_path)
        assert type(loaded.quantizer) is names["ResidualFSQ"] and loaded.fingerprint() == model.fingerprint()
        assert np.array_equal(loaded.quantizer.encode(z, torch.arange(300) % 3).numpy(), codes.numpy())
        config = FitConfig(steps=2, quantizer="residual-fsq")
        fitted = fit_vectors(Fusion(FusionConfig(16, 1, 1)), z, torch.zeros(300).long(), None, None, None, config).model
        assert type(fitted.quantizer) is names["ResidualFSQ"]
        assert torch.equal(fitted.quantizer.codebook(1)[:, 1:], torch.zeros(len(fitted.quantizer.codebook(1)), 15))  # not fitted
        data = synthetic("tiny", 0)
        shape = ModelConfig(width=data.pool.width, level_sizes=SIZES, quantizer="residual-fsq")
        trained = QuantizerStage(data, None, shape, QuantizerStageConfig(), 0, torch.device("cpu"))
        assert type(trained.quantizer) is names["ResidualFSQ"]
    finally:
        _families.pop("residual-fsq")
    with pytest.raises(GeniusError, match="no quantizer 'residual-fsq'"):
        build_quantizer(QuantizerConfig(family="residual-fsq"))


def test_a_metric() -> None:
    recipe("A metric.")
    try:
        judged = judge(np.array([[3, 1, 2], [5, 4, -1]]), [[1, 2], [9]])
        values = per_query(judged, (1, 2))
        assert values["precision@1"].tolist() == [0, 0] and values["precision@2"].tolist() == [0.5, 0]
        with pytest.raises(GeniusError, match="metric 'precision'"):
            register_metric("precision", hit_at)
    finally:
        ranking._at_every_cutoff.pop("precision")
