"""`genius train`: one config file, three stages, a model folder. `genius attach`: the encoder that its features came from."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from genius.cli.common import command, emit, kept_if_interrupted, setting
from genius.cli.index import DeviceOption, RayOption
from genius.errors import GeniusError

FIELD = re.compile(r"    (\w+): ([^=#]+?) = ([^#]+?)(?:  # (.*))?$")  # a line of a config's class


def register(app: typer.Typer) -> None:
    app.command("train")(train)
    app.command("attach")(attach)


@command
def train(
    config: str = typer.Argument("", help="A TOML or JSON file, or builtin:NAME (see --list)."),
    output: str = typer.Option("", "--output", "-o", help="The model folder, in place of the config's."),
    data: str = typer.Option("", "--data", help="The training data, in place of the config's."),
    encoder: str = typer.Option("", "--encoder", help="The encoder of the data: it is stored with the model (encoder_uri)."),
    change: list[str] = typer.Option([], "--set", help="One field: --set generator.steps=500 (TOML values)."),
    listing: bool = typer.Option(False, "--list", help="Name the built-in configs, say what each is, and stop."),
    fields: bool = typer.Option(False, "--fields", help="Show every field of a config and stop."),
    device: DeviceOption = "auto",
    ray: RayOption = None,
    workers: int = typer.Option(0, min=0, help="With --ray: processes; 0: one a GPU, or two."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress on stderr."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout at the end."),
) -> None:
    """Train encoder, quantizer and generator from one config file; run it again after a kill and it goes on.

    First try: genius train builtin:tiny --output /tmp/tiny. A few thousand pairs on a laptop: genius train builtin:small --data
    pairs.jsonl --encoder bundled:mini --output MODEL. Your features: genius train builtin:default --data FEATURES
    --output MODEL. Your own pairs and settings: docs/training.md.
    """
    from genius.train.config import builtin_about, read_train_config

    if listing:
        known = builtin_about()
        emit(known) if as_json else print("\n".join(f"{name:<20} {about}" for name, about in known.items()))
        return
    if fields:
        print(fields_page(), end="")
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
    if ray is not None:
        from genius.scale.training import train_on_ray

        result = train_on_ray(settings, ray, workers, quiet or as_json)
        emit({"output": settings.output, **result}) if as_json else print(settings.output)
        return
    from genius.train.journal import next_command, table, verdict
    from genius.train.run import train as run

    with kept_if_interrupted():
        trained = run(settings, quiet=quiet or as_json)
    values = trained.metrics["generator"]
    judged = verdict(values, "heads" if trained.heads is not None else settings.encoder.train)
    if as_json:
        fingerprint = trained.model.fingerprint()
        emit({"output": settings.output, "fingerprint": fingerprint, "metrics": trained.metrics, "verdict": judged})
        return
    for line in (*table(values), *([] if judged is None else [judged])):
        print(line)
    print(f"the model is in {settings.output}")
    print(f"next: {next_command(settings.output, trained.model.encoder is not None, settings.data)}")


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
    from genius.train.sources import attach_encoder

    checked = attach_encoder(model, encoder, features=features, data=data, split=split)
    if json:
        emit({"model": str(model), "encoder": encoder, "checked": checked})
    else:
        print(f"{model} has the encoder {encoder} now; checked: {', '.join(checked)}")


def fields_page() -> str:
    """Every field of a training config as a page: name, default, meaning, read off the dataclasses themselves."""
    from genius.train import config as configs

    tables: dict[str, tuple[str, type[Any]]] = {
        "": ("The whole run", configs.TrainConfig),
        "run": ("`[run]`: what every stage's loop needs", configs.RunConfig),
        "model": ("`[model]`: sizes", configs.ModelConfig),
        "encoder": ("`[encoder]`: stage 1", configs.EncoderStageConfig),
        "quantizer": ("`[quantizer]`: stage 2", configs.QuantizerStageConfig),
        "generator": ("`[generator]`: stage 3", configs.GeneratorStageConfig),
    }
    lines = [
        "# Fields of a training config",
        "",
        "Made by `genius train --fields` from the config itself. A field is set in a TOML file, or by `--set table.name=value`.",
    ]
    for table, (title, kind) in tables.items():
        lines += ["", f"## {title}", "", "| field | default | meaning |", "|---|---|---|"]
        for name, (default, meaning) in _fields(kind).items():
            lines.append(f"| `{table + '.' if table else ''}{name}` | `{default}` | {meaning} |")
    return "\n".join([*lines, ""])


def _fields(kind: type[Any]) -> dict[str, tuple[str, str]]:
    """Name -> (default, meaning), those of base classes first; a class may give a base's field another default."""
    found: dict[str, tuple[str, str]] = {}
    for owner in reversed(kind.__mro__[:-1]):
        above: list[str] = []
        for line in inspect.getsource(owner).splitlines():
            match = FIELD.match(line)
            if match is None:
                above = [*above, line.strip("# ").strip()] if line.startswith("    # ") else []
                continue
            name, _, default, beside = match.groups()
            meaning = " ".join([*above, beside or ""]).strip().replace("|", "\\|")
            above = []
            if "default_factory" in default and name != "search":
                continue  # a table of its own
            found[name] = (default if "factory" not in default else "{}", meaning or found.get(name, ("", ""))[1])
    return found
