"""Train with the stages of `genius train`, measure with `genius.search`: what every line of the accuracy tables is made of.

Knows feature sets, configs and searches; which data and which lines is `accuracy.py`'s business. Results are written after
every line, so a stop at any moment keeps what is there.
"""

from __future__ import annotations

import dataclasses
import json
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genius.config import from_dict
from genius.data.features import FeatureSet
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train.calibrate import Calibration
from genius.train.config import TrainConfig
from genius.train.encoder import HeadsStage
from genius.train.generator import GeneratorStage, freeze
from genius.train.loop import Runtime, make_accelerator, run_stage
from genius.train.progress import Journal
from genius.train.quantizer import QuantizerStage
from genius.train.run import through_heads, with_sizes

AT = (1, 5, 10)
FINISH, GEOMETRY = "finish", "geometry"  # stand for the weights that were chosen on the dev queries
MODES: dict[str, dict[str, Any]] = {
    "default": {"geometry": GEOMETRY},
    "default, 2,000 re-ranked": {"geometry": GEOMETRY, "rerank": 2000},
    "default, 2,500 re-ranked": {"geometry": GEOMETRY, "rerank": 2500},
    "default, log p": {},
    "default, codes only": {"reranker": "codes", "geometry": GEOMETRY},
    "GENIUS^R": {"rerank": 0, "finish": FINISH, "geometry": GEOMETRY},
    "GENIUS": {"rerank": 0, "reranker": "none", "finish": FINISH, "geometry": GEOMETRY},
    "GENIUS^R, no geometry": {"rerank": 0, "finish": FINISH},
    "GENIUS^R, log p": {"rerank": 0},
    "GENIUS, log p": {"rerank": 0, "reranker": "none"},
    "GENIUS, log p over children": {"rerank": 0, "reranker": "none", "normalizer": "children"},
    "geometry, GENIUS^R": {"rerank": 0, "generator": False, "geometry": 1.0},
    "geometry, default": {"generator": False, "geometry": 1.0},
}


@dataclass
class Data:
    """Three sets of queries over one pool."""

    train: FeatureSet
    dev: FeatureSet  # chooses settings; never reported
    test: FeatureSet


def variant(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """The config with dotted fields changed."""
    values: dict[str, Any] = dataclasses.asdict(config)
    for name, value in changes.items():
        place = values
        *parents, last = name.split(".")
        for parent in parents:
            place = place[parent]
        place[last] = value
    return from_dict(TrainConfig, values)


def without_items(data: FeatureSet, keep: Tensor) -> FeatureSet:
    """The same set over the pool rows where `keep` (N,) is true; queries that lose every answer go too."""
    rows = keep.nonzero()[:, 0]
    place = torch.full((len(keep),), -1)
    place[rows] = torch.arange(len(rows))
    pairs = data.pairs[keep[data.pairs[:, 1]]]
    asked = torch.unique(pairs[:, 0])
    number = torch.full((len(data.queries),), -1)
    number[asked] = torch.arange(len(asked))
    return FeatureSet(
        data.queries[asked], data.pool[rows], torch.stack([number[pairs[:, 0]], place[pairs[:, 1]]], 1),
        [data.query_ids[i] for i in asked.tolist()], [data.pool_ids[i] for i in rows.tolist()], data.tasks[asked], data.names,
    )  # fmt: skip


def share_interval(hits: Tensor, dense: Tensor, draws: int = 1000) -> tuple[float, float]:
    """95 % bootstrap interval of the share of dense hit@5, over queries."""
    picks = torch.randint(len(hits), (draws, len(hits)), generator=torch.Generator().manual_seed(0))
    ratio = hits[picks].mean(1) / dense[picks].mean(1).clamp(min=1e-9)
    low, high = torch.quantile(ratio, torch.tensor([0.025, 0.975])).tolist()
    return low, high


class Lab:
    """Trains and measures; one line of results at a time."""

    def __init__(self, data: Data, config: TrainConfig, output: Path, seconds: float, budget: int = 2500) -> None:
        self.budget = budget  # items that a search may look at
        self.data, self.output, self.seconds = data, output, seconds
        self.started = time.monotonic()
        output.mkdir(parents=True, exist_ok=True)
        self.runtime = Runtime(make_accelerator(config.device), Journal(output / "journal", quiet=True), config.seed)
        self.device = self.runtime.device
        self.config = config = with_sizes(config, data.train, self.runtime)
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU"
        self.results: dict[str, Any] = {
            "config": dataclasses.asdict(config), "device": name, "torch": torch.__version__, "lines": [], "stages": {},
        }  # fmt: skip

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.started)

    def note(self, **values: Any) -> None:
        print(json.dumps({"t": round(time.monotonic() - self.started, 1), **values}), flush=True)

    def write(self) -> None:
        self.results["seconds"] = time.monotonic() - self.started
        (self.output / "results.json").write_text(json.dumps(self.results), encoding="utf-8")

    # -- training --------------------------------------------------------------------------------------------------

    def heads(self) -> None:
        """Features of frozen towers -> of one width, learned from the training queries."""
        if self.config.encoder.train != "heads":
            return
        start = time.monotonic()
        stage = HeadsStage(self.data.train, None, self.config.model.width, self.config.encoder, self.config.seed, self.device)
        run_stage(stage, self.config.encoder, self.runtime, self.output / "no-checkpoint")
        heads = stage.heads.eval()
        self.data = Data(*(through_heads(heads, part) for part in (self.data.train, self.data.dev, self.data.test)))
        self.results["stages"]["heads"] = time.monotonic() - start
        self.note(stage="heads", seconds=round(time.monotonic() - start, 1))

    def codes(self, config: TrainConfig, data: FeatureSet, name: str) -> QuantizerStage:
        start = time.monotonic()
        stage = QuantizerStage(data, None, config.model, config.quantizer, config.seed, self.device)
        run_stage(stage, config.quantizer, self.runtime, self.output / "no-checkpoint")
        stage.eval()
        stage.finish()
        self.results["stages"][f"codes {name}"] = {
            "seconds": time.monotonic() - start,
            **{k: round(v, 4) for k, v in stage.validate().items()},
        }
        self.note(stage="codes", name=name, seconds=round(time.monotonic() - start, 1))
        return stage

    def decoder(self, config: TrainConfig, data: FeatureSet, second: QuantizerStage, name: str) -> GeneratorStage:
        start = time.monotonic()
        frozen = freeze(second.embed, data, second.quantizer, config.generator.modality_dropout > 0)
        stage = GeneratorStage(data, None, frozen, None, second.quantizer, config.model, config.generator, config.seed)
        run_stage(stage, config.generator, self.runtime, self.output / "no-checkpoint")
        stage.eval()
        self.results["stages"][f"decoder {name}"] = {"seconds": time.monotonic() - start}
        self.note(stage="decoder", name=name, seconds=round(time.monotonic() - start, 1))
        return stage

    # -- measuring -------------------------------------------------------------------------------------------------

    def measure(
        self, name: str, second: QuantizerStage, third: GeneratorStage, modes: dict[str, dict[str, Any]] | None = None,
        test: FeatureSet | None = None, beams: int = 50,
    ) -> None:  # fmt: skip
        """Every mode on every task over the whole pool, the wanted modality not told."""
        test = test or self.data.test
        pool, queries = second.embed(test.pool), second.embed(test.queries)
        codes = second.quantizer.encode(pool, test.pool.modality.to(self.device))
        dense = torch.cat([(q @ pool.T).topk(10).indices for q in queries.split(1024)])
        self.line(name, "dense", test, dense, dense)
        rebuilt = torch.nn.functional.normalize(second.quantizer.decode(codes), dim=1)
        self.line(
            name, "codes, exhaustive", test, torch.cat([(q @ rebuilt.T).topk(10).indices for q in queries.split(1024)]), dense
        )
        dev = self.data.dev
        asked = second.embed(dev.queries)
        trial = Calibration(third.generator, second.quantizer, codes, pool, asked, dev, self.budget, leaves=self.budget)
        (geometry, tried), (finish, more) = trial.geometry(), trial.finish()
        self.note(name=name, finish=finish, geometry=geometry, tried={**tried, **more})
        trie = CodeTrie.build(codes.cpu().numpy(), second.quantizer.config.level_sizes)
        engine = SearchEngine(third.generator, second.quantizer, trie, pool, device=str(self.device))
        for mode, values in (MODES if modes is None else modes).items():
            try:
                chosen = {FINISH: finish, GEOMETRY: geometry}
                values = {key: chosen.get(value, value) if isinstance(value, str) else value for key, value in values.items()}
                params = SearchParams(**{"beams": beams, "rerank": self.budget, "leaves": self.budget, **values})
                engine.search(queries[:256], k=10, params=params)  # warm
                self.sync()
                start = time.monotonic()
                found = [engine.search(z, k=10, params=params) for z in queries.split(512)]
                self.sync()
                speed = len(queries) / (time.monotonic() - start)
                touched = torch.cat([f.touched for f in found]).float().mean().item()
                self.line(name, mode, test, torch.cat([f.rows for f in found]), dense, touched, speed, beams)
            except Exception:
                self.note(failed=mode, name=name)
                traceback.print_exc()

    def line(
        self, name: str, mode: str, test: FeatureSet, rows: Tensor, dense: Tensor,
        touched: float | None = None, speed: float | None = None, beams: int = 0,
    ) -> None:  # fmt: skip
        good = [set(p) for p in test.positives()]
        mine, ceiling = _hits(rows, good), _hits(dense, good)
        tasks: dict[str, Any] = {}
        for task in sorted(set(test.tasks.tolist())):
            own = test.tasks == task
            low, high = share_interval(mine[own, 1], ceiling[own, 1])
            tasks[test.task_name(task)] = {
                **{f"hit@{k}": round(100 * mine[own, i].mean().item(), 2) for i, k in enumerate(AT)},
                "share": round((mine[own, 1].mean() / ceiling[own, 1].mean().clamp(min=1e-9)).item(), 4),
                "interval": [round(low, 4), round(high, 4)],
                "queries": int(own.sum()),
            }
        shares = [t["share"] for t in tasks.values()]
        entry = {"name": name, "mode": mode, "beams": beams, "tasks": tasks, "touched": touched, "queries_per_second": speed}
        entry |= {"share": sum(shares) / len(shares), "worst": min(shares)}
        self.results["lines"].append(entry)
        self.write()
        five = " ".join(f"{t['hit@5']:.1f}" for t in tasks.values())
        rest = {"touched": None if touched is None else round(touched), "qps": None if speed is None else round(speed)}
        self.note(name=name, mode=mode, hit5=five, share=round(entry["share"], 3), worst=round(entry["worst"], 3), **rest)

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _hits(rows: Tensor, good: list[set[int]]) -> Tensor:
    """(Q, 3) whether a positive is in the first 1, 5, 10."""
    found = [[row in own for row in listed] for listed, own in zip(rows.tolist(), good, strict=True)]
    return torch.stack([torch.tensor([float(any(f[:k])) for f in found]) for k in AT], 1)
