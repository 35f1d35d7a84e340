"""An index as tools for assistants that speak the Model Context Protocol: `genius mcp my.genius`.

Three tools: search, show an item, explain an answer. They only read. Knows an index; the protocol is the `mcp` package's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from genius.errors import GeniusError
from genius.index import Index
from genius.index.searching import wanted_kind
from genius.search import SearchRequest
from genius.types import Query

MOST = 50  # answers of one call: they are read by a model


def make_server(index: Index) -> Any:
    """The server over an open index; `.run()` talks on stdin and stdout."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise GeniusError("genius mcp needs the package mcp: pip install 'genius-search[mcp]'") from None

    about = f"Searches {len(index):,} pictures and texts of {index.path.name} by meaning."
    fields = ", ".join(f"{name} ({kind})" for name, kind in index.columns().items()) or "none"
    server = MCPServer("genius", instructions=f"{about} Metadata fields for `where`: {fields}.")

    def search(
        words: str,
        count: int = 10,
        target: str | None = None,
        where: str | None = None,
        picture: str | None = None,
        minus: str | None = None,
    ) -> dict[str, Any]:
        """Find items that answer words, a picture (a path), or a picture changed as the words say. Best first.

        target: image, text or pair. where: an SQL condition on metadata, such as price < 50. minus: what answers should not be
        like.
        """
        request = SearchRequest(max(1, min(count, MOST)), where)
        query = Query(words or None, picture, None, wanted_kind(target, None), None if minus is None else Query.of(minus))
        hits = index.search_many([query], request)[0]
        return {
            "hits": [hit.to_dict() for hit in hits],
            "why_nothing": hits.why,
            "probably_nothing_here": hits.doubtful,
        }

    def show(id: str) -> dict[str, Any]:
        """One item by its id: words, metadata, where its picture lies, its codes."""
        item = index.get(id)
        image = str(item.image) if item.image is not None and not isinstance(item.image, bytes) else None
        body = {"id": item.id, "modality": item.modality.label, "text": item.text, "image": image}
        return {**body, "metadata": dict(item.metadata), "codes": list(index.codes(id))}

    def explain(words: str, target: str | None = None) -> dict[str, Any]:
        """Why a search finds what it finds: the codes that were written, how likely each was, what lives below it."""
        return index.explain(Query(words, target=wanted_kind(target, None))).to_dict()

    def told(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """The tool with its one-line errors passed on: the assistant reads them, and asks better."""

        @functools.wraps(tool)
        def call(*args: Any, **given: Any) -> dict[str, Any]:
            try:
                return tool(*args, **given)
            except GeniusError as error:
                raise ToolError(str(error)) from None

        return call

    for tool in (search, show, explain):
        server.add_tool(told(tool))
    return server
