"""`genius data check` and `genius data synthetic`: is a download whole, and a small one of the same layout to try commands on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command, console, emit
from genius.cli.index import JsonOption
from genius.errors import GeniusError

SHOWN = 40  # complaints of each kind on the screen; --json has all


def register(app: typer.Typer) -> None:
    @app.command("check")
    @command
    def check(
        dataset: Annotated[str, typer.Argument(help="mbeir:DIR, coco:DIR, flickr30k:DIR, pairs:FILE, images:DIR, or a path.")],
        pictures: Annotated[
            str, typer.Option(help="none: not looked at. there: every file must exist. read: every file is decoded (hours).")
        ] = "there",
        split: Annotated[str, typer.Option(help="Of other datasets than M-BEIR, which is read as a whole.")] = "test",
        table: Annotated[Path | None, typer.Option(help="Also write the counts: supplement Table 1 as Markdown.")] = None,
        json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    ) -> None:
        """Say what of a dataset is there, missing and broken, and how large it is. Exit status 2 where something is.

        Example: genius data check mbeir:M-BEIR --table supplement-1.md
        """
        from genius.data.collection import check_collection
        from genius.data.mbeir_check import can_be_read, is_there, statistics, walk
        from genius.data.opening import open_collection, scheme_of

        looks = {"none": None, "there": is_there, "read": can_be_read}
        if pictures not in looks:
            raise GeniusError("--pictures is none, there or read")
        scheme, path = scheme_of(dataset)
        if scheme != "mbeir":
            found = check_collection(open_collection(dataset, split=split), images=pictures != "none")
            summary = {"queries": found.queries, "items": found.items, "pairs": found.pairs, "tasks": found.per_task}
            if json:
                emit(summary)
            else:
                print(f"{dataset}: {found.queries:,} questions, {found.items:,} items, {found.pairs:,} judgements; sound")
            return

        def say(name: str) -> None:
            console.print(f"reading {name}", end="\n", highlight=False)

        report = walk(path, pictures=looks[pictures], say=say if console.is_terminal else lambda _: None)
        if table is not None:
            table.write_text(statistics(report), encoding="utf-8")
        if json:
            emit(report.as_dict())
        else:
            print(statistics(report))
            repeated = sum(c.occurrences - c.queries for c in report.queries.get("union_train", {}).values())
            size = sum(report.sizes.values()) / 1e9
            print(f"{len(report.sizes)} files, {size:.3f} GB of text; {report.pictures:,} pictures named")
            print(f"up-sampled training file: {repeated:,} of its lines are repeats")
            for title, lines in (("missing", report.missing), ("broken", report.broken), ("note", report.notes)):
                for line in lines[:SHOWN]:
                    print(f"{title}: {line}")
                if len(lines) > SHOWN:
                    print(f"{title}: and {len(lines) - SHOWN} more")
        if not report.sound:
            raise GeniusError(f"{path}: {len(report.missing)} things are missing, {len(report.broken)} are broken")
        if not json:
            print(f"{path} is whole")

    @app.command("synthetic")
    @command
    def synthetic(
        output: Annotated[Path, typer.Argument(help="Folder to make.")],
        candidates: Annotated[int, typer.Option(min=4, help="Of each task's pool.")] = 24,
        queries: Annotated[int, typer.Option(min=1, help="Of each task and split.")] = 12,
        seed: Annotated[int, typer.Option(help="The same seed gives the same files.")] = 0,
        as_json: JsonOption = False,
    ) -> None:
        """Make a small set of coloured shapes with M-BEIR's files, names and gaps, to try the commands on.

        Example: genius data synthetic M-BEIR
        """
        from genius.data.synthetic import write_synthetic_mbeir

        if output.exists() and any(output.iterdir()):
            raise GeniusError(f"{output} is not empty: choose another folder")
        write_synthetic_mbeir(output, candidates=candidates, queries=queries, seed=seed)
        if as_json:
            emit({"output": str(output), "tasks": 16})
        else:
            print(f"{output}: 16 tasks in M-BEIR's layout")
