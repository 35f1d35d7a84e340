"""The examples in docstrings run, and say what happens; what people see first is short."""

from __future__ import annotations

import doctest
import importlib

import pytest

from genius.encoders.registry import bundled_names

pytestmark = pytest.mark.skipif("mini" not in bundled_names(), reason="the bundled weights are not in this checkout")


@pytest.mark.parametrize("module", ["genius.model.genius", "genius.index.index"])
def test_examples_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 3 and result.failed == 0


def test_a_model_shows_itself_in_one_line() -> None:
    from genius import Genius

    assert len(repr(Genius.from_pretrained("bundled:mini"))) < 160
