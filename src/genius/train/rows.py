"""Features where a stage can reach them: on its device while they are few, else left on the disk and brought row by row.

M-BEIR's candidates are 17 GB in half precision and 34 GB in single, on every card; a step needs some megabytes of them. Knows
features and devices; nothing of stages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genius.features import Features

HELD = 4 << 30  # bytes of float32 vectors that are kept on the device as a whole


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
