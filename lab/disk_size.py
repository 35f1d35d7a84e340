"""Bytes on disk per item of an index with vectors and of one without, and how far their results agree.

    python -m lab.disk_size --items 20000 --out lab/results/disk_size.json

Items are short made-up phrases without thumbnails or metadata, of the bundled model (width 256). Bytes are those of the folder
after `genius optimize`, the cache that it leaves included. Queries are other phrases; the agreement is the share of the ten best
hits by vectors that are among the ten best by codes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from genius import Genius, Index, Item
from genius.encoders.base import encode_items
from genius.fit.synthetic_queries import WORDS
from genius.index import Hits
from lab import provenance


def phrases(count: int, seed: int) -> list[str]:
    """Different phrases of three words."""
    random = np.random.default_rng(seed)
    words = sorted({word for phrase in WORDS for word in phrase.split() if len(word) > 2})
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(random.choice(words, 3))] = None
    return list(found)


def built(
    model: Genius, items: list[Item], features: Any, queries: list[str], vectors: bool
) -> tuple[dict[str, Any], list[Hits]]:
    """Size of an index of these items, and what it finds."""
    with tempfile.TemporaryDirectory() as folder:
        index = Index(Path(folder) / "sized.genius", model, thumbnails=0, vectors=vectors)
        index.add(items, features=features, batch_size=4096)
        index.optimize(keep=timedelta(0))
        found = index.search_many(queries)
        size = index.info()["bytes"]
    return {"vectors": vectors, "bytes": size, "bytes_per_item": round(size / len(items), 1), "plan": found[0].plan}, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = Genius.from_pretrained("bundled:mini")
    assert model.encoder is not None
    made = phrases(args.items + args.queries, args.seed)
    items = [Item(f"item-{number:06}", text=text) for number, text in enumerate(made[: args.items])]
    features, _, _ = encode_items(model.encoder, items)
    lines = []
    hits = []
    for vectors in (True, False):
        line, found = built(model, items, features, made[args.items :], vectors)
        lines.append(line)
        hits.append(found)
        print(json.dumps(line), flush=True)
    shared = [len({hit.id for hit in a} & {hit.id for hit in b}) / 10 for a, b in zip(*hits, strict=True)]
    body = {
        "command": f"python -m lab.disk_size --items {args.items} --queries {args.queries} --seed {args.seed}",
        **provenance(),
        "threads": 1,
        "width": model.config.width,
        "levels": list(model.config.quantizer.level_sizes),
        "items": args.items,
        "queries": args.queries,
        "seed": args.seed,
        "lines": lines,
        "agreement_at_10": round(float(np.mean(shared)), 3),
    }
    args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
