"""Features of files on their way into an index, kept on disk while they are made: a run that is broken off goes on from them.

    encoded/encoder.json     whose features they are
    encoded/000001.safetensors   features of some items, float16; their names are in its metadata

Knows items by id and mark (which changes when their file does); nothing of models or tables.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from genius.errors import GeniusError
from genius.features import Features
from genius.files import read_json, write_whole

ABOUT = "encoder.json"
Key = tuple[str, str]  # id and mark of an item


class Encoded:
    """The features of a collection, by item."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        """Take what is in `folder` if this encoder made it; anything else there is thrown away."""
        self.folder, self.files = folder, 0
        self.rows: dict[Key, int] = {}
        self.parts: list[Features] = []
        if not _made_by(folder, fingerprint):
            shutil.rmtree(folder, ignore_errors=True)
            body = json.dumps({"fingerprint": fingerprint}) + "\n"
            write_whole(folder / ABOUT, lambda path: path.write_text(body, encoding="utf-8"))
        for path in sorted(folder.glob("*.safetensors")):
            self._read(path)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, key: Key) -> bool:
        return key in self.rows

    def add(self, keys: Sequence[Key], features: Features) -> None:
        """Keep the features of some items, on disk too."""
        if not keys:
            return
        half = Features(features.image.half(), features.text.half(), features.image_mask, features.text_mask)
        tensors = {"image": half.image, "text": half.text, "image_mask": half.image_mask, "text_mask": half.text_mask}
        path = self.folder / f"{self.files + 1:06}.safetensors"
        names = {"items": json.dumps(list(keys))}
        write_whole(path, lambda target: save_file({k: t.contiguous() for k, t in tensors.items()}, target, metadata=names))
        self._take(keys, half)

    def of(self, keys: Sequence[Key]) -> Features:
        """Features of items that are here, in this order."""
        return self.all()[torch.tensor([self.rows[key] for key in keys], dtype=torch.long)]

    def all(self) -> Features:
        """Every row, by `rows`."""
        if len(self.parts) > 1:
            self.parts = [Features.cat(self.parts)]
        return self.parts[0]

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _take(self, keys: Sequence[Key], features: Features) -> None:
        first = sum(len(part) for part in self.parts)
        self.rows.update((key, first + i) for i, key in enumerate(keys))
        self.parts.append(features)
        self.files += 1

    def _read(self, path: Path) -> None:
        try:
            with safe_open(path, "pt") as file:  # type: ignore[no-untyped-call]
                keys = [(str(name), str(mark)) for name, mark in json.loads(file.metadata()["items"])]
                tensors = [file.get_tensor(name) for name in ("image", "text", "image_mask", "text_mask")]
        except Exception as error:
            raise GeniusError(f"cannot read {path}: {str(error).splitlines()[0]}; delete {path.parent} and start anew") from None
        self._take(keys, Features(*tensors))


def _made_by(folder: Path, fingerprint: str) -> bool:
    try:
        body = read_json(folder / ABOUT)
    except (OSError, GeniusError, ValueError):
        return False
    return isinstance(body, dict) and body.get("fingerprint") == fingerprint
