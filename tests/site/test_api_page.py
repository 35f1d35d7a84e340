"""docs/api.md: every example is run, and every public name has a section of its own."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import genius
from genius.encoders import bundled_names

PAGE = Path(__file__).parents[2] / "docs" / "api.md"

pytestmark = pytest.mark.skipif("mini" not in bundled_names(), reason="the bundled weights are not in this checkout")


def test_every_example_of_the_page_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = doctest.testfile(str(PAGE), module_relative=False)
    assert done.failed == 0 and done.attempted > 15


def test_every_public_name_has_a_section_with_an_example() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}
    for name in set(genius.__all__) - {"__version__"}:
        assert ">>>" in sections[name] and f".{name}\n" in sections[name], name
