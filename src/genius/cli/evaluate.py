"""`genius eval`: measure a model on a dataset."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from genius.cli.common import command, console, emit
from genius.cli.index import DeviceOption
from genius.errors import GeniusError

SAID_EVERY = 10.0  # seconds between lines of progress that do not go to a terminal


def register(app: typer.Typer) -> None:
    app.command("eval")(evaluate_command)


def names(text: str) -> tuple[str, ...]:
    """`a,b c` -> ("a", "b", "c")."""
    return tuple(part for part in text.replace(",", " ").split() if part)


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in names(text))
    except ValueError:
        raise GeniusError(f"expected whole numbers, got {text!r}") from None


def progress_line() -> Any:
    """A callback for feature extraction: rows, rate, time left; redrawn on a terminal, a line now and then elsewhere."""
    import time

    began: dict[str, tuple[float, int]] = {}  # part -> when it was first heard of, and how much was there already
    said = 0.0

    def show(part: str, done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        start, there = began.setdefault(part, (now, done))
        passed = now - start
        if not console.is_terminal and done < total and now - said < SAID_EVERY:
            return
        said = now
        line = f"features of {part}: {done:,} of {total:,}"
        if passed > 1 and done > there:
            rate = (done - there) / passed
            hours, rest = divmod(int((total - done) / rate), 3600)
            line += f", {rate:,.0f} a second" + (f", {hours}:{rest // 60:02}:{rest % 60:02} left" if done < total else "")
        redrawn = console.is_terminal and done < total
        console.print(line.ljust(80) if redrawn else line, end="\r" if redrawn else "\n", highlight=False)

    return show


@command
def evaluate_command(
    model: Annotated[str, typer.Argument(help="Model folder or URI.")],
    dataset: Annotated[
        str,
        typer.Argument(
            help="A folder of features, or a dataset: mbeir:DIR, coco:DIR, flickr30k:DIR, pairs:FILE, images:DIR, or a path."
        ),
    ],
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas; --list names them.")
    ] = "dense,genius,genius-r,default,no-decoder-r,codes",
    beams: Annotated[str, typer.Option(help="Numbers of beams; beam methods run once for each.")] = "50",
    pools: Annotated[str, typer.Option(help="local (task-specific), universal, or both.")] = "local,universal",
    tasks: Annotated[str, typer.Option(help="Only these tasks, e.g. mscoco_task0,cirr_task7.")] = "",
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for results.md, results.json, TREC runs and plots.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the dataset.")] = "test",
    rerank: Annotated[int, typer.Option(help="Budget of the default search; -1: the model's own.")] = -1,
    target: Annotated[
        str, typer.Option(help="given: tell the search which modality is wanted. The paper leaves it to the instruction.")
    ] = "unknown",
    queries: Annotated[int, typer.Option(help="Only so many queries of each task, evenly spread; 0: all.")] = 0,
    candidates: Annotated[
        int, typer.Option(help="Encode only a sample of the dataset: so many candidates, all positives among them; 0: all.")
    ] = 0,
    fused: Annotated[
        str, typer.Option(help="For feature-fusion: an encoder that fuses (uniir:blip_ff_large.pth), or features of one.")
    ] = "",
    dense: Annotated[
        list[str] | None,
        typer.Option(help="Also search by another encoder's vectors: --dense BLIP-FF=uniir:blip_ff_large.pth (or its features)."),
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Resamples for confidence intervals; 0: none.")] = 1000,
    survival: Annotated[int, typer.Option(help="Queries on which gold prefixes are followed level by level; 0: none.")] = 32,
    cache: Annotated[Path | None, typer.Option(help="Where extracted features are kept.")] = None,
    device: DeviceOption = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Queries decoded at once.")] = 128,
    seed: Annotated[int, typer.Option(help="Of prompts, bootstrap and tests.")] = 0,
    title: Annotated[str, typer.Option(help="Title of the report.")] = "",
    listing: Annotated[bool, typer.Option("--list", help="Name the methods and stop.", is_eager=True, callback=_list)] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
) -> None:
    """Measure a model: hit@k, recall, nDCG, speed, bytes, and where the beams lose the answer.

    Every method searches the same pools with the same queries. `local` searches each task's own candidates,
    `universal` all of them at once.

    Example: genius eval bundled:mini mbeir:M-BEIR --methods dense,genius,genius-r --beams 30,50 -o results
    """
    from genius.encoders.base import find_device
    from genius.evaluate.harness import EvalConfig, evaluate
    from genius.evaluate.report import markdown, write_report
    from genius.evaluate.sources import Source, load_features, load_other, other_encoders
    from genius.model.genius import Genius

    if target not in ("unknown", "given") or not set(names(pools)) <= {"local", "universal"} or not names(pools):
        raise GeniusError("--target is unknown or given; --pools is local, universal or both")
    device = str(find_device(device))
    loaded = Genius.from_pretrained(model, device=device)
    source = Source(
        dataset, split, seed=seed, queries=queries, candidates=candidates, cache=cache, device=device, progress=progress_line()
    )
    data = load_features(source, loaded, model)
    config = EvalConfig(
        methods=tuple(dict.fromkeys([*names(methods), *(["feature-fusion"] if fused else [])])),
        beams=numbers(beams),
        pools=names(pools),  # type: ignore[arg-type]
        tasks=names(tasks),
        rerank=None if rerank < 0 else rerank,
        target=target,  # type: ignore[arg-type]
        queries=queries,
        bootstrap=bootstrap,
        survival=survival,
        seed=seed,
        batch=batch,
    )
    extra: list[Any] = [*other_encoders(named(dense), source, data)]
    other = load_other(fused, source, data, fusing=True) if fused else None
    evaluation = evaluate(loaded, data, config, extra=extra, fused=other, progress=say)
    name = title or f"{Path(model).name or model} on {Path(dataset.partition(':')[2] or dataset).name}"
    call = "genius " + shlex.join(sys.argv[1:])
    written: dict[str, str] = {}
    if out is not None:
        written = write_report(evaluation, out, data, title=name, command=call)
    if json:
        emit({**evaluation.to_json(), "written": written})
        return
    print(markdown(evaluation, title=name, command=call))
    for kind, path in written.items():
        console.print(f"{kind}: {path}", highlight=False)


def named(entries: list[str] | None) -> dict[str, str]:
    """`NAME=ENCODER` options -> a mapping. A name may not be that of a method."""
    from genius.evaluate.harness import METHODS

    out: dict[str, str] = {}
    for entry in entries or []:
        name, _, what = entry.partition("=")
        if not name.strip() or not what or name in METHODS or name in out:
            raise GeniusError(f"--dense wants NAME=ENCODER, with a name of its own, got {entry!r}")
        out[name.strip()] = what
    return out


def say(line: str) -> None:
    console.print(line, highlight=False)


def _list(value: bool) -> None:
    if not value:
        return
    from genius.evaluate.harness import METHODS

    for name, meaning in METHODS.items():
        print(f"{name:18} {meaning}")
    raise typer.Exit
