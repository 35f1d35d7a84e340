"""The index folder: `genius.json` says which model an index belongs to; the table lies beside it.

Knows how a folder becomes an index and how an index refuses another model.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from genius.files import write_whole
from genius.index.lock import WriterLock
from genius.index.store import Reader, Store
from genius.model.genius import Genius
from genius.types import Modality

FORMAT = 1
ABOUT = "genius.json"
OWN = frozenset({".lock", "items.lance", "cache", ABOUT})


@dataclass(frozen=True, slots=True)
class About:
    """The contents of `genius.json`."""

    id: str  # unique to this index
    source: str | None  # URI of the model, for opening without naming it
    fingerprint: str  # of the model
    levels: tuple[int, ...]  # codebook sizes
    width: int  # of the embeddings
    created: str


def read_about(folder: Path) -> About | None:
    """None if there is no index."""
    path = folder / ABOUT
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body.get("format") != FORMAT:
            raise GeniusError(f"{folder} has index format {body.get('format')!r}; this version reads {FORMAT}")
        model = body["model"]
        return About(body["id"], model["source"], model["fingerprint"], tuple(body["levels"]), body["width"], body["created"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except GeniusError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GeniusError(f"cannot read {path}: {error}") from None


def about_of(folder: Path) -> About:
    about = read_about(folder)
    if about is None:
        raise GeniusError(f"no index at {folder}")
    return about


def open_or_create(
    folder: Path, model: Genius | str | Path | None, create: bool, lock: WriterLock
) -> tuple[About, Genius, Store]:
    about = read_about(folder) if create else about_of(folder)
    loaded = load_model(folder, model, about)
    if about is None:
        about = _create(folder, loaded, lock)
    fingerprint = loaded.fingerprint()
    if about.fingerprint != fingerprint:
        built = f"{about.source or 'another model'} ({about.fingerprint[:8]})"
        raise GeniusError(f"{folder} was built with {built}, not with this model ({fingerprint[:8]}): build a new index")
    return about, loaded, Store.open(folder)


def describe(folder: Path, about: About, reader: Reader) -> dict[str, Any]:
    """What an index is, without its model being loaded."""
    return {
        "path": str(folder),
        "items": reader.count(),
        "modalities": {kind.label: reader.count(f"modality = '{kind.label}'") for kind in Modality},
        "metadata": dict(reader.columns),
        "model": about.source,
        "fingerprint": about.fingerprint,
        "levels": list(about.levels),
        "width": about.width,
        "version": reader.version,
        "created": about.created,
        "bytes": _size(folder),
    }


def _size(folder: Path) -> int:
    """Bytes of all files; some may vanish while we look."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total


def load_model(folder: Path, model: Genius | str | Path | None, about: About | None) -> Genius:
    if isinstance(model, Genius):
        return model
    if model is None:
        if about is None:
            raise GeniusError(f"no index at {folder}: creating one needs a model")
        if about.source is None:
            raise GeniusError(f"{folder} does not say where its model lies: name it (--model)")
        model = about.source
    return Genius.from_pretrained(model)


def _source_of(model: Genius) -> str | None:
    """The URI a model came from; paths absolute, so that the index opens from any folder."""
    source = getattr(model, "source", None)
    if source is None:
        return None
    scheme, _, rest = source.partition(":")
    if scheme == "local-dir":
        return f"local-dir:{Path(rest).absolute()}"
    return source if rest and scheme in ("bundled", "hf-hub") else f"local-dir:{Path(source).absolute()}"


def _create(folder: Path, model: Genius, lock: WriterLock) -> About:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted(p.name for p in folder.iterdir() if p.name not in OWN and not p.name.startswith(f".{ABOUT}"))
    except OSError as error:
        raise GeniusError(f"cannot create an index at {folder}: {error.strerror or error}") from None
    if foreign:
        raise GeniusError(f"{folder} is not an index and not empty (it holds {foreign[0]!r}): choose another path")
    config = model.config.quantizer
    if max(config.level_sizes) > 1 << 16:
        raise GeniusError(f"an index stores codes in 16 bits; this model has levels of {max(config.level_sizes)} codes")
    with lock.hold():
        about = read_about(folder)
        if about is not None:  # another process was quicker
            return about
        Store.create(folder, config.levels, config.width)
        about = About(
            uuid.uuid4().hex,
            _source_of(model),
            model.fingerprint(),
            config.level_sizes,
            config.width,
            datetime.now(UTC).isoformat(),
        )
        body = {
            "format": FORMAT,
            "id": about.id,
            "model": {"source": about.source, "fingerprint": about.fingerprint},
            "levels": list(about.levels),
            "width": about.width,
            "created": about.created,
        }
        text = json.dumps(body, indent=2) + "\n"
        # last: before it, there is no index
        write_whole(folder / ABOUT, lambda path: path.write_text(text, encoding="utf-8"), durable=True)
        return about
