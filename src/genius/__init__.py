"""GENIUS: generative universal multimodal search.

    from genius import Genius, Index, Item
    model = Genius.from_pretrained("bundled:mini")
    index = Index("photos.genius", model)

Importing this module is fast: torch and everything heavy load on first use of a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from genius.errors import GeniusError
from genius.types import Item, Modality, Query
from genius.version import __version__

if TYPE_CHECKING:
    from genius.index import Index
    from genius.model.genius import Genius

__all__ = ["Genius", "GeniusError", "Index", "Item", "Modality", "Query", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Genius":
        from genius.model.genius import Genius

        return Genius
    if name == "Index":
        from genius.index import Index

        return Index
    raise AttributeError(f"module 'genius' has no attribute {name!r}")
