"""hit@5 of the default search with an unknown target beside dense search that is given it, by the size of the collection.

    python -m lab.front.sizes VECTORS --out lab/front/results/sizes_fashion.json [--sizes 1000,20000,50000,160000] [--seeds 3]

VECTORS: the folder `vectors` in WORK of `python -m lab.above_dense train`, or that of `lab.front.packed`. A seed draws the test
queries, the items around their positives, and the queries of the bank. Collections larger than the data are filled by the rule of
`lab.front.data`, each modality by itself. The default search picks its own plan; its bank is what `genius train` would keep. IDs
and decoder take no part in it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import faiss
import numpy as np
from numpy.typing import NDArray

from genius.model.query_bank import QueryBank
from genius.search import CodeTrie, LazyPart, SearchEngine, SearchParams
from lab import current_commit
from lab.front.data import filled
from lab.trained import Bench

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Hits = dict[str, list[bool]]  # task -> one per query

LEVELS = (3, 2)
K = 5
PER_TASK = 500  # test queries, at most
SMALL = 5_000  # items below which few queries have their positives in one collection,
DRAWS = 10  # so several collections are drawn
POSITIVES = 0.5  # of the items, at most
DENSE = SearchParams(plan="flat", item_bias=False)
SEARCHES = {
    "default": SearchParams(),
    "default, no item bias": SearchParams(item_bias=False),
    "compared whole, item bias": SearchParams(plan="flat"),
}


def drawn(bench: Bench, size: int, random: np.random.Generator, per_task: int) -> tuple[Ints, Ints]:
    """Test queries (n,), and item rows (m,) that hold all their positives, m <= size."""
    tasks = bench.test.tasks
    by_task = [random.permutation(np.flatnonzero(tasks == task))[:per_task].tolist() for task in sorted(set(tasks.tolist()))]
    queries: list[int] = []
    needed: set[int] = set()
    for place in range(per_task):
        for own in by_task:  # the tasks in turn
            if place >= len(own):
                continue
            with_own = needed.union(bench.test.positives[own[place]])
            if len(with_own) <= POSITIVES * size:
                needed = with_own
                queries.append(own[place])
    others = np.setdiff1d(np.arange(len(bench.items)), np.array(sorted(needed)))
    more = random.permutation(others)[: max(0, size - len(needed))]
    return np.array(queries), np.sort(np.concatenate([np.array(sorted(needed)), more]))


def collection(bench: Bench, rows: Ints, size: int, seed: int) -> tuple[Floats, Ints]:
    """Vectors and modalities of the rows, then of filling up to `size`."""
    vectors = [bench.items[rows]]
    modality = [bench.modality[rows]]
    missing = size - len(rows)
    for one in range(3):
        own = vectors[0][modality[0] == one]
        count = missing // 3 + (missing % 3 > one)
        if missing > 0:
            vectors.append(filled(own, len(own) + count, seed)[len(own) :])
            modality.append(np.full(count, one))
    return np.concatenate(vectors), np.concatenate(modality)


def engine_of(vectors: Floats, modality: Ints, bank: QueryBank, biased: QueryBank | None) -> SearchEngine:
    codes = np.stack([modality, np.zeros_like(modality)], 1)
    part = LazyPart(SimpleNamespace(level_sizes=LEVELS, width=vectors.shape[1], labelled=True), lambda: None)
    trie = CodeTrie.build(codes, LEVELS)
    return SearchEngine(part, None, trie, vectors.astype(np.float16), bank=bank, bias_bank=biased)


def add_hits(hits: Hits, bench: Bench, queries: Ints, rows: Ints, found: Ints) -> None:
    """Whether a positive is among `found` (n, K), places in the collection whose first are `rows`."""
    for query, own in zip(queries.tolist(), found.tolist(), strict=True):
        items = {int(rows[place]) for place in own if 0 <= place < len(rows)}
        hits.setdefault(str(bench.test.tasks[query]), []).append(not items.isdisjoint(bench.test.positives[query]))


def measured(folder: Path, size: int, seed: int, per_task: int) -> dict[str, Any]:
    """One line: hit@5 of every task and search, and its share of dense search that is given the target."""
    bench = Bench(folder, seed)
    bank, biased = bench.trained_bank()
    random = np.random.default_rng(seed)
    names = ["dense, target given", *SEARCHES]
    hits: dict[str, Hits] = {name: {} for name in names}
    plans: set[str] = set()
    draws = DRAWS if size < SMALL else 1
    for _ in range(draws):
        queries, rows = drawn(bench, size, random, per_task)
        engine = engine_of(*collection(bench, rows, size, seed), bank, biased)
        for first in range(0, len(queries), 256):
            part = queries[first : first + 256]
            z = bench.test.z[part]
            dense = engine.search(z, k=K, params=DENSE, target=bench.test.target[part])
            add_hits(hits["dense, target given"], bench, part, rows, dense.rows)
            for name, params in SEARCHES.items():
                result = engine.search(z, k=K, params=params, modality=bench.test.modality[part])
                if params.plan == "auto":
                    plans.add(result.plan)
                add_hits(hits[name], bench, part, rows, result.rows)
    line: dict[str, Any] = {"items": size, "seed": seed, "collections": draws, "plan": sorted(plans), "hit@5": {}, "share": {}}
    reference = hits["dense, target given"]
    line["queries"] = {task: len(own) for task, own in sorted(reference.items())}
    for name in names:
        rates = {task: sum(own) / len(own) for task, own in sorted(hits[name].items())}
        line["hit@5"][name] = {task: round(rate, 4) for task, rate in rates.items()}
        if name in SEARCHES:
            line["share"][name] = {task: round(sum(own) / max(1, sum(reference[task])), 4) for task, own in hits[name].items()}
    return line


def _of(folder: Path) -> dict[str, Any]:
    """Benchmark and real items behind the vectors."""
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    return {"benchmark": about["benchmark"], "real_items": about["items"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", default="1000,20000,50000,160000")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--per-task", type=int, default=PER_TASK, help="test queries of a task, at most")
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    given = shlex.join(Path(part).name if "/" in part else part for part in sys.argv[1:])
    body: dict[str, Any] = {
        "command": f"python -m lab.front.sizes {given}",
        "commit": current_commit(),
        "date": datetime.date.today().isoformat(),
        "device": "CPU",
        "threads": 1,
        **_of(args.vectors),
        "lines": [],
    }
    for size in map(int, args.sizes.split(",")):
        for seed in range(args.seeds):
            line = measured(args.vectors, size, seed, args.per_task)
            print(json.dumps(line), flush=True)
            body["lines"].append(line)
            args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
