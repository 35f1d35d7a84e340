"""How an index answers: filter, engine and items of one version.

Knows how a target, a filter and a model's defaults become one call of the engine. A target is what people mean by it: an image is
anything with a picture, a text anything with words, a pair has both. A question for several kinds is asked once for each that the
index holds, in the words of that kind, and the answers are put together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError, counted
from genius.index import metadata as meta
from genius.index.cache import hash_id
from genius.index.filters import compile_where
from genius.index.folder import describe
from genius.index.opened import RETRIES, Live, OpenIndex
from genius.index.reader import PAYLOAD, Reader, Vanished
from genius.index.results import Hit, Hits
from genius.index.writing import OnError, check_ids, check_missing
from genius.model.config import DEPTH, Confidence
from genius.search import SearchParams, SearchRequest
from genius.search.params import MAX_K
from genius.types import ContentInput, Item, Modality, Query

FULL_SCAN = 50_000
"""A filter that lets at most this many items through is answered by re-ranking them all: as quick as decoding, and
exact. Codes were learnt without the filter, so a beam may have to look far for the few that match."""

WIDER = 8  # times as many answers are looked at for ones that differ
MASK_BYTES = 32 << 20  # of filters that one search of the engine takes at once: a byte an item and query
WIDE_BEAMS, WIDE_RERANK = 200, 20_000  # at least, for a filter that lets more through

MEANT = {
    Modality.IMAGE: (Modality.IMAGE, Modality.PAIR),
    Modality.TEXT: (Modality.TEXT, Modality.PAIR),
    Modality.PAIR: (Modality.PAIR,),
}


def check(request: object) -> None:
    """A request checked itself when it was made; anything else is refused here."""
    if not isinstance(request, SearchRequest):
        raise GeniusError(f"a request must be a SearchRequest, got {type(request).__name__}")


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """Questions as the model sees them."""

    z: Tensor  # (Q, D) what the decoder reads
    dense: Tensor | None = None  # (Q, D) what stored vectors are compared with; None: z
    targets: Tensor | None = None  # (Q,) modality codes, -1 for any
    pictured: Tensor | None = None  # (Q,) which have a picture: probabilities depend on it, and without it there are none

    def check(self, width: int) -> None:
        """Vectors of this width, and one target for each."""
        for name, vectors in (("z", self.z), ("dense", self.dense)):
            if vectors is None and name == "dense":
                continue
            if not isinstance(vectors, Tensor) or vectors.ndim != 2 or not vectors.is_floating_point():
                shown = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
                raise GeniusError(f"{name} must be a tensor of numbers (queries, {width}), got {shown}")
            if vectors.shape[1] != width:
                raise GeniusError(f"{name} has vectors {vectors.shape[1]} wide; those of this index are {width} wide")
            if len(vectors) != len(self.z):
                raise GeniusError(f"{len(self.z)} queries but {len(vectors)} vectors to rank by")
        if self.targets is not None:
            right = isinstance(self.targets, Tensor) and self.targets.shape == (len(self.z),)
            right = right and not self.targets.is_floating_point()
            if not right or bool(((self.targets < -1) | (self.targets > 2)).any()):
                raise GeniusError(f"targets must be {len(self.z)} whole numbers from -1 (any) to 2, one for each query")


def for_filter(params: SearchParams, matching: int) -> SearchParams:
    """Search settings for a filter that `matching` items pass."""
    if params.reranker != "embeddings" or not params.rerank:
        return params  # the paper's own search, asked for as such
    if matching <= FULL_SCAN:
        return replace(params, rerank=max(params.rerank, matching))
    return replace(params, beams=max(params.beams, WIDE_BEAMS), rerank=max(params.rerank, WIDE_RERANK))


Found = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Rows of a query and their scores, best first."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the queries of one request are searched."""

    asked: QueryVectors
    request: SearchRequest
    params: SearchParams
    allowed: NDArray[np.bool_] | None
    sure: Confidence | None

    @property
    def k(self) -> int:
        """Whether there is an answer shows in how the first hits differ."""
        return self.request.k if self.sure is None else max(self.request.k, DEPTH)

    @property
    def exact(self) -> bool:
        """Whether all that the filter lets through are compared: a larger `rerank` then changes nothing."""
        matching = 0 if self.allowed is None else int(np.count_nonzero(self.allowed))
        return self.params.reranker == "embeddings" and matching <= self.params.rerank

    @property
    def filtered(self) -> bool:
        return self.request.adaptive and self.request.where is not None and self.allowed is not None and self.allowed.ndim == 1


@dataclass(frozen=True, slots=True)
class _Ranked:
    """What the engine found for the queries of one request."""

    plan: _Plan
    codes: list[NDArray[np.int64]]
    seqs: list[NDArray[np.int64]]
    scores: list[NDArray[np.float32]]


def answer(state: OpenIndex, queries: Sequence[Query | ContentInput], requests: Sequence[SearchRequest]) -> list[Hits]:
    """The hits of each query under its own request: one pass through the encoder for all, one search for equal requests."""
    if len(queries) != len(requests):
        raise GeniusError(f"{len(requests)} requests for {len(queries)} queries")
    alike: dict[SearchRequest, list[int]] = {}
    for place, request in enumerate(requests):
        check(request)
        if request.diverse:  # answers that differ are chosen among more
            request = replace(request, k=min(WIDER * request.k, MAX_K), diverse=False)
        alike.setdefault(request, []).append(place)
    if not queries:
        return []
    given = [Query.of(query) for query in queries]
    groups = []
    for request, places in alike.items():
        own = [given[place] for place in places]
        groups.append((request, places, *((own, range(len(own))) if request.strict else spread(own, state.kinds()))))
    asked = [query for *_, some, _ in groups for query in some]
    embedded = state.model.embed_queries(asked)
    targets = torch.tensor([-1 if query.target is None else int(query.target) for query in asked])
    pictured = embedded.modality != Modality.TEXT
    parts, first = [], 0
    for request, _, some, _ in groups:
        at = slice(first, first + len(some))
        vectors = QueryVectors(embedded.z[at], embedded.dense[at], targets[at], pictured[at])
        vectors.check(state.about.width)
        parts.append((vectors, request))
        first += len(some)
    found = state.consistent(lambda: search(state, parts))
    answers: dict[int, Hits] = {}
    for (request, places, _, owner), hits in zip(groups, found, strict=True):
        answers.update(zip(places, gather(hits, owner, request.k), strict=True))
    out = [apart(answers[i], asks.k) if asks.diverse else answers[i] for i, asks in enumerate(requests)]
    if not all(out):
        counts = state.consistent(lambda: describe(state.path, state.about, state.reader()))["modalities"]
        for one, query, request in zip(out, given, requests, strict=True):
            one.why = None if one else why_nothing(query.target, request, counts)
    return out


def search(state: OpenIndex, groups: Sequence[tuple[QueryVectors, SearchRequest]]) -> list[list[Hits]]:
    """The hits of every query of every group, all of one version; what they show is read once for all."""
    with state.lock:
        live = state.current()
        plans = [_plan(state, live, asked, request) for asked, request in groups]
        ranked = [_ranked(live, plan, found) for plan, found in zip(plans, _run(live, plans), strict=True)]
        reader = live.reader
    wanted = [seqs[: one.plan.request.k] for one in ranked for seqs in one.seqs]
    found = reader.rows(np.unique(np.concatenate([np.empty(0, np.int64), *wanted])), PAYLOAD)
    shown = dict(zip(found, display(reader, list(found.values())), strict=True))
    kinds = {seq: Modality.parse(row["modality"]) for seq, row in found.items()}
    return [[_hits(one, q, shown, kinds) for q in range(len(one.seqs))] for one in ranked]


def _plan(state: OpenIndex, live: Live, asked: QueryVectors, request: SearchRequest) -> _Plan:
    params = request.settings(state.model)
    allowed = _allowed(state, live, request.where, asked.targets) if len(asked.z) else None
    if request.adaptive and request.where is not None and allowed is not None:
        params = for_filter(params, int(np.count_nonzero(allowed, axis=-1).max()))
    return _Plan(asked, request, params, allowed, None if asked.pictured is None else state.model.confidence(params.reranker))


def _ranked(live: Live, plan: _Plan, found: Sequence[Found]) -> _Ranked:
    rows = [own for own, _ in found]
    return _Ranked(plan, [live.codes_of(own) for own in rows], [live.seqs[own] for own in rows], [score for _, score in found])


def _hits(one: _Ranked, q: int, shown: dict[int, Item], known: dict[int, Modality]) -> Hits:
    hits, sure, request, scores = Hits(), one.plan.sure, one.plan.request, one.scores[q]
    k, seqs, pictures = request.k, one.seqs[q][: request.k].tolist(), one.plan.asked.pictured
    kinds = [known[seq] for seq in seqs]
    likely: Sequence[float | None] = [None] * len(kinds)
    if sure is not None and pictures is not None:
        pictured = bool(pictures[q])
        likely = sure.of_hits(pictured, scores[:k], kinds).tolist()
        hits.answerable = sure.of_answer(pictured, scores, kinds)
    for i, seq in enumerate(seqs):
        if request.min_score is None or scores[i] >= request.min_score:
            code = tuple(one.codes[q][i].tolist())
            hits.append(Hit(shown[seq].id, float(scores[i]), code, shown[seq], kinds[i], likely[i]))
    return hits


def _allowed(state: OpenIndex, live: Live, where: str | None, targets: Tensor | None) -> NDArray[np.bool_] | None:
    """(rows,) or (Q, rows) that may be found; None for all."""
    mask = None if where is None else live.mask(compile_where(where, live.reader.columns))
    if targets is None or state.model.config.quantizer.labelled or bool((targets < 0).all()):
        return mask
    # this model's first code does not say the modality: the table does
    whole = np.ones(len(live.seqs), bool) if mask is None else mask
    kinds = {t: live.mask(f"modality = '{Modality(t).label}'") for t in set(targets.tolist()) if t >= 0}
    return np.stack([whole & kinds[t] if t >= 0 else whole for t in targets.tolist()])


def _run(live: Live, plans: Sequence[_Plan]) -> list[list[Found]]:
    """What each plan finds. Plans that differ in nothing but their filter are one search of the engine, each query with its own
    mask, while the masks are small: then they share the decoder's row, or the reading of all vectors. Where all that a filter
    lets through are compared, it does not matter how many that are."""
    together: dict[object, list[int]] = {}
    for place, plan in enumerate(plans):
        alike = plan.filtered and live.model.device.type == "cpu" and len(live.seqs) * len(plan.asked.z) <= MASK_BYTES
        key = (plan.k, replace(plan.params, rerank=0) if plan.exact else plan.params, plan.exact) if alike else place
        together.setdefault(key, []).append(place)
    found: dict[int, list[Found]] = {}
    for places in together.values():
        while places:
            room = max(1, MASK_BYTES // max(len(live.seqs) * len(plans[places[0]].asked.z), 1))
            some, places = places[:room], places[room:]
            answers = _run_one(live, plans[some[0]] if len(some) == 1 else _merged([plans[place] for place in some]))
            for place in some:
                found[place], answers = answers[: len(plans[place].asked.z)], answers[len(plans[place].asked.z) :]
    return [found[place] for place in range(len(plans))]


def _merged(plans: Sequence[_Plan]) -> _Plan:
    """One plan for all: they have one `rerank`, or each compares all that it lets through, and the largest serves everyone."""
    first, parts = plans[0], [plan.asked for plan in plans]
    vectors = QueryVectors(
        torch.cat([part.z for part in parts]),
        torch.cat([part.z if part.dense is None else part.dense for part in parts]),
        torch.cat([torch.full((len(part.z),), -1) if part.targets is None else part.targets for part in parts]),
    )
    masks = [(plan.allowed, len(plan.asked.z)) for plan in plans if plan.allowed is not None]
    allowed = np.concatenate([np.broadcast_to(mask, (queries, len(mask))) for mask, queries in masks])
    params = replace(first.params, rerank=max(plan.params.rerank for plan in plans))
    return replace(first, asked=vectors, allowed=allowed, params=params)


def _run_one(live: Live, plan: _Plan) -> list[Found]:
    """Rows and scores of each query, best first, without the engine's padding."""
    engine, asked = live.engine(), plan.asked
    if engine is None or live.alive == 0 or not len(asked.z):
        return [(np.empty(0, np.int64), np.empty(0, np.float32))] * len(asked.z)
    known = asked.targets if live.model.config.quantizer.labelled else None
    k = min(plan.k, live.alive)
    result = engine.search(asked.z, k=k, params=plan.params, dense=asked.dense, target=known, allowed=plan.allowed)
    rows, scores = result.rows.cpu().numpy(), result.scores.float().cpu().numpy()
    return [(row[row >= 0], score[row >= 0]) for row, score in zip(rows, scores, strict=True)]


def columns_of(state: OpenIndex, wanted: list[str], columns: Sequence[str], missing: OnError) -> dict[str, dict[str, Any]]:
    """Table columns of items by id, of one version."""
    with state.lock:
        live = state.current()
        rows = live.find(check_ids(wanted))
        check_missing(wanted, rows, missing)
        seqs = {item_id: int(live.seqs[row]) for item_id, row in rows.items()}
        reader = live.reader
    found = reader.rows(list(seqs.values()), columns)
    return {item_id: found[seq] for item_id, seq in seqs.items()}


def stream(state: OpenIndex, columns: Sequence[str], where: str | None = None) -> Iterator[dict[str, Any]]:
    """Rows of one version. If it is cleaned away meanwhile, the rest comes from the newest, each id once."""
    seen: set[int] = set()
    fruitless = 0
    while True:
        before = len(seen)
        again = before > 0
        try:
            reader = state.reader()
            sql = None if where is None else compile_where(where, reader.columns)
            for row in reader.stream(columns, sql):
                key = hash_id(row["id"])
                if not again or key not in seen:
                    seen.add(key)
                    yield row
            return
        except Vanished:
            fruitless = fruitless + 1 if len(seen) == before else 0
            if state.pinned is not None or fruitless > RETRIES:
                raise


def display(reader: Reader, rows: list[dict[str, Any]]) -> list[Item]:
    """Items to look at: a picture that has no path is shown by its thumbnail."""
    bare = [row["_seq"] for row in rows if row["_image"] is None and row["modality"] != Modality.TEXT.label]
    small = reader.rows(bare, ["_thumbnail"]) if bare else {}
    lacking = [seq for seq in bare if small[seq]["_thumbnail"] is None]
    full = reader.rows(lacking, ["_image_bytes"]) if lacking else {}
    pictures = {seq: small[seq]["_thumbnail"] or full[seq]["_image_bytes"] for seq in bare}
    return [to_item({**row, "_image_bytes": pictures.get(row["_seq"])}) for row in rows]


def to_item(row: dict[str, Any]) -> Item:
    image = row["_image"] if row["_image"] is not None else row.get("_image_bytes")
    return Item(row["id"], image=image, text=row["text"], metadata=meta.load(row["_metadata"]))


def wanted_kind(target: Modality | str | int | None, modality: Modality | str | int | None) -> Modality | None:
    """What is looked for: `target` as people mean it, or exactly a `modality`; one of them says it, or neither."""
    if target is not None and modality is not None:
        raise GeniusError("target and modality both say what is wanted: use one of them")
    wanted = modality if target is None else target
    return None if wanted is None else Modality.parse(wanted)


def spread(queries: Sequence[Query], there: Collection[Modality]) -> tuple[list[Query], list[int]]:
    """One query for each kind that is wanted and there, and which of `queries` each belongs to; `there`: kinds in the index."""
    asked, owner = [], []
    for number, query in enumerate(queries):
        kinds: Sequence[Modality | None] = [None]
        if query.target is not None:
            kinds = [kind for kind in MEANT[query.target] if kind in there] or [query.target]
        asked += [replace(query, target=kind) for kind in kinds]
        owner += [number] * len(kinds)
    return asked, owner


def gather(answers: Sequence[Hits], owner: Sequence[int], k: int) -> list[Hits]:
    """The hits of the queries that `spread` was given, best first."""
    parts: list[list[Hits]] = [[] for _ in range(max(owner, default=-1) + 1)]
    for hits, number in zip(answers, owner, strict=True):
        parts[number].append(hits)
    return [_together(own, k) if len(own) > 1 else own[0] for own in parts]


def _together(parts: Sequence[Hits], k: int) -> Hits:
    whole = Hits(sorted((hit for hits in parts for hit in hits), key=lambda hit: -hit.score)[:k])
    sure = [hits.answerable for hits in parts if hits.answerable is not None]
    whole.answerable = max(sure, default=None)  # there is an answer if there is one of either kind
    return whole


def apart(hits: Hits, k: int) -> Hits:
    """The best hit of each of k subtrees: those of the shortest prefix of codes that tells at least k of them apart."""
    if len(hits) <= k:
        return hits
    chosen: list[int] = []
    for depth in range(1, len(hits[0].codes) + 1):
        firsts: dict[tuple[int, ...], int] = {}
        for place, hit in enumerate(hits):
            firsts.setdefault(hit.codes[:depth], place)
        chosen = sorted(firsts.values())
        if len(chosen) >= k:
            break
    rest = [place for place in range(len(hits)) if place not in set(chosen)]  # where there are too few subtrees
    out = Hits(hits[place] for place in sorted((chosen + rest)[:k]))
    out.answerable = hits.answerable
    return out


def why_nothing(target: Modality | None, request: SearchRequest, counts: Mapping[str, int]) -> str:
    """Why a search found nothing, and what to do. `counts`: items of the index by kind."""
    held = ", ".join(counted(count, kind) for kind, count in counts.items() if count)
    if not held:
        return "nothing found: the index is empty; add files with genius index"
    if target is not None:
        kinds = (target,) if request.strict else MEANT[target]
        if not any(counts.get(kind.label) for kind in kinds):
            wanted = {"image": "a picture", "text": "words", "pair": "a picture and words"}[target.label]
            what = f"is of the kind {target.label}" if request.strict else f"has {wanted}"
            return f"nothing found: no item {what}, there are {held}; leave the target out to look for anything"
    if request.where is not None:
        wanted = f" of what is wanted ({target.label})" if target is not None else ""
        return f"nothing found: nothing{wanted} matches the condition {request.where!r}; search without it, or change it"
    if request.min_score is not None:
        return f"nothing found: no answer scores {request.min_score:g} or more; lower the score, or leave it out"
    return f"nothing found among {held}"
