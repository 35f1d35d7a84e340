"""`python -m lab check-mbeir DIR`: is a download of M-BEIR whole, and how large is it (the paper's supplement Table 1)?

Every split is checked as `genius data check` does (`genius.data.collection.check_collection`). In addition the sizes of the test
pools are compared with the published ones: a download that has some of them exactly should have them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command, tell
from genius.data.collection import check_collection
from genius.data.mbeir import MBeir, order_of, splits_there, task_of
from genius.errors import GeniusError

POOL_SIZES: dict[str, int] = {
    # of the published test pools: what a whole download has
    "visualnews_task0": 542_246, "mscoco_task0": 5_000, "fashion200k_task0": 201_824, "webqa_task1": 544_457,
    "edis_task2": 1_047_067, "webqa_task2": 403_196, "visualnews_task3": 537_568, "mscoco_task3": 24_809,
    "fashion200k_task3": 61_707, "nights_task4": 40_038, "oven_task6": 676_667, "infoseek_task6": 611_651,
    "fashioniq_task7": 74_381, "cirr_task7": 21_551, "oven_task8": 335_135, "infoseek_task8": 481_782,
}  # fmt: skip
SHOWN = ("train", "val", "test")
ARROWS = {"image": "q_i", "text": "q_t", "pair": "(q_i, q_t)"}


@dataclass
class Count:
    """Queries of one task in one split, and how many candidates the task's own pool has."""

    queries: int = 0
    positives: int = 0
    candidates: int = 0


def count_split(data: MBeir) -> dict[str, Count]:
    """Task -> its counts."""
    counts = {task.key: Count() for task in data.tasks}
    keys = list(counts)
    for judged in data.queries():
        counts[keys[judged.task]].queries += 1
        counts[keys[judged.task]].positives += len(judged.positives)
    for number, key in enumerate(keys):
        own = data.local_pool(number)
        if own is not None:
            counts[key].candidates = sum(1 for _ in own)
    return counts


def statistics(counts: Mapping[str, Mapping[str, Count]]) -> str:
    """Supplement Table 1 as Markdown, of the counts by split and task."""
    keys = sorted({key for tasks in counts.values() for key in tasks}, key=order_of)
    lines = [
        "| task | dataset | queries: train | val | test | positives per query: train | val | test | candidates |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for key in keys:
        task = task_of(key)
        arrow = f"{ARROWS[task.query.label]} -> {ARROWS[task.target.label].replace('q', 'c')}"
        lines.append(_row([arrow, task.dataset], [counts.get(split, {}).get(key, Count()) for split in SHOWN]))
    lines.append(_row(["all", ""], [_total(counts.get(split, {})) for split in SHOWN]))
    return "\n".join(lines) + "\n"


def _row(names: list[str], splits: Sequence[Count]) -> str:
    queries = [f"{count.queries:,}" for count in splits]
    positives = [f"{count.positives / max(count.queries, 1):.1f}" for count in splits]
    return f"| {' | '.join([*names, *queries, *positives, f'{splits[-1].candidates:,}'])} |"


def _total(tasks: Mapping[str, Count]) -> Count:
    every = tasks.values()
    return Count(sum(c.queries for c in every), sum(c.positives for c in every), sum(c.candidates for c in every))


def lost_parts(tests: Mapping[str, Count]) -> list[str]:
    """Test pools of another size than published, if others have theirs: then this is M-BEIR, and a part of it is lost."""
    same = [key for key, count in tests.items() if count.candidates == POOL_SIZES.get(key)]
    if not same:
        return []
    return [
        f"the test pool of {key} has {count.candidates:,} candidates, the published one {POOL_SIZES[key]:,}: a part is lost"
        for key, count in tests.items()
        if key in POOL_SIZES and key not in same
    ]


@command
def check_mbeir(
    folder: Annotated[Path, typer.Argument(help="The download.")],
    table: Annotated[Path | None, typer.Option(help="Also write the counts: supplement Table 1 as Markdown.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
) -> None:
    """Say whether a download of M-BEIR is whole, and count it. Exit status 2 where something is missing or broken.

    Example: python -m lab check-mbeir M-BEIR --table supplement-1.md
    """
    problems: list[str] = []
    counts: dict[str, dict[str, Count]] = {}
    for split in splits_there(folder):
        try:
            data = MBeir(folder, split=split)
            check_collection(data)
            counts[split] = count_split(data)
        except GeniusError as error:
            problems.append(f"{split}: {error}")
    problems += lost_parts(counts.get("test", {}))
    shown = statistics(counts)
    if table is not None:
        table.write_text(shown, encoding="utf-8")
    body = {split: {key: vars(count) for key, count in tasks.items()} for split, tasks in counts.items()}
    tell({"root": str(folder), "sound": not problems, "counts": body, "broken": problems}, shown, as_json)
    if problems:
        raise GeniusError(f"{folder}: {'; '.join(problems)}")
    if not as_json:
        print(f"{folder} is whole")
