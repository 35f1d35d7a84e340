"""Damaged images and drawings: an image or one clear error, never a crash, and no reference to another file.

Tables, conditions and checkpoints: `tests/index/test_index_strangers.py`, `tests/model/test_hostile_models.py`.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable

import hostile_pictures
import pytest

from genius import GeniusError, pictures
from genius.pictures import load_image
from genius.pictures.svg import _render, clean_svg

SMALL = 60_000  # bytes of an undamaged file
WORDS = (
    "IHDR", "IDAT", "PLTE", "tRNS", "eXIf", "zTXt", "iCCP", "Exif", "WEBPVP8 ", "VP8X", "ftypavif", "GIF89a", "<svg", "<g>",
    "href", "xlink:href", "<!DOCTYPE", "<!ENTITY",
)  # fmt: skip
REFERENCE = re.compile(r"<(?:\w+:)?(image|feImage)\s[^>]*?(?<=\s)(?:\w+:)?href=\"([^\"]*)\"")

pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow's, of odd files


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Bytes flipped, cut out, doubled, or replaced by words that mean something."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 2, 5, 20))):
        place = draw.randrange(len(changed) + 1)
        kind = draw.randrange(4)
        if kind == 0 and place < len(changed):
            changed[place] = draw.randrange(256)
        elif kind == 1:
            del changed[place : place + draw.randrange(1, 40)]
        elif kind == 2:
            changed[place:place] = changed[place : place + draw.randrange(1, 40)]
        else:
            changed[place:place] = draw.choice(WORDS).encode()
    return bytes(changed)


def read_image(data: bytes) -> None:
    """In full and scaled down."""
    for least in (None, 40):
        try:
            assert load_image(data, least=least).mode == "RGB"
        except GeniusError as error:
            assert "\n" not in str(error).strip()


def clean_drawing(data: bytes) -> None:
    """What remains refers to nothing outside; now and then it is drawn, too."""
    try:
        clean = clean_svg(data)
    except GeniusError:
        return
    assert "<!" not in clean and "<?" not in clean
    assert clean_svg(clean.encode("utf-8")) == clean
    for name, value in REFERENCE.findall(clean):
        assert value.lstrip().startswith(("#", "data:")), (name, value)
    if len(data) % 16 == 0:
        with contextlib.suppress(GeniusError):
            _render(data, 15.0)


def test_damaged_images_get_one_clear_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 3_000_000)  # quicker; the limit itself is tested elsewhere
    files = [data for name, data, _ in hostile_pictures.pictures() if len(data) < SMALL and not name.endswith(".svg")]
    try_damaged(files, 4, read_image)


def test_damaged_drawings_refer_to_nothing_outside() -> None:
    pytest.importorskip("resvg_py")
    files = [data for _, data, _ in hostile_pictures.drawings() if len(data) < SMALL]
    try_damaged(files, 12, clean_drawing)


def try_damaged(files: list[bytes], times: int, use: Callable[[bytes], None]) -> None:
    draw = random.Random(7)
    assert len(files) > 10
    for data in files:
        for _ in range(times):
            use(damaged(data, draw))
