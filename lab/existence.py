"""Does the collection hold an answer? Signals beside those that ship, on packed vectors of trainings (`lab.above_dense`, "pack").

    python -m lab.existence PACK.npz ...     -> lab/results/existence.json

Every query searches twice, with and without its positives. Logistic regressions are fitted on validation and other held-out
queries, over all packed items and parts of them; test queries, over items that no training query shows, are reported. `ease` is a
linear probe of the query for "its first hit is right", out of fold where it is fitted on. The item bias has its usual
temperature: packs do not hold the chosen ones.

Two oracles know whether one of the first hits is a positive. "And for which queries": it also knows where one would be if the
collection held it. No reading of these hits alone can have a higher AUROC: 1 - (1 - hit@k)^2 / 2, since the hits of all other
queries are the same without their positives.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from genius.model.confidence import GROUPS, MODALITIES, RIDGE, auroc
from genius.model.query_bank import QueryBank
from genius.search.engine import BACKGROUND
from genius.train.calibration import POOL_SHARES, part_of_pool
from genius.types import Modality
from lab.trained import run_details, write_json

OUT = Path("lab/results/existence.json")
DEPTH = 10
NEAREST = 20  # queries of the bank
FOLDS = 4
TEMPERATURE = 0.02  # of the entropy of the first hits
SHIPPED = ("shipped",)
ADDED = ("background", "agreement", "density", "entropy", "modalities", "bank", "ease")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Lists = dict[str, NDArray[Any]]  # signal -> (2 Q, n), first with positives, then without; `group` and `hit` among them


class Pack:
    """Items, a bank and queries of one training."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as arrays:
            self.arrays = {name: arrays[name] for name in arrays.files}
        self.items = self.unit("items")
        self.modality: Ints = self.arrays["modality"].astype(np.int64)
        of_bank = [self.arrays[f"bank_{name}"].astype(np.int64) for name in ("modality", "target")]
        probe = [self.arrays[f"probe_{name}"] for name in ("weight", "bias")]
        self.bank = QueryBank(self.unit("bank"), of_bank[0], of_bank[1], probe[0], probe[1])
        object.__setattr__(self.bank, "bias_weights", self.arrays["bias_weights"])

    def unit(self, name: str) -> NDArray[np.float32]:
        z = self.arrays[f"{name}_z"].astype(np.float32)
        unit: NDArray[np.float32] = z / np.linalg.norm(z, axis=1, keepdims=True)
        return unit

    def queries(self, splits: tuple[str, ...]) -> tuple[NDArray[np.float32], Ints, NDArray[Any], list[list[int]]]:
        """Vectors, modality, task and rows of positives."""
        places = {row: place for place, row in enumerate(self.arrays["rows"].tolist())}
        positives: list[list[int]] = []
        for name in splits:
            own: list[list[int]] = [[] for _ in self.arrays[f"{name}_tasks"]]
            for query, row in self.arrays[f"{name}_pairs"].tolist():
                own[query].append(places[row])
            positives += own
        modality = np.concatenate([self.arrays[f"{name}_modality"] for name in splits]).astype(np.int64)
        tasks = np.concatenate([self.arrays[f"{name}_tasks"] for name in splits])
        return np.concatenate([self.unit(name) for name in splits]), modality, tasks, positives


def searched(pack: Pack, queries: Any, rows: Ints) -> Lists:
    """Signals of the lists of all queries over some rows."""
    z, modality, _, positives = queries
    rows = rows[np.argsort(pack.modality[rows], kind="stable")]
    of_item = pack.modality[rows]
    vectors = pack.items[rows]
    bounds = np.searchsorted(of_item, np.arange(MODALITIES + 1))
    place = np.full(len(pack.items), -1)
    place[rows] = np.arange(len(rows))
    log_p = pack.bank.modality_log_probs(z)
    assert log_p is not None
    log_p = log_p - log_p.max(1, keepdims=True)
    bias = np.zeros((MODALITIES, len(rows)), np.float32)
    for query, target in pack.bank.directions():
        own = slice(bounds[target], bounds[target + 1])
        raw = pack.bank.item_bias(vectors[own], query, target)
        bias[query, own] = raw - raw.mean()
    random = np.random.default_rng(0)
    samples = [vectors[random.permutation(np.arange(bounds[m], bounds[m + 1]))[:BACKGROUND]] for m in range(MODALITIES)]
    items = torch.from_numpy(vectors)
    both: list[list[Lists]] = [[], []]
    for start in range(0, len(z), 256):
        part = slice(start, start + 256)
        own_modality = modality[part]
        similarity = torch.from_numpy(z[part]) @ items.T
        scores = similarity - torch.from_numpy(bias[own_modality]) + torch.from_numpy(log_p[part][:, of_item])
        for gone in (False, True):
            if gone:
                for query, own in enumerate(positives[part]):
                    scores[query, place[own]] = similarity[query, place[own]] = -9.0
            best = [similarity[:, bounds[m] : bounds[m + 1]].max(1).values.numpy() for m in range(MODALITIES)]
            top, found = scores.topk(DEPTH, 1)
            hits = found.numpy()
            known = [set(place[own].tolist()) for own in positives[part]]
            right = np.array([[hit in own for hit in line] for line, own in zip(hits.tolist(), known, strict=True)])
            own_bias = bias[own_modality, hits[:, 0]]
            signals = of_lists(pack, z[part], own_modality, top.numpy(), vectors[hits], of_item[hits], samples)
            signals["shipped"] = np.concatenate([signals["shipped"], own_bias[:, None]], 1)
            signals |= {"modalities": np.stack(best, 1), "hit": right, "z": z[part]}
            signals["cosine"] = similarity.gather(1, found).numpy()[:, :1]
            both[gone].append(signals)
    return joined([*both[0], *both[1]])


def of_lists(pack: Pack, z: Any, modality: Ints, scores: Any, hits: Any, of_hits: Ints, samples: Any) -> Lists:
    """Signals of scores (Q, k), vectors (Q, k, D) and modalities (Q, k) of hits."""
    first = of_hits[:, 0]
    ahead = np.stack([scores[:, 0], scores[:, 0] - scores[:, 1], scores[:, 0] - scores[:, 1:].mean(1)], 1)
    cosines = np.einsum("qid,qjd->qij", hits, hits)
    upper, upper_five = np.triu_indices(DEPTH, 1), np.triu_indices(5, 1)
    agreement = [cosines[:, 0, 1], cosines[:, 0, 1:5].mean(1)]
    agreement += [cosines[:, upper_five[0], upper_five[1]].mean(1), cosines[:, upper[0], upper[1]].mean(1)]
    agreement.append((of_hits[:, 1:] == of_hits[:, :1]).mean(1))
    background, density, bank = np.zeros((len(z), 3)), np.zeros((len(z), 2)), np.zeros((len(z), 5))
    for target, sample in enumerate(samples):
        own = first == target
        similarity = z[own] @ sample.T
        mean, deviation = similarity.mean(1), similarity.std(1)
        z_score = ((z[own] * hits[own, 0]).sum(1) - mean) / deviation
        background[own] = np.stack([mean, deviation, z_score], 1)
        density[own] = np.stack([(hits[own, 0] @ sample.T).mean(1), (hits[own, 0] @ sample.T).std(1)], 1)
    for query in np.unique(modality):
        own = modality == query
        others = pack.bank.z[pack.bank.modality == query]
        near = -np.sort(-(z[own] @ others.T), 1)[:, :NEAREST]
        near_hit = -np.sort(-(hits[own, 0] @ others.T), 1)[:, :NEAREST]
        columns = [near[:, 0], near.mean(1), near_hit[:, 0], near_hit.mean(1), (z[own] * hits[own, 0]).sum(1) - near_hit[:, 0]]
        bank[own] = np.stack(columns, 1)
    weights = np.exp((scores - scores[:, :1]) / TEMPERATURE)
    weights /= weights.sum(1, keepdims=True)
    log_p = pack.bank.modality_log_probs(z)
    assert log_p is not None
    modalities = np.exp(log_p)
    entropy = [-(p * np.log(p + 1e-9)).sum(1) for p in (weights, modalities)]
    signals = {"shipped": ahead, "agreement": np.stack(agreement, 1), "background": background, "density": density, "bank": bank}
    group = (modality != int(Modality.TEXT)) * MODALITIES + first
    return {**signals, "entropy": np.stack(entropy, 1), "group": group}


def joined(parts: list[Lists]) -> Lists:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def logistic(features: Floats, labels: Any, ridge: float = RIDGE) -> Floats:
    """Weights of a logistic regression with a penalty."""
    x = torch.from_numpy(features)
    y = torch.from_numpy(np.asarray(labels, np.float64))
    weights = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Any:
        optimizer.zero_grad()
        value = F.binary_cross_entropy_with_logits(x @ weights, y) + ridge / len(y) * weights.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)
    fitted: Floats = weights.detach().numpy()
    return fitted


def add_ease(lists: list[Lists], test: Lists) -> None:
    """The probe of queries, for all lists; and how it goes with the score and its gaps."""
    count = len(lists[0]["z"]) // 2
    fold = np.random.default_rng(0).permutation(count) % FOLDS

    def probe(kept: Any) -> Floats:
        z = np.concatenate([own["z"][:count][kept] for own in lists])
        right = np.concatenate([own["hit"][:count, 0][kept] for own in lists])
        return logistic(_with_one(16 * z), right, 30.0)

    folds = [probe(fold != number) for number in range(FOLDS)]
    for own in lists:
        values = np.stack([_with_one(16 * own["z"]) @ weights for weights in folds], 1)
        own["ease"] = np.take_along_axis(values, np.tile(fold, 2)[:, None], 1)
    test["ease"] = (_with_one(16 * test["z"]) @ probe(np.ones(count, bool)))[:, None]
    for own in (*lists, test):
        own["ease"] = np.concatenate([own["ease"], own["ease"] * own["shipped"]], 1)


def _with_one(values: Any) -> Floats:
    return np.concatenate([values, np.ones((len(values), 1))], 1).astype(np.float64)


def predicted(lists: list[Lists], test: Lists, names: tuple[str, ...]) -> Floats:
    """Of the test lists, by weights of their own for each direction."""
    values = [np.concatenate([own[name] for name in names], 1).astype(np.float64) for own in (*lists, test)]
    mean, deviation = np.concatenate(values[:-1]).mean(0), np.concatenate(values[:-1]).std(0) + 1e-9

    def grouped(own: Lists, value: Floats) -> Floats:
        one = np.eye(GROUPS)[own["group"]]
        scaled = _with_one((value - mean) / deviation)
        return (one[:, :, None] * scaled[:, None]).reshape(len(one), -1)

    features = np.concatenate([grouped(own, value) for own, value in zip(lists, values, strict=False)])
    labels = np.concatenate([np.arange(len(own["group"])) < len(own["group"]) / 2 for own in lists])
    return grouped(test, values[-1]) @ logistic(features, labels, 10.0)


def measured(file: Path) -> dict[str, Any]:
    """Every signal on the test queries of a pack."""
    pack = Pack(file)
    held_out, asked = pack.queries(("validation", "held-out")), pack.queries(("test",))
    shares = [part_of_pool(len(pack.items), held_out[3], share) for share in POOL_SHARES]
    lists = [searched(pack, held_out, rows) for rows in shares]
    test = searched(pack, asked, np.flatnonzero(pack.arrays["unseen"]))
    add_ease(lists, test)
    values: dict[str, Floats] = {"cosine of the first hit": test["cosine"][:, 0]}
    values["z-score of the first hit"] = test["background"][:, 2]
    values["probability, signals that ship"] = predicted(lists, test, SHIPPED)
    for name in ADDED:
        values[f"probability, with {name}"] = predicted(lists, test, (*SHIPPED, name))
    values["probability, with all of these"] = predicted(lists, test, (*SHIPPED, *ADDED))
    count = len(asked[0])
    labels = np.arange(2 * count) < count
    hit = test["hit"][:count]
    for depth in (1, 5):
        right = hit[:, :depth].any(1)
        values[f"oracle: one of the first {depth} is a positive"] = np.concatenate([right, 0 * right]).astype(float)
        values[f"oracle of the first {depth}, and for which queries"] = np.concatenate([right, -1.0 * right])
    signals = {name: signal(value, labels, np.tile(asked[2], 2), name) for name, value in values.items()}
    rates = {f"hit@{depth}": round(float(hit[:, :depth].any(1).mean()), 4) for depth in (1, 5, 10)}
    about = {"pack": file.stem, "queries": count, "items": int(pack.arrays["unseen"].sum()), "fitted_on": len(held_out[0])}
    return {**about, **rates, "signals": signals}


def signal(value: Floats, labels: NDArray[np.bool_], tasks: NDArray[Any], name: str) -> dict[str, Any]:
    out: dict[str, Any] = {"auroc": round(auroc(value, labels), 4)}
    if "oracle" not in name:  # few values have no such threshold
        least = np.quantile(value[labels], 0.05)
        out["hopeless_rejected_at_95_kept"] = round(float((value[~labels] < least).mean()), 4)
    names = sorted(set(tasks.tolist()))
    return out | {"auroc_by_task": {task: round(auroc(value[tasks == task], labels[tasks == task]), 4) for task in names}}


def main() -> None:
    command = "python -m lab.existence " + " ".join(Path(name).name for name in sys.argv[1:])
    runs = []
    for name in sys.argv[1:]:
        runs.append(measured(Path(name)))
        write_json(OUT, {"command": command, **run_details(), "vectors": "trained on one NVIDIA H200", "runs": runs})
        print({key: value["auroc"] for key, value in runs[-1]["signals"].items()}, flush=True)


if __name__ == "__main__":
    main()
