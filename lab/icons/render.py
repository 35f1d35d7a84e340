"""Drawing: SVG text -> a square picture on white -> a small PNG; in parallel."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from lab.icons.model import Icon

_THUMB = 16
_CHUNK = 400


@dataclass(slots=True)
class Render:
    """What remains of a drawing besides its file: enough to see copies."""

    digest: str  # of the pixels
    thumb: np.ndarray  # (16, 16) uint8 grey


def draw(svg: str, size: int) -> Image.Image:
    """The drawing, fitted into a white square of `size` pixels. Raises ValueError for what is no drawing."""
    import resvg_py  # compiled; only builds need it

    data = bytes(resvg_py.svg_to_bytes(svg_string=svg, width=size, height=size, background="#ffffff", skip_system_fonts=True))
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if image.size == (size, size):
        return image
    image.thumbnail((size, size), Image.Resampling.LANCZOS)
    canvas = Image.new("RGB", (size, size), "white")
    canvas.paste(image, ((size - image.width) // 2, (size - image.height) // 2))
    return canvas


def to_png(image: Image.Image) -> bytes:
    """A palette is enough for a drawing: 16 greys or 64 colours."""
    pixels = np.asarray(image)
    grey = bool((pixels[..., 0] == pixels[..., 1]).all() and (pixels[..., 1] == pixels[..., 2]).all())
    if grey:
        small = image.quantize(16, Image.Quantize.MEDIANCUT)
    else:
        small = image.quantize(64, Image.Quantize.FASTOCTREE)
    out = io.BytesIO()
    small.save(out, "PNG", optimize=True)
    return out.getvalue()


def _render_chunk(job: tuple[str, int, list[tuple[str, str]]]) -> list[tuple[str, Render]]:
    root, size, chunk = job
    done = []
    for path, svg in chunk:
        try:
            image = draw(svg, size)
        except (ValueError, OSError):
            continue
        pixels = np.asarray(image)
        if int(pixels.max()) - int(pixels.min()) < 24:  # white on white: nothing to see
            continue
        target = Path(root) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(to_png(image))
        thumb = np.asarray(image.convert("L").resize((_THUMB, _THUMB), Image.Resampling.BOX))
        done.append((path, Render(hashlib.sha1(pixels.tobytes()).hexdigest(), thumb)))
    return done


def render_all(icons: Iterable[Icon], out: Path, size: int, workers: int = 2) -> dict[str, Render]:
    """path -> render, for every icon that draws something."""
    todo = [(icon.path, icon.svg) for icon in icons]
    chunks = [(str(out), size, todo[start : start + _CHUNK]) for start in range(0, len(todo), _CHUNK)]
    with multiprocessing.get_context("fork").Pool(workers, initializer=os.nice, initargs=(5,)) as pool:
        return {path: render for done in pool.imap(_render_chunk, chunks) for path, render in done}
