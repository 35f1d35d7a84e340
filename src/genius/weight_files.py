"""Weights on disk as safetensors, and modules built no larger than their weights. Files and configs may be untrusted.

- The size of a file's header is checked before it is read (also in `genius.weight_arrays`, with digests of whole files).
- Small files hold matrices as int8 with one scale per row (`pack`) and other tensors as half precision; loading gives float32.
  Packing what `unpack` returned changes nothing, so a model keeps its fingerprint.
- `build` makes a module from an untrusted config while counting the numbers it allocates, and stops once they exceed the
  weights. Initial values are zeros, which cost little; the file's weights replace them.
- `check_fit` refuses missing and unknown tensors: a tower with one random layer would still return vectors.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from genius.errors import GeniusError, said
from genius.weight_arrays import SCALE, opened

SMALL = 4096  # smaller tensors are not quantized
HEAD_WIDTH = 64
"""CLIP has one attention head per 64 channels. A state dict does not say."""

M = TypeVar("M")
SLACK_NUMBERS = 1 << 20  # for masks, positions and the like, which are in no file
SLACK_TENSORS = 512

_SIZED = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.arange, torch.eye, torch.randn, torch.rand})
_RANDOM = frozenset({torch.randn, torch.rand})
_FILLS = frozenset(
    {"uniform_", "normal_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_"}
)


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a file, by name, without reading a tensor."""
    with opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a file, by name."""
    with opened(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping


def pack(tensors: Mapping[str, Tensor], half: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Quantize float tensors to int8 with one fp16 scale per row (`NAME.scale`).

    Args:
        tensors: By name.
        half: Tensors whose name contains one of these stay fp16.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        weight = tensor.detach().cpu().float().contiguous()
        if weight.ndim < 2 or weight.numel() < SMALL or any(word in name for word in half):
            out[name] = weight.half()
            continue
        rows = weight.flatten(1)
        scale = (rows.abs().amax(dim=1, keepdim=True) / 127).half().clamp(min=6e-8)  # the least positive half
        out[name] = (rows / scale.float()).round().clamp(-127, 127).to(torch.int8).view(weight.shape)
        out[name + SCALE] = scale[:, 0]
    return out


@contextmanager
def reading_sizes(where: str, what: str) -> Iterator[None]:
    """Turn errors of reading sizes from untrusted tensors into a `GeniusError` of one line."""
    try:
        yield
    except GeniusError:
        raise
    except KeyError as error:
        raise GeniusError(f"{where} is not {what}: tensor {error} is missing") from None
    except (ValueError, IndexError, TypeError, ArithmeticError, RuntimeError):
        raise GeniusError(f"{where} is not {what}: a tensor has another number of dimensions, or none") from None


def depth(state: Mapping[str, Tensor], pattern: str) -> int:
    """Number of layers: 1 + the largest number that the pattern's group matches."""
    return 1 + max((int(m.group(1)) for name in state if (m := re.match(pattern, name))), default=-1)


def heads(width: int, where: str) -> int:
    """Number of attention heads of a tower: one per `HEAD_WIDTH` channels."""
    if width % HEAD_WIDTH:
        raise GeniusError(f"{where} has a tower {width} wide; one head per {HEAD_WIDTH} channels does not fit")
    return width // HEAD_WIDTH


def grid_side(positions: int, where: str) -> int:
    """Patches along one side of a square image, from the number of positions (patches and a class token)."""
    side = math.isqrt(max(0, positions - 1))
    if side * side + 1 != positions:
        raise GeniusError(f"{where} has {positions} image positions, which is no square of patches and a class token")
    return side


def fingerprint(tensors: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None) -> str:
    """32 hex digits over names, values (as fp32) and settings, in sorted order."""
    digest = hashlib.sha256(json.dumps(settings or {}, sort_keys=True, default=str).encode())
    for name, tensor in sorted(tensors.items()):
        value = tensor.detach().cpu().contiguous()
        if value.is_floating_point():
            value = value.float()
        digest.update(name.encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def build(make: Callable[[], M], shapes: Mapping[str, Sequence[int]], where: str) -> M:
    """Build a module whose sizes come from an untrusted config. Its weights are zeros, for the caller to load.

    Args:
        make: Builds the module.
        shapes: Shapes of the tensors that will fill it; the module may allocate little more.
        where: Begins the error.

    Raises:
        GeniusError: If the module would be larger than its weights, or the sizes are impossible.
    """
    try:
        with _Frame(shapes):
            return make()
    except GeniusError:
        raise
    except _Exceeded:
        raise GeniusError(f"{where}: the config describes a larger model than the weights") from None
    except Exception as error:  # impossible sizes raise almost anything
        raise GeniusError(f"{where}: the config describes no valid model ({said(error)})") from None


def check_fit(module: nn.Module, shapes: Mapping[str, Sequence[int]], where: str) -> None:
    """Check that a file holds every tensor of the module with its shape, and no other.

    Raises:
        GeniusError: With the first tensor that differs.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    missing = sorted(expected.keys() - shapes.keys())
    unknown = sorted(shapes.keys() - expected.keys())
    wrong = sorted(name for name in expected.keys() & shapes.keys() if expected[name] != tuple(shapes[name]))
    if missing or unknown or wrong:
        first = (missing or unknown or wrong)[0]
        raise GeniusError(
            f"{where} does not fit its config: {len(missing)} tensors missing, {len(unknown)} unknown, "
            f"{len(wrong)} of other shapes (first: {first})"
        )


class _Exceeded(Exception):
    pass


class _Frame(TorchFunctionMode):
    """Counts the numbers that torch functions allocate, before they do; replaces random values by zeros."""

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self.numbers = 4 * sum(math.prod(shape) for shape in shapes.values()) + SLACK_NUMBERS
        self.tensors = 16 * len(shapes) + SLACK_TENSORS

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _SIZED:
            options = {name: value for name, value in kwargs.items() if name != "generator"}
            planned = func(*args, **{**options, "device": "meta"})  # takes no memory
            self.numbers -= planned.numel()
            self.tensors -= 1
            if self.numbers < 0 or self.tensors < 0:
                raise _Exceeded
            if func in _RANDOM:
                return torch.zeros(planned.shape, dtype=kwargs.get("dtype"), device=kwargs.get("device"))
        elif getattr(func, "__name__", "") in _FILLS:
            target = args[0] if args else kwargs["tensor"]
            target.detach().zero_()  # not left as it is: some draw again until the values please them
            return target
        return func(*args, **kwargs)
