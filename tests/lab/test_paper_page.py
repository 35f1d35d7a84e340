"""docs/results/paper.md is what its program makes of the committed results, and names every table and figure once."""

from __future__ import annotations

from lab.paper import published_report
from lab.paper.page import DOWNLOAD, OPEN, PAGE, entries, four_gpus, page
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


def test_the_page_says_that_no_curve_was_flat_as_long_as_none_was() -> None:
    rows = [line for part in ("modality", "size", "baselines", "paper") for line in published_report.lines_of(part)]
    assert rows and all(line["flat at"] is None and line["late at"] for line in rows)
    assert page().count("No curve was flat") == 3


def test_four_gpus_are_faster_with_more_micro_batches_and_never_four_times_faster() -> None:
    for row in four_gpus().splitlines()[2:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")][2:]
        one, four = ([float(value) for value in cell.split(" - ")] for cell in cells)
        assert 1 < one[0] <= four[0] <= 4 and one[-1] <= four[-1] <= 4
