"""Icon benchmark -> vectors of a frozen encoder -> training, validation and test sets in feature form.

    python -m lab.icons.vectors ICONS OUT [--encoder bundled:mini]     (about 30 minutes on one core; ICONS: docs/icons.md)

Every distinct picture and text is encoded once; started again after a stop, it goes on where it was. `OUT` holds `images.npz`,
`texts.npz` (int8 rows, one scale each) and `rows.npz` (who uses which, all positives), small enough to travel. All three splits
share the pool of all icons.
"""

from __future__ import annotations

import argparse
import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genius.data import open_collection
from genius.data.features import FeatureSet
from genius.encoders import load_encoder
from genius.features import Features
from genius.files import write_whole
from genius.types import format_text, load_image, query_text

SPLITS = ("train", "val", "test")
STEPS = 50  # batches whose vectors are written at a time
A_TASK = 12_000  # training queries of a task, drawn once with seed 0


def packed(rows: Tensor) -> dict[str, np.ndarray]:
    """int8 rows and the scale of each: both sides of every comparison see the same rounded vectors."""
    scale = (rows.abs().amax(1, keepdim=True) / 127).clamp(min=1e-8)
    return {"rows": (rows / scale).round().to(torch.int8).numpy(), "scale": scale.half().numpy()}


def unpacked(file: Path) -> Tensor:
    with np.load(file) as arrays:
        return torch.from_numpy(arrays["rows"].astype(np.float32) * arrays["scale"].astype(np.float32))


def extract(icons: Path, output: Path, uri: str, items: int | None = None, per_task: int | None = None) -> None:
    """Encode a benchmark.

    Args:
        icons: The benchmark, as docs/icons.md builds it.
        output: Folder of the arrays.
        uri: The encoder.
        items: Only so many candidates, drawn at random with seed 0, and the queries that have positives among them; None: all.
        per_task: At most so many queries of each task and split; None: `A_TASK` for training, all others.
    """
    encoder = load_encoder(uri)
    collections = {split: open_collection(f"mbeir:{icons}", split=split, seed=0) for split in SPLITS}
    pool = list(collections["test"].pool())
    if items is not None:
        pool = random.Random(0).sample(pool, min(items, len(pool)))
    place = {item.id: row for row, item in enumerate(pool)}
    images: dict[str, int] = {}
    texts: dict[str, int] = {}

    def at(names: dict[str, int], name: object | None) -> int:
        return -1 if name is None else names.setdefault(str(name), len(names))

    arrays: dict[str, list[Any]] = {
        "pool_image": [at(images, item.image) for item in pool],
        "pool_text": [at(texts, None if item.text is None else format_text(item.text)) for item in pool],
    }
    names: dict[int, str] = {}
    for split, collection in collections.items():
        by_task: dict[int, list[Any]] = {}
        for judged in collection.queries():
            if any(positive in place for positive in judged.positives):
                by_task.setdefault(judged.task, []).append(judged)
        draw = random.Random(0)
        most = per_task
        if most is None and split == "train":
            most = A_TASK
        if most is not None:
            by_task = {task: draw.sample(rows, min(len(rows), most)) for task, rows in by_task.items()}
        queries = [judged for task in sorted(by_task) for judged in by_task[task]]
        arrays[f"{split}_image"] = [at(images, q.query.image) for q in queries]
        arrays[f"{split}_text"] = [at(texts, query_text(q.query)) for q in queries]
        arrays[f"{split}_pairs"] = [(i, place[p]) for i, q in enumerate(queries) for p in q.positives if p in place]
        arrays[f"{split}_task"] = [q.task for q in queries]
        names |= {number: task.direction for number, task in enumerate(collection.tasks)}
    output.mkdir(parents=True, exist_ok=True)

    def encode(what: str, keys: Sequence[str], call: Callable[[Sequence[str]], Tensor], step: int) -> None:
        whole = output / f"{what}.npz"
        if whole.exists() and len(unpacked(whole)) == len(keys):
            return
        files = []
        for first in range(0, len(keys), STEPS * step):
            files.append(output / f"{what}-{first}.npy")
            if files[-1].exists():
                continue
            print(f"{what} {first:,} of {len(keys):,}", flush=True)
            part = keys[first : first + STEPS * step]
            vectors = [call(part[start : start + step]).float().cpu().numpy() for start in range(0, len(part), step)]
            write_whole(files[-1], functools.partial(_save, rows=np.concatenate(vectors)))
        np.savez_compressed(whole, **packed(torch.cat([torch.from_numpy(np.load(file)) for file in files])))  # type: ignore[arg-type]
        for file in files:
            file.unlink()

    with torch.inference_mode():
        encode("texts", list(texts), encoder.encode_texts, 256)
        encode("images", list(images), lambda files: encoder.encode_images([load_image(file) for file in files]), 64)
    write_rows(output, {name: np.array(rows, np.int32) for name, rows in arrays.items()}, names)


def _save(path: Path, rows: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, rows)


def write_rows(output: Path, arrays: dict[str, np.ndarray], names: dict[int, str]) -> None:
    np.savez_compressed(output / "rows.npz", names=np.array([names[i] for i in sorted(names)]), **arrays)  # type: ignore[arg-type]


def load(folder: Path) -> dict[str, FeatureSet]:
    """The three splits, each with its queries and the pool of all icons."""
    images, texts = unpacked(folder / "images.npz"), unpacked(folder / "texts.npz")
    with np.load(folder / "rows.npz") as arrays:
        names = dict(enumerate(arrays["names"].tolist()))

        def features(who: str) -> Features:
            image, text = (torch.from_numpy(arrays[f"{who}_{part}"].astype(np.int64)) for part in ("image", "text"))
            has_image, has_text = image >= 0, text >= 0
            rows = images[image.clamp(min=0)] * has_image[:, None], texts[text.clamp(min=0)] * has_text[:, None]
            return Features(*rows, has_image, has_text)

        pool = features("pool")
        ids = [str(i) for i in range(len(pool))]
        found = {}
        for split in SPLITS:
            queries = features(split)
            pairs, tasks = (torch.from_numpy(arrays[f"{split}_{part}"].astype(np.int64)) for part in ("pairs", "task"))
            found[split] = FeatureSet(queries, pool, pairs, [f"{split}-{i}" for i in range(len(queries))], ids, tasks, names)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("icons", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--encoder", default="bundled:mini")
    parser.add_argument("--items", type=int, help="only so many candidates, at random, and the queries with positives among them")
    parser.add_argument("--per-task", type=int, help="most queries of each task and split")
    args = parser.parse_args()
    extract(args.icons, args.output, args.encoder, args.items, args.per_task)


if __name__ == "__main__":
    main()
