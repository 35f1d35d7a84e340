"""The one list of picture formats: the library, the command line and the service read these and no others.

Pillow knows fifty more. Among them is PostScript, for which it would start Ghostscript, whatever the file is called.
"""

from __future__ import annotations

import importlib.util

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
