"""Accuracy next to exhaustive dense search: every search, items added after training, a million items, several seeds.

    python -m lab.accuracy fashion --features FOLDER --output OUT.json      (FOLDER: lab.fashion.data, lab.icons.vectors)
    python -m lab.accuracy icons   --features FOLDER --output OUT.json

Trains with `genius.train` (builtin:default, changed only by `--set`) and measures with `genius.evaluate`: one pool, the wanted
kind not told, all test questions. Test products or concepts are in no training question. `--parts`: main (all items are there
while codes and decoder are fitted), told (the target modality is given), added (a share of the pool,
the test answers first, comes after fusion, codes and decoder were fitted), large (the pool filled with points between items). The
JSON holds settings, losses and code accuracies of each stage beside every figure.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from genius.config import to_dict
from genius.data.features import FeatureSet
from genius.encoders.towers import Heads
from genius.evaluate import EvalConfig, Evaluation, evaluate
from genius.features import Features
from genius.model.codebooks import neighbours
from genius.train import Trained, train
from genius.train.config import EncoderStageConfig, TrainConfig, read_train_config
from genius.train.handover import through_heads
from genius.train.holdout import split
from lab import provenance

METHODS = (
    "dense",
    "dense-given",
    "genius",
    "genius-r",
    "default",
    "default-codes",
    "no-decoder",
    "no-decoder-r",
    "no-decoder-default",
    "codes",
)
FEW = ("dense", "dense-given", "genius", "genius-r", "default")
TOLD = ("dense", "dense-given", "genius", "genius-r", "default")
LARGE = ("dense", "dense-given", "genius", "genius-r", "default")
RERANK = 2500  # items that the default search may look at
MOST = 60  # items that GENIUS^R may look at
WIDE = 200  # beams of a second GENIUS and GENIUS^R, whose likeliest MOST items count
AT_ONCE = 512  # questions decoded together
CUT = 5  # hits that count: where the next one has the same score, the last place was drawn


@dataclass(frozen=True)
class Data:
    """What one benchmark trains and is measured on; all parts share one pool."""

    train: FeatureSet
    test: FeatureSet
    honest: FeatureSet | None = None  # questions that its frozen encoder has not seen either; None: a share of the training's


def fashion(folder: Path, products: int | None = None) -> Data:
    from lab.fashion.data import TASKS, load

    photos = load(folder, products)
    ids = [str(i) for i in range(len(photos.queries))], [str(i) for i in range(len(photos.pool))]
    whole = FeatureSet(photos.queries, photos.pool, photos.pairs, *ids, photos.tasks, TASKS)
    return Data(*(whole.take_queries((photos.held_out == test).nonzero()[:, 0]) for test in (False, True)))


def icons(folder: Path, _: int | None = None) -> Data:
    from lab.icons.vectors import load

    parts = load(folder)
    return Data(parts["train"], parts["test"], parts["val"])


def without(data: FeatureSet, new: torch.Tensor) -> FeatureSet:
    """A set without the pool rows `new` (N,) bool, and without questions that only they answer."""
    smaller = data.take_pool((~new).nonzero()[:, 0])
    return smaller.take_queries(torch.unique(smaller.pairs[:, 0]))


def added_later(test: FeatureSet, share: float, seed: int) -> torch.Tensor:
    """(N,) bool: a share of the pool, what answers test questions first."""
    random = torch.Generator().manual_seed(seed)
    answers = torch.zeros(len(test.pool), dtype=torch.bool)
    answers[test.pairs[:, 1]] = True
    parts = (answers.nonzero()[:, 0], (~answers).nonzero()[:, 0])
    order = torch.cat([part[torch.randperm(len(part), generator=random)] for part in parts])
    new = torch.zeros(len(test.pool), dtype=torch.bool)
    new[order[: round(share * len(order))]] = True
    return new


def filled(test: FeatureSet, size: int, seed: int) -> FeatureSet:
    """The same questions over `size` candidates: the pool and points between neighbouring items of the same modality."""
    random = torch.Generator().manual_seed(seed)
    pool, missing = test.pool, size - len(test.pool)
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
    near = neighbours(F.normalize(torch.cat(pool.masked(), 1), dim=1).to(device), pool.modality.to(device), 16).cpu()
    rows = torch.randint(len(pool), (missing,), generator=random)
    other = near[rows, torch.randint(16, (missing,), generator=random)]
    mix = torch.rand(missing, 1, generator=random)
    image, text = (torch.lerp(part[rows], part[other], mix) for part in pool.masked())
    filler = Features(image, text, pool.image_mask[rows], pool.text_mask[rows])
    ids = [*test.pool_ids, *(f"between-{i}" for i in range(missing))]
    return dataclasses.replace(test, pool=Features.cat([pool, filler]), pool_ids=ids, pools={})


class Bench:
    """Trains, measures, writes after every line."""

    def __init__(self, data: Data, config: TrainConfig, output: Path, about: dict[str, Any]) -> None:
        self.data, self.config, self.output = data, config, output
        self.started = time.monotonic()
        self.lines: list[dict[str, Any]] = []
        self.about = about

    def fit(self, seed: int) -> Trained:
        """A model trained on all items."""
        return self._train(seed, self.data.train, self.data.honest)

    def fit_again(self, seed: int, heads: Heads | None, new: torch.Tensor) -> Trained:
        """Fusion, codes and decoder without the items `new`; heads as they are, and the same questions are held out."""
        data, honest = self.data.train, self.data.honest
        if honest is None:
            parts = split(data, self.config.held_out, seed)
            held = {part.query_ids[i] for part in (parts.offsets, parts.validation) if part for i in range(len(part.query_ids))}
            rows = torch.tensor([name in held for name in data.query_ids])
            data, honest = (data.take_queries(own.nonzero()[:, 0]) for own in (~rows, rows))
        if heads is not None:
            data, honest = through_heads(heads, data), through_heads(heads, honest)
        return self._train(seed, without(data, new), without(honest, new), heads is not None)

    def _train(self, seed: int, data: FeatureSet, honest: FeatureSet | None, through: bool = False) -> Trained:
        with tempfile.TemporaryDirectory() as folder:
            config = dataclasses.replace(self.config, seed=seed, output=f"{folder}/model")
            if through:  # heads have done their part
                config = dataclasses.replace(config, encoder=EncoderStageConfig(train="none"))
            if honest is not None:
                honest.save(Path(folder) / "honest")
                config = dataclasses.replace(config, held_out_data=f"{folder}/honest")
            return train(config, data, quiet=True)

    def measure(
        self, name: str, seed: int, trained: Trained, test: FeatureSet, methods: tuple[str, ...], target: str = "unknown"
    ) -> None:
        start = time.monotonic()
        random = torch.Generator().manual_seed(seed)
        test = test.take_pool(torch.randperm(len(test.pool), generator=random))  # equal scores are listed in a random order
        found = dict(self._searches(trained, test, methods, target, seed))
        entry: dict[str, Any] = {
            "name": name,
            "seed": seed,
            "target": target,
            "pool": len(test.pool),
            "questions": len(test.queries),
        }
        entry |= {"methods": found, "training": trained.metrics, "seconds": round(time.monotonic() - start, 1)}
        self.lines.append(entry)
        self.write()
        for method, values in entry["methods"].items():
            hits = " ".join(f"{100 * hit:.1f}" for hit in values["hit@5"].values())
            shown = f"{values['mean']:.3f} / {values['worst']:.3f}  {values['touched']:7.0f}  {hits}"
            print(f"{name:12s} {seed} {target[:5]} {method:18s} {shown}", flush=True)
        print(f"{time.monotonic() - self.started:.0f} s", flush=True)

    def _searches(
        self, trained: Trained, test: FeatureSet, methods: tuple[str, ...], target: str, seed: int
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every method's summary, and those of GENIUS and GENIUS^R with more beams."""
        fixed = {"pools": ("universal",), "rerank": RERANK, "depth": 10, "most": MOST, "batch": AT_ONCE}
        settings = EvalConfig(methods=methods, target=target, seed=seed, **fixed)  # type: ignore[arg-type]
        yield from summaries(evaluate(trained.model, test, settings))
        wide = dataclasses.replace(settings, methods=("dense", "dense-given", "genius", "genius-r"), beams=(WIDE,))
        for name, found in summaries(evaluate(trained.model, test, wide)):
            if name in ("genius", "genius-r"):
                yield f"{name}@{WIDE}", found

    def write(self) -> None:
        body = {**self.about, "config": to_dict(self.config), "lines": self.lines}
        self.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")

    def ready(self, trained: Trained, test: FeatureSet) -> FeatureSet:
        return test if trained.heads is None else through_heads(trained.heads, test)


def summaries(found: Evaluation) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each method's hit@5 of every task, its share of dense, intervals of the shares, and queries whose fifth place was drawn."""
    given = "dense-given" in found.methods
    for method in found.methods:
        rows = [r for r in found.results if r.method == method]
        out: dict[str, Any] = {"hit@5": {r.task: round(r.metrics["hit@5"], 4) for r in rows}}
        for reference in ("dense", "dense-given") if given else ("dense",):
            shares = {r.task: _share(found, r.task, method, reference, r.pool) for r in rows}
            suffix = "" if reference == "dense" else "_of_dense_given"
            out[f"share{suffix}"] = {task: [round(v, 4) for v in values] for task, values in shares.items()}
            out[f"mean{suffix}"] = round(float(np.mean([v[0] for v in shares.values()])), 4)
            out[f"worst{suffix}"] = round(min(v[0] for v in shares.values()), 4)
        scores = [found.runs[r.task, method, r.pool][1] for r in rows]
        out["tied"] = int(sum((own[:, CUT - 1] == own[:, CUT])[np.isfinite(own[:, CUT])].sum() for own in scores))
        out["touched"] = round(float(np.mean([r.touched for r in rows])), 1)
        out["bytes"] = round(rows[0].bytes_per_item, 1)
        out["queries/s"] = round(rows[0].queries_per_second, 1)
        yield method, out


def _share(found: Evaluation, task: str, method: str, reference: str, pool: str) -> tuple[float, float, float]:
    """Share of the reference's hit@5 and its 95 % interval: questions resampled, both methods on the same ones."""
    mine, ceiling = found.main_values[task, method, pool], found.main_values[task, reference, pool]
    random = np.random.default_rng(0)
    picks = random.integers(0, len(mine), (500, len(mine)))
    ratios = mine[picks].mean(1) / np.maximum(ceiling[picks].mean(1), 1e-9)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(mine.mean() / max(ceiling.mean(), 1e-9)), float(low), float(high)


def run(bench: Bench, parts: list[str], seeds: list[int], shares: list[float], size: int, limit: int, save: Path | None) -> None:
    test = bench.data.test
    if limit:
        kinds = [(test.tasks == task).nonzero()[:, 0] for task in test.tasks.unique()]
        test = test.take_queries(
            torch.cat([rows[torch.linspace(0, len(rows) - 1, min(limit, len(rows))).long()] for rows in kinds])
        )
    for seed in seeds:
        trained = bench.fit(seed)
        if save is not None:
            trained.model.save_pretrained(save / f"seed-{seed}", dtype=torch.float16, encoder=False)
        if "main" in parts:
            bench.measure("all items", seed, trained, bench.ready(trained, test), METHODS)
        if "told" in parts:
            bench.measure("all items", seed, trained, bench.ready(trained, test), TOLD, "given")
        if "large" in parts:
            bench.measure("filled", seed, trained, bench.ready(trained, filled(test, size, seed)), LARGE)
        for share in shares if "added" in parts else ():
            new = added_later(test, share, seed)
            again = bench.fit_again(seed, trained.heads, new)
            only_new = torch.ones(len(test.queries), dtype=torch.bool)
            only_new[test.pairs[~new[test.pairs[:, 1]], 0]] = False  # a question with an old answer too says nothing of new items
            asked = test.take_queries(only_new.nonzero()[:, 0])
            bench.measure(f"{100 * share:.0f} % added", seed, again, bench.ready(trained, asked), FEW)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["fashion", "icons"])
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--config", default="builtin:default")
    parser.add_argument("--set", action="append", default=[], help="one field of the config, name=JSON")
    parser.add_argument("--parts", default="main,told,added,large")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--shares", default="0.1,0.9", help="of the pool that come after training, for `added`")
    parser.add_argument("--size", type=int, default=1_000_000, help="of the filled pool, for `large`")
    parser.add_argument("--limit", type=int, default=0, help="test questions of each task (0: all)")
    parser.add_argument("--products", type=int, help="only the first so many fashion products: a small pool, for a trial")
    parser.add_argument("--save", type=Path, help="keep the models of `main` here")
    args = parser.parse_args()
    changes = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
    config = read_train_config(args.config, changes)
    data = (fashion if args.data == "fashion" else icons)(args.features, args.products)
    about = {
        "data": args.data,
        **provenance(),  # lab.report shows rows of the default search only with its commit
        "changes": changes,
        "config_name": args.config,
    }
    bench = Bench(data, config, args.output, about)
    run(
        bench,
        args.parts.split(","),
        [int(s) for s in args.seeds.split(",")],
        [float(s) for s in args.shares.split(",")],
        args.size,
        args.limit,
        args.save,
    )


if __name__ == "__main__":
    main()
