"""`genius serve INDEX`: the index over HTTP, and a page to search it. `genius mcp INDEX`: the same as tools for assistants.

With `--workers N` this process only looks after N others, which run the same command line, answer on one socket and read one
index. Every worker opens the index for itself. What they read of it is memory-mapped, so the system holds it once; each notices
by itself when another wrote (a search always sees the newest version), and writers take turns by the index's own lock. A worker
that dies is replaced. SIGTERM lets all of them finish; SIGHUP replaces them one by one, the next only when the last one answers:
for a new model under the same path, without a request that fails.
"""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from genius.cli.common import command, console, emit
from genius.cli.index import DeviceOption, IndexArgument, ModelOption, RayOption
from genius.errors import GeniusError, counted

if TYPE_CHECKING:
    from genius.index import Index
    from genius.serve.settings import ServeConfig

MOST = 50  # answers of one call by an assistant: they are read by a model


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)
    app.command("mcp")(mcp)


@command
def serve(
    index: Path = typer.Argument(help="The index folder, made by `genius index`; or s3://..., where `genius publish` put it."),
    model: str | None = typer.Option(None, help="The model; by default the one the index was built with."),
    create: bool = typer.Option(False, "--create", help="Create an empty index if there is none (needs --model)."),
    host: str | None = typer.Option(None, help="Address to listen on (127.0.0.1). Beyond this machine only with API keys."),
    port: int | None = typer.Option(None, help="Port to listen on (8000); 0 takes a free one."),
    keys: Path | None = typer.Option(
        None,
        help="File with API keys, one `read KEY`, `write KEY` or `admin KEY` a line; read again when it changes. "
        "Also: GENIUS_API_KEYS='read:KEY,write:KEY'.",
    ),
    tls_cert: Path | None = typer.Option(None, help="Certificate (PEM, with its chain) to serve HTTPS; needs --tls-key."),
    tls_key: Path | None = typer.Option(None, help="The certificate's private key (PEM, no password)."),
    audit: Path | None = typer.Option(None, help="File to which every change is logged: who, what, when, how it ended."),
    read_only: bool = typer.Option(False, "--read-only", help="Refuse all changes over HTTP."),
    config: Path | None = typer.Option(None, help="TOML or JSON file with limits and time-outs (docs/serving.md lists them)."),
    queue: int | None = typer.Option(None, help="Searches that may wait before the answer is 503."),
    batch: int | None = typer.Option(None, help="Most searches that share one pass through the model."),
    timeout: float | None = typer.Option(None, help="Seconds a search may take, waiting included."),
    device: DeviceOption = "auto",
    workers: int = typer.Option(1, min=1, max=256, help="Processes that answer; they share what they read of the index."),
    ray: RayOption = None,
    replicas: str = typer.Option("1", help="With --ray: how many, or at least and at most, such as 2:8."),
    log_level: str | None = typer.Option(None, help="debug, info, warning or error."),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON line with the address when it listens."),
) -> None:
    """Serve an index over HTTP: an API, and a page at the same address.

    Without keys it listens on this machine only. SIGTERM finishes what is in flight, then stops.

    Example:  genius serve my.genius  ->  open http://127.0.0.1:8000
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise GeniusError("serving needs more packages: pip install 'genius-search[serve]'") from None
    from dataclasses import replace

    from genius.cli.common import here
    from genius.files import url_of
    from genius.serve import logs
    from genius.serve.app import create_app
    from genius.serve.auth import KeyRing, check_exposure
    from genius.serve.run import leave, serve_as_worker, tls_context
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
            "audit": audit and str(audit),
        },
    )
    known = KeyRing.load(keys)
    check_exposure(settings, known.current())
    tls_context(settings.tls_cert, settings.tls_key)  # before the model is loaded
    logs.configure(settings.log_level)
    if url_of(index) is not None:  # a copy of it: whoever writes does so where it is published from
        settings, index = replace(settings, read_only=True), here(index, follow=True)
    if ray is not None:
        from genius.scale import load_ray

        if create or model is not None or workers > 1:
            raise GeniusError("with --ray an index serves as it is: no --create, --model or --workers")
        load_ray()
        _on_ray(index, settings, keys, ray, replicas, device, json_output)
        leave(0)
    given = inherited()
    if workers > 1 and given is None:
        leave(0 if _look_after(workers, settings, index, json_output) else 1)
    opened = _open(index, model, create, settings.read_only, device)
    if given is not None:
        leave(0 if serve_as_worker(create_app(opened, settings, known), settings, *given) else 1)
    if not known.current():
        console.print("[yellow]no API keys:[/] anyone on this machine may search and change the index (GENIUS_API_KEYS, --keys)")

    def listening(url: str) -> None:
        if json_output:
            emit({"url": url, "items": len(opened), "index": str(index)})
        console.print(f"[bold]{url}[/]  {counted(len(opened), 'item')}  (Ctrl-C stops)")

    finished = run(create_app(opened, settings, known), settings, listening)
    leave(0 if finished else 1)


def _on_ray(
    index: Path, settings: ServeConfig, keys: Path | None, address: str, replicas: str, device: str | None, json_output: bool
) -> None:
    import os

    from genius.index.folder import about_of
    from genius.scale.serving import ReplicaConfig, replica_counts, serve_on_ray

    about_of(index)  # refused here rather than by every replica
    least, most = replica_counts(replicas)

    def listening(url: str) -> None:
        if json_output:
            emit({"url": url, "replicas": replicas, "index": str(index)})
        console.print(f"[bold]{url}[/]  {replicas} replicas on Ray, read-only")

    config = ReplicaConfig(address, least, most, device=device or "cpu")
    serve_on_ray(index, settings, keys and keys.absolute(), os.environ, config, listening)


def _look_after(workers: int, settings: ServeConfig, index: Path, json_output: bool) -> bool:
    """Start workers and stay until they are told to stop; this process opens no index itself."""
    from genius.serve.run import address, bind

    listener = bind(settings)
    url = address(listener, settings)

    def listening() -> None:
        if json_output:
            emit({"url": url, "workers": workers, "index": str(index)})
        console.print(f"[bold]{url}[/]  {counted(workers, 'worker')}  (Ctrl-C stops)")

    return Workers(listener, workers, settings.drain_s).run(listening)


def _settings(file: Path | None, given: dict[str, object]) -> ServeConfig:
    """The file's values, and over them what was given on the command line."""
    from dataclasses import replace

    from genius.config import read_config
    from genius.serve.settings import ServeConfig

    base = read_config(ServeConfig, file) if file is not None else ServeConfig()
    return replace(base, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _open(path: Path, model: str | None, create: bool, read_only: bool, device: str) -> Index:
    from genius.encoders.base import find_device
    from genius.index import Index

    where = find_device(device)  # before a model is loaded for nothing
    index = Index(path, model, create=create, read_only=read_only)
    index.model.to(where)
    return index


@command
def mcp(path: IndexArgument, model: ModelOption = None, device: DeviceOption = "auto") -> None:
    """Serve an index to assistants over the Model Context Protocol, on stdin and stdout. It only reads.

    Example of an assistant's configuration:

      {"mcpServers": {"photos": {"command": "genius", "args": ["mcp", "/home/me/my.genius"]}}}
    """
    from genius.index import Index

    with Index.open(path, model, read_only=True) as index:
        index.model.to(device)
        mcp_server(index).run()


def mcp_server(index: Index) -> Any:
    """An open index as tools that speak the Model Context Protocol; `.run()` talks on stdin and stdout. Three tools: search, show
    an item, explain an answer. They only read; the protocol is the `mcp` package's."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise GeniusError("genius mcp needs the package mcp: pip install 'genius-search[mcp]'") from None
    from genius.index.searching import wanted_kind
    from genius.search import SearchRequest
    from genius.types import Query

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


WORKER = "GENIUS_SERVE_WORKER"
"""In the environment of a worker: the numbers of the listening socket and of the pipe that it says "ready" on."""

START_S = 600.0  # a large index may have to build its cache first
SOON = 3  # deaths before being ready, one after the other, after which there is no point in going on


def inherited() -> tuple[socket.socket, int] | None:
    """In a worker: the socket to listen on, and where to say that it does; elsewhere None."""
    given = os.environ.get(WORKER)
    if given is None:
        return None
    listener, ready = map(int, given.split(","))
    return socket.socket(fileno=listener), ready


class Workers:
    """The processes behind one listening socket."""

    def __init__(self, listener: socket.socket, count: int, drain_s: float, command: Sequence[str] | None = None) -> None:
        if not hasattr(os, "fork"):
            raise GeniusError("--workers needs a system where processes can share a socket; use one worker here")
        self.listener, self.count, self.drain_s = listener, count, drain_s
        self.command = list(command or sys.orig_argv)
        self.running: list[subprocess.Popen[bytes]] = []
        self.stopping = self.renewing = False
        self.failures, self.rest_until = 0, 0.0  # of workers that could not start
        cores = os.cpu_count() or 1
        self.threads = {"OMP_NUM_THREADS": str(max(1, cores // count)), "OMP_WAIT_POLICY": "passive"}

    # -- one of them -------------------------------------------------------------------------------------------

    def start(self) -> subprocess.Popen[bytes]:
        """A new worker, once it answers."""
        reading, writing = os.pipe()
        kept = (self.listener.fileno(), writing)
        environment = {**self.threads, **os.environ, WORKER: f"{kept[0]},{kept[1]}"}  # what is set already is obeyed
        process = subprocess.Popen(self.command, env=environment, pass_fds=kept)
        os.close(writing)
        deadline, answered = time.monotonic() + START_S, False
        while time.monotonic() < deadline and not self.stopping:
            if select.select([reading], [], [], 0.25)[0]:  # "ready", or the end of a process that is gone
                answered = bool(os.read(reading, 1))
                break
        os.close(reading)
        if not answered and not self.stopping:
            process.kill()
            process.wait()
            raise GeniusError(f"a worker ended with status {process.returncode} before it could answer; its own lines say why")
        return process

    def stop(self, workers: Sequence[subprocess.Popen[bytes]]) -> None:
        """Let workers finish what they have; those that do not in time are ended."""
        for worker in workers:
            worker.terminate()
        deadline = time.monotonic() + self.drain_s + 5.0
        for worker in workers:
            try:
                worker.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    # -- all of them -------------------------------------------------------------------------------------------

    def run(self, on_listening: Callable[[], None]) -> bool:
        """Until SIGTERM or SIGINT; True if every worker finished what it had."""
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        signal.signal(signal.SIGINT, self._ask_to_stop)
        signal.signal(signal.SIGHUP, self._ask_to_renew)
        self.running.append(self.start())  # alone: it may build the cache that the others then share
        while len(self.running) < self.count and not self.stopping:
            self.running.append(self.start())
        on_listening()
        while not self.stopping:
            time.sleep(0.2)
            self._replace_dead()
            if self.renewing:
                self.renewing = False
                self._renew()
        self.stop(self.running)
        # one that SIGTERM ended was still starting, and had nothing to finish
        return all(worker.returncode in (0, -signal.SIGTERM) for worker in self.running)

    def _replace_dead(self) -> None:
        for place, worker in enumerate(self.running):
            if worker.poll() is None or time.monotonic() < self.rest_until:
                continue
            try:
                self.running[place] = self.start()
                self.failures = 0
            except GeniusError:
                self.failures += 1
                self.rest_until = time.monotonic() + min(30.0, 2.0**self.failures)
                if self.failures >= SOON and all(one.poll() is not None for one in self.running):
                    raise
                return  # the others go on answering; it is tried again later

    def _renew(self) -> None:
        for place, old in enumerate(self.running):
            self.running[place] = self.start()
            self.stop([old])

    def _ask_to_stop(self, *_: object) -> None:
        self.stopping = True

    def _ask_to_renew(self, *_: object) -> None:
        self.renewing = True
