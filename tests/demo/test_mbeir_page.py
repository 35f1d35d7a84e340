"""docs/mbeir.md: every command of the page, from top to bottom, in an empty folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genius.cli import app
from lab.__main__ import app as lab

PROGRAMS = {"genius ": app, "python -m lab ": lab}
PAGE = Path(__file__).parents[2] / "docs" / "mbeir.md"


def test_the_commands_of_the_page_run_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)  # (language, what stands in it)
    (config,) = (body for language, body in blocks if language == "toml")
    Path("small.toml").write_text(config, encoding="utf-8")
    commands = [line for language, body in blocks if not language for line in body.splitlines()]
    assert len(commands) > 12
    for line in commands:
        program = next(name for name in PROGRAMS if line.startswith(name))
        result = CliRunner().invoke(PROGRAMS[program], shlex.split(line.removeprefix(program)))
        assert result.exit_code == 0, f"{line}\n{result.output[-2000:]}"
    assert "| all |  | 96 | 96 | 96 |" in Path("supplement-1.md").read_text()
    results = Path("results/results.md").read_text()
    assert "Task-specific pools" in results and "Universal pool" in results
    for name in (
        *("table-1", "table-2", "table-3", "table-4", "table-5", "supplement-2", "supplement-4", "supplement-9", "supplement-b2"),
        *("figure-3", "figure-4", "supplement-figure-2"),
    ):
        assert (Path("tables") / f"{name}.md").stat().st_size > 100
    assert {path.stem for path in Path("tables").glob("*.png")} >= {"figure-3-1", "figure-4", "supplement-figure-2-1"}
