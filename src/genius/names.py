"""The words that an item carries besides its text: tags, or the name of its file where that says something.

Knows items; nothing of models or files on disk.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from genius.types import Item

NO_WORD = re.compile(
    r"(?i)^(img|dsc[nf]?|dcim|image|photo|picture|pic|pxl|scan|screenshot|file|untitled|copy|whatsapp|mvi|p|wp|gopr)?[\W\d_]*$"
)
NAMED = ("tags", "keywords", "title", "name", "label", "category")  # metadata that says what a picture shows


def name_of(item: Item) -> str | None:
    """The words of a picture's tags, or of its file name, where they say something."""
    for key in NAMED:
        value = item.metadata.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
    path = PurePath(item.image) if isinstance(item.image, (str, PurePath)) else PurePath(item.id)
    words = [w for w in re.split(r"[\W\d_]+", path.stem) if len(w) > 2]
    return None if NO_WORD.match(path.stem) or not words else " ".join(words)
