"""A fingerprint of weights and settings: equal for equal encoders, whatever file or precision they came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def fingerprint(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None, files: Mapping[str, bytes] | None = None
) -> str:
    """32 hex digits over names, values (as fp32) and settings, in sorted order."""
    digest = hashlib.sha256(json.dumps(settings or {}, sort_keys=True, default=str).encode())
    for name, tensor in sorted(tensors.items()):
        value = tensor.detach().cpu().contiguous()
        value = value.float() if value.is_floating_point() else value
        digest.update(name.encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    for name, content in sorted((files or {}).items()):
        digest.update(name.encode())
        digest.update(content)
    return digest.hexdigest()[:32]
