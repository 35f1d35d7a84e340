"""Files and folders -> an index of their own model: encode, fit, index. `genius index PHOTOS -o my.genius --encoder URI`.

Each item is encoded once. Features are on disk before the next batch is read, so a run that is interrupted at any stage
resumes when it is started again. This module knows the order of the steps; each is implemented elsewhere.

    encoded/encoder.json         fingerprint of the encoder
    encoded/000001.safetensors   features of some items, float16; their names are in its metadata

Nothing is fitted to a collection that is compared whole (`genius.search.scan.compared_whole`), unless it is asked for.

An index that has outgrown its codes gets new ones (`refit`) from its stored vectors, so nothing is encoded again. The new
index is written to a folder of its own, row by row with new codes, and replaces the old one at the end. Older versions are
not carried over. Nobody else may have the index open meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from genius.data.features import features_from_tensors, features_to_tensors
from genius.encoders.base import batched, encode_items
from genius.errors import GeniusError, Problems, said
from genius.features import Features
from genius.files import disk_problem, read_json, write_json, write_whole
from genius.fit import Fit, FitConfig, Say, Unfitted, fit_collection, fit_vectors, settled, unfitted_model
from genius.fit.synthetic_queries import MOST, synthesize_queries
from genius.fit.vectors import own_queries, own_query_bank
from genius.index import Index, writing
from genius.index.folder import (
    INSIDE,
    About,
    WriteLock,
    about_of,
    begin_replacement,
    describe_model,
    finish_swap,
    load_index_model,
    make_folder,
    open_store,
    read_about,
    swap,
    write_about,
)
from genius.index.ingest import Indexed, IngestConfig, IngestReport, find_files, ingest, read_items
from genius.index.paths import ENCODED, MODEL, remove
from genius.index.prepare import Stamp, storable
from genius.index.reader import Reader, good_rows, resealed
from genius.index.searching import item_of_row
from genius.index.store import Store
from genius.model.genius import Genius
from genius.search.scan import compared_whole
from genius.types import Item, Modality

if TYPE_CHECKING:
    import pyarrow as pa


ABOUT = "encoder.json"
ItemKey = tuple[str, str]  # id and mark of an item
AT_ONCE = 256  # items encoded between two writes
Tell = Callable[[str, int, int], None]
"""Called with the step that runs, how many more items are done, and how many there are (0: not known)."""

PAYLOAD = ["_seq", "id", "text", "modality", "_image", "_metadata"]


class Encoded:
    """The features of a collection, by item."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        """Read the features in `folder` if this encoder made them; anything else there is removed."""
        self.folder = folder
        self.files = 0
        self.rows: dict[ItemKey, int] = {}
        self.parts: list[Features] = []
        if not _made_by(folder, fingerprint):
            remove(folder, folder.parent)
            write_json(folder / ABOUT, {"fingerprint": fingerprint})
        for path in sorted(folder.glob("*.safetensors")):
            self._read(path)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, key: ItemKey) -> bool:
        return key in self.rows

    def add(self, keys: Sequence[ItemKey], features: Features) -> None:
        """Keep the features of some items, on disk too."""
        if not keys:
            return
        tensors = features_to_tensors(features, torch.float16)
        path = self.folder / f"{self.files + 1:06}.safetensors"
        names = {"items": json.dumps(list(keys))}
        with _writing(path):
            write_whole(path, lambda target: save_file(tensors, target, metadata=names))
        self._take(keys, features_from_tensors(tensors))

    def of(self, keys: Sequence[ItemKey]) -> Features:
        """Features of items that are here, in this order, float32."""
        rows = torch.tensor([self.rows[key] for key in keys], dtype=torch.long)
        return self._joined()[rows].to("cpu", torch.float32)

    def all(self) -> Features:
        """Every row, by `rows`, float32."""
        return self._joined().to("cpu", torch.float32)

    def _joined(self) -> Features:
        if len(self.parts) > 1:
            self.parts = [Features.cat(self.parts)]
        return self.parts[0]

    def remove(self) -> None:
        remove(self.folder, self.folder.parent)

    def _take(self, keys: Sequence[ItemKey], features: Features) -> None:
        first = sum(len(part) for part in self.parts)
        self.rows.update((key, first + i) for i, key in enumerate(keys))
        self.parts.append(features)
        self.files += 1

    def _read(self, path: Path) -> None:
        try:
            with safe_open(path, "pt") as file:  # type: ignore[no-untyped-call]
                keys = [(str(name), str(mark)) for name, mark in json.loads(file.metadata()["items"])]
                features = features_from_tensors({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except Exception as error:
            raise GeniusError(f"cannot read {path}: {said(error)}; delete {path.parent} and start again") from None
        self._take(keys, features)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """What goes wrong with the disk is one line; safetensors has errors of its own."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise GeniusError(f"cannot write {path}: {disk_problem(error) or said(error)}") from None


def _made_by(folder: Path, fingerprint: str) -> bool:
    try:
        body = read_json(folder / ABOUT)
    except (OSError, GeniusError, ValueError):
        return False
    return isinstance(body, dict) and body.get("fingerprint") == fingerprint


@contextmanager
def _kept_if_full() -> Iterator[None]:
    """Say after a full disk that the run can be resumed."""
    try:
        yield
    except GeniusError as error:
        if "disk is full" in str(error):
            raise GeniusError(f"{error}. Finished parts are kept: free disk space and run it again") from None
        raise


@_kept_if_full()
def index_with_encoder(
    paths: Sequence[str | Path],
    output: Path,
    uri: str,
    config: IngestConfig,
    *,
    fit: bool = False,
    fit_config: FitConfig | None = None,
    device: torch.device | str = "cpu",
    thumbnails: int = 256,
    vectors: bool = True,
    tell: Tell | None = None,
    say: Say | None = None,
) -> Indexed:
    """Make an index of files with a model of their own; add to it if it is there.

    Args:
        paths: Files and folders.
        output: The index.
        uri: The encoder.
        config: How files are read.
        fit: Fit codes and decoder also to a collection that is compared whole.
        fit_config: How the model is fitted.
        device: Of the encoder.
        thumbnails: Pixels of the previews; 0: none.
        vectors: False: store codes alone. They are fitted to a collection of any size.
        tell: Called with progress (`Tell`).
        say: Called with one line per step of the fit.

    Raises:
        GeniusError: If nothing can be read, or the index has another model or encoder.
    """
    on_progress = tell or (lambda *_: None)
    on_step = say or (lambda _: None)
    started = time.monotonic()
    about = read_about(output)
    if about is not None and about.source != INSIDE:
        raise GeniusError(
            f"{output} has the model {about.source or about.fingerprint[:8]}: --encoder creates a new index, choose another path"
        )
    encoded: Encoded | None = None
    done: Fit | None = None
    model: Genius | None = None
    if about is None:
        unfitted = Unfitted(uri, device)
        make_folder(output)
        encoded = Encoded(output / ENCODED, unfitted.encoder.fingerprint())
        sample, problems = _encode(unfitted, encoded, paths, config, on_progress)
        if not len(encoded):
            encoded.remove()
            with suppress(OSError):  # it holds something else
                output.rmdir()
            why = f" ({problems[0]})" if problems else ""
            where = ", ".join(map(str, paths))
            raise GeniusError(f"nothing to index under {where}: no image, text or table could be read{why}")
        if fit or not vectors or not compared_whole(len(encoded)):
            done = _fit(unfitted, encoded, sample, fit_config, on_step)
            model = done.model
        else:
            model = unfitted_model(encoded.all(), unfitted.encoder, unfitted.uri, fit_config)
        with _writing(output / MODEL):
            model.save_pretrained(output / MODEL)
        model.source = f"local-dir:{(output / MODEL).absolute()}"
    with Index(output, model, thumbnails=thumbnails, vectors=vectors) as index:
        _check_encoder(index, uri)
        index.model.to(device)
        if encoded is None and (output / ENCODED).is_dir() and index.model.encoder is not None:
            encoded = Encoded(output / ENCODED, index.model.encoder.fingerprint())
        before = 0 if encoded is None else _write(index, encoded, paths, config, on_progress)
        report = ingest(index, paths, config, lambda count: on_progress("indexing", count, 0))
        report.added += before
        report.unchanged -= before
        report.seconds = time.monotonic() - started
        if done is not None:
            report.seconds -= done.seconds
        if encoded is not None:
            encoded.remove()
        return Indexed(report, index.count(), done, index.advice(), index.model.fitted)


def _fit(unfitted: Unfitted, encoded: Encoded, sample: Sequence[tuple[Item, ItemKey]], config: FitConfig | None, say: Say) -> Fit:
    """Fit a model to all features; queries are made from some of the items."""
    say("generating synthetic queries")
    rows = [encoded.rows[key] for _, key in sample]
    queries = synthesize_queries(unfitted.encoder, [item for item, _ in sample], rows=rows)
    return fit_collection(encoded.all(), queries, unfitted.encoder, unfitted.uri, config, say)


def _check_encoder(index: Index, uri: str) -> None:
    encoder = index.model.config.encoder
    if encoder != settled(uri):
        raise GeniusError(
            f"{index.path} was made with the encoder {encoder}, not with {uri}: leave --encoder out, or choose another path"
        )


def _encode(
    unfitted: Unfitted, encoded: Encoded, paths: Sequence[str | Path], config: IngestConfig, tell: Tell
) -> tuple[list[tuple[Item, ItemKey]], Problems]:
    """Encode what is not encoded yet; some items, to invent queries from, and what could not be read."""
    nowhere = IngestReport()  # problems are reported when items are added to the index
    files = list(find_files(paths, config, nowhere))
    sample: list[tuple[Item, ItemKey]] = []
    stride = max(1, len(files) // (4 * MOST))
    seen: set[str] = set()
    done = 0
    for batch in batched(read_items(files, config, nowhere, lambda _: None), AT_ONCE):
        fresh = [(item, stamp) for item, stamp in batch if _key(item, stamp) not in encoded and item.id not in seen]
        seen.update(item.id for item, _ in batch)
        sound, _, refused = storable(fresh, "skip")
        nowhere.problems += refused
        if sound:
            fresh = [fresh[row] for row in sound]
            features, kept, bad = encode_items(unfitted.encoder, [item for item, _ in fresh], on_error="skip", batch_size=32)
            nowhere.problems += bad
            encoded.add([_key(*fresh[row]) for row in kept], features)
        sample += [(item, _key(item, stamp)) for item, stamp in batch[::stride] if _key(item, stamp) in encoded and _light(item)]
        done += len(batch)
        tell("encoding", len(batch), max(len(files), done))
    return sample, nowhere.problems


def _write(index: Index, encoded: Encoded, paths: Sequence[str | Path], config: IngestConfig, tell: Tell) -> int:
    """Write the items whose features are known; how many."""
    nowhere = IngestReport()
    added = 0

    def known() -> Iterator[tuple[Item, Stamp]]:
        seen: set[str] = set()
        for item, stamp in read_items(list(find_files(paths, config, nowhere)), config, nowhere, lambda _: None):
            if item.id not in seen and _key(item, stamp) in encoded and item.id not in index:
                yield item, stamp
            seen.add(item.id)

    for batch in batched(known(), config.batch_size):
        features = encoded.of([_key(item, stamp) for item, stamp in batch])
        report = writing.write(index, batch, replace=True, batch_size=len(batch), on_error="skip", features=features)
        added += report.added
        tell("indexing", len(batch), len(encoded))
    return added


def _key(item: Item, stamp: Stamp) -> ItemKey:
    return item.id, stamp.mark


def _light(item: Item) -> bool:
    """Whether an item may be held in memory: its image is a path."""
    return not isinstance(item.image, bytes)


def refit(folder: Path, config: FitConfig | None = None, say: Say | None = None, queries: NDArray[Any] | None = None) -> Fit:
    """Fit new codes and a new decoder to the items of an index that was made with an encoder, or of vectors.

    Args:
        folder: The index.
        config: How the model is fitted.
        say: Called with one line per step.
        queries: (Q, D) vectors of queries, for an index of your own vectors; None: what it knew of queries stays.

    Raises:
        GeniusError: If the index is empty, or was made with a model that is not its own.
    """
    finish_swap(folder)
    folder = folder.resolve()  # a link to an index stays a link: what it leads to is replaced
    about = about_of(folder)
    if about.source != INSIDE:
        raise GeniusError(f"{folder} was not made with --encoder, so there is nothing to refit: its model is {about.source}")
    old = load_index_model(folder, None, about)
    if queries is not None and old.encoder is not None:
        raise GeniusError(f"{folder} has an encoder: --query-vectors is only for an index of your own vectors")
    with WriteLock(folder / ".lock", 30.0).hold():
        store = open_store(folder, about)
        reader = store.at(store.latest())
        if not reader.count():
            raise GeniusError(f"{folder} is empty: there is nothing to fit to")
        z, modality, sample = _read(reader)
        if old.encoder is None:
            fit_queries = own_queries(queries, old.fusion, z, modality)
        else:
            rows = [row for row, _ in sample]
            fit_queries = synthesize_queries(old.encoder, [item for _, item in sample], rows=rows)
        uri = None
        if old.config.encoder is not None:
            uri = settled(old.config.encoder)
        with replaced(folder, about) as temporary:
            fit = fit_vectors(old.fusion, z, modality, fit_queries, old.encoder, uri, config, say)
            if old.encoder is None:
                fit.model.queries = old.queries
                if fit_queries is not None:
                    fit.model.queries = own_query_bank(fit_queries, old.fusion, z.shape[1])
            write_anew(fit.model, reader, temporary)
    return fit


@contextmanager
def replaced(folder: Path, about: About) -> Iterator[Path]:
    """A folder to write a whole index into; it takes the place of the index at the end, or leaves no trace."""
    temporary = begin_replacement(folder, about)
    try:
        yield temporary
    except BaseException:
        remove(temporary, folder, about.id)
        raise
    swap(folder, temporary)


def _read(reader: Reader) -> tuple[torch.Tensor, torch.Tensor, list[tuple[int, Item]]]:
    """Vectors and modalities of all rows, and some items with their row numbers."""
    vectors = []
    modalities = []
    sample = []
    stride = max(1, reader.count() // (4 * MOST))
    for row, entry in enumerate(reader.stream([*PAYLOAD, "_embedding"])):
        vectors.append(np.asarray(entry["_embedding"], np.float16))
        modalities.append(int(Modality.parse(entry["modality"])))
        if row % stride == 0 and (entry["_image"] is not None or entry["text"] is not None):
            sample.append((row, item_of_row(entry)))
    z = torch.from_numpy(np.stack(vectors)).float()
    return torch.nn.functional.normalize(z, dim=1), torch.tensor(modalities), sample


def write_anew(model: Genius, reader: Reader, target: Path) -> None:
    """A whole index of the same items under another model."""
    stored_again(model, reader, reader.schema, _with_codes(model, good_rows(reader)), target)


def stored_again(model: Genius, reader: Reader, schema: Any, rows: Iterator[pa.RecordBatch], target: Path) -> None:
    """Write a whole index. It was read back, model and rows, when this returns.

    Args:
        model: Of the new index; saved into its folder.
        reader: What it is made from: columns with a full-text index have one again.
        schema: Of the rows.
        rows: Items with vectors and codes of the model; their checksums are computed here.
        target: A folder of `begin_replacement`.
    """
    with _writing(target / MODEL):
        model.save_pretrained(target / MODEL)
    model.source = f"local-dir:{(target / MODEL).absolute()}"
    make_folder(target)
    described = describe_model(model, target)
    store = Store.fill(target, schema, resealed(rows, schema))
    store.index_words(reader.words_columns())
    store.begin_ledger(described.to_dict())
    if Genius.from_pretrained(target / MODEL).fingerprint() != described.fingerprint:
        raise GeniusError(f"{target / MODEL} cannot be verified after writing; the index is unchanged")
    Store.open(target)
    write_about(target, described)  # last: before it, this is no index


def _with_codes(model: Genius, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows with the codes that this model gives them."""
    for batch in batches:
        stored = batch.column("_embedding")
        z = np.asarray(stored.flatten().to_numpy(zero_copy_only=False), np.float32).reshape(batch.num_rows, -1)
        unit = torch.nn.functional.normalize(torch.from_numpy(z), dim=1)
        codes = model.quantizer.encode(unit, modalities_of(batch)).numpy().astype(np.uint16)
        yield with_columns(batch, {"_codes": codes})


def modalities_of(batch: pa.RecordBatch) -> torch.Tensor:
    """(n,) modality of each row."""
    labels = batch.column("modality").to_pylist()
    return torch.tensor([int(Modality.parse(label)) for label in labels], dtype=torch.long)


def with_columns(batch: pa.RecordBatch, arrays: dict[str, NDArray[Any]]) -> pa.RecordBatch:
    """The same rows with other codes (n, M) or vectors (n, D)."""
    import pyarrow as pa

    for name, values in arrays.items():
        column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
        batch = batch.set_column(batch.schema.get_field_index(name), name, column)
    return batch
