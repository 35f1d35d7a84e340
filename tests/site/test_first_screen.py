"""README and the site's home page say in their first lines what GENIUS is, show it, and give commands to run."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST_LINES = 30


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_screen_has_the_category_a_picture_and_commands(page: str) -> None:
    first = "\n".join((ROOT / page).read_text(encoding="utf-8").splitlines()[:FIRST_LINES])
    expected = ("multimodal search engine", "images/page.png", "pip install", "genius demo", "genius serve")
    assert [words for words in expected if words not in first] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_alternatives_and_limits_are_named(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [name for name in ("Faiss", "HNSW", "vector database", "rclip", "immich", "Limits") if name not in text] == []
