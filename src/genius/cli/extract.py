"""`genius features extract`: a dataset through an encoder, once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command, console, emit
from genius.errors import GeniusError


def register(app: typer.Typer) -> None:
    @app.command("extract")
    @command
    def extract(
        encoder: Annotated[str, typer.Argument(help="Encoder or model: a folder, hf-hub:…, uniir:FILE, bundled:NAME.")],
        dataset: Annotated[str, typer.Argument(help="mbeir:DIR, coco:DIR, flickr30k:DIR, pairs:FILE, images:DIR, or a path.")],
        output: Annotated[Path, typer.Argument(help="Folder for the features.")],
        split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
        fusion: Annotated[
            str, typer.Option(help="towers: image and text vectors. feature: one vector an item, if the encoder fuses itself.")
        ] = "towers",
        published: Annotated[bool, typer.Option(help="Also write query_IT_dict.pt and cand_pool_IT_dict.pt.")] = False,
        batch: Annotated[int, typer.Option(min=1, help="Pictures or texts encoded at once.")] = 64,
        shard: Annotated[int, typer.Option(min=1, help="Rows between two marks of progress.")] = 4096,
        rank: Annotated[int, typer.Option(min=0, help="This process, of --world many that share the work.")] = 0,
        world: Annotated[int, typer.Option(min=1, help="How many processes share the work.")] = 1,
        full: Annotated[bool, typer.Option("--fp32", help="Store 32-bit vectors instead of 16.")] = False,
        skip_broken: Annotated[bool, typer.Option(help="Leave out items whose picture cannot be read, and list them.")] = False,
        seed: Annotated[int, typer.Option(help="Of the choice among M-BEIR's four prompts.")] = 0,
        json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    ) -> None:
        """Extract features of a dataset's queries and candidates. Stop it and call it again: it goes on.

        Checks every id and image first, and fails with counts and examples before anything is encoded.

        Example: genius features extract bundled:mini mbeir:M-BEIR features/test --split test
        """
        from genius.cli.evaluate import progress_line
        from genius.data.collection import open_collection
        from genius.data.extract import ExtractConfig, modality_counts
        from genius.data.extract import extract as run
        from genius.encoders.registry import load_encoder

        if fusion not in ("towers", "feature") or rank >= world:
            raise GeniusError("--fusion is towers or feature; --rank is below --world")
        config = ExtractConfig(
            batch_size=batch,
            shard_rows=shard,
            half=not full,
            fusion=fusion,  # type: ignore[arg-type]
            on_error="skip" if skip_broken else "raise",
            rank=rank,
            world=world,
        )
        data = run(load_encoder(encoder), open_collection(dataset, split=split, seed=seed), output, config, progress_line())
        if data is None:
            console.print(f"this process is done; others still have shards to do in {output}", highlight=False)
            emit({"output": str(output), "complete": False}) if json else None
            return
        if published:
            data.to_published(output / "query_IT_dict.pt", output / "cand_pool_IT_dict.pt")
        report = {
            "output": str(output),
            "complete": True,
            "queries": len(data.queries),
            "candidates": modality_counts(data.pool),
            "pairs": len(data.pairs),
        }
        if json:
            emit(report)
        else:
            counts = ", ".join(f"{n:,} {name}s" for name, n in modality_counts(data.pool).items() if n)
            print(f"{output}: {len(data.queries):,} queries, {counts}, {len(data.pairs):,} judgements")
