"""GENIUS: generative universal multimodal search.

    from genius import Genius, Index, Item
    model = Genius.from_pretrained("bundled:mini")
    index = Index("photos.genius", model)

Importing this module is fast: torch and other heavy modules load on first use of a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from genius.errors import GeniusError
from genius.optional import import_torch
from genius.version import __version__

if TYPE_CHECKING:
    from genius.index import Index
    from genius.model.genius import Genius
    from genius.types import Item, Modality, Query

__all__ = ["Genius", "GeniusError", "Index", "Item", "Modality", "Query", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Genius":
        import_torch("genius.Genius")
        from genius.model.genius import Genius

        return Genius
    if name in ("Item", "Modality", "Query"):
        from genius import types

        return getattr(types, name)
    if name == "Index":
        from genius.index import Index

        return Index
    raise AttributeError(f"module 'genius' has no attribute {name!r}")
