"""`genius mcp`: an index as tools for assistants."""

from __future__ import annotations

import typer

from genius.cli.common import command
from genius.cli.index import DeviceOption, IndexArgument, ModelOption


def register(app: typer.Typer) -> None:
    app.command("mcp")(mcp)


@command
def mcp(path: IndexArgument, model: ModelOption = None, device: DeviceOption = "auto") -> None:
    """Serve an index to assistants over the Model Context Protocol, on stdin and stdout. It only reads.

    Example of an assistant's configuration:

      {"mcpServers": {"photos": {"command": "genius", "args": ["mcp", "/home/me/my.genius"]}}}
    """
    from genius.index import Index
    from genius.serve.mcp_server import make_server

    with Index.open(path, model, read_only=True) as index:
        index.model.to(device)
        make_server(index).run()
