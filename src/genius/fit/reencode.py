"""Another encoder for an index that is in use: `genius reencode INDEX --encoder URI`, and back.

All items are encoded with the new encoder while others search and change the index. Features are on disk before the next batch
is read, so a run that was killed goes on where it was. Codes and a decoder are fitted to them. Then, under the write lock, what
was added meanwhile is encoded, a whole new index is written beside the old one, read back and swapped in. Processes that have
the index open follow the switch. The old index stays for one generation: `go_back` swaps the two.

    reencoded/.lock             held while an index is re-encoded
    reencoded/skipped.json      ids of items that the switch left out
    reencoded/FINGERPRINT/      features by the new encoder (`genius.fit.folder.Encoded`), and the fitted model

Items keep their `_seq`, by which changes since the switch are found when it is undone. Knows the order of the steps; the folders
and the swap are those of `genius.index.folder`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError

from genius.encoders.base import batched, encode_items
from genius.errors import GeniusError, Problems, counted
from genius.files import read_json, rename, sync_directory, write_json
from genius.fit import FitConfig, Say, Unfitted, fit_collection
from genius.fit.folder import AT_ONCE, Encoded, Tell, modalities_of, replaced, stored_again, with_columns
from genius.fit.synthetic_queries import MOST, synthesize_queries
from genius.index import Index
from genius.index.folder import (
    About,
    WriteLock,
    about_of,
    clear,
    finish_swap,
    load_index_model,
    open_store,
    take_name,
)
from genius.index.paths import MODEL, REENCODED, is_sibling, origin_of, previous_of, remove, replacement_of, write_origin
from genius.index.reader import HIT_COLUMNS, Reader, Vanished, good_rows
from genius.index.searching import item_of_row
from genius.model.genius import Genius
from genius.types import Item

if TYPE_CHECKING:
    import pyarrow as pa

LOCK_S = 30.0  # seconds that the switch waits for other writers
SKIPPED = "skipped.json"
REFIT_SHARE = 0.1  # a model that was fitted before a kill is used if the number of items has changed by no more than this
CONTENT = [*HIT_COLUMNS, "_image_bytes"]
ROUNDS = 5  # over what others add meanwhile, before the last one under the lock


class OriginalsMissing(GeniusError):
    """Items whose image or text cannot be encoded again; `problems` has one line for each."""

    def __init__(self, message: str, problems: Problems) -> None:
        super().__init__(message)
        self.problems = problems


@dataclass
class Reencoded:
    """What a switch did."""

    path: Path
    encoder: str
    items: int  # of the new index
    encoded: int  # items that this run encoded; others were encoded before it was killed
    skipped: Problems = field(default_factory=Problems)
    seconds: float = 0.0
    locked_seconds: float = 0.0  # during which writes waited

    def to_dict(self) -> dict[str, Any]:
        return {
            "index": str(self.path),
            "encoder": self.encoder,
            "items": self.items,
            "encoded": self.encoded,
            "skipped": list(self.skipped),
            "skipped_count": self.skipped.total,
            "seconds": round(self.seconds, 1),
            "locked_seconds": round(self.locked_seconds, 2),
        }


def reencode(
    folder: str | Path,
    encoder: str,
    *,
    skip_missing: bool = False,
    device: torch.device | str = "cpu",
    config: FitConfig | None = None,
    tell: Tell | None = None,
    say: Say | None = None,
) -> Reencoded:
    """Switch an index to another encoder, with a model that is fitted to its items.

    Args:
        folder: The index. Others may search and change it meanwhile; their changes are carried over.
        encoder: URI of the encoder.
        skip_missing: Leave out items whose original cannot be read any more, instead of refusing.
        device: Where the encoder runs.
        config: How the model is fitted.
        tell: Called with progress.
        say: Called with one line per step.

    Returns:
        What was done.

    Raises:
        OriginalsMissing: Items cannot be encoded again. The index is as it was.
        GeniusError: There is no such index or encoder, or another process re-encodes it.
    """
    path = Path(folder).resolve()  # a link to an index stays a link: what it leads to is replaced
    finish_swap(path)
    about = about_of(path)
    if not about.vectors:
        raise GeniusError(f"{path} stores codes and no vectors: create a new index with the other encoder")
    if not open_store(path, about).at(open_store(path, about).latest()).count():
        raise GeniusError(f"{path} is empty: create a new index with the other encoder")
    work = path / REENCODED
    try:
        work.mkdir(exist_ok=True)
    except OSError as error:
        raise GeniusError(f"cannot write {work}: {error.strerror or error}; the index is as it was") from None
    with WriteLock(work / ".lock", 0.0).hold():
        done = _Run(path, about, Unfitted(encoder, device), skip_missing, config, tell, say).run()
    previous = previous_of(path)
    with contextlib.suppress(OSError, GeniusError):  # what stays goes with this generation
        for part in sorted((previous / REENCODED).iterdir()):
            if part.name != SKIPPED:
                remove(part, previous)
    return done


class _Run:
    """One switch of one index."""

    def __init__(
        self,
        path: Path,
        about: About,
        unfitted: Unfitted,
        skip_missing: bool,
        config: FitConfig | None,
        tell: Tell | None,
        say: Say | None,
    ) -> None:
        self.path = path
        self.about = about
        self.unfitted = unfitted
        self.skip_missing = skip_missing
        self.config = config
        self.tell = tell or (lambda *_: None)
        self.say = say or (lambda _: None)
        fingerprint = unfitted.encoder.fingerprint()
        self.work = path / REENCODED / fingerprint[:16]
        for other in (path / REENCODED).iterdir():
            if other.name not in (".lock", self.work.name):
                remove(other, path)  # of an encoder that was tried before
        self.encoded = Encoded(self.work, fingerprint)
        self.new = 0  # items that this run encoded
        self.problems: dict[str, str] = {}  # by key of what cannot be encoded

    def run(self) -> Reencoded:
        started = time.monotonic()
        for _ in range(ROUNDS):
            if not self._encode(self._newest()):
                break
        if not len(self.encoded):
            raise self._missing()
        model = self._model()
        with WriteLock(self.path / ".lock", LOCK_S).hold():
            locked = time.monotonic()
            if about_of(self.path).id != self.about.id:
                raise GeniusError(f"{self.path} was replaced by another index meanwhile; it is as that left it")
            reader = self._newest()
            self._encode(reader)
            skipped = self._skipped(reader)
            self._write_skipped([item_id for item_id, _ in skipped])
            with replaced(self.path, self.about) as temporary:
                items = self._write(model, reader, temporary)
        ended = time.monotonic()
        problems = Problems(line for _, line in skipped)
        uri = self.unfitted.uri or repr(self.unfitted)
        return Reencoded(self.path, uri, items, self.new, problems, ended - started, ended - locked)

    def _newest(self) -> Reader:
        store = open_store(self.path, self.about)
        return store.at(store.latest())

    # -- encoding ----------------------------------------------------------------------------------------------

    def _encode(self, reader: Reader) -> int:
        """Encode what is not encoded yet; how many items that were. Refuses what cannot be, unless it is to be skipped."""
        try:
            waiting = [int(seq) for seq in reader.seqs()]
            keys = {int(row["_seq"]): _key(row) for row in reader.stream(["_seq", "id"])}
            waiting = [seq for seq in waiting if keys[seq] not in self.encoded and keys[seq][1] not in self.problems]
            self._look_for_originals(reader, waiting)
            done = 0
            for part in batched(iter(waiting), AT_ONCE):
                rows = reader.rows(part, CONTENT)
                self._encode_rows([rows[seq] for seq in part if keys[seq][1] not in self.problems])
                done += len(part)
                self.tell("encoding", len(part), len(waiting))
        except Vanished:  # another process cleaned this version away: the next round reads a newer one
            return 1
        if self.problems and not self.skip_missing:
            raise self._missing()
        return done

    def _encode_rows(self, rows: Sequence[dict[str, Any]]) -> None:
        empty = [row for row in rows if row["text"] is None and row["_image"] is None and row["_image_bytes"] is None]
        for row in empty:
            self.problems[_key(row)[1]] = f"{row['id']}: it was added as a vector, without an image or a text"
        rows = [row for row in rows if row not in empty]
        if not rows:
            return
        items = [item_of_row(row) for row in rows]
        features, kept, problems = encode_items(self.unfitted.encoder, items, on_error="skip", batch_size=32)
        self.encoded.add([_key(rows[row]) for row in kept], features)
        self.new += len(kept)
        lost = [row for place, row in enumerate(rows) if place not in set(kept)]
        for row, line in zip(lost, problems, strict=True):
            self.problems[_key(row)[1]] = line

    def _look_for_originals(self, reader: Reader, seqs: Sequence[int]) -> None:
        """Note items whose image file is gone, before hours are spent on the others."""
        for part in batched(iter(seqs), 4096):
            for row in reader.rows(part, ["_seq", "id", "_image"]).values():
                if row["_image"] is not None and not Path(row["_image"]).is_file():
                    self.problems[_key(row)[1]] = f"{row['id']}: the image {row['_image']} is no longer there"

    def _missing(self) -> OriginalsMissing:
        lines = Problems(self.problems.values())
        first = next(iter(self.problems.values()), "it is empty")
        return OriginalsMissing(
            f"{counted(len(self.problems), 'item')} of {self.path} cannot be encoded again ({first}); the index is unchanged, "
            "--skip-missing leaves them out",
            lines,
        )

    def _skipped(self, reader: Reader) -> list[tuple[str, str]]:
        """(id, reason) of the items that have no features."""
        skipped = []
        for row in reader.stream(["_seq", "id"]):
            key = _key(row)
            if key not in self.encoded:
                skipped.append((key[0], self.problems.get(key[1], f"{key[0]}: not encoded")))
        return skipped

    def _write_skipped(self, ids: Sequence[str]) -> None:
        write_json(self.path / REENCODED / SKIPPED, {"ids": list(ids)})

    # -- model and table ---------------------------------------------------------------------------------------

    def _model(self) -> Genius:
        """The model fitted by a run that was killed, or one fitted now."""
        place = self.work / MODEL
        if (place / "config.json").is_file():
            model = Genius.from_pretrained(place)
            fitted = (model.knows.fit if model.knows is not None else None) or {}
            if abs(int(fitted.get("items", 0)) - len(self.encoded)) <= REFIT_SHARE * len(self.encoded):
                return model
            remove(place, self.path)
        self.say("generating synthetic queries")
        sample, rows = self._sample()
        queries = synthesize_queries(self.unfitted.encoder, sample, rows=rows)
        new = self.unfitted
        model = fit_collection(self.encoded.all(), queries, new.encoder, new.uri, self.config, self.say).model
        half = self.work / f"{MODEL}.half"
        remove(half, self.path)
        try:
            model.save_pretrained(half)
            rename(half, place)
        except (OSError, SafetensorError) as error:
            raise GeniusError(f"cannot write {half}: {error}; the index is unchanged") from None
        return model

    def _sample(self) -> tuple[list[Item], list[int]]:
        """Some items, and their rows among the features."""
        reader = self._newest()
        stride = max(1, reader.count() // (4 * MOST))
        items = []
        rows = []
        for number, row in enumerate(reader.stream(HIT_COLUMNS)):
            key = _key(row)
            if number % stride == 0 and key in self.encoded and (row["_image"] is not None or row["text"] is not None):
                items.append(item_of_row(row))
                rows.append(self.encoded.rows[key])
        return items, rows

    def _write(self, model: Genius, reader: Reader, target: Path) -> int:
        """A whole index of the encoded items under the new model, read back; how many items it has."""
        import pyarrow as pa

        self.say("writing the new index")
        self.count = 0
        schema = reader.schema
        sizes = {"_codes": model.quantizer.config.levels, "_embedding": model.config.width}
        for name, size in sizes.items():
            old = schema.field(name)
            new = pa.field(name, pa.list_(old.type.value_type, size), old.nullable)
            schema = schema.set(schema.get_field_index(name), new)
        stored_again(model, reader, schema, self._rows(model, good_rows(reader)), target)
        return self.count

    def _rows(self, model: Genius, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows with vectors and codes of the new encoder, without those that have none."""
        import pyarrow as pa

        for batch in batches:
            keys = [_key(row) for row in batch.select(["id", "_seq"]).to_pylist()]
            kept = [row for row, key in enumerate(keys) if key in self.encoded]
            if not kept:
                continue
            batch = batch.take(pa.array(kept))
            z = model.fusion.cpu().embed(self.encoded.of([keys[row] for row in kept]))
            codes = model.quantizer.cpu().encode(z, modalities_of(batch)).numpy().astype(np.uint16)
            self.count += len(kept)
            yield with_columns(batch, {"_codes": codes, "_embedding": z.numpy().astype(np.float16)})


def _key(row: dict[str, Any]) -> tuple[str, str]:
    """What features are kept by: a `_seq` is never used twice, so an item that was replaced has another key."""
    return row["id"], str(row["_seq"])


# -- back ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WentBack:
    """What undoing a switch did."""

    path: Path
    items: int
    carried: int  # items that were added or replaced since the switch, encoded with the encoder of before
    deleted: int  # items that were deleted since the switch

    def to_dict(self) -> dict[str, Any]:
        return {"index": str(self.path), "items": self.items, "carried": self.carried, "deleted": self.deleted}


def go_back(folder: str | Path, *, device: torch.device | str = "cpu") -> WentBack:
    """Swap an index with the one before its last switch. Changes since the switch are made to that one first.

    Args:
        folder: The index.
        device: Where the encoder of before runs.

    Returns:
        What was carried over.

    Raises:
        GeniusError: There is no generation before, or it cannot take the changes; the index is as it was.
    """
    path = Path(folder).resolve()
    finish_swap(path)
    with WriteLock(path / ".lock", LOCK_S).hold():
        about = about_of(path)
        previous = previous_of(path)
        if not previous.is_dir() or not is_sibling(previous, path, origin_of(path)):
            raise GeniusError(f"there is no index before the last switch of {path}: nothing to go back to")
        old = about_of(previous)
        model = load_index_model(previous, None, old)
        model.to(device)
        with Index(previous, model, create=False) as index:
            carried, deleted = _carry_over(path, about, index)
            items = index.count()
        clear(path, about)
        _exchange(path, previous, about)
    return WentBack(path, items, carried, deleted)


def _carry_over(path: Path, about: About, old: Index) -> tuple[int, int]:
    """Make the changes since the switch to the index of before: how many items were written, and deleted."""
    store = open_store(path, about)
    reader = store.at(store.latest())
    now = {int(row["_seq"]): str(row["id"]) for row in reader.stream(["_seq", "id"])}
    before = {int(row["_seq"]): str(row["id"]) for row in old.reader().stream(["_seq", "id"])}
    fresh = [seq for seq in now if seq not in before]
    skipped = set()
    listed = old.path / REENCODED / SKIPPED
    if listed.is_file():
        skipped = set(read_json(listed).get("ids", []))
    ids = set(now.values())
    deleted_ids = [item_id for item_id in before.values() if item_id not in ids and item_id not in skipped]
    for part in batched(iter(fresh), AT_ONCE):
        old.upsert(item_of_row(row) for row in reader.rows(part, CONTENT).values())
    if deleted_ids:
        old.delete(deleted_ids, missing="skip")
    return len(fresh), len(deleted_ids)


def _exchange(path: Path, previous: Path, about: About) -> None:
    """Let two generations change places. A kill leaves one of them under the name, or a swap that `finish_swap` completes."""
    aside = replacement_of(path)
    write_origin(previous, about.id)
    try:
        rename(path, aside)
        take_name(
            path,
            previous,
            aside,
            f"cannot go back to {previous}; the index lies whole in {aside}: the next command that writes, or genius repair "
            f"{path}, gives it its name again",
        )
    except OSError as error:
        raise GeniusError(f"cannot go back to {previous}: {error.strerror or error}; {path} is unchanged") from None
    try:
        rename(aside, previous)
        sync_directory(path.parent)
    except OSError as error:
        reason = error.strerror or error
        raise GeniusError(f"{path} is made what it was, but a power cut may undo that, or coming back here: {reason}") from None
