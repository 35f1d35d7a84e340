"""The losses against plain formulas."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from genius.train.losses import (
    code_losses,
    contrastive,
    info_nce,
    reconstruction_loss,
    residual_loss,
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


def test_targets_know_which_queries_they_are_positives_of() -> None:
    """Of three targets the first is a positive of two queries: in the direction back it has two positives, not one."""
    q, c = unit(3), unit(3)
    positive = torch.tensor([[True, False, False], [True, True, False], [False, False, True]])
    scores = q @ c.T / 0.1
    loss, _ = contrastive(q, c, temperature=0.1, positive=positive)
    expected = (info_nce(scores, positive) + info_nce(scores.T, positive.T)) / 2
    assert torch.allclose(loss, expected, rtol=1e-5)


def test_the_residual_loss_is_the_mean_over_rows_levels_and_dimensions() -> None:
    residuals, chosen = [torch.randn(5, 12) for _ in range(4)], [torch.randn(5, 12) for _ in range(4)]
    by_hand = sum((r - e).square().sum().item() for r, e in zip(residuals, chosen, strict=True)) / (5 * 12 * 4)
    assert residual_loss(residuals, chosen).item() == pytest.approx(by_hand, rel=1e-5)


def test_mse_compares_directions() -> None:
    a = torch.randn(5, 8)
    assert reconstruction_loss(a, 3 * a).item() == pytest.approx(0, abs=1e-7)  # unit length: only direction counts
    assert reconstruction_loss(a, -a).item() == pytest.approx(4 / 8, rel=1e-5)


def test_the_loss_of_codes_is_cross_entropy_over_all_tokens() -> None:
    logits, codes = [torch.randn(6, 5), torch.randn(6, 9)], torch.stack([torch.randint(5, (6,)), torch.randint(9, (6,))], 1)
    each = [F.cross_entropy(own, codes[:, level]) for level, own in enumerate(logits)]
    assert torch.allclose(code_losses([own.log_softmax(1) for own in logits], codes), torch.stack(each))
