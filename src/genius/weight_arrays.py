"""Weight files without torch: safetensors headers, packed weights, some tensors as arrays, and digests. Files may be untrusted.

`digests.json` lists the SHA-256 digests of the files next to it, and they are compared at loading. Configs have no digest, so
that they can be edited: they are checked against the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from genius.errors import GeniusError
from genius.files import open_regular, read_json, reading, write_json

MAX_HEADER = 4 << 20
"""Bytes. A header names the tensors, some hundred bytes each: the largest encoders have about a thousand."""

SCALE = ".scale"  # suffix of the per-row scales of an int8 matrix
# what the library raises for a file that is no safetensors
BROKEN = (SafetensorError, RuntimeError, TypeError, ValueError, KeyError, MemoryError)
A = TypeVar("A")  # tensors or arrays
DIGESTS = "digests.json"
_COVERED = frozenset({".safetensors", ".onnx", ".model", ".txt", ".pth"})
_TOKENIZERS = frozenset({"tokenizer.json", "vocab.json"})


def check_header(path: Path) -> None:
    """Check the length that a safetensors file gives for its header.

    Raises:
        GeniusError: If there is no such file, or it is cut off, or its header is too large.
    """
    with reading(f"the weights {path}"), open_regular(path) as file:
        start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > MAX_HEADER:
        claim = "it is cut off"
        if len(start) == 8:
            claim = f"its header claims {length:,} bytes"
        raise GeniusError(f"cannot read the weights {path}: {claim}")


@contextmanager
def opened(path: Path, framework: str = "np") -> Iterator[Any]:
    """A safetensors file that may be untrusted; what goes wrong with it is a `GeniusError` of one line.

    Args:
        path: The file.
        framework: np: its tensors are arrays; pt: torch's.
    """
    check_header(path)
    with reading(f"the weights {path}", *BROKEN), safe_open(path, framework=framework) as file:
        yield file


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[np.float32]]:
    """Some weights of a file as float32 arrays.

    Args:
        path: A safetensors file.
        names: Of the weights.

    Raises:
        GeniusError: If the file cannot be read or lacks one of them.
    """
    stored: dict[str, Any] = {}
    with opened(path) as file:
        present = set(file.keys())
        for name in names:
            if name not in present:
                raise GeniusError(f"{path} has no weights {name}")
            stored[name] = file.get_tensor(name)
            if name + SCALE in present:
                stored[name + SCALE] = file.get_tensor(name + SCALE)
    return unpack(stored)


def array_names(path: Path) -> list[str]:
    """Names of the weights in a file, without the scales of packed ones.

    Args:
        path: A safetensors file.

    Raises:
        GeniusError: If the file cannot be read.
    """
    with opened(path) as file:
        return tensor_names(dict.fromkeys(file.keys()))


def tensor_names(stored: Mapping[str, object]) -> list[str]:
    """Names of the tensors in a file, without the scales."""
    return [name for name in stored if not (name.endswith(SCALE) and name.removesuffix(SCALE) in stored)]


def unpack(stored: Mapping[str, A]) -> dict[str, A]:
    """The float32 weights of a file that `pack` or `save_file` wrote.

    Args:
        stored: By name, tensors or numpy arrays.

    Raises:
        GeniusError: If scales do not fit their matrix.
    """
    out: dict[str, A] = {}
    for name in tensor_names(stored):
        value: Any = stored[name]
        scale: Any = stored.get(name + SCALE)
        if scale is not None and (value.ndim < 2 or scale.shape != value.shape[:1]):
            raise GeniusError(f"the weights {name} of shape {tuple(value.shape)} has scales of shape {tuple(scale.shape)}")
        weight = _float32(value)
        if scale is not None:
            weight = weight * _float32(scale).reshape(-1, *(1,) * (value.ndim - 1))
        out[name] = weight
    return out


def _float32(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.astype(np.float32)
    return value.float()


# -- digests -----------------------------------------------------------------------------------------------------


def write_digests(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write `digests.json`.

    Args:
        folder: Where the files are.
        names: The files; by default all weights and tokenizers in the folder, subfolders excluded.
    """
    if names is None:
        names = (path.name for path in folder.iterdir() if path.is_file() and _covered(path))
    write_json(folder / DIGESTS, {"sha256": digest_files(folder, names)}, indent=2)


def digest_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """File name -> digest, in the order of names."""
    return {name: _digest(folder / name) for name in sorted(names)}


def check_digests(folder: Path) -> None:
    """Compare files with `digests.json`, if there is one.

    Raises:
        GeniusError: If a file is missing or differs.
    """
    try:
        body = read_json(folder / DIGESTS, 1 << 20)
    except FileNotFoundError:
        return
    noted = None
    if isinstance(body, dict):
        noted = body.get("sha256")
    check_files(folder, noted, DIGESTS)


def check_files(folder: Path, noted: Any, source: str) -> None:
    """Compare files with their digests.

    Args:
        folder: Where the files are.
        noted: File name -> digest; from a file that may be untrusted.
        source: Name of the file in `folder` that lists them, for errors.

    Raises:
        GeniusError: If a file is missing or differs, or `noted` is no such table.
    """
    path = folder / source
    if not isinstance(noted, dict) or not all(isinstance(digest, str) for digest in noted.values()):
        raise GeniusError(f"{path} does not hold digests")
    for name, digest in noted.items():
        if Path(name).name != name:
            raise GeniusError(f"{path} names {name!r}, which is no file next to it")
        if not (folder / name).is_file():
            raise GeniusError(f"{folder / name} is missing: {source} lists it")
        if _digest(folder / name) != digest:
            raise GeniusError(f"{folder / name} is damaged or was exchanged: its digest is not the one in {source}")


def _covered(path: Path) -> bool:
    return path.suffix in _COVERED or path.name in _TOKENIZERS


def _digest(path: Path) -> str:
    with reading(path), open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
