"""Weights on disk as safetensors: the header is looked at before anything is read, and every failure is one line."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from genius.errors import GeniusError
from genius.files import open_plain

MAX_HEADER = 16 << 20
"""Bytes. A header names the tensors: some hundred bytes each."""


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in the file, without reading one."""
    _check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError, RuntimeError) as error:
        raise GeniusError(f"cannot read the weights {path}: {_first_line(error)}") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor in the file."""
    _check_header(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise GeniusError(f"cannot read the weights {path}: {_first_line(error)}") from None


def _check_header(path: Path) -> None:
    try:
        with open_plain(path) as file:
            start = file.read(8)
    except FileNotFoundError:
        raise GeniusError(f"cannot read the weights {path}: no such file") from None
    except OSError as error:
        raise GeniusError(f"cannot read the weights {path}: {error.strerror or error}") from None
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > MAX_HEADER:
        claim = f"its header claims {length:,} bytes" if len(start) == 8 else "it is cut off"
        raise GeniusError(f"cannot read the weights {path}: {claim}")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
