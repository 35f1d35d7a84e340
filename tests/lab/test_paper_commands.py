"""Every command that the pages about the paper name is run by a test, at a tiny size on the CPU.

Those of docs/mbeir.md run from top to bottom (tests/demo), experiments one by one (test_reproduce), programs of `lab.paper`
here."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from lab.paper import page, published_report
from lab.paper.reproduce import listing

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("results/paper.md", "results/mbeir.md", "mbeir.md")
ELSEWHERE = {
    "published": "test_published.test_the_command_runs_rows_and_goes_on",
    "published_report": "test_published.test_a_trial_writes_every_kind_of_row_and_a_second_call_goes_on",
    "whole_towers": "test_whole_towers.test_all_rows_at_a_tiny_size",
}


def text() -> str:
    return "\n".join((DOCS / name).read_text(encoding="utf-8") for name in PAGES)


def test_every_program_that_the_pages_name_is_run_by_a_test() -> None:
    named = set(re.findall(r"lab\.paper\.(\w+)", text()))
    assert {"published", "page", "whole_towers"} <= named <= {"page", *ELSEWHERE}
    for test in ELSEWHERE.values():
        module, _, name = test.partition(".")
        assert hasattr(importlib.import_module(module), name)


def test_the_page_is_what_its_program_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "paper.md"
    monkeypatch.setattr(page, "PAGE", written)
    page.main()
    assert written.read_text(encoding="utf-8") == (DOCS / "results" / "paper.md").read_text(encoding="utf-8")


def test_every_experiment_that_the_pages_name_exists() -> None:
    """Each is run by test_reproduce."""
    named = set(re.findall(r"reproduce ([\w-]+)", text())) - {"NAME", "list", "refuses"}
    assert len(named) > 10 and named <= set(listing())


def test_the_report_and_the_page_read_the_same_file() -> None:
    assert published_report.RESULTS.is_file() and page.FOLDER == published_report.FOLDER
