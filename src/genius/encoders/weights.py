"""Foreign tensors -> a module, exactly: nothing missing, nothing left over, or one line that says what.

Readers of published checkpoints map names first; what they cannot place must not pass in silence, because a tower
with one random layer still gives vectors.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from genius.errors import GeniusError

HEAD_WIDTH = 64
"""CLIP, BLIP and BERT have one attention head per 64 channels. A state dict does not say."""


def load_exactly(module: nn.Module, state: Mapping[str, Tensor], where: str, what: str) -> None:
    """Copy `state` into `module`. Names, then shapes, must agree; the first that does not is named."""
    expected = {name: tensor for name, tensor in module.state_dict().items() if not name.endswith("position_ids")}
    missing = [name for name in expected if name not in state]
    unknown = [name for name in state if name not in expected]
    if missing or unknown:
        raise GeniusError(
            f"{where} is not {what}: {len(missing)} tensors missing, {len(unknown)} unknown (first: {(missing + unknown)[0]})"
        )
    wrong = [name for name, tensor in expected.items() if tensor.shape != state[name].shape]
    if wrong:
        sizes = f"{tuple(state[wrong[0]].shape)} instead of {tuple(expected[wrong[0]].shape)}"
        raise GeniusError(f"{where} is not {what}: {len(wrong)} tensors have another shape (first: {wrong[0]}, {sizes})")
    module.load_state_dict(dict(state), strict=False)


@contextmanager
def reading_sizes(where: str, what: str) -> Iterator[None]:
    """Sizes are read off tensors that a stranger may have shaped: one line for those that are missing or impossible."""
    try:
        yield
    except GeniusError:
        raise
    except KeyError as error:
        raise GeniusError(f"{where} is not {what}: tensor {error} is missing") from None
    except (ValueError, IndexError, TypeError, ArithmeticError, RuntimeError):
        raise GeniusError(f"{where} is not {what}: a tensor has another number of dimensions, or none") from None


def refuse_strangers(strangers: Iterable[str], where: str, what: str) -> None:
    """Tensors that no part of the published model has: this is another model."""
    names = list(strangers)
    if names:
        raise GeniusError(f"{where} is not {what}: {len(names)} tensors unknown (first: {names[0]})")


def depth(state: Mapping[str, Tensor], pattern: str) -> int:
    """1 + the largest number that the pattern's group finds: how many layers there are."""
    return 1 + max((int(m.group(1)) for name in state if (m := re.match(pattern, name))), default=-1)


def heads(width: int, where: str) -> int:
    if width % HEAD_WIDTH:
        raise GeniusError(f"{where} has a tower {width} wide; one head per {HEAD_WIDTH} channels does not fit")
    return width // HEAD_WIDTH


def grid_side(positions: int, where: str) -> int:
    """Patches along one side of a square picture, from the number of positions (patches and a class token)."""
    side = math.isqrt(max(0, positions - 1))
    if side * side + 1 != positions:
        raise GeniusError(f"{where} has {positions} image positions, which is no square of patches and a class token")
    return side


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
