"""What a request may cost: bytes, seconds and pixels, checked before they are spent."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import time
import warnings

from PIL import Image
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius.errors import GeniusError
from genius.serve.errors import ApiError, error_response
from genius.serve.settings import ServeConfig
from genius.types import load_image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF")
MAX_ASPECT = 100  # encoders resize by the shorter side: a 1 x 30,000 picture would grow, not shrink
DRAIN_S, DRAIN_BYTES = 10.0, 256_000_000  # how long and how much of a refused body is read and dropped


class BodyLimit:
    """ASGI middleware: bodies of at most `max_body_bytes` within `body_timeout_s`; 413 and 408 otherwise.

    A refused body is still read (and dropped) for a while: closing a socket with unread bytes resets the
    connection, and the client would see that instead of the answer.
    """

    def __init__(self, app: ASGIApp, config: ServeConfig) -> None:
        self.app = app
        self.limit = config.max_body_bytes
        self.timeout_s = config.body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in (b"content-length", b"expect")}
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.limit:
            if b"expect" not in headers:  # with Expect the client has not sent the body yet
                await self._drain(receive)
            response = error_response(
                413, self._too_large(), request_id=scope.get("request_id", ""), headers={"connection": "close"}
            )
            await response(scope, receive, send)
            return

        seen, complete, deadline = 0, False, time.monotonic() + self.timeout_s

        async def limited() -> Message:
            nonlocal seen, complete
            if complete:
                return await receive()  # after the body: waits for the disconnect, for as long as the answer takes
            try:
                message = await asyncio.wait_for(receive(), max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                raise ApiError(408, f"the body did not arrive within {self.timeout_s:g} s") from None
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if seen > self.limit:
                    if not complete:
                        await self._drain(receive)
                    raise ApiError(413, self._too_large())
            return message

        await self.app(scope, limited, send)

    def _too_large(self) -> str:
        return f"the body is larger than {self.limit:,} bytes"

    async def _drain(self, receive: Receive) -> None:
        left, deadline = DRAIN_BYTES, time.monotonic() + DRAIN_S
        while left > 0 and time.monotonic() < deadline:
            try:
                message = await asyncio.wait_for(receive(), max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                return
            if message["type"] != "http.request" or not message.get("more_body", False):
                return
            left -= len(message.get("body", b""))


def decode_base64(value: str, config: ServeConfig) -> bytes:
    """Base64 (plain or a data: URL) -> bytes. A link or a path is refused: nothing is fetched, nothing is opened."""
    if value.startswith("data:"):
        head, comma, value = value.partition(",")
        if not comma or not head.endswith(";base64"):
            raise ApiError(422, "image: a data: URL must be base64")
    elif "://" in value[:32]:
        raise ApiError(422, "image: send the picture itself as base64; this server fetches no links")
    if len(value) > (config.max_image_bytes + 2) // 3 * 4 + 4:
        raise ApiError(413, f"image: larger than {config.max_image_bytes:,} bytes")
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(422, "image: not valid base64") from None


def decode_picture(data: bytes, config: ServeConfig, *, side: int | None = None) -> Image.Image:
    """Bytes -> an upright RGB picture, at most `side` long. Size and pixels are checked before decoding."""
    if len(data) > config.max_image_bytes:
        raise ApiError(413, f"image: larger than {config.max_image_bytes:,} bytes")
    if not data:
        raise ApiError(422, "image: empty")
    if data[:512].lstrip().startswith((b"<?xml", b"<svg", b"<!DOCTYPE svg")):
        raise ApiError(422, "image: SVG is not accepted, send PNG, JPEG, WebP, GIF, BMP or AVIF")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own bomb warning: our limit is lower
            with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
                width, height = picture.size
                if width * height > config.max_pixels:
                    raise ApiError(413, f"image: {width} x {height} pixels, more than {config.max_pixels:,}")
                if max(width, height) > MAX_ASPECT * min(width, height):
                    raise ApiError(422, f"image: {width} x {height} is too thin")
                if side is not None and picture.format == "JPEG":
                    picture.draft("RGB", (side, side))  # decode at a smaller scale where the format can
                decoded = load_image(picture)
    except ApiError:
        raise
    except Image.DecompressionBombError:
        raise ApiError(413, f"image: more than {config.max_pixels:,} pixels") from None
    except (GeniusError, OSError, SyntaxError, ValueError, MemoryError, OverflowError, ArithmeticError, LookupError, TypeError):
        # Pillow raises many kinds for broken files; all of them are the file's fault
        raise ApiError(422, "image: cannot be read, send a PNG, JPEG, WebP, GIF, BMP or AVIF") from None
    if side is not None and max(decoded.size) > side:
        decoded.thumbnail((side, side), Image.Resampling.LANCZOS)
    return decoded
