"""`genius serve INDEX`: indexes over HTTP, with a page to search them. `genius mcp INDEX`: an index as tools for assistants."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from genius.cli.common import command, console, emit
from genius.cli.index import DeviceOption, IndexArgument, ModelOption
from genius.errors import GeniusError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from genius.serve.settings import ServeConfig


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)
    app.command("mcp")(mcp)


@command
def serve(
    indexes: list[str] = typer.Argument(
        metavar="INDEX",
        help="Index folder, or s3://... of `genius publish`. Several become collections: named as their folder, or NAME=INDEX.",
    ),
    model: str | None = typer.Option(None, help="Model folder or URI. Default: the index's model."),
    create: bool = typer.Option(False, "--create", help="Create an empty index if there is none. Needs --model."),
    host: str | None = typer.Option(None, help="Address to listen on. Default: 127.0.0.1. Other addresses need API keys."),
    port: int | None = typer.Option(None, help="Port to listen on. Default: 8000. 0: a free port."),
    keys: Path | None = typer.Option(
        None,
        help="File with API keys: `read KEY` or `write KEY` per line. Reloaded when it changes. "
        "Or set GENIUS_API_KEYS='read:KEY,write:KEY'.",
    ),
    tls_cert: Path | None = typer.Option(None, help="Certificate for HTTPS (PEM, with its chain). Needs --tls-key."),
    tls_key: Path | None = typer.Option(None, help="The certificate's private key (PEM, no password)."),
    query_log: Path | None = typer.Option(
        None, help="Log of query vectors for `genius learn`: no text, no image, at most 64 MB. Default: none."
    ),
    read_only: bool = typer.Option(False, "--read-only", help="Refuse all changes over HTTP."),
    config: Path | None = typer.Option(None, help="TOML or JSON file with limits and timeouts (see docs/serving.md)."),
    queue: int | None = typer.Option(None, help="Searches that may wait. Further ones get status 503."),
    batch: int | None = typer.Option(None, help="Largest batch of searches."),
    timeout: float | None = typer.Option(None, help="Timeout of a search in seconds, including the time in the queue."),
    device: DeviceOption = "auto",
    workers: int = typer.Option(1, metavar="N", min=1, max=256, help="Number of processes. They share the memory of the index."),
    log_level: str | None = typer.Option(None, help="Log level: debug, info, warning or error."),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON line with the address once it listens."),
) -> None:
    """Serve indexes over HTTP: an API, and a web page at the same address.

    Without API keys it listens on this machine only. On SIGTERM it finishes the requests in flight, then stops.

    Examples:
      genius serve my.genius
      genius serve photos.genius shop=items.genius --keys keys.txt --host 0.0.0.0
    """
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise GeniusError("serving needs more packages: pip install 'genius-search[serve]'") from None
    from genius.serve import logs
    from genius.serve.auth import Keys, check_exposure
    from genius.serve.run import check_tls, leave, serve_workers
    from genius.serve.run import serve as run

    settings = _settings(
        config,
        {
            "host": host,
            "port": port,
            "read_only": read_only or None,
            "queue_size": queue,
            "max_batch": batch,
            "timeout_s": timeout,
            "log_level": log_level,
            "tls_cert": tls_cert and str(tls_cert),
            "tls_key": tls_key and str(tls_key),
            "query_log": query_log and str(query_log),
        },
    )
    known = Keys(keys, os.environ)
    check_exposure(settings, known)
    check_tls(settings.tls_cert, settings.tls_key)  # before the model is loaded
    logs.configure(settings.log_level)
    paths, settings = _collections(indexes, settings)

    def listening(url: str, **about: Any) -> None:
        shown = [str(path) for path in paths.values()]
        if json_output:
            emit({"url": url, **about, "index": shown[0], "collections": list(paths)})
        console.print(f"[bold]{url}[/]  {', '.join(f'{value} {name}' for name, value in about.items())}  (Ctrl-C stops)")

    open_app = functools.partial(_open_app, paths, model, create, device, settings, keys)
    if workers > 1:
        from genius.index.folder import about_of

        for path in paths.values():
            about_of(path)  # refused here rather than by every worker
        serve_workers(open_app, settings, workers, lambda url: listening(url, workers=workers))
        leave(0)
    app = open_app()
    if not known:
        console.print("[yellow]no API keys:[/] anyone on this machine may search and change the index (GENIUS_API_KEYS, --keys)")
    items = sum(len(backend.index) for backend in app.state.service.backends.values())
    finished = run(app, settings, lambda url: listening(url, items=items))
    leave(0 if finished else 1)


def _collections(indexes: list[str], settings: ServeConfig) -> tuple[dict[str, Path], ServeConfig]:
    """Names and folders of the collections. A published index is a local copy that follows the original, so it is read-only."""
    from dataclasses import replace

    from genius.cli.common import here
    from genius.files import url_of
    from genius.serve.app import collection_name

    paths: dict[str, Path] = {}
    for given in indexes:
        name, equals, folder = given.partition("=")
        path = Path(given)
        if equals and not path.exists():
            path = Path(folder)
        else:
            name = ""
        if url_of(path) is not None:
            settings = replace(settings, read_only=True)
            path = here(path, follow=True)
        name = name or collection_name(path)
        if name in paths:
            raise GeniusError(f"two collections have the name {name}: give names, such as a={paths[name]} b={path}")
        paths[name] = path
    return paths, settings


def _open_app(
    paths: Mapping[str, Path], model: str | None, create: bool, device: str, settings: ServeConfig, keys: Path | None
) -> FastAPI:
    """The app over freshly opened indexes. Workers call it in their own processes."""
    from genius.encoders.base import find_device
    from genius.index import Index
    from genius.index.learning import QueryLog
    from genius.serve.app import create_app
    from genius.serve.auth import Keys

    where = find_device(device)  # before a model is loaded for nothing
    opened = {}
    for name, path in paths.items():
        index = Index(path, model, create=create, read_only=settings.read_only)
        index.model.to(where)
        if settings.query_log:
            index.query_log = QueryLog(settings.query_log, index.about.fingerprint).add
        opened[name] = index
    return create_app(opened, settings, Keys(keys, os.environ))


def _settings(file: Path | None, given: dict[str, object]) -> ServeConfig:
    """The file's values, and over them those of the command line."""
    from dataclasses import replace

    from genius.config import read_config
    from genius.serve.settings import ServeConfig

    base = read_config(ServeConfig, file) if file is not None else ServeConfig()
    return replace(base, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


@command
def mcp(path: IndexArgument, model: ModelOption = None, device: DeviceOption = "auto") -> None:
    """Serve an index to AI assistants over the Model Context Protocol, on stdin and stdout. Read-only.

    Example of an assistant's configuration:
      {"mcpServers": {"photos": {"command": "genius", "args": ["mcp", "/home/me/my.genius"]}}}
    """
    from genius.index import Index
    from genius.integrations.mcp import mcp_server

    with Index.open(path, model, read_only=True) as index:
        index.model.to(device)
        mcp_server(index).run()
