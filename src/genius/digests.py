"""`digests.json`: what the files of weights beside it looked like when they were written. Compared when they are loaded.

Notices a flipped bit or an exchanged file; a folder without one is read as it is. Configs are left out, so that they can be
edited by hand: they are checked against the weights themselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from genius.errors import GeniusError
from genius.files import open_plain, read_json, write_whole

DIGESTS = "digests.json"
_COVERED = frozenset({".safetensors", ".onnx", ".model", ".txt", ".pth"})
_TOKENIZERS = frozenset({"tokenizer.json", "vocab.json"})


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
