"""The analyses' arithmetic, where a picture alone would not show a mistake."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from genius.types import Item
from lab.paper.analyses import closeness, pattern, shared_codes


def test_codes_that_most_kinds_share_come_first() -> None:
    codes = np.array([[0, 5], [0, 5], [1, 5], [2, 5], [0, 3], [0, 3], [0, 3], [0, 3], [1, 2], [2, 2], [0, 2]])
    kinds = codes[:, 0]
    assert shared_codes(codes, kinds, 1, 3) == [5, 2, 3]  # three kinds, four items; three kinds, three; one kind
    assert shared_codes(codes[kinds != 1], kinds[kinds != 1], 1, 1) == [5]  # a kind that is not there does not count
    assert pattern(1, 1782, 9) == "*,1782,*" and pattern(2, 1443, 9) == "*,*,1443,*" and pattern(8, 7, 9).endswith(",7")


def test_closeness_of_questions_to_their_answers() -> None:
    axes = torch.eye(4)
    assert closeness(axes, axes) == {"own": 1.0, "others": 0.0, "nearest": 1.0}
    same = torch.ones(4, 4) / 2
    assert closeness(same, same) == {"own": 1.0, "others": 1.0, "nearest": 0.0}  # ties are no hits
    turned = closeness(axes, axes.roll(1, 0))
    assert turned["own"] == 0 and turned["nearest"] == 0 and turned["others"] == pytest.approx(1 / 3)


def test_a_card_shows_what_it_can_and_says_what_it_cannot() -> None:
    from io import BytesIO

    from PIL import Image

    from lab.paper.analyses import _card

    good = BytesIO()
    Image.new("RGB", (40, 20), "red").save(good, "PNG")
    items = {"a": Item("a", image=good.getvalue()), "b": Item("b", image=b"no picture"), "c": Item("c", text="a word")}
    chosen = {"image": ["a", "b"], "text": ["c", "unknown"], "pair": []}
    card = Image.open(BytesIO(_card("*,5", chosen, {"image": 2, "text": 2, "pair": 0}, items))).convert("RGB")
    assert card.getpixel((10 + 52, 44 + 18 + 52)) == (255, 0, 0)  # the picture, in the middle of its tile
    assert card.width == 2 * (104 + 10) + 10
