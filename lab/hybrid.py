"""Hybrid search on a collection with captions: hit@5 of words from captions beside BM25's, and of image queries.

The collections: product photos with titles, as image-text pairs, under the bundled model. Queries by words: two to four words of
a title in random order; the product, or one of the same title, is to be found. Queries by image: a crop of a photo. The weight of
words and what the same form of a word counts are chosen on queries of one collection, results are measured on another, of other
products. BM25 is computed here, over titles, without stems. Many titles have the same score: its hit@5 is the expectation over
random orders of equal scores, and, beside it, that of one order, by row.

    python -m lab.hybrid DATA/products-0.parquet DATA/products-1.parquet --out lab/results/hybrid.json
    python -m lab.hybrid DATA/products-0.parquet --queries 4000 --out lab/results/hybrid_validation.json  # as chosen
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from genius import Genius, Index, Item, Query
from genius.index import words
from genius.index.words import RANK_CONSTANT
from genius.search import SearchRequest
from genius.search.params import WORDS_WEIGHT
from lab import current_commit

K = 5
WEIGHTS = (4.0, 8.0)
SAME_FORMS = (1.0, 2.0)
SAME_SCORE = 1e-9  # scores that differ by less are equal


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

    def scores(self, query: str) -> NDArray[np.float64]:
        scores = np.zeros(self.rows)
        for term in sorted(set(tokens(query))):
            for row, value in self.postings.get(term, ()):
                scores[row] += self.idf[term] * value
        return scores

    def top(self, query: str, k: int) -> list[int]:
        """The best rows; of rows with the same score the first."""
        scores = self.scores(query)
        best = np.argsort(-scores, kind="stable")[:k]
        return [int(row) for row in best if scores[row] > 0]

    def expected_hit(self, query: str, positives: set[int], k: int) -> float:
        """Probability that one of `positives` is among the best k, if rows with the same score are in random order."""
        scores = self.scores(query)
        last = np.sort(scores)[-k]
        above = set(np.flatnonzero(scores > last + SAME_SCORE).tolist())
        if above & positives:
            return 1.0
        if last <= 0:
            return 0.0
        tied = set(np.flatnonzero(np.abs(scores - last) <= SAME_SCORE).tolist())
        places = k - len(above)
        others = len(tied - positives)
        return 1 - math.comb(others, places) / math.comb(len(tied), places)


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


class Shop:
    """One collection: products as image-text pairs under the bundled model, and their titles."""

    def __init__(self, table: Path, items: int, folder: Path) -> None:
        import pyarrow.parquet as pq

        self.table = pq.read_table(table, columns=["id", "title", "image"]).slice(0, items).to_pylist()
        self.titles = [row["title"] for row in self.table]
        self.same: dict[str, set[int]] = defaultdict(set)
        for row, title in enumerate(self.titles):
            self.same[title].add(row)
        self.judge = BM25(self.titles)
        self.index = Index(folder, Genius.from_pretrained("bundled:mini"), thumbnails=0)
        if not len(self.index):  # not kept by an earlier run
            products = (Item(str(row), image=_bytes(entry["image"]), text=entry["title"]) for row, entry in enumerate(self.table))
            self.index.add(products)
            self.index.index_words()

    def hit_rate(self, found: Sequence[Sequence[int]], rows: Sequence[int]) -> float:
        """Share of queries in percent with the product, or one of its title, among the first five."""
        hits = [bool(set(own[:K]) & self.same[self.titles[row]]) for own, row in zip(found, rows, strict=True)]
        return round(100 * float(np.mean(hits)), 2)

    def hit_rates_of_bm25(self, drawn: Sequence[tuple[str, int]]) -> dict[str, float]:
        """Share of queries in percent: expected over random orders of equal scores, and with equal scores by row."""
        expected = [self.judge.expected_hit(text, self.same[self.titles[row]], K) for text, row in drawn]
        by_row = self.hit_rate([self.judge.top(text, K) for text, _ in drawn], [row for _, row in drawn])
        return {"bm25": round(100 * float(np.mean(expected)), 2), "bm25, equal scores by row": by_row}

    def search(self, queries: Sequence[Query], mode: str, weight: float = WORDS_WEIGHT) -> list[list[int]]:
        request = SearchRequest(K, mode=mode, words_weight=weight)
        return [[int(hit.id) for hit in hits] for hits in self.index.search_many(queries, request)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("validation", type=Path, help="Parquet with id, title, image: constants are chosen on it")
    parser.add_argument("test", type=Path, nargs="?", help="Parquet of other products, on which the results are measured")
    parser.add_argument("--items", type=int, default=4000, help="of each collection")
    parser.add_argument("--queries", type=int, default=2000, help="by words, of each collection")
    parser.add_argument("--images", type=int, default=400, help="queries by image")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="Keep the two indexes here, for another run; a temporary folder by default")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    commit = current_commit()
    with tempfile.TemporaryDirectory(prefix="hybrid-") as temporary:
        folder = arguments.folder or Path(temporary)
        chosen = validate(Shop(arguments.validation, arguments.items, folder / "validation.genius"), arguments)
        measured = {}
        files = [f"DATA/{arguments.validation.name}"]
        if arguments.test is not None:
            measured = measure(Shop(arguments.test, arguments.items, folder / "test.genius"), arguments)
            files.append(f"DATA/{arguments.test.name}")
    body = {
        "command": f"python -m lab.hybrid {' '.join(files)} --items {arguments.items} --queries {arguments.queries} "
        f"--images {arguments.images} --seed {arguments.seed}",
        "commit": commit,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": f"cpu, {os.cpu_count()} cores ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "seed": arguments.seed,
        "model": "bundled:mini",
        "rank_constant": RANK_CONSTANT,
        "words_weight": WORDS_WEIGHT,
        "same_form": words.SAME_FORM,
        "stems_share": words.STEMS_SHARE,
        **chosen,
        **measured,
    }
    print(json.dumps(body, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(body, indent=1) + "\n")


def validate(shop: Shop, arguments: argparse.Namespace) -> dict[str, Any]:
    """hit@5 of validation queries by the two constants that are chosen on them."""
    rng = random.Random(arguments.seed)
    drawn = word_queries(shop.titles, rng.sample(range(len(shop.titles)), arguments.queries), rng)
    queries = [Query(text) for text, _ in drawn]
    rows = [row for _, row in drawn]
    rates = shop.hit_rates_of_bm25(drawn)
    if arguments.test is None:
        rates["mode hybrid"] = shop.hit_rate(shop.search(queries, "hybrid"), rows)
        return {"validation": {"items": len(shop.titles), "queries": len(queries), "hit_at_5": rates}}
    by_form = {}
    default = words.SAME_FORM
    for form in SAME_FORMS:
        words.SAME_FORM = form
        by_form[str(form)] = {str(weight): shop.hit_rate(shop.search(queries, "hybrid", weight), rows) for weight in WEIGHTS}
    words.SAME_FORM = default
    return {
        "validation": {
            "items": len(shop.titles),
            "queries": len(queries),
            "hit_at_5": rates,
            "hit_at_5_by_same_form_and_weight": by_form,
        }
    }


def measure(shop: Shop, arguments: argparse.Namespace) -> dict[str, Any]:
    """hit@5 of test queries, by words and by image."""
    rng = random.Random(arguments.seed)
    order = rng.sample(range(len(shop.titles)), len(shop.titles))
    drawn = word_queries(shop.titles, order[: arguments.queries], rng)
    queries = [Query(text) for text, _ in drawn]
    rows = [row for _, row in drawn]
    by_words = shop.hit_rates_of_bm25(drawn)
    for mode in ("words", "similarity", "hybrid"):
        by_words[f"mode {mode}"] = shop.hit_rate(shop.search(queries, mode), rows)
    pictured = order[: arguments.images]
    crops = [Query(image=crop(_bytes(shop.table[row]["image"]), rng)) for row in pictured]
    by_image = {f"mode {mode}": shop.hit_rate(shop.search(crops, mode), pictured) for mode in ("similarity", "hybrid")}
    return {
        "test": {
            "items": len(shop.titles),
            "word_queries": len(queries),
            "image_queries": len(crops),
            "hit_at_5_by_words": by_words,
            "hit_at_5_by_image": by_image,
        }
    }


def _bytes(value: Any) -> bytes:
    if isinstance(value, dict):
        value = value["bytes"]
    return bytes(value)


if __name__ == "__main__":
    main()
