"""A stranger's folder of more than 200 kinds of files: every good one is indexed, each bad one is named, nothing ends the run.

The real command over all of them ran as a program; its result is lab/results/trust/hostile_files.json.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from fake_encoder import fake_model
from hostile_files import judge, write_all

from genius import Index
from genius.index.ingest import ingest
from genius.pictures import svg as sandbox

SLOW = {"pictures/bomb-true.png", "pictures/bomb-text.png", "pictures/bomb-profile.png", "lines/one-line.jsonl"}

pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow's, of odd files


def test_every_other_item_is_indexed_and_each_bad_one_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resvg_py")
    monkeypatch.setattr(sandbox, "draw_svg", functools.partial(sandbox.draw_svg, seconds=1.5))
    folder = tmp_path / "stranger"
    folder.mkdir()
    fates = write_all(folder)
    for name in SLOW:
        (folder / name).unlink()
        del fates[name]
    assert len(fates) >= 200
    index = Index(tmp_path / "x.genius", fake_model())
    report = ingest(index, [folder])
    assert judge(fates, {item.id for item in index.items()}, report.problems, folder.name) == []
    assert all("\n" not in line.strip() and "Traceback" not in line for line in report.problems)
