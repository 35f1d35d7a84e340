"""What the item bias does to exhaustive search: hit@1 and hit@5 by the size of the bank, candidates seen in training and not.

    python -m lab.item_bias FOLDER --output lab/results/item_bias_fashion.json

FOLDER: vectors and queries as `python -m lab.front.data` writes them. The bank is made of `learn` queries, hits are counted on
`test` queries, and the target modality is given. "unseen": candidates that no `learn` query asks for. Temperature and weight are
those of `QueryBank`; nothing is chosen here.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genius.model.query_bank import PSEUDO_QUERIES, TEMPERATURE, QueryBank

SIZES = (0, 100, 500, 2000, 8000)
MOST_QUERIES = 1500  # test queries per task
SOURCES = {"image": 0, "text": 1, "image+text": 2}


def measure(folder: Path, seed: int) -> list[dict[str, Any]]:
    """One line per task, candidates and size of the bank."""
    vectors = torch.from_numpy(np.load(folder / "z.npy").astype(np.float32))
    modality = torch.from_numpy(np.load(folder / "modality.npy").astype(np.int64))
    with np.load(folder / "queries.npz") as file:
        queries = torch.from_numpy(file["z"].astype(np.float32))
        target = torch.from_numpy(file["target"].astype(np.int64))
        tasks, split, pairs = file["tasks"], file["split"], file["positives"]
    positives: dict[int, set[int]] = {}
    seen = torch.zeros(len(vectors), dtype=torch.bool)
    for query, item in pairs.tolist():
        positives.setdefault(query, set()).add(item)
        if split[query] == "learn":
            seen[item] = True
    generator = torch.Generator().manual_seed(seed)
    lines = []
    for task in sorted(set(tasks.tolist())):
        learn = _shuffled(np.flatnonzero((tasks == task) & (split == "learn")), generator)
        test = _shuffled(np.flatnonzero((tasks == task) & (split == "test")), generator)[:MOST_QUERIES]
        wanted = int(target[test[0]])
        source = SOURCES[task.split("->")[0]]
        for candidates in ("unseen", "all"):
            rows = ((modality == wanted) & (~seen | (candidates == "all"))).nonzero()[:, 0]
            for size in SIZES:
                own = queries[learn[:size]]
                bank = QueryBank(own.numpy(), np.full(len(own), source), np.full(len(own), wanted))
                bias = torch.from_numpy(bank.item_bias(vectors[rows].numpy(), source, wanted))
                hits = _hits(queries[test], vectors[rows], bias, rows, [positives[int(query)] for query in test])
                line = {"task": task, "candidates": candidates, "items": len(rows), "bank": len(own), "queries": len(test)}
                lines.append({**line, "hit@1": hits[0], "hit@5": hits[1]})
                print(json.dumps(lines[-1]), flush=True)
                if len(own) < size:
                    break
    return lines


def _shuffled(rows: Any, generator: torch.Generator) -> Tensor:
    order = torch.randperm(len(rows), generator=generator)
    return torch.from_numpy(rows)[order]


def _hits(queries: Tensor, vectors: Tensor, bias: Tensor, rows: Tensor, positives: list[set[int]]) -> tuple[float, float]:
    """hit@1 and hit@5."""
    first, five = 0, 0
    for start in range(0, len(queries), 256):
        scores = queries[start : start + 256] @ vectors.T - bias
        top = rows[scores.topk(5, 1).indices].tolist()
        for found, right in zip(top, positives[start : start + 256], strict=True):
            first += found[0] in right
            five += bool(right.intersection(found))
    return round(first / len(queries), 4), round(five / len(queries), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    about = {
        "command": "python -m lab.item_bias",
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "seed": args.seed,
        "device": "CPU",
        "threads": torch.get_num_threads(),
        "temperature": TEMPERATURE,
        "pseudo_queries": PSEUDO_QUERIES,
    }
    lines = measure(args.folder, args.seed)
    args.output.write_text(json.dumps({**about, "lines": lines}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
