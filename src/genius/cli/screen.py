"""Pictures in terminals that can show them: kitty's and iTerm's protocols, and sixel. Others get words."""

from __future__ import annotations

import base64
import io
import os
import re
import select
import sys
import time
from collections.abc import Mapping

import numpy as np
from PIL import Image

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
