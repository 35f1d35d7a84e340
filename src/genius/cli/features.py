"""`genius features encode` and `genius features search`: the model on pre-extracted features, no encoder needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command, console, emit
from genius.cli.index import DeviceOption


def register(app: typer.Typer) -> None:
    @app.command()
    @command
    def encode(
        model: Annotated[str, typer.Argument(help="Model folder or URI.")],
        features: Annotated[Path, typer.Argument(help="Features in the published format (*_IT_dict.pt).")],
        output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the codes: (N, M) int64, .npy.")],
        device: DeviceOption = "auto",
        json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    ) -> None:
        """Write the ID (codes) of every row of a feature file."""
        from genius.encoders.devices import find_device
        from genius.evaluate.sources import encode_file
        from genius.model.genius import Genius

        codes = encode_file(Genius.from_pretrained(model, device=find_device(device)), features, output)
        if json:
            emit({"output": str(output), "items": codes.shape[0], "levels": codes.shape[1]})
        else:
            console.print(f"wrote {output}: {codes.shape[0]:,} IDs of {codes.shape[1]} codes")

    @app.command()
    @command
    def search(
        model: Annotated[str, typer.Argument(help="Model folder or URI.")],
        queries: Annotated[Path, typer.Argument(help="Query features in the published format (*_IT_dict.pt).")],
        codes: Annotated[Path, typer.Option(help="Codes of the candidates, from `genius features encode`.")],
        output: Annotated[
            Path, typer.Option("--output", "-o", help="Where to write `codes` (Q, beams, M) and `scores` (Q, beams), .npz.")
        ],
        beams: Annotated[int, typer.Option(min=1, help="How many IDs to write per query.")] = 50,
        batch: Annotated[int, typer.Option(min=1, help="Queries per step.")] = 64,
        device: DeviceOption = "auto",
        json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    ) -> None:
        """Write the best IDs for every query, best first; score = mean log p over levels, as published.

        Where fewer IDs exist than beams, the rest is codes -1 and score -inf.
        """
        from rich.progress import track

        from genius.encoders.devices import find_device
        from genius.evaluate.sources import search_file
        from genius.model.genius import Genius

        done = search_file(
            Genius.from_pretrained(model, device=find_device(device)),
            queries,
            codes,
            output,
            beams=beams,
            batch=batch,
            progress=lambda steps: track(steps, description="searching", console=console, transient=True),
        )
        if json:
            emit({"output": str(output), "queries": done, "beams": beams})
        else:
            console.print(f"wrote {output}: {beams} IDs for each of {done:,} queries")
