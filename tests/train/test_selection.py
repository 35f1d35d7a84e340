"""Which weights a stage leaves behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from genius.train.selection import Selection


class Number(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def step(self, value: float) -> None:
        with torch.no_grad():
            self.weight.fill_(value)


def test_the_best_average_stays_and_patience_ends_the_stage() -> None:
    stage = Number()
    selection = Selection(stage, decay=0.5, patience=2)
    kept, stops = [], []
    for value, judged in ((1.0, 0.1), (2.0, 0.5), (9.0, 0.4), (9.0, 0.3)):
        stage.step(value)
        selection.update()
        with selection.kept():
            kept.append(stage.weight.item())
        assert stage.weight.item() == value  # looking changes nothing
        stops.append(selection.look(judged))
    assert stops == [False, False, False, True]
    selection.finish()
    assert stage.weight.item() == kept[1]
    assert kept[0] < kept[1] < kept[2] < 9


def test_without_averages_and_patience_the_last_weights_stay() -> None:
    stage = Number()
    selection = Selection(stage, decay=0.0, patience=0)
    stage.step(3.0)
    selection.update()
    assert not selection.look(1.0)
    stage.step(7.0)
    selection.finish()
    assert stage.weight.item() == 7.0
    averaged = Selection(stage, decay=0.9, patience=0)
    stage.step(8.0)
    averaged.update()
    averaged.finish()
    assert 7.0 < stage.weight.item() < 8.0


def test_a_restored_selection_goes_on_as_if_nothing_happened() -> None:
    def run(stop: int | None) -> float:
        stage = Number()
        selection = Selection(stage, decay=0.9, patience=3)
        for i in range(8):
            if i == stop:
                tensors, numbers = selection.tensors(), selection.numbers()
                selection = Selection(stage, decay=0.9, patience=3)
                selection.restore({name: tensor.clone() for name, tensor in tensors.items()}, numbers)
            stage.step(float(i))
            selection.update()
            selection.look([0.1, 0.2, 0.9, 0.3, 0.4, 0.5, 0.6, 0.7][i])
        selection.finish()
        return stage.weight.item()

    whole = run(None)
    assert all(run(stop) == pytest.approx(whole, abs=1e-7) for stop in range(8))
