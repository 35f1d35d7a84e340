"""Does a filtered search return what brute force over the filtered items ranks highest?

    python -m lab.speed.filter [--items 100000] [--queries 200] [--out lab/speed/filter.json]

For conditions that let 1, 10, 50 and 100 % of the items through it compares the top 10 of a search with the exact top
10 among the matching items. Measures: `same ten`, the share of queries whose ten are exactly brute force's ten;
`same first`, whose first is brute force's first; `overlap`, the mean share of the ten; and milliseconds a
query, of the clock and of the processor (the machine may be shared).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genius import Index
from genius.search import SearchParams, SearchRequest
from lab.durability import data

WIDTH, LEVELS, K = 64, (3, 256, 256, 256, 256), 10

Setting = tuple[SearchParams, bool]  # parameters, and whether they are explicit (obeyed under filters as they are)

SETTINGS: dict[str, Setting] = {
    "default": (data.SEARCH, False),
    "explicit 50 beams, re-rank 2,000": (data.SEARCH, True),
    "explicit 200 beams, re-rank 10,000": (dataclasses.replace(data.SEARCH, beams=200, rerank=10_000), True),
}


def compare(
    index: Index, truth: np.ndarray, queries: np.ndarray, keep: np.ndarray, where: str | None, setting: Setting
) -> dict[str, Any]:
    """Search against exact scores of the stored (16-bit) vectors."""
    same = first = overlap = 0.0
    params, explicit = setting
    rerank = params.rerank if explicit else None
    begin, begin_cpu = time.perf_counter(), time.process_time()
    request = SearchRequest(K, where, params=params, rerank=rerank)
    answers = [index.search_embedded(torch.from_numpy(query[None]), request=request)[0] for query in queries]
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    rows = np.flatnonzero(keep)
    for query, hits in zip(queries, answers, strict=True):
        found = np.array([int(hit.id.removeprefix("item-")) for hit in hits])
        assert len(found) == min(K, len(rows)) and keep[found].all(), "k results that match, whenever k match"
        best = np.sort(truth[rows] @ query)[::-1][:K]
        good = truth[found] @ query >= best[-1] - 1e-6  # an item that ties with the tenth is as good as it
        overlap += good.mean()
        same += good.all()
        first += truth[found[0]] @ query >= best[0] - 1e-6
    n = len(queries)
    return {
        "same ten": round(same / n, 4),
        "same first": round(first / n, 4),
        "overlap": round(overlap / n, 4),
        "ms": round(1e3 * seconds / n, 1),
        "cpu ms": round(1e3 * cpu / n, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    points, _ = data.vectors(args.items, WIDTH, 2000)
    queries = data.vectors(args.queries, WIDTH, 2000, seed=77)[0]
    shape = {"items": args.items, "queries": args.queries, "k": K, "width": WIDTH, "levels": LEVELS}
    body: dict[str, Any] = {**shape, **data.environment()}
    with tempfile.TemporaryDirectory() as scratch:
        index = Index(Path(scratch) / "f.genius", data.make_model(WIDTH, LEVELS, points[:20_000]))
        for done in data.fill(index, points):
            print(f"{done:,} items", file=sys.stderr)
        stored = np.concatenate([part for _, part in index._state.reader().embeddings()]).astype(np.float32)
        share = np.empty(args.items, np.int64)
        for item in index.items():
            share[int(item.id.removeprefix("item-"))] = item.metadata["share"]
        by_seq = np.argsort(np.concatenate([seqs for seqs, _ in index._state.reader().embeddings()]))
        truth = stored[by_seq]
        results: dict[str, dict[str, Any]] = {}
        for name, setting in SETTINGS.items():
            results[name] = {}
            for percent in (1, 10, 50):
                where = f"share < {percent}"
                results[name][f"{percent} %"] = compare(index, truth, queries, share < percent, where, setting)
            results[name]["no filter"] = compare(index, truth, queries, np.ones(args.items, bool), None, setting)
            print(json.dumps({name: results[name]}), file=sys.stderr)
        body["results"] = results
    text = json.dumps(body, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
