"""The code of docs/integrations.md, run as it stands."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
SECTIONS = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
BLOCKS = [(title, block) for title, body in SECTIONS for block in re.findall(r"^```python\n(.*?)^```$", body, re.M | re.S)]


@pytest.mark.parametrize(("title", "block"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_the_code_of_the_guide_runs(title: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in re.findall(r"^(?:from|import) (\w+)", block, re.M):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, f"integrations.md, {title}", "exec"), {})
