"""A torch module as a tower (`genius.encoders.towers.Tower`)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from genius.weight_files import fingerprint


class ModuleTower:
    """Reads the first input alone."""

    def __init__(self, module: nn.Module, width: int) -> None:
        self.module = module.eval().requires_grad_(False)
        self.width = width

    @torch.no_grad()
    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        out: Tensor = self.module(next(iter(inputs.values())))
        return out if out.ndim == 2 else out.mean(1)

    def digest(self) -> str:
        return fingerprint(self.module.state_dict())
