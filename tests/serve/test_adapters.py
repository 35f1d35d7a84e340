"""The ways in for other programs: tools for assistants, a LangChain retriever."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from genius.index import Index

HELPERS = Path(__file__).parents[1] / "helpers"
LAUNCHER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import fake_encoder; fake_encoder.register(); "
    "from genius.cli import main; main()"
)


def test_an_assistant_can_search_show_and_explain(make_index: Callable[..., Index]) -> None:
    pytest.importorskip("mcp")
    from genius.integrations.mcp import mcp_server

    index = make_index()
    server = mcp_server(index)

    def call(name: str, **given: object) -> dict[str, object]:
        result = asyncio.run(server.call_tool(name, given))
        parts = getattr(result, "content", None) or (result[0] if isinstance(result, tuple) else result)
        return json.loads(parts[0].text)  # type: ignore[no-any-return]

    tools = {tool.name for tool in asyncio.run(server.list_tools())}
    assert tools == {"search", "show", "explain"}
    hits = call("search", text="a red circle on white paper", k=2, where="price < 50", target="any")["hits"]
    assert hits[0]["id"] == "circle red text" and len(hits) == 2  # type: ignore[index, arg-type]
    assert call("show", id="circle red text")["metadata"]["colour"] == "red"  # type: ignore[index]
    assert call("explain", text="red circle", target="text")["traces"]


def test_an_assistant_starts_the_command_and_asks_it(
    make_index: Callable[..., Index], model_folder: Path, tmp_path: Path
) -> None:
    """`genius mcp` as assistants run it: a process of its own, spoken to over its standard input and output."""
    mcp = pytest.importorskip("mcp", reason="the package mcp is not installed: pip install 'genius-search[mcp]'")
    index = make_index()
    picture = tmp_path / "red.png"
    Image.new("RGB", (32, 32), "red").save(picture)
    arguments = ["-c", LAUNCHER, str(HELPERS), "mcp", str(index.path), "--model", str(model_folder)]
    started = mcp.StdioServerParameters(command=sys.executable, args=arguments, env={**os.environ, "OMP_NUM_THREADS": "1"})

    async def talk() -> None:
        async with mcp.Client(started) as client:
            listed = (await client.list_tools()).tools
            assert {tool.name for tool in listed} == {"search", "show", "explain"} and all(tool.description for tool in listed)

            async def call(name: str, **given: object) -> dict[str, Any]:
                result = await client.call_tool(name, given)
                assert not result.is_error, result.content
                return json.loads(result.content[0].text)  # type: ignore[no-any-return]

            found = await call("search", text="a red circle on white paper", k=5, minus="a square")
            expected = index.search("a red circle on white paper", minus="a square", k=5)
            assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in expected]
            alone = await call("search", image=str(picture), k=3)
            assert [hit["id"] for hit in alone["hits"]] == [hit.id for hit in index.search(image=picture, k=3)]
            assert (await call("search", text="a", where="price > 1000"))["why_nothing"].startswith("nothing found")
            assert (await call("show", id="circle red text"))["metadata"]["colour"] == "red"
            assert (await call("explain", text="red circle", target="text"))["traces"]
            for name, given, said in (
                ("show", {"id": "nobody"}, "nobody"),
                ("search", {"text": "a", "where": "no_such = 1"}, "no_such"),
                ("search", {"text": "a", "target": "sound"}, "sound"),
                ("search", {"text": "a", "words": "b"}, "search has no argument 'words', only text, image, k"),
                ("search", {}, "a query needs a text, an image, or both"),
            ):
                refused = await client.call_tool(name, given)
                assert refused.is_error and said in refused.content[0].text and "Traceback" not in refused.content[0].text

    asyncio.run(asyncio.wait_for(talk(), 120))


def test_langchain_gets_documents(make_index: Callable[..., Index]) -> None:
    pytest.importorskip("langchain_core")
    from genius.integrations.langchain import GeniusVectorStore

    index = make_index()
    given = {"k": 3, "target": "text", "filter": "colour = 'red'"}
    found = GeniusVectorStore(index).as_retriever(search_kwargs=given).invoke("a red circle on white paper")
    hits = index.search("a red circle on white paper", target="text", k=3, where="colour = 'red'")
    assert [one.id for one in found] == [hit.id for hit in hits] and found[0].page_content == hits[0].item.text
    assert found[0].metadata["colour"] == "red"
