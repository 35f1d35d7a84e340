"""Pictures: which formats are read, how they become upright RGB, what reading them may cost; `exif_of`: when, where and with what
a photo was taken. Knows files and pixels; knows nothing of items, encoders or HTTP.

`load_image` is the one way in, for files of strangers too: formats come from one list, the library, the command line and the
service read these and no others. Pillow knows fifty more; among them is PostScript, for which it would start Ghostscript,
whatever the file is called. SVG is drawn in a process of its own. One `Budget` bounds the memory of all decoding threads
together; they wait for room in the order they came, so that a large picture is not passed over for ever.

Pictures are opened before they are needed, by a few threads a batch ahead, or by processes of their own. Decoding releases the
interpreter lock, so a few threads keep an encoder busy. At most two batches of results are in memory. Processes use many cores at
once, where threads in one process stand in each other's way: a worker opens a file, shrinks it to what the encoder wants and
sends the small picture back.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import io
import multiprocessing
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

from genius.errors import GeniusError, PictureError
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
"""Pillow's name of a format, and how its files are called."""

HEIF = importlib.util.find_spec("pillow_heif") is not None  # the extra `heic`: photos of Apple's phones
if HEIF:
    RASTER["HEIF"] = (".heic", ".heif")

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
"""What browsers show as it is."""

NAMES = f"PNG, JPEG, WebP, GIF, BMP, AVIF{', HEIC' if HEIF else ''} or TIFF"


LARGE = 16_000_000  # bytes: freed blocks of this size are worth giving back
_left_over = threading.Event()  # something large was decoded since the last `tidy`

MAX_PIXELS = 64_000_000
"""Larger images are refused before they are decoded (decompression bombs)."""

WORKING_SIDE = 1600
"""Encoders see at most a few hundred pixels and an index keeps at most this many: no more of a large picture is kept."""

ImageInput: TypeAlias = "Image.Image | str | Path | bytes"
"""An opened picture, a path to one, or the bytes of one."""

# Bytes of memory a pixel while decoding, measured (lab/trust/memory.py): Pillow keeps RGB in 4 bytes, and some
# decoders hold the whole picture several times. HEIF's is not measured but on the safe side.
COST = {"WEBP": 17, "AVIF": 16, "HEIF": 16}
USUAL_COST, NARROW_COST = 8, 4  # NARROW: modes of one byte a pixel
PROGRESSIVE_COST = 7  # libjpeg keeps the coefficients of the whole picture, however small it is decoded

MAKE, MODEL, CHANGED, DETAILS, PLACE = 271, 272, 306, 0x8769, 0x8825
TAKEN = 36867
DATE = re.compile(r"(\d{4}):(\d\d):(\d\d) (\d\d):(\d\d):(\d\d)")


class Budget:
    """Bytes that may be in use at a time. Something larger than all of it is let in alone."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Wait until `size` more bytes fit; they are free again at the end."""
        taken, ticket = min(size, self.capacity), object()
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
    """Return free memory to the system, if `freed` bytes are worth the milliseconds. Does nothing where libc cannot."""
    if _trim is not None and freed >= LARGE:
        _left_over.set()
        _trim(0)


def tidy() -> None:
    """After work on several pictures: give back what was made of the large ones, too."""
    if _trim is not None and _left_over.is_set():
        _left_over.clear()
        _trim(0)


DECODING = Budget(256_000_000)
"""Of all threads: one picture of 40 megapixels or more at a time, or several smaller ones."""


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
        from genius.pictures.svg import draw_svg  # starts processes: only where there are drawings

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


def exif_of(path: Path) -> dict[str, str | float]:
    """`taken` (2024-05-01T12:00:03), `camera`, `latitude`, `longitude`: those that the picture has."""
    if path.suffix.lower() == SVG:
        return {}
    try:
        with opened(path, str(path)) as picture:
            body = picture.getexif()
            details, place = dict(body.get_ifd(DETAILS)), dict(body.get_ifd(PLACE))
            plain = {key: body.get(key) for key in (MAKE, MODEL, CHANGED)}
    except PictureError:
        return {}  # said when it is encoded
    out: dict[str, str | float] = {}
    date = DATE.match(str(details.get(TAKEN) or plain[CHANGED] or ""))
    if date is not None:
        year, month, day, *clock = date.groups()
        out["taken"] = f"{year}-{month}-{day}T{':'.join(clock)}"
    make, model = (_words(plain[key]) for key in (MAKE, MODEL))
    camera = model if model.lower().startswith(make.lower()) else f"{make} {model}".strip()
    if camera:
        out["camera"] = camera
    for name, side, value, most in (("latitude", 1, 2, 90.0), ("longitude", 3, 4, 180.0)):
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
    return None if whole != whole else -whole if side.strip().upper() in ("S", "W") else whole


T = TypeVar("T")
THREADS = 4

Shrink = Callable[[Image.Image], Image.Image]


def open_ahead(
    sources: Sequence[ImageInput | None],
    open_one: Callable[[int, ImageInput], T],
    batch_size: int | Sequence[int],
    threads: int = THREADS,
) -> Iterator[tuple[int, list[T | GeniusError | None]]]:
    """(start, results) batch by batch: `open_one(position, source)` of each source, None where there is none.

    A `GeniusError` it raises stands in its place. While the caller is busy with one batch, threads open the next.
    `batch_size` is one for all batches, or that of each.
    """

    def attempt(position: int) -> T | GeniusError | None:
        source = sources[position]
        try:
            return None if source is None else open_one(position, source)
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
    """So many processes that decode pictures. `shrink` must be something that can be sent to them."""

    def __init__(self, count: int, shrink: Shrink) -> None:
        self.count, self.shrink = count, shrink
        # spawned, not forked: a fork of a process with threads or a GPU may hang
        self._pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))

    def open(self, source: ImageInput, name: str) -> Image.Image:
        """The picture as `shrink` leaves it; waits for it, so call it from as many threads as there are workers."""
        try:
            return self._pool.submit(_open, source, name, self.shrink).result()
        except BrokenProcessPool:
            raise GeniusError("a process that decodes pictures was killed (is there too little memory?): start again") from None

    def __enter__(self) -> PictureWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _open(source: ImageInput, name: str, shrink: Shrink) -> Image.Image:
    with loaded(source, least=WORKING_SIDE, name=name) as picture:
        return shrink(picture)
