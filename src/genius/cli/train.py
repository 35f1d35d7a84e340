"""`genius train`: one config file, three stages, a model folder. `genius attach`: the encoder that its features came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command, emit, kept_if_interrupted, setting
from genius.cli.index import DeviceOption, RayOption
from genius.errors import GeniusError


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
        from genius.train.fields_page import fields_page

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
    from genius.train.run import train as run
    from genius.train.verdict import next_command, table, verdict

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
    from genius.train.attach import attach_encoder

    checked = attach_encoder(model, encoder, features=features, data=data, split=split)
    if json:
        emit({"model": str(model), "encoder": encoder, "checked": checked})
    else:
        print(f"{model} has the encoder {encoder} now; checked: {', '.join(checked)}")
