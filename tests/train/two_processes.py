"""Trains all three stages for a few steps; run alone or by two processes, it must end at the same weights."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from train_fixtures import change_recipe, small_config, small_data

from genius.model.quantizer import ResidualQuantizer
from genius.train import generator, train_stages
from genius.train.config import RECIPES, RecipeName
from genius.train.journal import Journal
from genius.train.loop import Runtime, training_device, wait_for_all
from genius.train.losses import rank, world_size

KINDS = {
    "ours": {},  # hard negatives, refit codebooks, moved items
    "paper": {"generator__inputs": "linear", "model__recipe": "paper", "quantizer__hard_negatives": 0},
}
CONSTANTS: dict[RecipeName, dict[str, Any]] = {"default": {"start_from_sum": False}, "paper": {"positives": "fixed"}}


def main(output: Path, kinds: Sequence[str]) -> None:
    torch.set_num_threads(1)
    for name, changes in CONSTANTS.items():
        change_recipe(name, **changes, quantizer=dataclasses.replace(RECIPES[name].quantizer, clip=0.0))
    plain = generator.generator_config
    generator.generator_config = lambda model: dataclasses.replace(plain(model), dropout=0.0)
    for kind in kinds:
        (output / kind).mkdir(exist_ok=True)
        end = run(kind, output / kind)
    if end > 1:
        torch.distributed.destroy_process_group()


def run(kind: str, output: Path) -> int:
    """Train one kind; how many processes did."""
    # no dropout: every process draws its own; and no layers that start at zero: Adam blows up rounding in gradients of about 0
    settings = {
        "encoder__steps": 3, "encoder__dropout": 0.0, "encoder__train": "heads", "quantizer__steps": 9,
        "model__level_sizes": [3, 60, 40],  # more than a step uses: codes die and are put somewhere else
        "quantizer__quantize_from": 0.0, "generator__steps": 4,
        "generator__batch": 32, "generator__lr": 1e-4,
        "model__width": 16, "quantizer__hard_negatives": 1, **KINDS[kind],
    }  # fmt: skip
    config = small_config(output, **settings)
    runtime = Runtime(training_device("cpu"), Journal(output, quiet=True, active=rank() == 0), 0, config.run)
    if rank() > 0:  # k-means elsewhere adds in another order, and here finds something else altogether
        import genius.model.quantizer as module

        module.fit_codebooks = lambda *_: (_ for _ in ()).throw(AssertionError("codebooks are fitted by the first process alone"))
    revived: list[int] = []
    plain = ResidualQuantizer._revive
    ResidualQuantizer._revive = lambda self, book, block, rows, *rest: (  # type: ignore[method-assign]
        revived.append(len(rows)),
        plain(self, book, block, rows, *rest),
    )[1]
    trained = train_stages(config, small_data(), runtime, output / "training")
    ResidualQuantizer._revive = plain  # type: ignore[method-assign]
    assert sum(revived) > 0, "no code died: this says nothing of where dead ones are put"
    assert trained.heads is not None
    tensors = {
        **trained.model.network.state_dict(),
        **{f"heads.{name}": tensor for name, tensor in trained.heads.state_dict().items()},
    }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, output / f"result-{rank()}.safetensors")
    (output / f"world-{rank()}").write_text(str(world_size()))
    wait_for_all()
    return world_size()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
