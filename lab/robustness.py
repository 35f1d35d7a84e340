"""Worse inputs: how much every search mode loses next to dense search, on the icon benchmark.

    python -m lab.robustness --icons ICONS --features FEATURES-TEST --queries 60

ICONS is what `python -m lab icons` writes: the raw texts and pictures of the queries, which are spoiled here and encoded anew.
FEATURES-TEST is a feature set of its test split made by the same encoder: only its pool is searched. Nothing was trained or
chosen on these queries. One pool for all tasks; the wanted modality is told to the search only where a line says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genius import Genius
from genius.data.collection import JudgedQuery
from genius.data.features import FeatureSet
from genius.data.mbeir import DIRECTIONS, MBeir
from genius.encoders.base import encode_queries
from genius.errors import GeniusError
from genius.evaluate import UNIVERSAL, EvalConfig, build_methods
from genius.evaluate.methods import Pool, Space
from genius.ranking import Floats, bootstrap_interval_of_average, hit_at, judge
from genius.types import Query, load_image
from lab.robustness_inputs import Case, cases, other_task

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Asked:
    """One query of the benchmark."""

    id: str
    query: Query
    task: int  # M-BEIR's number
    answers: tuple[int, ...]  # rows of the pool


# -- searching, as `genius eval` does ------------------------------------------------------------------------------


METHODS = {"dense": "dense", "default": "default", "default-codes": "default, codes", "genius-r": "GENIUS^R", "genius": "GENIUS"}
"""The harness's methods, and how the tables call them. Where a target is told, dense search is told it, too."""


def ask(case: Case, queries: list[Asked], model: Genius, features: FeatureSet) -> dict[str, Floats]:
    """Mode -> (Q,) hit@5 of the queries that the case touches; the others are NaN."""
    start = time.perf_counter()
    rows = [i for i, query in enumerate(queries) if query.task in case.touches]
    touched = [queries[i] for i in rows]
    spoiled = [case.change(q.query, q.task, random.Random(f"{case.name}:{q.id}")) for q in touched]
    assert model.encoder is not None
    data = FeatureSet(
        encode_queries(model.encoder, spoiled, instructions=model.config.instructions),
        features.pool,
        torch.tensor([(place, row) for place, query in enumerate(touched) for row in query.answers]),
        [f"{query.task}:{query.id}" for query in touched],
        features.pool_ids,
        torch.tensor([query.task for query in touched]),
    )
    space = Space(model, data)
    if case.told:
        kinds = {t: DIRECTIONS[t if case.told == "right" else other_task(t)][1] for t in case.touches}
        space.target = torch.tensor([int(kinds[query.task]) for query in touched], device=space.device)
    names = ["dense-told" if case.told and name == "dense" else name for name in METHODS]
    everyone, pool = np.arange(len(touched)), Pool(UNIVERSAL, np.arange(len(features.pool)))
    out = {}
    for method, shown in zip(build_methods(space, EvalConfig(tuple(names), survival=0)), METHODS.values(), strict=True):
        found = method.answer(space, pool, everyone, 5)
        out[shown] = np.full(len(queries), np.nan)
        out[shown][rows] = hit_at(judge(found.rows, space.positives), 5)
    case.seconds = time.perf_counter() - start
    return out


def pick(data: MBeir, features: FeatureSet, count: int) -> list[Asked]:
    """So many of each task, evenly spread as `genius eval --queries` does."""
    place = {name: row for row, name in enumerate(features.pool_ids)}
    by_task: dict[int, list[JudgedQuery]] = {}
    for query in data.queries():
        if query.positives:
            by_task.setdefault(query.task, []).append(query)
    out = []
    for task, judged in by_task.items():
        number = int(data.tasks[task].key.rpartition("_task")[2])
        for i in np.unique(np.linspace(0, len(judged) - 1, min(count, len(judged))).astype(int)):
            missing = [p for p in judged[i].positives if p not in place]
            if missing:
                raise GeniusError(f"the features lack candidate {missing[0]}: they are of another version of the data")
            out.append(Asked(judged[i].id, judged[i].query, number, tuple(place[p] for p in judged[i].positives)))
    return out


# -- report --------------------------------------------------------------------------------------------------------


def compare(case: Case, hits: dict[str, Floats], clean: dict[str, Floats], kinds: Floats) -> dict[str, dict[str, Any]]:
    """Mode -> hit@5 in per cent, what the clean queries of the same tasks have, the paired loss and its interval."""
    rows = [kinds == t for t in case.touches]
    out: dict[str, dict[str, Any]] = {}
    for mode, values in hits.items():
        after, before = (float(np.mean([h[r].mean() for r in rows])) for h in (values, clean[mode]))
        low, high = bootstrap_interval_of_average([clean[mode][r] - values[r] for r in rows])
        out[mode] = {
            "hit@5": 100 * after, "clean": 100 * before, "loss": 100 * (before - after), "interval": [100 * low, 100 * high],
            "kept": after / before if before else None,
            "by_task": {str(t): 100 * float(values[r].mean()) for t, r in zip(case.touches, rows, strict=True)},
        }  # fmt: skip
        # of this loss, what dense search does not lose on the same queries
        more = [(clean[mode][r] - values[r]) - (clean["dense"][r] - hits["dense"][r]) for r in rows]
        low, high = bootstrap_interval_of_average(more)
        out[mode]["beyond_dense"] = {"loss": 100 * float(np.mean([m.mean() for m in more])), "interval": [100 * low, 100 * high]}
    return out


def markdown(report: dict[str, Any]) -> str:
    names = list(report["cases"][0]["modes"])

    def rows(cell: Callable[[dict[str, Any]], str], cases: list[dict[str, Any]], names: list[str] = names) -> str:
        lines = [f"| input | tasks | {' | '.join(names)} |", f"|---|---:|{'---:|' * len(names)}"]
        lines += [f"| {c['name']} | {len(c['tasks'])} | {' | '.join(cell(c['modes'][m]) for m in names)} |" for c in cases]
        return "\n".join(lines)

    def change(loss: float, interval: list[float]) -> str:
        low, value, high = (round(0.0 - number, 1) + 0.0 for number in (interval[1], loss, interval[0]))  # no "-0.0"
        return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"

    first, worse = report["cases"][:1], report["cases"][1:]
    parts = (
        rows(lambda f: f"{f['hit@5']:.1f}", first),
        "hit@5, and its change against the clean queries of the same tasks with a 95 % interval (paired bootstrap):",
        rows(lambda f: f"{f['hit@5']:.1f} ({change(f['loss'], f['interval'])})", worse),
        "Change beyond that of dense search on the same queries:",
        rows(lambda f: change(f["beyond_dense"]["loss"], f["beyond_dense"]["interval"]), worse, names[1:]),
    )
    return "\n\n".join(parts) + "\n"


def coloured(query: Query) -> bool:
    """Whether taking the colour away changes the picture."""
    pixels = np.asarray(load_image(query.image), np.int16)  # type: ignore[arg-type]
    return bool(np.abs(pixels - pixels.mean(2, keepdims=True)).max() > 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:mini")
    parser.add_argument("--icons", type=Path, required=True, help="folder of `python -m lab icons`")
    parser.add_argument("--features", type=Path, required=True, help="its test split as features of the model's encoder")
    parser.add_argument("--queries", type=int, default=60, help="of each task")
    parser.add_argument("--output", type=Path, default=HERE / "robustness.json")
    args = parser.parse_args()
    model, features, data = Genius.from_pretrained(args.model), FeatureSet.load(args.features), MBeir(args.icons)
    queries = pick(data, features, args.queries)
    drawn = [coloured(q.query) for q in queries if q.query.image is not None]
    threads = f"{torch.get_num_threads()} thread(s)"
    report: dict[str, Any] = {
        "model": model.fingerprint()[:12], "search": model.config.search, "queries_per_task": args.queries,
        "queries": len(queries), "candidates": len(features.pool), "coloured_query_images": float(np.mean(drawn)),
        "date": datetime.date.today().isoformat(), "load": os.getloadavg()[0],
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {threads}, torch {torch.__version__}",
        "cases": [],
    }  # fmt: skip
    clean: dict[str, Floats] = {}
    for case in cases(args.icons):
        hits = ask(case, queries, model, features)
        clean = clean or hits
        found = compare(case, hits, clean, np.array([q.task for q in queries], dtype=float))
        report["cases"].append({"name": case.name, "tasks": list(case.touches), "seconds": case.seconds, "modes": found})
        line = ", ".join(f"{mode} {f['hit@5']:.1f}" for mode, f in found.items())
        print(f"{case.name}: {line} ({case.seconds:.0f} s)", file=sys.stderr, flush=True)
        args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        args.output.with_suffix(".md").write_text(markdown(report), encoding="utf-8")


if __name__ == "__main__":
    main()
