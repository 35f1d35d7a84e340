"""A stranger's six questions: the first screens answer them where docs/stranger.md says, and with figures that were measured."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from lab.front.report import best, contenders, read
from lab.report import read as measured

ROOT = Path(__file__).parents[2]
SCREEN = 45  # lines of text
ANSWERS = (
    "Search that writes",
    "genius index photos/",
    "Why not CLIP + Faiss?",
    "**How good?**",
    "**How fast?**",
    "**What does it cost?**",
)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_six_questions_are_answered_on_the_first_screen(page: str) -> None:
    first = "\n".join((ROOT / page).read_text(encoding="utf-8").splitlines()[:SCREEN])
    assert [words for words in ANSWERS if words not in first] == []
    assert "pictures/beam.svg" in first  # and a picture shows what it is


def test_the_figures_are_those_of_the_files() -> None:
    for name in ("fashion", "icons"):
        lines = [line for line in measured(f"accuracy_{name}")["lines"] if "methods" in line]
        found = [line["methods"] for line in lines if line["name"] == "all items"]
        assert {"10 % added", "90 % added", "filled"} <= {line["name"] for line in lines}
        assert min(line["methods"]["default"]["worst"] for line in lines) >= 0.98  # "for items added later and at a million"
        assert min(one["default"]["worst"] for one in found) >= 0.99  # "keeps 0.99 and more on every task", in every training
        assert statistics.mean(one["genius"]["mean"] for one in found) >= 0.945  # "0.95 and more on average"
    body = read("icons_1m")
    assert body is not None and body["items"] == 1_000_000 and body["threads"] == 1
    ours = next(lines for name, lines in contenders(body).items() if name.startswith("ours"))
    line = best(ours, 0.95, "single_qps")
    assert line is not None and line["single_qps"] > 1000 and line["bytes_per_item"] < 22  # "more than 1,000", "twenty bytes"
    for rival in ("Faiss IVF, OPQ 8 B, vectors on disk", "Faiss HNSW16"):
        theirs = contenders(body)[rival]
        for recall, quicker in ((0.9, False), (0.95, True)):  # "faster up to a recall of 0.9 and slower from 0.95 on"
            mine, other = best(ours, recall, "single_qps"), best(theirs, recall, "single_qps")
            assert mine is not None and other is not None and (mine["single_qps"] > other["single_qps"]) == quicker
    scann = best(contenders(body)["ScaNN"], 0.95, "single_qps")
    assert scann is not None and 1.8 < scann["single_qps"] / line["single_qps"] < 2.3  # "twice as fast"
    card = read("gpu")
    assert card is not None and card["default"]["10000000 uniform"]["batches"]["qps"] > 200_000
