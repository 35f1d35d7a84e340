"""Made-up sources for the proofs on Ray, and whether two indexes hold the same: ids, codes, vectors, metadata, answers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from genius.index import Index

WORDS = [
    *("red", "blue", "green", "yellow", "old", "new", "small", "large", "bright", "dark", "round", "wooden"),
    *("car", "house", "tree", "bird", "cat", "dog", "boat", "lamp", "chair", "table", "shoe", "hat", "bag", "clock", "bridge"),
    *("garden", "river", "stone", "window", "door", "bottle", "plate", "spoon", "kettle", "bicycle", "train"),
]
QUESTIONS = [f"{WORDS[i % 12]} {WORDS[12 + 7 * i % 26]}" for i in range(48)]


def make_sources(folder: Path, rows: int, pictures: int, seed: int = 0) -> set[str]:
    """A JSONL table, a Parquet table, a folder of pictures with two that are none; the ids that an index of it must have."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.Random(seed)
    folder.mkdir(parents=True)
    bodies: list[dict[str, Any]] = [
        {"id": f"r{i}", "text": f"{' '.join(chance.choices(WORDS, k=6))} {i}", "price": i % 97, "kind": chance.choice(WORDS)}
        for i in range(rows)
    ]
    half = rows // 2
    (folder / "rows.jsonl").write_text("".join(json.dumps(body) + "\n" for body in bodies[:half]))
    pq.write_table(pa.Table.from_pylist(bodies[half:]), folder / "rows.parquet", row_group_size=max(1, rows // 7))
    (folder / "pictures").mkdir()
    for i in range(pictures):
        picture = Image.new("RGB", (72, 56), (chance.randrange(256), chance.randrange(256), chance.randrange(256)))
        draw = ImageDraw.Draw(picture)
        for _ in range(3):
            x, y = chance.randrange(50), chance.randrange(40)
            draw.ellipse(
                (x, y, x + chance.randrange(8, 30), y + 20), fill=(chance.randrange(256), i % 256, chance.randrange(256))
            )
        picture.save(folder / "pictures" / f"p{i:05}.png")
    for name in ("broken.png", "empty.jpg"):
        (folder / "pictures" / name).write_bytes(b"no picture" if name == "broken.png" else b"")
    return {body["id"] for body in bodies} | {f"{folder.name}/pictures/p{i:05}.png" for i in range(pictures)}


def contents(index: Index) -> dict[str, tuple[Any, ...]]:
    """Everything of every item by its id; an id that comes twice is an error."""
    found: dict[str, tuple[Any, ...]] = {}
    columns = ["id", "_codes", "_embedding", "text", "_metadata", "_image", "_thumbnail", "_source", "_stamp", *index.columns()]
    for row in index.reader().stream(columns):
        assert row["id"] not in found, f"{row['id']} is in the index twice"
        vector = np.asarray(row["_embedding"], np.float16).tobytes()
        found[row["id"]] = (tuple(row["_codes"]), vector, *(row[name] for name in columns[3:]))
    return found


def answers(index: Index) -> list[list[tuple[str, float]]]:
    return [[(hit.id, hit.score) for hit in index.search(question, target="any", k=20)] for question in QUESTIONS]


def differences(one: Index, other: Index) -> dict[str, int]:
    """How many items, and how many answers, are not the same."""
    left, right = contents(one), contents(other)
    both = left.keys() & right.keys()
    return {
        "only_in_one": len(left.keys() ^ right.keys()),
        "codes": sum(left[i][0] != right[i][0] for i in both),
        "vectors": sum(left[i][1] != right[i][1] for i in both),
        "other_columns": sum(left[i][2:] != right[i][2:] for i in both),
        "answers": sum(a != b for a, b in zip(answers(one), answers(other), strict=True)),
    }
