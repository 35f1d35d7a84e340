"""recall@k of the default search for k = 10, 100 and 1,000, against exhaustive search.

    python -m lab.front.depth FILE.hdf5 --sizes 20000,160000 --out lab/front/results/depth_fashion.json

FILE: a benchmark of `lab.front.data`; of its items the first of each size are searched. The default search picks its own plan and
its own effort: no setting is chosen here. `considered` is how many items the result says it has looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import faiss
import h5py
import numpy as np
from numpy.typing import NDArray

from genius.model.query_bank import QueryBank
from genius.search import SearchParams
from lab import provenance
from lab.front.ours import TARGET, TEXT
from lab.front.sizes import engine_of

DEPTHS = (10, 100, 1000)
FLAT = SearchParams(plan="flat")
Floats = NDArray[np.float32]


def measured(items: Floats, queries: Floats, learn: Floats) -> list[dict[str, Any]]:
    """One line per k over one collection."""
    bank = QueryBank.of(learn, np.full(len(learn), TEXT), np.full(len(learn), TARGET))
    engine = engine_of(items, np.full(len(items), TARGET), bank, None)
    target = np.full(len(queries), TARGET)
    lines = []
    for k in DEPTHS:
        truth = engine.search(queries, k=k, params=FLAT, target=target).rows
        found = engine.search(queries, k=k, target=target)
        shared = [len(np.intersect1d(own, best)) / k for own, best in zip(found.rows, truth, strict=True)]
        line = {"items": len(items), "k": k, "plan": found.plan, "recall": round(float(np.mean(shared)), 4)}
        line["least"] = round(float(np.min(shared)), 4)
        line["considered"] = int(np.max(np.asarray(found.considered)))
        lines.append(line)
        print(json.dumps(line), flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sizes", default="20000,160000")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    given = shlex.join(Path(part).name if "/" in part else part for part in sys.argv[1:])
    body: dict[str, Any] = {
        "command": f"python -m lab.front.depth {given}",
        **provenance(),
        "threads": 1,
        "queries": args.queries,
        "lines": [],
    }
    with h5py.File(args.file) as file:
        queries = np.asarray(file["test"][: args.queries], np.float32)
        learn = np.asarray(file["learn"], np.float32)
        for size in map(int, args.sizes.split(",")):
            body["lines"] += measured(np.asarray(file["train"][:size], np.float32), queries, learn)
    args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
