"""Items on disk: `Index` and what its methods return."""

from genius.index.index import Index
from genius.index.results import AddReport, Hit, Hits, PrefixView

__all__ = ["AddReport", "Hit", "Hits", "Index", "PrefixView"]
