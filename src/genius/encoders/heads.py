"""Heads: the trained part of an encoder whose towers are frozen.

Maps raw tower vectors of any two widths (for example 1280 for pictures, 384 for texts) into one shared width.
Knows nothing of towers, pictures or texts: `genius.encoders.towers` joins it with them, `genius.train.encoder`
trains it with Eq. 2 on features extracted once.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from genius.features import Features


class Head(nn.Module):
    """A linear map plus a small residual MLP on the normalised input."""

    def __init__(self, width_in: int, width_out: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width_in)
        self.project = nn.Linear(width_in, width_out)
        self.hidden = nn.Linear(width_in, hidden)
        self.output = nn.Linear(hidden, width_out)
        nn.init.zeros_(self.output.weight)  # starts as a linear map
        nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, width_in) -> (N, width_out), of length about one: what the fusion's layers expect."""
        x = self.dropout(self.norm(x))
        out: Tensor = self.project(x) + self.output(self.dropout(nn.functional.gelu(self.hidden(x))))
        return out / math.sqrt(out.shape[1])


class Heads(nn.Module):
    """One head per modality."""

    def __init__(self, image_width: int, text_width: int, width: int, hidden: int = 1024, dropout: float = 0.0) -> None:
        super().__init__()
        self.image_width, self.text_width, self.width, self.hidden_width = image_width, text_width, width, hidden
        self.image = Head(image_width, width, hidden, dropout)
        self.text = Head(text_width, width, hidden, dropout)

    def forward(self, towers: Features) -> Features:
        """Raw tower vectors, (N, image_width) and (N, text_width) -> features of one width. Masks pass through."""
        image, text = towers.masked()
        return Features(self.image(image), self.text(text), towers.image_mask, towers.text_mask)

    @torch.no_grad()
    def apply_chunked(self, towers: Features, chunk: int = 8192) -> Features:
        """`forward` for any number of rows, without gradients, results on the CPU."""
        device = self.image.project.weight.device
        parts = [self(towers[i : i + chunk].to(device, torch.float32)).to("cpu") for i in range(0, max(len(towers), 1), chunk)]
        return Features.cat(parts)


HEADS = "heads.safetensors"  # beside a model that was trained on frozen towers' features


def read_heads(path: Path) -> Heads | None:
    """The heads in a file that training wrote; None where there is no such file."""
    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        sizes = {name: int(value) for name, value in (file.metadata() or {}).items() if str(value).isdecimal()}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    heads = Heads(sizes["image_width"], sizes["text_width"], sizes["width"], sizes["hidden"])
    heads.load_state_dict(tensors)
    return heads.eval()
