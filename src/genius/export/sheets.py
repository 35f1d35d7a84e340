"""Small pictures of a collection on large sheets: a browser loads a few files instead of thousands. Knows pictures only."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from PIL import Image

from genius.files import write_whole

CELL = 48  # pixels of one small picture's side
COLUMNS = ROWS = 32  # of a sheet
QUALITY = 40  # of WebP


class Sheets:
    """Add previews one after another; each different one has a number, which says its sheet and place."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.count = self.sheets = self.bytes = 0
        self._known: dict[bytes, int] = {}
        self._open: Image.Image | None = None

    def add(self, preview: bytes) -> int:
        """The number of a picture, the same for the same bytes."""
        digest = hashlib.sha256(preview).digest()
        known = self._known.get(digest)
        if known is not None:
            return known
        place = self.count % (COLUMNS * ROWS)
        if self._open is None:
            self._open = Image.new("RGB", (COLUMNS * CELL, ROWS * CELL), "white")
        picture = Image.open(io.BytesIO(preview)).convert("RGB")
        picture.thumbnail((CELL - 2, CELL - 2), Image.Resampling.LANCZOS)
        left, top = place % COLUMNS * CELL, place // COLUMNS * CELL
        self._open.paste(picture, (left + (CELL - picture.width) // 2, top + (CELL - picture.height) // 2))
        self._known[digest] = self.count
        self.count += 1
        if place == COLUMNS * ROWS - 1:
            self.close()
        return self.count - 1

    def close(self) -> None:
        """Write the sheet that is not full yet."""
        if self._open is None:
            return
        sheet, path = self._open, self.directory / f"sheet{self.sheets}.webp"
        write_whole(path, lambda target: sheet.save(target, format="WEBP", quality=QUALITY, method=6))
        self.sheets, self._open = self.sheets + 1, None
        self.bytes += path.stat().st_size
