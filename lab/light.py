"""Search without torch against search with it: the same first ten for 200 queries? And what a cold `genius search` costs.

    python -m lab.light INDEX [-o lab/results/light.json]

INDEX is that of `genius demo`. Queries are drawn from its items: names as texts, drawings as images, and both.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from genius.index import Index
from genius.model.genius import Genius
from genius.model.graphs import GraphModel
from genius.search import SearchRequest
from genius.types import Item, Query
from lab import current_commit

QUERIES = 200
STARTS = 5  # cold searches; the least processor time is reported
K = 10


def queries_of(items: list[Item], seed: int) -> list[Query]:
    """A third each: texts, images, images with texts."""
    rng = random.Random(seed)
    drawings = [item for item in items if item.image is not None and item.metadata.get("name")]
    queries = []
    for number, item in enumerate(rng.sample(drawings, QUERIES)):
        text = str(item.metadata["name"])
        if number % 3 == 0:
            queries.append(Query(text))
        elif number % 3 == 1:
            queries.append(Query(image=item.image))
        else:
            queries.append(Query(f"{rng.choice(['a blue', 'a crossed out', 'a filled'])} {text}", item.image))
    return queries


def first_hits(path: Path, model: Any, queries: list[Query]) -> list[list[str]]:
    """Ids of the first ten of each query, searched one by one."""
    with Index.open(path, model, read_only=True) as index:
        return [[hit.id for hit in index.search_many([query], SearchRequest(K))[0]] for query in queries]


def cold_seconds(path: Path) -> float:
    """Least processor time of a process that searches once."""
    found = []
    for _ in range(STARTS):
        before = os.times()
        subprocess.run([sys.executable, "-m", "genius", "search", str(path), "a sad face"], check=True, capture_output=True)
        after = os.times()
        user = after.children_user - before.children_user
        found.append(user + after.children_system - before.children_system)
    return round(min(found), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("index", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("lab/results/light.json"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with Index.open(given.index, read_only=True) as index:
        items = list(index.items())
    queries = queries_of(items, given.seed)
    by_torch = first_hits(given.index, Genius.from_pretrained("bundled:mini"), queries)
    by_graphs = first_hits(given.index, GraphModel("bundled:mini"), queries)
    equal = sum(one == other for one, other in zip(by_torch, by_graphs, strict=True))
    body = {
        "command": "python -m lab.light " + shlex.join(sys.argv[1:]),
        "commit": current_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "device": "cpu",
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "seed": given.seed,
        "items": len(items),
        "queries": len(queries),
        "k": K,
        "equal_lists": equal,
        "equal_sets": sum(set(one) == set(other) for one, other in zip(by_torch, by_graphs, strict=True)),
        "cold_search_processor_seconds": cold_seconds(given.index),
    }
    given.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
