"""SHA-256 digests of weight files: `digests.json` lists those of the files next to it, and they are compared at loading.

Configs have no digest, so that they can be edited: they are checked against the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from genius.files import open_regular, read_json, reading, write_whole

DIGESTS = "digests.json"
_COVERED = frozenset({".safetensors", ".onnx", ".model", ".txt", ".pth"})
_TOKENIZERS = frozenset({"tokenizer.json", "vocab.json"})


def write_digests(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write `digests.json`.

    Args:
        folder: Where the files are.
        names: The files; by default all weights and tokenizers in the folder, subfolders excluded.
    """
    if names is None:
        names = (path.name for path in folder.iterdir() if path.is_file() and _covered(path))
    body = {"sha256": digest_files(folder, names)}
    write_whole(folder / DIGESTS, lambda path: path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8"))


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
