"""A fitted index that has outgrown its codes gets new ones: from the vectors that it stores, so nothing is encoded again.

The new index is written beside the old one, row by row with new codes, and takes its place at the end; until then the old one
stays as it is. Older versions are not carried over. Nobody else may have the index open meanwhile.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from genius.errors import GeniusError
from genius.fit.collection import Fit, FitConfig, Say, fit_vectors
from genius.fit.questions import MOST, make_up
from genius.fit.unfitted import settled
from genius.index.backup import good_rows, resealed, whole_schema
from genius.index.folder import (
    INSIDE,
    MODEL,
    WriterLock,
    about_of,
    beside,
    clear,
    describe_model,
    load_model,
    make_folder,
    open_store,
    swap,
    write_about,
)
from genius.index.reader import Reader
from genius.index.searching import to_item
from genius.index.store import Store
from genius.model.genius import Genius
from genius.types import Item, Modality

if TYPE_CHECKING:
    import pyarrow as pa

PAYLOAD = ["_seq", "id", "text", "modality", "_image", "_metadata"]


def refit(folder: Path, config: FitConfig | None = None, say: Say | None = None) -> Fit:
    """Fit new codes and a new decoder to what a fitted index holds now."""
    about = about_of(folder)
    if about.source != INSIDE:
        raise GeniusError(f"{folder} was not made with --encoder, so there is nothing to refit: its model is {about.source}")
    old = load_model(folder, None, about)
    assert old.encoder is not None and old.config.encoder is not None
    temporary = beside(folder)
    with WriterLock(folder / ".lock", 30.0).hold():
        clear(folder)
        store = open_store(folder, about)
        reader = store.at(store.latest())
        if not reader.count():
            raise GeniusError(f"{folder} is empty: there is nothing to fit to")
        z, modality, some = _read(reader)
        questions = make_up(old.encoder, [item for _, item in some])
        rows = questions.answers.new_tensor([row for row, _ in some])
        known = questions.answers >= 0
        questions.answers[known] = rows[questions.answers[known]]
        fit = fit_vectors(old.fusion, z, modality, questions, old.encoder, settled(old.config.encoder), config, say)
        try:
            _write(fit.model, reader, temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        swap(folder, temporary)
    return fit


def _read(reader: Reader) -> tuple[torch.Tensor, torch.Tensor, list[tuple[int, Item]]]:
    """Vectors and kinds of all rows, and some items with their row numbers."""
    vectors, kinds, some = [], [], []
    stride = max(1, reader.count() // (4 * MOST))
    for row, entry in enumerate(reader.stream([*PAYLOAD, "_embedding"])):
        vectors.append(np.asarray(entry["_embedding"], np.float16))
        kinds.append(int(Modality.parse(entry["modality"])))
        if row % stride == 0 and (entry["_image"] is not None or entry["text"] is not None):
            some.append((row, to_item(entry)))
    z = torch.from_numpy(np.stack(vectors)).float()
    return torch.nn.functional.normalize(z, dim=1), torch.tensor(kinds), some


def _write(model: Genius, reader: Reader, target: Path) -> None:
    model.save_pretrained(target / MODEL)
    model.source = f"local-dir:{(target / MODEL).absolute()}"
    make_folder(target)
    described = describe_model(model, target)
    schema = whole_schema(reader)
    store = Store.fill(target, schema, resealed(_with_codes(model, good_rows(reader)), schema))
    store.begin_ledger(described.to_dict())
    write_about(target, described)


def _with_codes(model: Genius, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows with the codes that this model gives them."""
    import pyarrow as pa

    for batch in batches:
        names = batch.schema.names
        table: dict[str, Any] = {name: batch.column(name) for name in names}
        stored = table["_embedding"]
        z = np.asarray(stored.flatten().to_numpy(zero_copy_only=False), np.float32).reshape(batch.num_rows, -1)
        kinds = torch.tensor([int(Modality.parse(kind)) for kind in table["modality"].to_pylist()], dtype=torch.long)
        unit = torch.nn.functional.normalize(torch.from_numpy(z), dim=1)
        codes = model.quantizer.encode(unit, kinds).numpy().astype(np.uint16)
        kind = batch.schema.field("_codes").type
        width = pa.list_(pa.uint16(), codes.shape[1])
        if kind != width:
            raise GeniusError(f"codes are stored as {kind}, not as {width}")
        table["_codes"] = pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), codes.shape[1])
        yield pa.RecordBatch.from_arrays([table[name] for name in names], schema=batch.schema)
