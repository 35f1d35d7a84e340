"""`genius train`: train a model from one config file. `genius attach`: store an encoder with a model. `genius eval`: evaluate a
model on a dataset.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from genius.cli.common import command, console, emit, feature_progress, kept_if_interrupted, setting, tell
from genius.cli.index import DeviceOption
from genius.errors import GeniusError


def register(app: typer.Typer) -> None:
    app.command("train")(train)
    app.command("attach")(attach)
    app.command("eval")(evaluate_command)


@command
def train(
    config: str = typer.Argument("", help="A TOML or JSON file, or builtin:NAME (see --list)."),
    output: str = typer.Option("", "--output", "-o", help="Model folder to write; overrides the config."),
    data: str = typer.Option("", "--data", help="Training data; overrides the config."),
    encoder: str = typer.Option(
        "", "--encoder", help="Encoder of the training data. Stored with the model (config field encoder_uri)."
    ),
    change: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="Set one config field: --set generator.steps=500. Repeatable."
    ),
    listing: bool = typer.Option(False, "--list", help="List the built-in configs and exit."),
    device: DeviceOption = "auto",
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print no progress on stderr."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
) -> None:
    """Train encoder, quantizer and generator from one config file. A run that was stopped continues.

    builtin:tiny is a first try on synthetic data. builtin:small is for a few thousand pairs on a laptop. builtin:default is
    for pre-extracted features. docs/training.md describes training data and config fields.

    Examples:
      genius train builtin:tiny -o /tmp/tiny
      genius train builtin:small --data pairs.jsonl --encoder bundled:mini -o MODEL
      genius train builtin:default --data FEATURES -o MODEL
    """
    from genius.train.config import builtin_about, read_train_config

    if listing:
        known = builtin_about()
        lines = "\n".join(f"{name:<20} {about}" for name, about in known.items())
        tell(known, lines, as_json)
        return
    if not config:
        raise GeniusError("name a config: a TOML file or builtin:NAME (genius train --list)")
    overrides = dict(setting(entry) for entry in change)
    if output:
        overrides["output"] = output
    if data:
        overrides["data"] = data
    if encoder:
        overrides["encoder_uri"] = encoder
    if device != "auto":
        overrides["device"] = device
    settings = read_train_config(config, overrides)
    from genius.train import train as run
    from genius.train.journal import hit_rate_table, next_command, verdict

    with kept_if_interrupted():
        trained = run(settings, quiet=quiet or as_json)
    values = trained.metrics["generator"]
    judged = verdict(values, "heads" if trained.heads is not None else settings.encoder.train)
    if as_json:
        fingerprint = trained.model.fingerprint()
        emit({"output": settings.output, "fingerprint": fingerprint, "metrics": trained.metrics, "verdict": judged})
        return
    for line in hit_rate_table(values):
        print(line)
    if judged is not None:
        print(judged)
    print(f"the model is in {settings.output}")
    print(f"next: {next_command(settings.output, trained.model.encoder is not None, settings.data)}")


@command
def attach(
    model: Annotated[Path, typer.Argument(help="Model folder without an encoder.")],
    encoder: Annotated[str, typer.Argument(help="Encoder: a folder, hf-hub:OWNER/NAME, uniir:FILE or bundled:NAME.")],
    features: Annotated[Path | None, typer.Option(help="Folder of features to compare with.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Store an encoder with a model, so that the model accepts images and texts.

    The widths of encoder and model must agree. With --features, it checks that the features come from this encoder.

    Example:
      genius attach MODEL uniir:clip_sf_large.pth --features features/test
    """
    from genius.train.sources import attach_encoder

    checked = attach_encoder(model, encoder, features=features)
    body = {"model": str(model), "encoder": encoder, "checked": checked}
    tell(body, f"{model} has the encoder {encoder} now; checked: {', '.join(checked)}", json)


def names(text: str) -> tuple[str, ...]:
    """Split a list at commas and spaces."""
    return tuple(part for part in text.replace(",", " ").split() if part)


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in names(text))
    except ValueError:
        raise GeniusError(f"expected whole numbers, got {text!r}") from None


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
        str, typer.Option(help="Methods, separated by commas (see --list).")
    ] = "dense,genius,genius-r,default,no-decoder-r,codes",
    beams: Annotated[str, typer.Option(help="Beam widths, separated by commas. Beam methods run once per width.")] = "50",
    pools: Annotated[str, typer.Option(help="Candidate pools: local (task-specific), universal, or both.")] = "local,universal",
    tasks: Annotated[str, typer.Option(help="Only these tasks, such as mscoco_task0,cirr_task7.")] = "",
    out: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for results.md, results.json and TREC runs.")] = None,
    split: Annotated[str, typer.Option(help="Split of the dataset.")] = "test",
    rerank: Annotated[int, typer.Option(help="Candidates that the default search re-ranks. -1: the model's setting.")] = -1,
    target: Annotated[
        str, typer.Option(help="given: search only the target modality. unknown: the instruction tells it, as in the paper.")
    ] = "unknown",
    queries: Annotated[int, typer.Option(help="Queries per task, evenly spaced. 0: all.")] = 0,
    candidates: Annotated[int, typer.Option(help="Encode a sample of this many candidates, all positives included. 0: all.")] = 0,
    dense: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=URI", help="Also evaluate another encoder, as NAME=URI or NAME=FOLDER of its features. Repeatable."
        ),
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Bootstrap resamples for confidence intervals. 0: no intervals.")] = 1000,
    cache: Annotated[Path | None, typer.Option(help="Folder that caches extracted features.")] = None,
    device: DeviceOption = "auto",
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Queries per batch.")] = 128,
    precision: Annotated[str, typer.Option(help="Precision of the encoder: fp32, bf16 or fp16.")] = "fp32",
    workers: Annotated[int, typer.Option(metavar="N", min=0, help="Processes that decode images. 0: threads.")] = 0,
    encode_batch: Annotated[int, typer.Option(metavar="N", min=1, help="Images or texts per encoder call.")] = 64,
    seed: Annotated[int, typer.Option(help="Random seed of prompts, bootstrap and significance tests.")] = 0,
    title: Annotated[str, typer.Option(help="Title of the report.")] = "",
    listing: Annotated[bool, typer.Option("--list", help="List the methods and exit.", is_eager=True, callback=_list)] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Evaluate a model: hit@k, recall, nDCG, throughput, bytes per item, and candidate recall.

    Every method searches the same pools with the same queries. The pool `local` holds the candidates of one task, `universal`
    the candidates of all tasks.

    Example:
      genius eval bundled:mini mbeir:M-BEIR --beams 30,50 -o results
    """
    from genius.data.extract import ExtractConfig
    from genius.encoders.base import find_device
    from genius.evaluate import EvalConfig, evaluate
    from genius.evaluate.report import markdown, write_report
    from genius.evaluate.sources import Source, load_features, other_encoders
    from genius.model.genius import Genius

    if target not in ("unknown", "given") or not set(names(pools)) <= {"local", "universal"} or not names(pools):
        raise GeniusError("--target must be unknown or given; --pools must be local, universal or both")
    if precision not in ("fp32", "bf16", "fp16"):
        raise GeniusError("--precision must be fp32, bf16 or fp16")
    encoding = ExtractConfig(batch_size=encode_batch, precision=precision, workers=workers)  # type: ignore[arg-type]
    device = str(find_device(device))
    loaded = Genius.from_pretrained(model, device=device)
    with feature_progress() as progress:
        source = Source(
            dataset,
            split,
            seed=seed,
            queries=queries,
            candidates=candidates,
            cache=cache,
            device=device,
            progress=progress,
            encoding=encoding,
            note=say,
        )
        data = load_features(source, loaded, model)
        extra: list[Any] = [*other_encoders(named(dense), source, data)]
    config = EvalConfig(
        methods=tuple(dict.fromkeys(names(methods))),
        beams=numbers(beams),
        pools=names(pools),  # type: ignore[arg-type]
        tasks=names(tasks),
        rerank=None if rerank < 0 else rerank,
        target=target,  # type: ignore[arg-type]
        queries=queries,
        bootstrap=bootstrap,
        seed=seed,
        batch=batch,
    )
    evaluation = evaluate(loaded, data, config, extra=extra, progress=say)
    name = title or f"{Path(model).name or model} on {Path(dataset.partition(':')[2] or dataset).name}"
    call = "genius " + shlex.join(sys.argv[1:])
    files: dict[str, str] = {}
    if out is not None:
        files = write_report(evaluation, out, data, title=name, command=call)
    if json:
        emit({**evaluation.to_json(), "written": files})
        return
    print(markdown(evaluation, title=name, command=call))
    for what, path in files.items():
        console.print(f"{what}: {path}", highlight=False)


def named(entries: list[str] | None) -> dict[str, str]:
    """Parse `NAME=ENCODER` options. A name must differ from the methods'."""
    from genius.evaluate import METHODS

    out: dict[str, str] = {}
    for entry in entries or []:
        name, _, what = entry.partition("=")
        if not name.strip() or not what or name in METHODS or name in out:
            raise GeniusError(f"--dense takes NAME=URI with a name that is not in use, got {entry!r}")
        out[name.strip()] = what
    return out


def say(line: str) -> None:
    console.print(line, highlight=False)


def _list(value: bool) -> None:
    if not value:
        return
    from genius.evaluate import METHODS

    for name, meaning in METHODS.items():
        print(f"{name:18} {meaning}")
    raise typer.Exit
