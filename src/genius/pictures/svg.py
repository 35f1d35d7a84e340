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
import faulthandler
import importlib.util
import io
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from PIL import Image

from genius.errors import GeniusError, PictureError, said
from genius.files import open_regular
from genius.pictures.tones import to_rgb

MAX_DEPTH = 200  # the renderer calls itself at every level; drawings by hand or program have ten
MAX_BYTES = 16_000_000  # of the file, and of what its entities unfold to
PICTURES = ("image", "feImage")  # elements whose reference the renderer would open as a file

MEMORY = 1_000_000_000  # bytes of address space
STACK = 128_000_000  # of the thread that draws: enough for MAX_DEPTH levels many times over
SECONDS = 10.0  # that one drawing may take
SIDE = 256  # of drawings, in pixels
PROCESSES = max(1, min(4, os.cpu_count() or 1))
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMP", "VIRTUAL_ENV")  # no secrets


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


# -- the worker process ------------------------------------------------------------------------------------------


def main() -> None:
    """The worker process: render drawings from standard input until it ends."""
    import resvg_py  # noqa: F401  # before the limits: importing may write its compiled form

    _limit()
    threading.stack_size(STACK)
    worker = threading.Thread(target=_serve, args=(sys.stdin.buffer, sys.stdout.buffer))
    worker.start()
    worker.join()


def _limit() -> None:
    try:
        import resource
    except ImportError:  # not a POSIX system: the time limit remains
        return
    for name, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(name)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(name, (most, most))


def _serve(requests: BinaryIO, responses: BinaryIO) -> None:
    """A request is a line of JSON and the drawing; a response is a line of JSON and the pixels, if there are some."""
    while line := requests.readline():
        request = json.loads(line)
        data = requests.read(request["bytes"])
        faulthandler.dump_traceback_later(request["seconds"], exit=True)  # of a drawing that takes longer: the process ends
        head: dict[str, Any]
        pixels = b""
        try:
            picture = _draw(data)
            pixels = picture.tobytes()
            head = {"size": picture.size}
        except Exception as error:  # the renderer's ValueError, MemoryError, ours
            head = {"error": said(error)}
        faulthandler.cancel_dump_traceback_later()
        responses.write(json.dumps(head).encode() + b"\n" + pixels)
        responses.flush()


def _draw(data: bytes) -> Image.Image:
    import resvg_py

    drawn = bytes(resvg_py.svg_to_bytes(svg_string=clean_svg(data), width=SIDE, height=SIDE))
    return to_rgb(Image.open(io.BytesIO(drawn), formats=["PNG"]))


# -- the process that wants pictures -----------------------------------------------------------------------------


class _Worker:
    """One process that renders one drawing at a time."""

    def __init__(self) -> None:
        if importlib.util.find_spec("resvg_py") is None:
            raise PictureError("reading SVG needs resvg-py: pip install 'genius-search[svg]'")
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

    def draw(self, data: bytes, seconds: float) -> Image.Image:
        """The picture.

        Raises:
            GeniusError: Says why there is none. A process that ended over it is not `alive` any more.
        """
        requests = self.process.stdin
        responses = self.process.stdout
        assert requests is not None and responses is not None
        started = time.monotonic()
        try:
            requests.write(json.dumps({"bytes": len(data), "seconds": seconds}).encode() + b"\n" + data)
            requests.flush()
            head = json.loads(responses.readline())
            if "error" in head:
                raise GeniusError(head["error"])
            width, height = head["size"]
            return Image.frombytes("RGB", (width, height), responses.read(3 * width * height))
        except GeniusError:
            raise
        except (OSError, ValueError):  # the process is gone: half a line, or half a picture
            status = self.close()
        if time.monotonic() - started >= seconds:
            raise GeniusError(f"it took longer than {seconds:g} s to draw")
        raise GeniusError(f"the process that drew it crashed (status {status})")

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


def _render(data: bytes, seconds: float) -> Image.Image:
    places = _workers
    worker = places.get()
    try:
        if worker is None or not worker.alive():
            worker = _Worker()
        return worker.draw(data, seconds)
    finally:
        places.put(worker)


def _close_workers() -> None:
    for worker in _workers.queue:
        if worker is not None:
            worker.close()


def _forget_workers() -> None:
    """A forked child must not share its parent's processes: it starts its own."""
    global _workers
    _workers = _places()


atexit.register(_close_workers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


def draw_svg(path: Path, seconds: float = SECONDS) -> Image.Image:
    """Render an SVG file as an RGB picture on white.

    Args:
        path: The file.
        seconds: Time after which the drawing is given up.

    Raises:
        PictureError: If the file is missing, too large, not a valid drawing, or takes too long.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise PictureError(f"{path} is larger than {MAX_BYTES:,} bytes: too large for a drawing")
        return _render(data, seconds)
    except PictureError:
        raise
    except FileNotFoundError:
        raise PictureError(f"no such image: {path}") from None
    except (OSError, GeniusError) as error:
        raise PictureError(f"cannot read {path} as an image: {error}") from None


if __name__ == "__main__":
    main()
