"""The fashion experiment: dense, GENIUS, GENIUS^R, the default search and the paper's ablations on real photos.

Our own recipe, one change at a time, and items added after training are `accuracy.py`.

    python benchmarks/fashion.py features --photos PHOTOS --output RAW     frozen towers over 24,000 photos (CPU, once)
    python benchmarks/fashion.py pack     --features RAW --output PACKED   the same in few bytes, for another machine
    python benchmarks/fashion.py run      --features PACKED --output OUT   train and measure everything (GPU)
    python benchmarks/fashion.py report   --results OUT --output docs/results/fashion.md

`run` writes results.json after every line of the table, so a stop at any moment keeps what is there. It trains with the
stages of `genius train`; what is measured is `genius.search`. Test products are never in a training pair.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from accuracy_lab import Data, Lab, variant
from fashion_data import TASKS, Fashion, extract, load, pack
from genius.data.features import FeatureSet
from genius.model.fusion import score_fusion
from genius.model.quantizer import QuantizerConfig, ResidualQuantizer
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.train.config import TrainConfig, read_train_config
from genius.train.generator import GeneratorStage
from genius.train.quantizer import QuantizerStage

TABLE_4_BEAMS = 30
HERE = Path(__file__).parent

# name -> SearchParams; "dense" and "codes, exhaustive" are computed beside
MODES: dict[str, dict[str, Any]] = {
    "GENIUS": {"rerank": 0, "reranker": "none"},
    "GENIUS^R": {"rerank": 0},
    "geometry only, re-ranked": {"rerank": 0, "generator": False, "geometry": 1.0},
    "default": {},
    "default, codes only": {"reranker": "codes"},
    "default, geometry only": {"generator": False, "geometry": 1.0},
}
SHORT = ("GENIUS", "GENIUS^R")
PROBES: dict[str, dict[str, Any]] = {  # settings of the search that are chosen on validation, not trained
    "GENIUS^R + geometry": {"rerank": 0, "geometry": 1.0},
    "GENIUS, children": {"rerank": 0, "reranker": "none", "normalizer": "children"},
    "GENIUS + 0.3 geometry": {"rerank": 0, "reranker": "none", "geometry": 0.3},
    "GENIUS + 1.0 geometry": {"rerank": 0, "reranker": "none", "geometry": 1.0},
    "GENIUS^R, children": {"rerank": 0, "normalizer": "children"},
    "GENIUS^R + 0.3 geometry": {"rerank": 0, "geometry": 0.3},
    "rerank 1000": {"rerank": 1000},
    "rerank 500": {"rerank": 500},
}
SWEEP = (
    ((512,) * 6, 1),
    ((512,) * 6, 4),
    ((512,) * 8, 1),
    ((512,) * 8, 4),
    ((1024,) * 8, 1),
    ((256,) * 8, 1),
    ((4096,) * 4, 1),
    ((128, 256, 512, 1024, 1024, 1024), 1),
)


def feature_set(fashion: Fashion, *, test: bool) -> FeatureSet:
    """Training or test queries over the whole pool."""
    queries = (fashion.held_out == test).nonzero()[:, 0]
    return FeatureSet(
        fashion.queries,
        fashion.pool,
        fashion.pairs,
        [str(i) for i in range(len(fashion.queries))],
        [str(i) for i in range(len(fashion.pool))],
        fashion.tasks,
        TASKS,
    ).take_queries(queries)


class Bench(Lab):
    """Stages and lines are the accuracy benchmark's; the searches are the paper's, with nothing chosen on other queries."""

    def __init__(self, fashion: Fashion, output: Path, config: TrainConfig, limit: int, seconds: float) -> None:
        test = feature_set(fashion, test=True)
        test = test.take_queries(torch.cat([(test.tasks == t).nonzero()[:limit, 0] for t in TASKS]))
        super().__init__(Data(feature_set(fashion, test=False), test, test), config, output, seconds)

    def heads(self) -> None:
        super().heads()
        test = self.data.test
        pool, queries = score_fusion(test.pool).to(self.device), score_fusion(test.queries).to(self.device)
        dense = ten_nearest(queries, pool)
        self.line("encoder alone", "dense", test, dense, dense)

    def search(
        self, name: str, second: QuantizerStage, third: GeneratorStage, modes: dict[str, dict[str, Any]], beams: int = 50
    ) -> None:
        """Every mode on every task over the whole pool of 72,000, the target modality not told."""
        test = self.data.test
        pool, queries = second.embed(test.pool), second.embed(test.queries)
        codes = second.quantizer.encode(pool, test.pool.modality.to(self.device))
        dense = ten_nearest(queries, pool)
        if not any(entry["name"] == name for entry in self.results["lines"]):
            self.line(name, "dense", test, dense, dense)
            self.line(name, "codes, exhaustive", test, by_codes(second.quantizer, codes, queries), dense)
        trie = CodeTrie.build(codes.cpu().numpy(), second.quantizer.config.level_sizes)
        engine = SearchEngine(third.generator, second.quantizer, trie, pool, device=str(self.device))
        for mode, values in modes.items():
            try:
                params = SearchParams(**{"beams": beams, **values})
                k = min(10, params.beams)  # fewer beams answer with fewer items
                engine.search(queries[:256], k=k, params=params)  # warm
                self.sync()
                start = time.monotonic()
                found = [engine.search(z, k=k, params=params) for z in queries.split(512)]
                self.sync()
                speed = len(queries) / (time.monotonic() - start)
                rows, touched = torch.cat([f.rows for f in found]), torch.cat([f.touched for f in found]).float().mean().item()
                self.line(name, mode, test, rows, dense, touched, speed, beams)
            except Exception:
                self.note(failed=mode, name=name)
                traceback.print_exc()

    def sweep(self, second: QuantizerStage) -> None:
        """Codebook shapes on the same z, judged by exhaustive search over the codes alone."""
        test = self.data.test
        pool, queries = second.embed(test.pool), second.embed(test.queries)
        modality = test.pool.modality.to(self.device)
        dense = ten_nearest(queries, pool)
        for sizes, beam in SWEEP:
            shape = QuantizerConfig(width=pool.shape[1], level_sizes=(3, *sizes), encode_beam=beam)
            quantizer = ResidualQuantizer(shape).to(self.device)
            quantizer.initialise(pool, modality, iterations=15)
            codes = quantizer.encode(pool, modality)
            label = f"sweep {sizes[0]}..{sizes[-1]} x {len(sizes)}, encode beam {beam}, ids {torch.unique(codes, dim=0).shape[0]}"
            self.line(label, "codes, exhaustive", test, by_codes(quantizer, codes, queries), dense)


def ten_nearest(queries: Tensor, pool: Tensor) -> Tensor:
    return torch.cat([(q @ pool.T).topk(10).indices for q in queries.split(1024)])


def by_codes(quantizer: ResidualQuantizer, codes: Tensor, queries: Tensor) -> Tensor:
    """The ten best by the unit reconstruction of every code in the pool."""
    return ten_nearest(queries, torch.nn.functional.normalize(quantizer.decode(codes), dim=1))


# -- the table -----------------------------------------------------------------------------------------------------


# Table 4 and the supplement's tables of the paper: each one change of the paper's recipe
ABLATIONS: dict[str, tuple[dict[str, Any], bool]] = {  # name -> (changes, whether the quantizer is trained again)
    "w/o modality-decoupled": ({"model.modality_code": "none"}, True),
    "w/o query augmentation": ({"generator.augmentation": "none"}, False),
    "w/o L_cl": ({"quantizer.contrastive_weight": 0.0}, True),
    "w/o L_mse": ({"quantizer.mse_weight": 0.0}, True),
    "classifier modality code": ({"model.modality_code": "classifier"}, True),
    "shared codebook": ({"model.shared": True}, True),
    "256 x 7": ({"model.level_sizes": (3,) + (256,) * 6}, True),
    "512 x 5": ({"model.level_sizes": (3,) + (512,) * 4}, True),
    "decoder tiny": ({"model.decoder": "tiny"}, False),
    "decoder small": ({"model.decoder": "small"}, False),
}


def run(bench: Bench, paper: TrainConfig, parts: list[str], only: str = "") -> None:
    bench.heads()
    ours = bench.config
    second = third = None
    if "main" in parts:
        second = bench.codes(ours, bench.data.train, "default")
    if "sweep" in parts:
        second = second or bench.codes(ours, bench.data.train, "default")
        bench.sweep(second)
    if "main" in parts and second is not None:
        third = bench.decoder(ours, bench.data.train, second, "default")
        bench.search("default recipe", second, third, MODES)
        if "probe" in parts:
            bench.search("default recipe", second, third, PROBES)
        for beams in (1, 5, 10, 20, 30) if "beams" in parts else ():
            bench.search("default recipe", second, third, {mode: MODES[mode] for mode in SHORT}, beams)
    if "paper" not in parts:
        return
    base = bench.codes(paper, bench.data.train, "paper")
    decoder = bench.decoder(paper, bench.data.train, base, "paper")
    bench.search("paper recipe", base, decoder, {m: MODES[m] for m in SHORT}, TABLE_4_BEAMS)
    for name, (changes, again) in ABLATIONS.items():
        if (only and name not in only.split(",")) or bench.left() < 20:
            bench.note(skipped=name)
            continue
        try:
            changed = variant(paper, changes)
            codes = bench.codes(changed, bench.data.train, name) if again else base
            decoder = bench.decoder(changed, bench.data.train, codes, name)
            bench.search(f"paper: {name}", codes, decoder, {mode: MODES[mode] for mode in SHORT}, TABLE_4_BEAMS)
        except Exception:
            bench.note(failed=name)
            traceback.print_exc()


# the default recipe has gone on since docs/results/fashion.md was measured: accuracy.py has it as it is now
AS_MEASURED = {"model.level_sizes": [3, 512] + [4096] * 7, "model.own_books_from": 0, "quantizer.codes_weight": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["features", "pack", "run", "report"])
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--towers", type=Path, help="a folder of unpacked wheels, where the packages are not installed")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--config", default=str(HERE / "fashion.toml"))
    parser.add_argument("--paper", default=str(HERE / "fashion-paper.toml"))
    parser.add_argument("--set", action="append", default=[], help="one field of both configs, name=JSON")
    parser.add_argument("--parts", default="main,beams,paper")
    parser.add_argument("--only", default="", help="only these lines of the ablation tables, by comma")
    parser.add_argument("--products", type=int, help="only the first so many products (a trial)")
    parser.add_argument("--queries", type=int, default=1500, help="test queries per task")
    parser.add_argument("--seconds", type=float, default=100_000, help="start no new line after so long")
    args = parser.parse_args()
    if args.step == "features":
        extract(args.photos, args.output, args.towers)
    elif args.step == "pack":
        pack(args.features, args.output)
    elif args.step == "run":
        changes = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
        started = time.monotonic()
        fashion = load(args.features, args.products)
        print(
            json.dumps(
                {"loaded": round(time.monotonic() - started, 1), "pool": len(fashion.pool), "queries": len(fashion.queries)}
            ),
            flush=True,
        )
        config, paper = read_train_config(args.config, AS_MEASURED | changes), read_train_config(args.paper, changes)
        run(Bench(fashion, args.output, config, args.queries, args.seconds), paper, args.parts.split(","), args.only)
    else:
        from fashion_report import report

        report(args.results, args.output)


if __name__ == "__main__":
    main()
