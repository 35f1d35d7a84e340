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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genius import Genius
from genius.data.collection import JudgedQuery
from genius.data.features import FeatureSet
from genius.data.mbeir import DIRECTIONS, MBeir
from genius.errors import GeniusError
from genius.evaluate.metrics import Floats, bootstrap_interval_of_average, hit_at, judge
from genius.nearest import nearest_rows
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.types import Query, load_image
from lab.robustness_inputs import Case, cases, other_task

HERE = Path(__file__).parent
NONE = -1  # target code: not told


@dataclass(frozen=True)
class Asked:
    """One query of the benchmark."""

    id: str
    query: Query
    task: int  # M-BEIR's number
    answers: tuple[int, ...]  # rows of the pool


# -- searching -----------------------------------------------------------------------------------------------------


def modes(model: Genius) -> dict[str, SearchParams | None]:
    """None: exhaustive. The model's own settings; the same to full depth with 50 beams, as `genius eval`."""
    own = SearchParams.of_model(model)
    full = replace(own, beams=50)
    return {
        "dense": None,
        "default": own,
        "default, codes": own.named("default-codes"),
        "GENIUS^R": full.named("genius-r"),
        "GENIUS": full.named("genius"),
    }


class Collection:
    """The pool, embedded once."""

    def __init__(self, model: Genius, data: FeatureSet) -> None:
        self.model, self.modality = model, data.pool.modality
        z, self.dense = model.embed(data.pool)
        codes = model.quantizer.encode(z, self.modality.to(model.device)).cpu().numpy()
        trie = CodeTrie.build(codes, model.config.quantizer.level_sizes)
        self.engine = SearchEngine(model.generator, model.quantizer, trie, self.dense)

    def search(self, z: Tensor, dense: Tensor, target: Tensor, params: SearchParams | None, k: int = 5) -> Tensor:
        """(Q, k) rows. A target is a filter of the exhaustive search and the first code of the others."""
        if params is None:
            return self.exhaustive(dense, target, k)
        found = []
        for i in range(0, len(z), 64):
            part = slice(i, i + 64)
            found.append(self.engine.search(z[part], k=k, params=params, dense=dense[part], target=target[part]).rows)
        return torch.cat(found)

    def exhaustive(self, dense: Tensor, target: Tensor, k: int) -> Tensor:
        """(Q, k) rows of the nearest items, of the kind that is told where one is."""
        found = torch.empty(len(dense), k, dtype=torch.long)
        for kind in target.unique().tolist():
            asked = (target == kind).nonzero()[:, 0]
            items = torch.arange(len(self.dense)) if kind == NONE else (self.modality == kind).nonzero()[:, 0]
            found[asked] = items[nearest_rows(dense[asked], self.dense[items], k)]
        return found


def ask(case: Case, queries: list[Asked], collection: Collection) -> dict[str, Floats]:
    """Mode -> (Q,) hit@5 of the queries that the case touches; the others are NaN."""
    start = time.perf_counter()
    rows = [i for i, query in enumerate(queries) if query.task in case.touches]
    touched = [queries[i] for i in rows]
    vectors = collection.model.embed_queries(
        [case.change(q.query, q.task, random.Random(f"{case.name}:{q.id}")) for q in touched]
    )
    codes = {t: {"": NONE, "right": DIRECTIONS[t][1], "wrong": DIRECTIONS[other_task(t)][1]}[case.told] for t in case.touches}
    target = torch.tensor([int(codes[q.task]) for q in touched])
    out = {}
    for name, params in modes(collection.model).items():
        found = collection.search(vectors.z, vectors.dense, target, params).numpy()
        out[name] = np.full(len(queries), np.nan)
        out[name][rows] = hit_at(judge(found, [q.answers for q in touched]), 5)
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
    collection = Collection(model, features)
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
        hits = ask(case, queries, collection)
        clean = clean or hits
        found = compare(case, hits, clean, np.array([q.task for q in queries], dtype=float))
        report["cases"].append({"name": case.name, "tasks": list(case.touches), "seconds": case.seconds, "modes": found})
        line = ", ".join(f"{mode} {f['hit@5']:.1f}" for mode, f in found.items())
        print(f"{case.name}: {line} ({case.seconds:.0f} s)", file=sys.stderr, flush=True)
        args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        args.output.with_suffix(".md").write_text(markdown(report), encoding="utf-8")


if __name__ == "__main__":
    main()
