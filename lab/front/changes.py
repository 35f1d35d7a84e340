"""Recall@10 of the scan under filters, and after many replacements, against exact search over the same rows.

    python -m lab.front.changes filters DATA.hdf5 OUT.json [--keep FOLDER]
    python -m lab.front.changes churn DATA.hdf5 OUT.json [--items 24000] [--rounds 100]

`filters`: random filters that let 10, 1, .1 and .01 % of the items through. `churn`: a collection in which every round replaces a
tenth of the items by others; the scan follows by appending codes and hiding rows, and is compared with one built from what is
left. Queries are test queries; nothing is chosen here. The default effort of a search. Knows the engine.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from genius.model.query_bank import QueryBank
from genius.search import CodeTrie, LazyPart, SearchEngine, SearchParams
from lab.front import algorithms
from lab.front.data import Dataset
from lab.front.ours import LEVELS, TARGET, TEXT, Genius
from lab.front.run import K, about

SHARES = (0.1, 0.01, 0.001, 0.0001)
REPLACED = 0.1  # of the items, in a round
Floats = NDArray[np.float32]


def exact(items: Floats, rows: NDArray[np.int64], queries: Floats) -> NDArray[np.int64]:
    """(Q, k) the nearest of some rows."""
    order = np.argsort(-(queries @ items[rows].T), axis=1)[:, :K]
    return rows[order]


def shared(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Recall@10: the share of the true rows that were found."""
    pairs = zip(found.tolist(), truth.tolist(), strict=True)
    return float(np.mean([len(set(mine) & set(true)) / len(true) for mine, true in pairs]))


def search(engine: SearchEngine, queries: Floats, allowed: NDArray[np.bool_] | None = None) -> tuple[NDArray[np.int64], float]:
    """Rows, and processor milliseconds per query, one query at a time."""
    params = SearchParams(plan="scan")
    target = np.full(1, TARGET)
    start = time.process_time()
    found = [engine.search(query[None], k=K, params=params, target=target, allowed=allowed).rows[0] for query in queries]
    return np.stack(found), 1e3 * (time.process_time() - start) / len(queries)


def filters(data: Dataset, count: int) -> list[dict[str, Any]]:
    ours = Genius()
    ours.fit_ood(data.train, data.learn, data.learn_neighbors)
    queries = data.test[:count]
    lines = []
    for share in SHARES:
        allowed = np.zeros(len(data.train), bool)
        allowed[np.random.default_rng(0).permutation(len(allowed))[: round(share * len(allowed))]] = True
        found, milliseconds = search(ours.engine, queries, allowed)
        truth = exact(data.train, np.flatnonzero(allowed), queries)
        line = {"share": share, "items": int(allowed.sum()), "recall@10": round(shared(found, truth), 4)}
        lines.append({**line, "single_ms": round(milliseconds, 3)})
        print(lines[-1], flush=True)
    return lines


def engine_of(vectors: Floats, learn: Floats) -> SearchEngine:
    part = LazyPart(SimpleNamespace(level_sizes=LEVELS, width=vectors.shape[1], labelled=True), lambda: None)
    bank = QueryBank.of(learn, np.full(len(learn), TEXT), np.full(len(learn), TARGET))
    trie = CodeTrie.build(np.zeros((len(vectors), len(LEVELS)), np.int64), LEVELS)
    return SearchEngine(part, None, trie, vectors.astype(np.float16), bank=bank)


def churn(data: Dataset, items: int, rounds: int, count: int) -> list[dict[str, Any]]:
    """The rows of the data are used one after the other: each once."""
    random = np.random.default_rng(0)
    step = round(REPLACED * items)
    engine = engine_of(data.train[:items], data.learn)
    engine.scan.prepare()
    alive = np.ones(items, bool)
    start = time.process_time()
    for _ in range(rounds):
        first = len(alive)
        alive[random.choice(np.flatnonzero(alive), step, replace=False)] = False
        alive = np.append(alive, np.ones(step, bool))
        codes = np.zeros((first + step - items, len(LEVELS)), np.int64)
        added = data.train[first : first + step].astype(np.float16)
        engine = engine.changed(items, codes, added, alive.copy())
        engine.scan.prepare()
    seconds = time.process_time() - start
    queries = data.test[:count]
    rows = np.flatnonzero(alive)
    truth = exact(data.train, rows, queries)
    found, milliseconds = search(engine, queries)
    fresh = engine_of(data.train[rows], data.learn)
    fresh.scan.prepare()
    fresh_found, fresh_milliseconds = search(fresh, queries)
    line = {
        "items": items,
        "rounds": rounds,
        "replaced_per_round": step,
        "recall@10": round(shared(found, truth), 4),
        "single_ms": round(milliseconds, 3),
        "fresh_recall@10": round(shared(rows[fresh_found], truth), 4),
        "fresh_single_ms": round(fresh_milliseconds, 3),
        "seconds_per_round": round(seconds / rounds, 3),
    }
    print(line, flush=True)
    return [line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["filters", "churn"])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--items", type=int, default=24_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--validation", type=int, default=0)
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    algorithms.KEPT = args.keep
    data = Dataset.read(args.data)
    body = {**about(args, data), "data": data.name}
    if args.what == "filters":
        body["lines"] = filters(data, args.queries)
    else:
        body["lines"] = churn(data, args.items, args.rounds, args.queries)
    args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
