"""Do captioned and bare images compete fairly? Images of the demo's packages, some with captions that say nothing of them.

    python -m lab.captions -o lab/results/captions.json

Two-tower encoders put texts near texts, so without care every image with a caption comes before all without. Everyday queries,
which have nothing to do with the captions, should find captioned images as often as there are some: their share among the first
ten is divided by their share in the collection (1 is fair, the bar is 1.5). "without": scores as the encoder gives them. Words
of the captions themselves are the other side: captioned images must still be found by them.

Encoders: that of `bundled:mini`, and a small CLIP (transformers layout) trained here on the names of other images. Both are used
as `genius index --encoder` uses any: nothing is fitted. A constructed gap between random vectors has no encoder at all. The
trained model `bundled:mini` has one scale for all modalities: its results must not depend on any of this.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clip_shape import write_clip_shape

from genius.demo import demo_items
from genius.encoders import load_encoder
from genius.encoders.base import encode_items
from genius.features import Features
from genius.fit import Unfitted, unfitted_model
from genius.index import Index, searching
from genius.model.genius import Genius
from genius.search import SearchRequest
from genius.types import Item, Modality, Query, load_image
from lab import current_commit
from lab.everyday import QUERIES

SHARES = (0.05, 0.1, 0.5)
SEEDS = (0, 1, 2)
K = 10
PEOPLE = ("Anna", "Ben", "Clara", "David", "Emil", "Fatima", "Greta", "Hugo", "Ivan", "Jonas", "Kaito", "Lena")
PLACES = ("Lisbon", "Oslo", "Kyoto", "Nairobi", "Quito", "Prague", "Hanoi", "Perth", "Tallinn", "Malmo", "Accra", "Lima")
MONTHS = ("January", "March", "April", "June", "August", "October", "November")
DIM = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4}
SIDE = 64
BATCH = 128


def captions(count: int, seed: int) -> list[str]:
    """Captions as people write them, none of which says what the image shows."""
    rng = random.Random(seed)
    return [
        f"{rng.choice(PEOPLE)} in {rng.choice(PLACES)}, {rng.choice(MONTHS)} {rng.randint(1990, 2025)}, number {number}"
        for number in range(count)
    ]


def images(count: int, seed: int) -> list[Item]:
    """Drawings with their names in the metadata."""
    every = [item for item in demo_items() if item.image is not None and item.text is None]
    return random.Random(seed).sample(every, count)


@contextmanager
def on_one_scale(wanted: bool) -> Iterator[None]:
    """Results with or without bringing scores of different modalities to one scale."""
    scales = searching.scales
    if not wanted:
        searching.scales = lambda model, queries, owner: (-1,) * len(queries)
    try:
        yield
    finally:
        searching.scales = scales


def train_clip(folder: Path, items: Sequence[Item], steps: int, seed: int) -> Path:
    """A small CLIP that has learned the names of these images by contrast; saved as `transformers` does."""
    torch.manual_seed(seed)
    names = [str(item.metadata["name"]).lower() for item in items]
    words = sorted({word for name in [*names, *(query.lower() for query in QUERIES)] for word in name.split()})
    words += sorted({word.strip(",").lower() for line in captions(len(items), seed) for word in line.split()} - set(words))
    write_clip_shape(folder, words, DIM, DIM, side=SIDE, patch=8, width=96, length=32)
    encoder: Any = load_encoder(f"local-dir:{folder}")
    encoder.requires_grad_(True).train()
    pixels = torch.cat([encoder.pixels([load_image(item.image).resize((SIDE, SIDE))]) for item in items])  # type: ignore[arg-type]
    tokens = encoder.tokenizer(names, padding=True, truncation=True, max_length=32, return_tensors="pt")
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=5e-4)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = torch.from_numpy(rng.choice(len(items), BATCH, replace=False))
        seen = torch.nn.functional.normalize(encoder._pool_images(pixels[rows]), dim=1)
        read = torch.nn.functional.normalize(
            encoder._pool_texts(tokens["input_ids"][rows], tokens["attention_mask"][rows]), dim=1
        )
        scores = 20 * seen @ read.T
        right = torch.arange(BATCH)
        loss = torch.nn.functional.cross_entropy(scores, right) + torch.nn.functional.cross_entropy(scores.T, right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    encoder.model.eval().save_pretrained(folder)
    return folder


def with_captions(features: Features, texts: Features, chosen: Sequence[int]) -> Features:
    """Features of images of which some have captions."""
    text = features.text.clone()
    mask = features.text_mask.clone()
    rows = torch.tensor(list(chosen))
    text[rows] = texts.text[rows]
    mask[rows] = True
    return Features(features.image, text, features.image_mask, mask)


def measure(index: Index, captioned: dict[str, str], share: float, queries: Sequence[str]) -> dict[str, Any]:
    """Shares of captioned images among the first ten, and whether captions find their images."""
    body: dict[str, Any] = {}
    own = list(captioned)
    for name, wanted in (("without", False), ("with", True)):
        with on_one_scale(wanted):
            found = index.search_many([Query(text) for text in queries], SearchRequest(K))
            part = sum(hit.id in captioned for hits in found for hit in hits) / (K * len(queries))
            by_caption = index.search_many([Query(captioned[item_id]) for item_id in own], SearchRequest(5))
        hit = sum(any(one.id == item_id for one in hits) for item_id, hits in zip(own, by_caption, strict=True)) / len(own)
        body[name] = {"share_in_top_ten": round(part, 4), "over_share": round(part / share, 2), "hit@5 by caption": round(hit, 3)}
    return body


def of_encoder(uri: str, items: Sequence[Item], folder: Path) -> list[dict[str, Any]]:
    """All shares and seeds of one encoder; every image and caption is encoded once."""
    unfitted = Unfitted(uri)
    features, kept, _ = encode_items(unfitted.encoder, items, on_error="skip")
    items = [items[row] for row in kept]
    lines = captions(len(items), 0)
    texts = encode_items(unfitted.encoder, [Item(str(i), text=line) for i, line in enumerate(lines)])[0]
    queries = list(QUERIES)
    rows = []
    for share in SHARES:
        for seed in SEEDS:
            chosen = sorted(random.Random(seed).sample(range(len(items)), round(share * len(items))))
            captioned = {items[row].id: lines[row] for row in chosen}
            mixed = with_captions(features, texts, chosen)
            model = unfitted_model(mixed, unfitted.encoder, unfitted.uri)
            with Index(folder / f"{share}-{seed}.genius", model, thumbnails=0) as index:
                index.add([Item(item.id, image=item.image, text=captioned.get(item.id)) for item in items], features=mixed)
                part = len(captioned) / len(items)
                rows.append({"share": share, "seed": seed, "items": len(items), **measure(index, captioned, part, queries)})
    return rows


def of_constructed_gap(folder: Path, gap: float, count: int = 1000, width: int = 128) -> list[dict[str, Any]]:
    """Images and texts around two orthogonal centres, `gap` times as far from zero as the noise is long."""
    rows = []
    for share in SHARES:
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            centres = gap * np.linalg.qr(rng.normal(size=(width, 2)))[0].T

            def cloud(size: int, centre: Any, rng: Any = rng) -> Any:
                vectors = centre + rng.normal(size=(size, width)) / width**0.5
                return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

            seen = cloud(count, centres[0])
            read = cloud(count, centres[1])
            asked = cloud(200, centres[1])
            with Index.create(folder / f"gap-{gap}-{share}-{seed}.genius", dim=width) as index:
                few = round(share * count)
                vectors = [{"image": seen[i], "text": read[i]} if i < few else {"image": seen[i]} for i in range(count)]
                index.add([Item(str(i), vector=vector) for i, vector in enumerate(vectors)])
                entry: dict[str, Any] = {"share": share, "seed": seed, "items": count}
                for name, wanted in (("without", False), ("with", True)):
                    with on_one_scale(wanted):
                        queries = [Query(vector={"text": row}, target=Modality.IMAGE) for row in asked]
                        found = index.search_many(queries, SearchRequest(K))
                    part = sum(int(hit.id) < few for hits in found for hit in hits) / (K * len(queries))
                    entry[name] = {"share_in_top_ten": round(part, 4), "over_share": round(part / share, 2)}
                rows.append(entry)
    return rows


def of_trained_model(items: Sequence[Item], folder: Path) -> dict[str, Any]:
    """The trained model: equal first tens, whether scores are brought to one scale or not."""
    model = Genius.from_pretrained("bundled:mini")
    some = items[:400]
    lines = captions(len(some), 0)
    with Index(folder / "trained.genius", model, thumbnails=0) as index:
        index.add([Item(item.id, image=item.image, text=lines[i] if i % 4 == 0 else None) for i, item in enumerate(some)])
        found = []
        for wanted in (False, True):
            with on_one_scale(wanted):
                lists = index.search_many([Query(text) for text in QUERIES], SearchRequest(K))
                found.append([[(hit.id, hit.score) for hit in hits] for hits in lists])
    return {"queries": len(QUERIES), "equal_first_tens": sum(one == other for one, other in zip(*found, strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("lab/results/captions.json"))
    parser.add_argument("--items", type=int, default=600)
    parser.add_argument("--steps", type=int, default=600, help="Of the small CLIP.")
    given = parser.parse_args()
    began = time.process_time()
    body: dict[str, Any] = {
        "command": "python -m lab.captions " + shlex.join(sys.argv[1:]),
        "commit": current_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "seeds": SEEDS,
        "queries": len(QUERIES),
        "bar": 1.5,
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        drawings = images(2 * given.items, 0)
        shown = drawings[: given.items]
        encoders = {}
        for name in ("bundled:mini", "small CLIP"):
            uri = name
            if name == "small CLIP":
                uri = str(train_clip(folder / "clip", drawings[given.items :], given.steps, 0))
            (folder / name).mkdir(exist_ok=True)
            encoders[name] = of_encoder(uri, shown, folder / name)
        body["encoders"] = encoders
        body["constructed"] = {str(gap): of_constructed_gap(folder, gap) for gap in (0.5, 1.0, 2.0)}
        body["trained_model"] = of_trained_model(shown, folder)
    body["processor_seconds"] = round(time.process_time() - began, 1)
    measured = [row for rows in [*encoders.values(), *body["constructed"].values()] for row in rows]
    body["worst"] = {name: max(row[name]["over_share"] for row in measured) for name in ("without", "with")}
    given.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    for name, rows in {**encoders, **{f"gap {gap}": rows for gap, rows in body["constructed"].items()}}.items():
        for row in rows:
            print(name, row)
    print(body["worst"], body["trained_model"], f"{body['processor_seconds']} s")


if __name__ == "__main__":
    main()
