"""What an index keeps of a picture: where it lies, its bytes when it lies nowhere, and a thumbnail."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from genius.pictures.load import WORKING_SIDE
from genius.types import ImageInput

MAX_STORED = 4_000_000
"""Pictures given as bytes are kept as they are up to this size, else as a JPEG of at most `WORKING_SIDE` pixels."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The stored side of one item's image."""

    path: str | None = None  # absolute path, when it was given as one
    data: bytes | None = None  # when it was not
    thumbnail: bytes | None = None


def keep_picture(source: ImageInput, opened: Image.Image, thumbnail: int) -> Picture:
    """`opened` is `source` decoded: RGB, upright, its shorter side at least `WORKING_SIDE` or all it has.

    `thumbnail`: longest side in pixels, 0 for none.
    """
    small = _jpeg(opened, thumbnail) if thumbnail else None
    if isinstance(source, str | Path):
        return Picture(path=str(Path(source).absolute()), thumbnail=small)
    if isinstance(source, bytes) and len(source) <= MAX_STORED:
        return Picture(data=source, thumbnail=small)
    return Picture(data=_jpeg(opened, WORKING_SIDE, quality=92), thumbnail=small)


def _jpeg(picture: Image.Image, side: int, quality: int = 85) -> bytes:
    scale = side / max(picture.size)
    if scale < 1:
        width, height = (max(1, round(length * scale)) for length in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=2.0)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
