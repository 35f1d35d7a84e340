"""Tables 4 and 5 so that their rows can be compared: which of the paper's findings hold on the data at hand.

    python -m lab.paper.fair fashion --features FOLDER --output OUT.json      (FOLDER: lab.fashion.data, lab.icons.vectors)

Every row is `builtin:paper` with the same changes (`SAME`) and the row's own one. Towers' vectors of two widths become one by
heads that are trained once a seed, without hard negatives or modality loss, and shared by all rows. No item that answers a test
query is in the pool while anything is trained, and validation queries share no answer with training ones. The decoder has
T5-small's shape and is trained until its validation stops rising; the JSON holds the whole curve. All test queries, three
seeds, and intervals of the difference to the first row, query by query.
Jobs run side by side on one GPU, table by table and seed by seed; after every row the JSON is written, and a second call goes on.
Calls share the work by `--seeds` and `--rows`; `--also` takes their rows over (`--seconds 0`: nothing more). In a folder `--work`
that they have in common, heads and stages 2 are trained once: rows that differ in stage 3 alone stand on the same one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import queue
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genius.config import to_dict
from genius.data.features import FeatureSet
from genius.encoders.towers import Heads
from genius.evaluate import EvalConfig, evaluate
from genius.train import loop
from genius.train.config import RunConfig, TrainConfig, read_train_config
from genius.train.generator import GeneratorStage
from genius.train.handover import assemble, freeze, through_heads
from genius.train.holdout import Split
from genius.train.journal import Journal
from genius.train.loop import Runtime, Stage, training_device
from genius.train.prepare import count_steps
from genius.train.quantizer import QuantizerStage
from lab import provenance
from lab.paper.fair_results import Results
from lab.paper.fair_rows import BASE, Row, before_stage_3, grouped, pool_of, rows_of
from lab.paper.parts import HEADS_WIDTH, HELD_OUT, Parts, parts_of, train_stage, trained_heads, trained_once

# In every row alike: the paper's epochs of stage 2 and as many of stage 3 as validation asks for, with larger batches and rates,
# since here are 75,000 queries where the paper has 1.1 million.
SAME: dict[str, Any] = {
    "held_out": HELD_OUT,
    "encoder.train": "heads",
    "encoder.hard_negatives": 0,
    "encoder.modality_weight": 0.0,
    "quantizer.batch": 1024,
    "quantizer.lr": 2e-4,
    "generator.epochs": 8,
    "generator.batch": 512,
    "generator.lr": 4e-4,
    "run.patience": 20,  # as many as there are looks: a decoder may rise late, so none stops early, and the best weights stay
}
JUDGED = 600
BEAMS = 30  # as the paper's ablations
AT_ONCE = 512  # queries searched together
DONE: multiprocessing.Queue[dict[str, Any]] | None = None  # in a process of `run_all`


@dataclass(frozen=True)
class Job:
    """Rows of one seed that share stages 1 and 2."""

    seed: int
    rows: tuple[Row, ...]
    data: str
    features: Path
    work: Path
    products: int | None
    overrides: dict[str, Any]
    judged: int = JUDGED  # validation queries


# -- one job -------------------------------------------------------------------------------------------------------


class Bench:
    """Where a job's stages run."""

    def __init__(self, job: Job) -> None:
        self.job, self.parts = job, parts_of(job.data, job.features, job.products, job.judged)
        self.device = training_device()
        loop.CHECKPOINT_SECONDS = math.inf  # nothing here goes on in the middle of a stage, and large decoders take gigabytes

    def config(self, row: Row) -> TrainConfig:
        overrides = self.job.overrides
        same = {
            name: value for name, value in SAME.items() if not (name.endswith(".epochs") and name[:-6] + "steps" in overrides)
        }
        values = {**same, "model.width": self.width, **overrides, **row.changes, "seed": self.job.seed, "output": "-"}
        return read_train_config("builtin:paper", values)

    @property
    def width(self) -> int:
        pool = self.parts.train.pool
        same = pool.image.shape[1] == pool.text.shape[1]
        return int(self.job.overrides.get("model.width", pool.image.shape[1] if same else HEADS_WIDTH))

    def run(self, stage: Stage, config: TrainConfig, run: RunConfig) -> list[list[float]]:
        """Train one stage; what its validation said, [step, value] after each look."""
        lines = train_stage(stage, config, run, self.job.seed)
        return [[line["step"], round(line["validation"], 4)] for line in lines if "validation" in line]

    def through_heads(self) -> Parts:
        """The data in features of one width."""
        pool = self.parts.train.pool
        if pool.image.shape[1] == pool.text.shape[1] == self.width:
            return self.parts
        config = self.config(Row(BASE, ()))
        path = self.job.work / f"heads-{self.job.seed}.pt"

        def train() -> Mapping[str, Tensor]:
            return trained_heads(self.parts, config, RunConfig(), self.job.seed, self.device).state_dict()

        heads = Heads(pool.image.shape[1], pool.text.shape[1], self.width, config.encoder.hidden)
        heads.load_state_dict(trained_once(path, train))
        heads.to(self.device).eval()
        return self.parts.map(lambda part: through_heads(heads, part))

    def second(self, parts: Split, config: TrainConfig) -> QuantizerStage:
        """Stage 2, as in the paper: so many epochs, the last weights."""
        stage = QuantizerStage(parts.train, parts.validation, config.model, config.quantizer, self.job.seed, self.device)

        def train() -> Mapping[str, Tensor]:
            self.run(stage, config, replace(config.run, patience=0))
            return stage.state_dict()

        changes = hashlib.sha256((repr(self.job.overrides) + before_stage_3(self.job.rows[0])).encode()).hexdigest()[:12]
        stage.load_state_dict(trained_once(self.job.work / f"second-{self.job.seed}-{changes}.pt", train))
        return stage.to(self.device).eval()


def attempt(job: Job) -> Iterator[dict[str, Any]]:
    """Every row as soon as it is done. A job that fails takes no other one with it."""
    torch.set_num_threads(1)
    missing = [row.name for row in job.rows]
    try:
        for entry in run_job(job):
            missing.remove(entry["row"])
            yield entry
    except Exception as error:
        for name in missing:
            yield {"row": name, "seed": job.seed, "error": f"{type(error).__name__}: {error}"}


def run_job(job: Job) -> Iterator[dict[str, Any]]:
    """Stage 2 once, stage 3 for every row."""
    start = time.monotonic()
    bench = Bench(job)
    data = bench.through_heads()
    parts = Split(data.train, None, data.validation, "answers")
    runtime = Runtime(bench.device, Journal(Path(), quiet=True, active=False), job.seed, RunConfig())
    configs = [count_steps(bench.config(row), len(data.train.visits()), runtime) for row in job.rows]
    second = bench.second(parts, configs[0])
    times = {"stage 2": time.monotonic() - start}
    for row, config in zip(job.rows, configs, strict=True):
        begun = time.monotonic()
        frozen, honest = freeze(second, parts, config)
        third = GeneratorStage(parts.train, frozen, honest, second.quantizer, config.model, config.generator, job.seed, BEAMS)
        looks = bench.run(third, config, config.run)
        times["stage 3"] = time.monotonic() - begun
        model = assemble(config, second, third)
        begun = time.monotonic()
        found = measured(model, data.test, row)
        times["search"] = time.monotonic() - begun
        entry = {"row": row.name, "seed": job.seed, "looks": looks, "config": to_dict(config), "found": found}
        yield {**entry, "seconds": {name: round(seconds, 1) for name, seconds in times.items()}}


def measured(model: Any, test: FeatureSet, row: Row) -> dict[str, dict[str, Any]]:
    """pool -> method -> task -> (Q,) whether each query's answer was among the first five."""
    pools = tuple(dict.fromkeys(map(pool_of, row.tables)))
    fixed: dict[str, Any] = {"beams": (BEAMS,), "pools": pools, "depth": 10, "batch": AT_ONCE}
    config = EvalConfig(methods=("dense", "genius", "genius-r"), bootstrap=0, reference="", **fixed)
    found = evaluate(model, test, config)
    out: dict[str, dict[str, Any]] = {pool: {} for pool in found.pools}
    for (task, method, pool), values in found.main_values.items():
        out[pool].setdefault(method, {})[task] = values
    return out


# -- all jobs ------------------------------------------------------------------------------------------------------


def run_all(jobs: list[Job], results: Results, processes: int, seconds: float) -> None:
    """Every job that can end in time, side by side."""
    end = time.monotonic() + seconds
    context = multiprocessing.get_context("spawn")
    done: multiprocessing.Queue[dict[str, Any]] = context.Queue()
    with context.Pool(processes, hand_over, (done,)) as pool:
        pool.map_async(work, jobs, chunksize=1)
        for _ in range(sum(len(job.rows) for job in jobs)):
            try:
                entry = done.get(timeout=max(end - time.monotonic(), 0.1))
            except queue.Empty:
                print("time is up: what is not done is left for another call", flush=True)
                return  # what still runs is ended with the pool
            said = entry.get("error") or entry["seconds"]
            print(f"{end - time.monotonic():5.0f} s left  {entry['row']} seed {entry['seed']} {said}", flush=True)
            if "error" not in entry:
                results.add(entry)


def hand_over(done: multiprocessing.Queue[dict[str, Any]]) -> None:
    """What a process is begun with: where it says what it has."""
    global DONE
    DONE = done


def work(job: Job) -> None:
    assert DONE is not None
    for entry in attempt(job):
        DONE.put(entry)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["fashion", "icons"])
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--tables", default="table-4,table-5")
    parser.add_argument("--rows", default="", help="only these, by name, with ; between")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=290, help="no longer than this; a second call goes on")
    parser.add_argument("--also", type=Path, nargs="+", default=[], help="JSONs of other calls, whose rows are taken over")
    parser.add_argument("--work", type=Path, help="where heads and stages 2 are kept, for other calls of the same settings")
    parser.add_argument("--products", type=int, help="only the first so many fashion products, for a trial")
    parser.add_argument("--judged", type=int, default=JUDGED, help="validation questions")
    parser.add_argument("--set", action="append", default=[], help="one field in every row alike, name=JSON")
    args = parser.parse_args()
    overrides = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
    tables = tuple(args.tables.split(","))
    rows = rows_of(tables)
    wanted = [name.strip() for name in args.rows.split(";") if name.strip()]
    asked = [row for row in rows if not wanted or row.name in wanted]
    about = {
        **provenance(),
        "settings": {"data": args.data, "products": args.products, "base": "builtin:paper", "same": {**SAME, **overrides}},
    }
    results = Results(args.output, about, rows)
    for path in args.also:
        results.join(path)
    with tempfile.TemporaryDirectory() as folder:
        work = args.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        jobs = [
            Job(seed, group, args.data, args.features, work, args.products, overrides, args.judged)
            for table in tables  # table by table, seed by seed, the first row first: a run that is cut says something
            for seed in map(int, args.seeds.split(","))
            for group in grouped([row for row in asked if row.tables[0] == table and not results.has(row.name, seed)])
        ]
        if jobs and args.seconds > 0:
            run_all(jobs, results, args.processes, args.seconds)
    results.write()
    print(results.table(), flush=True)


if __name__ == "__main__":
    main()
