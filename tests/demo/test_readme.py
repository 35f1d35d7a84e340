"""The README's examples, run as they are in an empty folder, and its table of figures."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genius.cli import app
from genius.encoders import bundled_names
from lab.facts import PAGES, filled

README = Path(__file__).parents[2] / "README.md"


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.mark.skipif("mini" not in bundled_names(), reason="the bundled weights are not in this checkout")
def test_the_examples_run_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    found: list[list[str]] = []
    for statement in re.split(r"^(?=hits = )", block("python"), flags=re.MULTILINE):
        exec(statement, names)
        if "hits" in names:
            found.append([hit.id for hit in names["hits"]])  # type: ignore[attr-defined]
    assert set(found[0]) == {"hexagon", "filled hexagon"}
    assert set(found[1]) == {"triangle", "filled triangle", "square", "filled square"}  # the filter
    assert found[2] == ["filled triangle"]

    folder = tmp_path / "drawings"
    folder.mkdir()
    for sides, name in ((3, "triangle"), (4, "square"), (6, "hexagon")):
        names["draw"](sides, False).save(folder / f"{name}.png")  # type: ignore[operator]
    for line in block("sh").splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "genius"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{line}\n{result.output[-1500:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_figures_are_those_of_the_committed_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<!-- facts -->" in text
    assert filled(text) == text, "run: python -m lab.facts"


def test_lines_fit_a_screen() -> None:
    long = [line for line in README.read_text(encoding="utf-8").splitlines() if len(line) >= 120 and not line.startswith("|")]
    assert long == []
