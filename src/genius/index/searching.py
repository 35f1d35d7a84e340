"""How an index answers: filter, engine and items of one version.

Knows how a target (`genius.index.target`), a filter and a model's defaults become one call of the engine. A query for several
modalities is searched once for each that the index holds, with the instruction of that modality, and the hits are merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError, counted
from genius.features import as_numpy
from genius.index import metadata as meta
from genius.index.cache import hash_id
from genius.index.filters import compile_where
from genius.index.folder import describe_index
from genius.index.opened import RETRIES, Live
from genius.index.reader import HIT_COLUMNS, Reader, Vanished
from genius.index.results import Hit, Hits
from genius.index.target import MODALITIES_OF, spread, with_default
from genius.index.vectors import features_of_queries
from genius.model.confidence import DEPTH, Confidence
from genius.model.embedding import Embedded
from genius.search import SearchRequest
from genius.search.arrays import Array
from genius.search.params import MAX_K
from genius.types import Item, Modality, Query

if TYPE_CHECKING:
    from genius.index import Index
    from genius.model.genius import Genius

LEAST_DEVIATION = 1e-4  # of similarities, below which a scale says nothing
WIDER = 8  # times as many hits are ranked for diverse ones


def check(request: object) -> None:
    """A request checked itself when it was made; anything else is refused here."""
    if not isinstance(request, SearchRequest):
        raise GeniusError(f"a request must be a SearchRequest, got {type(request).__name__}")


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """Queries as the model sees them."""

    z: Array  # (Q, D) what the decoder reads
    dense: Array | None = None  # (Q, D) what stored vectors are compared with; None: z
    targets: Array | None = None  # (Q,) modality codes, -1 for any
    pictured: Array | None = None  # (Q,) which have a picture: probabilities depend on it, and without it there are none
    modality: Array | None = None  # (Q,) what each consists of: the item bias depends on it, and without it there is none
    # (Q,) modality on whose scale scores are shown, because they are merged with hits of it; -1: scores stay as they are
    scale: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("z", "dense", "targets", "pictured", "modality"):
            value = getattr(self, name)
            if hasattr(value, "detach"):
                object.__setattr__(self, name, as_numpy(value))

    def take(self, rows: Sequence[int]) -> QueryVectors:
        """Some of the queries.

        Args:
            rows: Their positions.
        """
        taken: dict[str, Any] = {}
        for name in ("z", "dense", "targets", "pictured", "modality"):
            if getattr(self, name) is not None:
                taken[name] = getattr(self, name)[list(rows)]
        return replace(self, scale=tuple(self.scale[row] for row in rows), **taken)

    def check(self, width: int) -> None:
        """Refuse anything but vectors of this width, and one target for each.

        Args:
            width: Of stored vectors.
        """
        for name, vectors in (("z", self.z), ("dense", self.dense)):
            if vectors is None and name == "dense":
                continue
            if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind != "f":
                shown = getattr(vectors, "shape", type(vectors).__name__)
                raise GeniusError(f"{name} must be an array of numbers (queries, {width}), got {shown}")
            if vectors.shape[1] != width:
                raise GeniusError(f"{name} has vectors {vectors.shape[1]} wide; those of this index are {width} wide")
            if len(vectors) != len(self.z):
                raise GeniusError(f"{len(self.z)} queries but {len(vectors)} vectors to rank by")
        if self.targets is not None:
            right = isinstance(self.targets, np.ndarray) and self.targets.shape == (len(self.z),)
            right = right and self.targets.dtype.kind in "iu"
            if not right or bool(((self.targets < -1) | (self.targets > 2)).any()):
                raise GeniusError(f"targets must be {len(self.z)} whole numbers from -1 (any) to 2, one for each query")


@dataclass(frozen=True, slots=True)
class _Ranked:
    """What the engine found for one query, best first, without padding."""

    seqs: NDArray[np.int64]
    codes: NDArray[np.int64]  # (n, M)
    scores: NDArray[np.float32]
    shown_scores: NDArray[np.float32]  # the same on the scale of another modality, where hits of several are merged
    plan: str | None = None  # the plan that ran; None: there was nothing to search
    considered: int = 0
    first_bias: float = 0.0  # item bias that was taken off the score of the first hit


def search_requests(state: Index, queries: Sequence[Query], requests: Sequence[SearchRequest]) -> list[Hits]:
    """The hits of each query under its own request: one pass through the encoder for all, one search for equal requests.

    Args:
        state: The index.
        queries: Of mode "similarity".
        requests: One for each query.
    """
    if not queries:
        return []
    modalities = state.modalities()
    targeted = [with_default(query, request, modalities) for query, request in zip(queries, requests, strict=True)]
    searched: list[Query] = []
    owner: list[int] = []  # of which query each is a part
    rows: dict[SearchRequest, list[int]] = {}
    for number, (query, request) in enumerate(zip(targeted, requests, strict=True)):
        parts = [query]
        if not request.strict:
            parts = spread(parts, modalities)[0]
        rows.setdefault(_wider(request), []).extend(range(len(searched), len(searched) + len(parts)))
        searched += parts
        owner += [number] * len(parts)
    model = state.model  # of all that follows: `search` refuses what another one has embedded
    embedded = embed_queries(model, searched)
    if state.query_log is not None:
        state.query_log(as_numpy(embedded.z), as_numpy(embedded.modality), [query.target for query in searched])
    targets = np.array([target_code(query.target) for query in searched], np.int64)
    pictured = as_numpy(embedded.modality) != int(Modality.TEXT)
    vectors = QueryVectors(embedded.z, embedded.dense, targets, pictured, embedded.modality, scales(model, searched, owner))
    groups = [(vectors.take(own), request) for request, own in rows.items()]
    found: list[list[Hits]] = [[] for _ in queries]
    for own, group in zip(rows.values(), state.consistent(lambda: search(state, groups, model)), strict=True):
        for row, hits in zip(own, group, strict=True):
            found[owner[row]].append(hits)
    out = []
    for given, query, request, hits_of_parts in zip(queries, targeted, requests, found, strict=True):
        hits = _together(hits_of_parts, _wider(request).k)
        confidence = model.confidence(request.settings(model, state.about.vectors).reranker)
        hits = with_probabilities(hits, confidence, query.image is not None)
        if request.diverse:
            hits = apart(hits, request.k)
        hits.target = query.target
        defaulted = given.target is None and query.target is not None
        if defaulted and not hits and not _any_of_target(state, query.target, request.where):
            hits = search_requests(state, [given], [replace(request, any_modality=True)])[0]
        out.append(probable(hits, request.min_probability))
    if not all(out):
        counts = state.consistent(lambda: describe_index(state.path, state.about, state.reader()))["modalities"]
        for hits, request in zip(out, requests, strict=True):
            if hits:
                hits.why = None
            elif hits.why is None:
                hits.why = why_nothing(hits.target, request, counts)
    return out


def _wider(request: SearchRequest) -> SearchRequest:
    """What the engine is asked for: hits that differ are chosen among more."""
    if request.diverse:
        return replace(request, k=min(WIDER * request.k, MAX_K), diverse=False)
    return request


def _any_of_target(state: Index, target: Modality | None, where: str | None) -> bool:
    """Whether an item that is meant by `target` matches the filter."""

    def count() -> int:
        reader = state.reader()
        return reader.count(condition(reader, where, MODALITIES_OF[target or Modality.IMAGE]))

    return state.consistent(count) > 0


def condition(reader: Reader, where: str | None, modalities: Sequence[Modality] = ()) -> str | None:
    """SQL for the database; None: all items match.

    Args:
        reader: The version that is searched.
        where: Condition over metadata; None: none.
        modalities: Of the items; empty: any.
    """
    parts = []
    if where is not None:
        parts.append(f"({compile_where(where, reader.columns)})")
    if modalities:
        labels = ", ".join(f"'{modality.label}'" for modality in modalities)
        parts.append(f"modality IN ({labels})")
    return " AND ".join(parts) or None


def embed_queries(model: Genius, queries: Sequence[Query]) -> Embedded:
    """Vectors of queries: the encoder's, or their own.

    Args:
        model: Of the index.
        queries: Texts, images, or vectors.

    Raises:
        GeniusError: If a vector has another width, or a query has none and there is no encoder.
    """
    vector_rows = [row for row, query in enumerate(queries) if query.vector is not None]
    other = [row for row, query in enumerate(queries) if query.vector is None]
    if other and model.encoder is None:
        raise GeniusError(
            "this index holds vectors only and has no encoder: search it with a vector, not with a text or an image"
        )
    if not vector_rows:
        return model.embed_queries(queries)
    features = features_of_queries([queries[row] for row in vector_rows], model.config.width)
    z, dense = model.embed(features)
    parts = [Embedded(z, dense, features.modality, [], [])]
    if other:
        parts.append(model.embed_queries([queries[row] for row in other]))
    order = np.argsort([*vector_rows, *other])
    joined: dict[str, Any] = {}
    for name in ("z", "dense", "modality"):
        joined[name] = np.concatenate([as_numpy(getattr(part, name)) for part in parts])[order]
    return Embedded(**joined, kept=list(range(len(queries))), problems=[])


def target_code(target: Modality | None) -> int:
    """The modality's code, -1 for any."""
    if target is None:
        return -1
    return int(target)


def search(state: Index, groups: Sequence[tuple[QueryVectors, SearchRequest]], model: Genius | None = None) -> list[list[Hits]]:
    """The hits of every query of every group, all of one version; what they show is read once for all.

    Args:
        state: The index.
        groups: Queries and their request.
        model: That the queries were embedded by; None: nobody knows.

    Raises:
        Replaced: The stored vectors are of another model: the index was switched since the queries were embedded.
    """
    with state.lock:
        live = state.current(model=model)
        confidences = [_confidence(live, queries, request) for queries, request in groups]
        ranked = [_ranked(live, *group, confidence, state.path) for group, confidence in zip(groups, confidences, strict=True)]
        reader = live.reader
    shown = [one.seqs[: request.k] for (_, request), found in zip(groups, ranked, strict=True) for one in found]
    rows = reader.rows(np.unique(np.concatenate([np.empty(0, np.int64), *shown])), HIT_COLUMNS)
    items = dict(zip(rows, display(reader, list(rows.values())), strict=True))
    out = []
    for (queries, request), found, confidence in zip(groups, ranked, confidences, strict=True):
        pictured = queries.pictured
        if pictured is None:
            pictured = np.zeros(len(found), bool)
        out.append([_hits(one, request, items, confidence, bool(pictured[query])) for query, one in enumerate(found)])
    return out


def check_fitted(model: Genius, path: Path) -> None:
    """Refuse what needs codes and a decoder, where nothing was fitted yet.

    Args:
        model: Of the index.
        path: Of the index.

    Raises:
        GeniusError: If nothing was fitted.
    """
    if not model.fitted:
        raise GeniusError(
            f"nothing is fitted yet: so few items are all compared, and none has an ID that a decoder could generate; "
            f"genius index --fit -o {path.name} fits codes and decoder"
        )


def _confidence(live: Live, queries: QueryVectors, request: SearchRequest) -> Confidence | None:
    """What tells probabilities; None: there are none."""
    if queries.pictured is None:
        return None
    return live.model.confidence(request.settings(live.model, live.base.has_vectors).reranker)


def _ranked(
    live: Live, queries: QueryVectors, request: SearchRequest, confidence: Confidence | None, path: Path
) -> list[_Ranked]:
    """What the engine finds for each query."""
    params = request.settings(live.model, live.base.has_vectors)
    if params.generates or params.reranker == "codes":
        check_fitted(live.model, path)
    allowed = None
    if len(queries.z):
        allowed = allowed_rows(live, request.where, queries.targets)
    engine = live.engine()
    if engine is None or live.alive == 0 or not len(queries.z):
        rows = np.empty(0, np.int64)
        scores = np.empty(0, np.float32)
        return [_Ranked(rows, live.codes_of(rows), scores, scores)] * len(queries.z)
    k = request.k
    if confidence is not None:  # whether there is an answer shows in how the first hits differ
        k = max(k, DEPTH)
    result = engine.search(
        queries.z,
        k=min(k, live.alive),
        params=params,
        dense=queries.dense,
        target=queries.targets,
        allowed=allowed,
        modality=queries.modality,
    )
    background = None
    if any(scale >= 0 for scale in queries.scale):
        background = engine.background(queries.z if queries.dense is None else queries.dense)
    biases: NDArray[Any] = np.zeros(len(result.rows))  # of first hits, as far as the probability of an answer is wanted
    bias = engine.bias_for(params)
    if confidence is not None and queries.modality is not None and bias is not None:
        biases = bias.take(as_numpy(queries.modality).astype(np.int64), result.rows[:, :1])[:, 0]
    ranked = []
    for query, found in enumerate(result.rows):
        rows = found[found >= 0]
        scores = result.scores[query][found >= 0]
        shown_scores = scores
        if background is not None and queries.scale[query] >= 0 and queries.targets is not None:
            shown_scores = rescaled(scores, background[query], int(queries.targets[query]), queries.scale[query])
        considered = int(result.considered[query])
        first_bias = float(biases[query])
        ranked.append(_Ranked(live.seqs[rows], live.codes_of(rows), scores, shown_scores, result.plan, considered, first_bias))
    return ranked


def has_gap(model: Any, query: Query) -> bool:
    """Whether similarities of a query to items of different modalities lie on different scales.

    A model that was trained on pairs has learned one scale. The spaces of an encoder that a model was fitted over without pairs
    have not, nor have vectors that are given by modality. What a bare vector means, its owner knows.
    """
    if query.vector is not None:
        return isinstance(query.vector, Mapping)
    return model.knows is not None and bool(model.knows.fit)


def scales(model: Any, queries: Sequence[Query], owner: Sequence[int]) -> tuple[int, ...]:
    """The modality on whose scale the scores of each query of `spread` are shown; -1: they stay as they are."""
    parts: dict[int, list[Modality]] = {}
    for query, number in zip(queries, owner, strict=True):
        if query.target is not None:
            parts.setdefault(number, []).append(query.target)
    out = []
    for query, number in zip(queries, owner, strict=True):
        several = parts.get(number, [])
        scale = -1
        if len(several) > 1 and query.target != several[0] and has_gap(model, query):
            scale = int(several[0])
        out.append(scale)
    return tuple(out)


def rescaled(scores: NDArray[np.float32], background: NDArray[np.float32], own: int, scale: int) -> NDArray[np.float32]:
    """Scores of items of one modality on the scale of another.

    With most encoders a text is more similar to any text than to any image: without this, all items with a caption would come
    before all without. What counts is by how many standard deviations a score lies above that of items in general.

    Args:
        scores: (n,) of items of the modality `own`.
        background: (3, 2) mean and standard deviation of the query's similarity to items of each modality.
        own: Their modality.
        scale: The other one.
    """
    mean, deviation = background[own]
    wanted_mean, wanted_deviation = background[scale]
    if not np.isfinite(background[[own, scale]]).all() or deviation < LEAST_DEVIATION or wanted_deviation < LEAST_DEVIATION:
        return scores
    stretch = max(1.0, float(wanted_deviation / deviation))  # a query in a caption's own words spreads captions, and keeps that
    out: NDArray[np.float32] = wanted_mean + (scores - mean) * stretch
    return out


def _hits(
    ranked: _Ranked, request: SearchRequest, items: Mapping[int, Item], confidence: Confidence | None, has_image: bool
) -> Hits:
    hits = Hits()
    hits.plan = ranked.plan
    hits.considered = ranked.considered
    shown = [items[seq] for seq in ranked.seqs[: request.k].tolist()]
    modalities = [item.modality for item in shown]
    probabilities: Sequence[float | None] = [None] * len(shown)
    if confidence is not None:
        probabilities = confidence.of_hits(has_image, ranked.scores[: request.k], modalities).tolist()
        hits.answerable = confidence.of_answer(has_image, ranked.scores, modalities, ranked.first_bias)
    for place, item in enumerate(shown):
        score = float(ranked.shown_scores[place])
        if request.min_score is None or score >= request.min_score:
            codes = tuple(ranked.codes[place].tolist())
            hits.append(Hit(item.id, score, codes, item, item.modality, probabilities[place]))
    return hits


def allowed_rows(live: Live, where: str | None, targets: Array | None) -> NDArray[np.bool_] | None:
    """(rows,) or (Q, rows) that may be found; None for all."""
    mask = None
    if where is not None:
        mask = live.mask(compile_where(where, live.reader.columns))
    if targets is None or live.model.config.quantizer.labelled or bool((targets < 0).all()):
        return mask
    # this model's first code does not say the modality: the table does
    everything = np.ones(len(live.seqs), bool)
    if mask is not None:
        everything = mask
    modality_masks = {
        target: live.mask(f"modality = '{Modality(target).label}'") for target in set(targets.tolist()) if target >= 0
    }
    return np.stack([everything & modality_masks[target] if target >= 0 else everything for target in targets.tolist()])


def stream(state: Index, columns: Sequence[str], where: str | None = None) -> Iterator[dict[str, Any]]:
    """Rows of one version. If it is cleaned away meanwhile, the rest comes from the newest, each id once."""
    seen: set[int] = set()
    fruitless = 0
    while True:
        before = len(seen)
        repeated = before > 0
        try:
            reader = state.consistent(state.reader)
            for row in reader.stream(columns, condition(reader, where)):
                key = hash_id(row["id"])
                if not repeated or key not in seen:
                    seen.add(key)
                    yield row
            return
        except Vanished:
            if len(seen) == before:
                fruitless += 1
            else:
                fruitless = 0
            if state.pinned is not None or fruitless > RETRIES:
                raise


def display(reader: Reader, rows: list[dict[str, Any]]) -> list[Item]:
    """Items to look at: a picture that has no path is shown by its thumbnail."""
    bare = [row["_seq"] for row in rows if row["_image"] is None and row["modality"] != Modality.TEXT.label]
    small = {}
    if bare:
        small = reader.rows(bare, ["_thumbnail"])
    lacking = [seq for seq in bare if small[seq]["_thumbnail"] is None]
    full = {}
    if lacking:
        full = reader.rows(lacking, ["_image_bytes"])
    pictures = {seq: small[seq]["_thumbnail"] or full[seq]["_image_bytes"] for seq in bare}
    return [item_of_row({**row, "_image_bytes": pictures.get(row["_seq"])}) for row in rows]


def item_of_row(row: dict[str, Any]) -> Item:
    """The item that a row of the table describes.

    Args:
        row: With the columns of `HIT_COLUMNS`, and `_image_bytes` if they are wanted.
    """
    if row["_image"] is not None:
        image = row["_image"]
    else:
        image = row.get("_image_bytes")
    modality = Modality.parse(row["modality"])
    return Item(row["id"], image=image, text=row["text"], metadata=meta.load(row["_metadata"]), modality=modality)


def _together(parts: Sequence[Hits], k: int) -> Hits:
    """The hits of the parts of one query, best first."""
    if len(parts) == 1:
        return parts[0]
    whole = Hits(sorted((hit for hits in parts for hit in hits), key=lambda hit: -hit.score)[:k])
    whole.plan = parts[0].plan
    whole.considered = sum(hits.considered for hits in parts)
    sure = [hits.answerable for hits in parts if hits.answerable is not None]
    whole.answerable = max(sure, default=None)  # there is an answer if there is one of either modality
    return whole


def with_probabilities(hits: Hits, confidence: Confidence | None, has_image: bool) -> Hits:
    """The hits with probabilities that never rise down the list: those of neighbours in the wrong order are averaged.

    Args:
        hits: A whole list, of one modality or merged.
        confidence: The model's calibration; None: there are no probabilities.
        has_image: Whether the query has an image.
    """
    if confidence is None or not hits:
        return hits
    scores = [hit.score for hit in hits]
    modalities = [int(hit.modality) for hit in hits]
    probabilities = not_rising(confidence.of_hits(has_image, scores, modalities).tolist())
    for place, probability in enumerate(probabilities):
        hits[place] = replace(hits[place], probability=probability)
    return hits


def not_rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence (least squares) that never rises: pool adjacent violators."""
    means: list[float] = []
    sizes: list[int] = []
    for value in values:
        means.append(value)
        sizes.append(1)
        while len(means) > 1 and means[-1] > means[-2]:
            size = sizes[-1] + sizes[-2]
            means[-2] = (means[-1] * sizes[-1] + means[-2] * sizes[-2]) / size
            sizes[-2] = size
            means.pop()
            sizes.pop()
    return [mean for mean, size in zip(means, sizes, strict=True) for _ in range(size)]


def probable(hits: Hits, least: float | None) -> Hits:
    """The hits, or none of them where the collection holds an answer with a lower probability than `least`.

    Raises:
        GeniusError: If a least probability is given and the model has none.
    """
    if least is None or not hits:
        return hits
    if hits.answerable is None:
        raise GeniusError("min_probability needs a model with calibrated probabilities: this one, or this search, has none")
    if hits.answerable >= least:
        return hits
    nothing = hits.having([])
    nothing.why = f"nothing like that here: an answer exists with a probability of {hits.answerable:.2f}, below {least:g}"
    return nothing


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
    others = [place for place in range(len(hits)) if place not in set(chosen)]  # where there are too few subtrees
    return hits.having(hits[place] for place in sorted((chosen + others)[:k]))


def why_nothing(target: Modality | None, request: SearchRequest, counts: Mapping[str, int]) -> str:
    """Why a search found nothing, and what to do. `counts`: items of the index by modality."""
    modality_counts = ", ".join(counted(count, modality) for modality, count in counts.items() if count)
    if not modality_counts:
        return "nothing found: the index is empty; add files with genius index"
    if target is not None:
        modalities = MODALITIES_OF[target]
        if request.strict:
            modalities = (target,)
        if not any(counts.get(modality.label) for modality in modalities):
            condition = {"image": "a picture", "text": "words", "pair": "a picture and words"}[target.label]
            if request.strict:
                reason = f"is of the modality {target.label}"
            else:
                reason = f"has {condition}"
            return f"nothing found: no item {reason}, there are {modality_counts}; the target any looks for anything"
    if request.where is not None:
        condition = ""
        if target is not None:
            condition = f" of what is wanted ({target.label})"
        return f"nothing found: nothing{condition} matches the condition {request.where!r}; search without it, or change it"
    if request.min_score is not None:
        return f"nothing found: no answer scores {request.min_score:g} or more; lower the score, or leave it out"
    return f"nothing found among {modality_counts}"
