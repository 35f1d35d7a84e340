"""M-BEIR as it is published, and anything else in its layout (the icon benchmark, the synthetic one).

Files, names and places as released:

    query/{train}/mbeir_{name}_train.jsonl              one per dataset, its tasks mixed (by a line's task_id)
    query/union_train/mbeir_union_up_train.jsonl        all of them in one, small datasets up-sampled: queries repeat
    query/{val,test}/mbeir_{name}_task{t}_{split}.jsonl one per dataset and task
    query/union_val/mbeir_union_val.jsonl               those of val in one
    qrels/{split}/{the query file's name}_qrels.txt     qid 0 did relevance task; none for the union files
    cand_pool/local/mbeir_{name}_task{t}[_{split}]_cand_pool.jsonl   searched in val and test; MSCOCO has one per split
    cand_pool/global/mbeir_union_{part}_cand_pool.jsonl test: all test pools together. train, val: only candidates that a
                                                        query names: enough to train on, too few to search in
    instructions/query_instructions.tsv                 four prompts for each (dataset, query modality, candidate modality)

and the fields of their lines:

    queries       qid, query_txt, query_img_path, query_modality, pos_cand_list, task_id
    candidates    did, txt, img_path, modality

Query files of a task are read in any split, so that other data may come in this layout. Lines are streamed, and images
are paths until the encoder opens them. Query ids are unique within a split only.
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genius.data.collection import JudgedQuery, ProblemCounter, Task, files_fingerprint, read_jsonl
from genius.data.readers import Row
from genius.errors import GeniusError
from genius.types import TEMPLATES, Item, Modality, Query

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
__all__ = ["DIRECTIONS", "ROWS", "MBeir", "candidate", "order_of", "read_instructions", "read_lines", "read_qrels", "task_of"]

IMAGE = Modality.IMAGE
TEXT = Modality.TEXT
PAIR = Modality.PAIR

DIRECTIONS: dict[int, tuple[Modality, Modality]] = {
    # M-BEIR's task number -> (query modality, target modality); 5 is reserved there
    0: (TEXT, IMAGE), 1: (TEXT, TEXT), 2: (TEXT, PAIR),
    3: (IMAGE, TEXT), 4: (IMAGE, IMAGE), 5: (IMAGE, PAIR),
    6: (PAIR, TEXT), 7: (PAIR, IMAGE), 8: (PAIR, PAIR),
}  # fmt: skip

TITLES: dict[str, str] = {
    "visualnews": "VisualNews", "fashion200k": "Fashion200K", "webqa": "WebQA", "edis": "EDIS", "nights": "NIGHTS",
    "oven": "OVEN", "infoseek": "InfoSeek", "fashioniq": "FashionIQ", "cirr": "CIRR", "mscoco": "MSCOCO",
    "flickr30k": "Flickr30K",
}  # fmt: skip

WIDE = {"fashion200k", "fashioniq"}  # reported at 10, 20, 50 instead of 1, 5, 10
_QID = re.compile(rb'[{,]\s*"qid"\s*:\s*"([^"\\]+)"')  # inside a text the quotation marks would be escaped
_TASK_ID = re.compile(rb'[{,]\s*"task_id"\s*:\s*(\d+)')


@dataclass(frozen=True, slots=True)
class QueryFile:
    """One file of queries."""

    path: Path
    qrels: Path | None  # None: the positives named in the query file are all there is
    name: str | None  # of its dataset; None: several, by a query's id
    task: str | None  # its task's key; None: several, by a line's task_id


def order_of(key: str) -> tuple[int, int, str]:
    """Sort key: the paper's rows first and in its order, others by task number and name.

    Args:
        key: Of a task, such as `mscoco_task0`.
    """
    if key in ROWS:
        return (0, ROWS.index(key), key)
    number = key.rpartition("_task")[2]
    return (1, int(number) if number.isdecimal() else 99, key)


def pool_split(split: str) -> str:
    """train, val or test: whose pools a split's queries search."""
    return split.removeprefix("union_")


def query_files(root: Path, split: str) -> list[QueryFile]:
    """The query files of a split, in the order of the paper's rows; one clear line where there are none."""
    if split in UNION_QUERIES:
        path = root / "query" / split / UNION_QUERIES[split]
        if not path.is_file():
            raise GeniusError(f"no M-BEIR queries at {path}")
        return [QueryFile(path, None, None, None)]
    folder = root / "query" / split
    files: list[tuple[tuple[int, int, str], QueryFile]] = []
    for path in sorted(folder.glob("mbeir_*.jsonl")):
        qrels: Path | None = root / "qrels" / split / f"{path.stem}_qrels.txt"
        if qrels is not None and not qrels.is_file():
            qrels = None
        task = _TASK_FILE.search(path.name)
        dataset = _DATASET_FILE.search(path.name)
        if task is not None and task["split"] == split:
            key = f"{task['name']}_task{task['task']}"
            files.append((order_of(key), QueryFile(path, qrels, task["name"], key)))
        elif dataset is not None and dataset["split"] == split and dataset["name"] != "union":
            task_order = [order_of(key) for key in ROWS if key.startswith(f"{dataset['name']}_task")]
            first = min(task_order, default=(1, 99, path.name))
            files.append((first, QueryFile(path, qrels, dataset["name"], None)))
    if not files:
        raise GeniusError(
            f"no M-BEIR queries at {folder}: expected files like mbeir_mscoco_task0_{split}.jsonl or mbeir_mscoco_{split}.jsonl"
        )
    return [file for _, file in sorted(files, key=lambda entry: entry[0])]


def splits_there(root: Path) -> list[str]:
    """The splits of a download; one clear line where there is none."""
    if not (root / "query").is_dir() and not (root / "cand_pool").is_dir():
        raise GeniusError(f"{root} is no download of M-BEIR: it has neither query/ nor cand_pool/")
    splits = [split for split in SPLITS if (root / "query" / split).is_dir()]
    if not splits:
        raise GeniusError(f"{root} has no queries: expected folders such as {root / 'query' / 'test'}")
    return splits


def local_pools(root: Path, key: str, split: str) -> list[Path]:
    """Where a task's own pool may be, the likeliest last: MSCOCO has one for each split, the others one for all."""
    folder = root / "cand_pool" / "local"
    part = pool_split(split)
    return [folder / f"mbeir_{key}_{part}_cand_pool.jsonl", folder / f"mbeir_{key}_cand_pool.jsonl"]


def union_pool(root: Path, split: str) -> Path:
    return root / "cand_pool" / "global" / f"mbeir_union_{pool_split(split)}_cand_pool.jsonl"


def refuse_pointer(path: Path) -> None:
    """Raise if a file is a Git LFS pointer: a clone without Git LFS has one in place of each large file."""
    try:
        with path.open("rb") as file:
            start = file.read(len(LFS_POINTER))
    except OSError:
        return  # the reader of the file says what is wrong with it
    if start == LFS_POINTER:
        raise GeniusError(f"{path} is a Git LFS pointer, not the file itself: run 'git lfs pull' in the download")


def task_of(key: str) -> Task:
    """`mscoco_task0` -> its Task: directions and cut-offs follow from the name.

    Args:
        key: Name of the dataset and number of the task.
    """
    name, _, number = key.rpartition("_task")
    if not name or not number.isdecimal() or int(number) not in DIRECTIONS:
        raise GeniusError(f"{key!r} is not an M-BEIR task name like 'mscoco_task0'")
    query, target = DIRECTIONS[int(number)]
    title = TITLES.get(name, name)
    if name in WIDE:
        return Task(key, title, query, target, (10, 20, 50), 10)
    return Task(key, title, query, target, (1, 5, 10), 5)


class MBeir:
    """One split of a folder in M-BEIR's layout. Ids are M-BEIR's own ("dataset:number").

    Args:
        root: The folder.
        split: train, union_train (up-sampled: what the paper trains on), val, union_val or test.
        tasks: Keys of the tasks to keep; None: all that are there.
        seed: Of the choice among the four prompts of the folder (without them: our own templates), per query: it does not
            depend on order or workers.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        split: str = "test",
        tasks: tuple[str, ...] | None = None,
        seed: int = 0,
    ) -> None:
        if split not in SPLITS:
            raise GeniusError(f"M-BEIR has no split {split!r}: use {', '.join(SPLITS)}")
        self.root = Path(root)
        self.split = split
        self.seed = seed
        self.name = self.root.name or "mbeir"
        self.files = query_files(self.root, split)
        self.times: dict[str, int] = {}  # of the union files: how often each query occurs
        there = sorted({key for file in self.files for key in self._tasks_in(file)}, key=order_of)
        keys = there
        if tasks is not None:
            keys = sorted(tasks, key=order_of)
        unknown = [key for key in keys if key not in there]
        if unknown:
            raise GeniusError(f"{self.root} has no {split} queries for {unknown[0]}; it has {', '.join(there)}")
        self.whole = keys == there
        self.tasks: tuple[Task, ...] = tuple(task_of(key) for key in keys)
        self.number = {key: number for number, key in enumerate(keys)}
        self.pools = [self._local_pool(key) for key in keys]
        prompts = self.root / INSTRUCTIONS
        self._prompts = read_instructions(prompts) if prompts.is_file() else {}

    def _tasks_in(self, file: QueryFile) -> set[str]:
        """Keys of the tasks whose queries a file holds. A mixed file is skimmed, which also counts repeated queries."""
        if file.task is not None:
            return {file.task}
        refuse_pointer(file.path)
        keys: set[str] = set()
        with file.path.open("rb") as lines:
            for line in lines:
                task = _TASK_ID.search(line)
                query = _QID.search(line)
                if task is None or query is None:
                    continue  # reading it properly will say what is wrong with it
                name = query[1].decode("utf-8", "replace")
                keys.add(self.key(file, name, int(task[1])))
                if file.name is None:
                    self.times[name] = self.times.get(name, 0) + 1
        return keys

    @staticmethod
    def key(file: QueryFile, query_id: str, task: int) -> str:
        """The task's key of a line in a mixed file.

        Args:
            file: The query file.
            query_id: Id of the query in that line.
            task: Its task number.
        """
        number = query_id.partition(":")[0]
        known = None
        if number.isdecimal():
            known = DATASET_NAMES.get(int(number))
        return f"{file.name or known or f'dataset{number}'}_task{task}"

    def _local_pool(self, key: str) -> Path | None:
        """The task's own candidates. Queries in mixed files have none: they search the union pool of the split."""
        places = local_pools(self.root, key, self.split)
        pool = next((path for path in places if path.is_file()), None)
        mixed = all(file.task != key for file in self.files)
        if mixed and union_pool(self.root, self.split).is_file():
            return None
        if pool is None:
            missing = places[1]
            if mixed:
                missing = union_pool(self.root, self.split)
            elif key.startswith("mscoco_"):
                missing = places[0]
            raise GeniusError(f"the candidate pool {missing} is missing (choose tasks to do without {key})")
        return pool

    # -- instructions ------------------------------------------------------------------------------------------

    def instruction(self, query_id: str, task: Task) -> str:
        """One of the prompts for this query, the same in every run with this seed.

        Args:
            query_id: Id of the query.
            task: Its task.
        """
        dataset = query_id.partition(":")[0]
        number = -1
        if dataset.isdecimal():
            number = int(dataset)
        prompts = self._prompts.get((number, task.query, task.target))
        if prompts is None:
            if self._prompts and task.key in ROWS:
                raise GeniusError(f"the instruction file has no prompts for {task.title} (dataset {dataset})")
            prompts = list(TEMPLATES[task.query, task.target])
        return random.Random(f"{self.seed}:{query_id}").choice(prompts)

    # -- streams -----------------------------------------------------------------------------------------------

    def queries(self) -> Iterator[JudgedQuery]:
        """Every query. Of the union files each once, at its first place: `times` is how often it occurs there."""
        for file in self.files:
            if file.task is not None and file.task not in self.number:
                continue
            qrels: dict[str, list[str]] | None = None
            if file.qrels is not None:
                qrels = read_qrels(file.qrels)
            seen: set[str] = set()
            for row in read_lines(file.path):
                name = _string(row, "qid", file.path)
                number = self.number.get(file.task or self.key(file, name, _task_id(row, name, file.path)))
                if number is None or name in seen:
                    continue
                if self.split in UNION_QUERIES:
                    seen.add(name)
                yield self._query(row, name, number, qrels, file.path)

    def _query(self, row: Row, name: str, number: int, qrels: dict[str, list[str]] | None, path: Path) -> JudgedQuery:
        task = self.tasks[number]
        image = row.get("query_img_path") if task.query != TEXT else None
        text = row.get("query_txt") if task.query != IMAGE else None
        if (task.query != TEXT and not image) or (task.query != IMAGE and not text):
            raise GeniusError(f"{path}: query {name} has no {task.query.label}, which its task needs")
        path_of_image = str(self.root / image) if image else None
        query = Query(text=text, image=path_of_image, instruction=self.instruction(name, task))
        positives = row.get("pos_cand_list") or []
        if qrels is not None:
            positives = qrels.get(name, [])
        distinct = tuple(dict.fromkeys(str(positive) for positive in positives))
        return JudgedQuery(name, query, distinct, number, self.times.get(name, 1))

    def pool(self) -> Iterator[Item]:
        """Every candidate once. Test has a file of them; that of val holds too few, so val joins the local pools."""
        union = union_pool(self.root, self.split)
        paths = [path for path in dict.fromkeys(self.pools) if path is not None]
        if len(paths) < len(set(self.pools)) or (self.split != "val" and self.whole and union.is_file()):
            yield from self._items(union)
            return
        seen: set[str] = set()
        for path in paths:  # pools may share candidates; one that a file has twice is an error of `check_collection`
            local_ids: set[str] = set()
            for item in self._items(path):
                if item.id not in seen:
                    local_ids.add(item.id)
                    yield item
            seen |= local_ids

    def local_pool(self, task: int) -> Iterator[str] | None:
        """The ids of the candidates of one task; None: the universal pool is the only one.

        Args:
            task: Number of the task.
        """
        path = self.pools[task]
        if path is None:
            return None
        return (_string(row, "did", path) for row in read_lines(path))

    def _items(self, path: Path) -> Iterator[Item]:
        return (candidate(row, self.root, path) for row in read_lines(path))

    def fingerprint(self) -> str:
        paths = {path for file in self.files for path in (file.path, file.qrels) if path is not None}
        paths |= {path for path in (*self.pools, union_pool(self.root, self.split)) if path is not None and path.is_file()}
        prompts = self.root / INSTRUCTIONS
        if prompts.is_file():
            paths.add(prompts)
        keys = ",".join(task.key for task in self.tasks)
        return files_fingerprint(paths, self.split, str(self.seed), keys)


def candidate(row: Row, root: Path, path: Path) -> Item:
    """The item that a line of a pool describes; empty fields may be missing.

    Args:
        row: The line, parsed.
        root: Folder that image paths start from.
        path: The pool, which errors name.
    """
    name = _string(row, "did", path)
    try:
        modality = Modality.parse(str(row.get("modality", "")))
    except (GeniusError, ValueError):
        raise GeniusError(f"{path}: candidate {name} has an unknown modality ({row.get('modality')!r})") from None
    image = row.get("img_path") if modality != TEXT else None
    text = row.get("txt") if modality != IMAGE else None
    if (modality != TEXT and not image) or (modality != IMAGE and not (text or "").strip()):
        raise GeniusError(f"{path}: candidate {name} is declared as {modality.label} but has no such content")
    return Item(name, image=str(root / image) if image else None, text=text)


def read_lines(path: Path) -> Iterator[Row]:
    """The rows of a JSONL file; a pointer of Git LFS in its place is refused.

    Args:
        path: The file.
    """
    refuse_pointer(path)
    return read_jsonl(path)


ROW_OF_KEY = {"qid": "query", "did": "candidate"}


def _string(row: Row, key: str, path: Path) -> str:
    name = str(row.get(key) or "")
    if not name:
        raise GeniusError(f"{path}: a {ROW_OF_KEY[key]} has no {key}")
    return name


def _task_id(row: Row, name: str, path: Path) -> int:
    number: Any = row.get("task_id")
    if not isinstance(number, int) or number not in DIRECTIONS:
        raise GeniusError(f"{path}: query {name} has no task_id from 0 to 8")
    return number


def read_instructions(path: Path) -> dict[tuple[int, Modality, Modality], list[str]]:
    """(dataset id, query modality, candidate modality) -> prompts, from M-BEIR's tab-separated file.

    Args:
        path: The file.
    """
    prompts: dict[tuple[int, Modality, Modality], list[str]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            try:
                key = (int(row["dataset_id"]), Modality.parse(row["query_modality"]), Modality.parse(row["cand_modality"]))
            except (KeyError, TypeError, ValueError):
                raise GeniusError(
                    f"{path} is not an instruction file: it needs query_modality, cand_modality, dataset_id"
                ) from None
            row_prompts = [str(v).strip() for name, v in row.items() if str(name).startswith("prompt") and v and v.strip()]
            if row_prompts:
                prompts.setdefault(key, []).extend(row_prompts)
    if not prompts:
        raise GeniusError(f"{path} holds no prompts")
    return prompts


def read_qrels(path: Path) -> dict[str, list[str]]:
    """query id -> ids of relevant candidates. Lines are `qid 0 did relevance [task]`.

    Args:
        path: The file.
    """
    out: dict[str, list[str]] = {}
    problems = ProblemCounter()
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            parts = line.split()
            if not parts:
                continue
            if len(parts) < 4 or not parts[3].lstrip("-").isdecimal():
                problems.add("lines are not 'qid 0 did relevance'", f"line {number}")
            elif int(parts[3]) > 0:
                out.setdefault(parts[0], []).append(parts[2])
    problems.raise_if_any(str(path))
    return out
