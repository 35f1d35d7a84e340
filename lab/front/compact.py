"""What the scan's codes find without vectors, how many vectors must be compared, and a second code in place of vectors.

    python -m lab.front.compact FILE.hdf5 --out RESULT.json [--keep FOLDER]

Candidates are the best by the codes of `Scan`, of `PROBED` cells. A second product code (8 bits) describes what the first leaves
of the residual, in the same metric and directed to the same queries; candidates are ranked by the sum of both, and no vector is
read. It is fitted and applied here, and is no part of the package: the figures say what 8, 64 and 128 bytes in place of 512 would
cost. A product code of 24 bytes that takes the place of the first is measured, too. Only candidates by the first are encoded.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import faiss as faiss_library
import numpy as np

from genius.search.cells import Cells, ProductEncoder, _balanced_directions, _product_quantizer, directed_codes
from lab.front.data import Dataset
from lab.front.ours import TARGET, Genius
from lab.front.run import OURS, K, about, fitted

faiss: Any = faiss_library
PROBED = 384  # cells
COUNTS = (10, 50, 100, 150, 200, 300, 400, 500, 600, 800, 1200)  # candidates
SECOND_BYTES = (8, 64, 128)
SECOND_CANDIDATES = 400
ALONE_BYTES = 24
ALONE_CANDIDATES = 1_200
SECOND_QUERIES = 100  # the candidates of more would have to be encoded
WITHIN = (10, 50, 100, 150, 200)
FITTED_ON = 40_000  # items


class Second:
    """A product code of 8 bits: of what the first code leaves, or, `alone`, in its place."""

    def __init__(self, cells: Cells, items: Any, queries: Any, bytes_per_item: int, alone: bool = False) -> None:
        self.cells = cells
        self.items = items
        self.alone = alone
        self.padding = -cells.width % bytes_per_item  # dimensions that are zero
        first = cells.arrays()
        cell_of_row = np.empty(len(items), np.int64)
        cell_of_row[first["rows"]] = np.repeat(np.arange(cells.count), first["sizes"])
        codes = np.empty_like(first["codes"])
        codes[first["rows"]] = first["codes"]
        self.cell = cell_of_row
        self.first = _product_quantizer(cells.codebooks)
        self.codes = codes
        sample = np.random.default_rng(0).permutation(len(items))[:FITTED_ON]
        left = self.left(sample)
        self.rotation = _balanced_directions(left, bytes_per_item)
        self.quantizer = faiss.ProductQuantizer(left.shape[1], bytes_per_item, 8)
        self.quantizer.cp.niter = 10
        self.quantizer.cp.max_points_per_centroid = 128
        self.quantizer.train(np.ascontiguousarray(left @ self.rotation.T))
        self.codebooks = faiss.vector_to_array(self.quantizer.centroids).reshape(bytes_per_item, 256, -1)
        self.encoder = ProductEncoder(cells.means, cells.item_transform, cells.query_transform, cells.codebooks, queries)

    def encode(self, rows: Any) -> Any:
        """(n, bytes) second codes."""
        left = np.ascontiguousarray(self.left(rows) @ self.rotation.T)
        directions = self.padded(self.encoder.directions(self.items[rows])) @ self.rotation.T
        return directed_codes(self.quantizer.compute_codes(left).astype(np.int64), self.codebooks, left, directions)

    def padded(self, vectors: Any) -> Any:
        """(n, D) with dimensions of zeros, so that every code has as many."""
        return np.pad(vectors, ((0, 0), (0, self.padding)))

    def left(self, rows: Any) -> Any:
        """(n, D) residuals, less their first code where there is one, in the metric."""
        residual = (self.items[rows] - self.cells.means[self.cell[rows]]) @ self.cells.item_transform
        if self.alone:
            return self.padded(residual)
        return self.padded(residual - self.first.decode(np.ascontiguousarray(self.codes[rows])))

    def first_scores(self, query: Any, rows: Any) -> Any:
        """q . (mean + first code): the scan's own scores are rounded."""
        of_cells = self.cells.means[self.cell[rows]] @ query
        if self.alone:
            return of_cells
        decoded = self.first.decode(np.ascontiguousarray(self.codes[rows]))
        return of_cells + decoded @ (query @ self.cells.query_transform)

    def scores(self, query: Any, rows: Any, codes: Any) -> Any:
        """First scores plus q . second code, by look-up tables."""
        seen = self.padded((query @ self.cells.query_transform)[None]) @ self.rotation.T
        table = np.empty((1, self.quantizer.M, 256), np.float32)
        self.quantizer.compute_inner_prod_tables(1, faiss.swig_ptr(np.ascontiguousarray(seen)), faiss.swig_ptr(table))
        return self.first_scores(query, rows) + table[0][np.arange(self.quantizer.M), codes].sum(1)


def with_second(second: Second, data: Dataset, found: Any, count: int) -> dict[str, Any]:
    """recall@10 of the best of `count` candidates by all their codes, and processor milliseconds of ranking them."""
    ranked = []
    seconds = 0.0
    queries = min(SECOND_QUERIES, len(data.test))
    for query, rows in zip(data.test[:queries], found[:queries, :count], strict=True):
        rows = rows[rows >= 0]
        codes = second.encode(rows)
        start = time.process_time()
        scores = second.scores(query, rows, codes)
        ranked.append(rows[np.argsort(-scores)])
        seconds += time.process_time() - start
    within = {
        str(best): round(
            float(np.mean([np.isin(near[:K], own[:best]).mean() for near, own in zip(data.neighbors, ranked, strict=False)])), 4
        )
        for best in WITHIN
    }
    return {"queries": queries, "recall@10": within[str(K)], "within": within, "ranking_ms": round(1e3 * seconds / queries, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--queries", type=int, default=200)
    parser.set_defaults(validation=0)
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    data = Dataset.read(args.data)
    data.test = data.test[: args.queries]
    data.neighbors = data.neighbors[: args.queries]
    genius = fitted(OURS, data, 1, args.keep).algorithm
    assert isinstance(genius, Genius)
    cells = genius.engine.scan.prepare().cells[TARGET]
    start = time.process_time()
    found = np.concatenate([cells.search(query[None], max(COUNTS), PROBED)[1] for query in data.test])
    scan_ms = 1e3 * (time.process_time() - start) / len(data.test)
    true = data.neighbors[:, :K]
    by_count = {
        str(count): round(float(np.mean([np.isin(near, own[:count]).mean() for near, own in zip(true, found, strict=True)])), 4)
        for count in COUNTS
    }
    memory = genius.memory_bytes / len(data.train)
    body: dict[str, Any] = {
        **about(args, data),
        "data": data.name,
        "cells": cells.count,
        "probed": PROBED,
        "scan_ms": round(scan_ms, 3),
        "code_bytes": int(cells.index.code_size),
        "memory_bytes_per_item": round(memory, 1),
        "recall_by_candidates": by_count,
        "second": [],
    }
    for size in (ALONE_BYTES, *SECOND_BYTES):
        alone = size == ALONE_BYTES
        count = ALONE_CANDIDATES if alone else SECOND_CANDIDATES
        in_all = memory + size - alone * body["code_bytes"]
        line = {"bytes": size, "alone": alone, "bytes_in_all": round(in_all, 1), "candidates": count}
        line |= with_second(Second(cells, data.train, data.learn, size, alone), data, found, count)
        print(json.dumps(line), flush=True)
        body["second"].append(line)
    args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: body[name] for name in ("scan_ms", "recall_by_candidates", "memory_bytes_per_item")}))


if __name__ == "__main__":
    main()
