"""docs/architecture.md names files that exist, and a search runs through those of its section on queries."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import genius
from genius import Genius, Index, Item
from genius.encoders import bundled_names
from genius.search import SearchParams

SOURCE = Path(genius.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")


def files_in(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_/]+\.py)`", text.replace("`tests/", "")))


def test_every_file_it_names_exists() -> None:
    assert [name for name in sorted(files_in(PAGE)) if not (SOURCE / name).is_file()] == []


@pytest.mark.skipif("mini" not in bundled_names(), reason="the bundled weights are not in this checkout")
def test_a_search_runs_through_the_files_of_its_section(tmp_path: Path) -> None:
    section = PAGE.partition("## A query")[2].partition("\n## ")[0]
    index = Index(tmp_path / "notes.genius", Genius.from_pretrained("bundled:mini"))
    index.add([Item(f"{colour} {thing}", text=f"a {colour} {thing}") for colour in ("red", "blue") for thing in ("boat", "tree")])
    called: set[str] = set()

    def note_file(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            called.add(path.relative_to(SOURCE).as_posix())

    sys.setprofile(note_file)
    try:
        assert index.search("a red boat", target="text")[0].id == "red boat"
        assert index.search("a red boat", target="text", params=SearchParams().named("genius-r"))[0].id == "red boat"
    finally:
        sys.setprofile(None)
    elsewhere = {"cli/search.py", "search/scan.py"}  # the command line; the plan of large collections
    assert files_in(section) - called - elsewhere == set()
