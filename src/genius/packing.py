"""Weights in small files: matrices as int8 with one scale per row, the rest as half precision. Files only.

What is loaded is float32 again. Packing what `unpack` gave changes nothing, so a model that was loaded from a small
file saves to the same values and keeps its fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from genius.errors import GeniusError

SCALE = ".scale"  # suffix of the per-row scales of an int8 matrix
SMALL = 4096  # tensors of fewer values are not worth a scale


def pack(tensors: Mapping[str, Tensor], half: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """float tensors -> int8 rows and fp16 scales (`NAME.scale`). Names that hold a word of `half` stay fp16 throughout."""
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().float().contiguous()
        if plain.ndim < 2 or plain.numel() < SMALL or any(word in name for word in half):
            out[name] = plain.half()
            continue
        rows = plain.flatten(1)
        scale = (rows.abs().amax(dim=1, keepdim=True) / 127).half().clamp(min=6e-8)  # the least positive half
        out[name] = (rows / scale.float()).round().clamp(-127, 127).to(torch.int8).view(plain.shape)
        out[name + SCALE] = scale[:, 0]
    return out


def plain_names(stored: Mapping[str, object]) -> list[str]:
    """The names in a file without those of the scales."""
    return [name for name in stored if not (name.endswith(SCALE) and name.removesuffix(SCALE) in stored)]


def unpack(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The float32 tensors of a file that `pack`, or plain saving, wrote."""
    out = {}
    for name in plain_names(stored):
        scale = stored.get(name + SCALE)
        value = stored[name].float()
        if scale is not None and (value.ndim < 2 or scale.shape != value.shape[:1]):
            raise GeniusError(f"the weights {name} of shape {tuple(value.shape)} has scales of shape {tuple(scale.shape)}")
        out[name] = value if scale is None else value * scale.float().view(-1, *(1,) * (value.ndim - 1))
    return out
