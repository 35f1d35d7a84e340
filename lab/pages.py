"""Lines of generated pages below 120 characters: prose is wrapped; tables, code, headings and images stay as they are."""

from __future__ import annotations

import re
import textwrap

WIDTH = 118
MARKER = re.compile(r"^(\s*)(?:[-*]|\d+\.)\s+")
KEPT = ("|", "#", "<", "!", "```", "    ")


def wrap_prose(text: str) -> str:
    """Wrap every paragraph and list item of a Markdown page that has a line above 120 characters."""
    out: list[str] = []
    block: list[str] = []
    in_code = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        stays = in_code or fence or not line.strip() or line.startswith(KEPT)
        if stays or MARKER.match(line):
            out += _wrapped(block)
            block = []
        if stays:
            out.append(line)
        else:
            block.append(line)
        if fence:
            in_code = not in_code
    return "\n".join([*out, *_wrapped(block)])


def _wrapped(block: list[str]) -> list[str]:
    if all(len(line) <= 120 for line in block):
        return block
    marker = MARKER.match(block[0])
    first = ""
    if marker is not None:
        first = marker[0]
    words = " ".join(line.strip() for line in block)[len(first.lstrip()) :]
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
