"""The programs that measure on a GPU, tried at sizes for two cores: what they count and that they run."""

from __future__ import annotations

import pytest

from lab.mbeir import extract_rate


def test_operations_of_clip_large_are_what_is_known_of_it() -> None:
    """ViT-L/14 at 224 pixels takes 81 billion multiplications with their additions (162 billion operations)."""
    assert extract_rate.picture_operations(extract_rate.LARGE) / 1e9 == pytest.approx(162, rel=0.03)
    text = extract_rate.text_operations(extract_rate.LARGE, 77) / 1e9
    assert text == pytest.approx(2 * 85e6 * 77 / 1e9, rel=0.05)  # 85 million weights in the layers, a product each


def test_the_rate_is_of_our_own_extraction() -> None:
    found = extract_rate.measure(extract_rate.SMALL, pictures=24, texts=32, batch=8, workers=1, seconds=0.01)
    lines = {line["what"]: line for line in found["lines"]}
    assert len(lines) == 4 and all(line["rate"] > 0 for line in lines.values())
    line = lines["pictures/s, tower alone"]
    used = line["rate"] * found["operations"]["pictures"]
    assert line["share_of_measured_product"] == pytest.approx(used / found["measured_product"], rel=1e-3)
