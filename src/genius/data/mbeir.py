"""M-BEIR as it is published, and anything else in its layout (the icon benchmark, the synthetic one).

    query/{split}/mbeir_{name}_task{t}_{split}.jsonl        qid, query_txt, query_img_path, query_modality, pos_cand_list
    cand_pool/local/mbeir_{name}_task{t}[_{split}]_cand_pool.jsonl    did, txt, img_path, modality
    cand_pool/global/mbeir_union_{split}_cand_pool.jsonl    the union pool; absent: the local pools one after another
    qrels/{split}/mbeir_{name}_task{t}_{split}_qrels.txt    qid 0 did relevance task
    instructions/query_instructions.tsv                     four prompts for each (dataset, query, candidate) modality

Lines are streamed and images are paths until the encoder opens them. The paper's order of the 16 rows is here.
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genius.data.collection import JudgedQuery, Problems, Task, files_fingerprint, read_jsonl
from genius.errors import GeniusError
from genius.instructions import TEMPLATES
from genius.types import Item, Modality, Query

IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR

DIRECTIONS: dict[int, tuple[Modality, Modality]] = {
    # M-BEIR's task number -> (what the query is, what is wanted); 5 is reserved there
    0: (TEXT, IMAGE), 1: (TEXT, TEXT), 2: (TEXT, PAIR),
    3: (IMAGE, TEXT), 4: (IMAGE, IMAGE), 5: (IMAGE, PAIR),
    6: (PAIR, TEXT), 7: (PAIR, IMAGE), 8: (PAIR, PAIR),
}  # fmt: skip

DATASET_IDS: dict[str, int] = {
    "visualnews": 0, "fashion200k": 1, "webqa": 2, "edis": 3, "nights": 4, "oven": 5,
    "infoseek": 6, "fashioniq": 7, "cirr": 8, "mscoco": 9, "flickr30k": 10,
}  # fmt: skip

TITLES: dict[str, str] = {
    "visualnews": "VisualNews", "fashion200k": "Fashion200K", "webqa": "WebQA", "edis": "EDIS", "nights": "NIGHTS",
    "oven": "OVEN", "infoseek": "InfoSeek", "fashioniq": "FashionIQ", "cirr": "CIRR", "mscoco": "MSCOCO",
    "flickr30k": "Flickr30K",
}  # fmt: skip

ROWS: tuple[str, ...] = (
    # the 16 rows of Table 2, in its order
    "visualnews_task0", "mscoco_task0", "fashion200k_task0", "webqa_task1", "edis_task2", "webqa_task2",
    "visualnews_task3", "mscoco_task3", "fashion200k_task3", "nights_task4", "oven_task6", "infoseek_task6",
    "fashioniq_task7", "cirr_task7", "oven_task8", "infoseek_task8",
)  # fmt: skip

WIDE = {"fashion200k", "fashioniq"}  # reported at 10, 20, 50 instead of 1, 5, 10
_NAME = re.compile(r"mbeir_(?P<name>[A-Za-z0-9_\-]+)_task(?P<task>\d+)_(?P<split>[a-z]+)\.jsonl$")


def task_of(key: str) -> Task:
    """`mscoco_task0` -> its Task: directions and cut-offs follow from the name."""
    name, _, number = key.rpartition("_task")
    if not name or not number.isdecimal() or int(number) not in DIRECTIONS:
        raise GeniusError(f"{key!r} is not an M-BEIR task name like 'mscoco_task0'")
    query, target = DIRECTIONS[int(number)]
    wide = name in WIDE
    return Task(key, TITLES.get(name, name), query, target, (10, 20, 50) if wide else (1, 5, 10), 10 if wide else 5)


def order_of(key: str) -> tuple[int, int, str]:
    """Sort key: the paper's rows first and in its order, others by task number and name."""
    if key in ROWS:
        return (0, ROWS.index(key), key)
    number = key.rpartition("_task")[2]
    return (1, int(number) if number.isdecimal() else 99, key)


@dataclass(frozen=True, slots=True)
class Files:
    """Where one task's lines are."""

    queries: Path
    pool: Path
    qrels: Path | None  # None: the positives named in the query file are all there is


class MBeir:
    """One split of a folder in M-BEIR's layout. Ids are M-BEIR's own ("dataset:number")."""

    def __init__(
        self,
        root: str | Path,
        *,
        split: str = "test",
        tasks: tuple[str, ...] | None = None,  # keys to keep; None: all that are there
        instructions: str | Path | None = None,  # None: the one in the folder, else our own templates
        seed: int = 0,  # of the choice among the four prompts, per query: it does not depend on order or workers
    ) -> None:
        self.root, self.split, self.seed = Path(root), split, seed
        self.name = self.root.name or "mbeir"
        found = self._find()
        keys = sorted(found if tasks is None else tasks, key=order_of)
        unknown = [key for key in keys if key not in found]
        if unknown:
            raise GeniusError(
                f"{self.root} has no {split} queries for {unknown[0]}; it has {', '.join(sorted(found, key=order_of))}"
            )
        self.tasks: tuple[Task, ...] = tuple(task_of(key) for key in keys)
        self.files: tuple[Files, ...] = tuple(found[key] for key in keys)
        self._prompts = self._read_prompts(instructions)

    def _find(self) -> dict[str, Files]:
        folder = self.root / "query" / self.split
        found: dict[str, Files] = {}
        for path in sorted(folder.glob("*.jsonl")):
            match = _NAME.search(path.name)
            if match is None or match["split"] != self.split or match["name"] == "union":
                continue
            stem = f"mbeir_{match['name']}_task{match['task']}"
            qrels = self.root / "qrels" / self.split / f"{stem}_{self.split}_qrels.txt"
            found[f"{match['name']}_task{match['task']}"] = Files(
                path, self._local_pool(stem), qrels if qrels.is_file() else None
            )
        if not found:
            raise GeniusError(f"no M-BEIR queries at {folder}: expected files like mbeir_mscoco_task0_{self.split}.jsonl")
        return found

    def _local_pool(self, stem: str) -> Path:
        """MSCOCO has a pool for each split, the others one for all."""
        folder = self.root / "cand_pool" / "local"
        for name in (f"{stem}_{self.split}_cand_pool.jsonl", f"{stem}_cand_pool.jsonl"):
            if (folder / name).is_file():
                return folder / name
        raise GeniusError(f"the candidate pool {folder / f'{stem}_cand_pool.jsonl'} is missing")

    # -- instructions ------------------------------------------------------------------------------------------

    def _read_prompts(self, given: str | Path | None) -> dict[tuple[int, Modality, Modality], list[str]]:
        path = Path(given) if given is not None else self.root / "instructions" / "query_instructions.tsv"
        if not path.is_file():
            if given is not None:
                raise GeniusError(f"no such instruction file: {path}")
            return {}
        return read_instructions(path)

    def instruction(self, query_id: str, task: Task) -> str:
        """One of the prompts for this query, the same in every run with this seed."""
        dataset = query_id.partition(":")[0]
        prompts = self._prompts.get((int(dataset) if dataset.isdecimal() else -1, task.query, task.target))
        if prompts is None:
            if self._prompts and task.key in ROWS:
                raise GeniusError(f"the instruction file has no prompts for {task.title} (dataset {dataset})")
            prompts = list(TEMPLATES[task.query, task.target])
        return random.Random(f"{self.seed}:{query_id}").choice(prompts)

    # -- streams -----------------------------------------------------------------------------------------------

    def queries(self) -> Iterator[JudgedQuery]:
        for number, (task, files) in enumerate(zip(self.tasks, self.files, strict=True)):
            qrels = read_qrels(files.qrels) if files.qrels is not None else None
            for row in read_jsonl(files.queries):
                yield self._query(row, number, task, qrels, files.queries)

    def _query(self, row: dict[str, Any], number: int, task: Task, qrels: dict[str, list[str]] | None, path: Path) -> JudgedQuery:
        name = str(row.get("qid", ""))
        if not name:
            raise GeniusError(f"{path}: a query has no qid")
        image = row.get("query_img_path") if task.query != TEXT else None
        text = row.get("query_txt") if task.query != IMAGE else None
        if (task.query != TEXT and not image) or (task.query != IMAGE and not text):
            raise GeniusError(f"{path}: query {name} lacks the {task.query.label} that its task wants")
        query = Query(text=text, image=str(self.root / image) if image else None, instruction=self.instruction(name, task))
        positives = row.get("pos_cand_list", []) if qrels is None else qrels.get(name, [])
        return JudgedQuery(name, query, tuple(dict.fromkeys(str(p) for p in positives)), number)

    def pool(self) -> Iterator[Item]:
        union = self.root / "cand_pool" / "global" / f"mbeir_union_{self.split}_cand_pool.jsonl"
        if union.is_file() and len(self.tasks) == len(self._find()):
            yield from self._items(union)
            return
        seen: set[str] = set()
        for path in dict.fromkeys(files.pool for files in self.files):
            for item in self._items(path):
                if item.id not in seen:
                    seen.add(item.id)
                    yield item

    def local_pool(self, task: int) -> Iterator[str] | None:
        return (str(row["did"]) for row in read_jsonl(self.files[task].pool))

    def _items(self, path: Path) -> Iterator[Item]:
        for row in read_jsonl(path):
            name = str(row.get("did", ""))
            if not name:
                raise GeniusError(f"{path}: a candidate has no did")
            modality = Modality.parse(str(row.get("modality", "")))
            image = row.get("img_path") if modality != TEXT else None
            text = row.get("txt") if modality != IMAGE else None
            if (modality != TEXT and not image) or (modality != IMAGE and not (text or "").strip()):
                raise GeniusError(f"{path}: candidate {name} lacks the {modality.label} that it is said to be")
            yield Item(name, image=str(self.root / image) if image else None, text=text)

    def fingerprint(self) -> str:
        paths = {path for f in self.files for path in (f.queries, f.pool, f.qrels) if path is not None}
        prompts = self.root / "instructions" / "query_instructions.tsv"
        return files_fingerprint(paths | ({prompts} if prompts.is_file() else set()), self.split, str(self.seed))


def read_instructions(path: Path) -> dict[tuple[int, Modality, Modality], list[str]]:
    """(dataset id, query modality, candidate modality) -> prompts, from M-BEIR's tab-separated file."""
    prompts: dict[tuple[int, Modality, Modality], list[str]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            try:
                key = (int(row["dataset_id"]), Modality.parse(row["query_modality"]), Modality.parse(row["cand_modality"]))
            except (KeyError, TypeError, ValueError):
                raise GeniusError(
                    f"{path} is not an instruction file: it needs query_modality, cand_modality, dataset_id"
                ) from None
            found = [str(v).strip() for name, v in row.items() if str(name).startswith("prompt") and v and v.strip()]
            if found:
                prompts.setdefault(key, []).extend(found)
    if not prompts:
        raise GeniusError(f"{path} holds no prompts")
    return prompts


def read_qrels(path: Path) -> dict[str, list[str]]:
    """query id -> ids of relevant candidates. Lines are `qid 0 did relevance [task]`."""
    out: dict[str, list[str]] = {}
    problems = Problems()
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
