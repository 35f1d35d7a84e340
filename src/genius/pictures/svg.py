"""Drawings of strangers: what of an SVG file is drawn, and what is refused.

The file is parsed and written anew, without its document type, so that the renderer sees exactly what was checked:
no entities, no references that leave the drawing, no nesting that would overflow its stack. Runs where the
renderer does, in a process of its own (`draw`).
"""

from __future__ import annotations

from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from genius.errors import GeniusError

MAX_DEPTH = 200  # the renderer calls itself at every level; drawings by hand or program have ten
MAX_BYTES = 16_000_000  # of the file, and of what its entities unfold to
PICTURES = ("image", "feImage")  # elements whose reference the renderer would open as a file


def clean_svg(data: bytes) -> str:
    """The drawing as plain XML, or a `GeniusError` that says what is wrong with it."""
    parser = expat.ParserCreate("utf-8")  # whatever the file says: the renderer reads UTF-8, too
    parser.buffer_text = parser.ordered_attributes = True
    writer = _Writer()
    parser.StartElementHandler, parser.EndElementHandler = writer.start, writer.end
    parser.CharacterDataHandler = writer.text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise GeniusError(f"not valid XML: {expat.ErrorString(error.code)}, line {error.lineno}") from None
    return "".join(writer.parts)


class _Writer:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self._depth = self._size = 0

    def _put(self, part: str) -> None:
        self._size += len(part)
        if self._size > MAX_BYTES:
            raise GeniusError(f"the drawing unfolds to more than {MAX_BYTES:,} bytes")
        self.parts.append(part)

    def start(self, name: str, attributes: list[str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GeniusError(f"its elements are nested more than {MAX_DEPTH} deep")
        kept = []
        for key, value in zip(attributes[::2], attributes[1::2], strict=True):
            if key.rpartition(":")[2] == "href" and not value.lstrip().startswith(("#", "data:")):
                if name.rpartition(":")[2] in PICTURES:
                    raise GeniusError(f"it refers to {value.strip()[:80]!r}: a drawing may hold pictures, not name files")
                continue  # a link, or a shape of another file: nothing that would be drawn
            kept.append(f" {key}={quoteattr(value)}")
        self._put(f"<{name}{''.join(kept)}>")

    def end(self, name: str) -> None:
        self._depth -= 1
        self._put(f"</{name}>")

    def text(self, text: str) -> None:
        self._put(escape(text))
