"""Batches are functions of the step; positives are all there."""

from __future__ import annotations

import torch

from genius.train.pairs import Draws, Order, Positives


def test_every_example_once_an_epoch_and_the_same_after_a_jump() -> None:
    order = Order(torch.arange(10), 4, seed=3)
    seen = torch.cat([order.places(step) for step in range(5)])  # two epochs of ten
    assert seen[:10].sort().values.tolist() == list(range(10))
    assert seen[10:].sort().values.tolist() == list(range(10))
    assert Order(torch.arange(10), 4, seed=3).places(4).tolist() == order.places(4).tolist()
    assert Order(torch.arange(10), 4, seed=4).places(0).tolist() != order.places(0).tolist()


def test_a_batch_may_span_several_epochs() -> None:
    assert (
        sorted(Order(torch.arange(3), 7, seed=0).places(0).tolist()) == [0, 0, 0, 1, 1, 2, 2]
        or len(Order(torch.arange(3), 7, seed=0).places(0)) == 7
    )
    assert torch.bincount(Order(torch.arange(3), 6, seed=0).places(5), minlength=3).tolist() == [2, 2, 2]


def test_repeated_examples_come_as_often_in_every_epoch() -> None:
    order = Order(torch.tensor([0, 1, 1, 1, 2]), 5, seed=0)
    assert all(sorted(order.visits[order.places(epoch)].tolist()) == [0, 1, 1, 1, 2] for epoch in range(3))


def test_answers_are_drawn_anew_or_kept_for_every_place_of_an_epoch() -> None:
    pairs = torch.tensor([[q, 10 * q + i] for q in range(4) for i in range(10)])
    order = Order(torch.tensor([0, 1, 2, 3, 3, 3]), 6, seed=1)

    def seen(kept: bool) -> list[list[tuple[int, int]]]:
        draws = Draws(order, Positives(pairs, 4), kept, seed=5)
        epochs = [torch.stack(draws(step, 0, 1, seed=step), 1).tolist() for step in range(4)]
        assert all(row // 10 == q for epoch in epochs for q, row in epoch)
        return [sorted((q, row) for q, row in epoch) for epoch in epochs]

    same, new = seen(True), seen(False)
    assert same[0] == same[1] == same[2] == same[3] and len({row for q, row in same[0] if q == 3}) > 1  # each place its own
    assert new[0] != new[1]
    halves = Draws(order, Positives(pairs, 4), True, seed=5)
    parts = [torch.stack(halves(0, micro, 2, seed=9), 1) for micro in (0, 1)]
    assert torch.cat(parts).tolist() == torch.stack(halves(0, 0, 1, seed=9), 1).tolist()


def test_all_positives_are_drawn_and_matched() -> None:
    pairs = torch.tensor([[1, 7], [0, 3], [1, 8], [1, 9], [2, 3]])
    positives = Positives(pairs, 3)
    drawn = {int(positives.draw(torch.tensor([1]), seed)) for seed in range(60)}
    assert drawn == {7, 8, 9}
    matches = positives.matches(torch.tensor([0, 1, 2]), torch.tensor([3, 8, 5]), pool=10)
    assert matches.tolist() == [[True, False, False], [False, True, False], [True, False, False]]
