"""Hard negatives: the nearest wrong candidates, never an answer; and what they add to the loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from genius.train.losses import contrastive
from genius.train.pairs import LISTED, Positives, draw_negatives, mining_steps, nearest_negatives


def a_world(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, Positives]:
    random = torch.Generator().manual_seed(seed)
    queries, pool = (F.normalize(torch.randn(n, 8, generator=random), dim=1) for n in (20, 90))
    near = (queries @ pool.T).topk(4).indices  # the answers are near: mining must step over them
    pairs = torch.cat([torch.stack([torch.arange(20), near[:, i]], 1) for i in (0, 1, 3)])
    return queries, pool, Positives(pairs, 20)


def test_lists_are_the_nearest_wrong_candidates() -> None:
    queries, pool, positives = a_world()
    asked, kept = torch.arange(20).flip(0), torch.randperm(90)
    lists = nearest_negatives(asked, queries[asked], kept, pool[kept], positives, 90).flip(0)
    for q in range(20):
        answers = set(positives.rows[positives.starts[q] : positives.starts[q] + positives.counts[q]].tolist())
        ranked = [row for row in (pool @ queries[q]).argsort(descending=True).tolist() if row not in answers]
        assert lists[q].tolist() == ranked[:LISTED]


def test_a_query_without_a_list_gets_its_own_answer_which_does_not_count() -> None:
    queries, pool, positives = a_world()
    answers = positives.rows[positives.starts]
    drawn = draw_negatives(torch.full((20, LISTED), -1, dtype=torch.int32), answers, seed=3)
    assert torch.equal(drawn, answers)
    plain, _ = contrastive(queries, pool[answers], temperature=0.1, symmetric=False)
    with_them, _ = contrastive(
        queries, pool[answers], temperature=0.1, symmetric=False,
        more=pool[drawn], more_positive=torch.ones(20, 20, dtype=torch.bool),
    )  # fmt: skip
    assert torch.allclose(plain, with_them)


def test_the_loss_is_cross_entropy_over_answers_and_hard_negatives() -> None:
    queries, pool, positives = a_world()
    answers = positives.rows[positives.starts]
    wrong = torch.tensor([row for row in range(90) if row not in set(answers.tolist())][:15])
    loss, _ = contrastive(
        queries, pool[answers], temperature=0.2, symmetric=False,
        more=pool[wrong], more_positive=torch.zeros(20, 15, dtype=torch.bool),
    )  # fmt: skip
    scores = torch.cat([queries @ pool[answers].T, queries @ pool[wrong].T], 1) / 0.2
    assert torch.allclose(loss, F.cross_entropy(scores, torch.arange(20)))


def test_rounds_are_spread_over_the_steps() -> None:
    assert mining_steps(4, 100) == {20, 40, 60, 80}
