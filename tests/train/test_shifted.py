"""What the decoder learns from: points, IDs and offsets are what they are said to be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from genius.errors import GeniusError
from genius.model.config import QuantizerConfig
from genius.model.quantizer import ResidualQuantizer
from genius.train.generator import DEFAULT_DISTANCE, KEPT_CODES, Directions, Offsets, ShiftedItems, query_offsets

ITEMS = 90


@pytest.fixture(scope="module")
def quantizer() -> ResidualQuantizer:
    torch.manual_seed(0)
    made = ResidualQuantizer(QuantizerConfig(width=16, level_sizes=(3, 8, 8, 8), modality_codebooks_from=1))
    made.initialise(F.normalize(torch.randn(300, 16), dim=1), torch.arange(300) % 3)
    return made


def items(quantizer: ResidualQuantizer, offsets: Offsets | None = None, **changes: float) -> ShiftedItems:
    torch.manual_seed(1)
    pool, modality = F.normalize(torch.randn(ITEMS, 16), dim=1), torch.arange(ITEMS) % 3
    codes = quantizer.encode(pool, modality)
    source = ShiftedItems(pool, modality, codes, offsets, quantizer, seed=0)
    for name, value in {"shortest": 0.0, "longest": 0.0, **changes}.items():
        setattr(source, name, value)
    return source


def place(quantizer: ResidualQuantizer, codes: torch.Tensor) -> torch.Tensor:
    """(n, D) where the items of IDs (n, M) stand."""
    return F.normalize(quantizer.decode(codes), dim=1)


def test_items_that_are_not_moved_lead_to_their_own_ids(quantizer: ResidualQuantizer) -> None:
    inputs, codes, blocks = items(quantizer).draw(48, seed=0)
    assert torch.allclose(inputs, place(quantizer, codes), atol=1e-5)
    for kind, rows in blocks:
        assert (codes[rows, 0] == kind).all()
    assert sum(len(codes[rows]) for _, rows in blocks) == 48


def test_synthetic_ids_begin_as_an_item_and_go_on_evenly(quantizer: ResidualQuantizer) -> None:
    source = items(quantizer)
    _, codes, _ = source.draw(3000, seed=0)
    begun = {tuple(code) for code in source.codes[:, :KEPT_CODES].tolist()}
    assert {tuple(code) for code in codes[:, :KEPT_CODES].tolist()} <= begun
    for level in range(KEPT_CODES, 4):
        shares = torch.bincount(codes[:, level], minlength=8) / len(codes)
        assert (shares - 1 / 8).abs().max() < 0.04


def honest(count: int = 30) -> Offsets:
    torch.manual_seed(2)
    modality, tasks = torch.arange(count) % 2, torch.arange(count) % 4
    return Offsets(torch.randn(count, 16), F.normalize(torch.randn(count, 16), dim=1), modality, tasks)


def test_offsets_come_from_nearby_answers_of_the_same_kind_or_lie_between_two_of_one_task() -> None:
    offsets = honest()
    pool, modality = F.normalize(torch.randn(6, 16), dim=1), torch.tensor([0, 1, 2, 0, 1, 2])
    directions = Directions(offsets, pool, modality)
    rows = torch.arange(6).repeat_interleave(40)
    drawn = directions.draw(rows, torch.Generator().manual_seed(0))
    for row, vector in zip(rows.tolist(), drawn, strict=True):
        if modality[row] == 2:  # no honest question asks for this kind
            assert vector.norm() == pytest.approx(offsets.vectors.norm(dim=1).mean().item(), rel=1e-4)
            continue
        own = (offsets.modality == modality[row]).nonzero()[:, 0]
        near = own[(offsets.positives[own] @ pool[row]).topk(8).indices]
        pairs = [(a, b) for a in near.tolist() for b in near.tolist() if offsets.tasks[a] == offsets.tasks[b]]
        gaps = []
        for a, b in pairs:  # in the plane of two near offsets, and between their lengths
            plane = torch.stack([offsets.vectors[a], offsets.vectors[b]], 1)
            weights = torch.linalg.lstsq(plane, vector[:, None]).solution
            gaps.append(((plane @ weights)[:, 0] - vector).norm() + (weights.min() < -1e-4))
        assert min(gaps) < 1e-3
        lengths = offsets.vectors[near].norm(dim=1)
        assert lengths.min() - 1e-4 <= vector.norm() <= lengths.max() + 1e-4


def test_without_questions_any_direction_will_do(quantizer: ResidualQuantizer) -> None:
    inputs, codes, _ = items(quantizer, shortest=1.0, longest=1.0).draw(60, seed=0)
    assert torch.allclose(inputs.norm(dim=1), torch.ones(60), atol=1e-5)
    assert (inputs - place(quantizer, codes)).norm(dim=1).mean() > 0.5 * DEFAULT_DISTANCE


def test_every_kind_is_there_and_processes_share_one_batch(quantizer: ResidualQuantizer) -> None:
    source = items(quantizer, honest())
    source.rows[2] = source.rows[2][:1]  # a single pair beside many pictures and texts still gets its share
    whole, codes, blocks = source.draw(64, seed=5)
    assert [kind for kind, _ in blocks] == [0, 1, 2] and len(whole) == 64
    parts = [source.draw(64, seed=5, rank=rank, world=2) for rank in range(2)]
    assert len(parts[0][0]) == len(parts[1][0]) == 32
    for kind, rows in blocks:
        assert torch.equal(torch.cat([z[dict(own)[kind]] for z, _, own in parts]), whole[rows])
        assert torch.equal(torch.cat([ids[dict(own)[kind]] for _, ids, own in parts]), codes[rows])
    with pytest.raises(GeniusError, match="does not divide"):
        source.draw(64, seed=5, world=3)


def test_an_offset_is_question_minus_one_of_its_answers() -> None:
    torch.manual_seed(0)
    questions, pool = torch.randn(5, 4), torch.randn(9, 4)
    pairs = torch.tensor([[0, 1], [0, 2], [1, 3], [3, 8]])
    made = query_offsets(questions, torch.arange(5), pairs, pool, torch.arange(9) % 3, seed=0)
    assert len(made.vectors) == 3 and made.tasks.tolist() == [0, 1, 3]
    assert torch.allclose(made.vectors + made.positives, questions[[0, 1, 3]])
    assert any(torch.equal(made.positives[0], pool[row]) for row in (1, 2))
    assert made.modality[1:].tolist() == [0, 2]


def test_items_are_moved_aside_too_as_far_as_is_said(quantizer: ResidualQuantizer) -> None:
    offsets = honest()
    along, both = (items(quantizer, offsets, shortest=0.5, longest=0.5, noise=aside) for aside in (0.0, 1.0))
    cosines = []
    for source in (along, both):
        inputs, codes, _ = source.draw(300, seed=0)
        cosines.append((inputs * place(quantizer, codes)).sum(1).mean().item())
    assert cosines[1] < cosines[0] - 0.05  # farther away on average


def test_a_rare_kind_is_met_as_often_as_the_others(quantizer: ResidualQuantizer) -> None:
    """log p must not learn that a kind of few items is a worse answer."""
    source = items(quantizer)
    source.rows = [torch.arange(60), torch.arange(60, 62), torch.arange(0)]
    assert source.counts(1024) == [512, 512, 0]
    source.rows[2] = torch.arange(80, 90)
    each = source.counts(1024)
    assert sum(each) == 1024 and max(each) - min(each) <= 64
