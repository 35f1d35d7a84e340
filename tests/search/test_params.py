"""`SearchRequest` and `SearchParams`: what is asked for is what is searched with, and every door asks for the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from genius import GeniusError, Index
from genius.search import SEARCHES, SearchParams, SearchRequest
from genius.serve.client import GeniusClient
from genius.serve.schemas import SearchBody


def model(**search: Any) -> Any:
    return SimpleNamespace(config=SimpleNamespace(search=search))


def test_the_models_defaults_then_params_then_the_two_knobs() -> None:
    own = model(beams=7, rerank=30, geometry=1.0)  # the last is of models from before log p held nearness
    assert SearchRequest().settings(own) == SearchParams(7, 30)
    given = SearchParams(9, 40, "codes")
    assert SearchRequest(params=given).settings(own) == given
    assert SearchRequest(params=given, beams=3).settings(own) == SearchParams(3, 40, "codes")
    assert SearchRequest(rerank=0).settings(own) == SearchParams(7, 0)
    with pytest.raises(GeniusError, match="beams must be a whole number"):
        SearchRequest().settings(model(beams=10**6))  # out of a file


def test_explicit_settings_are_told_from_the_models() -> None:
    assert SearchRequest(where="a = 1", params=SearchParams(3)).adaptive
    assert not SearchRequest(beams=3).adaptive and not SearchRequest(rerank=0).adaptive


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: SearchRequest(0), "k must be"),
        (lambda: SearchRequest(True), "k must be"),
        (lambda: SearchRequest(where=["a = 1"]), "where must be a condition .* got list"),  # type: ignore[arg-type]
        (lambda: SearchRequest(min_score=float("nan")), "min_score is not a number"),
        (lambda: SearchRequest(beams=0), "beams must be"),
        (lambda: SearchRequest(rerank=-1), "rerank must be"),
        (lambda: SearchRequest(params={"beams": 3}), "params must be SearchParams, got dict"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_request_is_refused_when_it_is_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises(GeniusError, match=said):
        make()


def test_searches_have_one_list() -> None:
    usual = SearchParams(60, 700)
    assert {name: usual.named(name) for name in SEARCHES} == {
        "genius": SearchParams(60, 0, "none", item_bias=False),
        "genius-r": SearchParams(60, 0, "embeddings", item_bias=False),
        "genius-codes": SearchParams(60, 0, "codes"),
        "default": usual,
        "default-codes": replace(usual, reranker="codes"),
        "codes-only": SearchParams(60, 700, "none", "scan"),
    }


def test_every_door_asks_for_the_same() -> None:
    """A new field of the request is one of Python's search, of HTTP and of its client, or is said here not to be."""
    asked = {field.name for field in fields(SearchRequest)} - {"strict", "any_modality"}  # `target` says them
    assert asked <= inspect.signature(Index.search).parameters.keys()
    sent = asked - {"params"}  # settings of programs, not of callers
    assert sent <= SearchBody.model_fields.keys() and sent <= inspect.signature(GeniusClient.search).parameters.keys()
    defaults = {name: SearchBody.model_fields[name].default for name in sent}
    assert defaults == {name: getattr(SearchRequest(), name) for name in sent}
