"""Reads pictures: accepted formats, upright RGB, and bounds on what decoding costs. Also reads EXIF (`exif_of`).

`load_image` is the only entry, for untrusted files too. Formats come from one list; Pillow knows fifty more, among them
PostScript, for which it would start Ghostscript. SVG is rendered in a separate process (`svg`). One `Budget` bounds the memory
of all decoding threads together.

`open_ahead` decodes with threads, one batch ahead of the encoder. `PictureWorkers` decodes in processes, for machines with
many cores. Knows files and pixels; knows nothing of items, encoders or HTTP.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import io
import math
import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, TypeVar

from PIL import Image, UnidentifiedImageError
from PIL.ExifTags import GPS, IFD, Base

from genius.errors import GeniusError, PictureError
from genius.files import open_regular
from genius.pictures.tones import to_rgb

RASTER: dict[str, tuple[str, ...]] = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "AVIF": (".avif",),
    "TIFF": (".tif", ".tiff"),
}
"""Pillow's name of a format -> suffixes of its files."""

HEIF = importlib.util.find_spec("pillow_heif") is not None  # the extra `heic`: photos of Apple's phones
HEIF_SUFFIXES = (".heic", ".heif")
HEIF_HINT = "HEIC photos need an extra: pip install 'genius-search[heic]'"
if HEIF:
    RASTER["HEIF"] = HEIF_SUFFIXES

FORMATS = tuple(RASTER)
SVG = ".svg"
IMAGE_SUFFIXES = frozenset({suffix for suffixes in RASTER.values() for suffix in suffixes} | {SVG})

WEB_TYPES = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "MPO": "image/jpeg",  # a JPEG with more pictures behind it, as phones make them
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "AVIF": "image/avif",
}
"""Formats that browsers show without conversion."""

NAMES = "PNG, JPEG, WebP, GIF, BMP, AVIF or TIFF"
if HEIF:
    NAMES = "PNG, JPEG, WebP, GIF, BMP, AVIF, HEIC or TIFF"


LARGE = 16_000_000  # bytes: freed blocks of this size are given back
_left_over = threading.Event()  # something large was decoded since the last `tidy`

MAX_PIXELS = 64_000_000
"""Larger pictures are refused before they are decoded, except JPEG, which is decoded at a half, a quarter or an eighth."""

MAX_DECODING = 520_000_000
"""Bytes. A picture that takes more to decode is refused: about 30 megapixels of WebP, 32 of AVIF or HEIC, 64 of others."""

LARGE_PIXELS = 178_900_000
"""What local indexing reads, and shrinks at once: about as much as Pillow opens. Services never ask for it."""

LARGE_DECODING = 1_431_200_000
"""Bytes that decoding such a picture may take: 8 per pixel."""

WORKING_SIDE = 1600
"""Encoders see at most a few hundred pixels and an index keeps at most this many: no more of a large picture is kept."""

ImageInput: TypeAlias = "Image.Image | str | Path | bytes"
"""An opened picture, a path to one, or the bytes of one."""

# Bytes of memory per pixel while decoding, measured (lab/results/trust/memory.json): Pillow keeps RGB in 4 bytes, and some
# decoders hold the whole picture several times. HEIF's is an upper estimate, not measured.
COST = {"WEBP": 17, "AVIF": 16, "HEIF": 16}
USUAL_COST = 8
NARROW_COST = 4  # modes of one byte per pixel
PROGRESSIVE_COST = 7  # libjpeg keeps the coefficients of the whole picture, however small it is decoded

DATE = re.compile(r"(\d{4}):(\d\d):(\d\d) (\d\d):(\d\d):(\d\d)")


class Budget:
    """Bytes that may be in use at a time, granted in order of arrival. A request larger than all of it is granted alone.

    Args:
        capacity: Bytes of all reservations together.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Wait until `size` more bytes fit; they are free again at the end.

        Args:
            size: Bytes. More than the capacity waits until nothing else is reserved.
        """
        taken = min(size, self.capacity)
        ticket = object()
        with self._changed:
            self._line.append(ticket)
            try:
                self._changed.wait_for(lambda: self._line[0] is ticket and self.used + taken <= self.capacity)
                self.used += taken
            finally:
                self._line.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self.used -= taken
                self._changed.notify_all()


def _find_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).malloc_trim  # type: ignore[no-any-return]
    except (OSError, AttributeError):  # another C library
        return None


_trim = _find_trim()


def give_back(freed: int) -> None:
    """Return free memory to the system if `freed` bytes justify the milliseconds. Does nothing where libc cannot.

    Args:
        freed: Bytes that were freed just now.
    """
    if _trim is not None and freed >= LARGE:
        _left_over.set()
        _trim(0)


def tidy() -> None:
    """Return the memory of large pictures to the system, after work on several."""
    if _trim is not None and _left_over.is_set():
        _left_over.clear()
        _trim(0)


DECODING = Budget(256_000_000)
"""Of all threads together. A picture that takes more is decoded alone."""


warnings.filterwarnings("ignore", module=r"PIL\..*")  # of odd files; what matters is an error (and ours are stricter)


class TooManyPixels(PictureError):
    """A picture that is refused for its size before it is decoded."""


def load_image(source: ImageInput, *, least: int | None = None, name: str = "the image", large: bool = False) -> Image.Image:
    """Decode a picture: RGB, upright, transparency on white.

    Args:
        source: A path, the bytes of a file, or a `PIL.Image`, which stays as it is.
        least: Shrink a large picture: its shorter side then has at least `least` pixels, and fewer than twice as many.
        name: What to call the picture in an error, where `source` is no path.
        large: With `least`: read up to `LARGE_PIXELS` of the formats that hold a picture once while decoding (not WebP, AVIF
            and HEIC), alone among all threads. For local files only: it may take more than a gigabyte.

    Returns:
        The picture. A JPEG above `MAX_PIXELS` comes at a half, a quarter or an eighth of its size.

    Raises:
        PictureError: If the file is missing, damaged, of another format or too large. The message is one line.
    """
    with loaded(source, least=least, name=name, large=large) as picture:
        return picture


@contextmanager
def loaded(
    source: ImageInput, *, least: int | None = None, name: str = "the image", large: bool = False
) -> Iterator[Image.Image]:
    """As `load_image`, with its share of the memory budget held until the end of the block.

    Args:
        source: A path, bytes, or an opened picture, which stays as it is.
        least: The shorter side may be shrunk down to this many pixels while decoding; None: all pixels are kept.
        name: What errors call it; a path is named by itself.
        large: With `least`: up to `LARGE_PIXELS`, one picture at a time.
    """
    if isinstance(source, str | Path):
        name = str(source)
        if Path(source).suffix.lower() == SVG:
            from genius.pictures.svg import draw_svg  # starts processes: only where there are drawings

            yield draw_svg(Path(source))
            return
    own = not isinstance(source, Image.Image)  # a caller's picture stays as it is
    with opened(source, name) as picture, decoded(picture, least, name, own=own, large=large) as rgb:
        yield rgb


@contextmanager
def opened(source: ImageInput, name: str) -> Iterator[Image.Image]:
    """The picture with its header read and nothing decoded. Any failure inside the block is a `PictureError`.

    Args:
        source: A path, bytes, or an opened picture, which stays open.
        name: What errors call it.
    """
    try:
        if isinstance(source, Image.Image):
            yield source
            return
        _register_heif()
        file: io.BytesIO | Path
        if isinstance(source, bytes):
            file = io.BytesIO(source)
        else:
            file = Path(source)
            open_regular(file).close()  # an index may name any path: opening a pipe would wait for ever
        picture = Image.open(file, formats=FORMATS)
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
        raise TooManyPixels(f"{name} has more than {LARGE_PIXELS:,} pixels") from None
    except UnidentifiedImageError:
        if not HEIF and Path(name).suffix.lower() in HEIF_SUFFIXES:
            raise PictureError(f"cannot read {name}: {HEIF_HINT}") from None
        raise PictureError(f"cannot read {name} as an image: it is no {NAMES}") from None
    except Exception as error:  # Pillow raises many types for broken files
        raise PictureError(f"cannot read {name} as an image: {str(error) or type(error).__name__}") from None


@functools.cache
def _register_heif() -> None:
    """Tell Pillow of its plug-in for HEIC, where it is installed."""
    if HEIF:
        import pillow_heif

        pillow_heif.register_heif_opener()


@contextmanager
def decoded(
    picture: Image.Image, least: int | None = None, name: str = "the image", *, own: bool = True, large: bool = False
) -> Iterator[Image.Image]:
    """The pixels of an opened picture, as `load_image` returns them, with memory reserved until the end of the block.

    Args:
        picture: From `opened`.
        least: The shorter side may be shrunk down to this many pixels while decoding; None: all pixels are kept.
        name: What errors call it.
        own: False for a caller's picture, which stays as it is.
        large: With `least`: up to `LARGE_PIXELS`, one picture at a time.

    Raises:
        TooManyPixels: It would take too much memory.
    """
    kept = 0
    if picture.info.get("progressive"):
        kept = picture.width * picture.height * PROGRESSIVE_COST
    if own:
        _scale_in_decoder(picture, least)
    width, height = picture.size
    pixels = MAX_PIXELS
    most = MAX_DECODING
    if large and least is not None and picture.format not in COST:
        pixels = LARGE_PIXELS
        most = LARGE_DECODING
    if width * height > pixels:
        raise TooManyPixels(f"{name} has {width} x {height} pixels, more than {pixels:,}")
    cost = max(kept, decoding_cost(picture))
    if cost > most:
        limit = f"{most // 10**6} MB"
        raise TooManyPixels(f"{name} takes more than {limit} to decode ({picture.format}, {width} x {height} pixels)")
    factor = 1
    if least is not None:
        factor = max(1, min(width, height) // least)
    with DECODING.reserve(cost):
        picture.load()
        yield _upright(picture, to_rgb(picture, factor))


def _scale_in_decoder(picture: Image.Image, least: int | None) -> None:
    """Let JPEG decode at a half, a quarter or an eighth of its size. Other formats cannot."""
    pixels = picture.width * picture.height
    if least is not None:
        picture.draft(None, (least, least))
    elif pixels > MAX_PIXELS:
        scale = 0.5 * (MAX_PIXELS / pixels) ** 0.5
        picture.draft(None, (int(picture.width * scale), int(picture.height * scale)))


def decoding_cost(picture: Image.Image) -> int:
    """Estimate of the bytes that decoding takes at its peak.

    Args:
        picture: Opened, not decoded.
    """
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
    turn = turns.get(picture.getexif().get(Base.Orientation, 1))
    if turn is None:
        return small
    return small.transpose(turn)


def exif_of(path: Path) -> dict[str, str | float]:
    """Read when, where and with what a photo was taken.

    Args:
        path: A picture file.

    Returns:
        `taken` (2024-05-01T12:00:03), `camera`, `latitude` and `longitude`, as far as the file has them.
    """
    if path.suffix.lower() == SVG:
        return {}
    try:
        with opened(path, str(path)) as picture:
            body = picture.getexif()
            tags = {key: body.get(key) for key in (Base.Make, Base.Model, Base.DateTime)}
            details = dict(body.get_ifd(IFD.Exif))
            place = dict(body.get_ifd(IFD.GPSInfo))
    except PictureError:
        return {}  # reported when it is encoded
    out: dict[str, str | float] = {}
    date = DATE.match(str(details.get(Base.DateTimeOriginal) or tags[Base.DateTime] or ""))
    if date is not None:
        year, month, day, *clock = date.groups()
        out["taken"] = f"{year}-{month}-{day}T{':'.join(clock)}"
    make, model = (_words(tags[key]) for key in (Base.Make, Base.Model))
    camera = model
    if not model.lower().startswith(make.lower()):
        camera = f"{make} {model}".strip()
    if camera:
        out["camera"] = camera
    latitude = ("latitude", GPS.GPSLatitudeRef, GPS.GPSLatitude, 90.0)
    longitude = ("longitude", GPS.GPSLongitudeRef, GPS.GPSLongitude, 180.0)
    for name, side, value, most in (latitude, longitude):
        degrees = _degrees(place.get(value), str(place.get(side, "")))
        if degrees is not None and abs(degrees) <= most:
            out[name] = round(degrees, 6)
    return out


def _words(value: object) -> str:
    return " ".join("".join(c for c in str(value or "") if c.isprintable()).split())[:80]


def _degrees(value: object, side: str) -> float | None:
    """Degrees, minutes and seconds as one number; south and west are below zero."""
    try:
        degrees, minutes, seconds = (float(part) for part in value)  # type: ignore[attr-defined]
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    whole = degrees + minutes / 60 + seconds / 3600
    if math.isnan(whole):
        return None
    if side.strip().upper() in ("S", "W"):
        return -whole
    return whole


T = TypeVar("T")
THREADS = 4

Shrink = Callable[[Image.Image], Image.Image]


def open_ahead(
    sources: Sequence[ImageInput | None],
    open_one: Callable[[int, ImageInput], T],
    batch_size: int | Sequence[int],
    threads: int = THREADS,
) -> Iterator[tuple[int, list[T | GeniusError | None]]]:
    """Open pictures with threads, one batch ahead of the caller.

    Args:
        sources: Pictures; None where an item has none.
        open_one: Called with the position and the source, in a thread.
        batch_size: Of all batches, or one size per batch.
        threads: Number of threads.

    Yields:
        The position of a batch's first source, and its results. A `GeniusError` that `open_one` raises takes the result's
        place.
    """

    def attempt(position: int) -> T | GeniusError | None:
        source = sources[position]
        if source is None:
            return None
        try:
            return open_one(position, source)
        except GeniusError as error:
            return error

    if isinstance(batch_size, int):
        batch_size = [min(batch_size, len(sources) - start) for start in range(0, len(sources), batch_size)]
    batches = [range(end - size, end) for size, end in zip(batch_size, accumulate(batch_size), strict=True)]
    if len(sources) == 1 or all(source is None for source in sources):
        for batch in batches:  # nothing to wait for: no threads
            yield batch.start, [attempt(position) for position in batch]
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="genius-images") as pool:
        ahead: deque[tuple[int, list[Future[T | GeniusError | None]]]] = deque()
        try:
            for batch in batches:
                ahead.append((batch.start, [pool.submit(attempt, position) for position in batch]))
                if len(ahead) == 2:
                    first, futures = ahead.popleft()
                    yield first, [future.result() for future in futures]
            while ahead:
                first, futures = ahead.popleft()
                yield first, [future.result() for future in futures]
        finally:  # an error or an abandoned loop: do not open what nobody waits for
            pool.shutdown(wait=True, cancel_futures=True)
            ahead.clear()
            tidy()


class PictureWorkers:
    """Processes that decode pictures.

    Args:
        count: Number of processes.
        shrink: Reduces a picture to what the encoder needs; must pickle.
    """

    def __init__(self, count: int, shrink: Shrink) -> None:
        self.count = count
        self.shrink = shrink
        import multiprocessing

        # spawned, not forked: a fork of a process with threads or a GPU may hang
        self._pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))

    def open(self, source: ImageInput, name: str) -> Image.Image:
        """Decode and shrink one picture. Blocks, so call it from as many threads as there are processes.

        Args:
            source: A path, bytes or an opened picture.
            name: What errors call it.
        """
        try:
            return self._pool.submit(_open, source, name, self.shrink).result()
        except BrokenProcessPool:
            raise GeniusError("a process that decodes images was killed, possibly for lack of memory: run it again") from None

    def __enter__(self) -> PictureWorkers:
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def open_all(sources: Sequence[ImageInput], shrink: Shrink) -> list[Image.Image]:
    """Decode and shrink some pictures, one after the other. A process that does only this needs no torch.

    Args:
        sources: Paths, bytes or opened pictures.
        shrink: Reduces a picture to what the encoder needs.
    """
    return [_open(source, "an image", shrink) for source in sources]


def _open(source: ImageInput, name: str, shrink: Shrink) -> Image.Image:
    with loaded(source, least=WORKING_SIDE, name=name, large=True) as picture:
        return shrink(picture)
