"""Building a module whose sizes a stranger wrote down: no larger than the weights that are really there.

A config is a few bytes, and may ask for a terabyte, for a million layers, or for nonsense. Here a module is built while
the numbers it asks for are counted, and stopped once they exceed what its file of weights holds. Random starting values
are zeros, which cost next to nothing: the file's come over them. Knows nothing of any particular model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from genius.errors import GeniusError

M = TypeVar("M")
SLACK_NUMBERS, SLACK_TENSORS = 1 << 20, 512  # for masks, positions and the like, which are in no file

_SIZED = frozenset({torch.empty, torch.zeros, torch.ones, torch.randn, torch.rand})
_RANDOM = frozenset({torch.randn, torch.rand})
_FILLS = frozenset(
    {"uniform_", "normal_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_"}
)


def build(make: Callable[[], M], shapes: Mapping[str, Sequence[int]], where: str) -> M:
    """What `make` builds, if the tensors of `shapes` can fill it; else one line that begins with `where`.

    The caller loads every weight: those here are zeros.
    """
    try:
        with _Frame(shapes):
            return make()
    except GeniusError:
        raise
    except _Exceeded:
        raise GeniusError(f"{where}: the sizes that are named make a larger model than the weights fill") from None
    except Exception as error:  # impossible sizes raise almost anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise GeniusError(f"{where}: the sizes that are named make no model ({reason[:200]})") from None


def check_fit(module: nn.Module, shapes: Mapping[str, Sequence[int]], where: str) -> None:
    """Every tensor of the module is in the file with its shape, and no other."""
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    missing, unknown = sorted(expected.keys() - shapes.keys()), sorted(shapes.keys() - expected.keys())
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
    """Counts what factories are asked for, before they are asked; gives zeros for random values."""

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self.numbers = 4 * sum(math.prod(shape) for shape in shapes.values()) + SLACK_NUMBERS
        self.tensors = 16 * len(shapes) + SLACK_TENSORS

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _SIZED:
            size = _size(args, kwargs)
            self._spend(math.prod(size))
            if func in _RANDOM:
                return torch.zeros(size, dtype=kwargs.get("dtype"), device=kwargs.get("device"))
        elif func is torch.full:
            self._spend(math.prod(args[0] if args else kwargs["size"]))
        elif func is torch.arange:
            self._spend(max(0, int(_length(args, kwargs))))
        elif func is torch.eye:
            self._spend(int(args[0]) * int(args[1] if len(args) > 1 else args[0]))
        elif getattr(func, "__name__", "") in _FILLS:
            target = args[0] if args else kwargs["tensor"]
            target.detach().zero_()  # not left as it is: some draw again until the values please them
            return target
        return func(*args, **kwargs)

    def _spend(self, numbers: int) -> None:
        self.numbers -= numbers
        self.tensors -= 1
        if self.numbers < 0 or self.tensors < 0:
            raise _Exceeded


def _size(args: Any, kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    size = kwargs["size"] if "size" in kwargs else args[0] if args and not isinstance(args[0], int) else args
    return tuple(int(n) for n in size)


def _length(args: Any, kwargs: Mapping[str, Any]) -> float:
    start, end = (0, args[0]) if len(args) == 1 else (args[0], args[1]) if args else (kwargs.get("start", 0), kwargs["end"])
    step = args[2] if len(args) > 2 else kwargs.get("step", 1)
    return float((end - start) / step)
