"""What commands share: errors as one line with an exit status, JSON or text output, progress, and indexes in an object store."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console

from genius.errors import GeniusError, without_controls
from genius.files import url_of

Tell = Callable[[str, int, int], None]
"""Called with the phase, the items done since the last call, and all items (0: unknown)."""
Say = Callable[[str], None] | None
"""Called with a line for people."""
P = ParamSpec("P")
R = TypeVar("R")

console = Console(stderr=True, emoji=False)  # names are shown as they are: ":cat:" is no picture
"""Progress and notes go to stderr: stdout is for results."""

EVERY = 10.0  # seconds between lines where there is no terminal
REDRAW = 0.2  # seconds between lines that take each other's place


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Turn a `GeniusError`, an error of the operating system or Ctrl-C into one line and an exit status."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BrokenPipeError:
            raise  # the reader of our output has gone: `main` ends quietly
        except GeniusError as error:
            message = " ".join(str(error).split())
            status = 2
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            message = f"genius {function.__name__} needs torch: pip install 'genius-search[torch]'"
            status = 2
        except KeyboardInterrupt as interrupt:
            message = f"interrupted: {interrupt}".rstrip(": ")
            status = 130
        except OSError as error:
            message = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
            status = 2
        print(f"genius: {without_controls(message)}", file=sys.stderr)
        raise typer.Exit(status)

    wrapped.__doc__ = help_text(function.__doc__ or "")
    return wrapped


def help_text(docstring: str) -> str:
    """The help of a command from its docstring: paragraphs become one line, which the terminal wraps; indented lines stay."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    for position, paragraph in enumerate(paragraphs):
        if "\n  " not in paragraph:
            paragraphs[position] = paragraph.replace("\n", " ")
    return "\n\n".join(paragraphs)


def add_group(app: typer.Typer, name: str, about: str, *commands: Callable[..., Any]) -> None:
    """Add `genius NAME COMMAND`.

    Args:
        app: Where the group is added.
        name: The group's name.
        about: Its help.
        commands: Called as their functions are.
    """
    group = typer.Typer(no_args_is_help=True, help=about)
    group.callback()(lambda: None)  # a group of one stays a group
    for function in commands:
        group.command(function.__name__)(function)
    app.add_typer(group, name=name, help=about)


def note(text: str) -> None:
    """Print one line for people, on stderr."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def emit(value: Any) -> None:
    """Print one JSON object on stdout."""
    from genius.types import is_unicode

    text = json.dumps(value, ensure_ascii=False, default=str)
    if not is_unicode(text):  # names of files need not be
        text = json.dumps(value, default=str)
    print(text, flush=True)


def tell(body: Any, line: str, as_json: bool) -> None:
    """Print a result: as JSON for programs, or as one line for people."""
    if as_json:
        emit(body)
    else:
        print(line)


def setting(entry: str) -> tuple[str, Any]:
    """Parse `name=value`. The value is TOML, or else a string."""
    import tomllib  # slow to import, and few commands have settings

    name, equals, value = entry.partition("=")
    if not equals or not name.strip():
        raise GeniusError(f"--set takes NAME=VALUE, got {entry!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()  # a bare word is a string


@contextmanager
def kept_if_interrupted() -> Iterator[None]:
    """Say after Ctrl-C that the run can be continued."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("finished parts are kept, run the same command to continue") from None


@contextmanager
def phases() -> Iterator[Tell]:
    """Show progress as it is told.

    In a terminal one line is rewritten; elsewhere a line is printed every `EVERY` seconds.
    """
    done: dict[str, int] = {}
    started: dict[str, tuple[float, int]] = {}  # time of the first call, and what was done by then
    last = time.monotonic()
    terminal = console.is_terminal

    def show(phase: str, count: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        done[phase] = done.get(phase, 0) + count
        begun, first = started.setdefault(phase, (now, done[phase]))
        if now - last < (REDRAW if terminal else EVERY):
            return
        last = now
        speed = (done[phase] - first) / max(now - begun, 1e-9)
        text = f"{phase}: {done[phase]:,}"
        if total:
            text += f" of {total:,}"
        text += " items"
        if total > done[phase] and speed > 0:
            text += f", about {(total - done[phase]) / speed:,.0f} s left"
        _print_progress(text)

    yield show
    if terminal and done:
        _print_progress("")


def _print_progress(text: str) -> None:
    """One line; in a terminal the next one takes its place."""
    if console.is_terminal:
        console.print(text.ljust(console.width - 1), end="\r", highlight=False, overflow="crop", no_wrap=True)
    else:
        console.print(text, highlight=False)


@contextmanager
def feature_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of feature extraction: yields a function of the part, all rows done and all rows."""
    shown: dict[str, int] = {}
    with phases() as advance:

        def show(part: str, done: int, total: int) -> None:
            advance(f"features of {part}", done - shown.get(part, 0), total)
            shown[part] = done

        yield show


def here(path: Path, follow: bool = False) -> Path:
    """The folder of an index. An index in an object store is copied to this machine, or its copy is updated.

    Args:
        path: A folder, or an address such as s3://BUCKET/NAME.
        follow: Keep the copy up to date in the background.
    """
    address = url_of(path)
    if address is None:
        return path
    from genius.scale import objects

    folder = objects.local_copy(address)
    if follow:
        objects.follow(address)
    return folder


def sources_here(paths: list[Path], output: Path) -> list[Path]:
    """Sources as local files: those in an object store are copied next to the index."""
    if url_of(output) is not None:
        raise GeniusError(
            f"cannot write an index to an object store: index into a folder, then run genius publish FOLDER {url_of(output)}"
        )
    local_paths = []
    for path in paths:
        address = url_of(path)
        if address is None:
            local_paths.append(path)
            continue
        from genius.scale.objects import fetch_sources

        folder = output.with_name(f"{output.name}.sources")
        note(f"copying {address} to {folder}")
        local_paths.append(fetch_sources(address, folder))
    return local_paths
