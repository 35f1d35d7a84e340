"""The paper's tables and figures as experiments: `python -m lab reproduce table-2 --data ... --model ...`.

`experiments.toml` says what each experiment runs (`lab.paper.experiment`). Rows of an ablation are models: given by the user, or
trained here with one change to a training config. On data that is not M-BEIR the tasks of the same direction stand in, and the
paper's numbers are left out, because they are of other data.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from genius.config import flat, to_dict
from genius.data.collection import Task, read_jsonl
from genius.data.features import FeatureSet
from genius.data.mbeir import DIRECTIONS, ROWS
from genius.errors import GeniusError
from genius.evaluate import EvalConfig, Evaluation, evaluate, tasks_of
from genius.evaluate.methods import code_bits
from genius.evaluate.report import average_cell, main_cell, markdown_table, method_title
from genius.evaluate.sources import features_folder, load_features, other_encoders
from genius.model.config import SIZES
from genius.model.genius import Genius
from genius.search import CodeTrie
from genius.train.config import TrainConfig, read_train_config
from genius.train.loop import finished
from genius.train.prepare import CONFIG, NOT_PART_OF_THE_RUN, TRAINING
from genius.train.quantizer import QuantizerStage
from genius.types import Item
from lab.paper import analyses
from lab.paper import printed as paper
from lab.paper.alike import ALL, Recipe, recipe_of, refuse_unlike
from lab.paper.experiment import AblationRow, Experiment, Request, listing, read_experiment
from lab.paper.figure_4 import speed
from lab.paper.table import Table, beside_printed

ENCODERS = ("CLIP-FF", "BLIP-SF", "BLIP-FF")  # dense rows beside CLIP-SF, which is the model's own encoder (score-fusion)
FULL_MBEIR = 5_000_000  # the union pool has 5.6 million candidates
OTHER_DATA = (
    "The paper's numbers are on the whole of M-BEIR (5.6 million candidates); this run searched fewer, so they do not compare."
)
STAGE_3 = ("generator.", "model.decoder", "model.prefix_tokens", "search")  # fields that stage 2 does not read
TRAIN = "train"  # as a row's model: it is trained here
Say = Callable[[str], None]
__all__ = ["Request", "Table", "listing", "read_experiment", "run"]


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
        "map": _map, "cards": _cards, "training-time": _training_time,
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
    if experiment.single and request.train:
        planned = read_train_config(request.base, _changes(name, AblationRow("single"), request, data.pool.width))
        recipes = {ALL: recipe_of(request.model), "single task": flat(to_dict(planned))}
        refuse_unlike(ALL, {row: _on_features(own) for row, own in recipes.items()}, {})
    config = _config(experiment, request, tasks, methods=experiment.methods)
    others = other_encoders(request.dense, request.source(), data)
    extra = _baselines(experiment, request, model, data, say)
    evaluation = evaluate(model, data, config, extra=[*others, *extra], progress=say)
    printed: Mapping[str, paper.Row] = paper.TABLES.get(name, {}) if _is_mbeir(evaluation.tasks) else {}
    body = "\n\n".join(beside_printed(evaluation, pool, printed, paper.misprints(name)) for pool in evaluation.pools)
    if _about_other_data(evaluation, printed):
        body += f"\n\n{OTHER_DATA}"
    if experiment.baselines and not extra:
        body += f"\n\nNot run, for want of training data (--train): {', '.join(experiment.baselines)}."
    absent = [row for row in paper.TABLES.get(name, {}) if row in ENCODERS and row not in request.dense]
    if absent:
        body += f"\n\nNot run, for want of their encoders (--dense NAME=FEATURES): {', '.join(absent)}."
    results = evaluation.to_json()["results"]
    if experiment.single and request.train:
        block, more = _single(name, experiment, request, model, data, tasks, evaluation, say)
        body, results = f"{body}\n\n{block}", results + more
    return Table(name, experiment.title, body, evaluation.about, results)


def _single(
    name: str,
    experiment: Experiment,
    request: Request,
    model: Genius,
    data: FeatureSet,
    tasks: list[Task],
    unified: Evaluation,
    say: Say,
) -> tuple[str, list[dict[str, Any]]]:
    """Single-task rows: for every task with training queries of its own a model of these alone, beside the one for all."""
    train = load_features(request.examples(), model, request.model)
    number = {train.task_name(task): task for task in train.tasks.unique().tolist()}
    methods = tuple(method for method in experiment.methods if method.startswith("genius"))
    rows, results = [], []
    for task in tasks:
        if task.key not in number:
            rows.append([task.title, "no training questions of its own", *["–"] * (2 * len(methods) - 1)])
            continue
        say(f"training for {task.key} alone")
        own = train.take_queries((train.tasks == number[task.key]).nonzero()[:, 0])
        alone = _train(name, AblationRow(f"single {task.key}"), request, own)
        config = _config(experiment, request, [task], methods=methods, beams=experiment.beams[-1:])
        found = evaluate(alone, data, config, progress=say)
        label = {method: method if len(experiment.beams) == 1 else f"{method}@{experiment.beams[-1]}" for method in methods}
        pairs = [(found.find(task.key, m, "local"), unified.find(task.key, label[m], "local")) for m in methods]
        rows.append([task.title, *(main_cell(result, mark=False) for pair in pairs for result in pair)])
        results += [{**asdict(single), "method": f"{single.method}, single task"} for single, _ in pairs]
    header = ["Task", *(f"{method_title(m)}, {how}" for m in methods for how in ("single task", "all tasks"))]
    return markdown_table(header, rows), results


# -- several models ------------------------------------------------------------------------------------------------


def _ablation(
    name: str, experiment: Experiment, request: Request, model: Genius, data: FeatureSet, tasks: list[Task], say: Say
) -> Table:
    config = _config(experiment, request, tasks)
    found: dict[str, Evaluation] = {}
    notes: list[str] = []
    for row, variant in _models(name, experiment, request, model, data, say):
        notes += _not_as_named(row, variant)
        say(f"evaluating {row.name}")
        found[row.name] = evaluate(variant, data, config, progress=say)
    first = next(iter(found.values()))
    body = "\n\n".join([_ablation_body(name, experiment, found), *notes])
    return Table(name, experiment.title, body, first.about, _ablation_results(found))


def _models(
    name: str, experiment: Experiment, request: Request, model: Genius, data: FeatureSet, say: Say
) -> Iterator[tuple[AblationRow, Genius]]:
    """The model of every row: given, or trained here."""
    train: FeatureSet | None = None
    given = {row.name: request.variants[row.name] for row in experiment.rows if row.name in request.variants}
    if not experiment.rows[0].set:
        given.setdefault(experiment.rows[0].name, request.model)
    given = {row: source for row, source in given.items() if source != TRAIN}
    for row in experiment.rows:
        if row.name not in given and not request.train:
            raise GeniusError(f"row {row.name!r} needs a model: --variant '{row.name}=MODEL', or --train DATA to train it")
    _refuse_unlike(name, experiment, request, given, data.pool.width)
    trained: list[AblationRow] = []
    for row in experiment.rows:
        if row.name in given:
            source = given[row.name]
            variant = model if source == request.model else Genius.from_pretrained(source, device=request.device)
        else:
            if train is None:
                train = load_features(request.examples(), model, request.model)
            say(f"training {row.name}")
            _reuse_earlier_stages(name, row, trained, request, train.pool.width, say)
            variant = _train(name, row, request, train)
            trained.append(row)
        yield row, variant


def _refuse_unlike(name: str, experiment: Experiment, request: Request, given: Mapping[str, str], width: int) -> None:
    """Before anything is trained: every row's recipe is the first row's but for what the row is about."""
    recipes, changes = {}, {}
    for row in experiment.rows:
        changes[row.name] = [*row.set, *row.expects]
        if row.name in given:
            recipes[row.name] = recipe_of(given[row.name])
        else:
            planned = read_train_config(request.base, _changes(name, row, request, width))
            recipes[row.name] = flat(to_dict(planned))
    first = experiment.rows[0].name
    if any(row.name not in given for row in experiment.rows):  # trained here: on the features that the given model's encoder made
        recipes = {row: _on_features(own) for row, own in recipes.items()}
    refuse_unlike(first, recipes, changes)


def _on_features(recipe: Recipe) -> Recipe:
    return {name: value for name, value in recipe.items() if not name.startswith("encoder.")}


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


def _reuse_earlier_stages(
    name: str, row: AblationRow, trained: Sequence[AblationRow], request: Request, width: int, say: Say
) -> None:
    """Copy stage 2 of a row that differs in stage 3 alone: `train` reads a finished stage back."""
    config = read_train_config(request.base, _changes(name, row, request, width))
    mine = Path(config.output) / TRAINING
    if (mine / CONFIG).exists():
        return  # begun by an earlier call
    for other in trained:
        known = read_train_config(request.base, _changes(name, other, request, width))
        theirs = Path(known.output) / TRAINING
        if _before_stage_3(known) != _before_stage_3(config) or not finished(theirs, QuantizerStage.name):
            continue
        mine.mkdir(parents=True, exist_ok=True)
        for kind in ("safetensors", "json"):
            file = f"{QuantizerStage.name}.{kind}"
            shutil.copyfile(theirs / file, mine / file)
        say(f"stage 2 of {row.name} is that of {other.name}")
        return


def _before_stage_3(config: TrainConfig) -> dict[str, Any]:
    """What decides the result of stage 2."""
    fields = flat(to_dict(config))
    return {name: value for name, value in fields.items() if not name.startswith(STAGE_3) and name not in NOT_PART_OF_THE_RUN}


def _train(name: str, row: AblationRow, request: Request, data: FeatureSet) -> Genius:
    """A model of this row, kept in the work folder; a second call finds it."""
    from genius.train import train

    config = read_train_config(request.base, _changes(name, row, request, data.pool.width))
    return train(config, data, quiet=True).model.to(request.device)


def _changes(name: str, row: AblationRow, request: Request, width: int) -> dict[str, Any]:
    """What of the base config a row that is trained here has otherwise."""
    output = request.work / name / re.sub(r"[^A-Za-z0-9]+", "-", row.name).strip("-").lower()
    return {
        "output": str(output),
        "data": request.train,
        "model.width": width,  # features are given: the encoder and its heads are those of the model under test
        "encoder.train": "none",
        "device": "cuda" if request.device.startswith("cuda") else "cpu",
        **row.set,
        **request.overrides,
    }


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
            theirs = [paper.printed_number(printed[row][task.key]) for task in tasks] if row in printed else []
            rows.append([row, *cells, average_cell(evaluation, method, pool), *theirs])
        blocks.append(markdown_table(header, rows))
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
        rows += [[f"{method_title(who)} (paper)", *map(paper.printed_number, values)] for who, values in printed.items()]
        blocks.append(markdown_table(header, rows))
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
    return Table(name, experiment.title, markdown_table(["One item", "bytes"], rows), about, results)


def _speed(
    name: str, experiment: Experiment, request: Request, model: Genius, data: FeatureSet, tasks: list[Task], say: Say
) -> Table:
    return speed(name, experiment, request.queries, model, data, _baselines(experiment, request, model, data, say), say)


# -- analyses ------------------------------------------------------------------------------------------------------


def _map(
    name: str, experiment: Experiment, request: Request, model: Genius, data: FeatureSet, tasks: list[Task], say: Say
) -> Table:
    models = {row.name: variant for row, variant in _models(name, experiment, request, model, data, say)}
    return analyses.embedding_map(name, experiment.title, models, data, say)


def _cards(
    name: str, experiment: Experiment, request: Request, model: Genius, data: FeatureSet, tasks: list[Task], say: Say
) -> Table:
    known: Iterator[Item]
    if request.items is not None:
        known = (Item(str(row["id"]), image=row.get("image"), text=row.get("text")) for row in read_jsonl(request.items))
    else:
        known = iter(()) if features_folder(request.data) else request.source().collection().pool()
    items = {item.id: item for item in known}
    return analyses.code_cards(name, experiment.title, model, data, items, experiment.levels, experiment.cards)


def _training_time(
    name: str, experiment: Experiment, request: Request, model: Genius, data: FeatureSet, tasks: list[Task], say: Say
) -> Table:
    if not request.train:
        raise GeniusError("the time of training is measured on training data: --train DATA")
    train = load_features(request.examples(), model, request.model)
    config = read_train_config(request.base, _changes(name, AblationRow("time"), request, train.pool.width))
    return analyses.training_time(name, experiment.title, config, train, experiment.steps, say)
