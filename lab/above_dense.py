"""`builtin:default` trained on a benchmark and measured with the search that ships: every search beside dense search.

    python -m lab.above_dense train BENCHMARK FEATURES WORK OUT --seed N [--parts ...] [--set name=JSON]
    python -m lab.above_dense merge FILE ...       -> lab/results/above_dense_BENCHMARK.json
    python -m lab.above_dense table                tables of docs/engine.md from these

BENCHMARK: fashion or icons; FEATURES: as in `lab.accuracy`; WORK: a folder for the training and its vectors; OUT: a folder for
results, which are written after every line. "unseen": only candidates that no training or held-out query shows. Parts:

    unseen, all   the default search and codes only, with and without the item bias, target unknown and given
    beams         GENIUS and GENIUS^R with 50 beams on `BEAM_QUERIES` test queries, unseen candidates

"whole bias": scores made of codes take the bias that was chosen for vectors. Weights and temperatures are chosen on validation
queries, hits are counted on test queries.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from genius.model.genius import Genius
from genius.model.query_bank import QueryBank
from genius.search import SearchEngine, SearchParams
from lab.tables import write_between
from lab.trained import (
    DENSE,
    FLAT,
    Floats,
    Hits,
    Ints,
    Results,
    Run,
    add_arguments,
    described,
    summary,
    write_json,
)

TITLES = {"fashion": "Fashion", "icons": "Icons"}
PARTS = ("unseen", "beams", "all")
BEAM_QUERIES = 2000
PAGE = Path("docs/engine.md")
BEGIN = "<!-- made by python -m lab.above_dense table -->"
END = "<!-- end -->"


class Measurement:
    """One training, its vectors, and the lines that are measured of it."""

    def __init__(self, run: Run, results: Results) -> None:
        self.run = run
        self.results = results
        self.trained = run.train()
        self.model: Genius = self.trained.model
        assert self.model.queries is not None
        self.bank: QueryBank = self.model.queries
        self.bench = run.bench(self.trained)
        self.unseen = np.flatnonzero(self.bench.unseen)
        results.note("metrics", {stage: values for stage, values in self.trained.metrics.items() if stage != "quantizer"})
        results.note("bias", {"queries": len(self.bank), "weights": _listed(self.bank.bias_weights)})
        results.note("test_queries", len(self.bench.test))

    def engine(self, rows: Ints, biased: QueryBank | None = None, stored: Floats | None = None) -> SearchEngine:
        """Of some items; `biased`: a bank in place of the model's own."""
        return self.bench.engine(self.model, rows, self.bank, biased or self.bank, stored)

    def candidates(self, rows: Ints, candidates: str) -> None:
        """The default search and codes only."""
        engine = self.engine(rows)
        reconstructed = engine.collection.reconstructed
        assert reconstructed is not None
        by_codes = self.engine(rows, stored=reconstructed.take(np.arange(len(rows))))
        reference = self.bench.hits(engine, rows, DENSE, given=True)

        def add(search: str, target: str, hits: Hits) -> None:
            self.results.add(reference, hits, search=search, target=target, candidates=candidates, items=len(rows))

        add("dense, target given", "given", reference)
        for given, target in ((False, "unknown"), (True, "given")):
            add("default, no bias", target, self.bench.hits(engine, rows, DENSE, given=given))
            add("default, with bias", target, self.bench.hits(engine, rows, FLAT, given=given))
            for name, bias in (("no bias", None), ("with bias", engine.code_bias), ("whole bias", engine.item_bias)):
                by_codes.__dict__["item_bias"] = bias
                params = replace(FLAT, item_bias=bias is not None)
                add(f"codes, {name}", target, self.bench.hits(by_codes, rows, params, given=given))

    def beams(self) -> None:
        """GENIUS and GENIUS^R."""
        rows = self.unseen
        engine = self.engine(rows)
        random = np.random.default_rng(self.run.config.seed)
        asked = np.sort(random.permutation(len(self.bench.test))[:BEAM_QUERIES])
        reference = self.bench.hits(engine, rows, DENSE, given=True, asked=asked)

        def add(search: str, target: str, hits: Hits) -> None:
            about = {"candidates": "unseen", "items": len(rows), "queries": len(asked)}
            self.results.add(reference, hits, search=search, target=target, **about)

        add("dense, target given, queries of beams", "given", reference)
        for name, reranker in (("GENIUS, 50 beams", "none"), ("GENIUS^R, 50 beams", "embeddings")):
            for bias, with_bias in (("no bias", False), ("with bias", True)):
                params = SearchParams(plan="beam", reranker=reranker, beams=50, item_bias=with_bias)
                add(f"{name}, {bias}", "unknown", self.bench.hits(engine, rows, params, asked=asked))


def _listed(numbers: Any) -> list[list[float]]:
    listed: list[list[float]] = np.round(np.asarray(numbers, float), 3).tolist()
    return listed


# -- tables --------------------------------------------------------------------------------------------------------


def result_file(benchmark: str) -> Path:
    return Path(f"lab/results/above_dense_{benchmark}.json")


def merge(files: Sequence[Path]) -> None:
    """One JSON for each benchmark, of what `train` wrote of single trainings."""
    bodies = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for benchmark in TITLES:
        own = sorted((body for body in bodies if body["benchmark"] == benchmark), key=lambda body: body["seed"])
        if not own:
            continue
        shared = {name: own[0][name] for name in ("command", "commit", "date", "device", "threads", "changes")}
        lines = summary(own, ("candidates", "search", "target"))
        body = {**shared, "seeds": [run["seed"] for run in own], "summary": lines, "runs": own}
        write_json(result_file(benchmark), body)


def tables(benchmark: str, body: dict[str, Any]) -> str:
    """Markdown of the measured lines of a benchmark."""
    lines = body["summary"]
    runs = body["runs"]
    recipe = "`builtin:default` as it is (three stages)"
    if body.get("changes"):
        steps = ", ".join(f"{name} {value}" for name, value in body["changes"].items())
        recipe = f"`builtin:default`, stages 1 and 2 with fewer steps ({steps})"
    asked = runs[0].get("test_queries") or runs[0]["existence"]["unseen"]["queries"]
    out = [
        f"{TITLES[benchmark]}: hit@5 in percent, {recipe},\nseeds {', '.join(map(str, body['seeds']))}, {asked:,} test queries; "
        f"{body['device']}, {body['date']}. Shares are of dense search\nthat is given the target over the same candidates: tasks "
        f"averaged over seeds, their mean / the worst task.",
    ]
    tasks = list(lines[0]["hit@5"])
    for candidates, title in (("unseen", "Candidates that no training query shows"), ("all", "All candidates")):
        own = [line for line in lines if line["candidates"] == candidates]
        items = next(line["items"] for run in runs for line in run["lines"] if line["candidates"] == candidates)
        out += ["", f"{title} ({items:,}):", "", "| search | target | seeds | share | " + " | ".join(tasks) + " |"]
        out.append("|---|---|---:|---|" + "---:|" * len(tasks))
        for line in own:
            hits = " | ".join(f"{100 * line['hit@5'][task]:.1f}" if task in line["hit@5"] else "-" for task in tasks)
            shares = f"{line['mean']:.3f} / {line['worst']:.3f}"
            out.append(f"| {line['search']} | {line['target']} | {line['seeds']} | {shares} | {hits} |")
    return "\n".join(out)


def write_table() -> None:
    made = [tables(name, json.loads(result_file(name).read_text(encoding="utf-8"))) for name in TITLES]
    write_between(PAGE, BEGIN, END, "\n\n".join(made))


def train(args: argparse.Namespace) -> None:
    """One training and its lines; a part that fails does not stop the others."""
    run = Run.of(args)
    results = Results(
        args.out / f"above-dense-{args.benchmark}-{args.seed}.json", described("python -m lab.above_dense train", run)
    )
    measured = Measurement(run, results)
    every = np.arange(len(measured.bench.items))
    work: dict[str, Callable[[], None]] = {
        "unseen": lambda: measured.candidates(measured.unseen, "unseen"),
        "all": lambda: measured.candidates(every, "all"),
        "beams": measured.beams,
    }
    for part in args.parts.split(","):
        results.measure(part, work[part])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    add_arguments(training)
    training.add_argument("--parts", default=",".join(PARTS))
    merging = commands.add_parser("merge")
    merging.add_argument("files", type=Path, nargs="+")
    commands.add_parser("table")
    args = parser.parse_args(arguments)
    if args.command == "train":
        train(args)
    elif args.command == "merge":
        merge(args.files)
    else:
        write_table()


if __name__ == "__main__":
    main()
