"""`FeatureSet`: a dataset after the encoder, which is all that training and evaluation read.

Knows features, ids, positives, tasks and their pools. Knows nothing of images, models or where the rows came from. On
disk it is a folder of safetensors and one JSON file:

    queries.safetensors   image (Q, W), text (Q, W'), image_mask (Q,), text_mask (Q,)
    pool.safetensors      the same for the candidates
    pairs.safetensors     query (P,), positive (P,): every positive of every query, one row each
    pools.safetensors     optional: task id -> rows of the task's own pool; absent: every task searches the whole pool
    ids.json              query ids, pool ids, the task of every query, task names; optional: how often each query occurs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from genius.errors import GeniusError
from genius.features import Features
from genius.files import parse_json, write_json, write_whole
from genius.weight_files import read_tensors

QUERIES = "queries.safetensors"
POOL = "pool.safetensors"
PAIRS = "pairs.safetensors"
POOLS = "pools.safetensors"
IDS = "ids.json"
FORMAT = 1


@dataclass
class FeatureSet:
    """Queries, the candidate pool, and all (query, positive) pairs. Image and text widths may differ."""

    queries: Features  # Q rows
    pool: Features  # N rows
    pairs: Tensor  # (P, 2) int64: query row, pool row; all positives
    query_ids: list[str]
    pool_ids: list[str]
    tasks: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))  # (Q,) int64, -1 unknown
    names: dict[int, str] = field(default_factory=dict)  # task id -> name
    pools: dict[int, Tensor] = field(default_factory=dict)  # task id -> rows of its own pool; missing: the whole pool
    times: Tensor | None = None  # (Q,) int64: visits of each query per epoch; None: one

    def __post_init__(self) -> None:
        if self.tasks.numel() == 0 and len(self.queries):
            self.tasks = torch.full((len(self.queries),), -1, dtype=torch.long)
        self.check()

    def check(self) -> FeatureSet:
        """Raise one clear line if the parts do not belong together; return self."""
        for name, rows, ids in (("queries", self.queries, self.query_ids), ("pool", self.pool, self.pool_ids)):
            rows.check_shapes(name)
            if len(ids) != len(rows):
                raise GeniusError(f"{name}: {len(rows)} rows but {len(ids)} ids")
            if len(set(ids)) != len(ids):
                raise GeniusError(
                    f"{name}: {len(ids) - len(set(ids))} ids occur more than once (first: {_first_duplicate(ids)!r})"
                )
        if self.tasks.shape != (len(self.queries),):
            raise GeniusError(f"{len(self.queries)} queries but tasks of shape {tuple(self.tasks.shape)}")
        if self.times is not None and (self.times.shape != (len(self.queries),) or (self.times < 1).any()):
            raise GeniusError(f"{len(self.queries)} queries need as many positive counts, got shape {tuple(self.times.shape)}")
        if self.pairs.ndim != 2 or self.pairs.shape[1] != 2:
            raise GeniusError(f"pairs have shape {tuple(self.pairs.shape)}, expected (P, 2)")
        limits = torch.tensor([len(self.queries), len(self.pool)])
        if self.pairs.numel() and ((self.pairs < 0) | (self.pairs >= limits)).any():
            raise GeniusError("pairs refer to rows that do not exist")
        for task, local in self.pools.items():
            if local.numel() and (int(local.min()) < 0 or int(local.max()) >= len(self.pool)):
                raise GeniusError(f"the pool of task {self.task_name(task)} refers to rows that do not exist")
        return self

    def task_name(self, task: int) -> str:
        """Name of a task for reports.

        Args:
            task: Its id; below 0: queries of no task.
        """
        task = int(task)
        if task in self.names:
            return self.names[task]
        if task < 0:
            return "all"
        return f"task {task}"

    def positives(self) -> list[list[int]]:
        """The pool rows of each query's positives, in the order of the pairs."""
        out: list[list[int]] = [[] for _ in range(len(self.queries))]
        for query, row in self.pairs.tolist():
            out[query].append(row)
        return out

    def pool_rows(self, task: int) -> Tensor:
        """Rows of a task's own pool (all of them where none is named).

        Args:
            task: Its id.
        """
        rows = self.pools.get(int(task))
        if rows is None:
            return torch.arange(len(self.pool))
        return rows

    def take_queries(self, rows: Tensor | Sequence[int]) -> FeatureSet:
        """A set with only these queries (and their pairs), over the same pool.

        Args:
            rows: Rows of the queries to keep, in their new order.
        """
        picked = torch.as_tensor(rows, dtype=torch.long)
        place = torch.full((len(self.queries),), -1, dtype=torch.long)
        place[picked] = torch.arange(len(picked))
        moved = place[self.pairs[:, 0]]
        pairs = torch.stack([moved, self.pairs[:, 1]], 1)[moved >= 0]
        ids = [self.query_ids[i] for i in picked.tolist()]
        times = self.times
        if times is not None:
            times = times[picked]
        queries = self.queries[picked]
        return replace(self, queries=queries, pairs=pairs, query_ids=ids, tasks=self.tasks[picked], times=times)

    def take_pool(self, rows: Tensor) -> FeatureSet:
        """The same queries over only these candidates, with the pairs and tasks' pools that are left.

        Args:
            rows: (n,) rows of the candidates to keep, in their new order.
        """
        place = torch.full((len(self.pool),), -1, dtype=torch.long)
        place[rows] = torch.arange(len(rows))
        pairs = torch.stack([self.pairs[:, 0], place[self.pairs[:, 1]]], 1)
        pools = {task: place[own] for task, own in self.pools.items()}
        return replace(
            self,
            pool=self.pool[rows],
            pairs=pairs[pairs[:, 1] >= 0],
            pool_ids=[self.pool_ids[row] for row in rows.tolist()],
            pools={task: own[own >= 0] for task, own in pools.items()},
        )

    def visits(self) -> Tensor:
        """Rows of the queries of one epoch, up-sampled ones several times."""
        rows = torch.arange(len(self.queries))
        if self.times is None:
            return rows
        return torch.repeat_interleave(rows, self.times)

    # -- our folder --------------------------------------------------------------------------------------------

    def save(self, directory: str | Path, dtype: torch.dtype | None = None, *, vectors: bool = True) -> None:
        """Write the folder. `ids.json` comes last, so a folder with it is whole.

        Args:
            directory: The folder; it is made if it is missing.
            dtype: Precision of the stored vectors; None: as they are.
            vectors: False leaves the two files of vectors as they are (extraction has filled them in place).
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / IDS).unlink(missing_ok=True)
        if vectors:
            write_tensors(directory / QUERIES, features_to_tensors(self.queries, dtype))
            write_tensors(directory / POOL, features_to_tensors(self.pool, dtype))
        write_tensors(directory / PAIRS, {"query": self.pairs[:, 0].contiguous(), "positive": self.pairs[:, 1].contiguous()})
        (directory / POOLS).unlink(missing_ok=True)
        if self.pools:
            write_tensors(directory / POOLS, {str(task): rows.contiguous() for task, rows in self.pools.items()})
        body: dict[str, Any] = {
            "format": FORMAT,
            "queries": self.query_ids,
            "pool": self.pool_ids,
            "tasks": self.tasks.tolist(),
            "names": {str(task): name for task, name in self.names.items()},
        }
        if self.times is not None:
            body["times"] = self.times.tolist()
        write_json(directory / IDS, body)

    @classmethod
    def load(cls, directory: str | Path) -> FeatureSet:
        """Read a folder that `save` or `genius.data.extract.extract` wrote.

        Args:
            directory: The folder.
        """
        directory = Path(directory)
        ids = _read_ids(directory)
        pairs = read_tensors(directory / PAIRS)
        pools: dict[str, Tensor] = {}
        if (directory / POOLS).is_file():
            pools = read_tensors(directory / POOLS)
        try:
            return cls(
                queries=features_from_tensors(read_tensors(directory / QUERIES)),
                pool=features_from_tensors(read_tensors(directory / POOL)),
                pairs=torch.stack([pairs["query"], pairs["positive"]], 1).long(),
                query_ids=[str(i) for i in ids["queries"]],
                pool_ids=[str(i) for i in ids["pool"]],
                tasks=torch.tensor(ids["tasks"], dtype=torch.long),
                names={int(task): str(name) for task, name in ids["names"].items()},
                pools={int(task): rows.long() for task, rows in pools.items()},
                times=torch.tensor(ids["times"], dtype=torch.long) if ids.get("times") else None,
            )
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise GeniusError(f"{directory} is not a feature set: {error}") from None

    @staticmethod
    def is_folder(directory: str | Path) -> bool:
        """Whether `directory` looks like a saved feature set.

        Args:
            directory: A path.
        """
        return all((Path(directory) / name).is_file() for name in (QUERIES, POOL, IDS))


def pairs_from_ids(positives: Mapping[str, Sequence[str]], query_ids: Sequence[str], pool_ids: Sequence[str]) -> Tensor:
    """(P, 2) rows from ids; ids that are in neither list fail with counts and examples."""
    query_row = {name: row for row, name in enumerate(query_ids)}
    pool_row = {name: row for row, name in enumerate(pool_ids)}
    lost_queries = [q for q in positives if q not in query_row]
    lost_pool = [c for cands in positives.values() for c in cands if c not in pool_row]
    if lost_queries or lost_pool:
        example = (lost_queries + lost_pool)[0]
        raise GeniusError(
            f"{len(lost_queries)} judged queries and {len(lost_pool)} of their positives have no features (first: {example!r})"
        )
    rows = [(query_row[q], pool_row[c]) for q, cands in positives.items() for c in cands]
    return torch.tensor(rows, dtype=torch.long).reshape(-1, 2)


# -- small file helpers ------------------------------------------------------------------------------------------


def features_to_tensors(features: Features, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The four tensors of a features file. Missing rows become zeros, so that garbage is never stored."""
    image, text = features.masked()
    if dtype is not None:
        image = image.to(dtype)
        text = text.to(dtype)
    return {
        "image": image.contiguous(),
        "text": text.contiguous(),
        "image_mask": features.image_mask.contiguous(),
        "text_mask": features.text_mask.contiguous(),
    }


def features_from_tensors(tensors: Mapping[str, Tensor]) -> Features:
    return Features(tensors["image"], tensors["text"], tensors["image_mask"].bool(), tensors["text_mask"].bool())


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    write_whole(path, lambda temporary: save_file(tensors, temporary))


def _read_ids(directory: Path) -> dict[str, Any]:
    path = directory / IDS
    try:
        body = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise GeniusError(f"{directory} is not a feature set: {IDS} is missing") from None
    except (OSError, ValueError) as error:
        raise GeniusError(f"cannot read {path}: {error}") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise GeniusError(f"{path} has an unknown format; this version reads {FORMAT}")
    return body


def _first_duplicate(ids: Sequence[str]) -> str:
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            return name
        seen.add(name)
    return ""
