"""Which file of an M-BEIR folder holds what: names and places as released, and the 16 rows of the paper's tables.

    query/{train}/mbeir_{name}_train.jsonl              one a dataset, its tasks mixed (a line's task_id tells them apart)
    query/union_train/mbeir_union_up_train.jsonl        all of them in one, small datasets up-sampled: questions occur repeatedly
    query/{val,test}/mbeir_{name}_task{t}_{split}.jsonl one a dataset and task
    query/union_val/mbeir_union_val.jsonl               those of val in one
    qrels/{split}/{the query file's name}_qrels.txt     qid 0 did relevance task; none for the union files
    cand_pool/local/mbeir_{name}_task{t}[_{split}]_cand_pool.jsonl   what val and test search; only MSCOCO has one a split
    cand_pool/global/mbeir_union_{part}_cand_pool.jsonl test: all test pools together. train, val: only candidates that are named
                                                        by a question, which is enough to train on and nothing to search in

Query files of a task are read in any split, so that other data may come in this layout. Knows nothing of what lines say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from genius.errors import GeniusError

DATASET_IDS: dict[str, int] = {
    "visualnews": 0, "fashion200k": 1, "webqa": 2, "edis": 3, "nights": 4, "oven": 5,
    "infoseek": 6, "fashioniq": 7, "cirr": 8, "mscoco": 9, "flickr30k": 10,
}  # fmt: skip
DATASET_NAMES = {number: name for name, number in DATASET_IDS.items()}

ROWS: tuple[str, ...] = (
    # the 16 rows of Table 2, in its order
    "visualnews_task0", "mscoco_task0", "fashion200k_task0", "webqa_task1", "edis_task2", "webqa_task2",
    "visualnews_task3", "mscoco_task3", "fashion200k_task3", "nights_task4", "oven_task6", "infoseek_task6",
    "fashioniq_task7", "cirr_task7", "oven_task8", "infoseek_task8",
)  # fmt: skip

SPLITS = ("train", "union_train", "val", "union_val", "test")
INSTRUCTIONS = "instructions/query_instructions.tsv"
UNION_QUERIES = {"union_train": "mbeir_union_up_train.jsonl", "union_val": "mbeir_union_val.jsonl"}
_TASK_FILE = re.compile(r"mbeir_(?P<name>[A-Za-z0-9_\-]+)_task(?P<task>\d+)_(?P<split>[a-z]+)\.jsonl$")
_DATASET_FILE = re.compile(r"mbeir_(?P<name>[A-Za-z0-9_\-]+?)_(?P<split>[a-z]+)\.jsonl$")
LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class QueryFile:
    """One file of questions."""

    path: Path
    qrels: Path | None  # None: the positives named in the query file are all there is
    name: str | None  # of its dataset; None: several, and a question's id says which
    task: str | None  # its task's key; None: several, and a line's task_id says which


def order_of(key: str) -> tuple[int, int, str]:
    """Sort key: the paper's rows first and in its order, others by task number and name."""
    if key in ROWS:
        return (0, ROWS.index(key), key)
    number = key.rpartition("_task")[2]
    return (1, int(number) if number.isdecimal() else 99, key)


def part_of(split: str) -> str:
    """train, val or test: whose pools a split's questions belong to."""
    return split.removeprefix("union_")


def query_files(root: Path, split: str) -> list[QueryFile]:
    """The files of questions of a split, in the order of the paper's rows; one clear line where there are none."""
    if split in UNION_QUERIES:
        path = root / "query" / split / UNION_QUERIES[split]
        if not path.is_file():
            raise GeniusError(f"no M-BEIR queries at {path}")
        return [QueryFile(path, None, None, None)]
    folder = root / "query" / split
    found: list[tuple[tuple[int, int, str], QueryFile]] = []
    for path in sorted(folder.glob("mbeir_*.jsonl")):
        judged = root / "qrels" / split / f"{path.stem}_qrels.txt"
        qrels = judged if judged.is_file() else None
        if (match := _TASK_FILE.search(path.name)) and match["split"] == split:
            key = f"{match['name']}_task{match['task']}"
            found.append((order_of(key), QueryFile(path, qrels, match["name"], key)))
        elif (match := _DATASET_FILE.search(path.name)) and match["split"] == split and match["name"] != "union":
            first = min((order_of(key) for key in ROWS if key.startswith(f"{match['name']}_task")), default=(1, 99, path.name))
            found.append((first, QueryFile(path, qrels, match["name"], None)))
    if not found:
        raise GeniusError(
            f"no M-BEIR queries at {folder}: expected files like mbeir_mscoco_task0_{split}.jsonl or mbeir_mscoco_{split}.jsonl"
        )
    return [file for _, file in sorted(found, key=lambda entry: entry[0])]


def local_pools(root: Path, key: str, split: str) -> list[Path]:
    """Where a task's own pool may be, the likeliest last: MSCOCO has one for each split, the others one for all."""
    folder, part = root / "cand_pool" / "local", part_of(split)
    return [folder / f"mbeir_{key}_{part}_cand_pool.jsonl", folder / f"mbeir_{key}_cand_pool.jsonl"]


def union_pool(root: Path, split: str) -> Path:
    return root / "cand_pool" / "global" / f"mbeir_union_{part_of(split)}_cand_pool.jsonl"


def refuse_pointer(path: Path) -> None:
    """A clone without Git LFS has a few words about each large file in its place."""
    try:
        with path.open("rb") as file:
            start = file.read(len(LFS_POINTER))
    except OSError:
        return  # whoever reads the file says what is wrong with it
    if start == LFS_POINTER:
        raise GeniusError(f"{path} is a Git LFS pointer, not the file itself: run 'git lfs pull' in the download")
