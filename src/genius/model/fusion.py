"""Fusion h(x, y): image and text vectors -> one unit vector z (paper 4.2.1).

Knows nothing of codes or items. The layer shapes are CLIP4Cir's Combiner, as published, so that the
published weights load one to one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.features import Features


@dataclass(frozen=True, slots=True)
class FusionConfig:
    """Sizes of the fusion module; the defaults are the published ones."""

    width: int = 768  # of the encoder's vectors and of z
    projection: int = 2560  # of each modality before they are joined
    hidden: int = 5120  # of the two MLPs after the join


class Fusion(nn.Module):
    """h(x, y) = lambda x + (1 - lambda) y + MLP([x; y]), lambda from a second MLP. Output has unit length."""

    def __init__(self, config: FusionConfig) -> None:
        super().__init__()
        self.config = config
        width, projection, hidden = config.width, config.projection, config.hidden
        self.project_text = nn.Linear(width, projection)
        self.project_image = nn.Linear(width, projection)
        self.mix_hidden = nn.Linear(2 * projection, hidden)
        self.mix_output = nn.Linear(hidden, width)
        self.balance_hidden = nn.Linear(2 * projection, hidden)
        self.balance_output = nn.Linear(hidden, 1)

    def forward(self, features: Features) -> Tensor:
        """(N, width) unit vectors. A missing modality enters as exact zeros (the biases still fire, as published)."""
        image, text = features.masked()
        joined = torch.cat([F.relu(self.project_text(text)), F.relu(self.project_image(image))], dim=1)
        balance = torch.sigmoid(self.balance_output(F.relu(self.balance_hidden(joined))))  # lambda, (N, 1)
        mixed = self.mix_output(F.relu(self.mix_hidden(joined)))
        return F.normalize(mixed + balance * text + (1 - balance) * image, dim=1)  # 4.2.1


def score_fusion(features: Features) -> Tensor:
    """The encoder's own embedding phi = psi_image + psi_text (Eq. 2), unit length: the dense baseline CLIP-SF."""
    image, text = features.masked()
    return F.normalize(image + text, dim=1)
