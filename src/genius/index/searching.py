"""How an index answers: filter, engine and items of one version.

Knows how a target, a filter and a model's defaults become one call of the engine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.index import metadata as meta
from genius.index.cache import hash_id
from genius.index.filters import compile_where
from genius.index.live import Live
from genius.index.reader import PAYLOAD, Reader, Vanished
from genius.index.results import Hit, Hits
from genius.index.state import RETRIES, State
from genius.model.confidence import DEPTH
from genius.search import SearchParams
from genius.types import Item, Modality

MAX_K = 10_000
MAX_RERANK = 100_000_000
FULL_SCAN = 50_000
"""A filter that lets at most this many items through is answered by re-ranking them all: as quick as decoding, and
exact. Codes were learnt without the filter, so a beam may have to look far for the few that match."""

WIDE_BEAMS, WIDE_RERANK = 200, 20_000  # at least, for a filter that lets more through


def check(k: int, min_score: float | None) -> None:
    whole("k", k, 1, MAX_K)
    if min_score is not None and (isinstance(min_score, bool) or not isinstance(min_score, int | float) or math.isnan(min_score)):
        raise GeniusError(f"min_score is not a number: {min_score!r}")


def whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise GeniusError(f"{name} must be a whole number from {low:,} to {high:,}, got {value!r}")


def check_vectors(state: State, z: Tensor, dense: Tensor | None, targets: Tensor | None) -> None:
    """Query vectors of this index's width, and one target for each."""
    for name, vectors in (("z", z), ("dense", dense)):
        if vectors is None and name == "dense":
            continue
        if not isinstance(vectors, Tensor) or vectors.ndim != 2 or not vectors.is_floating_point():
            shown = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
            raise GeniusError(f"{name} must be a tensor of numbers (queries, {state.about.width}), got {shown}")
        if vectors.shape[1] != state.about.width:
            raise GeniusError(f"{name} has vectors {vectors.shape[1]} wide; those of this index are {state.about.width} wide")
        if len(vectors) != len(z):
            raise GeniusError(f"{len(z)} queries but {len(vectors)} vectors to rank by")
    if targets is not None:
        right = isinstance(targets, Tensor) and targets.shape == (len(z),) and not targets.is_floating_point()
        if not right or bool(((targets < -1) | (targets > 2)).any()):
            raise GeniusError(f"targets must be {len(z)} whole numbers from -1 (any) to 2, one for each query")


def settings(state: State, beams: int | None, rerank: int | None, params: SearchParams | None) -> SearchParams:
    """The model's defaults, then `params`, then the two knobs."""
    if params is not None and not isinstance(params, SearchParams):
        raise GeniusError(f"params must be SearchParams, got {type(params).__name__}")
    chosen = params or SearchParams.of_model(state.model.config.search)
    if beams is not None:
        whole("beams", beams, 1, MAX_K)
        chosen = dataclasses.replace(chosen, beams=beams)
    if rerank is not None:
        whole("rerank", rerank, 0, MAX_RERANK)
        chosen = dataclasses.replace(chosen, rerank=rerank)
    whole("beams", chosen.beams, 1, MAX_K)  # a model's defaults come out of a file
    whole("rerank", chosen.rerank, 0, MAX_RERANK)
    return chosen


def for_filter(params: SearchParams, matching: int) -> SearchParams:
    """Search settings for a filter that `matching` items pass."""
    if params.reranker != "embeddings" or not params.rerank:
        return params  # the paper's own search, asked for as such
    if matching <= FULL_SCAN:
        return dataclasses.replace(params, rerank=max(params.rerank, matching))
    return dataclasses.replace(params, beams=max(params.beams, WIDE_BEAMS), rerank=max(params.rerank, WIDE_RERANK))


def search(
    state: State,
    z: Tensor,
    dense: Tensor | None,
    targets: Tensor | None,
    k: int,
    where: str | None,
    min_score: float | None,
    params: SearchParams,
    adapt: bool = True,
    pictured: Tensor | None = None,
) -> list[Hits]:
    """z (Q, D), dense (Q, D), targets (Q,) -1 for any -> the hits of every query, all of one version.

    `adapt`: search harder under a filter (`for_filter`). `pictured` (Q,): which questions have a picture; without it there are
    no probabilities.
    """
    if not z.shape[0]:
        return []
    with state.lock:
        live = state.current()
        allowed = _allowed(state, live, where, targets)
        if adapt and where is not None and allowed is not None:
            params = for_filter(params, int(allowed.sum(axis=-1).max()))
        sure = None if pictured is None else state.model.confidence(params.reranker)
        wide = k if sure is None else max(k, DEPTH)  # whether there is an answer shows in how the first hits differ
        rows, scores = _run(live, z, dense, targets if _labelled(state) else None, wide, params, allowed)
        codes = [live.codes_of(row) for row in rows]
        seqs = [live.seqs[row] for row in rows]
        reader = live.reader
    found = reader.rows(np.concatenate([part[:k] for part in seqs]), PAYLOAD)
    shown = dict(zip(found, display(reader, list(found.values())), strict=True))
    answers: list[Hits] = []
    for q in range(len(rows)):
        hits = Hits()
        kinds = [Modality.parse(found[seq]["modality"]) for seq in seqs[q][:k].tolist()]
        likely: Sequence[float | None] = [None] * len(kinds)
        if sure is not None and pictured is not None:
            likely = sure.of_hits(bool(pictured[q]), scores[q][:k], kinds).tolist()
            hits.answerable = sure.of_answer(bool(pictured[q]), scores[q], kinds)
        for i, seq in enumerate(seqs[q][:k].tolist()):
            if min_score is None or scores[q][i] >= min_score:
                code = tuple(codes[q][i].tolist())
                hits.append(Hit(shown[seq].id, float(scores[q][i]), code, shown[seq], kinds[i], likely[i]))
        answers.append(hits)
    return answers


def _labelled(state: State) -> bool:
    return state.model.config.quantizer.labelled


def _allowed(state: State, live: Live, where: str | None, targets: Tensor | None) -> NDArray[np.bool_] | None:
    """(rows,) or (Q, rows) that may be found; None for all."""
    mask = None if where is None else live.mask(compile_where(where, live.reader.columns))
    if targets is None or _labelled(state) or bool((targets < 0).all()):
        return mask
    # this model's first code does not say the modality: the table does
    whole = np.ones(len(live.seqs), bool) if mask is None else mask
    kinds = {t: live.mask(f"modality = '{Modality(t).label}'") for t in set(targets.tolist()) if t >= 0}
    return np.stack([whole & kinds[t] if t >= 0 else whole for t in targets.tolist()])


def _run(
    live: Live,
    z: Tensor,
    dense: Tensor | None,
    targets: Tensor | None,
    k: int,
    params: SearchParams,
    allowed: NDArray[np.bool_] | None,
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float32]]]:
    """Rows and scores of each query, best first, without the engine's padding."""
    engine = live.engine()
    if engine is None or live.alive == 0:
        return [np.empty(0, np.int64)] * z.shape[0], [np.empty(0, np.float32)] * z.shape[0]
    result = engine.search(z, k=min(k, live.alive), params=params, dense=dense, target=targets, allowed=allowed)
    rows, scores = result.rows.cpu().numpy(), result.scores.float().cpu().numpy()
    kept = [row >= 0 for row in rows]
    return [row[keep] for row, keep in zip(rows, kept, strict=True)], [s[keep] for s, keep in zip(scores, kept, strict=True)]


def stream(state: State, columns: Sequence[str], where: str | None = None) -> Iterator[dict[str, Any]]:
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
