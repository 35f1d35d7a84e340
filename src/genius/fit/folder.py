"""Files and folders -> an index of their own model: encode, fit, index. `genius index PHOTOS -o my.genius --encoder URI`.

Each item is encoded once. What is encoded is on disk before the next batch is read, so a run that is broken off, at whatever
stage, goes on where it was when it is started again. Knows the order of things; each of them is done elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from genius.encoders.base import batched, encode_items
from genius.errors import GeniusError, Problems
from genius.features import Features
from genius.fit.collection import Fit, FitConfig, Say
from genius.fit.encoded import Encoded, Key
from genius.fit.questions import MOST, make_up
from genius.fit.unfitted import Unfitted, settled
from genius.index import writing
from genius.index.folder import ENCODED, INSIDE, MODEL, make_folder, read_about
from genius.index.index import Index
from genius.index.ingest import IngestConfig, IngestReport, find_files, ingest, read_items
from genius.index.prepare import Stamp
from genius.types import Item

AT_ONCE = 256  # items encoded between two looks at the disk
Tell = Callable[[str, int, int], None]
"""Hears what is being done, how many items are done, and how many there are (0: not known)."""


@dataclass
class OnRamp:
    """What a run did."""

    report: IngestReport
    fit: Fit | None  # None: the index was there, with its model
    items: int
    hint: str | None  # what people should know of it


def index_with_encoder(
    paths: Sequence[str | Path],
    output: Path,
    uri: str,
    config: IngestConfig,
    *,
    fit_config: FitConfig | None = None,
    device: torch.device | str = "cpu",
    thumbnails: int = 256,
    tell: Tell | None = None,
    say: Say | None = None,
) -> OnRamp:
    """Make an index of files with a model that is fitted to them; add to it if it is there."""
    try:
        return _index(paths, output, uri, config, fit_config, device, thumbnails, tell, say)
    except GeniusError as error:
        if "disk is full" in str(error):
            raise GeniusError(f"{error}. What is done is kept: make room and run it again") from None
        raise


def _index(
    paths: Sequence[str | Path],
    output: Path,
    uri: str,
    config: IngestConfig,
    fit_config: FitConfig | None,
    device: torch.device | str,
    thumbnails: int,
    tell: Tell | None,
    say: Say | None,
) -> OnRamp:
    heard, said, started = tell or (lambda *_: None), say or (lambda _: None), time.monotonic()
    about = read_about(output)
    if about is not None and about.source != INSIDE:
        raise GeniusError(
            f"{output} has the model {about.source or about.fingerprint[:8]}: --encoder makes a new index, choose another path"
        )
    encoded: Encoded | None = None
    fit = None
    if about is None:
        unfitted = Unfitted(uri, device)
        make_folder(output)
        encoded = Encoded(output / ENCODED, unfitted.encoder.fingerprint())
        some, problems = _encode(unfitted, encoded, paths, config, heard)
        if not len(encoded):
            encoded.remove()
            with suppress(OSError):  # it holds something else
                output.rmdir()
            why = f" ({problems[0]})" if problems else ""
            where = ", ".join(map(str, paths))
            raise GeniusError(f"nothing to index under {where}: no picture, text or table could be read{why}")
        said("making up questions")
        questions = make_up(unfitted.encoder, [item for item, _ in some])
        rows = [encoded.rows[key] for _, key in some]
        moved = questions.answers.clone()
        moved[questions.answers >= 0] = moved.new_tensor(rows)[questions.answers[questions.answers >= 0]]
        fit = unfitted.fit_features(_full(encoded), replace(questions, answers=moved), fit_config, said)
        fit.model.save_pretrained(output / MODEL)
        fit.model.source = f"local-dir:{(output / MODEL).absolute()}"
    with Index(output, None if fit is None else fit.model, thumbnails=thumbnails) as index:
        _check_encoder(index, uri)
        index.model.to(device)
        if encoded is None and (output / ENCODED).is_dir() and index.model.encoder is not None:
            encoded = Encoded(output / ENCODED, index.model.encoder.fingerprint())
        before = 0 if encoded is None else _write(index, encoded, paths, config, heard)
        report = ingest(index, paths, config, lambda count: heard("indexing", count, 0))
        report.added, report.unchanged = report.added + before, report.unchanged - before
        report.seconds = time.monotonic() - started - (0.0 if fit is None else fit.seconds)
        if encoded is not None:
            encoded.remove()
        return OnRamp(report, fit, index.count(), index.advice())


def _check_encoder(index: Index, uri: str) -> None:
    own = index.model.config.encoder
    if own != settled(uri):
        raise GeniusError(f"{index.path} was fitted over {own}, not over {uri}: leave --encoder out, or choose another path")


def _encode(
    unfitted: Unfitted, encoded: Encoded, paths: Sequence[str | Path], config: IngestConfig, tell: Tell
) -> tuple[list[tuple[Item, Key]], Problems]:
    """Encode what is not encoded yet; some items, to make up questions from, and what could not be read."""
    nowhere = IngestReport()  # those who get an index hear of problems when items are written
    found = list(find_files(paths, config, nowhere))
    some: list[tuple[Item, Key]] = []
    stride = max(1, len(found) // (4 * MOST))
    seen: set[str] = set()
    done = 0
    for batch in batched(read_items(found, config, nowhere, lambda _: None), AT_ONCE):
        fresh = [(item, stamp) for item, stamp in batch if _key(item, stamp) not in encoded and item.id not in seen]
        seen.update(item.id for item, _ in batch)
        if fresh:
            features, kept, bad = encode_items(unfitted.encoder, [item for item, _ in fresh], on_error="skip", batch_size=32)
            nowhere.problems += bad
            encoded.add([_key(*fresh[row]) for row in kept], features)
        some += [(item, _key(item, stamp)) for item, stamp in batch[::stride] if _key(item, stamp) in encoded and _light(item)]
        done += len(batch)
        tell("encoding", len(batch), max(len(found), done))
    return some, nowhere.problems


def _write(index: Index, encoded: Encoded, paths: Sequence[str | Path], config: IngestConfig, tell: Tell) -> int:
    """Write the items whose features are known; how many."""
    nowhere, added = IngestReport(), 0

    def known() -> Iterator[tuple[Item, Stamp]]:
        seen: set[str] = set()
        for item, stamp in read_items(list(find_files(paths, config, nowhere)), config, nowhere, lambda _: None):
            if item.id not in seen and _key(item, stamp) in encoded and item.id not in index:
                yield item, stamp
            seen.add(item.id)

    for batch in batched(known(), config.batch_size):
        features = encoded.of([_key(item, stamp) for item, stamp in batch])
        report = writing.write(
            index._state, batch, replace=True, batch_size=len(batch), on_error="skip", features=features.to("cpu", torch.float32)
        )
        added += report.added
        tell("indexing", len(batch), len(encoded))
    return added


def _full(encoded: Encoded) -> Features:
    return encoded.all().to("cpu", torch.float32)


def _key(item: Item, stamp: Stamp) -> Key:
    return item.id, stamp.mark


def _light(item: Item) -> bool:
    """Whether an item may be held in memory: its picture is a path."""
    return not isinstance(item.image, bytes)
