"""At which code beams lose the positives."""

from __future__ import annotations

import numpy as np
import torch

from genius.evaluate.generative import NoDecoder
from genius.model.config import QuantizerConfig
from genius.model.quantizer import ResidualQuantizer
from genius.search import CodeTrie
from genius.search.decoder import DecoderState
from lab.paper.survival import prefix_survival

WIDTH, SIZES = 8, (3, 6, 5, 4)


def test_a_query_counts_until_its_last_positive_has_left_the_beams() -> None:
    codes = np.array([[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]])

    quantizer = ResidualQuantizer(QuantizerConfig(WIDTH, SIZES, modality_code="nearest"))

    class LowFirst(NoDecoder):
        def next_log_probs(self, codes: torch.Tensor, state: DecoderState) -> tuple[torch.Tensor, DecoderState]:
            queries, beams, level = codes.shape
            return -torch.arange(SIZES[level]).float().expand(queries, beams, -1), state

    positives = [codes[3:], codes[1:2], codes[:0]]
    share = prefix_survival(LowFirst(quantizer), CodeTrie.build(codes, SIZES), torch.zeros(3, WIDTH), positives, beams=1)
    assert share.tolist() == [0.5, 0.5, 0.0, 0.0]  # query 0 lost at once, query 1 at level 2; query 2 has no positive
