"""Search: one collection, three plans (flat, scan, beam), re-rankers. Tensors in, tensors out."""

from genius.search.beam import beam_search
from genius.search.engine import SearchEngine
from genius.search.params import SEARCHES, SearchParams, SearchRequest
from genius.search.scan import ScanCache
from genius.search.trie import CodeTrie
from genius.search.types import BeamResult, Candidates, Plan, QueryBatch, SearchResult
from genius.search.vectors import StoredVectors, Vectors

__all__ = [
    "SEARCHES",
    "BeamResult",
    "Candidates",
    "CodeTrie",
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
