"""An index of vectors from a `.npy` file: time from the file to the first answer, and recall@10 against exhaustive search.

The vectors are synthetic: a mixture of Gaussian clusters of a low intrinsic dimension plus noise, as embeddings have; queries are
held-out draws of the same mixture, of which half are shown to the fit. Recall is measured on the other half. The collection is
larger than 80,000 items, so that the default search is the scan.

    python -m lab.own_vectors --items 100000 --width 768 --out lab/results/own_vectors.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius import Index
from genius.search import SearchParams, SearchRequest

CLUSTERS = 2000
INTRINSIC = 48  # dimensions in which a cluster spreads


def mixture(items: int, width: int, seed: int) -> NDArray[np.float32]:
    """(items, width) draws of the same mixture whatever the seed of the draw."""
    shape = np.random.default_rng(7)
    centres = shape.normal(size=(CLUSTERS, width)).astype(np.float32)
    directions = shape.normal(size=(INTRINSIC, width)).astype(np.float32) / np.sqrt(INTRINSIC)
    chance = np.random.default_rng(seed)
    out = np.empty((items, width), np.float32)
    for first in range(0, items, 10_000):
        rows = min(10_000, items - first)
        spread = chance.normal(size=(rows, INTRINSIC)).astype(np.float32) @ directions
        noise = chance.normal(size=(rows, width)).astype(np.float32)
        out[first : first + rows] = centres[chance.integers(0, CLUSTERS, rows)] + spread + 0.3 * noise
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--queries", type=int, default=1000, help="half are shown to the fit, half are measured")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="own-vectors-"))
    try:
        body = measure(arguments, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(body, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(body, indent=1) + "\n")


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    items = mixture(arguments.items, arguments.width, 100 + arguments.seed)
    queries = mixture(arguments.queries, arguments.width, 200 + arguments.seed)
    half = len(queries) // 2
    np.save(folder / "items.npy", items)
    np.save(folder / "queries.npy", queries[:half])
    report: dict[str, Any] = {}
    for name, options in (("with_queries", ["--query-vectors", str(folder / "queries.npy")]), ("without_queries", [])):
        index = folder / f"{name}.genius"
        started = time.monotonic()
        command = [sys.executable, "-m", "genius", "index", str(folder / "items.npy"), "-o", str(index), "--json", *options]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        indexed = time.monotonic() - started
        report[name] = {
            "index_s": round(indexed, 1),
            "fit_s": json.loads(done.stdout)["fit"]["seconds"],
            **answers(index, items, queries[half:]),
        }
        report[name]["first_answer_s"] = round(indexed + report[name]["open_and_first_search_s"], 1)
        shutil.rmtree(index)
    return {
        "command": " ".join(["python -m lab.own_vectors", *sys.argv[1:]]),
        "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": f"cpu, {os.cpu_count()} cores ({platform.machine()}), shared with other work",
        "threads": torch.get_num_threads(),
        "seed": arguments.seed,
        "items": arguments.items,
        "width": arguments.width,
        "queries_measured": len(queries) - half,
        "queries_shown": half,
        **report,
    }


def answers(path: Path, items: NDArray[np.float32], queries: NDArray[np.float32], k: int = 10) -> dict[str, Any]:
    started = time.monotonic()
    with Index.open(path) as index:
        index.search(vector=queries[0])
        first = time.monotonic() - started
        unit = items / np.linalg.norm(items, axis=1, keepdims=True)
        wanted = [{str(i) for i in np.argpartition(-(unit @ query), k)[:k]} for query in queries]
        out: dict[str, Any] = {"open_and_first_search_s": round(first, 2)}
        for plan in ("auto", "flat"):
            request = SearchRequest(k, params=SearchParams(plan=plan, item_bias=False))
            began = time.monotonic()
            found = [
                index.search_embedded(torch.from_numpy(query / np.linalg.norm(query))[None], request=request)[0]
                for query in queries
            ]
            seconds = time.monotonic() - began
            shares = [len({hit.id for hit in hits} & best) / k for hits, best in zip(found, wanted, strict=True)]
            out[plan] = {
                "plan": found[0].plan,
                "recall_at_10": round(float(np.mean(shares)), 4),
                "ms_per_query": round(1000 * seconds / len(queries), 2),
            }
        return out


if __name__ == "__main__":
    main()
