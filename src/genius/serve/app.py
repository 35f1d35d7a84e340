"""`create_app(index)`: the service as an ASGI app. Puts the parts together, and serves the page and the OpenAPI document.

The page's files are a fixed list read at start: no path of a request ever reaches the disk.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi import Path as PathParameter
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic.json_schema import models_json_schema
from starlette.concurrency import run_in_threadpool

from genius.index import Index
from genius.serve.auth import Keys
from genius.serve.bodies import BodyLimit
from genius.serve.errors import ApiError, install_handlers
from genius.serve.logs import Observe, event
from genius.serve.routes import collection_router, system_router
from genius.serve.schemas import ItemBody, ItemsRequest, SearchBatch, SearchBody
from genius.serve.service import COLLECTION_NAME, Service
from genius.serve.settings import ServeConfig
from genius.version import __version__

DESCRIPTION = """Search with text, an image, or both; add, replace and delete items while others search.

Errors have one shape: `{"error": {"code", "message", "request_id"}}`. With API keys configured, send
`Authorization: Bearer KEY`: a *read* key searches and shows, a *write* key also changes.
"""
PAGES = {"/": "index.html", "/docs": "docs.html", "/favicon.ico": "icon.svg"}
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


def named_collection(
    collection: Annotated[str, PathParameter(pattern=f"^{COLLECTION_NAME}$", description="Name of the collection.")],
) -> None:
    """Documents the path parameter; the routes read it themselves."""


def create_app(index: Index | Mapping[str, Index], config: ServeConfig | None = None, keys: Keys | None = None) -> FastAPI:
    """The app for open indexes. It closes them when it shuts down.

    Args:
        index: One index, or several by name. The first is served below `/v1`, all below `/v1/collections/{name}`.
        config: Limits and time limits.
        keys: API keys; None: an open service that answers to local names only.

    Returns:
        An ASGI app that any server can run.
    """
    config = config or ServeConfig()
    if isinstance(index, Mapping):
        collections = index
    else:
        collections = {collection_name(index.path): index}
    service = Service(collections, config, Keys() if keys is None else keys)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        counts = {name: await run_in_threadpool(one.count) for name, one in collections.items()}
        event("start", items=sum(counts.values()), collections=counts, auth=bool(service.keys), read_only=config.read_only)
        yield {"metrics": service.metrics}  # for the protocol, which refuses some requests before the app sees them
        finished = await run_in_threadpool(service.close)
        event("stop", drained=finished)

    app = FastAPI(
        title="GENIUS",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,  # FastAPI would serialise the document anew for every request
        docs_url=None,  # its page loads scripts from elsewhere; ours is /docs
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    install_handlers(app)
    app.include_router(collection_router, prefix="/v1")
    app.include_router(collection_router, prefix="/v1/collections/{collection}", dependencies=[Depends(named_collection)])
    app.include_router(system_router)
    for path in (*PAGES, "/static/{name}"):
        app.add_api_route(path, _file, include_in_schema=False)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    document = cache(lambda: json.dumps(app.openapi()).encode())
    app.add_route("/openapi.json", lambda request: Response(document(), media_type="application/json"), include_in_schema=False)
    app.add_middleware(BodyLimit, config=config, arrivals=service.arrivals)
    app.add_middleware(Observe, metrics=service.metrics)  # added last: outermost
    return app


def collection_name(path: str | Path) -> str:
    """The name of a collection that was given none: its folder's, without the suffix."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", Path(path).stem)
    return name.strip("._-")[:64] or "default"


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the request bodies that the routes read themselves and the two ways to send a key."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, extra = models_json_schema(
        [(model, "validation") for model in (SearchBody, SearchBatch, ItemsRequest, ItemBody)],
        ref_template="#/components/schemas/{model}",
    )
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(extra.get("$defs", {}))
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    document["security"] = [{}, {"bearer": []}, {"header": []}]
    return document


def _load() -> dict[str, tuple[bytes, str, str]]:
    """name -> (content, media type, etag)"""
    files = {}
    for entry in resources.files("genius.serve").joinpath("static").iterdir():
        media_type = MEDIA_TYPES.get(entry.name.rsplit(".", 1)[-1])
        if media_type is not None:
            content = entry.read_bytes()
            files[entry.name] = (content, media_type, f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"')
    return files


FILES = _load()


async def _file(request: Request) -> Response:
    """A file of the page: the one that a route stands for, or names."""
    name = PAGES.get(request.scope["route"].path) or request.path_params["name"]
    if name not in FILES:
        raise ApiError(404, f"no such file: {name}")
    content, media_type, tag = FILES[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, media_type)
