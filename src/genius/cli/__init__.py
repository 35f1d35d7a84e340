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
COMMANDS = ("index", "upkeep", "search", "serve", "train", "data")
"""Files of this folder, in the order in which `genius --help` names what is in them."""


def _version(wanted: bool) -> None:
    if wanted:
        from genius.version import __version__

        print(f"genius {__version__}")
        raise typer.Exit


for _name in COMMANDS:
    importlib.import_module(f"genius.cli.{_name}").register(app)


@app.callback()
def whole(
    version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True, callback=_version),
) -> None:
    """What stands in front of a command."""


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
