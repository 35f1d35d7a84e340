"""A small picture book for the tests of the service: drawn shapes, sentences about them, and pairs of both."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image, ImageDraw

from genius import Item

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

COLOURS = {"red": "#d3362b", "blue": "#2b5fd3", "green": "#2b9a4a", "yellow": "#e6b422", "purple": "#7d3cc2", "orange": "#e8791e"}
SHAPES = ("circle", "square", "triangle", "bar", "cross", "ring")


def draw(shape: str, colour: str, size: int = 96, background: str = "white") -> Image.Image:
    picture = Image.new("RGB", (size, size), background)
    pen, fill = ImageDraw.Draw(picture), COLOURS.get(colour, colour)
    low, high, middle = size // 6, size - size // 6, size // 2
    if shape == "circle":
        pen.ellipse((low, low, high, high), fill)
    elif shape == "square":
        pen.rectangle((low, low, high, high), fill)
    elif shape == "triangle":
        pen.polygon([(middle, low), (high, high), (low, high)], fill)
    elif shape == "bar":
        pen.rectangle((low, middle - size // 8, high, middle + size // 8), fill)
    elif shape == "cross":
        pen.line((low, low, high, high), fill, size // 6)
        pen.line((low, high, high, low), fill, size // 6)
    else:
        pen.ellipse((low, low, high, high), outline=fill, width=size // 8)
    return picture


def encoded(picture: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return buffer.getvalue()


def book() -> list[Item]:
    """Every shape in every colour: as a picture, as a sentence, as both."""
    items = []
    for s, shape in enumerate(SHAPES):
        for c, colour in enumerate(COLOURS):
            about = {"colour": colour, "shape": shape, "price": 10 * s + c, "round": shape in ("circle", "ring")}
            picture = encoded(draw(shape, colour))
            items.append(Item(f"{shape}/{colour}.png", image=picture, metadata=about))
            items.append(Item(f"{shape} {colour} text", text=f"a {colour} {shape} on white paper", metadata=about))
            items.append(
                Item(
                    f"{shape}-{colour}-pair",
                    image=encoded(draw(shape, colour, background="#eee")),
                    text=f"{colour} {shape}",
                    metadata=about,
                )
            )
    return items
