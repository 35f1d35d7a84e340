"""`genius train`: one config file, three stages, a model folder."""

from __future__ import annotations

import typer

from genius.cli.common import command, emit, setting
from genius.cli.index import RayOption
from genius.errors import GeniusError


def register(app: typer.Typer) -> None:
    app.command("train")(train)


@command
def train(
    config: str = typer.Argument("", help="A TOML or JSON file, or builtin:NAME (see --list)."),
    output: str = typer.Option("", "--output", "-o", help="The model folder, in place of the config's."),
    data: str = typer.Option("", "--data", help="The training data, in place of the config's."),
    encoder: str = typer.Option("", "--encoder", help="The encoder of the data: it is stored with the model (encoder_uri)."),
    change: list[str] = typer.Option([], "--set", help="One field: --set generator.steps=500 (TOML values)."),
    listing: bool = typer.Option(False, "--list", help="Name the built-in configs and stop."),
    ray: RayOption = None,
    workers: int = typer.Option(0, min=0, help="With --ray: processes; 0: one a GPU, or two."),
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
    overrides = dict(setting(entry) for entry in change)
    if output:
        overrides["output"] = output
    if data:
        overrides["data"] = data
    if encoder:
        overrides["encoder_uri"] = encoder
    settings = read_train_config(config, overrides)
    if ray is not None:
        from genius.scale.training import train_on_ray

        result = train_on_ray(settings, ray, workers, quiet or as_json)
        emit({"output": settings.output, **result}) if as_json else print(settings.output)
        return
    from genius.train.run import train as run

    trained = run(settings, quiet=quiet or as_json)
    if as_json:
        emit({"output": settings.output, "fingerprint": trained.model.fingerprint(), "metrics": trained.metrics})
    else:
        print(settings.output)
