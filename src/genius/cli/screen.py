"""Pictures in terminals that can show them: kitty's and iTerm's protocols. Others get words."""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Mapping

from PIL import Image

PIECE = 4096  # bytes that kitty takes at a time


def protocol(environ: Mapping[str, str] = os.environ, terminal: bool | None = None) -> str | None:
    """What the terminal on stdout speaks: kitty, iterm, or None."""
    if not (sys.stdout.isatty() if terminal is None else terminal):
        return None
    if environ.get("KITTY_WINDOW_ID") or "kitty" in environ.get("TERM", "") or environ.get("TERM_PROGRAM") == "ghostty":
        return "kitty"
    return "iterm" if environ.get("TERM_PROGRAM") in ("iTerm.app", "WezTerm") else None


def inline(picture: Image.Image, how: str, height: int = 96) -> str:
    """The characters that show a picture, at most so many pixels high."""
    small = picture.convert("RGB")
    small.thumbnail((4 * height, height))
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
