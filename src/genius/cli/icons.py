"""`genius data icons OUT`: build the icon benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command `icons` to a typer app (`genius data`)."""

    @app.command("icons")
    def icons(
        out: Annotated[Path, typer.Argument(help="Folder to write the benchmark into (M-BEIR layout).")],
        sources: Annotated[
            Path | None, typer.Option(help="Folder of fetched packages; OUT/sources by default.")
        ] = None,
        size: Annotated[int, typer.Option(help="Width and height of the pictures in pixels.")] = 96,
        limit: Annotated[int | None, typer.Option(help="Draw only the first icons, to try it out.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the statistics as JSON and nothing else.")] = False,
    ) -> None:
        """Build the icon benchmark: eight retrieval tasks from icon sets and dictionaries, fetched by name."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from genius.data.icons.build import build_icons

        columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, disable=as_json) as bars:
            rows = {}

            def progress(stage: str, done: int, total: int) -> None:
                if stage not in rows:
                    rows[stage] = bars.add_task(stage, total=total)
                bars.update(rows[stage], completed=done, total=total)

            stats = build_icons(out, sources=sources or out / "sources", size=size, limit=limit, progress=progress)
        if as_json:
            typer.echo(json.dumps(stats))
            return
        pool = sum(stats["candidates"].values())
        typer.echo(
            f"{stats['images']} drawings of {stats['concepts']} concepts by {stats['families']} hands; "
            f"{pool} candidates in {out}"
        )
        for name, counts in stats["queries"].items():
            typer.echo(f"  {name}: {counts['total']} questions")
