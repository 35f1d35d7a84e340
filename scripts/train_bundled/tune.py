"""Step 4, optional: some minutes more for the generator alone, from the feature sets of `features.py`; a CPU will do.

    python scripts/train_bundled/tune.py --model MODEL --features OUT/features-train --out TUNED --seconds 600

Encoder, fusion and codebooks stay as they are. The generator follows the dense ranking *among candidates of the modality that
is asked for*: which one that is, the first code should be sure of, and the next ones should be where dense search looks.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from finish import train_generator
from torch import Tensor

from genius.data.features import FeatureSet
from genius.model.genius import Genius
from genius.train.config import GeneratorStageConfig, ModelConfig
from genius.train.generator import GeneratorStage, freeze

CANDIDATES = 24


def nearest_of_kind(queries: Tensor, wanted: Tensor, pool: Tensor, modality: Tensor) -> Tensor:
    """(Q, CANDIDATES) rows of the pool, best first, of the modality that each question asks for."""
    out = torch.empty(len(queries), CANDIDATES, dtype=torch.long)
    for kind in wanted.unique().tolist():
        rows, own = (modality == kind).nonzero()[:, 0], (wanted == kind).nonzero()[:, 0]
        vectors = pool[rows].T.contiguous()
        for part in own.split(1024):
            out[part] = rows[(queries[part] @ vectors).topk(CANDIDATES, dim=1).indices]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "features", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    started = time.time()

    def log(text: str) -> None:
        print(f"[{time.time() - started:6.1f}] {text}", flush=True)

    model, data = Genius.from_pretrained(args.model), FeatureSet.load(args.features)
    config = model.config
    frozen = freeze(lambda features: model.embed(features)[0], data, model.quantizer, False)
    training = GeneratorStageConfig(
        steps=1,
        batch=args.batch,
        lr=args.lr,
        indexing=1.0,
        virtual=0.0,
        keep=0.7,
        distill_weight=0.0,
        distill_candidates=CANDIDATES,
    )
    sizes = ModelConfig(
        width=config.width,
        level_sizes=config.generator.level_sizes,
        decoder="compact",
        prefix_tokens=config.generator.prefix_tokens,
    )
    stage = GeneratorStage(data, None, frozen, None, model.quantizer, sizes, training, 1)
    stage.generator.load_state_dict(model.generator.state_dict())
    first = stage.positives.rows[stage.positives.starts]
    stage.near = nearest_of_kind(frozen.queries, frozen.modality[first], frozen.pool, frozen.modality)
    object.__setattr__(stage.config, "distill_weight", 1.0)
    log(f"{len(frozen.queries):,} questions, their nearest candidates known")
    train_generator(stage, args.seconds, log)
    model.generator.load_state_dict(stage.generator.state_dict())
    model.eval()
    model.save_pretrained(args.out, dtype=torch.int8)
    log("saved")


if __name__ == "__main__":
    main()
