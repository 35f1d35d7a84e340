"""`create_app(index)`: the service as an ASGI app. Puts the parts together; answers for itself: codes, what it holds, health,
metrics, and for an admin who may do what and who did; and serves the page.

The page's files are a fixed list read at start, so that no path from a request ever reaches the disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Query, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic.json_schema import models_json_schema
from starlette.concurrency import run_in_threadpool

from genius.index import Index
from genius.serve.auth import KeyRing, Keys
from genius.serve.backend import CHILDREN, parse_prefix
from genius.serve.bodies import BodyLimit
from genius.serve.logs import CONTENT_TYPE, ApiError, Observe, event, install_handlers
from genius.serve.routes import READ_ERRORS, allowed, answer, caller_of, documented, items_router, search_router, service_of
from genius.serve.schemas import (
    AuditResponse,
    ChangeOut,
    CodesResponse,
    Health,
    InfoResponse,
    ItemBody,
    ItemId,
    ItemsRequest,
    KeyOut,
    KeysResponse,
    Limits,
    MapResponse,
    SearchBody,
)
from genius.serve.service import Service
from genius.serve.settings import ServeConfig
from genius.version import __version__

system_router = APIRouter()
PREFIX = r"^[0-9]{1,6}(-[0-9]{1,6})*$"


@system_router.get("/v1/codes", response_model=CodesResponse, responses=READ_ERRORS, tags=["codes"], summary="The first codes")
@system_router.get("/v1/codes/", response_model=CodesResponse, include_in_schema=False)
async def root(request: Request) -> Response:
    """What every ID starts with: image, text or pair, with counts and examples."""
    service = allowed(request, "read")
    return answer(await service.read(lambda: service.backend.browse(()), caller_of(request)))


@system_router.get(
    "/v1/codes/{prefix}", response_model=CodesResponse, responses=READ_ERRORS, tags=["codes"], summary="What lives under a prefix"
)
async def codes(
    request: Request,
    prefix: Annotated[str, Path(pattern=PREFIX, description="Codes joined by '-'.", examples=["2", "2-17-301"], max_length=300)],
    children: Annotated[int, Query(ge=1, le=512, description="How many next codes, the fullest first.")] = CHILDREN,
) -> Response:
    """The next codes, the fullest first, each with a few items; and the items under the prefix. 404 if nothing lives there."""
    service = allowed(request, "read")
    wanted = parse_prefix(prefix, service.backend.index.about.levels)
    return answer(await service.read(lambda: service.backend.browse(wanted, children), caller_of(request)))


@system_router.get(
    "/v1/map", response_model=MapResponse, responses=READ_ERRORS, tags=["codes"], summary="The collection on a plane"
)
async def plane(
    request: Request,
    at: Annotated[
        list[ItemId] | None,
        Query(max_length=96, description="Ids of items to find on it, such as the answers of a search."),
    ] = None,
) -> Response:
    """A sample of items where alike ones lie near each other: by UMAP, or (until that is drawn, or where it is not installed) at
    the two directions in which their vectors differ most. For looking at."""
    service = allowed(request, "read")
    return answer(await service.read(lambda: service.backend.map(at or ()), caller_of(request), "map"))


@system_router.get(
    "/v1/info", response_model=InfoResponse, responses=documented(401, 403, 503, 504), tags=["system"], summary="What is here"
)
async def info(request: Request) -> Response:
    """How many items, which fields a filter may name, what may be sent."""
    service = allowed(request, "read")
    index = service.backend.index
    advise = getattr(index, "advice", None)  # of an index on disk
    count, fields, advice = await service.read(
        lambda: (index.count(), index.columns(), None if advise is None else advise()), caller_of(request)
    )
    return answer(
        InfoResponse(
            version=__version__,
            items=count,
            level_sizes=list(service.backend.index.about.levels),
            fields=fields,
            needs_key=bool(service.keys),
            scopes=[scope for scope in caller_of(request).scopes if scope != "write" or not service.config.read_only],
            key=caller_of(request).name if service.keys else None,
            advice=advice,
            limits=Limits(**service.describe_limits()),
        )
    )


@system_router.get("/healthz", response_model=Health, tags=["system"], summary="Is the process alive?")
async def healthz() -> Response:
    return answer(Health(status="ok"))


@system_router.get("/readyz", response_model=Health, responses=documented(503), tags=["system"], summary="Can it answer now?")
async def readyz(request: Request) -> Response:
    """503 while it drains or when the model does not come back."""
    problem = service_of(request).ready()
    if problem is not None:
        raise ApiError(503, f"not ready: {problem}", retry_after=5)
    return answer(Health(status="ready"))


@system_router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "Prometheus text.", "content": {"text/plain": {}}}, **documented(401, 403, 503, 504)},
    tags=["system"],
    summary="Prometheus metrics",
)
async def metrics(request: Request) -> Response:
    service = allowed(request, "read")
    service.metrics.items.set(await service.read(service.backend.index.count, caller_of(request)))
    return Response(service.metrics.render(), media_type=CONTENT_TYPE)


# -- what an admin key sees: who may do what, and who did what -----------------------------------------------------------------


@system_router.get(
    "/v1/keys", tags=["admin"], response_model=KeysResponse, responses=documented(401, 403), summary="Who may do what"
)
async def keys(request: Request) -> Response:
    """Names, roles and ends of the keys that are known now; never the keys."""
    service = allowed(request, "admin")
    entries = service.keys.entries
    return answer(KeysResponse(keys=[KeyOut(name=key.name, role=key.role, expires=key.expires) for key in entries]))  # type: ignore[arg-type]


@system_router.get("/v1/audit", tags=["admin"], response_model=AuditResponse, responses=READ_ERRORS, summary="The last changes")
async def audit(
    request: Request, last: Annotated[int, Query(ge=1, le=1000, description="How many, newest first.")] = 100
) -> Response:
    """Who changed what, when, and how it ended. 404 where no audit log is kept."""
    service = allowed(request, "admin")
    if not service.audit:
        raise ApiError(404, "this server keeps no audit log")
    lines = await service.read(lambda: service.audit.last(last), caller_of(request))
    return answer(AuditResponse(changes=[ChangeOut.model_validate(line) for line in lines]))


DESCRIPTION = """Search with words, a picture, or both; add, replace and delete items while others search.

Errors have one shape: `{"error": {"code", "message", "request_id"}}`. With API keys configured, send
`Authorization: Bearer KEY`: a *read* key searches and shows, a *write* key also changes, an *admin* key also sees who may
and who did.
"""
page_router = APIRouter(include_in_schema=False)

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


def create_app(index: Index, config: ServeConfig | None = None, keys: Keys | KeyRing | None = None) -> FastAPI:
    """The app for an open index. It closes the index when it shuts down."""
    config = config or ServeConfig()
    service = Service(index, config, keys or Keys())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        event("start", items=await run_in_threadpool(index.count), auth=bool(service.keys), read_only=config.read_only)
        yield
        finished = await run_in_threadpool(service.close)
        event("stop", drained=finished)

    app = FastAPI(
        title="GENIUS",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,  # FastAPI would write the document anew for whoever asks
        docs_url=None,  # its page loads scripts from elsewhere; ours is /docs
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    install_handlers(app)
    for router in (search_router, items_router, system_router, page_router):
        app.include_router(router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    document = cache(lambda: json.dumps(app.openapi()).encode())
    app.add_route("/openapi.json", lambda request: Response(document(), media_type="application/json"), include_in_schema=False)
    app.add_middleware(BodyLimit, config=config, arrivals=service.arrivals)
    app.add_middleware(Observe, metrics=service.metrics)  # added last: outermost
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, plus the request bodies that the routes read themselves, plus the two ways to send a key."""
    if app.openapi_schema:
        return app.openapi_schema
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, extra = models_json_schema(
        [(model, "validation") for model in (SearchBody, ItemsRequest, ItemBody)], ref_template="#/components/schemas/{model}"
    )
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(extra.get("$defs", {}))
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    document["security"] = [{}, {"bearer": []}, {"header": []}]
    for path in document["paths"].values():
        for operation in path.values():  # ours answers with its own shape
            if "HTTPValidationError" in str(operation.get("responses", {}).get("422", {})):
                operation["responses"].pop("422")
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    app.openapi_schema = document
    return document


def _load() -> dict[str, tuple[bytes, str, str]]:
    """name -> (content, media type, etag)"""
    files = {}
    for entry in resources.files("genius.serve").joinpath("static").iterdir():
        kind = KINDS.get(entry.name.rsplit(".", 1)[-1])
        if kind is not None:
            content = entry.read_bytes()
            files[entry.name] = (content, kind, f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"')
    return files


FILES = _load()


def _file(request: Request, name: str) -> Response:
    if name not in FILES:
        raise ApiError(404, f"no such file: {name}")
    content, kind, tag = FILES[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, kind)


@page_router.get("/")
async def page(request: Request) -> Response:
    return _file(request, "index.html")


@page_router.get("/docs")
async def docs(request: Request) -> Response:
    return _file(request, "docs.html")


@page_router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    return _file(request, name)


@page_router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    return _file(request, "icon.svg")
