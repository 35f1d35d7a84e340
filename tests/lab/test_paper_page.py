"""docs/results/paper.md is what its program makes of the committed results, and names every table and figure once."""

from __future__ import annotations

from lab.paper.page import DOWNLOAD, OPEN, PAGE, entries, page
from lab.paper.reproduce import listing


def test_the_page_is_made_by_its_program() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m lab.paper.page"
    assert all(len(line) <= 120 for line in page().splitlines() if not line.startswith("|"))


def test_every_experiment_of_the_paper_is_on_the_page() -> None:
    ours = {"beyond", "supplement-figure-3", "supplement-figure-4"}
    names = {entry.name.partition(" to")[0] for entry in entries()}
    assert set(listing()) - ours <= names


def test_what_was_not_run_has_no_result() -> None:
    for entry in entries():
        assert bool(entry.result) == (entry.state not in (DOWNLOAD, OPEN)), entry.name
