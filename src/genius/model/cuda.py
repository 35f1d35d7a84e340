"""What the installed torch can do on a GPU. Knows versions; nothing of models."""

from __future__ import annotations

from importlib.util import find_spec

import torch

TRITON = find_spec("triton") is not None  # it comes with torch for CUDA, not everywhere
WIDE_SUMS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)  # from there on halves sum to float32
