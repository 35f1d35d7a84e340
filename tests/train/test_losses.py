"""The losses against plain formulas."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from genius.train.losses import (
    contrastive,
    info_nce,
    prefix_distillation,
    prefix_ranking,
    reconstruction_loss,
    residual_loss,
    soft_target_loss,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def unit(n: int, d: int = 16) -> torch.Tensor:
    return F.normalize(torch.randn(n, d), dim=1)


def test_one_positive_is_cross_entropy() -> None:
    scores = torch.randn(7, 9)
    labels = torch.arange(7)
    expected = F.cross_entropy(scores, labels)
    assert torch.allclose(info_nce(scores, F.one_hot(labels, 9).bool()), expected, atol=1e-6)


def test_other_positives_are_not_negatives() -> None:
    scores = torch.tensor([[2.0, 5.0, 1.0]])
    alone = info_nce(scores, torch.tensor([[True, False, False]]))
    both = info_nce(scores, torch.tensor([[True, True, False]]))
    by_hand = (math.log1p(math.exp(1 - 2)) + math.log1p(math.exp(1 - 5))) / 2  # each against the one negative
    assert both.item() == pytest.approx(by_hand, abs=1e-5)
    assert both < alone


def test_a_second_positive_gets_no_push_away() -> None:
    scores = torch.tensor([[2.0, 5.0, 1.0]], requires_grad=True)
    info_nce(scores, torch.tensor([[True, True, False]])).backward()
    assert scores.grad is not None
    assert (scores.grad[0, :2] < 0).all() and scores.grad[0, 2] > 0  # both pulled up, the negative pushed down


def test_symmetric_contrastive_is_the_published_form() -> None:
    q, c = unit(8), unit(8)
    logits = q @ c.T / 0.01
    labels = torch.arange(8)
    expected = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    loss, accuracy = contrastive(q, c, temperature=0.01)
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert accuracy == (logits.argmax(1) == labels).float().mean()
    one_way, _ = contrastive(q, c, temperature=0.01, symmetric=False)
    assert torch.allclose(one_way, F.cross_entropy(logits, labels), rtol=1e-5)


def test_reductions_differ_by_levels_and_width() -> None:
    residuals, chosen = [torch.randn(5, 12) for _ in range(4)], [torch.randn(5, 12) for _ in range(4)]
    mean, total = residual_loss(residuals, chosen, "mean"), residual_loss(residuals, chosen, "sum")
    assert total.item() == pytest.approx(mean.item() * 4 * 12, rel=1e-5)
    by_hand = sum((r - e).square().sum(1).mean() for r, e in zip(residuals, chosen, strict=True))
    assert torch.allclose(total, torch.as_tensor(by_hand), rtol=1e-5)


def test_mse_compares_directions_or_vectors() -> None:
    a = torch.randn(5, 8)
    assert reconstruction_loss(a, 3 * a, "mean").item() == pytest.approx(0, abs=1e-7)  # unit length: only direction counts
    assert reconstruction_loss(a, 3 * a, "sum").item() == pytest.approx((2 * a).square().sum(1).mean().item(), rel=1e-5)


def test_prefix_distillation_is_zero_for_perfect_prefixes_and_orders_worse_ones() -> None:
    q, c = unit(16), unit(16)
    assert prefix_distillation(q, c, [c, 2 * c], 0.05).item() == pytest.approx(0, abs=1e-5)
    near, far = c + 0.1 * torch.randn_like(c), c + 1.0 * torch.randn_like(c)
    assert 0 < prefix_distillation(q, c, [near], 0.05) < prefix_distillation(q, c, [far], 0.05)


def test_soft_targets_follow_the_trie() -> None:
    log_p = [torch.randn(1, 4).log_softmax(1), torch.randn(1, 4).log_softmax(1)]
    codes = torch.tensor([[[1, 2], [1, 3], [0, 3]]])  # fed first; the second shares its prefix, the third does not
    loss = soft_target_loss(log_p, codes, torch.tensor([[1.0, 1.0, 2.0]]))
    first = -(2 / 4 * log_p[0][0, 1] + 2 / 4 * log_p[0][0, 0])
    second = -(1 / 2 * log_p[1][0, 2] + 1 / 2 * log_p[1][0, 3])
    assert torch.allclose(loss, (first + second) / 2)


def test_one_target_is_plain_cross_entropy_and_smoothing_spreads() -> None:
    logits, code = torch.randn(6, 5), torch.randint(5, (6, 1, 1))
    plain = soft_target_loss([logits.log_softmax(1)], code, torch.ones(6, 1))
    assert torch.allclose(plain, F.cross_entropy(logits, code[:, 0, 0]))
    smooth = soft_target_loss([logits.log_softmax(1)], code, torch.ones(6, 1), 0.2)
    assert torch.allclose(smooth, F.cross_entropy(logits, code[:, 0, 0], label_smoothing=0.2))


def test_prefix_ranking_counts_only_prefixes_that_differ() -> None:
    positive, negative = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]])
    loss = prefix_ranking(positive, negative, torch.tensor([[False, True]]), margin=1.0)
    assert loss.item() == pytest.approx(math.log1p(math.exp(1 - 2)), rel=1e-5)
