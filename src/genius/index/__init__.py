"""The index: items on disk with their codes, embeddings and metadata; add, delete, filter, search.

Knows models and the search engine; knows nothing of HTTP or the command line.
"""

from genius.index.index import Index
from genius.index.results import AddReport, Hit, Hits, PrefixView

__all__ = ["AddReport", "Hit", "Hits", "Index", "PrefixView"]
