"""What every command shares: one-line errors with status 2, JSON for machines, for people progress (a bar with the time
left on a terminal, a line now and then elsewhere), and addresses in an object store (`s3://...`) in place of paths.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console

from genius.errors import GeniusError
from genius.files import url_of

P = ParamSpec("P")
R = TypeVar("R")

console = Console(stderr=True)
"""Progress and notes go to stderr: stdout is for results."""

EVERY = 10.0  # seconds between lines where there is no terminal


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


def add_group(app: typer.Typer, name: str, about: str, *own: Callable[..., Any], **named: Callable[..., Any]) -> None:
    """`genius NAME COMMAND`: commands that belong together, by the names of their functions or by names given."""
    group = typer.Typer(no_args_is_help=True, help=about)
    group.callback()(lambda: None)  # a group of one stays a group
    for command_name, function in ({f.__name__: f for f in own} | named).items():
        group.command(command_name)(function)
    app.add_typer(group, name=name, help=about)


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
    import tomllib  # its patterns are compiled when it is loaded: no command waits for them that has no settings

    name, equals, value = entry.partition("=")
    if not equals or not name.strip():
        raise GeniusError(f"--set wants name=value, got {entry!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()  # a bare word is a string


@contextmanager
def kept_if_interrupted() -> Iterator[None]:
    """Tell people who stop a run that it can go on."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("what is done is kept: run it again to go on", highlight=False)
        raise


@contextmanager
def phases() -> Iterator[Callable[[str, int, int], None]]:
    """Inside, tell(phase, items done since, items in all or 0)."""
    if console.is_terminal:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(20),
            TextColumn("{task.completed:,} items"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            tasks = {}

            def move(phase: str, count: int, total: int) -> None:
                if phase not in tasks:
                    tasks[phase] = progress.add_task(phase, total=total or None)
                progress.update(tasks[phase], advance=count, total=total or None)

            yield move
        return
    done: dict[str, int] = {}
    started: dict[str, float] = {}
    last = time.monotonic()

    def line(phase: str, count: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        begun = started.setdefault(phase, now)
        done[phase] = done.get(phase, 0) + count
        if now - last < EVERY:
            return
        last = now
        speed = done[phase] / max(now - begun, 1e-9)
        left = f", about {(total - done[phase]) / speed:,.0f} s left" if total > done[phase] and now > begun else ""
        console.print(f"{phase}: {done[phase]:,}{f' of {total:,}' if total else ''} items{left}", highlight=False)

    yield line


def here(path: Path, follow: bool = False) -> Path:
    """The folder of an index: of one in an object store, a local copy that is brought up to date (and kept so)."""
    address = url_of(path)
    if address is None:
        return path
    from genius.scale import objects

    folder = objects.local_copy(address)
    if follow:
        objects.follow(address)
    return folder


def sources_here(paths: list[Path], output: Path) -> list[Path]:
    """Sources as files: those in an object store are copied beside the index."""
    if url_of(output) is not None:
        raise GeniusError(f"an index is written on a disk: index into a folder, then genius publish FOLDER {url_of(output)}")
    found = []
    for path in paths:
        address = url_of(path)
        if address is None:
            found.append(path)
            continue
        from genius.scale.objects import fetch_sources

        folder = output.with_name(f"{output.name}.sources")
        note(f"copying {address} to {folder}")
        found.append(fetch_sources(address, folder))
    return found
