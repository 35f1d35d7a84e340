"""torch, which an extra brings: what needs it and does not find it says so in one line; parts that need it are loaded late."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from genius.errors import GeniusError


def import_torch(what: str) -> Any:
    """The torch module.

    Args:
        what: Begins the error where it is not installed: what needs it.

    Raises:
        GeniusError: If torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise GeniusError(f"{what} needs torch: pip install 'genius-search[torch]'") from None
    return torch


def has_torch() -> bool:
    """Whether torch is installed; it is not imported."""
    try:
        return importlib.util.find_spec("torch") is not None
    except ImportError:
        return False


@dataclass(frozen=True, slots=True)
class LazyPart:
    """A part of a model that is loaded when a search first needs it: a generator or a quantizer.

    Args:
        config: Of the part: widths, numbers of codes.
        load: Gives the part.
        modality_log_probs: Of a generator: queries z (Q, D) -> (Q, 3) log-probabilities of its first step, without loading it.
    """

    config: Any
    load: Callable[[], Any]
    modality_log_probs: Callable[[Any], Any] | None = None
