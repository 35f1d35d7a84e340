"""Hybrid search on a collection with captions: hit@5 of words from captions beside BM25's, and of image queries.

The collection: product photos with titles, as image-text pairs, under the bundled model. Queries by words: two to four words of a
title in random order; the product, or one of the same title, is to be found. Queries by image: a crop of a photo. The default
weight of words and the rank constant were chosen on validation queries of seed 0, which the file has, too; test queries are of
other products. BM25 is computed here, over titles.

    python -m lab.hybrid ../shared/data/fashion/products-0.parquet --out lab/results/hybrid.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from genius import Genius, Index, Item, Query
from genius.index.words import RANK_CONSTANT
from genius.search import SearchRequest
from genius.search.params import WORDS_WEIGHT

K = 5
WEIGHTS = (0.5, 1.0, 2.0, WORDS_WEIGHT, 8.0, 16.0)


class BM25:
    """Okapi BM25 over short texts, the judge."""

    def __init__(self, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> None:
        words = [tokens(text) for text in texts]
        average = sum(map(len, words)) / len(words)
        self.postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for row, own in enumerate(words):
            for term, count in Counter(own).items():
                self.postings[term].append((row, count * (k1 + 1) / (count + k1 * (1 - b + b * len(own) / average))))
        self.idf = {term: math.log(1 + (len(texts) - len(p) + 0.5) / (len(p) + 0.5)) for term, p in self.postings.items()}
        self.rows = len(texts)

    def top(self, query: str, k: int) -> list[int]:
        scores = np.zeros(self.rows)
        for term in set(tokens(query)):
            for row, value in self.postings.get(term, ()):
                scores[row] += self.idf[term] * value
        best = np.argsort(-scores, kind="stable")[:k]
        return [int(row) for row in best if scores[row] > 0]


def tokens(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def word_queries(titles: Sequence[str], rows: Sequence[int], rng: random.Random) -> list[tuple[str, int]]:
    out = []
    for row in rows:
        words = tokens(titles[row])
        if len(words) >= 2:
            out.append((" ".join(rng.sample(words, min(len(words), rng.randint(2, 4)))), row))
    return out


def crop(data: bytes, rng: random.Random) -> Image.Image:
    picture = Image.open(BytesIO(data)).convert("RGB")
    width, height = (max(1, round(side * rng.uniform(0.6, 0.9))) for side in picture.size)
    left = rng.randint(0, picture.width - width)
    top = rng.randint(0, picture.height - height)
    return picture.crop((left, top, left + width, top + height))


def hit_rate(found: Sequence[Sequence[int]], wanted: Sequence[set[int]]) -> float:
    return round(100 * float(np.mean([bool(set(rows[:K]) & right) for rows, right in zip(found, wanted, strict=True)])), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="Parquet with id, title, image")
    parser.add_argument("--items", type=int, default=4000)
    parser.add_argument("--queries", type=int, default=1000, help="by words, for the test; as many for validation")
    parser.add_argument("--images", type=int, default=400, help="queries by image")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hybrid-") as folder:
        body = measure(arguments, Path(folder))
    print(json.dumps(body, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(body, indent=1) + "\n")


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq

    table = pq.read_table(arguments.table, columns=["id", "title", "image"]).slice(0, arguments.items).to_pylist()
    titles = [row["title"] for row in table]
    same: dict[str, set[int]] = defaultdict(set)
    for row, title in enumerate(titles):
        same[title].add(row)
    index = Index(folder / "shop.genius", Genius.from_pretrained("bundled:mini"), thumbnails=0)
    index.add(Item(str(row), image=_bytes(entry["image"]), text=titles[row]) for row, entry in enumerate(table))
    index.index_words()
    rng = random.Random(arguments.seed)
    order = rng.sample(range(len(titles)), len(titles))
    half = len(order) // 2
    validation = word_queries(titles, order[:half][: arguments.queries], rng)
    test = word_queries(titles, order[half:][: arguments.queries], rng)
    judge = BM25(titles)
    wanted = [same[titles[row]] for _, row in validation]
    by_weight = {str(w): hit_rate(_search(index, [t for t, _ in validation], "hybrid", w), wanted) for w in WEIGHTS}
    judged = hit_rate([judge.top(text, K) for text, _ in validation], wanted)
    texts = [text for text, _ in test]
    wanted = [same[titles[row]] for _, row in test]
    words = {
        "bm25": hit_rate([judge.top(text, K) for text in texts], wanted),
        "mode words": hit_rate(_search(index, texts, "words", 1.0), wanted),
        "mode similarity": hit_rate(_search(index, texts, "similarity", 1.0), wanted),
        "mode hybrid": hit_rate(_search(index, texts, "hybrid", WORDS_WEIGHT), wanted),
    }
    rows = order[half:][: arguments.images]
    crops = [Query(image=crop(_bytes(table[row]["image"]), rng)) for row in rows]
    right = [same[titles[row]] for row in rows]
    images = {}
    for mode in ("similarity", "hybrid"):
        found = index.search_many(crops, SearchRequest(K, mode=mode))
        images[f"mode {mode}"] = hit_rate([[int(hit.id) for hit in hits] for hits in found], right)
    return {
        "command": " ".join(["python -m lab.hybrid", *sys.argv[1:]]),
        "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": f"cpu, {os.cpu_count()} cores ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "seed": arguments.seed,
        "items": len(titles),
        "model": "bundled:mini",
        "word_queries": {"validation": len(validation), "test": len(test)},
        "image_queries": len(rows),
        "validation_hit_at_5_by_weight": by_weight,
        "validation_hit_at_5_of_bm25": judged,
        "words_weight": WORDS_WEIGHT,
        "rank_constant": RANK_CONSTANT,
        "test_hit_at_5_by_words": words,
        "test_hit_at_5_by_image": images,
    }


def _bytes(value: Any) -> bytes:
    if isinstance(value, dict):
        value = value["bytes"]
    return bytes(value)


def _search(index: Index, texts: Sequence[str], mode: str, weight: float) -> list[list[int]]:
    request = SearchRequest(K, mode=mode, words_weight=weight)
    return [[int(hit.id) for hit in hits] for hits in index.search_many([Query(text) for text in texts], request)]


if __name__ == "__main__":
    main()
