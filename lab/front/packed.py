"""Vectors of a training that were packed on another machine -> the folder that `lab.trained.Bench` reads.

    python -m lab.front.packed PACK.npz FOLDER BENCHMARK     (PACK: `--pack` of `python -m lab.above_dense train`)

The items are those of the pack: what no training query shows, and the positives of held-out queries. Queries of the bank stand
for those of training; their positives are not in the pack.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def unpack(file: Path, folder: Path, benchmark: str) -> None:
    """Write the folder.

    Args:
        file: The pack.
        folder: Of the arrays.
        benchmark: Its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(file) as arrays:
        rows = arrays["rows"]
        np.savez(folder / "items.npz", z=_vectors(arrays, "items"), modality=arrays["modality"], codes=arrays["codes"])
        for name in ("held-out", "validation", "test"):
            pairs = arrays[f"{name}_pairs"].astype(np.int64)
            there = np.isin(pairs[:, 1], rows)
            pairs = np.stack([pairs[there, 0], np.searchsorted(rows, pairs[there, 1])], 1)
            about = {part: arrays[f"{name}_{part}"] for part in ("tasks", "modality", "target")}
            np.savez(folder / f"{name}.npz", z=_vectors(arrays, name), pairs=pairs, **about)
        bank: dict[str, Any] = {part: arrays[f"bank_{part}"] for part in ("modality", "target")}
        tasks = np.full(len(bank["target"]), "training", np.str_)
        np.savez(folder / "learn.npz", z=_vectors(arrays, "bank"), pairs=np.zeros((0, 2), np.int64), tasks=tasks, **bank)
        about = {"benchmark": benchmark, "items": len(rows), "pack": file.name}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _vectors(arrays: Any, name: str) -> NDArray[np.float32]:
    """(n, D) unit vectors."""
    vectors: NDArray[np.float32] = arrays[f"{name}_z"].astype(np.float32) * arrays[f"{name}_scale"].astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("benchmark", choices=["fashion", "icons"])
    args = parser.parse_args()
    unpack(args.pack, args.folder, args.benchmark)


if __name__ == "__main__":
    main()
