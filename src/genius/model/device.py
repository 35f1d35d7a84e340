"""Where a model runs: "auto" is a GPU if torch can use one, else the CPU; a device that is not there is refused in one line."""

from __future__ import annotations

import torch

from genius.errors import GeniusError
from genius.model.genius import Genius


def pick_device(name: str | None = "auto") -> torch.device:
    """ "auto", "cpu", "cuda", "cuda:1", "mps" -> a device that this machine has."""
    if name in (None, "auto"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(str(name))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch: no such device, or not built for it
        raise GeniusError(f"cannot use device {name!r}: {str(error).splitlines()[0]}") from None
    return device


def place(model: Genius, device: torch.device | str) -> Genius:
    """Move a model and its encoder, which is no part of its weights."""
    model.to(device)
    if isinstance(model.encoder, torch.nn.Module):
        model.encoder.to(device)
    return model
