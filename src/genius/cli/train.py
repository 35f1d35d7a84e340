"""`genius train`: one config file, three stages, a model folder."""

from __future__ import annotations

import tomllib
from typing import Any

import typer

from genius.cli.common import command, emit
from genius.errors import GeniusError


def register(app: typer.Typer) -> None:
    app.command("train")(train)


@command
def train(
    config: str = typer.Argument("", help="A TOML or JSON file, or builtin:NAME (see --list)."),
    output: str = typer.Option("", "--output", "-o", help="The model folder, in place of the config's."),
    data: str = typer.Option("", "--data", help="The training data, in place of the config's."),
    encoder: str = typer.Option("", "--encoder", help="The encoder of the data: it is stored with the model (encoder_uri)."),
    base: str = typer.Option(
        "", "--base", help="Another base for a config that builds on one: run an ablation on your own config."
    ),
    change: list[str] = typer.Option([], "--set", help="One field: --set generator.steps=500 (TOML values)."),
    listing: bool = typer.Option(False, "--list", help="Name the built-in configs and stop."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress on stderr."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout at the end."),
) -> None:
    """Train encoder, quantizer and generator from one config file; run it again after a kill and it goes on.

    First try: genius train builtin:tiny --output /tmp/tiny. Your features: genius train builtin:default --data FEATURES
    --output MODEL. Your own pairs and settings: docs/training.md.
    """
    from genius.train.config import builtin_names, read_train_config

    if listing:
        emit(builtin_names()) if as_json else print("\n".join(f"builtin:{name}" for name in builtin_names()))
        return
    if not config:
        raise GeniusError("name a config: a TOML file or builtin:NAME (genius train --list)")
    overrides = dict(_parse(entry) for entry in change)
    if output:
        overrides["output"] = output
    if data:
        overrides["data"] = data
    if encoder:
        overrides["encoder_uri"] = encoder
    settings = read_train_config(config, overrides, base or None)
    from genius.train.run import train as run

    trained = run(settings, quiet=quiet or as_json)
    if as_json:
        emit({"output": settings.output, "fingerprint": trained.model.fingerprint(), "metrics": trained.metrics})
    else:
        print(settings.output)


def _parse(entry: str) -> tuple[str, Any]:
    name, equals, value = entry.partition("=")
    if not equals or not name.strip():
        raise GeniusError(f"--set wants name=value, got {entry!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()  # a bare word is a string
