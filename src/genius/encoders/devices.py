"""Where a model or an encoder runs, and in which precision: the one place that asks which devices there are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from genius.errors import GeniusError

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def find_device(name: str = "auto", share: int = 0) -> torch.device:
    """cpu, cuda, cuda:N, or auto: a GPU where there is one, and for process number `share` the next one in turn."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda", share % count) if count else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise GeniusError(f"no device {name!r}: use auto, cpu, cuda or cuda:N") from None
    if device.type == "mps" and torch.backends.mps.is_available():
        return device
    if device.type not in ("cpu", "cuda"):
        raise GeniusError(f"no device {name!r}: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= count:
        raise GeniusError(f"device {name!r}, but this machine has {count or 'no'} GPU{'s' * (count > 1)} that torch can use")
    return device


def device_of(encoder: object) -> torch.device:
    """Where the encoder's weights are; encoders without any run on the CPU."""
    if isinstance(encoder, torch.nn.Module):
        for tensor in (*encoder.parameters(), *encoder.buffers()):
            return tensor.device
    return torch.device("cpu")


def precision(encoder: object, name: Precision) -> AbstractContextManager[Any]:
    """Inside, the encoder's large products run in this precision; its vectors come out as they always do."""
    if name == "fp32":
        return nullcontext()
    if name not in PRECISIONS:
        raise GeniusError(f"no precision {name!r}: use fp32, {', '.join(PRECISIONS)}")
    return torch.autocast(device_of(encoder).type, PRECISIONS[name])
