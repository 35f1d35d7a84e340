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
    assert line is not None and line["single_qps"] > 500 and line["bytes_per_item"] < 22  # "more than 500", "twenty bytes"
    opq = contenders(body)["Faiss IVF, OPQ 8 B, vectors on disk"]
    for recall, key, quicker in ((0.95, "single_qps", False), (0.95, "batch_qps", True), (0.98, "single_qps", True)):
        mine, theirs = best(ours, recall, key), best(opq, recall, key)
        assert mine is not None and theirs is not None and (mine[key] > theirs[key]) == quicker  # "no faster", "slower"
