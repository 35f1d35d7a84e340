"""The command line: one typer app. Each command is a few lines that call the library, in a file per subject.

A file here exposes `register(app)`. Heavy imports stay inside the commands, so that `genius --help` is quick.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys

import typer

app = typer.Typer(
    name="genius",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Generative universal multimodal search: ask with text, an image, or both; a small decoder writes the ID of the answer.",
)
features_app = typer.Typer(no_args_is_help=True, help="Work on pre-extracted features.")
convert_app = typer.Typer(no_args_is_help=True, help="Turn published checkpoints into GENIUS models.")
data_app = typer.Typer(no_args_is_help=True, help="Look at data sets.")
export_app = typer.Typer(no_args_is_help=True, help="Take a model or an index elsewhere: ONNX files, a browser tab.")
fields_app = typer.Typer(no_args_is_help=True, help="List, drop, rename and retype the metadata fields of an index.")

# module of this package -> the app it adds its commands to
COMMANDS: dict[str, typer.Typer] = {
    "demo": app,
    "index": app,
    "upkeep": app,
    "objects": app,
    "fields": fields_app,
    "search": app,
    "explain": app,
    "duplicates": app,
    "serve": app,
    "mcp": app,
    "train": app,
    "evaluate": app,
    "convert": convert_app,
    "export": export_app,
    "features": features_app,
    "data": data_app,
}


def _version(wanted: bool) -> None:
    if wanted:
        from genius.version import __version__

        print(f"genius {__version__}")
        raise typer.Exit


for _name, _app in COMMANDS.items():
    importlib.import_module(f"genius.cli.{_name}").register(_app)


@app.callback()
def whole(
    version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True, callback=_version),
) -> None:
    """What stands in front of a command."""


app.add_typer(features_app, name="features")
app.add_typer(convert_app, name="convert")
app.add_typer(fields_app, name="fields")
app.add_typer(export_app, name="export")
app.add_typer(data_app, name="data")


def _with_address(arguments: list[str]) -> list[str]:
    """`--ray` may stand alone, which typer's options cannot: then it means this machine."""
    out = []
    for i, argument in enumerate(arguments):
        out.append(argument)
        if argument == "--ray" and (i + 1 == len(arguments) or arguments[i + 1].startswith("-")):
            out.append("local")
    return out


def main() -> None:
    # threads that wait for each other should soon sleep, not spin: beside other busy processes, spinning makes a search on
    # all cores many times slower, and sleeping at once a third slower on a quiet machine (lab/speed/engine.md). Read when
    # torch is loaded, so it has to be said before
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    atexit.register(gc.freeze)  # or Python would look through all of torch for garbage before it ends: a third of a second
    app(_with_address(sys.argv[1:]))
