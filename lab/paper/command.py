"""`python -m lab reproduce`: the paper's tables and figures on your data, beside the paper's numbers."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command, console, emit, setting
from genius.cli.train import named, say
from genius.errors import GeniusError


@command
def reproduce_experiment(
    experiment: Annotated[str, typer.Argument(help="table-1 .. table-5, supplement-2 .. supplement-9, figure-4; or `list`.")],
    data: Annotated[str, typer.Option(help="Test data: M-BEIR (or anything in its layout), COCO, Flickr30K, or features.")] = "",
    model: Annotated[str, typer.Option(help="The trained model (the first row of an ablation).")] = "",
    variant: Annotated[
        list[str] | None,
        typer.Option(help="A model for one row of an ablation: --variant 'w/o L_mse=models/no-mse', or =train: train it here."),
    ] = None,
    train: Annotated[str, typer.Option(help="Training data, for rows that must be trained here.")] = "",
    base: Annotated[str, typer.Option(help="Training config that ablations change one line of.")] = "builtin:paper",
    work: Annotated[Path, typer.Option(help="Where models trained here are kept; a second call finds them.")] = Path("reproduce"),
    out: Annotated[Path | None, typer.Option("--output", "--out", "-o", help="Folder for the report.")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="One field of the training config: --set generator.steps=500.")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Searches in place of the experiment's own: --methods genius,paper (all: `genius eval --list`).")
    ] = "",
    dense: Annotated[
        list[str] | None,
        typer.Option(help="A dense row by another encoder: --dense BLIP-FF=features/blip-ff (features, or an encoder)."),
    ] = None,
    items: Annotated[
        Path | None, typer.Option(help="Cards of codes on features: a JSONL of the candidates' id, image and text.")
    ] = None,
    queries: Annotated[int, typer.Option(help="Only so many queries of each task, evenly spread; 0: all.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    cache: Annotated[Path | None, typer.Option(help="Where extracted features are kept.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
) -> None:
    """Run one table or figure of the paper on your data and print it beside the paper's numbers.

    Example: python -m lab reproduce table-2 --data mbeir:M-BEIR --model models/genius -o results/table-2
    """
    from lab.paper import reproduce

    if experiment == "list":
        for name, text in reproduce.listing().items():
            print(f"{name:14} {text}")
        return
    if not data and experiment != "supplement-2":
        raise GeniusError("name the test data: --data mbeir:DIR (or coco:DIR, flickr30k:DIR, a folder of features)")
    request = reproduce.Request(
        data=data,
        model=model,
        variants=dict(_pair(entry) for entry in variant or []),
        train=train,
        base=base,
        work=work,
        overrides=dict(setting(entry) for entry in change or []),
        methods=tuple(name.strip() for name in methods.split(",") if name.strip()),
        items=items,
        dense=named(dense),
        queries=queries,
        device=device,
        cache=cache,
    )
    table = reproduce.run(experiment, request, say)
    call = "python -m lab " + shlex.join(sys.argv[1:])
    if out is not None:
        console.print(f"report: {table.write(out, call)}", highlight=False)
    emit(table.to_json()) if json else print(table.markdown(call))


def _pair(entry: str) -> tuple[str, str]:
    name, equals, value = entry.rpartition("=")
    if not equals or not name:
        raise GeniusError(f"--variant wants NAME=MODEL, got {entry!r}")
    return name, value
