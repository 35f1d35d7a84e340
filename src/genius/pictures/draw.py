"""The process that draws: reads SVG files on its standard input, answers with pixels, until the input ends.

It may be killed at any time and by anything it is asked to draw; `sandbox` starts another. Before the first drawing it
takes limits upon itself: memory, no file may be written, no core is dumped.

Drawings come from strangers. A file is parsed and written anew, without its document type, so that the renderer sees exactly
what was checked: no entities, no references that leave the drawing, no nesting that would overflow its stack.
"""

from __future__ import annotations

import contextlib
import io
import struct
import sys
import threading
from typing import BinaryIO
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from PIL import Image

from genius.errors import GeniusError
from genius.pictures.tones import to_rgb

MAX_DEPTH = 200  # the renderer calls itself at every level; drawings by hand or program have ten
MAX_BYTES = 16_000_000  # of the file, and of what its entities unfold to
PICTURES = ("image", "feImage")  # elements whose reference the renderer would open as a file

MEMORY = 1_000_000_000  # bytes of address space
STACK = 128_000_000  # of the thread that draws: room for MAX_DEPTH levels many times over
ASKED = struct.Struct(">IIf")  # bytes of the file, side in pixels, seconds it may take
DRAWN = struct.Struct(">cIII")  # b"P" and the sides of the RGB pixels that follow, or b"E"; bytes that follow


def clean_svg(data: bytes) -> str:
    """The drawing as plain XML, or a `GeniusError` that says what is wrong with it."""
    parser = expat.ParserCreate("utf-8")  # whatever the file says: the renderer reads UTF-8, too
    parser.buffer_text = parser.ordered_attributes = True
    writer = _Writer()
    parser.StartElementHandler, parser.EndElementHandler = writer.start, writer.end
    parser.CharacterDataHandler = writer.text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise GeniusError(f"not valid XML: {expat.ErrorString(error.code)}, line {error.lineno}") from None
    return "".join(writer.parts)


class _Writer:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self._depth = self._size = 0

    def _put(self, part: str) -> None:
        self._size += len(part)
        if self._size > MAX_BYTES:
            raise GeniusError(f"the drawing unfolds to more than {MAX_BYTES:,} bytes")
        self.parts.append(part)

    def start(self, name: str, attributes: list[str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GeniusError(f"its elements are nested more than {MAX_DEPTH} deep")
        kept = []
        for key, value in zip(attributes[::2], attributes[1::2], strict=True):
            if key.rpartition(":")[2] == "href" and not value.lstrip().startswith(("#", "data:")):
                if name.rpartition(":")[2] in PICTURES:
                    raise GeniusError(f"it refers to {value.strip()[:80]!r}: a drawing may hold pictures, not name files")
                continue  # a link, or a shape of another file: nothing that would be drawn
            kept.append(f" {key}={quoteattr(value)}")
        self._put(f"<{name}{''.join(kept)}>")

    def end(self, name: str) -> None:
        self._depth -= 1
        self._put(f"</{name}>")

    def text(self, text: str) -> None:
        self._put(escape(text))


def main() -> None:
    with contextlib.suppress(ImportError):
        import resvg_py  # noqa: F401  # before the limits: importing may write its compiled form
    _limit()
    threading.stack_size(STACK)
    worker = threading.Thread(target=_serve, args=(sys.stdin.buffer, sys.stdout.buffer))
    worker.start()
    worker.join()


def _limit() -> None:
    try:
        import resource
    except ImportError:  # not a POSIX system: the time limit of the parent remains
        return
    for kind, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (value, value))


def _serve(asked: BinaryIO, answers: BinaryIO) -> None:
    while head := asked.read(ASKED.size):
        length, side, seconds = ASKED.unpack(head)
        data = asked.read(length)
        _alarm(seconds)
        try:
            picture = _draw(data, side)
            pixels = picture.tobytes()
            answer = DRAWN.pack(b"P", picture.width, picture.height, len(pixels)) + pixels
        except Exception as error:  # the renderer's ValueError, MemoryError, ours
            message = " ".join((str(error) or type(error).__name__).split())[:300].encode("utf-8", "replace")
            answer = DRAWN.pack(b"E", 0, 0, len(message)) + message
        _alarm(0)
        answers.write(answer)
        answers.flush()


def _alarm(seconds: float) -> None:
    """The parent stops a drawing that takes too long; should the parent be gone, this does."""
    import signal

    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds)


def _draw(data: bytes, side: int) -> Image.Image:
    try:
        import resvg_py
    except ImportError:
        raise GeniusError("reading SVG needs resvg-py: pip install 'genius-search[svg]'") from None
    drawn = bytes(resvg_py.svg_to_bytes(svg_string=clean_svg(data), width=side, height=side))
    return to_rgb(Image.open(io.BytesIO(drawn), formats=["PNG"]))


if __name__ == "__main__":
    main()
