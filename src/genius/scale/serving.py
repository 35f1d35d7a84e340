"""`genius serve INDEX --ray`: replicas of our own app on many machines, behind a front that never fails a request for them.

A replica opens the index, which its machine must see, for reading, and gets no request before that is done. It follows new
versions by itself, whole ones only, as every open index does; another index or model is rolled out by running the command again
with the same name: new replicas first load and pass their health check, old ones finish what they have. The front holds no
model: it passes requests on, asks another replica when one dies over a request (all they do is read), and says 503 with
Retry-After when all are full. Whoever writes to the index does so elsewhere, one at a time: `genius index`, with --ray or
without. Ray's HTTP proxy is written in Python and slower than ours: on one machine use `genius serve --workers`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from genius.errors import GeniusError
from genius.index import Index
from genius.scale import LOCAL, connected
from genius.serve.app import create_app
from genius.serve.auth import ENVIRONMENT, Keys, check_exposure
from genius.serve.errors import error_response
from genius.serve.settings import ServeConfig

TRIES = 3  # replicas that are tried before a request is given up
AGAIN_S = 0.2  # before the next is tried

HttpResponse = tuple[int, Sequence[tuple[bytes, bytes]], bytes]
"""Status, headers, body."""


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """How many, and what each needs."""

    address: str = LOCAL  # of the cluster
    least: int = 1
    most: int = 1  # more than `least`: as many as the load asks for
    ongoing: int = 64  # requests at one replica, which batches them itself
    device: str = "cpu"
    name: str = "genius"  # of the application: the same name again rolls it over


class Replica:
    """One process with an open index and our app."""

    def __init__(self, index: Path, settings: ServeConfig, keys: Path | None, environ: Mapping[str, str], device: str) -> None:
        opened = Index.open(index, read_only=True)
        opened.model.to(device)
        self.app = create_app(opened, settings, Keys.load(keys, environ))
        self.service = self.app.state.service

    def check_health(self) -> None:
        problem = self.service.ready()
        if problem is not None:
            raise RuntimeError(problem)

    async def answer(self, scope: Mapping[str, Any], body: bytes) -> HttpResponse:
        """What the app answers to a request whose body is all here."""
        status = 500
        headers = []
        parts = []
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()  # a caller that is here to stay
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(bytes(name), bytes(value)) for name, value in message["headers"]]
            else:
                parts.append(message.get("body", b""))

        await self.app({**scope, "type": "http", "asgi": {"version": "3.0"}, "app": self.app}, receive, send)
        return status, headers, b"".join(parts)

    def __del__(self) -> None:
        if hasattr(self, "service"):
            self.service.close()


class Front:
    """Passes requests on."""

    def __init__(self, replicas: Any, max_body_bytes: int) -> None:
        self.replicas = replicas
        self.limit = max_body_bytes

    async def __call__(self, request: Request) -> Response:
        from ray.exceptions import RayActorError, RayError, RayTaskError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self.limit:
                return error_response(413, f"the body is larger than {self.limit:,} bytes")
        scope = {name: request.scope[name] for name in ("method", "path", "raw_path", "query_string", "headers", "http_version")}
        scope |= {"client": request.scope.get("client"), "server": request.scope.get("server"), "scheme": request.url.scheme}
        for _ in range(TRIES):
            try:
                status, headers, content = await self.replicas.answer.remote({**scope, "root_path": ""}, bytes(body))
            except BackPressureError:
                return error_response(503, "too many searches are waiting", retry_after=1)
            except RayTaskError:
                return error_response(500, "the replica failed; its log says why")
            except (RayActorError, DeploymentUnavailableError, ReplicaUnavailableError, RayError):
                await asyncio.sleep(AGAIN_S)  # it is gone: the next one knows the same
                continue
            answer = Response(content, status)
            answer.raw_headers = list(headers)
            return answer
        return error_response(503, "the replicas are being replaced", retry_after=2)


def bound(index: Path, settings: ServeConfig, keys: Path | None, environ: Mapping[str, str], config: ReplicaConfig) -> Any:
    """The application as Ray Serve takes it."""
    from ray import serve

    if not 1 <= config.least <= config.most:
        raise GeniusError(f"replicas must be at least 1, and the minimum at most the maximum; got {config.least}:{config.most}")
    gpu = config.device not in ("cpu", "auto")
    many: dict[str, Any] = {"num_replicas": config.least}
    if config.most > config.least:
        scaling = {"min_replicas": config.least, "max_replicas": config.most, "target_ongoing_requests": config.ongoing // 4}
        many = {"autoscaling_config": scaling}
    replica = serve.deployment(
        name="replica",
        max_ongoing_requests=config.ongoing,
        max_queued_requests=settings.queue_size,
        health_check_period_s=5,
        graceful_shutdown_timeout_s=settings.drain_s,
        ray_actor_options={"num_gpus": 1} if gpu else {"num_cpus": 1},
        **many,
    )(Replica)
    front = serve.deployment(name="front", max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0})(Front)
    replicas = replica.bind(index.absolute(), settings, keys, dict(environ), config.device)
    return front.bind(replicas, settings.max_body_bytes)


def application(arguments: dict[str, str]) -> Any:
    """For a Ray Serve config file (`import_path: genius.scale.serving:application`): index, replicas ("2:8"), device, keys (a
    file). A change of any of them rolls the replicas over."""
    known = {"index", "replicas", "device", "keys"}
    if "index" not in arguments or not arguments.keys() <= known:
        raise GeniusError(f"arguments are {', '.join(sorted(known))}, of which index is needed; got {sorted(arguments)}")
    least, most = replica_counts(arguments.get("replicas", "1"))
    keys = None
    if "keys" in arguments:
        keys = Path(arguments["keys"])
    config = ReplicaConfig(least=least, most=most, device=arguments.get("device", "cpu"))
    settings = ServeConfig(read_only=True, host="0.0.0.0")
    check_exposure(settings, Keys.load(keys))
    return bound(Path(arguments["index"]), settings, keys, _keys_of(os.environ), config)


def replica_counts(text: str) -> tuple[int, int]:
    """ "3" -> 3 and 3; "2:8" -> at least 2, at most 8."""
    least, _, most = text.partition(":")
    if not least.isdigit() or not (most or "1").isdigit():
        raise GeniusError(f"replicas must be a number or a range such as 2:8, got {text!r}")
    return int(least), int(most or least)


def _keys_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Keys that were given by the environment: replicas elsewhere have another."""
    return {name: value for name, value in environ.items() if name == ENVIRONMENT}


def deploy(index: Path, settings: ServeConfig, keys: Path | None, environ: Mapping[str, str], config: ReplicaConfig) -> None:
    """Start replicas on the cluster that this process is connected to, or roll those of the same name over; returns when they
    answer."""
    from ray import serve
    from ray.exceptions import RayError

    app = bound(index, settings, keys, environ, config)
    try:
        serve.start(http_options={"host": settings.host, "port": settings.port})
        serve.run(app, name=config.name, route_prefix="/")
    except (RuntimeError, RayError) as error:
        raise GeniusError(f"the replicas did not start: {' '.join(str(error).split())[:300]}") from None


def serve_on_ray(
    index: Path,
    settings: ServeConfig,
    keys: Path | None,
    environ: Mapping[str, str],
    config: ReplicaConfig,
    on_listening: Callable[[str], None],
) -> None:
    """Deploy; on a cluster of this machine alone, stay until SIGTERM or SIGINT, elsewhere leave it running."""
    if settings.tls_cert:
        raise GeniusError("Ray's proxy serves HTTP only: terminate TLS at the load balancer")
    settings = dataclasses.replace(settings, read_only=True)
    cpus = config.most + 1 if config.address == LOCAL else None
    with connected(config.address, cpus):
        deploy(index, settings, keys, _keys_of(environ), config)
        on_listening(f"http://{settings.host}:{settings.port}")
        if config.address == LOCAL:
            stop = threading.Event()
            for one in (signal.SIGTERM, signal.SIGINT):
                signal.signal(one, lambda *_: stop.set())
            stop.wait()
            from ray import serve

            serve.shutdown()
