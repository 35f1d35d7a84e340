"""Codes, what the server holds, health, metrics; and for an admin who may do what, and who did."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from genius.serve.backend import CHILDREN, parse_prefix
from genius.serve.errors import ApiError
from genius.serve.logs import CONTENT_TYPE
from genius.serve.routes import READ_ERRORS, allowed, answer, caller_of, documented, service_of
from genius.serve.schemas import (
    AuditResponse,
    ChangeOut,
    CodesResponse,
    Health,
    InfoResponse,
    ItemId,
    KeyOut,
    KeysResponse,
    Limits,
    MapResponse,
)
from genius.version import __version__

router = APIRouter()
PREFIX = r"^[0-9]{1,6}(-[0-9]{1,6})*$"


@router.get("/v1/codes", response_model=CodesResponse, responses=READ_ERRORS, tags=["codes"], summary="The first codes")
@router.get("/v1/codes/", response_model=CodesResponse, include_in_schema=False)
async def root(request: Request) -> Response:
    """What every ID starts with: image, text or pair, with counts and examples."""
    service = allowed(request, "read")
    return answer(await service.read(lambda: service.backend.browse(()), caller_of(request)))


@router.get(
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


@router.get("/v1/map", response_model=MapResponse, responses=READ_ERRORS, tags=["codes"], summary="The collection on a plane")
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


@router.get(
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


@router.get("/healthz", response_model=Health, tags=["system"], summary="Is the process alive?")
async def healthz() -> Response:
    return answer(Health(status="ok"))


@router.get("/readyz", response_model=Health, responses=documented(503), tags=["system"], summary="Can it answer now?")
async def readyz(request: Request) -> Response:
    """503 while it drains or when the model does not come back."""
    problem = service_of(request).ready()
    if problem is not None:
        raise ApiError(503, f"not ready: {problem}", retry_after=5)
    return answer(Health(status="ready"))


@router.get(
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


@router.get("/v1/keys", tags=["admin"], response_model=KeysResponse, responses=documented(401, 403), summary="Who may do what")
async def keys(request: Request) -> Response:
    """Names, roles and ends of the keys that are known now; never the keys."""
    service = allowed(request, "admin")
    entries = service.keys.entries
    return answer(KeysResponse(keys=[KeyOut(name=key.name, role=key.role, expires=key.expires) for key in entries]))  # type: ignore[arg-type]


@router.get("/v1/audit", tags=["admin"], response_model=AuditResponse, responses=READ_ERRORS, summary="The last changes")
async def audit(
    request: Request, last: Annotated[int, Query(ge=1, le=1000, description="How many, newest first.")] = 100
) -> Response:
    """Who changed what, when, and how it ended. 404 where no audit log is kept."""
    service = allowed(request, "admin")
    if not service.audit:
        raise ApiError(404, "this server keeps no audit log")
    lines = await service.read(lambda: service.audit.last(last), caller_of(request))
    return answer(AuditResponse(changes=[ChangeOut.model_validate(line) for line in lines]))
