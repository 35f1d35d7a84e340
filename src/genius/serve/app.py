"""`create_app(index)`: the service as an ASGI app. Puts the parts together and decides nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from genius.index import Index
from genius.serve.auth import KeyRing, Keys
from genius.serve.bodies import BodyLimit
from genius.serve.errors import install_handlers
from genius.serve.logs import Observe, event
from genius.serve.routes import items, page, search, system
from genius.serve.schemas import ItemBody, ItemsRequest, SearchBody
from genius.serve.service import Service
from genius.serve.settings import ServeConfig
from genius.version import __version__

DESCRIPTION = """Search with words, a picture, or both; add, replace and delete items while others search.

Errors have one shape: `{"error": {"code", "message", "request_id"}}`. With API keys configured, send
`Authorization: Bearer KEY`: a *read* key searches and shows, a *write* key also changes, an *admin* key also sees who may
and who did.
"""


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
    for part in (search, items, system, page):
        app.include_router(part.router)
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
