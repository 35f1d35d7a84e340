"""SVG files are drawn by processes of their own: one that crashes, hangs or eats memory costs one picture.

Knows how to start, ask and replace such processes; what they do is in `draw`. They are plain children that run
`python -m genius.pictures.draw`, not forks: that works from any thread, on every system, and without importing the
caller's program a second time.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from pathlib import Path

from PIL import Image

from genius.errors import PictureError
from genius.pictures.draw import ASKED, DRAWN, MAX_BYTES

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
            [sys.executable, "-P", "-m", "genius.pictures.draw"],
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
