"""Search: one collection, three plans (flat, scan, beam), re-rankers. Arrays in, arrays out.

Flat and scan are numpy and Faiss; torch is imported by what generates IDs, and on a GPU.
"""

from genius.optional import LazyPart
from genius.search.engine import Plan, SearchEngine
from genius.search.params import SEARCHES, SearchParams, SearchRequest
from genius.search.scan import ScanCache
from genius.search.trie import CodeTrie
from genius.search.types import BeamResult, Candidates, QueryBatch, SearchResult
from genius.search.vectors import StoredVectors, Vectors

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
]
