"""Checkpoints that appear whole or not at all.

A checkpoint is a folder, written under another name and renamed: a kill at any moment leaves either the old or the new
one. Knows files and tensors; nothing of stages.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from genius.errors import GeniusError
from genius.torch_file import read_torch_file

PREFIX = "step-"
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.pt"
PROGRESS = "progress.json"


def save_checkpoint(
    folder: Path, step: int, weights: dict[str, Tensor], optimizer: dict[str, Any], progress: dict[str, Any]
) -> Path:
    """Write `folder/step-N` and remove older checkpoints. If the disk is full, the previous one stays."""
    target = folder / f"{PREFIX}{step:09d}"
    temporary = folder / f".writing-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, temporary / WEIGHTS)
        torch.save(_cpu(optimizer), temporary / OPTIMIZER)
        (temporary / PROGRESS).write_text(json.dumps({"step": step, **progress}), encoding="utf-8")
        for path in temporary.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    except (OSError, RuntimeError, SafetensorError) as error:  # torch words it in its own way for a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        kept = "What is done is kept: start again when there is space"
        raise GeniusError(f"cannot write the checkpoint {target}: {reason}. {kept}") from None
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)  # from here on the new one counts
    for old in folder.iterdir():
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    return target


def _cpu(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.detach().cpu()
    if isinstance(state, dict):
        return {name: _cpu(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_cpu(value) for value in state)
    return state


def latest_checkpoint(folder: Path) -> Path | None:
    checkpoints = sorted(folder.glob(f"{PREFIX}*"))
    if not checkpoints:
        return None
    return checkpoints[-1]


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """(weights, optimizer state, progress). The optimizer file is read without running any code from it."""
    try:
        weights = load_file(path / WEIGHTS)
        optimizer = read_torch_file(path / OPTIMIZER)
        progress = json.loads((path / PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise GeniusError(f"cannot read the checkpoint {path}: {error}; delete it to start the stage again") from None
    return weights, optimizer, progress
