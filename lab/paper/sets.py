"""Small sets of fashion and icons for the paper's analyses: features of one width, and what each candidate looks like.

    python -m lab.paper.sets fashion OUT --features FOLDER --pictures PARQUET --size 1500
    python -m lab.paper.sets icons   OUT --features FOLDER --pictures ICONS   --size 8000

`OUT/train` has no candidate that answers a test query, `OUT/test` is over all; `OUT/items.jsonl` and `OUT/pictures` are for
cards of codes (`python -m lab reproduce figure-3 --items`). The pictures are other people's: they stay where they are made.
Towers of two widths become one by the heads of `lab.paper.fair`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from genius.data import open_collection
from genius.data.features import FeatureSet
from lab.accuracy import without
from lab.paper.fair import Bench, Job
from lab.paper.parts import Parts


def smaller(parts: Parts, size: int) -> Parts:
    """About so many candidates, drawn once; queries that none of them answers are left out."""
    names = parts.test.pool_ids
    drawn = torch.randperm(len(names), generator=torch.Generator().manual_seed(0))[:size]
    kept = {names[row] for row in drawn.tolist()}
    return parts.map(lambda part: without(part, torch.tensor([name not in kept for name in part.pool_ids])))


def fashion_items(source: Path, folder: Path, products: int) -> Iterator[dict[str, Any]]:
    """Photo p, title N + p, pair 2N + p, as `lab.fashion.data.load` numbers them."""
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    for part in sorted(source.glob("products-*.parquet")):
        if len(rows) < products:
            rows += pq.read_table(part, columns=["title", "image", "articleType", "baseColour"]).to_pylist()
    for number, row in enumerate(rows[:products]):
        path = folder / f"{number}.jpg"
        path.write_bytes(row["image"])
        title = row["title"] or f"{row['baseColour']} {row['articleType']}"
        yield {"id": str(number), "image": str(path)}
        yield {"id": str(products + number), "text": title}
        yield {"id": str(2 * products + number), "image": str(path), "text": title}


def icon_items(source: Path) -> Iterator[dict[str, Any]]:
    """In the order of the pool, as `lab.icons.vectors` numbers them."""
    for number, item in enumerate(open_collection(f"mbeir:{source}", split="test", seed=0).pool()):
        yield {"id": str(number), **{key: str(value) for key in ("image", "text") if (value := getattr(item, key)) is not None}}


def build(data: str, out: Path, features: Path, pictures: Path | None, size: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as work:
        few = {"encoder.steps": steps, "encoder.batch": 256}
        job = Job(0, (), data, features, Path(work), size if data == "fashion" else None, few)
        parts = Bench(job).through_heads()
    if data == "icons":
        parts = smaller(parts, size)
    sets: dict[str, FeatureSet] = {"train": parts.train, "test": replace(parts.test, pools={})}
    for name, part in sets.items():
        part.save(out / name)
        print(f"{out / name}: {len(part.queries):,} questions, {len(part.pool):,} candidates", flush=True)
    if pictures is None:
        return
    (out / "pictures").mkdir(exist_ok=True)
    if data == "fashion":
        known = fashion_items(pictures, out / "pictures", size)
    else:
        known = icon_items(pictures)
    wanted = set(parts.test.pool_ids)
    lines = [json.dumps(item) for item in known if item["id"] in wanted]
    (out / "items.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["fashion", "icons"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, help="what candidates look like, for cards of codes")
    parser.add_argument("--size", type=int, default=1500, help="products of fashion, candidates of icons")
    parser.add_argument("--steps", type=int, default=400, help="of the heads")
    args = parser.parse_args()
    build(args.data, args.out, args.features, args.pictures, args.size, args.steps)


if __name__ == "__main__":
    main()
