"""The scaling experiment of the bundled model: what a share of the concepts leaves, on a benchmark worked by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from lab.mini.data import Bench, Questions, TextTable
from lab.mini.scaling import choose, fit, part_of, seen_hits


def bench() -> Bench:
    """Concepts 0 and 1 are learned, 2 is for testing. Drawings 0, 1 show concept 0, 2 and 3 concept 1, 4 concept 2.
    Candidates 0 to 4 are the drawings; texts: 5 answers a question of concept 1 alone, 6 of both, 7 none."""
    none, t = TextTable(torch.zeros(0, 1), torch.zeros(0)), torch.tensor
    image, text = t([0, 1, 2, 3, 4, -1, -1, -1]), t([-1, -1, -1, -1, -1, 0, 1, 2])
    lists = [[0, 1], [2, 3], [1, 2], [5, 6], [6], [4]]
    starts = t([0, *torch.cumsum(t([len(one) for one in lists]), 0).tolist()])
    questions = {
        # text -> image of each concept and of both, image -> text of each, image -> image of concept 1
        "train": Questions(t([-1, -1, -1, 2, 0, 2]), t([3, 4, 5, -1, -1, -1]), t([0, 0, 0, 3, 3, 4]), t([0, 1, 2, 3, 4, 1])),
        "test": Questions(t([-1]), t([6]), t([0]), t([5])),
    }
    concept = t([0, 0, 1, 1, 2])
    key = torch.where(image >= 0, concept[image.clamp(min=0)], -1)
    return Bench(
        torch.zeros(5, 1), none, none, t([]), image, text, key, image != 4, concept, t([0, 1, 2, 3]), torch.zeros(5).bool(), [],
        starts, t([c for one in lists for c in one]), questions,
    )  # fmt: skip


def answers(part: Bench, split: str) -> list[list[int]]:
    lists = part.questions[split].answers
    rows, members = part.members(lists)
    return [members[rows == i].tolist() for i in range(len(lists))]


def test_of_a_concept_left_out_nothing_is_asked_answered_or_shown() -> None:
    part = part_of(bench(), torch.tensor([True, False, False]))
    assert part.train.tolist() == [0, 1]
    assert part.questions["train"].text.tolist() == [3, 5, -1] and part.questions["train"].image.tolist() == [-1, -1, 0]
    assert answers(part, "train") == [[0, 1], [1], [6]]  # of the question for both, the kept concept's drawing
    assert part.allowed.tolist() == [True, True, False, False, False, False, True, True]
    assert answers(part, "test") == [[4]] and len(part.pool_image) == 8  # what is measured stays


def test_all_concepts_leave_the_benchmark_as_it_is() -> None:
    whole = bench()
    part = part_of(whole, torch.tensor([True, True, False]))
    assert answers(part, "train") == answers(whole, "train") and torch.equal(part.train, whole.train)
    assert torch.equal(part.allowed, whole.allowed)


def test_shares_are_nested_and_edits_of_a_thing_stay_with_it() -> None:
    names = [name for i in range(40) for name in (f"thing {i}", f"thing {i}+off")] + ["never"]
    kept = [choose(names, list(range(80)), share, seed=3) for share in (0.125, 0.25, 0.5, 1.0)]
    assert [int(k.sum()) for k in kept] == [10, 20, 40, 80]
    for small, large in itertools.pairwise(kept):
        assert bool((large | ~small).all())
    assert all(bool(k[2 * i]) == bool(k[2 * i + 1]) for k in kept for i in range(40)) and not kept[-1][80]
    assert not torch.equal(kept[0], choose(names, list(range(80)), 0.125, seed=4))


def test_a_seen_question_does_not_meet_its_own_drawing() -> None:
    whole = bench()
    asked = Questions(
        torch.tensor([0]), torch.tensor([-1]), torch.tensor([4]), torch.tensor([2])
    )  # answers 1 and 2; asked with 0
    pool = torch.eye(8)
    query = torch.tensor([[0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]])  # its own drawing first, the answers last
    found = seen_hits(query, pool, whole, asked)[4]
    assert found["hit@1"] == 0 and found["hit@5"] == 0 and found["hit@10"] == 100
    query[0, 2] = 0.8  # second after its own drawing, which does not count
    assert seen_hits(query, pool, whole, asked)[4]["hit@1"] == 100


def test_the_line_through_the_shares_says_how_many_concepts_a_bar_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, concepts in enumerate((100, 200, 400)):
        found = {task: {"hit@5": value} for task, value in (("0", 5.0 + 10 * i), ("4", 50.0))}
        worse = {task: {"hit@5": 0.0} for task in ("0", "4")}
        curve = [{"step": 1, "val": found, "test": found, "seen": found}, {"step": 2, "val": worse, "test": worse, "seen": worse}]
        (tmp_path / f"{i}.json").write_text(json.dumps({"concepts": concepts, "curve": curve}))
    fit(sorted(tmp_path.glob("*.json")))
    said = capsys.readouterr().out
    assert "10.00 a doubling" in said and "35 at 800 concepts" in said and "best after 1 steps" in said
    assert "image -> image, val: 100 50.0, 200 50.0, 400 50.0; 0.00 a doubling (largest error 0.00); no growth" in said
