"""Weights on disk as safetensors: the header is looked at before anything is read, and every failure is one line.

`digests.json` says what the files beside it looked like when they were written, and is compared when they are loaded: it
notices a flipped bit or an exchanged file; a folder without one is read as it is. Configs are left out, so that they can be
edited by hand: they are checked against the weights themselves.

Small files hold matrices as int8 with one scale per row (`pack`), the rest as half precision. What is loaded is float32 again.
Packing what `unpack` gave changes nothing, so a model that was loaded from a small file saves to the same values and keeps its
fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from genius.errors import GeniusError
from genius.files import open_plain, read_json, write_whole

MAX_HEADER = 16 << 20
"""Bytes. A header names the tensors: some hundred bytes each."""

DIGESTS = "digests.json"
_COVERED = frozenset({".safetensors", ".onnx", ".model", ".txt", ".pth"})
_TOKENIZERS = frozenset({"tokenizer.json", "vocab.json"})
SCALE = ".scale"  # suffix of the per-row scales of an int8 matrix
SMALL = 4096  # tensors of fewer values are not worth a scale


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


def write_digests(folder: Path, names: Iterable[str] | None = None) -> None:
    """Note the digests of these files; by default of all weights and words in the folder itself (not in those below it)."""
    if names is None:
        names = (path.name for path in folder.iterdir() if path.is_file() and _covered(path))
    body = {"sha256": {name: _digest(folder / name) for name in sorted(names)}}
    write_whole(folder / DIGESTS, lambda path: path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8"))


def check_digests(folder: Path) -> None:
    """One clear line if a file is not as it was written."""
    path = folder / DIGESTS
    try:
        body = read_json(path, 1 << 20)
    except FileNotFoundError:
        return
    noted = body.get("sha256") if isinstance(body, dict) else None
    if not isinstance(noted, dict) or not all(isinstance(digest, str) for digest in noted.values()):
        raise GeniusError(f"{path} does not hold digests")
    for name, digest in noted.items():
        if Path(name).name != name:
            raise GeniusError(f"{path} names {name!r}, which is no file beside it")
        if not (folder / name).is_file():
            raise GeniusError(f"{folder / name} is missing: {DIGESTS} lists it")
        if _digest(folder / name) != digest:
            raise GeniusError(f"{folder / name} is damaged or was exchanged: its digest is not the one in {DIGESTS}")


def _covered(path: Path) -> bool:
    return path.suffix in _COVERED or path.name in _TOKENIZERS


def _digest(path: Path) -> str:
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise GeniusError(f"cannot read {path}: {error.strerror or error}") from None


def pack(tensors: Mapping[str, Tensor], half: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """float tensors -> int8 rows and fp16 scales (`NAME.scale`). Names that hold a word of `half` stay fp16 throughout."""
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().float().contiguous()
        if plain.ndim < 2 or plain.numel() < SMALL or any(word in name for word in half):
            out[name] = plain.half()
            continue
        rows = plain.flatten(1)
        scale = (rows.abs().amax(dim=1, keepdim=True) / 127).half().clamp(min=6e-8)  # the least positive half
        out[name] = (rows / scale.float()).round().clamp(-127, 127).to(torch.int8).view(plain.shape)
        out[name + SCALE] = scale[:, 0]
    return out


def plain_names(stored: Mapping[str, object]) -> list[str]:
    """The names in a file without those of the scales."""
    return [name for name in stored if not (name.endswith(SCALE) and name.removesuffix(SCALE) in stored)]


def unpack(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The float32 tensors of a file that `pack`, or plain saving, wrote."""
    out = {}
    for name in plain_names(stored):
        scale = stored.get(name + SCALE)
        value = stored[name]
        if scale is not None and (value.ndim < 2 or scale.shape != value.shape[:1]):
            raise GeniusError(f"the weights {name} of shape {tuple(value.shape)} has scales of shape {tuple(scale.shape)}")
        out[name] = value.float() if scale is None else value * scale.float().view(-1, *(1,) * (value.ndim - 1))
    return out
