"""Trains the quantizer stage for a few steps; run alone or by two processes, it must end at the same weights."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from train_fixtures import small_config, small_data

from genius.train.encoder import HeadsStage
from genius.train.loop import Runtime, make_accelerator, run_stage
from genius.train.progress import Journal
from genius.train.quantizer import QuantizerStage


def main(output: Path) -> None:
    torch.set_num_threads(1)
    # no dropout: every process draws its own; and no layers that start at zero: Adam blows up rounding in gradients of about 0
    config = small_config(
        output, encoder__steps=3, quantizer__steps=4, quantizer__quantize_from=0.0, model__width=16,
        encoder__dropout=0.0, quantizer__as_published=True,
    )  # fmt: skip
    accelerator = make_accelerator("cpu")
    runtime = Runtime(accelerator, Journal(output, quiet=True, active=accelerator.is_main_process), 0, config.run)
    data = small_data()
    first = HeadsStage(data, None, 16, config.encoder, 0, runtime.device)
    run_stage(first, config.encoder, runtime, output / "encoder")
    second = QuantizerStage(data, None, config.model, config.quantizer, 0, runtime.device)
    run_stage(second, config.quantizer, runtime, output / "quantizer")
    if runtime.main:
        tensors = {**first.state_dict(), **second.state_dict()}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, output / "result.safetensors")
        (output / "world").write_text(str(runtime.world))
    accelerator.wait_for_everyone()
    if runtime.world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
