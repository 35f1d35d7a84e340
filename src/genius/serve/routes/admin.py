"""What an admin key sees: who may do what, and who did what."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from genius.serve.errors import ApiError
from genius.serve.routes.common import READ_ERRORS, allowed, answer, caller_of, documented
from genius.serve.schemas import AuditResponse, ChangeOut, KeyOut, KeysResponse

router = APIRouter(tags=["admin"])


@router.get("/v1/keys", response_model=KeysResponse, responses=documented(401, 403), summary="Who may do what")
async def keys(request: Request) -> Response:
    """Names, roles and ends of the keys that are known now; never the keys."""
    service = allowed(request, "admin")
    entries = service.keys.entries
    return answer(KeysResponse(keys=[KeyOut(name=key.name, role=key.role, expires=key.expires) for key in entries]))  # type: ignore[arg-type]


@router.get("/v1/audit", response_model=AuditResponse, responses=READ_ERRORS, summary="The last changes")
async def audit(
    request: Request, last: Annotated[int, Query(ge=1, le=1000, description="How many, newest first.")] = 100
) -> Response:
    """Who changed what, when, and how it ended. 404 where no audit log is kept."""
    service = allowed(request, "admin")
    if not service.audit:
        raise ApiError(404, "this server keeps no audit log")
    lines = await service.read(lambda: service.audit.last(last), caller_of(request))
    return answer(AuditResponse(changes=[ChangeOut.model_validate(line) for line in lines]))
