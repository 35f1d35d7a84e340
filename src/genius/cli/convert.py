"""`genius convert official`: the published checkpoints as a GENIUS model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command, console, emit


def register(app: typer.Typer) -> None:
    @app.callback()
    def group() -> None:
        """Turn published checkpoints into GENIUS models."""

    @app.command()
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
            from genius.train.attach import attach_encoder

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
