"""The command line as a person meets it: help that teaches, one clear line and status 2 for a bad call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genius.cli import app


def genius(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "genius", *arguments], capture_output=True, text=True)


def test_help_lists_the_commands() -> None:
    out = genius("--help")
    assert out.returncode == 0
    for name in ("demo", "index", "search", "serve", "train", "eval", "features", "convert", "info", "explain"):
        assert f" {name} " in out.stdout, name


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", "official", "--quantizer", "no.pth", "--generator", "no.pth", "--output", "out"),
        ("features", "encode", "no-model", "no.pt", "--output", "x.npy"),
        ("search", "no.genius", "--text", "a"),
        ("train", "no.toml"),
        ("info", "no.genius"),
        ("serve", "no.genius"),
        ("eval", "no-model", "no-data"),
    ],
)
def test_a_bad_call_ends_with_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    out = CliRunner().invoke(app, arguments)
    assert out.exit_code == 2, out.stderr
    assert out.stderr.startswith("genius: ") and out.stderr.count("\n") == 1, out.stderr
    assert list(tmp_path.iterdir()) == []  # nothing half-written


def test_a_bad_call_ends_so_in_a_process_of_its_own(tmp_path: Path) -> None:
    out = subprocess.run([sys.executable, "-m", "genius", "info", "no.genius"], capture_output=True, text=True, cwd=tmp_path)
    assert out.returncode == 2, out.stderr
    assert out.stderr.startswith("genius: ") and out.stderr.count("\n") == 1, out.stderr
    assert list(tmp_path.iterdir()) == []  # nothing half-written
