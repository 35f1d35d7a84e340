"""The table "What was measured" of docs/scale.md, from the files that the programs beside this one wrote.

python -m lab.ray.measured            prints it; a test compares it with the page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def read(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return body


def rows() -> list[tuple[str, str, str, str]]:
    """What, bar, figure, file."""
    same, kills, overhead = read("same"), read("kills"), read("overhead")
    training, rolling, workers, fewer = read("training"), read("rolling"), read("workers"), read("workers_64")
    other, weights = same["different"], training["largest_difference_of_a_weight"]
    cost = workers["processor_ms_per_query"]
    start, held, rates = overhead["cpu_s_of_starting"], workers["memory"]["two"], workers["queries_per_second"]
    return [
        (
            f"{same['items']:,} items by two workers against one process without Ray",
            "equal",
            f"{other['only_in_one']} ids, {other['codes']} codes, {other['vectors']} vectors,"
            f" {other['other_columns']} other fields and {other['answers']} of {same['questions']} answers differ"
            f" ({same['different_by_threads_alone']['vectors']} vector by two threads in place of one)",
            "same",
        ),
        (
            "a worker, a machine's raylet or the command killed with -9 at a random moment, then run again",
            "20 rounds, nothing wrong",
            f"{kills['rounds_with_a_kill']} rounds of {kills['items']} items: {sum(kills['wrong'].values())} ids lost, doubled or"
            " other than without Ray, damaged or left-over files, parts done twice",
            "kills",
        ),
        (
            f"one worker of Ray against none, {overhead['items']:,} items, processor time of all processes",
            "at most 1.25 x",
            f"{overhead['overhead']['all']} x with Ray's start ({overhead['cpu_s']['one_worker']:.0f} s against"
            f" {overhead['cpu_s']['without']:.0f} s), {overhead['overhead']['work']} x without it"
            f" (starting: {start['one_worker']:.0f} s against {start['without']:.0f} s)",
            "overhead",
        ),
        (
            "two training workers against one process, all stages; one worker killed",
            "same weights and losses",
            f"weights differ by at most {weights['two_against_one']:.0e}; after the kill by {weights['killed_against_two']:.0f}",
            "training",
        ),
        (
            "requests while the index rolls to a new version and one replica is killed",
            "1,000, none failed",
            f"{rolling['answers']['200']:,} of {rolling['settings']['requests']:,} answered, {len(rolling['failed'])} failed",
            "rolling",
        ),
        (
            "`genius serve --workers 2` against 1 on two processors",
            "at least 1.5 x, memory shared",
            f"{workers['ratio']} x with {workers['settings']['connections']} connections ({rates['two']:.0f} against"
            f" {rates['one']:.0f} questions a second, {cost['two']:.1f} and {cost['one']:.1f} ms of processor time each),"
            f" {fewer['ratio']} x with {fewer['settings']['connections']} (workers_64.json); the index is mapped once"
            f" for all: {held['index_pss_mb']} MB of shares where both count {held['index_rss_mb']} MB",
            "workers",
        ),
    ]


def table() -> str:
    lines = ["| measured | wanted | found | file in lab/ray |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {what} | {bar} | {found} | {name}.json |" for what, bar, found, name in rows())])


if __name__ == "__main__":
    print(table())
