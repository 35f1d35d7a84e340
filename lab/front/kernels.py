"""Which kernel should look up codes: numba, numpy, torch, or Faiss' own scan of additive codes. Processor ms a question.

    python -m lab.front.kernels --out lab/front/kernels.json [--items 30000]

The same random codes (8 of 512) in one stretch for everyone; Faiss scans a residual quantizer of that shape, its codes packed.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.front.run import best_of

LEVELS, SIZE, WIDTH, REPEATS = 8, 512, 256, 20


def contenders(items: int) -> dict[str, Callable[[], Any]]:
    import faiss
    import numba

    random = np.random.default_rng(0)
    codes = random.integers(0, SIZE, (items, LEVELS)).astype(np.uint16)
    table = random.standard_normal(LEVELS * SIZE).astype(np.float32)
    starts = np.arange(LEVELS) * SIZE

    def by_numpy() -> Any:
        scores = np.zeros(items, np.float32)
        for level in range(LEVELS):
            scores += table[starts[level] :][codes[:, level]]
        return scores

    @numba.njit  # type: ignore[untyped-decorator]
    def loop(codes: Any, table: Any, starts: Any, scores: Any) -> None:
        for i in range(len(codes)):
            score = np.float32(0)
            for level in range(len(starts)):
                score += table[starts[level] + codes[i, level]]
            scores[i] = score

    scores = np.empty(items, np.float32)
    signed, placed = torch.from_numpy(codes.view(np.int16)), torch.from_numpy(table)
    first = torch.from_numpy(starts)

    def gathered() -> Any:
        return placed[signed.long() + first].sum(1)

    def bag() -> Any:
        return torch.nn.functional.embedding_bag(signed.long() + first, placed[:, None], mode="sum")

    faiss.omp_set_num_threads(1)
    by_table = faiss.AdditiveQuantizer.ST_LUT_nonorm
    make: Any = faiss.IndexResidualQuantizer
    index = make(WIDTH, LEVELS, 9, faiss.METRIC_INNER_PRODUCT, by_table)
    vectors = random.standard_normal((items, WIDTH)).astype(np.float32)
    index.rq.train_type, index.rq.max_beam_size = faiss.ResidualQuantizer.Train_default, 1
    index.rq.cp.niter, index.rq.cp.min_points_per_centroid = 1, 1
    index.train(vectors[:4096])
    index.add(vectors)
    query = vectors[:1]
    return {
        "numba": lambda: loop(codes, table, starts, scores),
        "numpy": by_numpy,
        "torch, gather and sum": gathered,
        "torch, embedding bag": bag,
        "Faiss, residual quantizer (tables and the best 400 included)": lambda: index.search(query, 400),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--items", type=int, default=30_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name, call in contenders(args.items).items():
        found[name] = round(1e3 * best_of(lambda call=call: [call() for _ in range(REPEATS)]) / REPEATS, 3)  # type: ignore[misc]
    body = {
        "date": datetime.date.today().isoformat(),
        "items": args.items,
        "levels": LEVELS,
        "codes": SIZE,
        "threads": 1,
        "ms": found,
    }
    args.out.write_text(json.dumps(body, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
