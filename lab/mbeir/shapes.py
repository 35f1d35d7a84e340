"""`python -m lab shapes OUT`: coloured shapes in M-BEIR's exact layout, to try commands on and for tests.

All 16 tasks of M-BEIR follow from things that have a colour, a shape and a size (`genius.data.synthetic`), with several positives
where M-BEIR has them, its file names, what it leaves out, and what its records leave out (`genius.data.mbeir`).
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from genius.cli.common import command
from genius.data.mbeir import DATASET_IDS, DIRECTIONS, ROWS, UNION_QUERIES
from genius.data.synthetic import COLOURS, SHAPES, SIZES, Thing
from genius.errors import GeniusError
from genius.types import Modality


@command
def shapes(
    output: Annotated[Path, typer.Argument(help="Folder to make.")],
    candidates: Annotated[int, typer.Option(min=4, help="Of each task's pool.")] = 24,
    queries: Annotated[int, typer.Option(min=1, help="Of each task and split.")] = 12,
    seed: Annotated[int, typer.Option(help="The same seed gives the same files.")] = 0,
) -> None:
    """Make a small set of coloured shapes with M-BEIR's files, names and gaps, to try the commands on."""
    if output.exists() and any(output.iterdir()):
        raise GeniusError(f"{output} is not empty: choose another folder")
    write_synthetic_mbeir(output, candidates=candidates, queries=queries, seed=seed)
    typer.echo(f"{output}: {len(ROWS)} tasks in M-BEIR's layout")


@dataclass
class _Dataset:
    """One dataset while it is written: its things, its pictures and the next free ids."""

    name: str
    number: int
    things: dict[str, list[Thing]]  # "train", "val", "test" -> what the split's queries are about
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
        """Whose pool a split's queries have: MSCOCO's pools are one a split, the others' one for all."""
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
            if part != "train":  # candidates of training queries are in the union file alone, but for those of other pools
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
