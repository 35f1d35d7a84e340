"""Made-up data for tests and speed measurements: a small M-BEIR in the exact layout, and random features.

The world is coloured shapes: a thing is a colour, a shape and a size; its picture is drawn, its text is
"a small red circle". All 16 tasks of M-BEIR follow from that, with several positives where M-BEIR has them, its file names,
what it leaves out, and what its records leave out (`mbeir`).
Knows nothing of models; the same seed gives the same bytes.
"""

from __future__ import annotations

import itertools
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
from genius.data.mbeir import DATASET_IDS, DIRECTIONS, ROWS, UNION_QUERIES
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
    """One dataset while it is written: its things, its pictures and the next free ids."""

    name: str
    number: int
    things: dict[str, list[Thing]]  # "train", "val", "test" -> what the split's questions are about
    images: dict[Thing, str] = field(default_factory=dict)  # thing -> path below the root
    next_query: dict[str, int] = field(default_factory=dict)  # split -> numbers start anew in each, as in M-BEIR
    next_candidate: int = 0

    def query_id(self, split: str) -> str:
        self.next_query[split] = self.next_query.get(split, 0) + 1
        return f"{self.number}:{self.next_query[split]}"

    def candidate_id(self) -> str:
        self.next_candidate += 1
        return f"{self.number}:{self.next_candidate}"

    def pool_part(self, split: str) -> str:
        """Whose pool a split's questions have: MSCOCO's pools are one a split, the others' one for all."""
        return split if self.name == "mscoco" else "test"


UP_SAMPLED = ("webqa", "edis", "nights", "fashioniq", "cirr")  # drawn again until there are twice as many here
PARTNERS = {"oven": "infoseek", "infoseek": "oven"}  # both are about Wikipedia and name each other's candidates
PICTURE_FOLDERS = {"infoseek": "oven_images"}  # INFOSEEK has no pictures of its own

_Ids = dict[Thing, str]
_Rows = list[dict[str, Any]]


def write_synthetic_mbeir(
    root: str | Path,
    *,
    rows: Sequence[str] = ROWS,
    candidates: int = 24,  # of each task's pool
    queries: int = 12,  # of each task and split
    splits: Sequence[str] = ("train", "val", "test"),
    seed: int = 0,
) -> Path:
    """A folder with M-BEIR's names, gaps and oddities and every row of `rows`, small enough for a test. Returns the root."""
    root, rng = Path(root), random.Random(seed)
    datasets = _datasets(rows, candidates, rng)
    pools: dict[tuple[str, str], _Rows] = {}
    ids: dict[tuple[str, str], _Ids] = {}
    for key in rows:
        data, number = datasets[_name(key)], _number(key)
        for part in dict.fromkeys(data.pool_part(split) for split in ("test", *splits)):
            pools[key, part], ids[key, part] = _candidates(root, data, part, DIRECTIONS[number][1])
            name = f"mbeir_{key}_{part}" if data.name == "mscoco" else f"mbeir_{key}"
            if part != "train":  # candidates of training questions are in the union file alone, but for those of other pools
                _write_lines(root / "cand_pool" / "local" / f"{name}_cand_pool.jsonl", pools[key, part])
    everything = {row["did"]: row for pool in pools.values() for row in pool}
    for split in splits:
        lines = {key: _questions(root, datasets, key, ids, split, queries, rng) for key in rows}
        _write_queries(root, split, lines, rng)
        named = [did for row in itertools.chain(*lines.values()) for did in (*row["pos_cand_list"], *row["neg_cand_list"])]
        if split == "test":
            named = [row["did"] for (_, part), pool in pools.items() if part == "test" for row in pool]
        listed = list(dict.fromkeys(named)) if split == "val" else sorted(set(named), key=_by_number)
        _write_lines(root / "cand_pool" / "global" / f"mbeir_union_{split}_cand_pool.jsonl", [everything[did] for did in listed])
    _write_instructions(root, rows, datasets)
    return root


def _name(key: str) -> str:
    return key.rsplit("_task", 1)[0]


def _number(key: str) -> int:
    return int(key.rsplit("_task", 1)[1])


def _by_number(name: str) -> tuple[int, int]:
    dataset, _, number = name.partition(":")
    return int(dataset), int(number)


def _datasets(rows: Sequence[str], candidates: int, rng: random.Random) -> dict[str, _Dataset]:
    datasets: dict[str, _Dataset] = {}
    for name in dict.fromkeys(map(_name, rows)):
        shared = [_thing(rng, i) for i in range(candidates)]
        if PARTNERS.get(name) in datasets:  # half of what the partner is about
            shared[::2] = datasets[PARTNERS[name]].things["test"][::2]
        others = {split: [_thing(rng, i) for i in range(candidates)] for split in ("val", "train")} if name == "mscoco" else {}
        number = DATASET_IDS.get(name, 20 + len(datasets))
        datasets[name] = _Dataset(name, number, {"test": shared, "val": shared, "train": shared, **others})
    return datasets


def _thing(rng: random.Random, serial: int) -> Thing:
    return Thing(rng.choice(list(COLOURS)), rng.choice(SHAPES), rng.choice(list(SIZES)), serial)


def _candidates(root: Path, data: _Dataset, part: str, kind: Modality) -> tuple[_Rows, _Ids]:
    pool: _Rows = []
    ids: _Ids = {}
    for thing in data.things[part]:
        ids[thing] = data.candidate_id()
        row: dict[str, Any] = {
            "txt": None if kind == Modality.IMAGE else thing.text,
            "img_path": None if kind == Modality.TEXT else _draw(root, data, thing),
            "modality": _label(kind),
            "did": ids[thing],
            "src_content": None if data.name in ("visualnews", "mscoco") else json.dumps({"id": thing.serial}),
        }
        if data.name == "visualnews" or (data.name == "webqa" and kind == Modality.TEXT):
            del row["src_content" if data.name == "visualnews" else "img_path"]  # keys that the release may leave out
        pool.append(row)
    return pool, ids


def _questions(
    root: Path,
    datasets: dict[str, _Dataset],
    key: str,
    ids: dict[tuple[str, str], _Ids],
    split: str,
    count: int,
    rng: random.Random,
) -> _Rows:
    data = datasets[_name(key)]
    part = data.pool_part(split)
    query, _ = DIRECTIONS[_number(key)]
    partner = ids.get((f"{PARTNERS.get(data.name)}_task{_number(key)}", part), {})
    lines: _Rows = []
    for _ in range(count):
        wanted = rng.choice(data.things[split])
        shown, text = wanted, wanted.text
        if query == Modality.PAIR:  # a picture of another colour and the change that leads to the wanted thing
            shown = Thing(rng.choice([c for c in COLOURS if c != wanted.colour]), wanted.shape, wanted.size, wanted.serial)
            text = f"the same in {wanted.colour}"
        own = ids[key, part]
        right = [did for thing, did in (*own.items(), *partner.items()) if thing.text == wanted.text]
        wrong = rng.sample([did for thing, did in own.items() if thing.text != wanted.text], 2)
        line: dict[str, Any] = {
            "qid": data.query_id(split),
            "query_txt": None if query == Modality.IMAGE else text,
            "query_img_path": None if query == Modality.TEXT else _draw(root, data, shown),
            "query_modality": _label(query),
            "query_src_content": json.dumps({"id": wanted.serial}) if data.name in PARTNERS else None,
            "pos_cand_list": right,
            "neg_cand_list": wrong,
            "task_id": _number(key),
        }
        if data.name == "oven":  # the order of keys is not fixed
            line["query_src_content"] = line.pop("query_src_content")
        lines.append(line)
    return lines


def _write_queries(root: Path, split: str, lines: dict[str, _Rows], rng: random.Random) -> None:
    folder = root / "query"
    files = {f"mbeir_{key}_{split}": rows for key, rows in lines.items()}
    together = sorted(itertools.chain(*lines.values()), key=lambda row: _by_number(row["qid"]))
    if split == "train":  # one file a dataset, its tasks mixed
        files = {}
        for name in dict.fromkeys(map(_name, lines)):
            rows = [row for key in lines if _name(key) == name for row in lines[key]]
            files[f"mbeir_{name}_train"] = rng.sample(rows, len(rows))
            if name in UP_SAMPLED:
                together += rng.choices(rows, k=len(rows))
        rng.shuffle(together)
        _write_lines(folder / "union_train" / UNION_QUERIES["union_train"], together)
    elif split == "val":
        _write_lines(folder / "union_val" / UNION_QUERIES["union_val"], together)
    for name, rows in files.items():
        _write_lines(folder / split / f"{name}.jsonl", rows)
        judged = [f"{row['qid']} 0 {did} 1 {row['task_id']}" for row in rows for did in row["pos_cand_list"]]
        path = root / "qrels" / split / f"{name}_qrels.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(judged) + "\n", encoding="utf-8")


def _label(modality: Modality) -> str:
    return "image,text" if modality == Modality.PAIR else modality.label


def _draw(root: Path, data: _Dataset, thing: Thing) -> str:
    if thing not in data.images:
        folder = PICTURE_FOLDERS.get(data.name, f"{data.name}_images")
        relative = f"mbeir_images/{folder}/{thing.size}-{thing.colour}-{thing.shape}-{thing.serial}.jpg"
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        thing.draw().save(path, quality=95, subsampling=0)
        data.images[thing] = relative
    return data.images[thing]


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_instructions(root: Path, rows: Sequence[str], datasets: dict[str, _Dataset]) -> None:
    lines = ["\t".join(["query_modality", "cand_modality", "dataset_name", "dataset_id", *(f"prompt_{i}" for i in range(1, 5))])]
    for key in rows:
        query, target = (_label(m) for m in DIRECTIONS[_number(key)])
        prompts = [f"{verb} the {target.replace(',', ' and ')} for this {query.replace(',', ' and ')}." for verb in _VERBS]
        lines.append("\t".join([query, target, _name(key), str(datasets[_name(key)].number), *prompts]))
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
