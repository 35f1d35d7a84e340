"""`genius attach`: give a model that was trained on features, or converted, the encoder that its features came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command, emit


def register(app: typer.Typer) -> None:
    @app.command("attach")
    @command
    def attach(
        model: Annotated[Path, typer.Argument(help="Model folder without an encoder; it gets one.")],
        encoder: Annotated[str, typer.Argument(help="The encoder: a folder, hf-hub:…, uniir:FILE, bundled:NAME.")],
        features: Annotated[Path | None, typer.Option(help="Features that the model was trained on or works with.")] = None,
        data: Annotated[str, typer.Option(help="The dataset of these features: a few rows are encoded again and compared.")] = "",
        split: Annotated[str, typer.Option(help="Split of that dataset.")] = "test",
        json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    ) -> None:
        """Store an encoder with a model, so that `index`, `search`, `eval` and `reproduce` work on pictures and texts.

        The widths must fit. With --features the encoder that made them must be this one, and with --data too a few rows
        encoded again must agree.

        Example: genius attach model uniir:clip_sf_large.pth --features features/test --data mbeir:M-BEIR
        """
        from genius.train.attach import attach_encoder

        checked = attach_encoder(model, encoder, features=features, data=data, split=split)
        if json:
            emit({"model": str(model), "encoder": encoder, "checked": checked})
        else:
            print(f"{model} has the encoder {encoder} now; checked: {', '.join(checked)}")
