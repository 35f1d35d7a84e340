"""The command line: one typer app. Each command is a few lines that call the library, in a file per subject.

A file here exposes `register(app)`. Heavy imports stay inside the commands, so that `genius --help` is quick.
"""

from __future__ import annotations

import importlib
import os

import typer

app = typer.Typer(
    name="genius",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Generative universal multimodal search: ask with text, an image, or both; a small decoder writes the ID of the answer.",
)
data_app = typer.Typer(no_args_is_help=True, help="Build and check datasets.")
features_app = typer.Typer(no_args_is_help=True, help="Work on pre-extracted features.")
convert_app = typer.Typer(no_args_is_help=True, help="Turn published checkpoints into GENIUS models.")
fields_app = typer.Typer(no_args_is_help=True, help="List, drop, rename and retype the metadata fields of an index.")
bench_app = typer.Typer(no_args_is_help=True, help="Measure speed against rivals in the same run.")

# module of this package -> the app it adds its commands to
COMMANDS: dict[str, typer.Typer] = {
    "demo": app,
    "index": app,
    "upkeep": app,
    "fields": fields_app,
    "search": app,
    "serve": app,
    "train": app,
    "recipes": app,
    "evaluate": app,
    "bench": bench_app,
    "convert": convert_app,
    "attach": app,
    "features": features_app,
    "extract": features_app,
    "icons": data_app,
    "data": data_app,
}

for _name, _app in COMMANDS.items():
    try:
        importlib.import_module(f"genius.cli.{_name}").register(_app)
    except ModuleNotFoundError as _error:
        if _error.name != f"genius.cli.{_name}":
            raise

app.add_typer(data_app, name="data")
app.add_typer(features_app, name="features")
app.add_typer(convert_app, name="convert")
app.add_typer(fields_app, name="fields")
app.add_typer(bench_app, name="bench")


def main() -> None:
    # threads that wait for each other should soon sleep, not spin: beside other busy processes, spinning makes a search on
    # all cores many times slower, and sleeping at once a third slower on a quiet machine (benchmarks/engine.md). Read when
    # torch is loaded, so it has to be said before
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    app()
