"""Picture files as strangers make them: broken, boastful, disguised, and odd ones that are fine.

`pictures()` yields (name, bytes, fate): "indexed" must become an item, "refused" must be named among the problems, and
"either" must do one of the two.
"""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw

Fate = Literal["indexed", "refused", "either"]
Kind = tuple[str, bytes, Fate]

SVG = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 10 10">'


def picture(width: int = 64, height: int = 48, mode: str = "RGB") -> Image.Image:
    drawn = Image.new("RGB", (width, height), (240, 240, 230))
    ImageDraw.Draw(drawn).ellipse((width // 8, height // 8, width * 3 // 4, height * 3 // 4), fill=(200, 60, 40))
    return drawn.convert(mode)


def saved(opened: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    opened.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, body: bytes, extra: bytes = b"", depth: int = 8, colour: int = 2) -> bytes:
    """A PNG that claims anything."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


def tiff(entries: list[tuple[int, int, int, int]], following: int = 0, data: bytes = b"") -> bytes:
    """A little-endian TIFF with these (tag, type, count, value) and a pointer to the next directory."""
    body = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return b"II*\0" + struct.pack("<I", 8) + body + struct.pack("<I", following) + data


def bmp(width: int, height: int, bits: int = 24, compression: int = 0, data: bytes = b"") -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(data), 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(data), 0, 0, 54) + header + data


def pictures() -> Iterator[Kind]:
    yield from _fine()
    yield from _cut()
    yield from _png()
    yield from _jpeg()
    yield from _others()
    yield from _tiff()
    yield from _disguised()
    yield from drawings()


def _fine() -> Iterator[Kind]:
    for kind, suffix in (("PNG", "png"), ("JPEG", "jpg"), ("WEBP", "webp"), ("GIF", "gif"), ("BMP", "bmp"), ("TIFF", "tiff")):
        yield f"fine.{suffix}", saved(picture(), kind), "indexed"
    for mode in ("1", "L", "LA", "P", "RGBA"):
        yield f"fine-{mode}.png", saved(picture(mode=mode), "PNG"), "indexed"
    yield "fine-cmyk.jpg", saved(picture(mode="CMYK"), "JPEG"), "indexed"
    yield "fine-16-bit.png", saved(Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64) * 16), "PNG"), "indexed"
    yield "fine-float.tif", saved(Image.fromarray(np.random.default_rng(0).random((40, 40), np.float32)), "TIFF"), "indexed"
    yield "fine-nan.tif", saved(Image.fromarray(np.full((40, 40), np.nan, np.float32)), "TIFF"), "indexed"
    yield "fine-animated.gif", saved(picture(), "GIF", save_all=True, append_images=[picture(mode="L")] * 3), "indexed"
    yield "fine-animated.webp", saved(picture(), "WEBP", save_all=True, append_images=[picture()] * 3), "indexed"
    yield "fine-animated.png", saved(picture(), "PNG", save_all=True, append_images=[picture()] * 3), "indexed"
    yield "fine-pages.tif", saved(picture(), "TIFF", save_all=True, append_images=[picture()] * 3), "indexed"
    yield "fine-thin.png", saved(Image.new("RGB", (1, 60_000)), "PNG"), "indexed"
    yield "fine-flat.png", saved(Image.new("RGB", (60_000, 1)), "PNG"), "indexed"
    yield "fine-one-pixel.png", saved(Image.new("RGB", (1, 1)), "PNG"), "indexed"
    yield "fine-large.png", saved(Image.new("L", (7000, 7000)), "PNG"), "indexed"
    yield "fine-suffix.png", saved(picture(), "JPEG"), "indexed"  # browsers do not mind either
    exif = Image.Exif()
    exif[0x0112] = 99
    yield "fine-turned.jpg", saved(picture(), "JPEG", exif=exif), "indexed"
    yield "fine-exif.jpg", saved(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"), "either"


def _cut() -> Iterator[Kind]:
    kinds = (("PNG", "png"), ("JPEG", "jpg"), ("WEBP", "webp"), ("GIF", "gif"), ("BMP", "bmp"), ("TIFF", "tif"), ("AVIF", "avif"))
    for kind, suffix in kinds:
        data = saved(picture(200, 200), kind)
        yield f"empty.{suffix}", b"", "refused"
        yield f"head.{suffix}", data[:12], "refused"
        yield f"half.{suffix}", data[: len(data) // 2], "refused" if kind not in ("GIF",) else "either"
        damaged = bytearray(data)
        for position in range(len(data) // 3, len(data), max(1, len(data) // 40)):
            damaged[position] ^= 0xFF
        yield f"damaged.{suffix}", bytes(damaged), "either"


def _png() -> Iterator[Kind]:
    yield "bomb-claims.png", png(50_000, 50_000, b"\0" * 100), "refused"
    yield "bomb-claims-most.png", png(2**31 - 1, 2**31 - 1, b"\0" * 100), "refused"
    yield "bomb-true.png", png(30_000, 30_000, b"\0" * 30_000_000, depth=1, colour=0), "refused"
    yield "zero-wide.png", png(0, 10, b""), "refused"
    yield "no-data.png", png(400, 400, b""), "refused"
    yield "little-data.png", png(400, 400, b"\0" * 10), "refused"
    yield "no-palette.png", png(8, 8, b"\0" * 80, colour=3), "either"
    yield "bad-depth.png", png(8, 8, b"\0" * 999, depth=7), "refused"
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"a" * 80_000_000))
    yield "bomb-text.png", png(8, 8, b"\0" * 200, text), "either"
    profile = chunk(b"iCCP", b"icc\0\0" + zlib.compress(b"\0" * 80_000_000))
    yield "bomb-profile.png", png(8, 8, b"\0" * 200, profile), "either"
    broken = bytearray(saved(picture(), "PNG"))
    broken[40] ^= 1
    yield "bad-checksum.png", bytes(broken), "refused"
    yield "many-chunks.png", png(8, 8, b"\0" * 200, chunk(b"tEXt", b"k\0v") * 50_000), "either"


def _jpeg() -> Iterator[Kind]:
    data = saved(picture(200, 200), "JPEG")
    yield "no-end.jpg", data[:-2], "either"
    yield "noise.jpg", data[:200] + bytes(range(256)) * 8, "either"
    frame = data.index(b"\xff\xc0")
    for width, height in ((65_000, 65_000), (0, 0), (65_535, 1)):
        sized = data[: frame + 5] + struct.pack(">HH", height, width) + data[frame + 9 :]
        yield f"claims-{width}x{height}.jpg", sized, "either" if height == 1 else "refused"
    yield "comments.jpg", data[:2] + b"\xff\xfe\xff\xff" + b"c" * 65_533 + data[2:], "either"
    progressive = saved(picture(400, 400), "JPEG", progressive=True)
    yield "progressive-cut.jpg", progressive[: len(progressive) * 2 // 3], "either"
    scan = progressive.rindex(b"\xff\xda")
    yield "progressive-scans.jpg", progressive[:scan] + progressive[scan:-2] * 300, "either"


def _others() -> Iterator[Kind]:
    yield "claims.bmp", bmp(60_000, 60_000), "refused"
    yield "upside-down.bmp", bmp(8, -8, data=bytes(8 * 24)), "indexed"
    yield "negative.bmp", bmp(-8, 8, data=bytes(8 * 24)), "refused"
    yield "run-length.bmp", bmp(8, 8, 8, 1, b"\xff\x01" * 5000), "either"
    yield "strange-bits.bmp", bmp(8, 8, 13, 0, bytes(500)), "refused"
    yield "claims.gif", b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0) + b"\x3b", "refused"
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 9, 9, 0) + b"\x02\x02\x4c\x01\0"
    yield "small-frames.gif", b"GIF89a" + struct.pack("<HHBBB", 9, 9, 0x80, 0, 0) + bytes(6) + frame * 3000 + b"\x3b", "either"
    webp = saved(picture(), "WEBP")
    yield "length.webp", webp[:4] + b"\xff\xff\xff\x7f" + webp[8:], "either"
    yield "claims.webp", b"RIFF\x1a\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\xff\xff" * 2, "refused"
    yield "claims.avif", b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + b"\0\0\x10\0meta" + bytes(200), "refused"


def _tiff() -> Iterator[Kind]:
    plain = [(256, 3, 1, 8), (257, 3, 1, 8), (258, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 200), (278, 3, 1, 8), (279, 4, 1, 64)]
    yield "plain.tif", tiff(plain, data=bytes(200)), "either"
    yield "loop.tif", tiff(plain, following=8, data=bytes(200)), "either"
    yield "far.tif", tiff([*plain[:4], (273, 4, 1, 2**31), plain[5], plain[6]]), "refused"
    yield "claims.tif", tiff([(256, 4, 1, 90_000), (257, 4, 1, 90_000), *plain[2:]]), "refused"
    yield "counts.tif", tiff([*plain[:4], (273, 4, 2**31 - 1, 8), plain[5], plain[6]]), "refused"
    yield "types.tif", tiff([(tag, 99, 1, 1) for tag in range(256, 280)]), "refused"
    yield "nothing.tif", tiff([]), "refused"
    yield "compression.tif", tiff([*plain, (259, 3, 1, 7)], data=bytes(300)), "refused"
    lzw = bytearray(saved(picture(200, 200), "TIFF", compression="tiff_lzw"))
    lzw[20:200] = bytes(range(180))
    yield "lzw.tif", bytes(lzw), "either"
    deflated = saved(picture(200, 200), "TIFF", compression="tiff_adobe_deflate")
    yield "deflate.tif", deflated.replace(deflated[8:40], b"\xff" * 32), "either"
    yield "fax.tif", saved(picture(200, 200, "1"), "TIFF", compression="group4"), "either"


def _disguised() -> Iterator[Kind]:
    for kind in ("EPS", "PDF", "PPM", "ICO", "TGA", "JPEG2000"):
        yield f"is-{kind.lower()}.png", saved(picture(), kind), "refused"
    yield "is-text.png", b"just some words, no picture at all\n" * 40, "refused"
    yield "is-html.jpg", b"<html><script>alert(1)</script></html>", "refused"
    yield "is-svg.png", f"{SVG}<circle r='4'/></svg>".encode(), "refused"
    yield "is-zip.png", b"PK\x03\x04" + bytes(100), "refused"
    yield "is-postscript.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/tmp/x) run\nshowpage\n", "refused"
    yield "is-random.webp", np.random.default_rng(1).bytes(5000), "refused"


def drawings() -> Iterator[Kind]:
    def svg(inside: str, before: str = "") -> bytes:
        return f"{before}{SVG}{inside}</svg>".encode()

    rectangle = '<rect width="9" height="9"/>'
    yield "fine.svg", svg(rectangle), "indexed"
    yield "fine-text.svg", svg('<text x="1" y="8">words</text>'), "indexed"
    yield "fine-script.svg", svg("<script>while(true){}</script>" + rectangle), "indexed"
    yield "fine-entity.svg", svg('<rect width="9" height="9" fill="&c;"/>', '<!DOCTYPE svg [<!ENTITY c "red">]>'), "indexed"
    for depth in (500, 20_000, 200_000):
        yield f"nested-{depth}.svg", svg("<g>" * depth + "</g>" * depth), "refused"
    laughs = "".join(f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(9))
    yield "laughs.svg", svg("<text>&a9;</text>", f'<!DOCTYPE svg [{laughs}<!ENTITY a0 "lol">]>'), "refused"
    yield "external.svg", svg("<text>&x;</text>", '<!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]>'), "either"
    for name, target in (("absolute", "/etc/hostname"), ("relative", "../fine.png"), ("web", "http://localhost/x.png")):
        yield f"refers-{name}.svg", svg(f'<image href="{target}" width="9" height="9"/>'), "refused"
    turbulence = '<filter id="f"><feTurbulence baseFrequency="9" numOctaves="1000000000"/></filter>'
    yield "hangs.svg", svg(f'{turbulence}<rect width="9" height="9" filter="url(#f)"/>'), "refused"
    inner = base64.b64encode(png(20_000, 20_000, bytes(100_000), colour=6)).decode()
    yield "bomb-inside.svg", svg(f'<image width="9" height="9" href="data:image/png;base64,{inner}"/>'), "refused"
    uses = "".join(f'<g id="a{i}">' + f'<use href="#a{i + 1}"/>' * 10 + "</g>" for i in range(7))
    yield "bomb-uses.svg", svg(uses + f'<g id="a7">{rectangle}</g>'), "refused"
    yield "loop-uses.svg", svg('<g id="a"><use href="#a"/></g>'), "either"
    yield "cut.svg", svg(rectangle)[:-8], "refused"
    yield "empty.svg", b"", "refused"
    yield "zeros.svg", bytes(1000), "refused"
    yield "html.svg", b"<html><body>hello</body></html>", "refused"
    yield "utf-16.svg", svg(rectangle).decode().encode("utf-16"), "either"
    yield "huge.svg", svg(" " * 17_000_000 + rectangle), "refused"
    yield "sizes.svg", b'<svg xmlns="http://www.w3.org/2000/svg" width="1e30" height="1e-30"><rect/></svg>', "either"
    yield "no-size.svg", b'<svg xmlns="http://www.w3.org/2000/svg" width="0" height="0"/>', "either"
