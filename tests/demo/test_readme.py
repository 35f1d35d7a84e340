"""The README's Python example, run as it stands: what a newcomer types first must be true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

README = Path(__file__).parents[2] / "README.md"


def test_the_example_finds_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (64, 64), "red").save("a.jpg")
    names: dict[str, object] = {}
    lines = code.group(1).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("hits ="))
    exec("\n".join(lines[: first + 1]), names)
    assert [hit.id for hit in names["hits"]] == ["1"]  # type: ignore[attr-defined]
    exec("\n".join(lines[first + 1 :]), names)  # ends by reading hits[0]
    assert {hit.id for hit in names["hits"]} == {"1", "2"}  # type: ignore[attr-defined] # a pair has a picture, too
