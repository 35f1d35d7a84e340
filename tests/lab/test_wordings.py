"""Wordings of instructions: the grammar that the reader is trained on, and what is measured of it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from genius.instructions import CLASSES, WORDS, read_instruction
from genius.instructions import TARGETS as MODALITIES
from genius.types import Modality
from lab.wordings.grammar import DIRECTIONS, TARGETS, rules_of, sentence
from lab.wordings.measure import KINDS, READ, blind, held_out_words
from lab.wordings.train import Reader, sentences


def test_every_alternative_is_made_of_rules_and_classes() -> None:
    for query, target in DIRECTIONS:
        for own in (True, False):
            rules = rules_of(query, target, own)
            used = {symbol.removesuffix("?") for parts in rules.values() for part in parts for symbol in part}
            assert {symbol.lower() for symbol in used - set(rules)} <= set(CLASSES)
            assert all(symbol.isupper() for symbol in used - set(rules))


def test_the_grammar_knows_classes_alone() -> None:
    rng = random.Random(0)
    for query, target in DIRECTIONS * 300:
        assert set(sentence(query, target, rng)) <= set(CLASSES)


def test_sentences_of_the_grammar_are_read() -> None:
    """Words of its classes, in place of the classes: the network that ships knows the grammar that is here."""
    rng = random.Random(3)
    right = []
    for query, target in DIRECTIONS * 50:
        words = [rng.choice(WORDS.get(name, (",",))) for name in sentence(query, target, rng)]
        read = read_instruction(" ".join(words), Modality.parse(query)).target
        right.append(read == MODALITIES[TARGETS.index(target)])
    assert np.mean(right) > 0.95


def test_a_trained_reader_gives_the_arrays_that_are_read() -> None:
    reader = Reader()
    classes, query, target = sentences(24, random.Random(0))
    assert reader(classes, query).shape == (24, len(TARGETS))
    assert sorted(set(target.tolist())) == [0, 1, 2, 3]
    assert reader.arrays()["embedding_weight"].shape[0] == len(CLASSES) + 1


def test_words_held_out_are_those_that_training_lacks() -> None:
    assert held_out_words(["Find snapshots of the image."]) == {"snapshots", "snapshot", "of"} - {"of"}


@pytest.mark.parametrize("half", ["A", "B"])
def test_blind_wordings_are_read_as_the_result_says(half: str) -> None:
    """Without an encoder; the result is of one with the text tower, and at most two wordings differ."""
    body = json.loads(READ.read_text(encoding="utf-8"))
    for kind in KINDS:
        right = sum(read_instruction(text, query).target == target for text, query, target in blind(half, kind))
        line = next(
            line for line in body["lines"] if (line["half"], line["wording"], line["instructions"]) == (half, kind, "read")
        )
        assert line["wordings"] == 15
        assert abs(right - line["right"]) <= 2
