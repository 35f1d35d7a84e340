"""A collection as a folder that a browser searches by itself: the model's parts, the IDs, small pictures, and a page.

No server computes anything: any host of files serves the folder. The tab has two searches. It compares all items, by what their
codes stand for (`default-codes`) or, with `vectors`, by the stored ones (`default`); or it shows the items of the IDs that a beam
search generates (`genius`). Names are those of `genius.search.params.SEARCHES`.
Small pictures lie on large sheets: a browser loads a few files instead of thousands.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from genius.encoders.mini import MiniEncoder
from genius.errors import GeniusError
from genius.export import SHARED, export_onnx, pixels_of
from genius.files import write_whole
from genius.index import Index
from genius.index import metadata as meta
from genius.index.searching import check_fitted
from genius.model.genius import Genius
from genius.search import SearchParams
from genius.search.trie import CodeTrie
from genius.types import Modality, instruction_for

CELL = 48  # pixels of one small picture's side
COLUMNS = ROWS = 32  # of a sheet
QUALITY = 40  # of WebP
MOST = 200_000  # items: a tab loads them all
TEXT = 160  # letters of an item's words that are shown
PAGE = (
    "index.html",
    "style.css",
    "app.js",
    "mosaic.js",
    "worker.js",
    "engine.js",
    "beam.js",
    "collection.js",
    "tokens.js",
    "pixels.js",
    "onnx.js",
    "ops.js",
)


class Sheets:
    """Add previews one after another; each different one has a number, which says its sheet and place."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.count = self.sheets = self.bytes = 0
        self._known: dict[bytes, int] = {}
        self._open: Image.Image | None = None

    def add(self, preview: bytes) -> int:
        """The number of a picture, the same for the same bytes."""
        digest = hashlib.sha256(preview).digest()
        known = self._known.get(digest)
        if known is not None:
            return known
        place = self.count % (COLUMNS * ROWS)
        if self._open is None:
            self._open = Image.new("RGB", (COLUMNS * CELL, ROWS * CELL), "white")
        picture = Image.open(io.BytesIO(preview)).convert("RGB")
        picture.thumbnail((CELL - 2, CELL - 2), Image.Resampling.LANCZOS)
        left = place % COLUMNS * CELL
        top = place // COLUMNS * CELL
        self._open.paste(picture, (left + (CELL - picture.width) // 2, top + (CELL - picture.height) // 2))
        self._known[digest] = self.count
        self.count += 1
        if place == COLUMNS * ROWS - 1:
            self.close()
        return self.count - 1

    def close(self) -> None:
        """Write the sheet that is not full yet."""
        if self._open is None:
            return
        sheet = self._open
        path = self.directory / f"sheet{self.sheets}.webp"
        write_whole(path, lambda target: sheet.save(target, format="WEBP", quality=QUALITY, method=6))
        self.sheets += 1
        self._open = None
        self.bytes += path.stat().st_size


@dataclass(frozen=True, slots=True)
class Exported:
    """Counts and files of an export."""

    items: int
    pictures: int
    files: dict[str, int]  # name -> bytes

    @property
    def bytes(self) -> int:
        return sum(self.files.values())


def export_web(
    index: Index, directory: Path, *, vectors: bool = False, title: str = "", on_step: Callable[[str], None] = lambda _: None
) -> Exported:
    """Write an index as a folder that a browser searches by itself.

    Args:
        index: The index.
        directory: The folder. An older export in it is replaced; anything else that is there is refused, not touched.
        vectors: Whether embeddings are exported, too, to re-rank by.
        title: Of the page.
        on_step: Called with the name of each step.
    """
    model = index.model
    check_fitted(model, index.path)
    _check(model, index)
    if directory.exists() and any(directory.iterdir()) and not (directory / "data" / "about.json.gz").is_file():
        raise GeniusError(f"{directory} holds other files: name a new folder, or an earlier export")
    data = directory / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True, exist_ok=True)
    on_step("the model")
    export_onnx(model, data)
    for path in sorted([*data.glob("*.onnx"), data / SHARED]):
        _write(data / f"{path.name}.gz", path.read_bytes())
        path.unlink()
    _write_json(data / "tokens.json.gz", _tokens(model))
    on_step("the collection")
    sheets = Sheets(data)
    items, codes = _collection(index, data, sheets, vectors)
    sheets.close()
    _write_json(data / "items.json.gz", items)
    trie = CodeTrie.build(codes, index.about.levels)
    ordered = trie.codes_at(np.arange(trie.items)).astype("<u2")
    _write(data / "codes.bin.gz", ordered.tobytes() + np.asarray(trie.order).astype("<u4").tobytes())
    about = {**_about(model, index, sheets, vectors), "title": title or index.path.stem, "items": len(items)}
    _write_json(data / "about.json.gz", about)
    page = files("genius.export") / "tab"
    for name in PAGE:
        write_whole(directory / name, lambda path, name=name: path.write_bytes((page / name).read_bytes()))  # type: ignore[misc]
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    sizes = {str(path.relative_to(directory)): path.stat().st_size for path in paths}
    return Exported(len(items), sheets.count, sizes)


def _check(model: Genius, index: Index) -> None:
    if not isinstance(model.encoder, MiniEncoder):
        raise GeniusError(
            "only models with the encoder of bundled:mini can be exported for a browser (a CLIP takes 150 MB or more): "
            "use genius serve, or genius export onnx for the parts"
        )
    if model.config.generator.head != "codebooks":
        raise GeniusError("the browser export needs a decoder tied to its codebooks; this model has an output table")
    if model.encoder.tokens.tokenizer.model.__class__.__name__ != "WordPiece":
        raise GeniusError("the browser export needs a WordPiece tokenizer; this model has another one")
    count = index.count()
    if not 0 < count <= MOST:
        raise GeniusError(f"the browser export supports 1 to {MOST:,} items; this index has {count:,}")


def _collection(index: Index, data: Path, sheets: Sheets, vectors: bool) -> tuple[list[dict[str, Any]], np.ndarray[Any, Any]]:
    """What is shown of each item, and all codes, in the order in which items were added."""
    columns = ["_seq", "id", "text", "modality", "_metadata", "_codes", "_thumbnail"]
    if vectors:
        columns.append("_embedding")
    reader = index.reader()
    rows: list[tuple[int, dict[str, Any], list[int], Any]] = []
    for batch in reader.batches(columns):
        for row in batch.to_pylist():
            shown = {"id": row["id"], "modality": int(Modality.parse(row["modality"]))}
            facts = meta.load(row["_metadata"])
            if row["text"]:
                shown["text"] = _cut(row["text"])
            if "name" in facts:
                shown["name"] = str(facts["name"])
            if row["_thumbnail"] is not None:
                shown["picture"] = sheets.add(row["_thumbnail"])
            rows.append((row["_seq"], shown, row["_codes"], row.get("_embedding")))
    rows.sort(key=lambda row: row[0])
    if vectors:
        halves = np.array([row[3] for row in rows], dtype="<f2").view(np.uint8).reshape(-1, 2)
        _write(data / "vectors.bin.gz", halves[:, 0].tobytes() + halves[:, 1].tobytes())  # apart: they compress better
    return [row[1] for row in rows], np.array([row[2] for row in rows], np.int64)


def _cut(text: str) -> str:
    if len(text) > TEXT:
        return text[: TEXT - 1] + "…"
    return text


def _about(model: Genius, index: Index, sheets: Sheets, vectors: bool) -> dict[str, Any]:
    generator = model.config.generator
    pixels = pixels_of(model.encoder)
    params = SearchParams.of_model(model)
    # rows between one modality's codebook of a level and the next one's
    own = [size * model.quantizer.config.has_modality_codebooks(level) for level, size in enumerate(generator.level_sizes)]
    confidence = model.confidence("codes")
    if vectors:
        confidence = model.confidence("embeddings")
    modalities = list(Modality)
    probe = None  # of the modality that a query wants; without one the decoder's first step says it
    bank = model.queries
    if bank is not None and bank.probe_weight is not None and bank.probe_bias is not None:
        probe = {"weight": bank.probe_weight.tolist(), "bias": bank.probe_bias.tolist()}
    instructions = None
    if model.config.instructions:
        instructions = [[instruction_for(query, target) for target in modalities] for query in modalities]
    return {
        "format": 2,
        "width": model.config.width,
        "levels": list(generator.level_sizes),
        "own_codebooks": own,
        "pixels": {"size": pixels.size, "mean": list(pixels.mean), "std": list(pixels.std)},
        "search": {"beams": params.beams},
        "probe": probe,
        "vectors": vectors,
        "confidence": confidence and confidence.to_dict(),
        "instructions": instructions,
        "sheets": {"count": sheets.sheets, "pictures": sheets.count, "cell": CELL, "columns": COLUMNS, "rows": ROWS},
        "model": model.fingerprint(),
    }


def _tokens(model: Genius) -> dict[str, Any]:
    assert isinstance(model.encoder, MiniEncoder)
    tokens = model.encoder.tokens
    body = json.loads(tokens.tokenizer.to_str())
    vocabulary: dict[str, int] = body["model"]["vocab"]
    words = [""] * (max(vocabulary.values()) + 1)
    for word, number in vocabulary.items():
        words[number] = word
    special = body["post_processor"]["special_tokens"]
    return {
        "vocabulary": words,
        "length": tokens.length,
        "start": special["[CLS]"]["ids"][0],
        "end": special["[SEP]"]["ids"][0],
        "unknown": vocabulary[body["model"]["unk_token"]],
        "prefix": body["model"]["continuing_subword_prefix"],
        "longest": body["model"]["max_input_chars_per_word"],
    }


def _write_json(path: Path, body: Any) -> None:
    _write(path, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())


def _write(path: Path, body: bytes) -> None:
    """Compressed, with no time in it: the same index gives the same bytes."""
    write_whole(path, lambda target: target.write_bytes(gzip.compress(body, 9, mtime=0)))
