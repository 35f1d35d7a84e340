"""The paper's tables and figures as experiments: `python -m lab reproduce table-2 --data ... --model ...`.

`experiments.toml` says what each experiment runs. Rows of an ablation are models: given by the user, or trained
here with one change to a training config. On data that is not M-BEIR the tasks of the same direction stand in, and the
paper's numbers are left out, because they are of other data.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from genius.config import from_dict, read_config
from genius.data.collection import Task
from genius.data.features import FeatureSet
from genius.data.mbeir import DIRECTIONS, ROWS
from genius.errors import GeniusError
from genius.evaluate.harness import EvalConfig, Evaluation, evaluate, tasks_of
from genius.evaluate.methods.vectors import code_bits
from genius.evaluate.report import (
    average_cell,
    main_cell,
    main_table,
    method_title,
    printed_number,
    table,
)
from genius.evaluate.sources import Source, load_features, other_encoders
from genius.model.generator import SIZES
from genius.model.genius import Genius
from genius.search import CodeTrie
from lab.paper import printed as paper

EXPERIMENTS = Path(__file__).parent / "experiments.toml"
ENCODERS = ("CLIP-FF", "BLIP-SF", "BLIP-FF")  # dense rows beside CLIP-SF, which is the model's own encoder (score-fusion)
FULL_MBEIR = 5_000_000  # the union pool has 5.6 million candidates
OTHER_DATA = (
    "The paper's numbers are on the whole of M-BEIR (5.6 million candidates); this run searched fewer, so they do not compare."
)
Say = Callable[[str], None]


@dataclass(frozen=True)
class AblationRow:
    """One model of an ablation."""

    name: str
    set: dict[str, Any] = field(default_factory=dict)  # fields that this row changes
    # what a given model must be to deserve the row's name ("model.level_sizes", "model.decoder"); the table says where it is not
    expects: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One table or figure. A table of `experiments.toml`, or a file of the user's own."""

    title: str
    # methods: one model, several searches. ablation: several models. The other three have their own shapes.
    kind: Literal["methods", "ablation", "text-to-image", "storage", "speed"]
    pools: tuple[str, ...] = ("universal",)
    methods: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()  # trained and run when training data is given
    beams: tuple[int, ...] = (50,)
    tasks: tuple[str, ...] = ()  # empty: all
    rows: tuple[AblationRow, ...] = ()
    sizes: tuple[int, ...] = ()  # of the pool, for speed
    queries: int = 0  # at most so many of each task; 0: all


@dataclass(frozen=True)
class Request:
    """What the user brings."""

    data: str = ""
    model: str = ""
    variants: Mapping[str, str] = field(default_factory=dict)  # row of an ablation -> model
    train: str = ""
    base: str = "builtin:paper"
    work: Path = Path("reproduce")
    overrides: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = ()  # in place of the experiment's own
    dense: Mapping[str, str] = field(default_factory=dict)  # row of a table -> another encoder, or its features
    queries: int = 0
    device: str = "cpu"
    cache: Path | None = None

    def source(self) -> Source:
        return Source(self.data, cache=self.cache, device=self.device)

    def examples(self) -> Source:
        return Source(self.train, "train", cache=self.cache, device=self.device)


@dataclass
class Table:
    """What an experiment gives: Markdown, and the numbers behind it."""

    name: str
    title: str
    body: str  # Markdown
    about: dict[str, Any]
    results: list[dict[str, Any]]

    def markdown(self, command: str = "") -> str:
        call = f"\n```\n{command}\n```\n" if command else ""
        facts = ", ".join(
            f"{key} {value}" for key, value in self.about.items() if key in ("date", "device", "queries", "candidates")
        )
        return f"# {self.title}\n{call}\n{facts}\n\n{self.body}\n"

    def write(self, directory: Path, command: str = "") -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{self.name}.md").write_text(self.markdown(command), encoding="utf-8")
        (directory / f"{self.name}.json").write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        return directory / f"{self.name}.md"

    def to_json(self) -> dict[str, Any]:
        return {"experiment": self.name, "title": self.title, "about": self.about, "results": self.results}


def read_experiment(name: str) -> Experiment:
    """One of the paper's by name, or a file of the same kind: other rows, other sizes."""
    if name.endswith(".toml"):
        return read_config(Experiment, name)
    tables = _ours()
    if name not in tables:
        raise GeniusError(f"no experiment {name!r}; there are {', '.join(tables)}")
    return tables[name]


def _ours() -> dict[str, Experiment]:
    tables = tomllib.loads(EXPERIMENTS.read_text(encoding="utf-8"))
    return {name: from_dict(Experiment, values, f"{EXPERIMENTS.name}: {name}") for name, values in tables.items()}


def listing() -> dict[str, str]:
    """Name -> title of every experiment."""
    return {name: experiment.title for name, experiment in _ours().items()}


def run(name: str, request: Request, say: Say | None = None) -> Table:
    """Run one experiment."""
    experiment, tell = read_experiment(name), say or (lambda _: None)
    if name.endswith(".toml"):  # an experiment of the user's own
        name = Path(name).stem
    if request.methods:
        experiment = replace(experiment, methods=request.methods)
    if experiment.kind == "storage":
        return _storage(name, experiment, request)
    if not request.model:
        raise GeniusError("name the trained model: --model MODEL")
    model = Genius.from_pretrained(request.model, device=request.device)
    data = load_features(request.source(), model, request.model)
    tasks = _pick_tasks(experiment, data)
    kinds: dict[str, Callable[..., Table]] = {
        "methods": _methods, "ablation": _ablation, "text-to-image": _text_to_image, "speed": _speed,
    }  # fmt: skip
    return kinds[experiment.kind](name, experiment, request, model, data, tasks, tell)


# -- tasks ---------------------------------------------------------------------------------------------------------


def _pick_tasks(experiment: Experiment, data: FeatureSet) -> list[Task]:
    """The tasks that the experiment names, or those of the same direction where the data is another."""
    there, _ = tasks_of(data, EvalConfig())
    if experiment.kind == "text-to-image":
        there = [task for task in there if task.direction == "text->image"]
    if not experiment.tasks or not there:
        return _some(there, experiment)
    named = [task for task in there if task.key in experiment.tasks]
    if named:
        return named
    wanted = {"{}->{}".format(*(m.label for m in DIRECTIONS[int(key[-1])])) for key in experiment.tasks}
    return _some([task for task in there if task.direction in wanted], experiment)


def _some(tasks: list[Task], experiment: Experiment) -> list[Task]:
    if not tasks:
        raise GeniusError(f"the data has no task that {experiment.title!r} is about")
    return tasks


def _about_other_data(evaluation: Evaluation, printed: Mapping[str, paper.Row]) -> bool:
    """Whether the paper's columns stand beside results on something smaller than M-BEIR."""
    shown = any(task.key in row for row in printed.values() for task in evaluation.tasks)
    return shown and evaluation.about["candidates"] < FULL_MBEIR


def _is_mbeir(tasks: Sequence[Task]) -> bool:
    return all(task.key in ROWS for task in tasks)


def _config(experiment: Experiment, request: Request, tasks: Sequence[Task], **changes: Any) -> EvalConfig:
    config = EvalConfig(
        methods=experiment.methods,
        beams=experiment.beams,
        pools=experiment.pools,  # type: ignore[arg-type]
        tasks=tuple(task.key for task in tasks),
        queries=request.queries or experiment.queries,
        reference="score-fusion" if "score-fusion" in experiment.methods else "genius",
        survival=0,
        bootstrap=1000,
    )
    return replace(config, **changes)


def _baselines(experiment: Experiment, request: Request, model: Genius, data: FeatureSet, say: Say) -> list[Any]:
    if not experiment.baselines or not request.train:
        return []
    from lab.paper.baselines import build_baselines

    train = load_features(request.examples(), model, request.model)
    changed = {
        name: int(request.overrides[f"generator.{name}"])
        for name in ("steps", "batch")
        if f"generator.{name}" in request.overrides
    }
    folder = request.work / "baselines"
    return build_baselines(experiment.baselines, model, train, data, beams=experiment.beams, folder=folder, say=say, **changed)


# -- one model, several searches -----------------------------------------------------------------------------------


def _methods(
    name: str, experiment: Experiment, request: Request, model: Genius, data: FeatureSet, tasks: list[Task], say: Say
) -> Table:
    methods = tuple(m for m in experiment.methods if m != "feature-fusion")  # comes under its encoder's name, with --dense
    config = _config(experiment, request, tasks, methods=methods)
    others = other_encoders(request.dense, request.source(), data)
    extra = _baselines(experiment, request, model, data, say)
    evaluation = evaluate(model, data, config, extra=[*others, *extra], progress=say)
    printed: Mapping[str, paper.Row] = paper.TABLES.get(name, {}) if _is_mbeir(evaluation.tasks) else {}
    body = "\n\n".join(main_table(evaluation, pool, printed, paper.misprints(name)) for pool in evaluation.pools)
    if _about_other_data(evaluation, printed):
        body += f"\n\n{OTHER_DATA}"
    if experiment.baselines and not extra:
        body += f"\n\nNot run, for want of training data (--train): {', '.join(experiment.baselines)}."
    absent = [row for row in paper.TABLES.get(name, {}) if row in ENCODERS and row not in request.dense]
    if absent:
        body += f"\n\nNot run, for want of their encoders (--dense NAME=uniir:FILE.pth): {', '.join(absent)}."
    return Table(name, experiment.title, body, evaluation.about, evaluation.to_json()["results"])


# -- several models ------------------------------------------------------------------------------------------------


def _ablation(
    name: str, experiment: Experiment, request: Request, model: Genius, data: FeatureSet, tasks: list[Task], say: Say
) -> Table:
    config = _config(experiment, request, tasks)
    train: FeatureSet | None = None
    found: dict[str, Evaluation] = {}
    notes: list[str] = []
    for number, row in enumerate(experiment.rows):
        if row.name in request.variants:
            variant = Genius.from_pretrained(request.variants[row.name], device=request.device)
        elif number == 0 and not row.set:
            variant = model
        else:
            if not request.train:
                raise GeniusError(f"row {row.name!r} needs a model: --variant '{row.name}=MODEL', or --train DATA to train it")
            if train is None:
                train = load_features(request.examples(), model, request.model)
            say(f"training {row.name}")
            variant = _train(name, row, request, train)
        notes += _not_as_named(row, variant)
        say(f"evaluating {row.name}")
        found[row.name] = evaluate(variant, data, config, progress=say)
    first = next(iter(found.values()))
    body = "\n\n".join([_ablation_body(name, experiment, found), *notes])
    return Table(name, experiment.title, body, first.about, _ablation_results(found))


def _not_as_named(row: AblationRow, model: Genius) -> list[str]:
    """A line for every size in which a model differs from what its row is called."""
    out = []
    named = {**row.set, **row.expects}
    sizes = list(model.config.quantizer.level_sizes)
    if "model.level_sizes" in named and sizes != list(named["model.level_sizes"]):
        out.append(f"{row.name}: the model in this row has codes {' x '.join(map(str, sizes))}.")
    if decoder := named.get("model.decoder"):
        shape = {name: getattr(model.generator.config, name) for name in SIZES[decoder]}
        if shape != SIZES[decoder]:
            layers, width = shape["layers"], shape["d_model"]
            out.append(f"{row.name}: the decoder in this row has {layers} layers of width {width}.")
    return out


def _train(name: str, row: AblationRow, request: Request, data: FeatureSet) -> Genius:
    """A model of this row, kept in the work folder; a second call finds it."""
    from genius.train.config import read_train_config
    from genius.train.run import train

    output = request.work / name / re.sub(r"[^A-Za-z0-9]+", "-", row.name).strip("-").lower()
    changes: dict[str, Any] = {
        "output": str(output),
        "model.width": data.pool.width,  # features are given: the encoder and its heads are those of the model under test
        "encoder.train": "none",
        "device": "cuda" if request.device.startswith("cuda") else "cpu",
        **row.set,
        **request.overrides,
    }
    return train(read_train_config(request.base, changes), data, quiet=True).model.to(request.device).eval()


def _ablation_body(name: str, experiment: Experiment, found: dict[str, Evaluation]) -> str:
    tasks = next(iter(found.values())).tasks
    printed = paper.TABLES.get(name, {}) if _is_mbeir(tasks) else {}
    pool = experiment.pools[0]
    methods = next(iter(found.values())).methods
    blocks = []
    for method in methods:
        title = method_title(method) if len(methods) > 1 else ""
        header = [title, *(task.title for task in tasks), "Average", *(f"{task.title} (paper)" for task in tasks if printed)]
        rows = []
        for row, evaluation in found.items():
            cells = [main_cell(evaluation.find(task.key, method, pool), mark=False) for task in tasks]
            theirs = [printed_number(printed[row][task.key]) for task in tasks] if row in printed else []
            rows.append([row, *cells, average_cell(evaluation, method, pool), *theirs])
        blocks.append(table(header, rows))
    if _about_other_data(next(iter(found.values())), printed):
        blocks.append(OTHER_DATA)
    return "\n\n".join(blocks)


def _ablation_results(found: dict[str, Evaluation]) -> list[dict[str, Any]]:
    return [{"row": row, **result} for row, evaluation in found.items() for result in evaluation.to_json()["results"]]


# -- R@1, R@5, R@10 of caption -> image ----------------------------------------------------------------------------


def _text_to_image(
    name: str, experiment: Experiment, request: Request, model: Genius, data: FeatureSet, tasks: list[Task], say: Say
) -> Table:
    extra = _baselines(experiment, request, model, data, say)
    evaluation = evaluate(model, data, _config(experiment, request, tasks), extra=extra, progress=say)
    known = paper.TABLE_3 if name == "table-3" else paper.SUPPLEMENT_7
    blocks = []
    for task in evaluation.tasks:
        header = [f"{task.title}", *(f"R@{k}" for k in (1, 5, 10))]
        rows = []
        for method in evaluation.methods:
            result = evaluation.find(task.key, method, "local")
            rows.append([method_title(method), *(main_cell(replace(result, main=f"hit@{k}"), mark=False) for k in (1, 5, 10))])
        printed = known.get(task.key.partition("_")[0].replace("mscoco", "coco"), {})
        rows += [[f"{method_title(who)} (paper)", *map(printed_number, values)] for who, values in printed.items()]
        blocks.append(table(header, rows))
    return Table(name, experiment.title, "\n\n".join(blocks), evaluation.about, evaluation.to_json()["results"])


# -- bytes and speed -----------------------------------------------------------------------------------------------


def _storage(name: str, experiment: Experiment, request: Request) -> Table:
    rows = [["CLIP, 768 x 32 bits (paper)", "3,072"], ["GENIUS, 2 + 8 x 12 bits (paper)", "12.25"]]
    about: dict[str, Any] = {}
    results: list[dict[str, Any]] = []
    if request.model:
        model = Genius.from_pretrained(request.model, device=request.device)
        sizes = model.config.quantizer.level_sizes
        results.append({"what": "vector", "bytes": 4.0 * model.config.width})
        results.append({"what": "codes", "bytes": code_bits(sizes) / 8})
        rows.append([f"this model's vectors, {model.config.width} x 32 bits", f"{4 * model.config.width:,}"])
        rows.append([f"this model's codes, {' x '.join(map(str, sizes))}", f"{code_bits(sizes) / 8:g}"])
        if request.data:
            data = load_features(request.source(), model, request.model)
            trie = CodeTrie.build(model.encode(data.pool).cpu().numpy(), sizes)
            results.append({"what": "trie", "bytes": trie.nbytes / len(data.pool), "items": len(data.pool)})
            rows.append([f"the trie as built, {len(data.pool):,} items", f"{trie.nbytes / len(data.pool):,.2f}"])
            about["candidates"] = len(data.pool)
    return Table(name, experiment.title, table(["One item", "bytes"], rows), about, results)


def _speed(
    name: str, experiment: Experiment, request: Request, model: Genius, data: FeatureSet, tasks: list[Task], say: Say
) -> Table:
    """Queries per second on growing parts of the pool; features given, so the encoder is not in it."""
    results: list[dict[str, Any]] = []
    found: dict[int, Evaluation] = {}
    for wanted in [*(size for size in experiment.sizes if size < len(data.pool)), len(data.pool)]:
        part = shrink(data, wanted, request.queries or experiment.queries)
        size = len(part.pool)  # more than wanted where the queries have more answers: the column must say so
        say(f"{size:,} candidates")
        config = EvalConfig(methods=experiment.methods, beams=experiment.beams, pools=("universal",), bootstrap=0, survival=0)
        found[size] = evaluate(model, part, config, progress=say)
    for size, evaluation in found.items():
        rates_of = {result.method: result.queries_per_second for result in evaluation.results}
        results += [{"method": m, "candidates": size, "queries_per_second": rate} for m, rate in rates_of.items()]
    sizes = list(found)
    methods = found[sizes[0]].methods
    rows = []
    for method in methods:
        rates = [next(r.queries_per_second for r in found[size].results if r.method == method) for size in sizes]
        printed = paper.FIGURE_4.get(method)
        rows.append([method_title(method), *(f"{rate:,.1f}" for rate in rates), f"{printed:g}" if printed else "–"])
    header = ["queries/s at", *(f"{size:,}" for size in sizes), "paper, RTX 3090"]
    return Table(name, experiment.title, table(header, rows), found[sizes[-1]].about, results)


def shrink(data: FeatureSet, size: int, queries: int) -> FeatureSet:
    """A smaller problem of the same kind: some queries, their positives, and others up to `size` candidates."""
    rows = np.linspace(0, len(data.queries) - 1, min(queries or len(data.queries), len(data.queries))).astype(np.int64)
    asked = data.take_queries(torch.from_numpy(np.unique(rows)))
    if size >= len(data.pool):
        return asked
    needed = torch.unique(asked.pairs[:, 1])
    others = torch.from_numpy(np.random.default_rng(0).permutation(len(data.pool)))
    keep = torch.cat([needed, others[~torch.isin(others, needed)]])[: max(size, len(needed))].sort().values
    place = torch.full((len(data.pool),), -1, dtype=torch.long)
    place[keep] = torch.arange(len(keep))
    pairs = torch.stack([asked.pairs[:, 0], place[asked.pairs[:, 1]]], 1)
    ids = [data.pool_ids[i] for i in keep.tolist()]
    return replace(asked, pool=data.pool[keep], pool_ids=ids, pairs=pairs, pools={})
