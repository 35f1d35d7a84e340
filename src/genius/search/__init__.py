"""Search: one collection, three plans (flat, scan, beam), re-rankers. Arrays in, arrays out.

Flat and scan are numpy and Faiss; torch is imported by what generates IDs, and on a GPU.
"""

from typing import TYPE_CHECKING, Any

from genius.optional import LazyPart
from genius.search.engine import SearchEngine
from genius.search.params import SEARCHES, SearchParams, SearchRequest
from genius.search.scan import ScanCache
from genius.search.trie import CodeTrie
from genius.search.types import BeamResult, Candidates, Plan, QueryBatch, SearchResult
from genius.search.vectors import StoredVectors, Vectors

if TYPE_CHECKING:
    from genius.search.beam import beam_search

__all__ = [
    "SEARCHES",
    "BeamResult",
    "Candidates",
    "CodeTrie",
    "LazyPart",
    "Plan",
    "QueryBatch",
    "ScanCache",
    "SearchEngine",
    "SearchParams",
    "SearchRequest",
    "SearchResult",
    "StoredVectors",
    "Vectors",
    "beam_search",
]


def __getattr__(name: str) -> Any:
    if name == "beam_search":
        from genius.search.beam import beam_search

        return beam_search
    raise AttributeError(f"module 'genius.search' has no attribute {name!r}")
