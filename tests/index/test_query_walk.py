"""How many files one has to open to read what a query does: those on the page that leads through them, and no other."""

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

ROOT = Path(genius.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
pytestmark = pytest.mark.skipif("mini" not in bundled_names(), reason="the bundled weights are not in this checkout")


def named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_/]+\.py)`", text))


def test_a_query_is_read_in_few_files(tmp_path: Path) -> None:
    """At most twelve, each of which takes part; whatever else runs is named as not worth opening."""
    section = PAGE.read_text(encoding="utf-8").partition("## A query")[2].partition("\n## ")[0]
    order, _, rest = section.partition("in this order:")[2].partition("On a CPU")
    instead, beside = (named(part.partition("`tests/")[0]) for part in rest.split("Beside them", 1))
    walk = named(order)
    assert len(walk) <= 12 and all((ROOT / file).is_file() for file in walk | instead | beside)

    index = Index(tmp_path / "notes.genius", Genius.from_pretrained("bundled:mini"))
    index.add([Item(f"{colour} {thing}", text=f"a {colour} {thing}") for colour in ("red", "blue") for thing in ("boat", "tree")])
    index.search("a boat")  # what is made once is made

    def files_of(params: SearchParams | None) -> set[str]:
        ran: set[str] = set()

        def seen(frame: FrameType, event: str, _: Any) -> None:
            path = Path(frame.f_code.co_filename)
            if event == "call" and path.is_relative_to(ROOT):
                ran.add(path.relative_to(ROOT).as_posix())

        sys.setprofile(seen)
        try:
            assert index.search("a red boat", params=params)[0].id == "red boat"
        finally:
            sys.setprofile(None)
        return ran

    written = files_of(SearchParams().named("genius-r"))
    assert walk - written == {"cli/search.py"} and written <= walk | beside, sorted(written - walk - beside)
    planned = files_of(None)
    assert instead - walk <= planned and planned <= walk | instead | beside, sorted(planned - walk - instead - beside)
