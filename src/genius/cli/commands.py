"""The typer app: all commands, grouped by what people want to do, and one clear line for a call that cannot be understood.

A file of this package holds the commands of one subject and exposes `register(app)`. Heavy imports stay inside the commands, so
that `genius --help` is quick.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

MODULES = ("index", "search", "serve", "upkeep", "train", "data")
"""Files of this package, in the order in which `genius --help` lists their commands."""

PANELS: dict[str, tuple[str, ...]] = {
    "Search": ("demo", "search", "explain", "duplicates", "serve", "mcp"),
    "Build and change an index": ("index", "learn", "info", "delete", "optimize", "reencode"),
    "Back up, check and publish an index": ("check", "repair", "snapshot", "restore", "publish"),
    "Train and evaluate models": ("train", "attach", "eval", "features", "data", "convert"),
    "Export": ("export",),
}

ALONE: dict[str, tuple[str, ...]] = {"search": ("search",)}
"""Commands that people wait for -> the files that are enough for them."""

USAGE_ERROR = 2
UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # click's class, wherever typer takes click from


class Commands(TyperGroup):
    """The top of the command tree: turns usage errors into one line with status 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        _hide_flag_types(self)
        try:
            result = super().main(args, prog_name or "genius", complete_var, False, windows_expand_args, **extra)
        except typer.Abort:
            print("genius: interrupted", file=sys.stderr)
            result = 130
        except UsageError as error:
            result = _explain(error)
        if not standalone_mode:
            return result
        status = 0
        if isinstance(result, int):
            status = result
        sys.exit(status)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would end without a word
            print("genius: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None


def _hide_flag_types(command: Any) -> None:
    """Leave out "<bool>" in the help of all commands: it takes room from the description, and a flag takes no value."""
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for child in getattr(command, "commands", {}).values():
        _hide_flag_types(child)


def _explain(error: Any) -> int:
    """Print what is wrong with a call on one line; return the exit status."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return USAGE_ERROR
    message = " ".join(error.format_message().split()).rstrip(".")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    program = "genius" if context is None else context.command_path
    print(f"genius: {message} (see {program} --help)", file=sys.stderr)
    return USAGE_ERROR


app = typer.Typer(
    name="genius",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Multimodal search: query with text, an image, or both. A small decoder generates the ID of the item that matches.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from genius.version import __version__

        print(f"genius {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True, callback=_version),
) -> None:
    """Options that stand before a command."""


def _set_panels() -> None:
    panel_of = {name: panel for panel, names in PANELS.items() for name in names}
    entries: list[Any] = [*app.registered_commands, *app.registered_groups]
    for entry in entries:
        entry.rich_help_panel = panel_of.get(entry.name, "Other")


@functools.cache
def register(modules: tuple[str, ...] = MODULES) -> typer.Typer:
    """The app with the commands of some files; once for each process.

    Args:
        modules: Files of this package. The app holds the commands of all calls.
    """
    for module in modules:
        importlib.import_module(f"genius.cli.{module}").register(app)
    _set_panels()
    return app


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The app for one call of the program: where the command is named first, without the commands of other files.

    Describing all commands to the parser takes longer than a search.

    Args:
        arguments: Of the program.
    """
    if arguments and arguments[0] in ALONE:
        return register(ALONE[arguments[0]])
    return register()
