"""The error analysis of the bundled model: its matchers and its judge of names, on examples worked by hand."""

from __future__ import annotations

import torch

from lab.mini.everyday import KNOWN, NEW, fair, parse
from lab.mini.oracles import best_of, closed_vocabulary, first_right, hit_rates, lexical, ranks


def test_places_of_the_first_right_row_become_hit_rates() -> None:
    found = first_right(torch.tensor([[4, 2, 9], [1, 2, 3], [7, 8, 9]]), [{2, 9}, {5}, {7}])
    assert found == [1, 3, 0]
    assert hit_rates(torch.tensor([*found, 6])) == {"hit@1": 25.0, "hit@5": 75.0, "hit@10": 100.0, "n": 4}


def test_bm25_prefers_the_rare_word_and_the_short_document() -> None:
    documents = ["red car", "red bus", "a red car with a red roof and red doors", "tree"]
    scores = lexical(documents, ["bus of red", "car", "nothing"])(slice(0, 3))
    assert scores[0].argmax() == 1 and scores[1].argmax() == 0 and scores[1, 2] > 0
    assert scores[2].abs().max() == 0 and scores[:, 3].abs().max() == 0


def test_a_concept_scores_as_its_best_text_and_drawings_as_their_concept() -> None:
    vectors = torch.eye(3)  # two texts of concept 0, one of concept 1
    score = best_of(vectors, torch.tensor([0, 0, 1]), 2, torch.tensor([[0.1, 0.9, 0.5], [0.0, 0.2, 0.6]]))
    assert torch.allclose(score(slice(0, 2)), torch.tensor([[0.9, 0.5], [0.2, 0.6]]))
    owner = torch.tensor([1, 0, 1, 0])  # of four drawings
    assert ranks(score, owner, [{1, 3}, {1}], deepest=4).tolist()[0] == 0
    assert ranks(score, owner, [{1, 3}, {1}], deepest=4).tolist()[1] >= 2  # both drawings of concept 1 come before


def test_with_a_closed_vocabulary_an_unseen_thing_is_its_nearest_seen_one() -> None:
    concepts = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    score = closed_vocabulary(concepts, torch.tensor([True, True, False]), concepts, nearest=1)
    assert torch.allclose(score(slice(2, 3))[0], torch.tensor([0.8, 0.6, 0.8]))  # told as the first one
    mixed = closed_vocabulary(concepts, torch.tensor([True, True, False]), concepts, nearest=2)(slice(2, 3))[0]
    assert mixed[2] > 0.8


def test_names_are_judged_by_the_beginnings_of_words() -> None:
    assert fair("Piggy bank", ["pig"]) is False and fair("pigs", ["pig"]) and fair("piggy bank", ["piggy"])
    assert not fair("fingerprint", ["print"]) and fair("printer off", ["print"])
    rows = parse(NEW) + parse(KNOWN)
    assert len(rows) == len({query for query, _ in rows}) == 145
    assert all(words and all(w and w == w.strip() for w in words) for _, words in rows)
