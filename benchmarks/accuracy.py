"""Accuracy next to exhaustive dense search: the main table, one change at a time, items added after training.

    python benchmarks/accuracy.py fashion --features PACKED --output OUT        (PACKED: see fashion.py)
    python benchmarks/accuracy.py icons   --features FOLDER --output OUT        (train, val, test FeatureSets)

`--parts main,ours,added`. Settings of the search are chosen on dev queries that are not reported. Test products or concepts
are in no training pair. One pool, the wanted modality not told.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from accuracy_lab import MODES, Data, Lab, variant, without_items
from genius.data.features import FeatureSet
from genius.train.config import TrainConfig, read_train_config

HERE = Path(__file__).parent
# each one change of the default recipe: name -> (changes, whether fusion and codebooks are trained again)
OURS: dict[str, tuple[dict[str, Any], bool]] = {
    "w/o indexing pairs": ({"generator.indexing": 0.0}, False),
    "w/o virtual items": ({"generator.virtual": 0.0}, False),
    "w/o both (the paper's pairs)": ({"generator.indexing": 0.0, "generator.virtual": 0.0}, False),
    "w/o soft positives": ({"generator.soft_positives": False}, False),
    "w/o query augmentation": ({"generator.augmentation": "none"}, False),
    "w/o codebooks of each modality": ({"model.own_books_from": 0}, True),
    "w/o L_cl on codes": ({"quantizer.codes_weight": 0.0}, True),
    "w/o codebooks fitted together": ({"quantizer.together": 0, "model.encode_sweeps": 0}, True),
    "w/o points between few items": ({"quantizer.between": 0}, True),
    "w/o own codebooks and L_cl on codes": ({"model.own_books_from": 0, "quantizer.codes_weight": 0.0}, True),
    "w/o hard negatives": ({"quantizer.hard_negatives": 0}, True),
    "w/o refit of the codebooks": ({"quantizer.refit": False}, True),
    "+ dense distillation": ({"generator.distill_weight": 0.5}, False),
    "+ prefix ranking loss": ({"generator.ranking_weight": 0.3}, False),
    "+ label smoothing": ({"generator.label_smoothing": 0.1}, False),
    "+ modality dropout": ({"generator.modality_dropout": 0.2}, False),
    "+ prefix distillation": ({"quantizer.prefix_weight": 1.0}, True),
    "+ beam-encoded IDs": ({"model.encode_beam": 4}, True),
    "6 x 512 codes": ({"model.level_sizes": (3,) + (512,) * 6}, True),
    "growing codebooks": ({"model.level_sizes": (3, 128, 256, 512, 1024, 4096, 4096, 4096, 4096)}, True),
}
LINES = ("default", "default, codes only", "GENIUS^R", "GENIUS", "GENIUS^R, log p", "GENIUS, log p")


def fashion(folder: Path, limit: int, dev: int, products: int | None) -> Data:
    from fashion import feature_set
    from fashion_data import TASKS, load

    photos = load(folder, products)
    test = feature_set(photos, test=True)
    first = torch.cat([(test.tasks == t).nonzero()[:-dev, 0][:limit] for t in TASKS])
    last = torch.cat([(test.tasks == t).nonzero()[-dev:, 0] for t in TASKS])
    return Data(feature_set(photos, test=False), test.take_queries(last), test.take_queries(first))


def icons(folder: Path, limit: int, dev: int, _: int | None) -> Data:
    parts = [FeatureSet.load(folder / f"features-{name}") for name in ("train", "val", "test")]
    for i, count in ((1, dev), (2, limit)):
        kinds = sorted(set(parts[i].tasks.tolist()))
        rows = [(parts[i].tasks == t).nonzero()[:, 0] for t in kinds]
        parts[i] = parts[i].take_queries(torch.cat([r[torch.linspace(0, len(r) - 1, min(count, len(r))).long()] for r in rows]))
    return Data(*parts)


def added(lab: Lab, share: float) -> None:
    """A share of the pool comes after training: the first of it are the test queries' answers, which is what is asked for."""
    test = lab.data.test
    total = len(test.pool)
    random = torch.Generator().manual_seed(lab.config.seed)
    answers = torch.unique(test.pairs[:, 1])
    others = torch.ones(total, dtype=torch.bool)
    others[answers] = False
    rest = others.nonzero()[:, 0]
    order = torch.cat([part[torch.randperm(len(part), generator=random)] for part in (answers, rest)])
    new = torch.zeros(total, dtype=torch.bool)
    new[order[: round(share * total)]] = True
    kept = without_items(lab.data.train, ~new)
    name = f"{100 * share:.0f} % added later"
    second = lab.codes(lab.config, kept, name)
    third = lab.decoder(lab.config, kept, second, name)
    all_new = torch.ones(len(test.queries), dtype=torch.bool)
    all_new[test.pairs[~new[test.pairs[:, 1]], 0]] = False  # a query with an old answer too says nothing about new items
    lab.measure(name, second, third, {m: MODES[m] for m in LINES}, test.take_queries(all_new.nonzero()[:, 0]))


def run(lab: Lab, parts: list[str], only: set[str], shares: list[float]) -> None:
    lab.heads()
    if {"main", "beams", "ours"} & set(parts):
        second = lab.codes(lab.config, lab.data.train, "default")
    if {"main", "beams"} & set(parts):
        third = lab.decoder(lab.config, lab.data.train, second, "default")
        lab.measure("default recipe", second, third)
        for beams in (1, 5, 10, 20, 30) if "beams" in parts else ():
            lab.measure(f"{beams} beams", second, third, {m: MODES[m] for m in ("GENIUS^R", "GENIUS")}, beams=beams)
    for share in shares if "added" in parts else ():
        if lab.left() > 30:
            added(lab, share)
    for name, (changes, again) in OURS.items() if "ours" in parts else ():
        if (only and name not in only) or lab.left() < 25:
            lab.note(skipped=name)
            continue
        changed = variant(lab.config, changes)
        codes = lab.codes(changed, lab.data.train, name) if again else second
        lab.measure(name, codes, lab.decoder(changed, lab.data.train, codes, name), {m: MODES[m] for m in LINES})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["fashion", "icons"])
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--config", help="default: benchmarks/DATA.toml")
    parser.add_argument("--set", action="append", default=[], help="one field of the config, name=JSON")
    parser.add_argument("--parts", default="main,added,ours")
    parser.add_argument("--only", default="", help="only these lines of `ours`, by comma")
    parser.add_argument("--shares", default="0.1,0.3,0.6,0.9", help="of the pool that come after training, for `added`")
    parser.add_argument("--queries", type=int, default=1200, help="test queries per task")
    parser.add_argument("--dev", type=int, default=200, help="dev queries per task")
    parser.add_argument("--products", type=int, help="only the first so many fashion products: a small pool, for a CPU")
    parser.add_argument("--budget", type=int, default=2500, help="items that a search may look at")
    parser.add_argument("--seconds", type=float, default=100_000, help="start no new line after so long")
    args = parser.parse_args()
    changes = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
    config: TrainConfig = read_train_config(args.config or str(HERE / f"{args.data}.toml"), changes)
    data = (fashion if args.data == "fashion" else icons)(args.features, args.queries, args.dev, args.products)
    only = {name for name in args.only.split(",") if name}
    run(
        Lab(data, config, args.output, args.seconds, args.budget),
        args.parts.split(","),
        only,
        [float(share) for share in args.shares.split(",")],
    )


if __name__ == "__main__":
    main()
