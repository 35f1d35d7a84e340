"""Figure 4 on a GPU: pools are filled to the size that is asked for, dense search is exact, and tables hold every search."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from genius.model.config import FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.model.genius import Genius
from lab.paper import figure_4_gpu
from lab.paper.figure_4_gpu import Pool, filled, measure, nearest, tables


@pytest.fixture
def pool() -> Pool:
    torch.manual_seed(0)
    return Pool(F.normalize(torch.randn(60, 8), dim=1), torch.arange(60) % 3, F.normalize(torch.randn(12, 8), dim=1))


def test_a_pool_is_filled_with_points_between_items_of_one_modality(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_4_gpu, "ENCODED", 50)
    flat = Pool(pool.z.clone(), pool.modality, pool.queries)
    flat.z[flat.modality == 2] = F.normalize(torch.eye(8)[:1], dim=1)  # one point: all between is that point
    parts = list(filled(flat, 200))
    z, modality = (torch.cat(values) for values in zip(*parts, strict=True))
    assert z.shape == (200, 8) and torch.allclose(z.norm(dim=1), torch.ones(200), atol=1e-5)
    assert torch.equal(z[:60], flat.z) and torch.allclose(
        z[modality == 2], torch.eye(8)[:1].expand(int((modality == 2).sum()), -1)
    )
    assert sum(len(part[0]) for part in filled(flat, 25)) == 25


def test_dense_search_by_blocks_is_that_of_all(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_4_gpu, "BLOCK", 7)
    monkeypatch.setattr(figure_4_gpu, "DEPTH", 9)
    assert torch.equal(nearest(pool.queries, pool.z), (pool.queries @ pool.z.T).topk(9).indices)


def test_every_search_is_timed_at_every_size(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_4_gpu, "BATCHES", (1, 4))
    shape = QuantizerConfig(width=8, level_sizes=(3, 4, 4))
    decoder = GeneratorConfig(width=8, level_sizes=(3, 4, 4), prefix_tokens=2, d_model=16, layers=1, heads=2, d_kv=8, d_ff=16)
    model = Genius(GeniusConfig(fusion=FusionConfig(8, 8, 8), quantizer=shape, generator=decoder))
    sizes = [measure(model, pool, size, 0.01) for size in (30, 90)]
    assert [size["candidates"] for size in sizes] == [30, 90]
    assert all(0 < size["distinct IDs"] <= size["candidates"] for size in sizes)
    text = tables({"sizes": sizes})
    for name in ("GENIUS, 30 beams", "GENIUS, 50 beams", "dense, 256 wide", "dense, 768 wide"):
        assert text.count(name) == 2  # one for each batch
    assert "90 candidates" in text
