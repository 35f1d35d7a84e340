"""`python -m lab icons OUT`: from package names to a finished benchmark folder in M-BEIR layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from genius.cli.common import command
from genius.errors import GeniusError
from lab.icons.concepts import drop_copies, select
from lab.icons.gather import gather
from lab.icons.model import Material
from lab.icons.render import render_all
from lab.icons.tasks import make_bench
from lab.icons.world import build_world
from lab.icons.write import write_bench


@command
def icons(
    out: Annotated[Path, typer.Argument(help="Folder to write the benchmark into (M-BEIR layout).")],
    sources: Annotated[Path | None, typer.Option(help="Folder of fetched packages; OUT/sources by default.")] = None,
) -> None:
    """Build the icon benchmark: eight retrieval tasks from icon sets and dictionaries, fetched by name."""
    stats = build_icons(out, gather(sources or out / "sources"))
    pool = sum(stats["candidates"].values())
    typer.echo(
        f"{stats['images']} drawings of {stats['concepts']} concepts by {stats['families']} hands; {pool} candidates in {out}"
    )
    for name, count in stats["queries"].items():
        typer.echo(f"  {name}: {count} queries")


def build_icons(out: Path, material: Material, size: int = 96, workers: int = 2) -> dict[str, Any]:
    """Write the benchmark and return its statistics.

    Args:
        out: The folder.
        material: What it is made of.
        size: Of the pictures in pixels.
        workers: Processes that draw.

    Raises:
        GeniusError: If the folder is a file, or the material holds no usable icon.
    """
    if out.exists() and not out.is_dir():
        raise GeniusError(f"{out} is a file: give a folder to write the benchmark into")
    chosen = select(material)
    if not chosen:
        raise GeniusError("the sources hold no usable icon")
    renders = render_all(chosen, out, size, workers)
    kept, copies = drop_copies(chosen, renders)
    paths = {icon.path for icon in kept}
    for dropped, _ in copies:
        if dropped.path not in paths:
            (out / dropped.path).unlink(missing_ok=True)
    world = build_world(material, kept, copies, renders)
    return write_bench(out, make_bench(world, material.lexicon), world, material, kept, size)
