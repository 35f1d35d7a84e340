"""Features and z where a stage can reach them: on its device while they are few, else left on the disk and brought row by row.

M-BEIR's candidates are 17 GB in half precision and 34 GB in single, on every card; a step needs some megabytes of them. Knows
features and devices; nothing of stages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from genius.features import Features

HELD = 4 << 30  # bytes of float32 vectors that are kept on the device as a whole
CHUNK = 8192  # rows that are embedded at once


class Points(Protocol):
    """z by row, on the training device: a tensor, or what makes the rows that are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor: ...


class Rows:
    """Features by row, float32 on `device` whenever they are asked for."""

    def __init__(self, features: Features, device: torch.device) -> None:
        whole = 4 * len(features) * (features.image.shape[1] + features.text.shape[1]) <= HELD
        self.features = features.to(device, torch.float32) if whole else features
        self.device, self.whole = device, whole
        self.modality = features.modality.to(device)  # (N,)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Tensor | slice) -> Features:
        if self.whole:
            return self.features[rows]
        place = rows.to(self.features.image.device) if isinstance(rows, Tensor) else rows
        return self.features[place].to(self.device, torch.float32)


class Embedded:
    """z (N, D) of `rows`: made once and kept while it is small, else made anew of the rows that are asked for."""

    def __init__(self, rows: Rows, embed: Callable[[Features], Tensor], width: int) -> None:
        self.rows, self.embed = rows, embed
        self.kept = self[:] if 4 * len(rows) * width <= HELD else None

    kept: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor:
        if self.kept is not None:
            return self.kept[rows]
        wanted = torch.arange(len(self))[rows] if isinstance(rows, slice) else rows
        return torch.cat([self.embed(self.rows[part]) for part in wanted.split(CHUNK)])
