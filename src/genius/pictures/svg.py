"""SVG files are drawn by processes of their own: one that crashes, hangs or eats memory costs one picture. Both ends are here:
who starts, asks and replaces such a process, and what it does.

They are plain children that run `python -m genius.pictures.svg`, not forks: that works from any thread, on every system, and
without importing the caller's program a second time. Such a child reads SVG files on its standard input and answers with pixels,
until the input ends. It may be killed at any time and by anything it is asked to draw. Before the first drawing it takes limits
upon itself: memory, no file may be written, no core is dumped.

Drawings come from strangers. A file is parsed and written anew, without its document type, so that the renderer sees exactly what
was checked: no entities, no references that leave the drawing, no nesting that would overflow its stack.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from PIL import Image

from genius.errors import GeniusError, PictureError
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


SECONDS = 10.0  # that one drawing may take
SIDE = 256  # of drawings, in pixels
PROCESSES = max(1, min(4, os.cpu_count() or 1))
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMP", "VIRTUAL_ENV")  # no secrets


class Crashed(Exception):
    """The process ended without an answer."""


class Painter:
    """One process that draws one picture at a time."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "genius.pictures.svg"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )

    def draw(self, data: bytes, side: int, seconds: float) -> Image.Image | str:
        """The picture, or why there is none. Raises `Crashed` when the process did not survive it."""
        asked, answers = self.process.stdin, self.process.stdout
        assert asked is not None and answers is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            asked.write(ASKED.pack(len(data), side, seconds) + data)
            asked.flush()
            head = answers.read(DRAWN.size)
            if len(head) < DRAWN.size:
                raise OSError
            kind, width, height, length = DRAWN.unpack(head)
            body = answers.read(length)
            if len(body) < length:
                raise OSError
        except (OSError, ValueError):
            code = self.close()
            raise Crashed(f"it took longer than {seconds:g} s to draw" if late.is_set() else _cause(code)) from None
        finally:
            timer.cancel()
        return Image.frombytes("RGB", (width, height), body) if kind == b"P" else body.decode("utf-8", "replace")

    def close(self) -> int:
        """Stop the process; its exit status."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:  # what was buffered for a process that is gone
                pass
        return self.process.wait()


def _cause(code: int) -> str:
    return f"the process that drew it crashed ({f'signal {-code}' if code < 0 else f'status {code}'})"


class Pool:
    """At most `size` painters, made when needed, replaced when broken. Safe to share between threads."""

    def __init__(self, size: int) -> None:
        self._room = threading.BoundedSemaphore(size)
        self._idle: list[Painter] = []
        self._lock = threading.Lock()

    def draw(self, data: bytes, side: int, seconds: float) -> Image.Image | str:
        with self._room:
            with self._lock:
                painter = self._idle.pop() if self._idle else None
            if painter is None or painter.process.poll() is not None:  # killed while idle, by the system say
                painter = Painter()
            drawn = painter.draw(data, side, seconds)
            with self._lock:
                self._idle.append(painter)
            return drawn

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for painter in idle:
            painter.close()


_pool = Pool(PROCESSES)


def _forget() -> None:
    """A forked child must not share its parent's painters: it gets its own."""
    global _pool
    _pool = Pool(PROCESSES)


atexit.register(lambda: _pool.close())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def draw_svg(path: Path, side: int = SIDE, seconds: float = SECONDS) -> Image.Image:
    """An SVG file as an RGB picture on white."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise PictureError(f"{path} is larger than {MAX_BYTES:,} bytes: too large for a drawing")
        drawn = _pool.draw(data, side, seconds)
    except FileNotFoundError:
        raise PictureError(f"no such image: {path}") from None
    except (OSError, Crashed) as error:
        raise PictureError(f"cannot read {path} as an image: {error}") from None
    if isinstance(drawn, str):
        raise PictureError(drawn if drawn.startswith("reading SVG needs") else f"cannot read {path} as an image: {drawn}")
    return drawn


if __name__ == "__main__":
    main()
