"""Search by words: LanceDB's full-text index (BM25), alone or fused with similarity by reciprocal ranks.

The full-text index is part of the table, so it has the table's versions and checksums. Rows that were written after it was made
are compared one by one until `optimize` takes them in: nothing is missed. Only writers make it (`Index.index_words`).

Reciprocal rank fusion (Cormack et al., SIGIR 2009): score(x) = sum over rankings of w / (c + rank of x). Items with the same BM25
score share a rank, so that similarity decides between them. The weight of words is whole for an item that has all words of the
query in the same form, and half for one that shares stems only. An item whose id, file name or indexed field is exactly the text
comes before all others. Knows rankings and the table; nothing of models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from genius.errors import GeniusError
from genius.index import searching
from genius.index.opened import RETRIES
from genius.index.reader import HIT_COLUMNS, Reader
from genius.index.results import Hit, Hits
from genius.index.target import MODALITIES_OF
from genius.search import SearchRequest
from genius.search.params import MAX_K
from genius.types import ContentInput, Modality, Query

if TYPE_CHECKING:
    from genius.index import Index

# c of the fusion. The published 60 suits rankings of like quality; with it and the weight 4, words of captions were found less
# often than by BM25 alone. 5 and 4 are chosen on validation queries (lab/results/hybrid.json).
RANK_CONSTANT = 5
# A hit's BM25 score grows by this share if all words of the query are in it in the same form. Chosen on the same queries.
SAME_FORM = 2.0
STEMS_SHARE = (
    0.5  # of the weight of words, for an item that has no word of the query in the same form; chosen on the same queries
)
WORD = re.compile(r"\w+")
SAME_SCORE = 1e-4  # BM25 scores that differ by less are equal
DEPTH = 100  # hits of each ranking that are fused, at least
ALWAYS = ("text", "id", "_image")  # columns that are always indexed: texts, ids (relative paths) and file names


def index_words(state: Index, fields: Sequence[str]) -> list[str]:
    """Make the full-text index, or make it anew with other fields.

    Args:
        state: The index.
        fields: Metadata fields of texts that are searched besides texts, ids and file names.

    Returns:
        All fields that are searched.

    Raises:
        GeniusError: If a field does not exist or holds no texts.
    """
    state.check_writable()
    with state.change():
        with state.lock:
            columns = state.current().reader.columns
        for name in fields:
            if name not in columns:
                raise GeniusError(f"no field {name!r}, there are: {', '.join(sorted(columns)) or 'none'}")
            if columns[name] != "text":
                raise GeniusError(f"the field {name!r} holds {columns[name]}s: only text fields can be in a full-text index")
        state.store.index_words([*ALWAYS, *fields])
    return _shown([*ALWAYS, *fields])  # nothing is read any more: what fails now must not sound as if nothing was made


def words_fields(reader: Reader) -> list[str]:
    """Fields that this version can be searched by words in; empty: it has no full-text index."""
    return _shown(reader.words_columns())


def _shown(columns: Sequence[str]) -> list[str]:
    """Of columns, those with a name that people know."""
    return sorted({name for name in columns if not name.startswith("_")})


def search_by_mode(state: Index, queries: Sequence[Query | ContentInput], requests: Sequence[SearchRequest]) -> list[Hits]:
    """The hits of each query under its own request, whatever its mode; similarity and words of one version.

    Args:
        state: The index.
        queries: Of any mode.
        requests: One for each query.

    Raises:
        GeniusError: If the index has no full-text index, or a query by words has no text.
    """
    if len(queries) != len(requests):
        raise GeniusError(f"{len(requests)} requests for {len(queries)} queries")
    for request in requests:
        searching.check(request)
    given = [Query.of(query) for query in queries]
    for query, request in zip(given, requests, strict=True):
        _check(query, request)
    if all(request.mode == "similarity" for request in requests):
        return searching.search_requests(state, given, requests)
    for _ in range(RETRIES):
        before = state.reader().version
        hits = _answer(state, given, requests)
        if state.pinned is not None or state.reader().version == before:
            break
    return hits


def _check(query: Query, request: SearchRequest) -> None:
    if request.mode == "words" and query.text is None:
        raise GeniusError("mode 'words' needs a query text")
    if request.mode == "similarity" and query.vector is not None and query.text is not None:
        raise GeniusError("a query is a vector, or made of a text and an image: use either (both with mode 'hybrid')")


def _answer(state: Index, queries: Sequence[Query], requests: Sequence[SearchRequest]) -> list[Hits]:
    similar = [number for number, request in enumerate(requests) if request.mode != "words"]
    by_similarity = [_similarity_request(requests[number]) for number in similar]
    rankings = dict(zip(similar, searching.search_requests(state, [queries[i] for i in similar], by_similarity), strict=True))
    return state.consistent(lambda: _fused(state, queries, requests, rankings))


def _similarity_request(request: SearchRequest) -> SearchRequest:
    if request.mode == "similarity":
        return request
    return replace(request, mode="similarity", k=min(max(request.k, DEPTH), MAX_K), min_score=None, diverse=False)


def _fused(state: Index, queries: Sequence[Query], requests: Sequence[SearchRequest], rankings: Mapping[int, Hits]) -> list[Hits]:
    reader = state.reader()
    out = []
    for number, (query, request) in enumerate(zip(queries, requests, strict=True)):
        similar = rankings.get(number, Hits())
        if request.mode == "similarity" or query.text is None:  # an image alone has no words to look for
            similar[request.k :] = []
            out.append(similar)
            continue
        worded, exact, shares = _by_words(reader, query, request)
        if request.mode == "hybrid" and query.target is None and similar.target is not None:
            # both rankings look for the default target, but an item that is named exactly is found, whatever it is
            modalities = MODALITIES_OF[similar.target]
            worded[:] = [hit for hit in worded if hit.modality in modalities or hit.id in exact]
        if request.mode == "words":
            out.append(_only_words(worded, exact, request))
        else:
            out.append(_fuse(similar, worded, exact, shares, request))
    return out


def _by_words(reader: Reader, query: Query, request: SearchRequest) -> tuple[Hits, set[str], dict[str, float]]:
    """The ranking by words, ids of items that the text names exactly, and `same_form` of each item by id."""
    columns = reader.words_columns()
    if not columns:
        raise GeniusError("this index has no full-text index yet: run genius optimize INDEX --words, or index.index_words()")
    assert query.text is not None
    modalities: Sequence[Modality] = ()
    if query.target is not None:
        modalities = MODALITIES_OF[query.target]
        if request.strict:
            modalities = (query.target,)
    limit = min(max(request.k, DEPTH), MAX_K)
    found = reader.words(query.text, columns, searching.condition(reader, request.where, modalities), limit)
    rows = reader.rows(list(found), HIT_COLUMNS)
    seqs = [seq for seq in found if seq in rows]
    items = searching.display(reader, [rows[seq] for seq in seqs])
    codes = reader.rows(seqs, ["_codes"])
    hits = Hits()
    exact = set()
    shares = {}
    fields = [name for name in columns if name not in ALWAYS]
    for seq, item in zip(seqs, items, strict=True):
        values = [item.metadata.get(name) for name in fields]
        share = same_form(query.text, [item.text, rows[seq]["id"], rows[seq]["_image"], *values])
        shares[item.id] = share
        score = found[seq] * (1 + SAME_FORM * share)
        hits.append(Hit(item.id, score, tuple(codes[seq]["_codes"]), item, item.modality))
        if names_exactly(query.text, rows[seq], values):
            exact.add(item.id)
    hits.sort(key=lambda hit: -hit.score)
    hits.plan = "words"
    hits.considered = len(hits)
    return hits, exact, shares


def same_form(text: str, values: Sequence[Any]) -> float:
    """Share of the words of a text that an item has in the same form; the full-text index knows stems only ("shoe", "shoes").

    Args:
        text: Of the query.
        values: The item's text, id, file name and indexed fields; others than texts are passed over.
    """
    wanted = set(WORD.findall(text.casefold()))
    there = {word for value in values if isinstance(value, str) for word in WORD.findall(value.casefold())}
    return len(wanted & there) / max(1, len(wanted))


def names_exactly(text: str, row: Mapping[str, Any], values: Sequence[Any]) -> bool:
    """Whether a text is an item's id, its file name (with or without the ending), or the value of an indexed field.

    Args:
        text: Of the query.
        row: The item's `id` and `_image`.
        values: Of its indexed fields.
    """
    folded = text.strip().casefold()
    names = [row["id"]]
    for path in (row["id"], row["_image"]):
        if path is not None:
            names += [PurePath(path).name, PurePath(path).stem]
    names += [value for value in values if isinstance(value, str)]
    return any(name.strip().casefold() == folded for name in names)


def _only_words(worded: Hits, exact: set[str], request: SearchRequest) -> Hits:
    ordered = sorted(zip(_shared_ranks(worded), worded, strict=True), key=lambda pair: (pair[1].id not in exact, pair[0]))
    hits = worded.having(replace(hit, ranks={"words": rank}) for rank, hit in ordered[: request.k])
    if request.min_score is not None:
        hits[:] = [hit for hit in hits if hit.score >= request.min_score]
    hits.fusion = {"words": 1.0}
    if not hits:
        hits.why = "nothing found: no item has these words; mode 'hybrid' or 'similarity' finds what is alike"
    return hits


def _shared_ranks(hits: Hits) -> list[int]:
    """The rank of each hit, best first; hits with the same score have the rank of the first of them."""
    ranks: list[int] = []
    for place, hit in enumerate(hits, start=1):
        if ranks and hits[place - 2].score - hit.score < SAME_SCORE:
            ranks.append(ranks[-1])
        else:
            ranks.append(place)
    return ranks


def _fuse(similar: Hits, worded: Hits, exact: set[str], shares: Mapping[str, float], request: SearchRequest) -> Hits:
    """Reciprocal rank fusion; items that are named exactly come first."""
    weights = {"similarity": 1.0, "words": request.words_weight}
    hits: dict[str, Hit] = {}
    ranks: dict[str, dict[str, int]] = {}
    scores: dict[str, float] = {}
    by_similarity = range(1, len(similar) + 1)
    for name, ranking, places in (("similarity", similar, by_similarity), ("words", worded, _shared_ranks(worded))):
        for rank, hit in zip(places, ranking, strict=True):
            hits.setdefault(hit.id, hit)
            ranks.setdefault(hit.id, {})[name] = rank
            weight = weights[name]
            if name == "words":
                weight *= STEMS_SHARE + (1 - STEMS_SHARE) * shares[hit.id]
            scores[hit.id] = scores.get(hit.id, 0.0) + weight / (RANK_CONSTANT + rank)
    ordered = sorted(scores, key=lambda item_id: (item_id not in exact, -scores[item_id]))
    fused = similar.having(replace(hits[item_id], score=scores[item_id], ranks=ranks[item_id]) for item_id in ordered)
    if request.min_score is not None:
        fused[:] = [hit for hit in fused if hit.score >= request.min_score]
    fused.fusion = {**weights, "rank_constant": RANK_CONSTANT}
    if request.diverse:
        fused = searching.apart(fused, request.k)
    fused[request.k :] = []
    if fused:
        fused.why = None
    return fused
