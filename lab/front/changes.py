"""Recall@10 of the scan under filters, and after many replacements, against exact search over the same rows.

    python -m lab.front.changes filters DATA.hdf5 OUT.json [--keep FOLDER]
    python -m lab.front.changes churn DATA.hdf5 OUT.json [--items 24000] [--rounds 100]

`filters`: random filters that let 10, 1, .1 and .01 % of the items through, beside Faiss with an `IDSelector` and LanceDB with a
prefilter. Settings are chosen on validation queries under the same filter, the fastest that reaches `WANTED`; GENIUS is measured
with its default effort, too. `churn`: a collection in which every round replaces a tenth of the items by others; the scan follows
by appending codes and hiding rows, and is compared with one built from what is left. Test queries are reported. Knows the engine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.model.query_bank import QueryBank
from genius.search import CodeTrie, LazyPart, SearchEngine, SearchParams
from lab.front.algorithms import Faiss, Lance, Setting, grid, ranks
from lab.front.data import Dataset
from lab.front.metric import faiss
from lab.front.ours import LEVELS, TARGET, TEXT, Genius
from lab.front.run import BATCH, OURS, Contender, K, about, fitted

SHARES = (0.1, 0.01, 0.001, 0.0001)
REPLACED = 0.1  # of the items, in a round
WANTED = 0.98  # recall@10 on validation queries
TRIED = 100  # validation queries
ROUNDS = 2  # in which all algorithms take turns under a filter; the least times stay
FLAT = "Faiss flat"
CHOSEN = f"{OURS} at {WANTED}"
SETTINGS: dict[str, Sequence[Setting]] = {
    CHOSEN: [setting for setting in Genius.settings if setting["rerank"] <= SearchParams().rerank],
    "Faiss IVF-RaBitQ": grid(nprobe=(32, 64, 128, 256, 512, 1024, 2048, 3968), compared=(50, 200, 600)),
    "LanceDB IVF-PQ": grid(nprobe=(20, 80, 320, 1000), compared=(100, 300, 1000)),
}
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


Search = Callable[[Floats, Setting], NDArray[np.int64]]


def filtered_search(name: str, contender: Contender, allowed: NDArray[np.bool_]) -> Search:
    """The search of an algorithm under a filter; what can be prepared once per filter is."""
    algorithm = contender.algorithm
    if isinstance(algorithm, Genius):
        engine = algorithm.engine

        def genius(queries: Floats, setting: Setting) -> NDArray[np.int64]:
            target = np.full(len(queries), TARGET)
            params = SearchParams(plan="scan", rerank=int(setting.get("rerank", SearchParams().rerank)))
            rows: NDArray[np.int64] = engine.search(queries, k=K, params=params, target=target, allowed=allowed).rows
            return rows

        return genius
    if isinstance(algorithm, Lance):
        lance = algorithm
        where = f"rank < {int(allowed.sum())}"

        def lancedb(queries: Floats, setting: Setting) -> NDArray[np.int64]:
            lance.set(setting)
            return lance.query(queries, K, where)

        return lancedb
    assert isinstance(algorithm, Faiss)
    index = algorithm.index
    bits = np.packbits(allowed, bitorder="little")  # Faiss keeps a pointer to it
    selector = faiss.IDSelectorBitmap(bits)

    def with_selector(queries: Floats, setting: Setting) -> NDArray[np.int64]:
        assert len(bits)
        if name == FLAT:
            own = faiss.SearchParameters(sel=selector)
        else:
            inner = faiss.SearchParametersIVF(nprobe=int(setting["nprobe"]), sel=selector)
            own = faiss.IndexRefineSearchParameters(k_factor=setting["compared"] / K, base_index_params=inner)
        rows: NDArray[np.int64] = index.search(queries, K, params=own)[1]
        return rows

    return with_selector


def timed(search: Search, queries: Floats, setting: Setting, batch: int) -> tuple[NDArray[np.int64], float]:
    """Rows, and processor milliseconds per query."""
    start = time.process_time()
    found = [search(queries[at : at + batch], setting) for at in range(0, len(queries), batch)]
    return np.concatenate(found), 1e3 * (time.process_time() - start) / len(queries)


def filters(data: Dataset, names: Sequence[str], keep: Path | None, count: int) -> list[dict[str, Any]]:
    contenders = {name: fitted(name, data, 1, keep) for name in names if name != CHOSEN}
    if CHOSEN in names:
        contenders[CHOSEN] = contenders[OURS]
    queries = data.test[:count]
    lines: list[dict[str, Any]] = []
    for share in SHARES:
        allowed = ranks(len(data.train)) < round(share * len(data.train))
        rows = np.flatnonzero(allowed)
        tries = data.validation[:TRIED]
        tried_truth = exact(data.train, rows, tries)
        truth = exact(data.train, rows, queries)
        searches = {name: filtered_search(name, contender, allowed) for name, contender in contenders.items()}
        chosen = {name: fastest(search, SETTINGS.get(name, ({},)), tries, tried_truth) for name, search in searches.items()}
        own: dict[str, dict[str, Any]] = {}
        for _ in range(ROUNDS):
            for name, search in searches.items():
                found, single = timed(search, queries, chosen[name], 1)
                _, batch = timed(search, queries, chosen[name], BATCH)
                line = own.setdefault(name, {"name": name, "share": share, "items": len(rows), "setting": dict(chosen[name])})
                line["recall@10"] = round(shared(found, truth), 4)
                line["single_ms"] = round(min(single, line.get("single_ms", np.inf)), 3)
                line["batch_ms"] = round(min(batch, line.get("batch_ms", np.inf)), 3)
        lines += own.values()
        print(*own.values(), sep="\n", flush=True)
    return lines


def fastest(search: Search, settings: Sequence[Setting], queries: Floats, truth: NDArray[np.int64]) -> Setting:
    """The fastest setting that reaches `WANTED`; where none does, the one that finds most."""
    if len(settings) == 1:
        return settings[0]
    points = []
    for setting in settings:
        found, milliseconds = timed(search, queries, setting, 1)
        points.append((shared(found, truth), milliseconds, setting))
    enough = [point for point in points if point[0] >= WANTED]
    if enough:
        return min(enough, key=lambda point: point[1])[2]
    return max(points, key=lambda point: point[0])[2]


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
    parser.add_argument("--rounds", type=int, default=100, help="of replacements")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--algorithms", default=",".join([OURS, FLAT, *SETTINGS]))
    parser.add_argument("--validation", type=int, default=TRIED)
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    data = Dataset.read(args.data)
    body = {**about(args, data), "data": data.name}
    if args.what == "filters":
        body["lines"] = filters(data, args.algorithms.split(","), args.keep, args.queries)
    else:
        body["lines"] = churn(data, args.items, args.rounds, args.queries)
    args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
