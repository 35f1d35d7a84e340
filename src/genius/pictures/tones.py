"""Converts a decoded picture of any mode to 8-bit RGB on white, optionally reduced by an integer factor.

Works in bands, so memory holds the decoded picture, the reduced one and a band. 16-bit and float pictures are scaled to 8 bits;
Pillow's own conversion would clip them.
"""

from __future__ import annotations

import math

from PIL import Image

BAND = 2_000_000  # pixels
DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")  # modes with more than 8 bits per pixel


def to_rgb(picture: Image.Image, factor: int = 1) -> Image.Image:
    """An RGB picture, each side divided by `factor` (rounded up): every pixel is the mean of `factor` x `factor`."""
    low = 0.0
    high = 255.0
    if picture.mode in DEEP:
        low, high = _range(picture)
    width, height = picture.size
    rows = max(1, BAND // (width * factor)) * factor
    if rows >= height:
        return _reduced(_flat(picture, low, high), factor)
    small = Image.new("RGB", (math.ceil(width / factor), math.ceil(height / factor)))
    for top in range(0, height, rows):
        band = picture.crop((0, top, width, min(top + rows, height)))
        small.paste(_reduced(_flat(band, low, high), factor), (0, top // factor))
    return small


def _reduced(picture: Image.Image, factor: int) -> Image.Image:
    if factor == 1:
        return picture
    return picture.reduce(factor)


def _flat(picture: Image.Image, low: float, high: float) -> Image.Image:
    if picture.mode in DEEP:
        picture = _eight_bits(picture, low, high)
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return picture.convert("RGB")


def _range(picture: Image.Image) -> tuple[float, float]:
    """What is black and what is white in a picture of more than 8 bits: the range its numbers are meant for.

    Integers within 16 bits are taken as such and floats within 0..1 or 0..255 too; anything else (elevations, say) is
    spread from its own least to its own greatest value.
    """
    import numpy as np

    if picture.mode.startswith("I;16"):
        return 0.0, 65535.0
    least = math.inf
    most = -math.inf
    rows = max(1, BAND // picture.width)
    for top in range(0, picture.height, rows):  # in bands, and not by getextrema: that one trips over NaN
        values = np.asarray(picture.crop((0, top, picture.width, min(top + rows, picture.height))))
        finite = values[np.isfinite(values)]
        if finite.size:
            least = min(least, float(finite.min()))
            most = max(most, float(finite.max()))
    ranges: tuple[float, ...] = (1.0, 255.0)
    if picture.mode == "I":
        ranges = (65535.0,)
    for white in ranges:
        if least >= 0 and most <= white:
            return 0.0, white
    if most > least:
        return least, most
    return 0.0, 1.0


def _eight_bits(picture: Image.Image, low: float, high: float) -> Image.Image:
    import numpy as np

    values = np.nan_to_num(np.asarray(picture, np.float32), nan=low, posinf=high, neginf=low)
    scaled = np.clip((values - low) * (255.0 / (high - low)), 0, 255)
    return Image.fromarray((scaled + 0.5).astype(np.uint8))
