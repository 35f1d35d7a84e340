"""An index as tools for AI assistants, over the Model Context Protocol (package `mcp`). Knows nothing of HTTP."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from genius.index import Index
from genius.index.target import Target
from genius.search import SearchRequest
from genius.types import Query
from genius.version import __version__

MAX_HITS = 50  # of one call by an assistant: a model reads them


def mcp_server(index: Index) -> Any:
    """An open index as a server of three tools: search, show an item, explain a result. They only read.

    Args:
        index: An open index.

    Returns:
        A server of the package `mcp`; its `run()` serves on stdin and stdout.

    Raises:
        GeniusError: If the package is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise GeniusError("genius mcp needs the package mcp: pip install 'genius-search[mcp]'") from None
    parameters: dict[str, list[str]] = {}

    class Server(MCPServer):  # type: ignore[misc]
        """Refuses arguments that a tool does not have: the protocol's package drops them without a word."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            known = parameters.get(name, list(arguments))
            unknown = [argument for argument in arguments if argument not in known]
            if unknown:
                raise ToolError(f"{name} has no argument {unknown[0]!r}, only {', '.join(known)}")
            return await super().call_tool(name, arguments, context)

    about = f"Searches {len(index):,} images and texts of {index.path.name} by meaning."
    fields = ", ".join(f"{name} ({data_type})" for name, data_type in index.columns().items()) or "none"
    server = Server("genius", instructions=f"{about} Metadata fields for `where`: {fields}.", version=__version__)

    def search(
        text: str | None = None,
        image: str | None = None,
        k: int = 10,
        target: str | None = None,
        where: str | None = None,
        minus: str | None = None,
    ) -> dict[str, Any]:
        """Find items with a text, an image (a path on this machine), or an image changed as the text says. Best first.

        target: image, text, pair or any; default: images, or texts if there are no images. k: number of results, at most 50.
        where: SQL filter over metadata, such as price < 50. minus: text to steer away from.
        """
        wanted = Target.parse(target)
        request = SearchRequest(max(1, min(k, MAX_HITS)), where, any_modality=wanted.any_modality)
        query = Query(text or None, image or None, None, wanted.modality, None if minus is None else Query.of(minus))
        hits = index.search_many([query], request)[0]
        return {
            "hits": [hit.to_dict() for hit in hits],
            "why_nothing": hits.why,
            "probably_nothing_here": hits.doubtful,
        }

    def show(id: str) -> dict[str, Any]:
        """One item by its id: text, metadata, path of its image, codes."""
        item = index.get(id)
        image = None
        if isinstance(item.image, str | Path):
            image = str(item.image)
        body = {"id": item.id, "modality": item.modality.label, "text": item.text, "image": image}
        return {**body, "metadata": dict(item.metadata), "codes": list(index.codes(id))}

    def explain(text: str | None = None, image: str | None = None, target: str | None = None) -> dict[str, Any]:
        """How the results of a search come about: the plan that ran, the codes generated, their log-probabilities."""
        wanted = Target.parse(target)
        query = Query(text or None, image or None, None, wanted.modality)
        return index.explain(query, SearchRequest(3, any_modality=wanted.any_modality))

    def with_errors(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """The tool with its one-line errors passed on to the assistant."""

        @functools.wraps(tool)
        def call(*args: Any, **given: Any) -> dict[str, Any]:
            try:
                return tool(*args, **given)
            except GeniusError as error:
                raise ToolError(str(error)) from None

        return call

    for tool in (search, show, explain):
        server.add_tool(with_errors(tool))
        parameters[tool.__name__] = list(inspect.signature(tool).parameters)
    return server
