"""The decoder, codes and fusion of `bundled:mini`, over the vectors of its frozen encoder (`lab.icons.vectors`).

    python -m lab.bundled ICONS OUT            trains twice: OUT/measured on the training queries alone (and measures it), then
                                               OUT/shipped, which has seen the test queries too and is what people get
    ... --keep bundled:mini                    the shipped one keeps the fusion and the codes of a model: only its decoder is new

Validation queries, which the encoder has never seen, give the offsets and the judgement in both. Sizes are small enough to be
committed. Install with `cp OUT/shipped/{config.json,model.safetensors} src/genius/bundled/mini/`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from genius.config import to_dict
from genius.data.features import FeatureSet
from genius.features import Features
from genius.model.genius import Genius
from genius.train import Trained, train
from genius.train.config import TrainConfig, read_train_config
from genius.train.generator import GeneratorStage
from genius.train.handover import assemble, freeze
from genius.train.holdout import split_given
from genius.train.journal import Journal
from genius.train.loop import Runtime, run_stage, training_device
from genius.train.quantizer import QuantizerStage
from lab import provenance
from lab.accuracy import METHODS, Bench, Data
from lab.icons.vectors import load

CHANGES: dict[str, Any] = {"model.decoder": "compact", "model.level_sizes": [3, *[512] * 8], "search.rerank": 2000}


def both(one: FeatureSet, other: FeatureSet) -> FeatureSet:
    """The queries of two sets over the same pool."""
    pairs = torch.cat([one.pairs, other.pairs + torch.tensor([len(one.queries), 0])])
    ids = [*one.query_ids, *other.query_ids]
    queries = Features.cat([one.queries, other.queries])
    return FeatureSet(queries, one.pool, pairs, ids, one.pool_ids, torch.cat([one.tasks, other.tasks]), one.names)


def fit(data: FeatureSet, honest: FeatureSet, config: TrainConfig, output: Path) -> Trained:
    honest.save(output / "honest")
    config = dataclasses.replace(config, output=str(output / "run"), held_out_data=str(output / "honest"))
    trained = train(config, data, quiet=True)
    trained.model.save_pretrained(output, dtype=torch.float16, encoder=False)
    return trained


def decoder_anew(model: Genius, data: FeatureSet, honest: FeatureSet, config: TrainConfig, output: Path) -> Trained:
    """Stage 3 alone, on the fusion and the codes of `model`."""
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, width=data.pool.image.shape[1]))
    runtime = Runtime(training_device(config.device), Journal(output / "run", quiet=True), config.seed, config.run)
    parts = split_given(data, honest, config.seed)
    second = QuantizerStage(parts.train, parts.validation, config.model, config.quantizer, config.seed, runtime.device)
    second.fusion.load_state_dict(model.fusion.state_dict())
    second.quantizer.load_state_dict(model.quantizer.state_dict())
    second.to(runtime.device).eval()
    frozen, judged = freeze(second, parts, config)
    third = GeneratorStage(parts.train, frozen, judged, second.quantizer, config.model, config.generator, config.seed)
    run_stage(third, config.generator, runtime, output / "run" / "generator")
    trained = assemble(config, second, third.eval())
    trained.save_pretrained(output, dtype=torch.float16, encoder=False)
    return Trained(trained, None, {"generator": third.validate()}, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("icons", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--keep", help="a model whose fusion and codes the shipped one keeps")
    args = parser.parse_args()
    parts, config = load(args.icons), read_train_config("builtin:default", CHANGES)
    measured = fit(parts["train"], parts["val"], config, args.output / "measured")
    about = {
        "data": "icons",
        **provenance(),
        "changes": CHANGES,
        "config_name": "builtin:default",
    }
    bench = Bench(Data(parts["train"], parts["test"], parts["val"]), config, args.output / "measured.json", about)
    bench.measure("bundled:mini", config.seed, measured, parts["test"], METHODS)
    seen, output = both(parts["train"], parts["test"]), args.output / "shipped"
    if args.keep:
        shipped = decoder_anew(Genius.from_pretrained(args.keep), seen, parts["val"], config, output)
    else:
        shipped = fit(seen, parts["val"], config, output)
    card = {"config": to_dict(config), "training": shipped.metrics}
    (args.output / "shipped.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
