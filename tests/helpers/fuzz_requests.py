"""Targets of `test_fuzz`: pictures, drawings, and the bodies of HTTP requests.

Not allowed: an exception other than `GeniusError`, an answer of 500 or above, or one in another shape than promised.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WORDS = (
    '"text"', '"image"', '"like"', '"where"', '"items"', '"id"', '"metadata"', '"k"', '"target"', '"min_score"', '"beams"',
    '"rerank"', '"instruction"', "null", "1e999", "-1", "true", "\\ud800", "data:image/png;base64,", "price < 3", "IHDR",
    "IDAT", "PLTE", "tRNS", "eXIf", "zTXt", "iCCP", "Exif", "WEBPVP8 ", "VP8X", "ftypavif", "GIF89a", "<svg", "<g>", "href",
    "xlink:href", "<!DOCTYPE", "<!ENTITY", "--x\r\n", "Content-Disposition: form-data; name=",
)  # fmt: skip


def pictures(data: bytes) -> None:
    """Any bytes as a picture, in full and shrunk."""
    import genius.pictures as reading
    from genius.errors import GeniusError
    from genius.pictures import load_image

    reading.MAX_PIXELS = 3_000_000  # quicker; the limit itself is tested elsewhere
    for least in (None, 40):
        try:
            assert load_image(data, least=least).mode == "RGB"
        except GeniusError as error:
            assert "\n" not in str(error).strip()


def drawings(data: bytes) -> None:
    """Any bytes as a drawing: cleaning must never let a reference through; now and then it is drawn, too."""
    from genius.errors import GeniusError
    from genius.pictures.svg import _render, clean_svg

    try:
        clean = clean_svg(data)
    except GeniusError:
        return
    assert "<!" not in clean and "<?" not in clean
    assert clean_svg(clean.encode("utf-8")) == clean
    for name, value in re.findall(r"<(?:\w+:)?(image|feImage)\s[^>]*?(?<=\s)(?:\w+:)?href=\"([^\"]*)\"", clean):
        assert value.lstrip().startswith(("#", "data:")), (name, value)
    if len(data) % 16 == 0:
        with contextlib.suppress(GeniusError):
            _render(data, 64, 15.0)


class Http:
    """The app without a socket: what is sent is made of the fuzzer's bytes."""

    ROUTES = (
        ("POST", "/v1/search"),
        ("POST", "/v1/items"),
        ("PUT", "/v1/items/a"),
        ("DELETE", "/v1/items/a"),
        ("GET", "/v1/codes/0"),
    )
    KINDS = (b"application/json", b"multipart/form-data; boundary=x", b"application/json; charset=utf-7", b"text/plain")

    def __init__(self) -> None:
        from genius.serve.app import create_app
        from genius.serve.settings import ServeConfig

        self.loop = asyncio.new_event_loop()
        self.app = create_app(Everything(), ServeConfig(max_pixels=1_000_000))  # type: ignore[arg-type]

    def __call__(self, data: bytes) -> None:
        self.loop.run_until_complete(asyncio.wait_for(self._send(data), 20))

    async def _send(self, data: bytes) -> None:
        choice, body = data[:1] or b"\0", data[1:]
        method, path = self.ROUTES[choice[0] % len(self.ROUTES)]
        headers = [(b"host", b"localhost"), (b"content-type", self.KINDS[choice[0] // 8 % len(self.KINDS)])]
        parts = [body[: len(body) // 2], body[len(body) // 2 :]]
        status, answer, done = 0, b"", asyncio.Event()

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            await done.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, answer
            status = message.get("status", status)
            answer += message.get("body", b"")

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1), "scheme": "http",
            "server": ("localhost", 80), "root_path": "", "state": {},
        }  # fmt: skip
        await self.app(scope, receive, send)  # type: ignore[arg-type]
        done.set()
        assert 200 <= status < 500, (status, answer[:300])
        found = json.loads(answer)
        assert status < 400 or set(found["error"]) == {"code", "message", "request_id"}, answer[:300]


class Everything:
    """Looks like an index that holds whatever is asked for; pictures are decoded as a real one would."""

    version = 1
    path = Path("everything.genius")
    about = SimpleNamespace(id="index", levels=(3, 4))
    model = SimpleNamespace(encoder=None)

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def _item(self, name: str) -> Any:
        from genius import Item

        return Item(name, text="t", metadata={"price": 3})

    def search_each(self, queries: list[Any], requests: list[Any]) -> Any:
        from genius.index import Hit, Hits
        from genius.index.filters import compile_where
        from genius.types import Modality

        one = Hit("a", 0.5, (1, 2), self._item("a"), Modality.TEXT)
        for request in requests:
            if request.where is not None:
                compile_where(request.where, {"price": "number", "name": "text"})  # type: ignore[dict-item]
        return [Hits([one] * min(request.k, 3)) for request in requests]

    def _write(self, items: Iterable[Any]) -> Any:
        from genius.pictures import load_image

        kept = list(items)
        for item in kept:
            if item.image is not None:
                load_image(item.image, least=100)
        return SimpleNamespace(added=len(kept), existing=0, replaced=0)

    add = upsert = _write

    def delete(self, ids: Iterable[str], *, missing: str = "raise") -> int:
        return 1

    def get(self, ids: list[str], *, missing: str = "raise") -> list[Any]:
        return [self._item(name) for name in ids]

    def codes(self, item_id: str) -> tuple[int, ...]:
        return (1, 2)

    def thumbnail(self, item_id: str) -> bytes | None:
        return None

    def count(self, where: str | None = None) -> int:
        return 3

    def columns(self) -> dict[str, str]:
        return {"price": "number"}

    def below(self, prefix: Any = (), *, limit: int = 0, per_child: int = 0) -> Any:
        return SimpleNamespace(count=1, children={}, items=[self._item("a")], codes=[(1, 2)])

    def close(self) -> None: ...


def seeds(target: str) -> list[bytes]:
    from hostile_pictures import drawings as hostile_drawings
    from hostile_pictures import picture, pictures, saved

    small = 60_000
    if target == "drawings":
        return [data for _, data, _ in hostile_drawings() if len(data) < small]
    if target == "pictures":
        return [data for name, data, _ in pictures() if len(data) < small and not name.endswith(".svg")]
    image = base64.b64encode(saved(picture(), "PNG")).decode()
    searches: list[dict[str, Any]] = [
        {"text": "a", "k": 3}, {"image": image}, {"like": "a", "text": "b"}, {"text": "a", "where": "price < 3 AND name = 'x'"},
        {"text": "a", "target": "image", "min_score": 0.5, "beams": 9, "rerank": 0, "instruction": "find"},
    ]  # fmt: skip
    items = {"items": [{"id": "a", "text": "t", "metadata": {"price": 3}}, {"id": "b", "image": image}]}
    form = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\nwords\r\n'
    form += b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    form += saved(picture(), "PNG") + b"\r\n--x--\r\n"
    bodies = [(0, json.dumps(search).encode()) for search in searches] + [(1, json.dumps(items).encode())]
    bodies += [(2, json.dumps(items["items"][1]).encode()), (8, form), (9, form), (10, form), (3, b""), (4, b"")]
    return [bytes([choice]) + body for choice, body in bodies]


TARGETS: dict[str, Callable[[], tuple[Callable[[bytes], None], list[bytes]]]] = {
    "pictures": lambda: (pictures, seeds("pictures")),
    "drawings": lambda: (drawings, seeds("drawings")),
    "http": lambda: (Http(), seeds("http")),
}
