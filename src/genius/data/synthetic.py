"""Made-up data for tests and speed measurements: a small M-BEIR in the exact layout, and random features.

The world is coloured shapes: a thing is a colour, a shape and a size; its picture is drawn, its text is
"a small red circle". All 16 tasks of M-BEIR follow from that, with several positives where M-BEIR has them.
Knows nothing of models; the same seed gives the same bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from genius.data.features import FeatureSet
from genius.data.mbeir import DATASET_IDS, DIRECTIONS, ROWS
from genius.features import Features
from genius.types import Modality

COLOURS = {
    "red": (214, 40, 40), "green": (46, 160, 67), "blue": (38, 84, 214), "yellow": (240, 200, 20),
    "purple": (140, 60, 190), "orange": (245, 130, 30), "brown": (120, 75, 40), "black": (20, 20, 20),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
SIZES = {"small": 8, "large": 14}


@dataclass(frozen=True, slots=True)
class Thing:
    """One thing of the synthetic world. `serial` keeps things with equal attributes apart."""

    colour: str
    shape: str
    size: str
    serial: int

    @property
    def text(self) -> str:
        return f"a {self.size} {self.colour} {self.shape}"

    def draw(self) -> Image.Image:
        picture = Image.new("RGB", (32, 32), (255, 255, 255))
        draw, r, c = ImageDraw.Draw(picture), SIZES[self.size], COLOURS[self.colour]
        x, y = 16 + self.serial % 3 - 1, 16 + self.serial // 3 % 3 - 1  # equal things are drawn a pixel apart
        box = (x - r, y - r, x + r, y + r)
        if self.shape == "circle":
            draw.ellipse(box, fill=c)
        elif self.shape == "ring":
            draw.ellipse(box, outline=c, width=3)
        elif self.shape == "square":
            draw.rectangle(box, fill=c)
        elif self.shape == "triangle":
            draw.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=c)
        elif self.shape == "diamond":
            draw.polygon([(x, y - r), (x - r, y), (x, y + r), (x + r, y)], fill=c)
        else:
            draw.rectangle((x - 2, y - r, x + 2, y + r), fill=c)
            draw.rectangle((x - r, y - 2, x + r, y + 2), fill=c)
        return picture


@dataclass
class _Dataset:
    """One dataset while it is written: its own things and the next free ids."""

    name: str
    number: int
    things: list[Thing]
    images: dict[Thing, str] = field(default_factory=dict)  # thing -> path below the root
    next_query: int = 0
    next_candidate: int = 0

    def query_id(self) -> str:
        self.next_query += 1
        return f"{self.number}:{self.next_query}"

    def candidate_id(self) -> str:
        self.next_candidate += 1
        return f"{self.number}:{self.next_candidate}"


def write_synthetic_mbeir(
    root: str | Path,
    *,
    rows: Sequence[str] = ROWS,
    candidates: int = 24,  # of each task's pool
    queries: int = 12,  # of each task and split
    splits: Sequence[str] = ("train", "val", "test"),
    seed: int = 0,
) -> Path:
    """A folder in M-BEIR's layout with every row of `rows`, small enough for a test. Returns the root."""
    root, rng = Path(root), random.Random(seed)
    datasets: dict[str, _Dataset] = {}
    union: list[dict[str, Any]] = []
    for key in rows:
        name, number = key.rsplit("_task", 1)
        if name not in datasets:
            dataset_id = DATASET_IDS.get(name, 20 + len(datasets))
            datasets[name] = _Dataset(name, dataset_id, [_thing(rng, i) for i in range(candidates)])
        union += _write_task(root, datasets[name], int(number), queries, splits, rng)
    for split in splits:
        _write_lines(root / "cand_pool" / "global" / f"mbeir_union_{split}_cand_pool.jsonl", union)
    _write_instructions(root, rows, datasets)
    return root


def _thing(rng: random.Random, serial: int) -> Thing:
    return Thing(rng.choice(list(COLOURS)), rng.choice(SHAPES), rng.choice(list(SIZES)), serial)


def _write_task(
    root: Path, data: _Dataset, number: int, queries: int, splits: Sequence[str], rng: random.Random
) -> list[dict[str, Any]]:
    query_kind, target_kind = DIRECTIONS[number]
    stem = f"mbeir_{data.name}_task{number}"
    pool: list[dict[str, Any]] = []
    ids: dict[Thing, str] = {}
    for thing in data.things:
        ids[thing] = data.candidate_id()
        pool.append(
            {
                "did": ids[thing],
                "txt": None if target_kind == Modality.IMAGE else thing.text,
                "img_path": None if target_kind == Modality.TEXT else _draw(root, data, thing),
                "modality": _label(target_kind),
                "src_content": None,
            }
        )
    _write_lines(root / "cand_pool" / "local" / f"{stem}_cand_pool.jsonl", pool)
    for split in splits:
        lines, judgements = [], []
        for _ in range(queries):
            line, positives = _query(root, data, ids, query_kind, target_kind, number, rng)
            lines.append(line)
            judgements += [f"{line['qid']} 0 {did} 1 {number}" for did in positives]
        _write_lines(root / "query" / split / f"{stem}_{split}.jsonl", lines)
        path = root / "qrels" / split / f"{stem}_{split}_qrels.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(judgements) + "\n", encoding="utf-8")
    return pool


def _query(
    root: Path, data: _Dataset, ids: dict[Thing, str], query: Modality, target: Modality, number: int, rng: random.Random
) -> tuple[dict[str, Any], list[str]]:
    wanted = rng.choice(data.things)
    shown, text = wanted, wanted.text
    if query == Modality.PAIR:  # a picture of another colour and the change that leads to the wanted thing
        shown = Thing(rng.choice([c for c in COLOURS if c != wanted.colour]), wanted.shape, wanted.size, wanted.serial)
        text = f"the same in {wanted.colour}"
    positives = [did for thing, did in ids.items() if thing.text == wanted.text]
    line = {
        "qid": data.query_id(),
        "query_txt": None if query == Modality.IMAGE else text,
        "query_img_path": None if query == Modality.TEXT else _draw(root, data, shown),
        "query_modality": _label(query),
        "query_src_content": None,
        "pos_cand_list": positives,
        "neg_cand_list": [],
        "task_id": number,
    }
    return line, positives


def _label(modality: Modality) -> str:
    return "image,text" if modality == Modality.PAIR else modality.label


def _draw(root: Path, data: _Dataset, thing: Thing) -> str:
    if thing not in data.images:
        relative = f"mbeir_images/{data.name}/{thing.size}-{thing.colour}-{thing.shape}-{thing.serial}.png"
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        thing.draw().save(path)
        data.images[thing] = relative
    return data.images[thing]


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_instructions(root: Path, rows: Sequence[str], datasets: dict[str, _Dataset]) -> None:
    lines = ["\t".join(["query_modality", "cand_modality", "dataset_name", "dataset_id", *(f"prompt_{i}" for i in range(1, 5))])]
    for key in rows:
        name, number = key.rsplit("_task", 1)
        query, target = (_label(m) for m in DIRECTIONS[int(number)])
        prompts = [f"{verb} the {target.replace(',', ' and ')} for this {query.replace(',', ' and ')}." for verb in _VERBS]
        lines.append("\t".join([query, target, name, str(datasets[name].number), *prompts]))
    path = root / "instructions" / "query_instructions.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


_VERBS = ("Find", "Retrieve", "Show me", "I am looking for")


# -- features without pictures -------------------------------------------------------------------------------------


def synthetic_features(
    queries: int,
    pool: int,
    width: int,
    *,
    directions: Sequence[tuple[Modality, Modality]] = ((Modality.TEXT, Modality.IMAGE), (Modality.IMAGE, Modality.TEXT)),
    clusters: int = 64,
    noise: float = 0.6,  # of a query around its target, in units of an item's spread in its cluster
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> FeatureSet:
    """A random but structured FeatureSet: items in clusters, queries near the item they want, a modality gap.

    Tasks are the `directions`, each with its own part of the pool. For measurements of speed and for tests: no
    number obtained on it says anything about the quality of a model on real data.
    """
    random_ = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random_)

    centres = normal(clusters, width)
    gap = normal(2, width) * 0.7  # where pictures and texts live apart
    owner = torch.arange(pool) % len(directions)
    content = centres[torch.randint(clusters, (pool,), generator=random_)] + 0.8 * normal(pool, width)
    kinds = torch.tensor([int(target) for _, target in directions])[owner]
    task = torch.arange(queries) % len(directions)
    wanted = torch.empty(queries, dtype=torch.long)
    for number in range(len(directions)):
        mine, rows = task == number, (owner == number).nonzero()[:, 0]
        wanted[mine] = rows[torch.randint(len(rows), (int(mine.sum()),), generator=random_)]
    asked = content[wanted] + noise * 0.8 * normal(queries, width)
    query_kinds = torch.tensor([int(query) for query, _ in directions])[task]
    instruction = normal(3, width)[kinds[wanted]] * 0.5  # the query's text says which modality it wants
    return FeatureSet(
        queries=_two_towers(asked, query_kinds, gap, instruction, dtype),
        pool=_two_towers(content, kinds, gap, None, dtype),
        pairs=torch.stack([torch.arange(queries), wanted], 1),
        query_ids=[f"20:{i}" for i in range(queries)],
        pool_ids=[f"20:{i}" for i in range(pool)],
        tasks=task,
        names={i: f"{query.label}->{target.label}" for i, (query, target) in enumerate(directions)},
        pools={i: (owner == i).nonzero()[:, 0] for i in range(len(directions))},
    )


def _two_towers(content: Tensor, kinds: Tensor, gap: Tensor, instruction: Tensor | None, dtype: torch.dtype) -> Features:
    image_mask, text_mask = kinds != int(Modality.TEXT), kinds != int(Modality.IMAGE)
    text = content * text_mask[:, None] + gap[1]
    if instruction is not None:  # a query always has a text: its instruction
        text, text_mask = text + instruction, torch.ones_like(text_mask)
    return Features((content + gap[0]).to(dtype), text.to(dtype), image_mask, text_mask)
