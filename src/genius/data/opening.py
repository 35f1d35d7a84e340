"""From a name to a dataset: `mbeir:DIR`, `coco:DIR`, `pairs:FILE` ..., or a bare path whose kind is evident.

Knows which datasets there are; what each looks like on disk is theirs to know.
"""

from __future__ import annotations

from pathlib import Path

from genius.data.coco import Karpathy
from genius.data.collection import Collection
from genius.data.mbeir import MBeir
from genius.data.pairs import ImageFolder, Pairs
from genius.errors import GeniusError

SCHEMES = ("mbeir", "coco", "flickr30k", "pairs", "images")


def open_collection(
    source: str | Path, *, split: str = "test", seed: int = 0, tasks: tuple[str, ...] | None = None
) -> Collection:
    """Open `mbeir:DIR`, `coco:DIR`, `flickr30k:DIR`, `pairs:FILE`, `images:DIR`, or a path whose kind is evident."""
    scheme, path = scheme_of(source)
    if scheme == "mbeir":
        return MBeir(path, split=split, seed=seed, tasks=tasks)
    if tasks:
        raise GeniusError("only a dataset in M-BEIR's layout has tasks to choose from")
    if scheme in ("coco", "flickr30k"):
        return Karpathy(path, split=split)
    return ImageFolder(path) if scheme == "images" else Pairs(path)


def scheme_of(source: str | Path) -> tuple[str, Path]:
    """(scheme, path) of a dataset's name; without a scheme, the one that the path looks like."""
    scheme, _, rest = str(source).partition(":")
    if scheme in SCHEMES and rest:
        return scheme, Path(rest)
    return _guess(Path(source)), Path(source)


def _guess(path: Path) -> str:
    if path.is_file():
        return "pairs"
    if (path / "query").is_dir() and (path / "cand_pool").is_dir():
        return "mbeir"
    if path.is_dir() and any(path.glob("dataset_*.json")):
        return "coco"
    if path.is_dir():
        return "images"
    raise GeniusError(f"no dataset at {path}: give a folder, a file of pairs, or {', '.join(f'{s}:PATH' for s in SCHEMES)}")
