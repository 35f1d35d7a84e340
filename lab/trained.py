"""Trainings of `builtin:default` that laboratory programs measure: training, the vectors that it leaves, and hits counted.

`Run` is one training of a benchmark in a folder of its own; one that is there already is read back. `Bench` holds what
it leaves: vectors of items and of the queries of all splits. "Unseen" items are those that no training or held-out query shows.
Shares are of dense search that is given the target modality, over the same candidates. Knows nothing of what is compared.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

import genius.train
from genius.config import to_dict
from genius.encoders.towers import Heads
from genius.features import Features
from genius.model import bias_choice, query_bank
from genius.model.bias_choice import JudgedQueries, choose
from genius.model.genius import Genius
from genius.model.query_bank import QueryBank
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train import Trained, train_stages
from genius.train.config import TrainConfig, read_train_config
from genius.train.handover import PER_DIRECTION, through_heads
from genius.train.holdout import Split
from genius.train.journal import Journal
from genius.train.loop import Runtime
from genius.train.prepare import hold_out, settle_sizes
from lab import provenance
from lab.accuracy import Data, fashion, icons

BENCHMARKS = {"fashion": fashion, "icons": icons}
COMPARED = 1024  # queries of a bank compared with items together, on a GPU
CHUNK = 8192  # rows that pass a model at a time
AT_ONCE = 256  # queries searched together
K = 5
FLAT = SearchParams(plan="flat")
DENSE = SearchParams(plan="flat", item_bias=False)
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Hits = dict[str, tuple[float, float]]  # task -> hit@1, hit@5


def mean_similarity_on_gpu(queries: Floats, vectors: Floats, temperature: float) -> Floats:
    """What `genius.model.query_bank.mean_similarity` computes on the host; of a million items it takes a minute there."""
    items = torch.from_numpy(np.ascontiguousarray(vectors, np.float32)).cuda()
    total = torch.full((len(vectors),), -torch.inf, device="cuda")
    for part in torch.from_numpy(np.ascontiguousarray(queries, np.float32)).cuda().split(COMPARED):
        total = torch.logaddexp(total, (part @ items.T / temperature).logsumexp(0))
    found: Floats = (temperature * (total - np.log(len(queries)))).float().cpu().numpy()
    return found


# -- training ------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """One training of a benchmark, and where it lies.

    Args:
        benchmark: Its name.
        data: Features of training and test queries over one pool.
        config: What is trained.
        changes: How it differs from `builtin:default`.
        work: The folder of the training.
        device: "cpu" or "cuda".
    """

    benchmark: str
    data: Data
    config: TrainConfig
    changes: dict[str, Any]
    work: Path
    device: str

    @classmethod
    def of(cls, args: argparse.Namespace) -> Run:
        """The run that `add_arguments` describes; nothing is trained yet."""
        changes = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
        device = "cpu"
        if torch.cuda.is_available():
            device = "cuda"
        data = BENCHMARKS[args.benchmark](args.features, args.products)
        config = replace(read_train_config("builtin:default", changes), seed=args.seed, output=str(args.work / "model"))
        if data.honest is not None:
            data.honest.save(args.work / "held-out")
            config = replace(config, held_out_data=str(args.work / "held-out"))
        return cls(args.benchmark, data, config, changes, args.work, device)

    def runtime(self) -> Runtime:
        journal = Journal(self.work / "training", quiet=True)
        return Runtime(torch.device(self.device), journal, self.config.seed, self.config.run)

    def train(self) -> Trained:
        """The trained model; one that has been trained before is read back, like stages that have ended."""
        kept = self.work / "trained.pt"
        if kept.exists():
            model, heads, metrics = torch.load(kept, weights_only=False)
            return Trained(model, heads, metrics, self.data.train)
        runtime = self.runtime()
        settled = settle_sizes(self.config, self.data.train, runtime)
        with Stopwatch() as watch:
            trained = train_stages(settled, self.data.train, runtime, self.work / "training")
        trained.model.generator.eval()
        trained.metrics["seconds"] = watch.seconds
        torch.save((trained.model, trained.heads, trained.metrics), kept)
        return trained

    def split(self, heads: Heads | None) -> Split:
        """Training and held-out queries in the features that the fusion reads."""
        runtime = self.runtime()
        parts = hold_out(settle_sizes(self.config, self.data.train, runtime), self.data.train, runtime)
        if heads is None:
            return parts
        return parts.map(lambda part: through_heads(heads, part))

    def bench(self, trained: Trained) -> Bench:
        """The vectors that a training leaves, which are written into its folder. From now on biases are computed on a GPU."""
        if self.device == "cuda":
            for module in (query_bank, bias_choice):
                setattr(module, "mean_similarity", mean_similarity_on_gpu)  # noqa: B010
        folder = self.work / "vectors"
        if not (folder / "about.json").exists():
            self._write_vectors(trained, folder)
        return Bench(folder, self.config.seed, self.device)

    def _write_vectors(self, trained: Trained, folder: Path) -> None:
        """z of items and queries, codes, and the split of every query."""
        model = trained.model
        parts = self.split(trained.heads)
        test = self.data.test
        if trained.heads is not None:
            test = through_heads(trained.heads, test)
        folder.mkdir(parents=True, exist_ok=True)
        pool = test.pool
        z = vectors(model, pool)
        np.savez(folder / "items.npz", z=z, modality=pool.modality.numpy(), codes=codes_of(model, z, pool.modality))
        rows_of = {name: row for row, name in enumerate(test.pool_ids)}
        named = {"learn": parts.train, "held-out": parts.offsets, "validation": parts.validation, "test": test}
        for name, part in named.items():
            assert part is not None
            rows = torch.tensor([rows_of[item] for item in part.pool_ids])
            pairs = torch.stack([part.pairs[:, 0], rows[part.pairs[:, 1]]], 1)
            target = torch.zeros(len(part.queries), dtype=torch.long)
            target[pairs[:, 0]] = pool.modality[pairs[:, 1]]
            tasks = np.array([part.task_name(int(task)) for task in part.tasks], np.str_)
            arrays: dict[str, Any] = {"modality": part.queries.modality.numpy(), "pairs": pairs.numpy(), "target": target.numpy()}
            np.savez(folder / f"{name}.npz", z=vectors(model, part.queries), tasks=tasks, **arrays)
        about = {"benchmark": self.benchmark, "seed": self.config.seed, "items": len(pool), "config": to_dict(self.config)}
        (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


class Stopwatch:
    """Seconds of a training, and of its steps that a bank of queries costs."""

    STEPS: ClassVar[dict[str, str]] = {"sampled_query_bank": "bank and its bias", "calibrate": "calibration"}

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.patches: list[Any] = []

    def __enter__(self) -> Stopwatch:
        for function, name in self.STEPS.items():
            patch = mock.patch.object(genius.train, function, self._timed(getattr(genius.train, function), name))
            patch.start()
            self.patches.append(patch)
        self.start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds["all"] = round(time.monotonic() - self.start, 2)
        for patch in self.patches:
            patch.stop()

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            start = time.monotonic()
            result = function(*arguments)
            self.seconds[name] = round(time.monotonic() - start, 2)
            return result

        return run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What describes a run."""
    parser.add_argument("benchmark", choices=list(BENCHMARKS))
    parser.add_argument("features", type=Path, help="as `lab.accuracy` reads them")
    parser.add_argument("work", type=Path, help="folder of the training")
    parser.add_argument("out", type=Path, help="folder of results")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="one field of the config, name=JSON")
    parser.add_argument("--products", type=int, help="only the first so many fashion products")


def vectors(model: Genius, features: Features) -> Floats:
    """(n, D) z."""
    starts = range(0, max(len(features), 1), CHUNK)
    return np.concatenate([model.embed(features[first : first + CHUNK])[0].float().cpu().numpy() for first in starts])


def codes_of(model: Genius, z: Floats, modality: torch.Tensor) -> Ints:
    """(n, M) codes."""
    out = []
    for first in range(0, len(z), CHUNK):
        part = torch.from_numpy(z[first : first + CHUNK]).to(model.device)
        out.append(model.quantizer.encode(part, modality[first : first + CHUNK].to(model.device)).cpu().numpy())
    return np.concatenate(out)


# -- what a training leaves ----------------------------------------------------------------------------------------


class Part:
    """Queries of one split."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as arrays:
            self.z: Floats = arrays["z"].astype(np.float32)
            self.modality: Ints = arrays["modality"].astype(np.int64)
            self.target: Ints = arrays["target"].astype(np.int64)
            self.tasks: NDArray[np.str_] = arrays["tasks"]
            pairs = arrays["pairs"]
        self.positives: list[list[int]] = [[] for _ in self.z]
        for query, item in pairs.tolist():
            self.positives[query].append(item)

    def __len__(self) -> int:
        return len(self.z)

    def judged(self) -> JudgedQueries:
        """All of them, with their positives."""
        return JudgedQueries(self.z, self.modality, self.target, self.positives)


class Bench:
    """Items, queries of all splits, and the bank that training would keep.

    Args:
        folder: `vectors` of a run.
        seed: Of the queries of the bank.
        device: On which it is searched.
    """

    def __init__(self, folder: Path, seed: int, device: str = "cpu") -> None:
        self.device = device
        with np.load(folder / "items.npz") as arrays:
            self.items: Floats = arrays["z"].astype(np.float32)
            self.modality: Ints = arrays["modality"].astype(np.int64)
            self.codes: Ints = arrays["codes"]
        self.about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        names = ("learn", "held-out", "validation", "test")
        self.learn, self.held_out, self.validation, self.test = (Part(folder / f"{name}.npz") for name in names)
        seen = [row for part in (self.learn, self.held_out, self.validation) for own in part.positives for row in own]
        self.unseen = np.ones(len(self.items), bool)
        self.unseen[np.array(seen, np.int64)] = False
        self.shown = np.zeros(len(self.items), bool)  # by a query that was trained on
        self.shown[np.array([row for own in self.learn.positives for row in own], np.int64)] = True
        self.random = np.random.default_rng(seed)
        self.tied = 0  # queries of the last search whose last place among the best was drawn among equal scores

    def bank(self, per_direction: int) -> tuple[QueryBank, Bools]:
        """At most so many queries of each direction, held-out ones first; and which of them are held out."""
        parts: list[tuple[Part, Ints]] = []
        directions = set(zip(self.test.modality.tolist(), self.test.target.tolist(), strict=True))
        missing = dict.fromkeys(sorted(directions), per_direction)
        for part in (self.held_out, self.learn):
            for query, target in missing:
                own = np.flatnonzero((part.modality == query) & (part.target == target))
                rows = self.random.permutation(own)[: missing[query, target]]
                missing[query, target] -= len(rows)
                parts.append((part, rows))
        arrays = [np.concatenate([getattr(part, name)[rows] for part, rows in parts]) for name in ("z", "modality", "target")]
        held_out = np.concatenate([np.full(len(rows), part is self.held_out) for part, rows in parts])
        return QueryBank.of(*arrays, size=len(arrays[0])), held_out

    def trained_bank(self) -> tuple[QueryBank, QueryBank]:
        """A bank as `genius train` would keep it, without and with what is chosen for its item bias."""
        bank, held_out = self.bank(PER_DIRECTION)
        crossed = (bank.subset(~held_out), self.held_out.judged())
        judged = self.validation.judged()
        return bank, choose(bank, judged, self.items, self.modality, further=[crossed], shown=self.shown)

    def engine(self, model: Genius, rows: Ints, bank: QueryBank, biased: QueryBank, stored: Floats | None = None) -> SearchEngine:
        """Of some items.

        Args:
            model: Its decoder and quantizer.
            rows: Of the items.
            bank: Names the modality.
            biased: Gives the item bias.
            stored: (n, D) vectors in place of the items' own.
        """
        trie = CodeTrie.build(self.codes[rows], model.config.quantizer.level_sizes)
        if stored is None:
            stored = self.items[rows].astype(np.float16)
        return SearchEngine(model.generator, model.quantizer, trie, stored, self.device, bank=bank, bias_bank=biased)

    def found(
        self, engine: SearchEngine, rows: Ints, part: Part, asked: Ints, params: SearchParams, *, given: bool = False
    ) -> Ints:
        """(n, K) items found for the queries `asked` of a part; -1: none. Equal scores are listed in the order of `rows`.

        Args:
            engine: Of the items `rows`.
            rows: Its items, in a random order.
            part: Of the queries.
            asked: Rows of the part.
            params: How to search.
            given: Whether the target modality is given.
        """
        found = []
        self.tied = 0
        for first in range(0, len(asked), AT_ONCE):
            queries = asked[first : first + AT_ONCE]
            target = None
            if given:
                target = part.target[queries]
            result = engine.search(part.z[queries], k=K + 1, params=params, target=target, modality=part.modality[queries])
            found.append(np.where(result.rows >= 0, rows[result.rows], -1)[:, :K])
            if result.scores.shape[1] > K:
                self.tied += int(((result.scores[:, K - 1] == result.scores[:, K]) & (result.rows[:, K] >= 0)).sum())
        return np.concatenate(found)

    def hits(
        self, engine: SearchEngine, rows: Ints, params: SearchParams, *, given: bool = False, asked: Ints | None = None
    ) -> Hits:
        """hit@1 and hit@5 of every task, over all test queries or those `asked`."""
        if asked is None:
            asked = np.arange(len(self.test))
        return hit_rates(self.test, asked, self.found(engine, rows, self.test, asked, params, given=given))


def hit_rates(part: Part, asked: Ints, found: Ints) -> Hits:
    """hit@1 and hit@5 of every task, of items found (n, K) for the queries `asked` of a part."""
    right = np.array([[row in part.positives[query] for row in line] for line, query in zip(found.tolist(), asked, strict=True)])
    tasks = part.tasks[asked]
    out = {}
    for task in sorted(set(tasks.tolist())):
        own = right[tasks == task]
        out[task] = (round(float(own[:, 0].mean()), 4), round(float(own.any(1).mean()), 4))
    return out


# -- results -------------------------------------------------------------------------------------------------------


def described(command: str, run: Run) -> dict[str, Any]:
    """What a result says of its run."""
    about = {"command": command, **run_details(), "benchmark": run.benchmark, "seed": run.config.seed, "changes": run.changes}
    if run.benchmark == "fashion":
        about["products"] = len(run.data.test.pool) // 3
    return about


def run_details() -> dict[str, Any]:
    """Of what and where a result was made."""
    return {**provenance(), "threads": torch.get_num_threads()}


class Results:
    """What was measured of one training, written after every line; a file that is there already is continued."""

    def __init__(self, file: Path, about: dict[str, Any]) -> None:
        self.file = file
        self.body: dict[str, Any] = {"lines": []}
        if file.exists():
            self.body = json.loads(file.read_text(encoding="utf-8"))
        self.lines: list[dict[str, Any]] = self.body.pop("lines")
        self.body |= about | {"lines": self.lines}

    def note(self, name: str, value: Any) -> None:
        self.body[name] = value
        self._write()

    def add(self, reference: Hits, hits: Hits, **about: Any) -> None:
        """A line: hits, and their shares of the reference's hit@5."""
        shares = {task: hits[task][1] / max(reference[task][1], 1e-9) for task in hits}
        line = {**about, "hit": hits, "share": {task: round(share, 4) for task, share in shares.items()}}
        line |= {"mean": round(float(np.mean([*shares.values()])), 4), "worst": round(min(shares.values()), 4)}
        self.lines.append(line)
        self._write()
        print(json.dumps(line), flush=True)

    def measure(self, name: str, work: Any) -> None:
        """Call `work`, once; what fails is noted and does not stop the other parts."""
        start = time.monotonic()
        done = self.body.setdefault("parts", [])
        if name in done:
            return
        try:
            work()
            self.note("parts", [*done, name])
        except Exception as error:  # the other parts are worth having
            self.note(f"failed_{name}", repr(error))
            print(name, repr(error), flush=True)
        print(self.file.stem, name, round(time.monotonic() - start), "s", flush=True)

    def _write(self) -> None:
        write_json(self.file, self.body)


def write_json(path: Path, body: dict[str, Any]) -> None:
    """JSON whose innermost lists and objects stand on one line."""
    text = json.dumps(body, indent=1)
    text = re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def summary(runs: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Lines with the same values of `names` over all runs that have them: shares of each task averaged, their mean and worst."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        for line in run["lines"]:
            found.setdefault(tuple(line[name] for name in names), []).append(line)
    out = []
    for values, lines in found.items():
        tasks = list(lines[0]["share"])
        share = {task: _mean([line["share"][task] for line in lines if task in line["share"]]) for task in tasks}
        body = dict(zip(names, values, strict=True)) | {"seeds": len(lines), "share": share}
        body["hit@5"] = {task: _mean([line["hit"][task][1] for line in lines if task in line["hit"]]) for task in tasks}
        body |= {"mean": _mean([*share.values()]), "worst": min(share.values())}
        body["by_seed"] = [[line["mean"], line["worst"]] for line in lines]
        out.append(body)
    return out


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)
