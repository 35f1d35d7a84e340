"""Which codes, in which metric: recall by codes alone and by how many vectors are compared, without timing.

    python -m lab.front.codes FILE.hdf5 --out RESULT.json [--also OTHER.hdf5] [--share .05]

Every variant scans the same share of the items (cells in the original space) and reports the recall@10 of the best N by
codes, N = 10, 50, 100, 200, 300: on text queries, and on the queries of `--also`, for which the metric was not fitted.
Answers questions about the metric: how many queries its bank needs, shrinkage, power, product codes against fast-scan and
RaBitQ, and which second code can replace fp16 vectors.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from lab.front.algorithms import default_cells
from lab.front.data import Dataset
from lab.front.metric import Cells, MetricIVF, faiss
from lab.front.run import K, about, recall

BEST = (10, 50, 100, 200, 300)
VARIANTS: dict[str, MetricIVF] = {}


def variant(name: str, code: str, refine: str = "", **options: Any) -> None:
    VARIANTS[name] = MetricIVF(code, refine, **options)


variant("PQ16, original space", "PQ16", power=0)
variant("PQ16, queries' metric", "PQ16")
variant("PQ32x4 fast-scan (16 bytes), original space", "PQ32x4fs", power=0)
variant("PQ32x4 fast-scan (16 bytes), queries' metric", "PQ32x4fs")
variant("RaBitQ 1 bit (40 bytes), original space", "RaBitQ", power=0)
variant("RaBitQ 1 bit (40 bytes), queries' metric", "RaBitQ")
variant("PQ16, then PQ64 (80 bytes), queries' metric", "PQ16", "PQ64")
variant("PQ32, queries' metric", "PQ32")
variant("PQ16, bank of 256 queries", "PQ16", bank=256)
variant("PQ16, a quarter of C from items", "PQ16", items_share=0.25)
variant("PQ16, half of C from items", "PQ16", items_share=0.5)
variant("PQ16, shrinkage 1", "PQ16", shrinkage=1.0)
variant("RaBitQ 2 bits (84 bytes), original space", "RaBitQ2", power=0)
variant("RaBitQ 2 bits (84 bytes), queries' metric", "RaBitQ2")
variant("PQ16, then PQ32 (48 bytes), queries' metric", "PQ16", "PQ32")
variant("PQ16, bank of 1,024", "PQ16", bank=1024)
variant("PQ16, shrinkage .3", "PQ16", shrinkage=0.3)
variant("PQ8, queries' metric", "PQ8")
variant("PQ16, power .25", "PQ16", power=0.25)
variant("PQ16, then PQ64 (80 bytes), original space", "PQ16", "PQ64", power=0)
variant("PQ16, then SQ4 (144 bytes), queries' metric", "PQ16", "SQ4")
variant("PQ16, shrinkage .01", "PQ16", shrinkage=0.01)
variant("RaBitQ 1 bit (40 bytes), balanced metric", "RaBitQ", balance=True)


def measured(index: MetricIVF, data: Dataset, queries: int) -> dict[str, float]:
    asked = data.validation[:queries]
    true = data.validation_neighbors[:queries]
    if index.refine:
        found = {}
        for compared in BEST[1:]:
            index.set(index.ivf.nprobe, compared)
            found[str(compared)] = round(recall(index.index.search(asked, K)[1], true), 4)
        return found
    rows = index.index.search(asked, max(BEST))[1]
    hits = [
        [len(set(own[:best].tolist()) & set(near[:K].tolist())) / K for best in BEST]
        for own, near in zip(rows, true, strict=True)
    ]
    return dict(zip(map(str, BEST), np.mean(hits, axis=0).round(4).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--also", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--validation", type=int, default=400)
    parser.add_argument("--only", default="", help="variants whose name contains this")
    parser.set_defaults(queries=0)
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    data = Dataset.read(args.data)
    other = None if args.also is None else Dataset.read(args.also, data.train)
    cells = Cells.fit(data.train, default_cells(data.train))
    nprobe = max(1, round(args.share * len(cells.centroids)))
    body: dict[str, Any] = {**about(args, data), "data": data.name, "nprobe": nprobe, "cells": len(cells.centroids), "lines": []}
    for name, index in VARIANTS.items():
        if args.only not in name:
            continue
        index.build(data.train, data.learn, cells)
        index.set(nprobe, 0)
        line: dict[str, Any] = {"name": name, "text": measured(index, data, args.validation)}
        if other is not None:
            line["other"] = measured(index, other, args.validation)
        print(json.dumps(line), flush=True)
        body["lines"].append(line)
        args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        index.__dict__ = {
            key: index.__dict__[key] for key in ("code", "refine", "shrinkage", "power", "bank", "balance", "items_share")
        }


if __name__ == "__main__":
    main()
