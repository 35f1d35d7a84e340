"""One style of options over all commands: the same thing has the same name, a default on every device, and a sentence of help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from genius.cli import app

LONG = re.compile(r"--[a-z][a-z0-9]*(-[a-z0-9]+)*")


def commands(group: Any, name: str = "genius") -> Iterator[tuple[str, Any]]:
    for own, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, f"{name} {own}")
        else:
            yield f"{name} {own}", one


ALL = dict(commands(typer.main.get_command(app)))
ON_A_DEVICE = {f"genius {name}" for name in (
    "demo", "index", "search", "explain", "duplicates", "serve", "mcp", "train", "eval", "features extract",
    "learn", "reencode",
)}  # fmt: skip
NO_JSON = {"genius serve", "genius mcp", "genius recipes"}  # they answer in another form


@pytest.mark.parametrize("name", ALL)
def test_options_have_one_style(name: str) -> None:
    one = ALL[name]
    assert (one.help or "").strip().split("\n")[0].rstrip().endswith((".", ":")) or len((one.help or "").splitlines()) > 1, (
        "no sentence"
    )
    options: dict[str, click.Option] = {}
    for parameter in one.params:
        if isinstance(parameter, click.Option) or hasattr(parameter, "is_flag"):
            longs = [word for word in parameter.opts if word.startswith("--")]
            assert all(LONG.fullmatch(word) for word in longs), longs
            assert longs or parameter.opts == ["-k"], parameter.opts
            assert (parameter.help or "").rstrip().endswith((".", ")", ":", "...")) or '"' in (parameter.help or ""), (
                longs,
                parameter.help,
            )
            options |= dict.fromkeys(parameter.opts, parameter)
        else:
            assert (parameter.metavar or parameter.name or "").upper() == (parameter.metavar or parameter.name or "").upper()
    assert "--out" not in options, "what a command writes is --output, -o"
    if "--output" in options:
        assert "-o" in options["--output"].opts
    if "--device" in options:
        assert options["--device"].default == "auto", "the device is chosen by itself unless somebody says"
    assert ("--device" in options) == (name in ON_A_DEVICE)
    if name not in NO_JSON:
        assert "--json" in options


@pytest.mark.parametrize("name", ALL)
def test_help_leaves_space_for_descriptions_at_80_columns(name: str) -> None:
    path = name.removeprefix("genius ").split()
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    line = next(line for line in shown.splitlines() if "--help" in line and "│" in line)
    assert line.index("Show this message") <= 42, "a long type or a --no-option takes the space"
    examples = [line.rstrip() for line in shown.splitlines() if line.strip().startswith("genius ")]
    assert all(len(line) < 80 for line in examples), "an example is wrapped"
