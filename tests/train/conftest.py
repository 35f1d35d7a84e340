"""What every test of this room starts from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from genius.train.config import RECIPES


@pytest.fixture(autouse=True)
def recipes_as_they_are() -> Iterator[None]:
    before = dict(RECIPES)
    yield
    RECIPES.update(before)
