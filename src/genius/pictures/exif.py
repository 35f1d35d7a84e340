"""When, where and with what a photo was taken, from its EXIF block. Only the header is read; what is odd is left out."""

from __future__ import annotations

import re
from pathlib import Path

from genius.errors import PictureError
from genius.pictures.formats import SVG
from genius.pictures.load import opened

MAKE, MODEL, CHANGED, DETAILS, PLACE = 271, 272, 306, 0x8769, 0x8825
TAKEN = 36867
DATE = re.compile(r"(\d{4}):(\d\d):(\d\d) (\d\d):(\d\d):(\d\d)")


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
