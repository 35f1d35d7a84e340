"""`load_image`: a file, bytes or an opened picture -> upright RGB, no larger than is needed.

Formats come from `formats`, SVG is drawn in a process of its own, and the memory of all decoding threads together is
bounded by `DECODING`.
"""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from PIL import Image, UnidentifiedImageError

from genius.errors import GeniusError, PictureError
from genius.pictures.formats import FORMATS, HEIF, NAMES, SVG
from genius.pictures.memory import Budget, give_back
from genius.pictures.tones import to_rgb

MAX_PIXELS = 64_000_000
"""Larger images are refused before they are decoded (decompression bombs)."""

DECODING = Budget(256_000_000)
"""Of all threads: one picture of 40 megapixels or more at a time, or several smaller ones."""

WORKING_SIDE = 1600
"""Encoders see at most a few hundred pixels and an index keeps at most this many: no more of a large picture is kept."""

ImageInput: TypeAlias = "Image.Image | str | Path | bytes"
"""An opened picture, a path to one, or the bytes of one."""

# Bytes of memory a pixel while decoding, measured (lab/trust/memory.py): Pillow keeps RGB in 4 bytes, and some
# decoders hold the whole picture several times. HEIF's is not measured but on the safe side.
COST = {"WEBP": 17, "AVIF": 16, "HEIF": 16}
USUAL_COST, NARROW_COST = 8, 4  # NARROW: modes of one byte a pixel
PROGRESSIVE_COST = 7  # libjpeg keeps the coefficients of the whole picture, however small it is decoded

warnings.filterwarnings("ignore", module=r"PIL\..*")  # of odd files; what matters is an error (and ours are stricter)


class TooManyPixels(PictureError):
    """A picture that is refused for its size before it is decoded."""


def load_image(source: ImageInput, *, least: int | None = None, name: str = "the image") -> Image.Image:
    """Any accepted image input -> a decoded RGB picture, transparency on white, upright.

    With `least` a large picture comes smaller: its shorter side has at least `least` pixels, and fewer than twice as
    many. Broken, empty, huge or unreadable input raises `PictureError` with one line that says which: a path by itself,
    anything else by `name`.
    """
    with loaded(source, least=least, name=name) as picture:
        return picture


@contextmanager
def loaded(source: ImageInput, *, least: int | None = None, name: str = "the image") -> Iterator[Image.Image]:
    """As `load_image`, with room in memory held until the end: for work on a picture that only leaves little of it."""
    name = str(source) if isinstance(source, str | Path) else name
    if isinstance(source, str | Path) and Path(source).suffix.lower() == SVG:
        from genius.pictures.sandbox import draw_svg  # starts processes: only where there are drawings

        yield draw_svg(Path(source))
        return
    with opened(source, name) as picture:
        if picture.width * picture.height > MAX_PIXELS:
            raise TooManyPixels(f"{name} has {picture.width} x {picture.height} pixels, more than {MAX_PIXELS:,}")
        with decoded(picture, least) as rgb:
            yield rgb


@contextmanager
def opened(source: ImageInput, name: str) -> Iterator[Image.Image]:
    """The picture with its header read and nothing decoded. Whatever goes wrong inside is a `PictureError`."""
    try:
        if isinstance(source, Image.Image):
            yield source
            return
        _know_heif()
        picture = Image.open(io.BytesIO(source) if isinstance(source, bytes) else Path(source), formats=FORMATS)
        try:
            yield picture
        finally:
            picture.close()  # the pixels too, not only the file
            give_back(decoding_cost(picture))
    except GeniusError:
        raise
    except FileNotFoundError:
        raise PictureError(f"no such image: {name}") from None
    except Image.DecompressionBombError:
        raise TooManyPixels(f"{name} has more than {MAX_PIXELS:,} pixels") from None
    except UnidentifiedImageError:
        raise PictureError(f"cannot read {name} as an image: it is no {NAMES}") from None
    except Exception as error:  # Pillow raises many kinds for broken files
        raise PictureError(f"cannot read {name} as an image: {str(error) or type(error).__name__}") from None


@functools.cache
def _know_heif() -> None:
    """Pillow reads HEIC only once its plug-in has been asked to help."""
    if HEIF:
        import pillow_heif

        pillow_heif.register_heif_opener()


@contextmanager
def decoded(picture: Image.Image, least: int | None = None) -> Iterator[Image.Image]:
    """The pixels of an opened picture, as `load_image` promises them, with room in memory held until the end."""
    kept = picture.width * picture.height * PROGRESSIVE_COST if picture.info.get("progressive") else 0
    if least is not None:
        picture.draft(None, (least, least))  # JPEG decodes at a half, a quarter or an eighth
    with DECODING.room(max(kept, decoding_cost(picture))):
        factor = max(1, min(picture.size) // least) if least is not None else 1
        picture.load()
        yield _upright(picture, to_rgb(picture, factor))


def decoding_cost(picture: Image.Image) -> int:
    """Bytes that decoding takes at its peak, roughly."""
    usual = NARROW_COST if picture.mode in ("1", "L", "P") else USUAL_COST
    return picture.width * picture.height * COST.get(picture.format or "", usual)


def _upright(picture: Image.Image, small: Image.Image) -> Image.Image:
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    turn = turns.get(picture.getexif().get(0x0112, 1))
    return small if turn is None else small.transpose(turn)
