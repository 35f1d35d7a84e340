"""What every command shares: one-line errors with status 2, JSON for machines, for people progress (a bar with the time left on a
terminal, a line now and then elsewhere) and pictures, and addresses in an object store (`s3://...`) in place of paths.

Pictures are shown by terminals that can: kitty's and iTerm's protocols, and sixel. Others get words.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import typer
from PIL import Image
from rich.console import Console

from genius.errors import GeniusError
from genius.files import url_of

P = ParamSpec("P")
R = TypeVar("R")

console = Console(stderr=True)
"""Progress and notes go to stderr: stdout is for results."""

EVERY = 10.0  # seconds between lines where there is no terminal


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Turn a `GeniusError` (or a broken pipe, or Ctrl-C) into one line and an exit status."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except GeniusError as error:
            print(f"genius: {' '.join(str(error).split())}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print("genius: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except (PermissionError, OSError) as error:
            print(f"genius: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
            raise typer.Exit(2) from None

    return wrapped


def add_group(app: typer.Typer, name: str, about: str, *own: Callable[..., Any], **named: Callable[..., Any]) -> None:
    """`genius NAME COMMAND`: commands that belong together, by the names of their functions or by names given."""
    group = typer.Typer(no_args_is_help=True, help=about)
    group.callback()(lambda: None)  # a group of one stays a group
    for command_name, function in ({f.__name__: f for f in own} | named).items():
        group.command(command_name)(function)
    app.add_typer(group, name=name, help=about)


def note(text: str) -> None:
    """One line for people."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def emit(value: Any) -> None:
    """One JSON object on stdout."""
    from genius.types import is_unicode

    text = json.dumps(value, ensure_ascii=False, default=str)
    plain = is_unicode(text)  # names of files need not be
    print(text if plain else json.dumps(value, default=str), flush=True)


def tell(body: Any, line: str, as_json: bool) -> None:
    """A result: as JSON for machines, as one line for people."""
    if as_json:
        emit(body)
    else:
        print(line)


def setting(entry: str) -> tuple[str, Any]:
    """`--set name=value`: the value as TOML reads it, or a bare word."""
    import tomllib  # its patterns are compiled when it is loaded: no command waits for them that has no settings

    name, equals, value = entry.partition("=")
    if not equals or not name.strip():
        raise GeniusError(f"--set wants name=value, got {entry!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()  # a bare word is a string


@contextmanager
def kept_if_interrupted() -> Iterator[None]:
    """Tell people who stop a run that it can go on."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("what is done is kept: run it again to go on", highlight=False)
        raise


@contextmanager
def phases() -> Iterator[Callable[[str, int, int], None]]:
    """Inside, tell(phase, items done since, items in all or 0)."""
    if console.is_terminal:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(20),
            TextColumn("{task.completed:,} items"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            tasks = {}

            def move(phase: str, count: int, total: int) -> None:
                if phase not in tasks:
                    tasks[phase] = progress.add_task(phase, total=total or None)
                progress.update(tasks[phase], advance=count, total=total or None)

            yield move
        return
    done: dict[str, int] = {}
    started: dict[str, float] = {}
    last = time.monotonic()

    def line(phase: str, count: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        begun = started.setdefault(phase, now)
        done[phase] = done.get(phase, 0) + count
        if now - last < EVERY:
            return
        last = now
        speed = done[phase] / max(now - begun, 1e-9)
        left = f", about {(total - done[phase]) / speed:,.0f} s left" if total > done[phase] and now > begun else ""
        console.print(f"{phase}: {done[phase]:,}{f' of {total:,}' if total else ''} items{left}", highlight=False)

    yield line


def here(path: Path, follow: bool = False) -> Path:
    """The folder of an index: of one in an object store, a local copy that is brought up to date (and kept so)."""
    address = url_of(path)
    if address is None:
        return path
    from genius.scale import objects

    folder = objects.local_copy(address)
    if follow:
        objects.follow(address)
    return folder


def sources_here(paths: list[Path], output: Path) -> list[Path]:
    """Sources as files: those in an object store are copied beside the index."""
    if url_of(output) is not None:
        raise GeniusError(f"an index is written on a disk: index into a folder, then genius publish FOLDER {url_of(output)}")
    found = []
    for path in paths:
        address = url_of(path)
        if address is None:
            found.append(path)
            continue
        from genius.scale.objects import fetch_sources

        folder = output.with_name(f"{output.name}.sources")
        note(f"copying {address} to {folder}")
        found.append(fetch_sources(address, folder))
    return found


PIECE = 4096  # bytes that kitty takes at a time
COLOURS = 256  # that a sixel picture may have
PATIENCE = 0.3  # seconds that a terminal has to say what it can
ASKED, SIXEL = b"\x1b[c", re.compile(rb"\x1b\[\?(?:\d+;)*4(?:;\d+)*c")  # "what are you?", and an answer with the feature 4


def protocol(environ: Mapping[str, str] = os.environ, terminal: bool | None = None) -> str | None:
    """What the terminal on stdout speaks: kitty, iterm, sixel, or None."""
    if not (sys.stdout.isatty() if terminal is None else terminal):
        return None
    if environ.get("KITTY_WINDOW_ID") or "kitty" in environ.get("TERM", "") or environ.get("TERM_PROGRAM") == "ghostty":
        return "kitty"
    if environ.get("TERM_PROGRAM") in ("iTerm.app", "WezTerm"):
        return "iterm"
    return "sixel" if _terminal_says_sixel() else None


def _terminal_says_sixel() -> bool:
    """Ask the terminal of this process itself: no variable says it."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return says_sixel(terminal)
    finally:
        os.close(terminal)


def says_sixel(terminal: int) -> bool:
    """Whether the terminal behind this file shows sixel pictures. One that does not answer does not."""
    try:
        import termios
        import tty

        before = termios.tcgetattr(terminal)
        tty.setcbreak(terminal)
    except (ImportError, OSError, termios.error):
        return False
    answer, until = b"", time.monotonic() + PATIENCE
    try:
        os.write(terminal, ASKED)
        while not answer.endswith(b"c") and select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]:
            answer += os.read(terminal, 64)
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
    return SIXEL.search(answer) is not None


def inline(picture: Image.Image, how: str, height: int = 96) -> str:
    """The characters that show a picture, at most so many pixels high."""
    small = picture.convert("RGB")
    small.thumbnail((4 * height, height))
    if how == "sixel":
        return sixel(small)
    buffer = io.BytesIO()
    small.save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    if how == "iterm":
        return f"\x1b]1337;File=inline=1;preserveAspectRatio=1:{data}\x07"
    pieces = [data[i : i + PIECE] for i in range(0, len(data), PIECE)]
    out = []
    for number, piece in enumerate(pieces):
        more = int(number + 1 < len(pieces))
        head = f"a=T,f=100,m={more}" if number == 0 else f"m={more}"
        out.append(f"\x1b_G{head};{piece}\x1b\\")
    return "".join(out)


def sixel(picture: Image.Image) -> str:
    """A picture in bands of six rows: for every colour of a band, which of the six pixels of each column have it."""
    few = picture.quantize(COLOURS)
    pixels = np.asarray(few)
    palette = np.asarray(few.getpalette() or [], np.int64).reshape(-1, 3)[: int(pixels.max()) + 1]
    parts = [f"#{i};2;{';'.join(str(round(value / 2.55)) for value in rgb)}" for i, rgb in enumerate(palette.tolist())]
    for top in range(0, pixels.shape[0], 6):
        band = pixels[top : top + 6]
        weights = (1 << np.arange(len(band)))[:, None]
        rows = [f"#{colour}{_runs(((band == colour) * weights).sum(0))}" for colour in np.unique(band).tolist()]
        parts.append("$".join(rows) + "-")  # $: back to the start of the band; -: the next one
    return f'\x1bPq"1;1;{pixels.shape[1]};{pixels.shape[0]}{"".join(parts)}\x1b\\'


def _runs(columns: np.ndarray) -> str:
    """Columns of six pixels as characters; one that comes again and again as its number."""
    starts = np.flatnonzero(np.diff(columns, prepend=-1))
    lengths = np.diff(np.append(starts, len(columns)))
    pieces = ((chr(63 + int(columns[start])), int(length)) for start, length in zip(starts, lengths, strict=True))
    return "".join(character * length if length < 4 else f"!{length}{character}" for character, length in pieces)
