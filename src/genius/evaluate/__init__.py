"""Evaluation: one model, one feature set, several methods, local and universal pools, in one run (`evaluate`).

Every result is bound to the pool it was searched in. A task-specific result is searched in that task's pool (its own trie, its
own beams), never filtered out of the union's: that is bug B1 of the published code. Reads features and models; knows nothing of
serving. Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from genius.data.collection import Task
from genius.data.features import FeatureSet
from genius.data.mbeir import order_of, task_of
from genius.errors import GeniusError
from genius.evaluate.generative import BeamMethod, EngineMethod, IdSource
from genius.evaluate.methods import (
    CodesExhaustive,
    Dense,
    DenseGivenTarget,
    Ints,
    Method,
    MethodResult,
    OtherEncoder,
    Pool,
    Space,
)
from genius.model.genius import Genius
from genius.ranking import Floats, bootstrap_interval, holm, judge, paired_p_value, per_query
from genius.search import SEARCHES, SearchParams
from genius.types import Modality

PoolScope = Literal["local", "universal"]
UNIVERSAL = "universal"
METHODS: dict[str, str] = {
    "dense": "exhaustive over the model's re-ranking vectors: the ceiling of re-ranking",
    "dense-given": "the same among items of the target modality alone: dense search that is given the target",
    "score-fusion": "exhaustive over the encoder's own vectors (CLIP-SF, BLIP-SF)",
    "genius": "GENIUS: every code generated, B beams, ranked by log p and nothing else",
    "genius-r": "GENIUS^R: the items of those beams, re-ranked by embeddings",
    "genius-codes": "the same, re-ranked by codes: no vector is stored",
    "default": "the search engine's default: all vectors compared, or a scan of codes re-ranked by embeddings",
    "default-codes": "the same, re-ranked by codes: no vector is stored",
    "no-decoder": "as genius, but similarity alone scores codes: what a decoder must beat",
    "no-decoder-r": "as genius-r, but similarity alone scores codes",
    "no-decoder-default": "as default, but without the decoder and the query bank",
    "default-no-bias": "as default, without the item bias",
    "codes": "exhaustive over the codes' reconstructions: no vector is stored, nothing is decoded",
}


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """What one evaluation runs."""

    methods: tuple[str, ...] = ("dense", "genius", "genius-r", "default", "no-decoder-r", "codes")
    beams: tuple[int, ...] = (50,)  # each beam method runs once for each
    pools: tuple[PoolScope, ...] = ("local", "universal")  # task-specific and universal retrieval
    tasks: tuple[str, ...] = ()  # keys to keep; empty: all
    cutoffs: tuple[int, ...] = (1, 5, 10)  # k of hit@k and recall@k, besides those that a task names itself
    depth: int = 50  # items ranked for every query; at least the largest cut-off
    most: int = 0  # items of the likeliest beams that a beam method re-ranks; 0: those of all its beams
    rerank: int | None = None  # budget of the default search; None: the model's own
    target: Literal["unknown", "given"] = "unknown"  # given: the search knows the target modality (not the paper's setting)
    reference: str = "dense"  # the method that others are tested against
    bootstrap: int = 1000  # resamples behind the confidence intervals; 0: none
    queries: int = 0  # use only so many of each task, evenly spread (a quick look); 0: all
    seed: int = 0
    batch: int = 128  # queries decoded at once


@dataclass
class Result:
    """One method on one task over one pool."""

    task: str
    method: str
    pool: str  # "universal" or "local"
    pool_digest: str  # of the rows that were searched
    pool_size: int
    queries: int
    metrics: dict[str, float]  # means, 0..1
    intervals: dict[str, tuple[float, float]]  # 95 % of each mean
    p_value: float | None  # against the reference on the main metric, Holm-corrected within the task; None: it is the reference
    queries_per_second: float
    bytes_per_item: float
    touched: float  # items compared one by one, mean over queries
    candidate_recall: float | None  # queries with a positive among the candidates; None: all items are
    main: str  # the metric of the tables, "hit@5"


@dataclass
class Evaluation:
    """Everything one run found, and enough about how to repeat it."""

    tasks: list[Task]
    results: list[Result]
    about: dict[str, Any]
    runs: dict[tuple[str, str, str], tuple[Ints, npt.NDArray[np.float64]]] = field(default_factory=dict)  # rows of the whole pool
    query_rows: dict[str, Ints] = field(default_factory=dict)  # task -> its queries
    main_values: dict[tuple[str, str, str], Floats] = field(default_factory=dict)  # the main metric of every query

    def find(self, task: str, method: str, pool: str) -> Result:
        """The result of one method on one task.

        Args:
            task: Key of the task.
            method: Name of the method.
            pool: local or universal.
        """
        for result in self.results:
            if (result.task, result.method, result.pool) == (task, method, pool):
                return result
        raise GeniusError(f"no result for {method} on {task} in the {pool} pool")

    def of(self, method: str, pool: str) -> list[Result]:
        """A method's results in local or universal pools, task by task.

        Args:
            method: Name of the method.
            pool: local or universal.
        """
        return [result for result in self.results if (result.method, result.pool) == (method, pool)]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(result.method for result in self.results))

    @property
    def pools(self) -> list[str]:
        return list(dict.fromkeys(result.pool for result in self.results))

    def average(self, method: str, pool: str) -> float:
        """Unweighted mean over tasks of the main metric, as the paper's last row.

        Args:
            method: Name of the method.
            pool: local or universal.
        """
        return float(np.mean([result.metrics[result.main] for result in self.of(method, pool)]))

    def average_interval(self, method: str, pool: str) -> tuple[float, float]:
        """95 % interval of that mean: queries resampled within each task.

        Args:
            method: Name of the method.
            pool: local or universal.
        """
        config = self.about["config"]
        groups = [self.main_values[task.key, method, pool] for task in self.tasks]
        return bootstrap_interval(groups, samples=config["bootstrap"] or 1, seed=config["seed"])

    def to_json(self) -> dict[str, Any]:
        tasks = [{**asdict(t), "query": t.query.label, "target": t.target.label} for t in self.tasks]
        return {"about": self.about, "tasks": tasks, "results": [asdict(r) for r in self.results]}


Progress = Callable[[str], None]


def evaluate(
    model: Genius,
    data: FeatureSet,
    config: EvalConfig | None = None,
    *,
    extra: Sequence[Method] = (),  # baselines and other methods of the caller
    progress: Progress | None = None,
) -> Evaluation:
    """Run every method on every task and pool that `config` names.

    Args:
        model: The model.
        data: Queries, pool and positives, as features of its encoder.
        config: Methods, tasks, beams and metrics.
        extra: Baselines and other methods of the caller.
        progress: Called while methods run.
    """
    config = config or EvalConfig()
    say = progress or (lambda _: None)
    tasks, rows = tasks_of(data, config)
    say("embedding queries and pool")
    space = Space(model, data, target=config.target)
    methods = [*build_methods(space, config), *extra]
    about = {**about_run(model, data, config), "queries": sum(map(len, rows.values()))}  # those searched, not all there are
    evaluation = Evaluation(tasks, [], about, query_rows=rows)
    depth = max(config.depth, *config.cutoffs, *(k for task in tasks for k in task.cutoffs))
    scopes = config.pools
    if not data.pools and "universal" in scopes and "local" in scopes:
        say("the tasks have no pools of their own: the universal pool is the only one")
        scopes = ("universal",)
    for scope in scopes:
        for pool, members in _searches(data, tasks, scope):
            queries = np.concatenate([rows[task.key] for task in members])
            answers = {}
            for method in methods:
                say(f"{method.label}: {len(queries)} queries in {len(pool):,} {pool.name} candidates")
                answers[method.label] = method.answer(space, pool, queries, min(depth, len(pool)))
            first = 0
            for task in members:
                part = slice(first, first + len(rows[task.key]))
                first = part.stop
                of_task = {label: answer.take(part) for label, answer in answers.items()}
                _judge(evaluation, space, pool, scope, task, of_task, config)
    evaluation.results.sort(key=lambda r: (config.pools.index(r.pool), [t.key for t in tasks].index(r.task)))
    return evaluation


# -- tasks and pools -----------------------------------------------------------------------------------------------


def tasks_of(data: FeatureSet, config: EvalConfig) -> tuple[list[Task], dict[str, Ints]]:
    """The tasks of a feature set in the paper's order, and the query rows of each.

    Args:
        data: The feature set.
        config: Names the tasks to keep, and the number of queries of each.
    """
    tasks: list[Task] = []
    rows: dict[str, Ints] = {}
    for number in sorted(set(data.tasks.tolist())):
        key = data.task_name(number)
        if config.tasks and key not in config.tasks:
            continue
        task_queries = (data.tasks == number).nonzero()[:, 0].numpy()
        judged = np.unique(data.pairs[:, 0].numpy())
        task_queries = task_queries[np.isin(task_queries, judged)]  # without a positive a query cannot be judged
        if config.queries and config.queries < len(task_queries):  # evenly spread: files are often sorted
            task_queries = task_queries[np.linspace(0, len(task_queries) - 1, config.queries).astype(np.int64)]
        if len(task_queries) == 0:
            raise GeniusError(f"no query of {key} has a positive")
        tasks.append(_task(data, key, task_queries, config))
        rows[key] = task_queries
    if not tasks:
        known = ", ".join(data.task_name(n) for n in sorted(set(data.tasks.tolist())))
        raise GeniusError(f"none of the tasks {', '.join(config.tasks)} is here; there are: {known}")
    tasks.sort(key=lambda task: order_of(task.key))
    return tasks, rows


def _task(data: FeatureSet, key: str, rows: Ints, config: EvalConfig) -> Task:
    try:
        return task_of(key)
    except GeniusError:
        pass
    positives = data.pairs[np.isin(data.pairs[:, 0].numpy(), rows), 1]
    target = Modality(int(data.pool.modality[positives].mode().values))
    query = data.queries[slice(int(rows[0]), int(rows[0]) + 1)]
    query_modality = Modality(int(query.modality[0]))
    main = config.cutoffs[0]
    if 5 in config.cutoffs:
        main = 5
    return Task(key, key, query_modality, target, config.cutoffs, main)


def _searches(data: FeatureSet, tasks: Sequence[Task], scope: PoolScope) -> list[tuple[Pool, list[Task]]]:
    """Which pool is searched for which tasks: one for all, or each task its own."""
    if scope == "universal":
        return [(Pool(UNIVERSAL, np.arange(len(data.pool))), list(tasks))]
    number = {data.task_name(n): n for n in set(data.tasks.tolist())}
    return [(Pool(task.key, np.unique(data.pool_rows(number[task.key]).numpy())), [task]) for task in tasks]


def build_methods(space: Space, config: EvalConfig) -> list[Method]:
    """The methods by name; beam methods once for each number of beams.

    Args:
        space: Model and data that the methods share.
        config: Names the methods and the beam widths.
    """
    unknown = [name for name in config.methods if name not in METHODS]
    if unknown:
        raise GeniusError(f"unknown method {unknown[0]!r}; there are {', '.join(METHODS)}")
    sources = {decoder: IdSource.of(space, decoder=decoder, at_once=config.batch) for decoder in (True, False)}
    changes: dict[str, Any] = {}
    if config.rerank is not None:
        changes["rerank"] = config.rerank
    out: list[Method] = []
    for name in config.methods:
        if name == "dense":
            out.append(Dense())
        elif name == "dense-given":
            out.append(DenseGivenTarget())
        elif name == "score-fusion":
            out.append(OtherEncoder(space.data, name))
        elif name == "codes":
            out.append(CodesExhaustive())
        elif "default" in name:
            search = name.removeprefix("no-decoder-").removesuffix("-no-bias")
            params = replace(SearchParams.of_model(space.model).named(search), **changes)
            if name.endswith("-no-bias"):
                params = replace(params, item_bias=False)
            out.append(EngineMethod(name, params, decoder=not name.startswith("no-decoder")))
        else:
            source = sources[not name.startswith("no-decoder")]
            reranker = SEARCHES[name.replace("no-decoder", "genius")]["reranker"]
            for beams in config.beams:
                label = name
                if len(config.beams) > 1:
                    label = f"{name}@{beams}"
                out.append(BeamMethod(label, source, beams, reranker, config.most))
    return out


# -- judging -------------------------------------------------------------------------------------------------------


def _judge(
    evaluation: Evaluation,
    space: Space,
    pool: Pool,
    scope: PoolScope,
    task: Task,
    answers: dict[str, MethodResult],
    config: EvalConfig,
) -> None:
    """Add the results of every method on the queries of one task."""
    positives = space.local_positives(pool, evaluation.query_rows[task.key])
    cutoffs = sorted({*task.cutoffs, *config.cutoffs})
    main = f"hit@{task.main}"
    values: dict[str, dict[str, Floats]] = {}
    for label, answer in answers.items():
        if answer.rows.max(initial=-1) >= len(pool):
            raise GeniusError(f"{label} returned rows outside the pool {pool.name!r}")
        values[label] = per_query(judge(answer.rows, positives), cutoffs)
        evaluation.main_values[task.key, label, scope] = values[label][main]
        evaluation.runs[task.key, label, scope] = (np.where(answer.rows >= 0, pool.rows[answer.rows], -1), answer.scores)
    p_values = _p_values(values, main, config)
    for label, answer in answers.items():
        intervals: dict[str, tuple[float, float]] = {}
        if config.bootstrap:
            for name, numbers in values[label].items():
                intervals[name] = bootstrap_interval([numbers], samples=config.bootstrap, seed=config.seed)
        evaluation.results.append(
            Result(
                task=task.key,
                method=label,
                pool=scope,
                pool_digest=pool.digest,
                pool_size=len(pool),
                queries=len(answer.rows),
                metrics={name: float(numbers.mean()) for name, numbers in values[label].items()},
                intervals=intervals,
                p_value=p_values.get(label),
                queries_per_second=answer.queries_per_second,
                bytes_per_item=answer.bytes_per_item,
                touched=float(answer.touched.mean()),
                candidate_recall=answer.candidate_recall,
                main=main,
            )
        )


def _p_values(values: dict[str, dict[str, Floats]], main: str, config: EvalConfig) -> dict[str, float]:
    reference = values.get(config.reference)
    if reference is None:
        return {}
    raw = {
        label: paired_p_value(per_query_values[main], reference[main], seed=config.seed)
        for label, per_query_values in values.items()
        if label != config.reference
    }
    return holm(raw)


def about_run(model: Genius, data: FeatureSet, config: EvalConfig) -> dict[str, Any]:
    """What a reader needs to trust or repeat the numbers.

    Args:
        model: The model.
        data: Features that it was evaluated on.
        config: What was evaluated.
    """
    import datetime
    import os
    import platform

    import torch

    device = f"CPU, {os.cpu_count()} cores"
    if model.device.type == "cuda":
        device = torch.cuda.get_device_name(model.device)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "model": model.fingerprint(),
        "levels": list(model.config.quantizer.level_sizes),
        "queries": len(data.queries),
        "unjudged": len(data.queries) - len(torch.unique(data.pairs[:, 0])),  # queries without a positive: left out
        "candidates": len(data.pool),
        "config": asdict(config),
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
