"""Damaged pictures, drawings, request bodies, tables and checkpoints: an answer or one clear error, never a crash."""

from __future__ import annotations

import random

import fuzz_readers
import fuzz_requests
import pytest

from genius import pictures

TARGETS = {**fuzz_readers.TARGETS, **fuzz_requests.TARGETS}

pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow's, of odd files


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Bytes flipped, cut out, doubled, or replaced by words that mean something."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 2, 5, 20))):
        place = draw.randrange(len(changed) + 1)
        kind = draw.randrange(4)
        if kind == 0 and place < len(changed):
            changed[place] = draw.randrange(256)
        elif kind == 1:
            del changed[place : place + draw.randrange(1, 40)]
        elif kind == 2:
            changed[place:place] = changed[place : place + draw.randrange(1, 40)]
        else:
            changed[place:place] = draw.choice(fuzz_requests.WORDS).encode()
    return bytes(changed)


@pytest.mark.parametrize(
    ("target", "times"),
    [
        ("pictures", 4),
        ("drawings", 12),
        ("http", 25),
        ("filters", 100),
        ("jsonl", 200),
        ("csv", 200),
        ("parquet", 150),
        ("checkpoint", 150),
        ("pickles", 200),
    ],
)
def test_damaged_input_gets_one_clear_answer(target: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resvg_py")
    monkeypatch.setattr(pictures, "MAX_PIXELS", pictures.MAX_PIXELS)  # the target lowers it: put back afterwards
    run, seeds = TARGETS[target]()
    draw = random.Random(7)
    for seed in seeds:
        for _ in range(times):
            run(damaged(seed, draw))
