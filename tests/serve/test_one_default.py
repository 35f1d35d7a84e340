"""One default target: the same query has the same results through Python, the command line, HTTP, LangChain and MCP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_encoder
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from genius.cli import app
from genius.index import Index
from genius.index.searching import not_rising
from genius.index.target import Target
from genius.search import SearchRequest
from genius.types import Item, Modality, Query

QUERIES = ("a red circle", "a blue square on white paper", "something green")
K = 10


@pytest.fixture(scope="module")
def index(make_index: Callable[..., Index]) -> Index:
    fake_encoder.register()  # the command line opens the model's folder
    return make_index()


def by_command_line(index: Index, model: Path, text: str, *more: str) -> list[str]:
    arguments = ["search", str(index.path), text, "-k", str(K), "--model", str(model), "--json", *more]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    return [hit["id"] for hit in json.loads(shown.stdout.strip().splitlines()[-1])["hits"]]


def by_mcp(index: Index, **given: Any) -> list[str]:
    pytest.importorskip("mcp")
    from genius.integrations.mcp import mcp_server

    result = asyncio.run(mcp_server(index).call_tool("search", given))
    return [hit["id"] for hit in json.loads(result.content[0].text)["hits"]]


def by_langchain(index: Index, text: str, **given: Any) -> list[str]:
    pytest.importorskip("langchain_core")
    from genius.integrations.langchain import GeniusVectorStore

    retriever = GeniusVectorStore(index).as_retriever(search_kwargs={"k": K, "target": None, **given})
    return [document.id for document in retriever.invoke(text)]


@pytest.mark.parametrize("target", [None, "any", "text"])
def test_every_interface_finds_the_same(
    index: Index, model_folder: Path, make_web: Callable[..., TestClient], target: str | None
) -> None:
    web = make_web(index)
    given = {} if target is None else {"target": target}
    options = [] if target is None else ["--target", target]
    for text in QUERIES:
        found = index.search(text, k=K, **given)
        expected = [hit.id for hit in found]
        assert len(expected) == K
        if target is None:
            assert {hit.modality for hit in found} <= {Modality.IMAGE, Modality.PAIR}
        body = web.post("/v1/search", json={"text": text, "k": K, **given}).json()
        assert [hit["id"] for hit in body["hits"]] == expected
        assert [hit.id for hit in index.search_many([text], request(target))[0]] == expected or target == "text"
        assert by_langchain(index, text, **given) == expected
        assert by_mcp(index, text=text, k=K, **given) == expected
    assert by_command_line(index, model_folder, text, *options) == expected


def request(target: str | None) -> SearchRequest:
    return SearchRequest(K, any_modality=Target.parse(target).any_modality)


def test_any_finds_every_modality(index: Index) -> None:
    assert {hit.modality for hit in index.search("a red circle", target="any", k=300)} == set(Modality)
    assert {hit.modality for hit in index.search("a red circle", instruction="find it", k=300)} == set(Modality)


def test_texts_are_found_where_nothing_else_matches(index: Index, tmp_path: Path) -> None:
    hits = index.search("a red circle", where="modality = 'text'")
    assert hits and hits.target is None and {hit.modality for hit in hits} == {Modality.TEXT}
    assert index.search("a red circle", where="modality = 'text'", target="image") == []  # asked for, so obeyed
    assert index.search("a red circle", min_score=2.0) == []  # there are images, and none is similar enough
    with Index(tmp_path / "texts.genius", index.model) as texts:
        texts.add([Item("a", text="a red circle"), Item("b", text="a blue square")])
        found = texts.search("a red circle")
        assert found.target is Modality.TEXT and len(found) == 2
        assert texts.explain(Query("a red circle"))["answers"]


def test_the_server_says_what_it_looks_for(index: Index, make_web: Callable[..., TestClient]) -> None:
    assert make_web(index).get("/v1/info").json()["default_target"] == "image"


def test_probabilities_never_rise_down_the_list() -> None:
    assert not_rising([0.5, 0.2, 0.4, 0.1]) == pytest.approx([0.5, 0.3, 0.3, 0.1])
    assert not_rising([0.1, 0.2, 0.3]) == pytest.approx([0.2, 0.2, 0.2])
    assert not_rising([]) == []
