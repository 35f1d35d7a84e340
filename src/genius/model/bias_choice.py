"""How strongly the item bias of a query bank is applied: the weight of each direction.

A bank with few queries of a direction is completed by the model's own queries, where it has real ones, and starts from what was
chosen for these: an index that learns from a short log must not lose the correction that it had (`complete`).
Without known positives (`shrink`): the weight falls with what speaks against the bank. Few queries: n / (n + 500). Queries that
disagree: the correlation of the biases that two halves of them give (corrected to the full length by Spearman and Brown). Queries
that have nothing to do with the collection: those whose best item is less similar than the best item of nearly all known queries
do not count (`fitting`). Not more than what held-out queries of training chose for the direction, or .3 where there were none.
With known positives (`choose`): the same, at most .65, if it ranks the positives of other queries better than no bias by more
than chance; else no bias. Other weights and temperatures gained nothing on queries that had not chosen them. Scores made of codes
are judged apart: a bias that gained hits for vectors lost some for codes. Knows arrays; nothing of indexes and files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.model.query_bank import (
    FEWEST,
    JUDGED_WEIGHT,
    MODALITIES,
    TEMPERATURE,
    UNJUDGED_WEIGHT,
    QueryBank,
    mean_similarity,
    unjudged_weight,
)

FEWEST_JUDGED = 50  # queries with positives below which a direction is not judged
MOST_JUDGED = 1000
ENOUGH = 2000  # queries of a direction to which the model's own ones add nothing
FEWEST_ITEMS = 500  # that no training query shows, below which all items are searched
MOST_ITEMS = 100_000  # of a direction that queries are judged on, beside all positives
CHANCE = 1.64  # standard errors by which a weight must be better than the usual one: one of 20 useless ones passes
DEPTH = 10  # of the reciprocal ranks that are compared
SAMPLE = 4096  # items on which two halves of a bank are compared
LEAST_QUANTILE = 0.05  # of known queries' best similarities: a query below is not one of this collection
AT_ONCE = 512  # queries compared with items

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Choice = tuple[float, float]  # temperature, weight
NO_CHOICE: Mapping[tuple[int, int], Choice] = MappingProxyType({})
Fold = tuple[QueryBank, "JudgedQueries"]  # what a bias is made of, and other queries that judge it


@dataclass(frozen=True, slots=True)
class JudgedQueries:
    """Queries with known positives.

    Args:
        z: (Q, D).
        modality: (Q,) what each consists of.
        target: (Q,) modality of its positives.
        positives: Item rows of each.
    """

    z: Floats
    modality: Ints
    target: Ints
    positives: Sequence[Sequence[int]]

    def take(self, rows: Sequence[int]) -> JudgedQueries:
        """Some of them."""
        place = np.array(rows, np.int64)
        return JudgedQueries(self.z[place], self.modality[place], self.target[place], [self.positives[row] for row in rows])


def choose(
    bank: QueryBank,
    judged: JudgedQueries,
    items: Any,
    item_modality: Any,
    *,
    further: Sequence[Fold] = (),
    shown: Bools | None = None,
    reconstructed: Any = None,
) -> QueryBank:
    """The bank with weights that rank the positives of `judged` better than none.

    Args:
        bank: Queries that are none of `judged`.
        judged: Held-out queries.
        items: (N, D) unit vectors, an array or a tensor.
        item_modality: (N,).
        further: More queries to judge by, each with a part of the bank that does not hold them.
        shown: (N,) items that training queries show; they are left out if enough others remain. Training pulls queries
            towards them, so that a bias against them looks better than it is for new items.
        reconstructed: (N, D) unit vectors that codes of the items stand for; None: scores made of codes take no bias.
    """
    folds = [(bank, judged), *further]
    return _by_positives(bank, folds, _Items.of(items, item_modality, reconstructed), shown)


def choose_crossed(
    bank: QueryBank,
    judged: JudgedQueries,
    rows: Sequence[int],
    items: Any,
    item_modality: Any,
    known: QueryBank | None = None,
) -> QueryBank:
    """As `choose`, where the judged queries are themselves in the bank: each half of it is judged with the bias of the other.

    Args:
        bank: The bank.
        judged: Queries with positives.
        rows: Row in the bank of each judged query.
        items: (N, D) unit vectors.
        item_modality: (N,).
        known: The model's own queries, which complete a small bank, and say how much of a bias scores made of codes take.
    """
    bank, completed = complete(bank, known)
    even = [place for place, row in enumerate(rows) if row % 2 == 0]
    odd_places = [place for place, row in enumerate(rows) if row % 2]
    half = np.arange(len(bank)) % 2 == 0
    folds = [(bank.subset(~half), judged.take(even)), (bank.subset(half), judged.take(odd_places))]
    chosen = _by_positives(bank, folds, _Items.of(items, item_modality, None), before=completed)
    return replace(chosen, code_shares=_known_code_shares(known))


def shrink(bank: QueryBank, items: Any, item_modality: Any, known: QueryBank | None = None) -> QueryBank:
    """The bank with weights that fall with few queries and with halves that disagree; for queries without positives.

    Args:
        bank: Any queries.
        items: (N, D) unit vectors.
        item_modality: (N,).
        known: The model's own queries, which complete a small bank; what held-out queries of training chose for them limits the
            weights, and says how much of a bias scores made of codes take.
    """
    most = np.full((MODALITIES, MODALITIES), UNJUDGED_WEIGHT, np.float32)
    chosen_before: dict[tuple[int, int], Choice] = {}
    if known is not None and known.bias_weights is not None:
        for direction in known.directions():
            chosen_before[direction] = known.temperature(*direction), known.bias_weight(*direction)
            most[direction] = known.bias_weight(*direction)
    bank, completed = complete(bank, known)
    shrunk = _by_agreement(bank, np.asarray(items, np.float32), np.asarray(item_modality), most)
    assert shrunk.bias_weights is not None and shrunk.bias_temperatures is not None
    for direction, (temperature, _) in chosen_before.items():
        shrunk.bias_temperatures[direction] = temperature
    for direction, (_, weight) in completed.items():
        shrunk.bias_weights[direction] = weight
    return replace(shrunk, code_shares=_known_code_shares(known))


def complete(bank: QueryBank, known: QueryBank | None) -> tuple[QueryBank, dict[tuple[int, int], Choice]]:
    """The bank with the model's own queries of directions in which it has fewer than `ENOUGH`; and what was chosen for these.

    Args:
        bank: Any queries; they come first.
        known: The model's own queries; None or synthetic ones: the bank stays as it is.

    Returns:
        The bank, and temperature and weight of the model's own queries in each direction that they complete.
    """
    completed: dict[tuple[int, int], Choice] = {}
    if known is None:
        return bank, completed
    parts = [bank]
    random = np.random.default_rng(0)
    for query, target in known.directions():
        missing = ENOUGH - int(bank.in_direction(query, target).sum())
        if missing <= 0:
            continue
        own = np.flatnonzero(known.in_direction(query, target))
        drawn = np.zeros(len(known), bool)
        drawn[random.permutation(own)[:missing]] = True
        parts.append(known.subset(drawn))
        completed[query, target] = known.temperature(query, target), known.bias_weight(query, target)
    z = np.concatenate([part.z for part in parts])
    modality = np.concatenate([part.modality for part in parts])
    target_modality = np.concatenate([part.target for part in parts])
    return replace(bank, z=z, modality=modality, target=target_modality), completed


def _by_agreement(bank: QueryBank, items: Floats, item_modality: Ints, most: Floats) -> QueryBank:
    """The bank with weights by number and agreement, at most (3, 3) `most`; scores made of codes take nothing."""
    weights = np.zeros((MODALITIES, MODALITIES), np.float32)
    temperatures = np.full((MODALITIES, MODALITIES), TEMPERATURE, np.float32)
    for query, target in bank.directions():
        direction_queries = bank.z[bank.in_direction(query, target)]
        vectors = _sample(items[item_modality == target])
        if len(vectors) > 2:
            agreed = agreement(direction_queries, vectors)
            weights[query, target] = unjudged_weight(len(direction_queries), agreed, float(most[query, target]))
    return replace(bank, bias_weights=weights, bias_temperatures=temperatures, code_shares=np.zeros_like(weights))


def _known_code_shares(known: QueryBank | None) -> Floats:
    """(3, 3) shares of the bias that scores made of codes may take, where nobody has judged them for these queries."""
    if known is None or known.code_shares is None:
        return np.zeros((MODALITIES, MODALITIES), np.float32)
    return known.code_shares.copy()


def agreement(queries: Floats, vectors: Floats, temperature: float = TEMPERATURE) -> float:
    """0 to 1: how far two halves of queries (n, D) agree on which of the vectors (m, D) are similar to queries in general."""
    first = mean_similarity(queries[0::2], vectors, temperature)
    second = mean_similarity(queries[1::2], vectors, temperature)
    if min(first.std(), second.std()) < 1e-7:
        return 0.0
    correlation = max(0.0, float(np.corrcoef(first, second)[0, 1]))
    return 2 * correlation / (1 + correlation)


def fitting(bank: QueryBank, known: QueryBank, items: Any, item_modality: Any) -> Bools:
    """(n,) which queries of the bank have something to do with the collection.

    Those whose best item is about as similar as the best items of known queries of their direction; all, where few are known.

    Args:
        bank: Queries of unknown origin.
        known: Queries that the model was made with, real or synthetic.
        items: (N, D) unit vectors.
        item_modality: (N,).
    """
    items = np.asarray(items, np.float32)
    item_modality = np.asarray(item_modality)
    kept = np.ones(len(bank), bool)
    for target in range(MODALITIES):
        vectors = items[item_modality == target]
        for query in range(MODALITIES):
            direction_queries = bank.in_direction(query, target)
            usual = known.z[known.in_direction(query, target)]
            if len(usual) < FEWEST or not direction_queries.any() or not len(vectors):
                continue
            least = np.quantile(_best(usual[:SAMPLE], vectors), LEAST_QUANTILE)
            kept[direction_queries] = _best(bank.z[direction_queries], vectors) >= least
    return kept


def _best(queries: Floats, vectors: Floats) -> Floats:
    """(Q,) similarity of the best item."""
    parts = [queries[first : first + AT_ONCE] @ vectors.T for first in range(0, len(queries), AT_ONCE)]
    return np.concatenate([part.max(1) for part in parts])


def _sample(vectors: Floats) -> Floats:
    order = np.random.default_rng(0).permutation(len(vectors))[:SAMPLE]
    return vectors[order]


@dataclass(frozen=True, slots=True)
class _Items:
    """Items of a collection, as queries are compared with them."""

    vectors: Floats
    modality: Ints
    reconstructed: Floats | None

    @classmethod
    def of(cls, vectors: Any, modality: Any, reconstructed: Any) -> _Items:
        if reconstructed is not None:
            reconstructed = np.asarray(reconstructed, np.float32)
        return cls(np.asarray(vectors, np.float32), np.asarray(modality), reconstructed)


def _by_positives(
    bank: QueryBank,
    folds: Sequence[Fold],
    items: _Items,
    shown: Bools | None = None,
    before: Mapping[tuple[int, int], Choice] = NO_CHOICE,
) -> QueryBank:
    """`bank` with weights that are better than the usual ones over all folds.

    Args:
        bank: The bank.
        folds: What judges it.
        items: Of the collection.
        shown: As in `choose`.
        before: Temperature and weight of directions for which other held-out queries have chosen them. This weight is the usual
            one there, and only queries that want at least `FEWEST_JUDGED` different items change it; elsewhere it is 0.
    """
    most = np.full((MODALITIES, MODALITIES), JUDGED_WEIGHT, np.float32)
    bank = _by_agreement(bank, items.vectors, items.modality, most)
    assert bank.bias_weights is not None and bank.bias_temperatures is not None and bank.code_shares is not None
    for query, target in bank.directions():
        agreed = bank.bias_weight(query, target)
        usual = 0.0
        chosen_before = (query, target) in before
        if chosen_before:
            bank.bias_temperatures[query, target], usual = before[query, target]
        temperature = bank.temperature(query, target)
        rows = _candidates(items.modality == target, [judged for _, judged in folds], shown)
        judging = [_JudgedFold.of(fold, query, target, items.vectors, rows) for fold in folds]
        judging = [fold for fold in judging if len(fold.bank) >= FEWEST // 2 and len(fold.positives)]
        judges = sum(len(fold.positives) for fold in judging)
        if chosen_before:
            judges = len({int(place) for fold in judging for places in fold.positives for place in places})
        if judges < FEWEST_JUDGED:
            bank.bias_weights[query, target] = usual
            if not chosen_before:
                bank.bias_weights[query, target] = min(agreed, UNJUDGED_WEIGHT)
            continue
        values = _values(judging, items.vectors, rows, temperature, {usual, 0.0, agreed})
        weight = _best_weight(values, usual)
        bank.bias_weights[query, target] = weight
        if weight and items.reconstructed is not None:
            values = _values(judging, items.vectors, rows, temperature, {0.0, weight}, items.reconstructed)
            bank.code_shares[query, target] = float(_best_weight(values, 0.0) > 0)
    return bank


@dataclass(frozen=True, slots=True)
class _JudgedFold:
    """Queries of one direction that judge, and those that a bias is made of."""

    bank: Floats
    queries: Floats
    positives: list[Ints]  # of each judged query, by place among the candidates

    @classmethod
    def of(cls, fold: Fold, query: int, target: int, vectors: Floats, rows: Ints) -> _JudgedFold:
        part, judged = fold
        queries, positives = _judged_queries(judged, query, target, len(vectors), rows)
        return cls(part.z[part.in_direction(query, target)], queries, positives)


def _values(
    folds: Sequence[_JudgedFold],
    vectors: Floats,
    rows: Ints,
    temperature: float,
    weights: set[float],
    reconstructed: Floats | None = None,
) -> dict[float, Floats]:
    """(Q,) reciprocal ranks of the judged queries of all folds, for each weight.

    Args:
        folds: Of one direction.
        vectors: (N, D) of items, which biases are made of.
        rows: Candidates.
        temperature: t of the biases.
        weights: w of them.
        reconstructed: (N, D) that queries are compared with in place of `vectors`.
    """
    compared = vectors
    if reconstructed is not None:
        compared = reconstructed
    found: dict[float, list[Floats]] = {weight: [] for weight in weights}
    for fold in folds:
        scores = fold.queries @ compared[rows].T
        bias = mean_similarity(fold.bank, vectors[rows], temperature)
        for weight, parts in found.items():
            parts.append(_reciprocal_ranks(scores, fold.positives, np.float32(weight) * bias))
    return {weight: np.concatenate(parts) for weight, parts in found.items()}


def _candidates(wanted: Bools, judged: Sequence[JudgedQueries], shown: Bools | None) -> Ints:
    """Item rows that queries are judged on: those that no training query shows if there are enough, of all wanted ones.

    At most `MOST_ITEMS` of them at random, and all positives.
    """
    rows = np.flatnonzero(wanted)
    if shown is not None:
        new = np.flatnonzero(wanted & ~shown)
        if len(new) >= FEWEST_ITEMS:
            rows = new
    positives = [row for part in judged for positive_rows in part.positives for row in positive_rows if wanted[row]]
    sample = np.random.default_rng(0).permutation(rows)[:MOST_ITEMS]
    return np.unique(np.concatenate([sample, np.array(positives, np.int64)]))


def _best_weight(values: Mapping[float, Floats], usual: float) -> float:
    """The weight of the largest mean reciprocal rank, if it is better than the usual one by more than chance; else that one."""
    best = max(values, key=lambda weight: float(values[weight].mean()))
    gain = values[best] - values[usual]
    if gain.mean() > CHANCE * gain.std() / len(gain) ** 0.5:
        return best
    return usual


def _judged_queries(judged: JudgedQueries, query: int, target: int, items: int, rows: Ints) -> tuple[Floats, list[Ints]]:
    """(Q, D) judged queries of one direction with positives among the candidates `rows`, and these by place there."""
    place = np.full(items, -1)
    place[rows] = np.arange(len(rows))
    chosen = np.flatnonzero((judged.modality == query) & (judged.target == target))[:MOST_JUDGED]
    kept = []
    positives = []
    for query_row in chosen:
        positive_places = place[np.array(judged.positives[query_row], np.int64)]
        positive_places = positive_places[positive_places >= 0]
        if len(positive_places):
            kept.append(query_row)
            positives.append(positive_places)
    return judged.z[np.array(kept, np.int64)], positives


def _reciprocal_ranks(scores: Floats, positives: Sequence[Ints], bias: Floats) -> Floats:
    """(Q,) 1 / rank of the best positive by scores (Q, n) minus bias (n,), 0 beyond `DEPTH`."""
    out = np.zeros(len(scores), np.float32)
    for at, positive_places in enumerate(positives):
        corrected = scores[at] - bias
        rank = 1 + int((corrected > corrected[positive_places].max()).sum())
        if rank <= DEPTH:
            out[at] = 1 / rank
    return out
