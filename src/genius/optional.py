"""torch, which an extra brings: everything that needs it and does not find it says so in one line."""

from __future__ import annotations

import importlib.util
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
