"""What every command shares: one-line errors with status 2, JSON for machines, progress for people."""

from __future__ import annotations

import functools
import json
import sys
import tomllib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console

from genius.errors import GeniusError

P = ParamSpec("P")
R = TypeVar("R")

console = Console(stderr=True)
"""Progress and notes go to stderr: stdout is for results."""


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Turn a `GeniusError` (or a broken pipe, or Ctrl-C) into one line and an exit status."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except GeniusError as error:
            print(f"genius: {' '.join(str(error).split())}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print("genius: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except (PermissionError, OSError) as error:
            print(f"genius: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
            raise typer.Exit(2) from None

    return wrapped


def note(text: str) -> None:
    """One line for people."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def emit(value: Any) -> None:
    """One JSON object on stdout."""
    from genius.types import is_unicode

    text = json.dumps(value, ensure_ascii=False, default=str)
    plain = is_unicode(text)  # names of files need not be
    print(text if plain else json.dumps(value, default=str), flush=True)


def setting(entry: str) -> tuple[str, Any]:
    """`--set name=value`: the value as TOML reads it, or a bare word."""
    name, equals, value = entry.partition("=")
    if not equals or not name.strip():
        raise GeniusError(f"--set wants name=value, got {entry!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()  # a bare word is a string
