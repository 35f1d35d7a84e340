"""The contact sheet: a PNG with a row for each query, its hits beside it."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from genius.demo.showcase import Shown
from genius.types import load_image

CELL, PADDING, LABEL, LEFT = 132, 10, 34, 250
INK, FAINT, PAPER, CARD, ACCENT = "#1b1f24", "#667080", "#f6f7f9", "#ffffff", "#2f6fed"


def contact_sheet(shown: list[Shown], path: Path) -> None:
    """Draw `shown` and write it to `path`."""
    columns = max((len(s.hits) for s in shown), default=0)
    row = CELL + LABEL + PADDING
    sheet = Image.new("RGB", (LEFT + columns * (CELL + PADDING) + PADDING, PADDING + len(shown) * row), PAPER)
    draw = ImageDraw.Draw(sheet)
    font, small = ImageFont.load_default(16), ImageFont.load_default(12)
    for i, entry in enumerate(shown):
        top = PADDING + i * row
        _query(sheet, draw, entry, top, font, small)
        for j, hit in enumerate(entry.hits):
            left = LEFT + j * (CELL + PADDING)
            _card(sheet, draw, left, top, hit.item.image, hit.item.text, small)
            name = str(hit.item.metadata.get("name", hit.id))
            draw.text((left, top + CELL + 2), _cut(name, 20), fill=INK, font=small)
            draw.text((left, top + CELL + 16), f"{hit.score:.3f}  {'-'.join(map(str, hit.codes[:3]))}", fill=FAINT, font=small)
    sheet.save(path)


def _query(sheet: Image.Image, draw: ImageDraw.ImageDraw, entry: Shown, top: int, font: object, small: object) -> None:
    draw.text((PADDING, top), entry.title, fill=ACCENT, font=small)  # type: ignore[arg-type]
    x = PADDING
    if entry.query.image is not None:
        _card(sheet, draw, x, top + 18, entry.query.image, None, small, size=96)
        x += 96 + PADDING
    if entry.query.text:
        y = top + 24
        for line in _wrap(entry.query.text, 15 if x > PADDING else 26):
            draw.text((x, y), line, fill=INK, font=font)  # type: ignore[arg-type]
            y += 20


def _card(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, x: int, y: int, image: object, text: str | None, font: object, size: int = CELL
) -> None:
    draw.rounded_rectangle((x, y, x + size, y + size), radius=8, fill=CARD, outline="#dde1e7")
    room = size - 16
    if image is not None:
        picture = load_image(image)  # type: ignore[arg-type]
        if text:
            room -= 30
        picture.thumbnail((room, room))
        sheet.paste(picture, (x + (size - picture.width) // 2, y + 8 + (room - picture.height) // 2))
    if text:
        lines = _wrap(text, 20)[: 2 if image is not None else 7]
        for n, line in enumerate(lines):
            draw.text((x + 6, y + (size - 34 if image is not None else 8) + 15 * n), line, fill=INK, font=font)  # type: ignore[arg-type]


def _wrap(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
