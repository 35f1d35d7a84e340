"""Rules that decide how strong the item bias of a direction is, judged by validation queries alone.

    python -m lab.bias_rules BENCHMARK WORK ...     -> lab/results/bias_rules_BENCHMARK.json; WORK: as in `lab.above_dense`

One half of the validation queries of a direction decides, the other half measures; `ROUNDS` random halves. A line is the gain of
the mean reciprocal rank over no bias in percent: the mean over directions and trainings, and the worst direction of a training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.model import bias_choice
from genius.model.bias_choice import CHANCE, agreement
from genius.model.query_bank import FEWEST, JUDGED_WEIGHT, MODALITIES, TEMPERATURE, mean_similarity, unjudged_weight
from genius.train.handover import PER_DIRECTION
from lab.trained import Bench, run_details, write_json

ROUNDS = 40
TEMPERATURES = (0.03, 0.05, 0.1)
GRID = (0.25, 0.5, 0.75)
STEPS = 20  # weights to which a rule's weight is rounded, from 0 to 1
LARGER = 2.0  # standard errors by which a pair of the grid must be better than the weight by agreement
Floats = NDArray[np.float32]
Choice = tuple[float, float]  # temperature, weight
Ranks = Mapping[Choice, Floats]  # reciprocal ranks of the queries of a direction
Rule = Callable[[Ranks, float], Choice]


def rounded(weight: float) -> float:
    return round(STEPS * weight) / STEPS


def z_score(ranks: Ranks, choice: Choice, other: Choice = (TEMPERATURE, 0.0)) -> float:
    """Standard errors by which one choice is better than another."""
    gain = ranks[choice] - ranks[other]
    error: float = float(gain.std()) / len(gain) ** 0.5
    return float(gain.mean()) / max(error, 1e-9)


def better_than_chance(ranks: Ranks, agreed: float) -> Choice:
    """The rule that ships: the weight by agreement, or none."""
    if z_score(ranks, (TEMPERATURE, agreed)) > CHANCE:
        return TEMPERATURE, agreed
    return TEMPERATURE, 0.0


def better(ranks: Ranks, agreed: float) -> Choice:
    """The weight by agreement if it is better at all."""
    if z_score(ranks, (TEMPERATURE, agreed)) > 0:
        return TEMPERATURE, agreed
    return TEMPERATURE, 0.0


def by_evidence(ranks: Ranks, agreed: float) -> Choice:
    """The weight by agreement times 1 - 1 / z^2 (empirical Bayes)."""
    z = z_score(ranks, (TEMPERATURE, agreed))
    if z <= 1:
        return TEMPERATURE, 0.0
    return TEMPERATURE, rounded(agreed * (1 - 1 / z**2))


def best_of_grid(ranks: Ranks, agreed: float) -> Choice:
    """The best pair of a grid if it is clearly better than the weight by agreement, and either only if better than none."""
    pairs = [(t, rounded(w)) for t in TEMPERATURES for w in (0.0, *GRID)]
    best = max(pairs, key=lambda pair: float(ranks[pair].mean()))
    if z_score(ranks, best, (TEMPERATURE, agreed)) <= LARGER:
        best = (TEMPERATURE, agreed)
    if z_score(ranks, best) > CHANCE:
        return best
    return TEMPERATURE, 0.0


def unjudged(_: Ranks, agreed: float) -> Choice:
    """The weight by agreement without any positives."""
    return TEMPERATURE, agreed


RULES: dict[str, Rule] = {
    "weight by agreement, or none (ships)": better_than_chance,
    "the same, if better at all": better,
    "the same, times 1 - 1 / z^2": by_evidence,
    "the best of twelve pairs t, w, or none": best_of_grid,
    "weight by agreement, not judged": unjudged,
}


def directions(bench: Bench) -> dict[str, tuple[Ranks, float]]:
    """For each direction that enough validation queries judge: reciprocal ranks for all choices, and the weight by agreement."""
    bank, held_out = bench.bank(PER_DIRECTION)
    folds = [(bank, bench.validation.judged()), (bank.subset(~held_out), bench.held_out.judged())]
    choices = [(t, rounded(step / STEPS)) for t in TEMPERATURES for step in range(STEPS + 1)]
    out: dict[str, tuple[Ranks, float]] = {}
    for query, target in bank.directions():
        rows = bias_choice._candidates(bench.modality == target, [judged for _, judged in folds], bench.shown)
        found: dict[Choice, list[Floats]] = {choice: [] for choice in choices}
        for fold in folds:
            judging = bias_choice._JudgedFold.of(fold, query, target, bench.items, rows)
            if len(judging.bank) < FEWEST // 2 or not judging.positives:
                continue
            scores = judging.queries @ bench.items[rows].T
            biases = {t: mean_similarity(judging.bank, bench.items[rows], t) for t in TEMPERATURES}
            for t, weight in choices:
                bias = np.float32(weight) * biases[t]
                found[t, weight].append(bias_choice._reciprocal_ranks(scores, judging.positives, bias))
        if sum(map(len, found[choices[0]])) >= bias_choice.FEWEST_JUDGED:
            queries = bank.z[bank.in_direction(query, target)]
            agreed = agreement(queries, bias_choice._sample(bench.items[bench.modality == target]))
            weight = rounded(unjudged_weight(len(queries), agreed, JUDGED_WEIGHT))
            out[str(MODALITIES * query + target)] = ({choice: np.concatenate(parts) for choice, parts in found.items()}, weight)
    return out


def gains(ranks: Ranks, agreed: float) -> dict[str, float]:
    """For each rule, the gain in percent on queries that did not decide."""
    random = np.random.default_rng(0)
    count = len(ranks[TEMPERATURE, 0.0])
    total = dict.fromkeys(RULES, 0.0)
    for _ in range(ROUNDS):
        order = random.permutation(count)
        deciding = {choice: own[order[: count // 2]] for choice, own in ranks.items()}
        for name, rule in RULES.items():
            choice = rule(deciding, agreed)
            total[name] += float((ranks[choice] - ranks[TEMPERATURE, 0.0])[order[count // 2 :]].mean()) / ROUNDS
    usual = float(ranks[TEMPERATURE, 0.0].mean())
    return {name: 100 * gain / usual for name, gain in total.items()}


def measure(benchmark: str, folders: Sequence[Path]) -> dict[str, Any]:
    """All rules over all trainings."""
    found: list[dict[str, float]] = []
    seeds = []
    judges = 0
    for folder in folders:
        about = json.loads((folder / "vectors" / "about.json").read_text(encoding="utf-8"))
        seeds.append(about["seed"])
        for ranks, agreed in directions(Bench(folder / "vectors", about["seed"])).values():
            judges += len(ranks[TEMPERATURE, 0.0])
            found.append(gains(ranks, agreed))
    lines = [
        {"rule": name, "mean": round(float(np.mean(own)), 2), "worst": round(min(own), 2)}
        for name, own in ((name, [line[name] for line in found]) for name in RULES)
    ]
    about = {"benchmark": benchmark, "seeds": seeds, "queries": judges, "directions": len(found), "lines": lines}
    return {"command": "python -m lab.bias_rules", **run_details(), **about}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("folders", type=Path, nargs="+")
    args = parser.parse_args()
    body = measure(args.benchmark, args.folders)
    write_json(Path(f"lab/results/bias_rules_{args.benchmark}.json"), body)
    print(json.dumps(body["lines"], indent=1))


if __name__ == "__main__":
    main()
