"""Small pictures on sheets: one place for each different picture, full sheets and the last one."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from genius.export import web as module
from genius.export.web import CELL, COLUMNS, Sheets

ROWS = 2  # of a sheet here: large ones take seconds to compress


def preview(colour: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (100, 50), colour).save(buffer, "PNG")
    return buffer.getvalue()


def test_every_picture_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", ROWS)
    sheets = Sheets(tmp_path)
    colours = [(3 * n, 255 - 3 * n, 40) for n in range(COLUMNS * ROWS + 3)]
    assert [sheets.add(preview(colour)) for colour in colours] == list(range(len(colours)))
    assert sheets.add(preview(colours[5])) == 5 and sheets.count == len(colours)  # the same picture again
    sheets.close()
    assert sheets.sheets == 2 and sorted(path.name for path in tmp_path.iterdir()) == ["sheet0.webp", "sheet1.webp"]
    for number in (0, 5, 40, COLUMNS * ROWS + 2):
        sheet = Image.open(tmp_path / f"sheet{number // (COLUMNS * ROWS)}.webp").convert("RGB")
        place = number % (COLUMNS * ROWS)
        middle = sheet.getpixel((place % COLUMNS * CELL + CELL // 2, place // COLUMNS * CELL + CELL // 2))
        assert np.abs(np.array(middle) - colours[number]).max() < 25  # WebP is not exact
