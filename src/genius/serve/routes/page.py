"""The page and its files: a fixed list read at start, so that no path from a request ever reaches the disk."""

from __future__ import annotations

import hashlib
from importlib import resources

from fastapi import APIRouter, Request
from fastapi.responses import Response

from genius.serve.errors import ApiError

router = APIRouter(include_in_schema=False)

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


@router.get("/")
async def page(request: Request) -> Response:
    return _file(request, "index.html")


@router.get("/docs")
async def docs(request: Request) -> Response:
    return _file(request, "docs.html")


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    return _file(request, name)


@router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    return _file(request, "icon.svg")
