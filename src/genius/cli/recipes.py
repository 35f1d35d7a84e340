"""`genius recipes`: the built-in training recipes side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command


def register(app: typer.Typer) -> None:
    @app.command("recipes")
    @command
    def recipes(
        out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the page here instead of printing it.")] = None,
    ) -> None:
        """Show the paper's recipe, its public code's and ours, field by field, and why they differ."""
        from genius.train.recipes import recipes_page

        if out is None:
            print(recipes_page(), end="")
        else:
            out.write_text(recipes_page(), encoding="utf-8")
            print(f"wrote {out}")
