"""`genius export onnx` and `genius export web`: the parts of a model for other programs, and a collection for a browser tab."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command, console, emit
from genius.cli.index import IndexArgument, JsonOption, ModelOption


def register(app: typer.Typer) -> None:
    @app.command()
    @command
    def onnx(
        model: Annotated[str, typer.Argument(help="Model folder or URI, such as bundled:mini.")],
        output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the files to.")],
        as_json: JsonOption = False,
    ) -> None:
        """Write a model as ONNX files: text and picture tower, fusion, and the decoder's start and step.

        Example:

          genius export onnx bundled:mini -o parts/
        """
        from genius.export.parts import export_onnx
        from genius.model.genius import Genius

        sizes = export_onnx(Genius.from_pretrained(model), output)
        if as_json:
            emit({"output": str(output), "files": sizes})
            return
        for name, size in sizes.items():
            print(f"{size / 1e6:8.2f} MB  {output / name}")

    @app.command()
    @command
    def web(
        path: IndexArgument,
        output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write: any host of files serves it.")],
        vectors: Annotated[
            bool, typer.Option(help="Also the stored vectors: answers as of genius search, for about 2 bytes a number.")
        ] = False,
        title: Annotated[str, typer.Option(help="What the page is called; the index's name without.")] = "",
        model: ModelOption = None,
        as_json: JsonOption = False,
    ) -> None:
        """Write an index as a static page that searches in the browser: no server, nothing leaves the tab.

        Example:

          genius export web my.genius -o site/ && python -m http.server -d site
        """
        from genius.export.web import export_web
        from genius.index import Index

        def on_step(what: str) -> None:
            if not as_json:
                console.print(f"exporting {what}")

        with Index.open(path, model) as index:
            done = export_web(index, output, vectors=vectors, title=title, on_step=on_step)
        if as_json:
            emit(
                {"output": str(output), "items": done.items, "pictures": done.pictures, "bytes": done.bytes, "files": done.files}
            )
            return
        print(f"{done.items:,} items, {done.pictures:,} pictures, {done.bytes / 1e6:.1f} MB in {output}. Open it with:")
        print(f"  python -m http.server -d {output} 8000        # then http://localhost:8000")
