"""Search: tries of codes, exact constrained beam search, early stop and re-ranking. Tensors in, tensors out."""

from genius.search.beam import beam_search
from genius.search.engine import SearchEngine
from genius.search.params import SEARCHES, BeamResult, SearchParams, SearchRequest, SearchResult
from genius.search.rerank import Int8Rows
from genius.search.trie import CodeTrie

__all__ = [
    "SEARCHES",
    "BeamResult",
    "CodeTrie",
    "Int8Rows",
    "SearchEngine",
    "SearchParams",
    "SearchRequest",
    "SearchResult",
    "beam_search",
]
