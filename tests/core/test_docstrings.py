"""The examples in docstrings run, and say what happens; what people see first is short and says what everything means."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pydoc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genius import Genius, Index, Item
from genius.encoders import bundled_names
from genius.serve.client import GeniusClient

bundled = pytest.mark.skipif("mini" not in bundled_names(), reason="the bundled weights are not in this checkout")


@bundled
@pytest.mark.parametrize("module", ["genius.model.genius", "genius.index.index", "genius.types", "genius.search.params"])
def test_examples_run(module: str, tmp_path: Path) -> None:
    """Examples of methods of an index share one of two texts, called `index`."""
    with Index(tmp_path / "notes.genius", "bundled:mini") as index:
        index.add([Item("1", text="a red bicycle", metadata={"price": 40}), Item("2", text="a boat on the sea")])
        result = doctest.testmod(importlib.import_module(module), extraglobs={"index": index, "Item": Item})
    assert result.attempted > 1 and result.failed == 0


@pytest.mark.parametrize("name", ["add", "upsert", "get", "count", "items", "search", "search_many", "columns", "codes", "info"])
def test_methods_of_an_index_have_an_example(name: str) -> None:
    assert ">>>" in (inspect.getdoc(getattr(Index, name)) or "")


@bundled
def test_a_model_shows_itself_in_one_line() -> None:
    assert len(repr(Genius.from_pretrained("bundled:mini"))) < 160


def test_help_is_about_genius_and_nothing_else() -> None:
    shown = pydoc.plain(pydoc.render_doc(Genius))
    assert len(shown.splitlines()) < 250  # it was 1,132 when a model was a torch module
    assert "Module" not in shown and "forward" not in shown and "nn." not in shown
    for name in ("from_pretrained", "from_encoder", "save_pretrained", "embed_items", "embed_queries"):
        assert name in shown


def public(kind: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(kind).items():
        member = member.__func__ if isinstance(member, classmethod) else member
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            yield name, member


@pytest.mark.parametrize("kind", [Genius, Index, GeniusClient])
def test_every_parameter_is_explained(kind: type) -> None:
    """Each public method says what it does, and names every parameter; those of `__init__` may be in the class's own words."""
    for name, member in public(kind):
        said = f"{member.__doc__ or ''} {kind.__doc__ if name == '__init__' else ''}"
        assert said.strip(), f"{kind.__name__}.{name} says nothing"
        parameters = [own for own in inspect.signature(member).parameters if own != "self" and own != "cls"]
        missing = [own for own in parameters if own not in said]
        assert not missing, f"{kind.__name__}.{name} does not explain {missing}"
