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
        ("features", "extract", "no-model", "no-data", "x"),
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serach", "x"), "no such command 'serach'"),
        (("search", "x.genius", "--colour"), "no such option: --colour"),
        (("search",), "missing argument 'INDEX'"),
        (("search", "x.genius", "a", "-k", "many"), "invalid value for '-k'"),
        (("features", "drop"), "no such command 'drop'"),
    ],
)
def test_usage_errors_are_one_line_that_names_the_help(arguments: tuple[str, ...], message: str) -> None:
    out = CliRunner().invoke(app, arguments)
    assert out.exit_code == 2
    assert out.stderr.startswith(f"genius: {message}") and out.stderr.count("\n") == 1, out.stderr
    assert out.stderr.rstrip().endswith("--help)")


def test_every_command_stands_in_a_panel() -> None:
    assert "Other" not in genius("--help").stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    """As in `genius train --list | head -1`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "genius", "train", "--list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 1


@pytest.mark.parametrize("how", ["raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGINT)"])
@pytest.mark.parametrize("module", ["typer", "genius.cli.search", "genius.train.config"])
def test_ctrl_c_is_one_line_from_the_start(module: str, how: str) -> None:
    """Also while the program is still being imported."""
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts with it ignored
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            {how}
sys.meta_path.insert(0, Interrupt())
sys.argv = ["genius", "train", "--list"]
from genius.cli import main
main()
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (out.returncode, out.stderr) == (130, "genius: interrupted\n")


def test_the_bundled_encoder_says_what_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a model is fitted over it."""
    from genius.fit import folder
    from genius.index.ingest import Indexed, IngestReport

    monkeypatch.setattr(folder, "index_with_encoder", lambda *_, **__: Indexed(IngestReport(), 1))
    for encoder, said in (("bundled:mini", True), ("local-dir:x", False)):
        out = CliRunner().invoke(app, ["index", str(tmp_path), "-o", str(tmp_path / "i.genius"), "--encoder", encoder])
        assert out.exit_code == 0 and ("knows drawings" in out.stderr) == said, out.stderr
