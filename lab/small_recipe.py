"""`builtin:small` on 2,000 pairs: how long it takes and what it keeps.

    python -m lab.small_recipe FEATURES OUT.json            (FEATURES: lab.fashion.data)

Titles -> photos of 2,000 products through frozen towers; a tenth of the titles is held out and judges the result.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from genius.data.features import FeatureSet
from genius.train import train
from genius.train.config import read_train_config
from genius.train.journal import table, verdict
from lab.fashion.data import load

PAIRS = 2000
HEADS = {"encoder.steps": 300, "encoder.batch": 256}  # the towers have no common space


def pairs(folder: Path, count: int) -> FeatureSet:
    fashion = load(folder, count)
    products = len(fashion.pool) // 3
    photos, titles = fashion.pool[slice(0, products)], fashion.pool[slice(products, 2 * products)]
    names = [str(i) for i in range(products)]
    return FeatureSet(titles, photos, torch.arange(products)[:, None].repeat(1, 2), names, names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--config", default="builtin:small")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    data = pairs(args.features, args.pairs)
    with tempfile.TemporaryDirectory() as folder:
        config = read_train_config(args.config, {"output": folder, "seed": args.seed, "device": "cpu", **HEADS})
        started, used = time.monotonic(), time.process_time()
        trained = train(config, data)
        wall, cpu = time.monotonic() - started, time.process_time() - used
    values = trained.metrics["generator"]
    body: dict[str, Any] = {
        "what": "titles -> photos of fashion products through frozen towers; a tenth of the titles held out",
        "date": datetime.date.today().isoformat(),
        "config": args.config,
        "changes": HEADS,
        "seed": args.seed,
        "pairs": len(data.pairs),
        "threads": torch.get_num_threads(),
        "cpu_seconds": round(cpu, 1),
        "seconds": round(wall, 1),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "held out": {name: round(value, 4) for name, value in values.items() if "hit@" in name},
        "verdict": verdict(values, "heads" if trained.heads is not None else "none"),
    }
    print("\n".join(table(values)))
    args.output.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
