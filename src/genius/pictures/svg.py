"""Renders SVG files with resvg in separate processes, so that a drawing that crashes, hangs or fills memory costs one picture.

Two parts: `draw_svg` with the worker processes it keeps, and the program that such a process runs
(`python -m genius.pictures.svg`): it reads drawings from standard input and returns pixels on standard output. Its memory, time
and files are limited.

Why not `ProcessPoolExecutor`: killing one of its processes breaks the pool for all other drawings, and with the spawn method it
runs the caller's script a second time. A child process of our own has neither fault.

A drawing is parsed and serialised again without its document type, so the renderer sees exactly what was checked: no entities, no
references that leave the drawing, no nesting that would overflow its stack.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import queue
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
from genius.files import open_regular
from genius.pictures.tones import to_rgb

MAX_DEPTH = 200  # the renderer calls itself at every level; drawings by hand or program have ten
MAX_BYTES = 16_000_000  # of the file, and of what its entities unfold to
PICTURES = ("image", "feImage")  # elements whose reference the renderer would open as a file

MEMORY = 1_000_000_000  # bytes of address space
STACK = 128_000_000  # of the thread that draws: enough for MAX_DEPTH levels many times over
REQUEST = struct.Struct(">IIf")  # bytes of the file, side in pixels, seconds it may take; the file follows
RESPONSE = struct.Struct(">cIII")  # status, sides of the picture, bytes that follow: RGB pixels or an error message
OK = b"P"
ERROR = b"E"
NEEDS_RESVG = "reading SVG needs resvg-py: pip install 'genius-search[svg]'"


def clean_svg(data: bytes) -> str:
    """Serialise a drawing as XML without document type and outside references.

    Raises:
        GeniusError: If it is not valid XML, nested too deep, or refers to files.
    """
    parser = expat.ParserCreate("utf-8")  # whatever the file says: the renderer reads UTF-8, too
    parser.buffer_text = True
    parser.ordered_attributes = True
    clean = _CleanXml()
    parser.StartElementHandler = clean.start
    parser.EndElementHandler = clean.end
    parser.CharacterDataHandler = clean.text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise GeniusError(f"not valid XML: {expat.ErrorString(error.code)}, line {error.lineno}") from None
    return "".join(clean.parts)


class _CleanXml:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self._depth = 0
        self._size = 0

    def _put(self, part: str) -> None:
        self._size += len(part)
        if self._size > MAX_BYTES:
            raise GeniusError(f"the drawing expands to more than {MAX_BYTES:,} bytes")
        self.parts.append(part)

    def start(self, name: str, attributes: list[str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GeniusError(f"its elements are nested more than {MAX_DEPTH} deep")
        kept = []
        for key, value in zip(attributes[::2], attributes[1::2], strict=True):
            if key.rpartition(":")[2] == "href" and not value.lstrip().startswith(("#", "data:")):
                if name.rpartition(":")[2] in PICTURES:
                    raise GeniusError(f"it refers to {value.strip()[:80]!r}: a drawing may embed images, but not refer to files")
                continue  # a link, or a shape of another file: nothing that would be drawn
            kept.append(f" {key}={quoteattr(value)}")
        self._put(f"<{name}{''.join(kept)}>")

    def end(self, name: str) -> None:
        self._depth -= 1
        self._put(f"</{name}>")

    def text(self, text: str) -> None:
        self._put(escape(text))


def main() -> None:
    """The worker process: render drawings from standard input until it ends."""
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
    limits = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    for name, most in limits.items():
        hard = resource.getrlimit(name)[1]
        value = most
        if hard != resource.RLIM_INFINITY:
            value = min(most, hard)
        resource.setrlimit(name, (value, value))


def _serve(requests: BinaryIO, responses: BinaryIO) -> None:
    while head := requests.read(REQUEST.size):
        length, side, seconds = REQUEST.unpack(head)
        data = requests.read(length)
        _alarm(seconds)
        try:
            picture = _draw(data, side)
            pixels = picture.tobytes()
            response = RESPONSE.pack(OK, picture.width, picture.height, len(pixels)) + pixels
        except Exception as error:  # the renderer's ValueError, MemoryError, ours
            message = " ".join((str(error) or type(error).__name__).split())[:300].encode("utf-8", "replace")
            response = RESPONSE.pack(ERROR, 0, 0, len(message)) + message
        _alarm(0)
        responses.write(response)
        responses.flush()


def _alarm(seconds: float) -> None:
    """The parent stops a drawing that takes too long; should the parent be gone, this does."""
    import signal

    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds)


def _draw(data: bytes, side: int) -> Image.Image:
    try:
        import resvg_py
    except ImportError:
        raise GeniusError(NEEDS_RESVG) from None
    drawn = bytes(resvg_py.svg_to_bytes(svg_string=clean_svg(data), width=side, height=side))
    return to_rgb(Image.open(io.BytesIO(drawn), formats=["PNG"]))


SECONDS = 10.0  # that one drawing may take
SIDE = 256  # of drawings, in pixels
PROCESSES = max(1, min(4, os.cpu_count() or 1))
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMP", "VIRTUAL_ENV")  # no secrets


class _Failed(Exception):
    """A drawing was not rendered; the message says why."""


class _Worker:
    """One process that renders one drawing at a time."""

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

    def alive(self) -> bool:
        return self.process.poll() is None

    def draw(self, data: bytes, side: int, seconds: float) -> Image.Image:
        """The picture. A process that does not answer in time is killed; `alive` then says so."""
        timed_out = threading.Event()

        def stop() -> None:
            timed_out.set()
            self.process.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            status, width, height, body = self._exchange(REQUEST.pack(len(data), side, seconds) + data)
        except (OSError, ValueError):
            code = self.close()
            if timed_out.is_set():
                raise _Failed(f"it took longer than {seconds:g} s to draw") from None
            cause = f"status {code}"
            if code < 0:
                cause = f"signal {-code}"
            raise _Failed(f"the process that drew it crashed ({cause})") from None
        finally:
            timer.cancel()
        if status != OK:
            raise _Failed(body.decode("utf-8", "replace"))
        return Image.frombytes("RGB", (width, height), body)

    def _exchange(self, request: bytes) -> tuple[bytes, int, int, bytes]:
        requests = self.process.stdin
        responses = self.process.stdout
        assert requests is not None and responses is not None
        requests.write(request)
        requests.flush()
        head = responses.read(RESPONSE.size)
        if len(head) < RESPONSE.size:
            raise OSError
        status, width, height, length = RESPONSE.unpack(head)
        body = responses.read(length)
        if len(body) < length:
            raise OSError
        return status, width, height, body

    def close(self) -> int:
        """Stop the process; its exit status."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was buffered for a process that is gone
                    pipe.close()
        return self.process.wait()


def _places() -> queue.LifoQueue[_Worker | None]:
    """One place per process, most recently used first. A place is empty until a drawing needs it."""
    places: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
    for _ in range(PROCESSES):
        places.put(None)
    return places


_workers = _places()


def _render(data: bytes, side: int, seconds: float) -> Image.Image:
    places = _workers
    worker = places.get()
    try:
        if worker is None or not worker.alive():
            worker = _Worker()
        return worker.draw(data, side, seconds)
    finally:
        places.put(worker)


def _close_workers() -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            worker = _workers.get_nowait()
            if worker is not None:
                worker.close()


def _forget_workers() -> None:
    """A forked child must not share its parent's processes: it starts its own."""
    global _workers
    _workers = _places()


atexit.register(_close_workers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


def draw_svg(path: Path, side: int = SIDE, seconds: float = SECONDS) -> Image.Image:
    """Render an SVG file as an RGB picture on white.

    Args:
        path: The file.
        side: Longest side of the picture, in pixels.
        seconds: Time after which the drawing is given up.

    Raises:
        PictureError: If the file is missing, too large, not a valid drawing, or takes too long.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise PictureError(f"{path} is larger than {MAX_BYTES:,} bytes: too large for a drawing")
        return _render(data, side, seconds)
    except FileNotFoundError:
        raise PictureError(f"no such image: {path}") from None
    except OSError as error:
        raise PictureError(f"cannot read {path} as an image: {error}") from None
    except _Failed as error:
        if str(error) == NEEDS_RESVG:
            raise PictureError(NEEDS_RESVG) from None
        raise PictureError(f"cannot read {path} as an image: {error}") from None


if __name__ == "__main__":
    main()
