"""Probabilities: they are what they say on data where the truth is known, and foreign weights are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.errors import GeniusError
from genius.model.confidence import DEPTH, OF_ANSWER_BEFORE, OF_HIT, Confidence, auroc, fit


def made_up(count: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Questions whose hits are right with a chance that their score tells, differently for questions with a picture."""
    random = torch.Generator().manual_seed(seed)
    pictured = torch.rand(count, generator=random) < 0.5
    scores = torch.rand(count, DEPTH, generator=random).sort(dim=1, descending=True).values
    kinds = torch.randint(3, (count, DEPTH), generator=random)
    chance = torch.sigmoid(8 * scores - torch.where(pictured, 7.0, 5.0)[:, None])
    right = torch.rand(count, DEPTH, generator=random) < chance
    bare = (scores - 0.3 * torch.rand(count, DEPTH, generator=random)).sort(dim=1, descending=True).values
    return pictured, scores, kinds, right, bare, kinds


def test_of_hits_that_are_called_likely_so_many_are_right() -> None:
    fitted = fit(*made_up(3000, 0))
    pictured, scores, kinds, right, bare, _ = made_up(3000, 1)
    said = np.stack([fitted.of_hits(bool(p), s, k) for p, s, k in zip(pictured, scores.numpy(), kinds.numpy(), strict=True)])
    for low in np.arange(0, 1, 0.2):
        own = (said >= low) & (said < low + 0.2)
        assert abs(said[own].mean() - right.numpy()[own].mean()) < 0.04
    there = [fitted.of_answer(bool(p), s, k) for p, s, k in zip(pictured, scores.numpy(), kinds.numpy(), strict=True)]
    gone = [fitted.of_answer(bool(p), s, k) for p, s, k in zip(pictured, bare.numpy(), kinds.numpy(), strict=True)]
    assert auroc(there + gone, [True] * 3000 + [False] * 3000) > 0.6
    assert abs(np.mean(there + gone) - 0.5) < 0.02  # half of these lists had an answer


def test_short_lists_and_none() -> None:
    fitted = fit(*made_up(200, 0))
    assert fitted.of_answer(True, [], []) == 0.0 and len(fitted.of_hits(True, [], [])) == 0
    assert 0 < fitted.of_answer(True, [0.5], [2]) < 1 and 0 < fitted.of_hits(False, [0.5, 0.4], [0, 1])[1] < 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auroc_is_the_share_of_pairs_in_order(pairs: list[tuple[int, bool]]) -> None:
    yes, no = ([v for v, label in pairs if label is wanted] for wanted in (True, False))
    found = auroc([v for v, _ in pairs], [label for _, label in pairs])
    if not yes or not no:
        assert np.isnan(found)
        return
    assert found == pytest.approx(np.mean([(a > b) + 0.5 * (a == b) for a in yes for b in no]))


def test_weights_survive_a_config_and_foreign_ones_are_one_line() -> None:
    fitted = fit(*made_up(200, 0))
    again = Confidence.read(fitted.to_dict())
    assert again.hit == pytest.approx(fitted.hit, abs=1e-5)
    for body in (None, [], {"hit": [1.0]}, {"hit": [0.0] * 3, "answer": []}, {"hit": [float("nan")] * 14, "answer": [0.0] * 14}):
        with pytest.raises(GeniusError, match="confidence"):
            Confidence.read(body)


def test_gaps_count_by_direction_and_the_bias_of_the_first_hit_counts() -> None:
    """With an image a gap is a sign of an answer, without one it is not; an item with a large bias is a sign of none."""
    random = torch.Generator().manual_seed(0)
    count = 2000
    pictured = torch.rand(count, generator=random) < 0.5
    modalities = torch.zeros(count, DEPTH, dtype=torch.long)
    alike = torch.full((count, DEPTH), 0.5) + 1e-3 * torch.rand(count, DEPTH, generator=random)
    ahead = alike.clone()
    ahead[:, 0] += torch.where(pictured, 0.2, 0.0)
    none, large = torch.zeros(count), torch.full((count,), 0.1) * ~pictured
    fitted = fit(pictured, ahead, modalities, torch.zeros(count, DEPTH), alike, modalities, none, large)
    gap, no_gap = [0.7] + [0.5] * (DEPTH - 1), [0.5] * DEPTH
    here = [0] * DEPTH
    assert fitted.of_answer(True, gap, here) > 0.9 > 0.1 > fitted.of_answer(True, no_gap, here)
    assert fitted.of_answer(False, no_gap, here, 0.0) > 0.6 > 0.4 > fitted.of_answer(False, no_gap, here, 0.1)


def test_weights_of_models_that_were_calibrated_before_mean_what_they_meant() -> None:
    weights = np.random.default_rng(0).normal(size=OF_ANSWER_BEFORE)
    old = Confidence.read({"hit": [0.0] * OF_HIT, "answer": weights.tolist()})
    scores, group = np.array([0.9, 0.7, 0.4]), 3 + 1  # a query with an image, a text found
    logit = weights[group] + weights[6 + group] * 0.9 + weights[12] * 0.2 + weights[13] * (0.9 - 0.55)
    assert old.of_answer(True, scores, [1, 0, 0]) == pytest.approx(1 / (1 + np.exp(-logit)))
