"""What a fit without pairs learns from: offsets of synthetic queries to their items."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from genius.features import Features
from genius.fit import FitConfig, fit_collection, sum_fusion, synthetic_query_offsets
from genius.fit.synthetic_queries import SyntheticQueries


def test_a_positive_moved_by_its_offset_is_the_query() -> None:
    torch.manual_seed(0)
    z = F.normalize(torch.randn(6, 8), dim=1)
    queries = F.normalize(torch.randn(4, 8), dim=1)
    modality = torch.tensor([0, 0, 0, 1, 1, 1])
    mask = torch.ones(4, dtype=torch.bool)
    synthetic = SyntheticQueries(
        features=Features(queries, queries, mask, mask),
        positives=torch.tensor([2, 5, -1, -1]),
        targets=torch.tensor([0, 1, 0, 1]),
        tasks=torch.arange(4),
    )
    offsets = synthetic_query_offsets(synthetic, queries, z, modality)
    assert torch.allclose(offsets.positives + offsets.vectors, queries)
    assert torch.equal(offsets.positives[:2], z[[2, 5]])
    nearest = [int((queries[2] @ z[:3].T).argmax()), 3 + int((queries[3] @ z[3:].T).argmax())]
    assert torch.equal(offsets.positives[2:], z[nearest])  # unknown: the nearest item of the target modality
    assert offsets.modality.tolist() == [0, 1, 0, 1]


def test_a_fitted_model_brings_its_synthetic_queries() -> None:
    torch.manual_seed(0)
    vectors = F.normalize(torch.randn(60, 8), dim=1)
    images = torch.arange(60) < 40
    items = Features(vectors, vectors, images, ~images)
    text = torch.ones(20, dtype=torch.bool)
    synthetic = SyntheticQueries(
        Features(vectors[:20], vectors[:20] + 0.1, ~text, text),
        positives=torch.arange(20),
        targets=torch.zeros(20, dtype=torch.long),
        tasks=torch.zeros(20, dtype=torch.long),
    )
    bank = fit_collection(items, synthetic, config=FitConfig(steps=2, iterations=2)).model.queries
    assert bank is not None and len(bank) == 20 and bank.target.tolist() == [0] * 20
    assert fit_collection(items, None, config=FitConfig(steps=2, iterations=2)).model.queries is None


def test_image_and_text_of_a_pair_count_equally() -> None:
    """However long an encoder's image and text vectors are."""
    images = 3.0 * torch.eye(4)[:2]
    texts = 0.5 * torch.eye(4)[2:]
    there = torch.ones(2, dtype=torch.bool)
    pairs = Features(images, texts, there, there)
    z = sum_fusion(pairs).embed(pairs)
    half = torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1]]) / 2**0.5
    assert torch.allclose(z, half, atol=1e-5)
