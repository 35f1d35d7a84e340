"""An `Evaluation` as Markdown (in the paper's order), JSON and TREC files. Only shows what the evaluation says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from genius.data.collection import Task
from genius.data.features import FeatureSet
from genius.evaluate import Evaluation, Result

TITLES = {
    "dense": "Dense", "dense-given": "Dense, target given",
    "score-fusion": "Score fusion", "genius": "GENIUS",
    "genius-r": "GENIUS^R", "genius-codes": "GENIUS + codes", "no-decoder": "No decoder", "no-decoder-r": "No decoder, re-ranked",
    "no-decoder-default": "No decoder, default",
    "default": "Default", "default-codes": "Default, codes", "default-no-bias": "Default, no item bias", "codes": "Codes alone",
}  # fmt: skip
POOL_TITLES = {"local": "Task-specific pools", "universal": "Universal pool"}


def method_title(label: str) -> str:
    name, at, beams = label.partition("@")
    title = TITLES.get(name, name)
    if at:
        title += f", {beams} beams"
    return title


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(["---"] + ["---:"] * (len(header) - 1)) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def percent(value: float | None) -> str:
    if value is None or np.isnan(value):
        return "–"
    return f"{100 * value:.1f}"


# -- Markdown ------------------------------------------------------------------------------------------------------


def markdown(evaluation: Evaluation, *, title: str, command: str = "") -> str:
    """The whole report."""
    parts = [f"# {title}", _about(evaluation, command)]
    for pool in evaluation.pools:
        parts.append(f"## {POOL_TITLES.get(pool, pool)}")
        parts.append(markdown_table(*main_rows(evaluation, pool)))
        parts.append(_detail_table(evaluation, pool))
        parts.append(_cost_table(evaluation, pool))
    parts.append(NOTES)
    return "\n\n".join(parts) + "\n"


NOTES = """Recall@k is M-BEIR's: 1 when *any* positive is among the first k. True recall is the share of positives found.
± is half the 95 % bootstrap interval over queries. * marks a difference from the reference method at p < 0.05
(paired randomisation test, Holm-corrected within a task). Candidate recall is the share of queries with a positive among
the items that were re-ranked."""


def _about(evaluation: Evaluation, command: str) -> str:
    about = evaluation.about
    lines = [
        f"{about['queries']:,} queries, {about['candidates']:,} candidates; IDs of {len(about['levels'])} levels "
        f"({' x '.join(map(str, about['levels']))}); model `{about['model'][:12]}`; seed {about['config']['seed']}; "
        f"{about['date']}; {about['device']}, torch {about['torch']}."
    ]
    if about.get("unjudged"):
        lines.append(f"{about['unjudged']:,} queries have no positive and are left out.")
    if command:
        lines.append(f"```\n{command}\n```")
    return "\n\n".join(lines)


def main_rows(evaluation: Evaluation, pool: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the main metric in percent: one row a task, then the average; a column a method."""
    methods = evaluation.methods
    rows: list[list[str]] = []
    last = ""
    for task in evaluation.tasks:
        direction = _direction(task)
        shown = direction
        if direction == last:
            shown = ""
        last = direction
        row = [shown, task.dataset, f"R@{task.main}"]
        rows.append(row + [main_cell(evaluation.find(task.key, method, pool)) for method in methods])
    rows.append(["**Average**", "", "", *(average_cell(evaluation, method, pool) for method in methods)])
    return ["Task", "Dataset", "k", *(method_title(m) for m in methods)], rows


def _direction(task: Task) -> str:
    short = {"image": "i", "text": "t", "pair": "(i,t)"}
    return f"q_{short[task.query.label]} → c_{short[task.target.label]}"


def average_cell(evaluation: Evaluation, method: str, pool: str) -> str:
    mean = f"**{percent(evaluation.average(method, pool))}**"
    if not evaluation.about["config"]["bootstrap"]:
        return mean
    low, high = evaluation.average_interval(method, pool)
    return f"{mean} ±{50 * (high - low):.1f}"


def main_cell(result: Result, *, mark: bool = True) -> str:
    """The main metric in percent, half its interval, and a star where it differs from the reference."""
    cell = percent(result.metrics[result.main])
    interval = result.intervals.get(result.main)
    if interval:
        cell += f" ±{50 * (interval[1] - interval[0]):.1f}"
    if mark and result.p_value is not None and result.p_value < 0.05:
        cell += "*"
    return cell


def _detail_table(evaluation: Evaluation, pool: str) -> str:
    """Means over tasks of everything else that is measured."""
    cutoffs = sorted(evaluation.about["config"]["cutoffs"])
    rows = []
    for method in evaluation.methods:
        results = evaluation.of(method, pool)
        row = [method_title(method)]
        for name in [*(f"hit@{k}" for k in cutoffs), *(f"recall@{k}" for k in cutoffs), "ndcg@10", "mrr@10"]:
            row.append(percent(float(np.mean([r.metrics[name] for r in results]))))
        rows.append(row)
    header = ["Mean over tasks", *(f"Recall@{k}" for k in cutoffs), *(f"true recall@{k}" for k in cutoffs), "nDCG@10", "MRR@10"]
    return markdown_table(header, rows)


def _cost_table(evaluation: Evaluation, pool: str) -> str:
    rows = []
    for method in evaluation.methods:
        results = evaluation.of(method, pool)
        reached = [r.candidate_recall for r in results if r.candidate_recall is not None]
        candidate_recall = "all"
        if reached:
            candidate_recall = percent(float(np.mean(reached)))
        rows.append(
            [
                method_title(method),
                f"{_per_second(results):,.1f}",
                f"{np.mean([r.bytes_per_item for r in results]):,.1f}",
                f"{np.mean([r.touched for r in results]):,.0f}",
                candidate_recall,
            ]
        )
    return markdown_table(["Cost", "queries/s", "bytes/item kept", "items compared/query", "candidate recall"], rows)


def _per_second(results: Sequence[Result]) -> float:
    """Queries over seconds of all searches together: a search shared by several tasks is counted once for each query."""
    seconds = sum(r.queries / r.queries_per_second for r in results)
    if not seconds:
        return float("inf")
    return sum(r.queries for r in results) / seconds


# -- files ---------------------------------------------------------------------------------------------------------


def write_report(
    evaluation: Evaluation,
    directory: str | Path,
    data: FeatureSet,
    *,
    title: str,
    command: str = "",
) -> dict[str, str]:
    """Write results.md, results.json, runs/ and qrels/ (TREC format).

    Args:
        evaluation: What `evaluate` returned.
        directory: The folder; it is made if it is missing.
        data: The features that were evaluated.
        title: Of the report.
        command: The command line to name in it.

    Returns:
        Name of a part -> where it was written.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.md").write_text(markdown(evaluation, title=title, command=command), encoding="utf-8")
    (directory / "results.json").write_text(json.dumps(evaluation.to_json(), indent=1) + "\n", encoding="utf-8")
    _write_trec(evaluation, directory, data)
    names = {"markdown": "results.md", "json": "results.json", "runs": "runs", "qrels": "qrels"}
    return {part: str(directory / name) for part, name in names.items()}


def _write_trec(evaluation: Evaluation, directory: Path, data: FeatureSet) -> None:
    positives = data.positives()
    number = {data.task_name(n): n for n in set(data.tasks.tolist())}
    for task in evaluation.tasks:
        rows = evaluation.query_rows[task.key]
        ids = [data.query_ids[i] for i in rows]
        name = _safe(task.key)
        own = None
        if task.key in number:
            own = set(data.pool_rows(number[task.key]).tolist())
        for pool in evaluation.pools:  # a local pool does not hold the answers that lie in another task's
            inside = [[row for row in positives[i] if own is None or pool != "local" or row in own] for i in rows]
            write_qrels(directory / "qrels" / f"{name}.{pool}.trec", ids, data.pool_ids, inside)
        for method in evaluation.methods:
            for pool in evaluation.pools:
                ranked, scores = evaluation.runs[task.key, method, pool]
                # the pool is part of the name: two pools never overwrite each other's run
                path = directory / "runs" / f"{name}.{pool}.{_safe(method)}.trec"
                write_run(path, ids, data.pool_ids, ranked, scores, _safe(method))


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_@" else "_" for c in name)


def write_run(
    path: str | Path,
    query_ids: Sequence[str],
    pool_ids: Sequence[str],
    rows: npt.NDArray[np.int64],
    scores: npt.NDArray[np.floating],
    tag: str,
) -> None:
    """`qid Q0 did rank score tag`. Scores strictly decrease: other tools sort by score and break ties their own way."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for query, ranked, values in zip(query_ids, rows, np.asarray(scores, np.float64), strict=True):
            last = np.inf
            for rank, (row, score) in enumerate(zip(ranked, values, strict=True), 1):
                if row < 0:
                    break
                last = min(float(score), float(np.nextafter(last, -np.inf)))
                out.write(f"{query} Q0 {pool_ids[row]} {rank} {last!r} {tag}\n")


def write_qrels(path: str | Path, query_ids: Sequence[str], pool_ids: Sequence[str], positives: Sequence[Sequence[int]]) -> None:
    """`qid 0 did 1` for every positive."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for query, rows in zip(query_ids, positives, strict=True):
            out.writelines(f"{query} 0 {pool_ids[row]} 1\n" for row in rows)
