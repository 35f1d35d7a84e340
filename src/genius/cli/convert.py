"""Models and indexes that come from elsewhere or go there: `genius convert official` (the published checkpoints as a model
folder), `genius export onnx` and `genius export web` (the parts of a model for other programs, a collection for a browser tab).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import add_group, command, console, emit
from genius.cli.index import IndexArgument, JsonOption, ModelOption


def register(app: typer.Typer) -> None:
    add_group(app, "convert", "Turn published checkpoints into GENIUS models.", official)
    add_group(app, "export", "Take a model or an index elsewhere: ONNX files, a browser tab.", onnx, web)


@command
def official(
    quantizer: Annotated[Path, typer.Option(help="The published quantizer checkpoint, e.g. rq_clip_large.pth.")],
    generator: Annotated[Path, typer.Option(help="The published generator checkpoint, e.g. GENIUS_t5small.pth.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the model to.")],
    encoder: Annotated[
        str, typer.Option(help="The encoder of its features, e.g. uniir:clip_sf_large.pth: stored with the model.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
) -> None:
    """Convert the published GENIUS checkpoints. No code in the files is run; sizes are read off the tensors.

    Without --encoder the result works on pre-extracted features (`genius features encode`, `genius features search`);
    `genius attach` gives it one later, and compares it with features.
    """
    from genius.model.official import convert_official

    model = convert_official(quantizer, generator)
    model.save_pretrained(output)
    if encoder:
        from genius.train.sources import attach_encoder

        attach_encoder(output, encoder)
    config = model.config
    if json:
        emit(
            {
                "output": str(output),
                "fingerprint": model.fingerprint(),
                "width": config.width,
                "levels": list(config.quantizer.level_sizes),
            }
        )
    else:
        console.print(f"wrote {output}: width {config.width}, levels {' x '.join(map(str, config.quantizer.level_sizes))}")


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
        emit({"output": str(output), "items": done.items, "pictures": done.pictures, "bytes": done.bytes, "files": done.files})
        return
    print(f"{done.items:,} items, {done.pictures:,} pictures, {done.bytes / 1e6:.1f} MB in {output}. Open it with:")
    print(f"  python -m http.server -d {output} 8000        # then http://localhost:8000")
