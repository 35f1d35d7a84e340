"""Requests that must be refused: (name, method, path, options of httpx, statuses that are right)."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any, TypeAlias

from PIL import Image
from serve_fixtures import draw, encoded

Case: TypeAlias = tuple[str, str, str, dict[str, Any], set[int]]

SQL = [
    "1; DROP TABLE items",
    "price < 3; DELETE FROM items",
    "price < 3 -- comment",
    "price < 3 /* comment */",
    "' OR '1'='1",
    "price = (SELECT max(price) FROM items)",
    "id IN (SELECT id FROM items)",
    "price < 3 UNION SELECT * FROM items",
    "EXISTS (SELECT 1)",
    "repeat('a', 1000000000) = 'b'",
    "sleep(10) = 0",
    "load_extension('x') = 1",
    "price < ",
    "price <> <> 3",
    "((((((price < 3",
    "(" * 900 + "price < 3" + ")" * 900,
    "NOT " * 400 + "price",
    "unknown_field = 1",
    "price = 'text'",
    "colour < 3",
    "colour LIKE '%a%b%c%d%e%f%g%h%i%j%'",
    "_seq > 0",
    "_embedding IS NOT NULL",
    "colour = 'unclosed",
    'colour = "red"',
    "price = 1e999",
    "price = NaN",
    "CAST(price AS TEXT) = '3'",
    "price + 1",
    "*",
    "\ud7ff = 1",
    "🙂",
    "x" * 1999,
]


def _png(width: int, height: int, body: bytes = b"", broken_crc: bool = False) -> bytes:
    """A PNG that claims any size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data) ^ (1 if broken_crc else 0)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


def pictures() -> Iterator[tuple[str, bytes, set[int]]]:
    """Files that are no pictures, or not ones to decode."""
    fine = draw("circle", "red", 300)
    jpeg, png, webp, gif, bmp = (encoded(fine, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP"))
    unread, large = {422}, {413}
    yield "bomb: claims 50,000 x 50,000", _png(50_000, 50_000, b"\0" * 1000), large
    yield "bomb: claims 2^31 x 2^31", _png(2**31 - 1, 2**31 - 1), {413, 422}
    yield "bomb: 6,000 x 6,000 of one colour", encoded(Image.new("L", (6000, 6000)), "PNG"), large
    yield "bomb: gif screen", gif[:6] + struct.pack("<HH", 65000, 65000) + gif[10:], {413, 422}
    yield "bomb: bmp size", bmp[:18] + struct.pack("<ii", 100_000, 100_000) + bmp[26:], {413, 422}
    yield "bomb: jpeg frame", _jpeg_claiming(jpeg, 65_000, 65_000), {413, 422}
    yield "thin: 1 x 20,000", encoded(Image.new("L", (1, 20_000)), "PNG"), unread
    yield "zero width", _png(0, 10), unread
    yield "png bad checksum", _png(4, 4, b"\0" * 52, broken_crc=True), unread
    yield "png too few rows", _png(400, 400, b"\0" * 10), unread
    for name, data in (("jpeg", jpeg), ("png", png), ("webp", webp), ("bmp", bmp)):
        yield f"{name} cut in half", data[: len(data) // 2], unread
        yield f"{name} header only", data[:20], unread
    yield "jpeg of noise", jpeg[:200] + bytes(range(256)) * 8, unread
    yield "svg", b'<svg xmlns="http://www.w3.org/2000/svg"><circle r="9"/></svg>', unread
    yield (
        "svg with entities",
        b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg>&x;</svg>',
        unread,
    )
    yield "html", b"<html><script>alert(1)</script></html>", unread
    yield "postscript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", unread
    yield "pdf", b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n", unread
    yield "eps", encoded(fine, "EPS"), unread
    yield "ico (not accepted)", encoded(fine, "ICO"), unread
    yield "zip", b"PK\x03\x04" + b"\0" * 100, unread
    yield "random bytes", bytes((i * 7919) % 251 for i in range(5000)), unread
    yield "one byte", b"\x89", unread
    yield "a path", b"/etc/passwd", unread


def _jpeg_claiming(data: bytes, width: int, height: int) -> bytes:
    at = data.index(b"\xff\xc0")  # the frame header
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def _search(name: str, body: Any, statuses: set[int] | None = None) -> Case:
    return (f"search: {name}", "POST", "/v1/search", {"json": body}, statuses or {422})


def _raw(name: str, content: bytes, kind: str = "application/json", statuses: set[int] | None = None) -> Case:
    return (f"raw: {name}", "POST", "/v1/search", {"content": content, "headers": {"Content-Type": kind}}, statuses or {400})


def cases() -> Iterator[Case]:
    for where in SQL:
        yield _search(f"where {where[:40]}", {"text": "x", "where": where})
    for name, data, statuses in pictures():
        coded = base64.b64encode(data).decode()
        yield f"multipart: {name}", "POST", "/v1/search", {"files": {"image": ("x.png", data)}}, statuses
        yield f"put: {name}", "PUT", "/v1/items/bad", {"json": {"image": coded}}, statuses
    yield from _bodies()
    yield from _fields()
    yield from _items()
    yield from _paths()


def _bodies() -> Iterator[Case]:
    deep = b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    yield _raw("empty", b"")
    yield _raw("not json", b"hello")
    yield _raw("cut", b'{"text": "x"')
    yield _raw("deeply nested", deep, statuses={400, 422})
    yield _raw("bad utf-8", b'{"text": "\xff\xfe"}')
    yield _raw("utf-16", '{"text": "x"}'.encode("utf-16"))
    yield _raw("lone surrogate", b'{"text": "\\ud800"}', statuses={400, 422})
    yield _raw("two documents", b'{"text": "x"}{"text": "y"}')
    yield _raw("NaN", b'{"text": "x", "min_score": NaN}', statuses={400, 422})
    yield _raw("Infinity", b'{"text": "x", "min_score": -Infinity}', statuses={400, 422})
    yield _raw("number without end", b'{"text": "x", "k": ' + b"9" * 5000 + b"}", statuses={400, 422})
    yield _raw("1e999", b'{"text": "x", "min_score": 1e999}', statuses={400, 422})
    yield _raw("an array", b"[]", statuses={422})
    yield _raw("a string", b'"text"', statuses={422})
    yield _raw("null", b"null", statuses={422})
    yield _raw("form", b"text=x", "application/x-www-form-urlencoded", {415})
    yield _raw("text", b'{"text": "x"}', "text/plain", {415})
    yield _raw("xml", b"<text>x</text>", "application/xml", {415})
    yield _raw("no boundary", b"--x\r\n", "multipart/form-data")
    yield _raw("wrong boundary", b"--y\r\n\r\n", "multipart/form-data; boundary=x", {400, 422})
    yield _raw(
        "multipart cut",
        b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\nhel',
        "multipart/form-data; boundary=x",
        {400, 422},
    )
    yield _raw("multipart without names", b"--x\r\n\r\nhello\r\n--x--\r\n", "multipart/form-data; boundary=x", {400, 422})
    yield _raw("gzip as is", zlib.compress(b'{"text": "x"}'))
    compressed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    yield "compressed", "POST", "/v1/search", {"content": b'{"text": "x"}', "headers": compressed}, {415}
    yield "no content type", "POST", "/v1/search", {"content": b'{"text": "x"}'}, {415}
    many = {f"f{i}": "x" for i in range(50)}
    yield "multipart: 50 fields", "POST", "/v1/search", {"data": many, "files": {"image": ("a.png", b"x")}}, {400, 422}
    two = [("image", ("a.png", b"x")), ("image", ("b.png", b"y"))]
    yield "multipart: two pictures", "POST", "/v1/search", {"files": two}, {400, 422}
    yield "multipart: a file as text", "POST", "/v1/search", {"files": {"text": ("a.txt", b"hello")}}, {422}
    yield "multipart: huge field", "POST", "/v1/search", {"files": {"text": (None, "x" * 2_000_000)}}, {400, 413, 422}
    yield "body of 17 MB", "POST", "/v1/search", {"json": {"text": "x", "image": "A" * 17_000_000}}, {413}
    yield "picture of 11 MB", "POST", "/v1/search", {"files": {"image": ("a.png", b"\x89PNG" + b"\0" * 11_000_000)}}, {413}
    yield "base64 of 11 MB", "POST", "/v1/search", {"json": {"image": "A" * 15_000_000}}, {413}


def _fields() -> Iterator[Case]:
    for k in (0, -1, 1001, 10**9, 10**30, 1.5, "10", None, True, [10], {}):
        yield _search(f"k = {k!r}"[:40], {"text": "x", "k": k})
    for beams in (0, -3, 10**6, "many", 2.5):
        yield _search(f"beams = {beams!r}", {"text": "x", "beams": beams})
    for rerank in (-1, 10**9, "all"):
        yield _search(f"rerank = {rerank!r}", {"text": "x", "rerank": rerank})
    for target in ("video", "IMAGE", "", 0, [], True, "image,text"):
        yield _search(f"target = {target!r}", {"text": "x", "target": target})
    for text in (1, True, ["x"], {"a": 1}, "", "   ", "\x00", "x" * 8001):
        yield _search(f"text = {str(text)[:10]!r}", {"text": text})
    for score in ("high", [], True, {}):
        yield _search(f"min_score = {score!r}", {"text": "x", "min_score": score})
    for image in ("", "!!!", "aGVsbG8", "aGVsbG8=", 5, None, "http://127.0.0.1/a.png", "file:///etc/passwd", "/etc/passwd", "data:image/png,abc",  # noqa: E501
                  "data:image/png;base64", "data:;base64,????", "ftp://example.org/x"):  # fmt: skip
        yield _search(f"image = {image!r}", {"image": image})
    yield _search("nothing", {})
    yield _search("unknown field", {"text": "x", "limit": 5})
    yield _search("url field", {"image_url": "http://127.0.0.1:1/a.png"})
    yield _search("path field", {"text": "x", "path": "/etc/passwd"})
    yield _search("image and like", {"image": base64.b64encode(encoded(draw("ring", "red"))).decode(), "like": "circle/red.png"})
    yield _search("like nobody", {"like": "nobody"}, {404})
    yield _search("like a path", {"like": "../../../etc/passwd"}, {404})
    yield _search("like a number", {"like": 7})
    yield _search("like of 600 characters", {"like": "x" * 600})
    yield _search("instruction too long", {"text": "x", "instruction": "x" * 2001})
    for name, value in (
        ("k", "many"),
        ("k", "1e9"),
        ("k", "nan"),
        ("min_score", "nan"),
        ("min_score", "inf"),
        ("target", "all"),
        ("limit", "3"),
    ):
        yield (
            f"form: {name} = {value}",
            "POST",
            "/v1/search",
            {"data": {"text": "x", name: value}, "files": {"image": ("", b"")}},
            {400, 422},
        )


def _items() -> Iterator[Case]:
    def post(name: str, body: Any, statuses: set[int] | None = None) -> Case:
        return f"items: {name}", "POST", "/v1/items", {"json": body}, statuses or {422}

    good = {"id": "bad-1", "text": "t"}
    yield post("none", {"items": []})
    yield post("not a list", {"items": good})
    yield post("bare item", good)
    yield post("no id", {"items": [{"text": "t"}]})
    yield post("no content", {"items": [{"id": "a"}]})
    yield post("the same id twice", {"items": [good, good]})
    yield post("101 items", {"items": [{"id": f"bad-{i}", "text": "t"} for i in range(101)]}, {413})
    for item_id in ("", " \x00", "a\nb", "x" * 513, 5, None, ".", "..", "\x7f"):
        yield post(f"id {item_id!r}"[:40], {"items": [{"id": item_id, "text": "t"}]})
    for metadata in (
        [], "x", {"a": [1]}, {"a": {"b": 1}}, {"": 1}, {"1a": 1}, {"a b": 1}, {"a;DROP": 1}, {"_seq": 1}, {"id": "x"}, {"text": "x"},  # noqa: E501
        {"a" * 65: 1}, {"price": "a string"}, {"colour": 5}, {"round": "yes"}, {"n": 2**60}, {"n": -(2**70)}, {"s": "x" * 65_537},
        {f"k{i}": i for i in range(65)}, {"image": "x"},
    ):  # fmt: skip
        yield post(f"metadata {json.dumps(metadata)[:30]}", {"items": [{"id": "bad-1", "text": "t", "metadata": metadata}]})
    nan = b'{"items": [{"id": "bad-1", "text": "t", "metadata": {"price": NaN}}]}'
    yield (
        "items: NaN in metadata",
        "POST",
        "/v1/items",
        {"content": nan, "headers": {"Content-Type": "application/json"}},
        {400, 422},
    )
    yield "put: no body", "PUT", "/v1/items/bad-1", {}, {415}
    yield "put: id in the body", "PUT", "/v1/items/bad-1", {"json": good}, {422}
    yield "put: empty object", "PUT", "/v1/items/bad-1", {"json": {}}, {422}
    yield "put: too long an id", "PUT", f"/v1/items/{'x' * 600}", {"json": {"text": "t"}}, {422}
    yield (
        "form: metadata not json",
        "POST",
        "/v1/items",
        {"data": {"id": "bad-1", "text": "t", "metadata": "{"}, "files": {"image": ("", b"")}},
        {400, 422},
    )
    yield "delete nobody", "DELETE", "/v1/items/nobody", {}, {404}


def _paths() -> Iterator[Case]:
    for path in (
        "/static/..%2fapp.py", "/static/../app.py", "/static/%2e%2e/%2e%2e/app.py", "/static/..%5c..%5capp.py", "/static//etc/passwd",  # noqa: E501
        "/static/%00", "/static/style.css%00.png", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/etc/passwd", "/v1", "/v1/search/",  # noqa: E501
        "/v1/items/..%2f..%2fetc%2fpasswd", "/v1/images/..%2f..%2fetc%2fpasswd", "/v1/images/%2fetc%2fpasswd", "/v1/thumbnails/%2fetc%2fpasswd",  # noqa: E501
        "/v1/images/file:%2f%2f%2fetc%2fpasswd", "/v1/items/%00", "/v1/items/%ff%fe", "/v1/items/a%0d%0aSet-Cookie:x", "/v1/items/",  # noqa: E501
        "/v1/codes/x", "/v1/codes/0-x", "/v1/codes/-1", "/v1/codes/0--1", "/v1/codes/3", "/v1/codes/0-16", "/v1/codes/0-0-0-0-0",
        "/v1/codes/99999999999999999999", "/v1/codes/0-", "/v1/codes/0,1", "/v1/codes/0/1", "/v1/codes/1e3", "/v1/codes/٣",
        "/v1/codes/" + "0-" * 2000 + "0", "/v1/codes/%00", "/docs/../etc", "/admin", "/.env", "/.git/config",
    ):  # fmt: skip
        yield f"path: {path[:50]}", "GET", path, {}, {404, 422}
    for method, path in (
        ("GET", "/v1/search"),
        ("DELETE", "/v1/items"),
        ("PATCH", "/v1/items/x"),
        ("POST", "/healthz"),
        ("PROPFIND", "/v1/search"),
        ("TRACE", "/"),
    ):
        yield f"method: {method} {path}", method, path, {}, {404, 405}


def oversized() -> Iterator[bytes]:
    """100 MB, piece by piece: sent without saying how much will come."""
    piece = b" " * 1_000_000
    for _ in range(100):
        yield piece
