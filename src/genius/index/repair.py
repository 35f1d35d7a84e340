"""Bringing an index back: from a copy that was made while all was well, or out of a damaged table.

A snapshot is a copy of an index as it is at one moment, taken while others write, and brought back while others search. It is an
index folder like any other: it can be opened, searched, checked, and restored from. Pictures that were indexed by path are not in
it, nor is the model: both are named. A model that was fitted to the index goes along.

A repair finds the newest version that can be read, and writes every sound row of it as a new version. Nothing is thrown away:
versions that are passed over go to `aside/`, files of rows stay until the index is optimized. What could not be brought back is
named. Caches are built anew when they are needed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genius.errors import GeniusError, Problems, counted
from genius.files import disk_errors, rename, sync_tree
from genius.index import cache, learned
from genius.index.check import check
from genius.index.commit import HINT, VERSIONS, holds_data, set_aside, table_folder, versions_on_disk
from genius.index.folder import (
    CODES_FORMAT,
    INSIDE,
    About,
    WriteLock,
    about_of,
    deleted_ids,
    describe_model,
    finish_swap,
    keep_deleted,
    load_index_model,
    make_folder,
    open_store,
    read_about,
    sync_name,
    write_about,
)
from genius.index.ledger import VECTORS, Ledger, LedgerState, file_sum
from genius.index.paths import (
    ABOUT,
    CACHE,
    LEARNED,
    LEDGER,
    MODEL,
    ORIGIN,
    is_sibling,
    origin_of,
    refuse_foreign,
    remove,
    snapshot_of,
    write_origin,
)
from genius.index.reader import Reader, Vanished, good_rows, readable_rows, resealed
from genius.index.store import Store
from genius.types import Item

if TYPE_CHECKING:
    from genius.model.genius import Genius

BELIEVED = 20  # versions that may be missing at the end; a ledger that says more is wrong
ATTEMPTS = 5  # of a copy whose version is cleaned away meanwhile
LOCK_S = 5.0  # seconds that a snapshot waits for another one of the same name


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied where."""

    source: Path
    target: Path
    version: int  # of the source
    items: int

    def to_dict(self) -> dict[str, Any]:
        return {"from": str(self.source), "to": str(self.target), "version": self.version, "items": self.items}


def snapshot(source: str | Path, target: str | Path, version: int | None = None) -> Copied:
    """Copy an index, at its newest version or an older one, into a new folder. It appears whole or not at all.

    Args:
        source: The index.
        target: The new folder.
        version: That is copied; None: the newest.
    """
    source = Path(source)
    target = Path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise GeniusError(f"{target} is there already: choose another path for the copy")
    about = about_of(source)
    _sweep(target.absolute().parent, about.id)
    with _half_made(target, about.id) as folder:
        return _retried(source, about, version, lambda reader: _copy(source, about, reader, folder, target))


@contextlib.contextmanager
def _half_made(target: Path, owner: str) -> Iterator[Path]:
    """The folder beside `target` in which a snapshot of the index with the id `owner` is made; removed unless it was renamed.

    Only one process makes a snapshot of this name at a time.
    """
    folder = snapshot_of(target)
    if os.path.lexists(folder) and not is_sibling(folder, target, origin_of(folder)):
        raise GeniusError(f"{folder} is in the way: it is not a snapshot on its way to {target}; move it elsewhere")
    with contextlib.ExitStack() as held:
        _claim(folder, held)
        try:
            write_origin(folder, owner)
            yield folder
        finally:
            if folder.exists():
                remove(folder, target, owner)


def _claim(folder: Path, held: contextlib.ExitStack) -> None:
    """Make a folder and lock it; again, if another snapshot took it for a killed one's before it was locked, and removed it."""
    for attempt in range(ATTEMPTS):
        try:
            make_folder(folder)
            if sys.platform == "win32":  # Windows cannot rename a folder with an open file
                return
            held.enter_context(WriteLock(folder / ".lock", LOCK_S).hold())
        except GeniusError:
            if folder.exists() or attempt == ATTEMPTS - 1:  # removed five times over, or never made: a disk for reading only
                raise
            continue
        if (folder / ".lock").exists():
            return
        held.close()
    raise GeniusError(f"cannot write {folder}: another process removes it")


def _sweep(parent: Path, owner: str) -> None:
    """Remove what killed snapshots of the index with the id `owner` left in a folder."""
    try:
        found = list(parent.glob(".*.snapshot"))
    except OSError:
        return
    for path in found:
        target = path.with_name(path.name.removeprefix(".").removesuffix(".snapshot"))
        if is_sibling(path, target, owner) and sys.platform != "win32":
            with contextlib.suppress(GeniusError), WriteLock(path / ".lock", 0.0).hold():
                remove(path, target, owner)


def _retried(source: Path, about: About, version: int | None, copy: Any) -> Copied:
    """Copy; again, from what is newest then, if another process cleans the version away meanwhile."""
    for attempt in range(ATTEMPTS):
        store = open_store(source, about)
        try:
            result: Copied = copy(store.at(store.latest() if version is None else version))
            return result
        except Vanished:
            if version is not None:
                raise GeniusError(f"version {version} of {source} is not there (genius info {source} --versions)") from None
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _copy(source: Path, about: About, reader: Reader, temporary: Path, target: Path) -> Copied:
    for path in temporary.iterdir():  # of an attempt whose version was removed by genius optimize
        if path.name not in (".lock", ORIGIN):
            remove(path, temporary)
    copied = {"id": about.id, "version": reader.version, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    described = replace(about, id=uuid.uuid4().hex, copied=copied)
    store = Store.fill(temporary, reader.schema, good_rows(reader))
    store.index_words(reader.words_columns())
    state = store.begin_ledger(described.to_dict())
    write_about(temporary, described)
    with disk_errors(f"cannot write {target}", "; nothing was written"):
        if about.source == INSIDE:
            _copy_files(source / MODEL, temporary / MODEL)
        if learned.stamp(source) is not None:
            _copy_files(source / LEARNED, temporary / LEARNED)
        _carry_deleted(deleted_ids(source), reader, temporary)
        remove(temporary / ORIGIN, temporary)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rmdir()  # empty, or this fails
        rename(temporary, target)
    sync_name(target, f"{target} is made")
    return Copied(source, target, reader.version, state.items)


def _carry_deleted(ids: set[str], reader: Reader, target: Path) -> None:
    """Note in an index which files stay deleted when their folder is indexed again.

    Args:
        ids: That were deleted by hand; those that `reader` holds came back with it.
        reader: What the index will hold.
        target: Of the index.
    """
    if not ids and not deleted_ids(target):
        return
    alive = {row["id"] for row in reader.stream(["id"])}
    keep_deleted(target, ids - alive)


def _copy_files(source: Path, target: Path) -> None:
    """Copy a file or a folder; every file is on the disk and has the checksum of its original when this returns."""
    copies = {source: target}
    if source.is_dir():
        shutil.copytree(source, target)
        copies = {path: target / path.relative_to(source) for path in sorted(source.rglob("*")) if path.is_file()}
    else:
        shutil.copyfile(source, target)
    for original, copy in copies.items():
        if file_sum(original) != file_sum(copy):
            raise GeniusError(f"{original} cannot be copied: {copy} reads back as something else")
    sync_tree(copies.values(), sorted({copy.parent for copy in copies.values()}, reverse=True))


def restore(source: str | Path, target: str | Path, version: int | None = None, *, replace_items: bool = False) -> Copied:
    """Bring a snapshot, or an older version of an index, back.

    A new folder becomes a copy. An index that exists gets the snapshot's items in place of all of its own, in one change
    that processes which search it follow by themselves; what it held stays an older version for as long as those are kept.

    Args:
        source: A snapshot, or an index.
        target: A new folder, or an index.
        version: Of the source; None: the newest.
        replace_items: Replace all items of an index that exists.
    """
    source = Path(source)
    target = Path(target)
    there = read_about(target)
    if there is None:
        return snapshot(source, target, version)
    if not replace_items:
        raise GeniusError(f"{target} already holds items: --replace replaces them with those of {source}")
    about = about_of(source)
    if about.fingerprint != there.fingerprint:
        raise GeniusError(f"{source} and {target} belong to different models ({about.fingerprint[:8]}, {there.fingerprint[:8]})")
    return _retried(source, about, version, lambda reader: _replace(source, reader, target))


def _replace(source: Path, reader: Reader, target: Path) -> Copied:
    with WriteLock(target / ".lock", 30.0).hold():
        store = open_store(target, about_of(target))
        _carry_deleted(deleted_ids(source) | deleted_ids(target), reader, target)
        with store.change():
            items = store.overwrite(reader.schema, resealed(good_rows(reader), reader.schema, store.next_seq(long=True)))
            store.index_words(reader.words_columns())
        return Copied(source, target, reader.version, items)


SAMPLE = 16  # items that are encoded again to see whether a model is the index's own


@dataclass(slots=True)
class RepairReport:
    """What was done, and what could not be brought back; one line each."""

    path: Path
    done: list[str] = field(default_factory=list)
    lost: Problems = field(default_factory=Problems)
    items: int = 0
    version: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "done": self.done,
            "lost": list(self.lost),
            "lost_count": self.lost.total,
            "items": self.items,
            "version": self.version,
        }


def repair(folder: str | Path, model: Genius | str | Path | None = None) -> RepairReport:
    """Make an index whole again.

    Args:
        folder: Of the index.
        model: Needed only if neither `genius.json` nor the ledger says which one it is.
    """
    folder = Path(folder)
    report = RepairReport(folder)
    finish_swap(folder)
    refuse_foreign(folder)
    if not holds_data(folder) and not (folder / LEDGER).exists():
        raise GeniusError(f"no index at {folder}, or none that ever held an item: there is nothing to bring back")
    with WriteLock(folder / ".lock", 30.0).hold():
        if not check(folder).ok and (folder / CACHE).exists():
            cache.forget(folder / CACHE, keep=None)
            report.done.append("removed cache/: it is built anew when needed")
        if check(folder).ok:
            report.done.append("the table is as it was written")
            store = Store.open(folder)
            store.recover()
            report.version = store.latest()
            report.items = store.at(store.latest()).count()
            return report
        remove(table_folder(folder) / VERSIONS / HINT, folder)
        state = _ledger_state(folder, report)
        reader = _best_version(folder, state, report)
        about = _about(folder, state, model, reader, report)
        fresh = _write_sound_rows(folder, reader, state, about, report)
        write_about(folder, about)
        report.done.append(f"wrote {ABOUT} and {LEDGER}")
        report.version = fresh.head
        report.items = fresh.items
    return report


def _ledger_state(folder: Path, report: RepairReport) -> LedgerState | None:
    try:
        return Ledger(folder).read()
    except GeniusError:
        report.done.append(f"{LEDGER} cannot be read: the newest version of the table that can be is taken")
        return None


# -- which version -----------------------------------------------------------------------------------------------


def _best_version(folder: Path, state: LedgerState | None, report: RepairReport) -> Reader:
    """The newest version that opens; an older one only if it is whole and has more rows than can be read of that."""
    found = [version for version in reversed(versions_on_disk(folder)) if state is None or version <= state.head]
    if state is not None and state.head not in found:
        report.lost.append(f"version {state.head}, with {counted(state.items, 'item')}, is not there any more")
    newest = None
    sound = 0
    for version in found:
        try:
            reader = _opened(folder, version)
            total = reader.count()
        except GeniusError as error:
            if newest is None:
                report.lost.append(f"version {version} cannot be opened ({error})")
            continue
        if newest is None:
            newest = reader
            sound = sum(batch.num_rows for batch in readable_rows(reader, lambda _: None))
            if sound == total:
                break
            readable = f"only {sound} of {counted(total, 'item')} of version {version} can be read"
        elif (state is None or version in state.shown) and total > sound and _is_whole(reader):
            report.lost.append(f"{readable}: version {version} has more")
            newest = reader
            break
    if newest is None:
        raise GeniusError(f"no version of {folder} can be read: restore it from a snapshot (genius restore)")
    report.done.append(f"took version {newest.version}")
    return newest


def _opened(folder: Path, version: int) -> Reader:
    """The table at a version, without newer ones. A disk that fails for a moment must not cost a version."""
    for attempt in range(ATTEMPTS):
        try:
            return Store.alone(folder, version)
        except GeniusError:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _is_whole(reader: Reader) -> bool:
    try:
        return reader.count() == sum(int(batch.num_rows) for batch in good_rows(reader))
    except GeniusError:
        return False


def _write_sound_rows(folder: Path, reader: Reader, state: LedgerState | None, about: About, report: RepairReport) -> LedgerState:
    """Write the sound rows of a version as a new one, with new numbers. Newer versions are set aside."""
    words: list[str] = []
    with contextlib.suppress(GeniusError):  # a full-text index may be damaged: it can be made again
        words = reader.words_columns()
    set_aside(folder, reader.version)
    store = Store(folder)
    rows = readable_rows(reader, report.lost.append)
    try:
        store.overwrite(reader.schema, resealed(rows, reader.schema, store.next_seq(long=True)))
        store.index_words(words)
    except GeniusError:
        set_aside(folder, reader.version)
        raise
    report.done.append("wrote the items that can be read as a new version")
    if state is not None:  # beyond the last that was acknowledged, if that can be believed
        store.pass_by(min(state.head, reader.version + BELIEVED))
    return store.begin_ledger(about.to_dict())


# -- which model -------------------------------------------------------------------------------------------------


def _about(
    folder: Path, state: LedgerState | None, model: Genius | str | Path | None, reader: Reader, report: RepairReport
) -> About:
    """`genius.json` as it is, else from the ledger, else from the model that is named."""
    known: About | None = None
    try:
        known = read_about(folder)
    except GeniusError:
        report.done.append(f"{ABOUT} is missing or damaged")
    if known is None and state is not None:
        known = About.from_dict(state.about)
        report.done.append(f"{ABOUT} comes from {LEDGER}")
    if model is None:
        if known is None:
            raise GeniusError(f"nothing in {folder} says which model it belongs to: name it (--model)")
        return known
    loaded = load_index_model(folder, model, None)
    named = describe_model(loaded, folder)
    if known is not None and known.fingerprint != named.fingerprint:
        raise GeniusError(f"{folder} belongs to another model ({known.fingerprint[:8]}) than the one named")
    if known is None:
        _check_model(loaded, reader, report)
        known = named
        if "_embedding" not in reader.schema.names:
            known = replace(named, format=CODES_FORMAT)
    return replace(known, source=named.source or known.source, copied={})


def _check_model(model: Genius, reader: Reader, report: RepairReport) -> None:
    """Does this model give the items the codes that they have?"""
    sizes = {name: reader.schema.field(name).type.list_size for name in VECTORS if name in reader.schema.names}
    config = model.config.quantizer
    if sizes not in ({"_codes": config.levels, "_embedding": config.width}, {"_codes": config.levels}):
        raise GeniusError(f"the model gives {config.levels} codes and vectors of {config.width}; the table has {sizes}")
    texts: list[tuple[Item, list[int]]] = []
    for row in reader.stream(["id", "text", "_codes"], "modality = 'text'"):
        texts.append((Item(row["id"], text=row["text"]), list(row["_codes"])))
        if len(texts) == SAMPLE:
            break
    if not texts or model.encoder is None:
        report.done.append("no item to compare the model with: it is taken at your word")
        return
    embedded = model.embed_items([item for item, _ in texts])
    labels = None
    if config.labelled:
        labels = embedded.modality
    same = sum(a == b for a, b in zip(model.quantizer.encode(embedded.z, labels).tolist(), (c for _, c in texts), strict=True))
    if same < 0.75 * len(texts):
        raise GeniusError(
            f"the model gives {len(texts) - same} of {len(texts)} items other codes: it is not the model of this index"
        )
