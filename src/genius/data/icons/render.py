"""Drawing: SVG text -> a square picture on white -> a small PNG; in parallel, and resumable set by set.

`draw` is the one renderer: whoever re-renders the archive at another size gets the same pictures.
"""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from genius.data.icons.model import Icon, Progress

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

    data = bytes(
        resvg_py.svg_to_bytes(svg_string=svg, width=size, height=size, background="#ffffff", skip_system_fonts=True)
    )
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
    small = image.quantize(16 if grey else 64, Image.Quantize.MEDIANCUT if grey else Image.Quantize.FASTOCTREE)
    out = io.BytesIO()
    small.save(out, "PNG", optimize=True)
    return out.getvalue()


def _render_chunk(job: tuple[str, int, list[tuple[str, str]]]) -> list[tuple[str, str, str]]:
    root, size, todo = job
    done = []
    for path, svg in todo:
        try:
            image = draw(svg, size)
        except (ValueError, OSError):
            done.append((path, "", ""))
            continue
        pixels = np.asarray(image)
        if int(pixels.max()) - int(pixels.min()) < 24:  # white on white: nothing to see
            done.append((path, "", ""))
            continue
        digest = hashlib.sha1(pixels.tobytes()).hexdigest()
        thumb = np.asarray(image.convert("L").resize((_THUMB, _THUMB), Image.Resampling.BOX))
        target = Path(root) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        part.write_bytes(to_png(image))
        part.rename(target)
        done.append((path, digest, thumb.tobytes().hex()))
    return done


def render_all(icons: Iterable[Icon], out: Path, size: int, progress: Progress, workers: int = 2) -> dict[str, Render]:
    """path -> render, for every icon that draws something.

    Each finished chunk is noted in OUT/.render, so an interrupted build goes on where it was. A note says which SVG it
    was made from: a changed source or size is drawn again.
    """
    notes = out / ".render"
    notes.mkdir(parents=True, exist_ok=True)
    by_set: dict[str, list[Icon]] = defaultdict(list)
    for icon in icons:
        by_set[icon.set].append(icon)
    total = sum(map(len, by_set.values()))
    renders: dict[str, Render] = {}
    done = 0
    with multiprocessing.get_context("fork").Pool(workers, initializer=os.nice, initargs=(5,)) as pool:
        for name, members in sorted(by_set.items()):
            note = notes / f"{name}.jsonl"
            known = _read_note(note)
            marks = {i.path: _mark(i.svg, size) for i in members}
            todo = [(i.path, i.svg) for i in members if known.get(i.path, ("",))[0] != marks[i.path]]
            chunks = [(str(out), size, todo[k : k + _CHUNK]) for k in range(0, len(todo), _CHUNK)]
            with note.open("a") as file:
                for result in pool.imap(_render_chunk, chunks):
                    for path, digest, thumb in result:
                        known[path] = (marks[path], digest, thumb)
                        file.write(json.dumps([path, marks[path], digest, thumb]) + "\n")
                    file.flush()
            for icon in members:
                _, digest, thumb = known[icon.path]
                if digest:
                    grey = np.frombuffer(bytes.fromhex(thumb), np.uint8).reshape(_THUMB, _THUMB)
                    renders[icon.path] = Render(digest, grey)
            done += len(members)
            progress("render", done, total)
    return renders


def restore(paths: Iterable[str], svgs: dict[str, str], out: Path, size: int) -> None:
    """Draws again the files that a user or an earlier build removed."""
    for path in paths:
        if not (out / path).exists():
            _render_chunk((str(out), size, [(path, svgs[path])]))


def _mark(svg: str, size: int) -> str:
    return hashlib.sha1(f"{size}:{svg}".encode()).hexdigest()[:16]


def _read_note(path: Path) -> dict[str, tuple[str, str, str]]:
    known: dict[str, tuple[str, str, str]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                key, mark, digest, thumb = json.loads(line)
            except ValueError:  # cut off in the middle of a line
                continue
            known[key] = (mark, digest, thumb)
    return known
