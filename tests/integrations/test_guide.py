"""The code of docs/integrations.md, run as it stands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest

from genius import Index
from genius.fit import FitConfig

ADDRESS = "http://127.0.0.1:8000"
PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
SECTIONS = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
BLOCKS = [(title, block) for title, body in SECTIONS for block in re.findall(r"^```python\n(.*?)^```$", body, re.M | re.S)]


@pytest.mark.parametrize(("title", "block"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_the_code_of_the_guide_runs(title: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in re.findall(r"^(?:from|import) (\w+)", block, re.M):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    quick = {"steps": 3, "iterations": 1}  # of fits: what they find is tested elsewhere
    defaults = tuple(quick.get(field.name, field.default) for field in fields(FitConfig))
    monkeypatch.setattr(FitConfig.__init__, "__defaults__", defaults)
    if ADDRESS not in block:
        exec(compile(block, f"integrations.md, {title}", "exec"), {})
        return
    with served(tmp_path) as url:
        exec(compile(block.replace(ADDRESS, url), f"integrations.md, {title}", "exec"), {})


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A real `genius serve` over three collections, on a free port."""
    paths = [folder / "photos.genius", folder / "notes.genius", folder / "own.genius"]
    Index.create(paths[0], "bundled:mini")
    Index.create(paths[1], "bundled:mini").index_words()
    Index.create(paths[2], dim=3)
    command = [sys.executable, "-m", "genius", "serve", *map(str, paths), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
