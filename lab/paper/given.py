"""Dense search that is given the target modality, for the rows of `lab.paper.published` on icons.

    python -m lab.paper.given FEATURES OUT.json     (FEATURES: lab.icons.vectors)

`published.json` holds dense search over the universal pool, which has to find the modality, too. On icons the features of
that recipe have one width, so its dense search is score fusion of the encoder's own vectors and needs no training: the same
test queries are searched here over all items and over the items of their target modality. GENIUS^R is read from
`published.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.features import FeatureSet
from genius.features import Features
from lab import provenance
from lab.icons.vectors import load

PUBLISHED = Path(__file__).parent / "published.json"
AT_ONCE = 200


def fused(features: Features) -> Tensor:
    """Score fusion: the sum of image and text vector, (N, D), normalised."""
    return F.normalize(features.image + features.text, dim=1)


def evenly(rows: Tensor, count: int) -> Tensor:
    """At most `count` of the rows, evenly spread."""
    count = min(count, len(rows))
    return rows[torch.linspace(0, len(rows) - 1, count).long()]


def hit_at_5(data: FeatureSet, rows: Tensor, allowed: Tensor) -> float:
    """Share of queries with a positive among the first five allowed items."""
    positives: dict[int, set[int]] = defaultdict(set)
    for query, item in data.pairs.tolist():
        positives[query].add(item)
    pool = fused(data.pool)
    hits = 0
    for part in rows.split(AT_ONCE):
        similarity = fused(data.queries[part]) @ pool.T
        similarity[:, ~allowed] = -2.0
        best = similarity.topk(5, dim=1).indices.tolist()
        hits += sum(not positives[query].isdisjoint(found) for query, found in zip(part.tolist(), best, strict=True))
    return hits / len(rows)


def dense(data: FeatureSet, per_task: int) -> dict[str, dict[str, float]]:
    """hit@5 of every task with the target modality unknown and given."""
    modality = data.pool.modality
    everything = torch.ones(len(modality), dtype=torch.bool)
    found: dict[str, dict[str, float]] = {"unknown": {}, "given": {}}
    for task in data.tasks.unique().tolist():
        rows = (data.tasks == task).nonzero()[:, 0]
        wanted = modality[data.pairs[torch.isin(data.pairs[:, 0], rows), 1]].unique()
        asked = evenly(rows, per_task)
        found["unknown"][data.names[task]] = round(hit_at_5(data, asked, everything), 4)
        found["given"][data.names[task]] = round(hit_at_5(data, asked, torch.isin(modality, wanted)), 4)
    return found


def shares(given: dict[str, float]) -> list[dict[str, Any]]:
    """What the published recipe's re-ranked search has of dense search that is given the target modality."""
    lines = []
    for line in json.loads(PUBLISHED.read_text(encoding="utf-8"))["lines"]:
        if (line["part"], line["data"]) != ("published", "icons"):
            continue
        for method in ("genius-r@30", "genius-r@50"):
            hits = line["last"][method]["hit@5"]
            by_task = [hits[task] / dense_hits for task, dense_hits in given.items()]
            lines.append(
                {
                    "seed": line["seed"],
                    "search": method,
                    "of the mean hit@5": round(sum(hits.values()) / sum(given.values()), 3),
                    "mean of the tasks' shares": round(statistics.mean(by_task), 3),
                    "worst task": round(min(by_task), 3),
                }
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--queries", type=int, default=800, help="of a task, as the run behind published.json")
    args = parser.parse_args()
    data = load(args.features)["test"]
    found = dense(data, args.queries)
    result = {
        "command": "python -m lab.paper.given FEATURES OUT.json",
        **provenance(),
        "queries": args.queries,
        "threads": torch.get_num_threads(),
        "hit@5 of dense": found,
        "lines": shares(found["given"]),
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["lines"], indent=1))


if __name__ == "__main__":
    main()
