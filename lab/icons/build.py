"""`build_icons`: from package names to a finished benchmark folder. Interrupt it and call it again: it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from lab.icons.concepts import drop_copies, select
from lab.icons.gather import gather
from lab.icons.model import Material, Progress
from lab.icons.render import render_all, restore
from lab.icons.tasks import make_bench
from lab.icons.world import build_world
from lab.icons.write import write_bench


def _silent(stage: str, done: int, total: int) -> None:
    return None


def build_icons(
    out: Path,
    *,
    sources: Path,
    size: int = 96,
    limit: int | None = None,
    workers: int = 2,
    progress: Progress = _silent,
    material: Material | None = None,
) -> dict[str, Any]:
    """Builds the icon benchmark below `out` in M-BEIR layout and returns its statistics.

    `sources` keeps the fetched packages; `limit` draws only the first icons, to try things out; `material` replaces the
    packages altogether.
    """
    if not 16 <= size <= 1024:
        raise GeniusError(f"the picture size must be between 16 and 1024 pixels, not {size}")
    if out.exists() and not out.is_dir():
        raise GeniusError(f"{out} is a file: give a folder to write the benchmark into")
    if material is None:
        material = gather(sources, progress)
    icons = select(material, limit)
    if not icons:
        raise GeniusError("the sources hold no usable icon")
    renders = render_all(icons, out, size, progress, workers)
    kept, copies = drop_copies(icons, renders)
    paths = {i.path for i in kept}
    for dropped, _ in copies:
        if dropped.path not in paths:
            (out / dropped.path).unlink(missing_ok=True)
    restore(sorted(paths), {i.path: i.svg for i in kept}, out, size)
    progress("tasks", 0, 2)
    world = build_world(material, kept, copies, renders)
    bench = make_bench(world, material.lexicon)
    progress("tasks", 1, 2)
    stats = write_bench(out, bench, world, material, kept, size)
    progress("tasks", 2, 2)
    return stats
