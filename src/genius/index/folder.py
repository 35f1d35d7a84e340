"""The index folder: `genius.json` says which model an index belongs to; the table and its ledger lie next to it.

Knows how a folder becomes an index, how it refuses another model, that one writer at a time works in it, on every system, and how
one folder takes the place of another (`swap`): a kill at any moment leaves one of the two under the name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from genius.errors import GeniusError, said
from genius.files import (
    disk_errors,
    open_regular,
    parse_json,
    read_json,
    rename,
    sync_directory,
    sync_tree,
    write_json,
    write_whole,
)
from genius.index import learned
from genius.index.commit import holds_data
from genius.index.ledger import Damaged, seal, unseal
from genius.index.paths import (
    ABOUT,
    DELETED,
    HALF,
    LEDGER,
    MAX_SMALL,
    MODEL,
    OWN,
    is_sibling,
    origin_of,
    previous_of,
    refuse_foreign,
    remove,
    replacement_of,
    write_origin,
)
from genius.index.reader import Reader
from genius.index.store import Store
from genius.model.graphs import load_model as open_model
from genius.types import Modality

if TYPE_CHECKING:
    from genius.model.genius import Genius

# where a file system has no locks, newer releases would fall back to a file that outlives its process: refuse instead
_STRICT: dict[str, Any] = {"fallback_to_soft": False} if "fallback_to_soft" in signature(FileLock.__init__).parameters else {}
FORMAT = 2
"""Of the folder; see docs/trust.md."""

CODES_FORMAT = 3
"""Of a folder that stores codes and no vectors; otherwise as 2."""

MAX_DELETED = 64 << 20  # bytes of the file of deleted ids
LOOKS, LOOK_S = 20, 0.05  # at an index that another process may be replacing at this moment
INSIDE = "inside:"
"""A model that was fitted to this collection lies in the index's own folder, and its source says just that: it moves along."""


class WriteLock:
    """`with lock.hold():` waits up to `timeout` seconds for other threads and processes, then says who holds it."""

    def __init__(self, path: Path, timeout: float) -> None:
        self.path = path
        self.timeout = timeout
        self._thread = threading.RLock()
        self._depth = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        deadline = time.monotonic() + self.timeout
        if not self._thread.acquire(timeout=max(self.timeout, 0.0)):
            raise GeniusError(f"{self.path.parent} is being written by another thread; waited {self.timeout:g} s")
        try:
            if self._depth:  # the same thread again
                yield
                return
            lock = self._acquire(deadline)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                self._sign("")
                lock.release()
        finally:
            self._thread.release()

    def _acquire(self, deadline: float) -> FileLock:
        lock = FileLock(self.path, thread_local=False, **_STRICT)
        try:
            lock.acquire(timeout=max(deadline - time.monotonic(), 0.0), poll_interval=0.02)
        except Timeout:
            raise GeniusError(
                f"{self.path.parent} is being written by another process ({self._owner()}); waited {self.timeout:g} s"
            ) from None
        except OSError as error:
            raise GeniusError(f"cannot write to {self.path.parent}: {error.strerror or error}") from None
        self._sign(f"pid {os.getpid()}")
        return lock

    def _sign(self, owner: str) -> None:
        """Say who holds the lock: a courtesy, for which there may be no space, or (Windows) no permission."""
        with contextlib.suppress(OSError):
            self.path.write_text(owner)

    def _owner(self) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return self.path.read_text(encoding="ascii")[:32].strip() or "unknown"
        return "unknown"


def swap(folder: Path, fresh: Path) -> None:
    """Put the whole folder `fresh`, which lies next to `folder`, in its place. The caller holds the lock of `folder`.

    The old index stays for one generation (`.NAME.previous`); the generation before that is deleted. A kill between the
    two renames leaves both folders whole, and `finish_swap` does the second rename.

    Args:
        folder: the index that is replaced.
        fresh: a folder of `begin_replacement` that holds a whole, verified index.
    """
    about = about_of(folder)
    previous = previous_of(folder)
    try:
        if (folder / DELETED).is_file():
            shutil.copyfile(folder / DELETED, fresh / DELETED)
        inside = [*fresh.rglob("*")]
        sync_tree((p for p in inside if p.is_file()), (p for p in (fresh, *inside) if p.is_dir()))
        if previous.is_symlink() or previous.exists():
            remove(previous, folder, origin_of(folder))
        rename(folder, previous)
        take_name(
            folder,
            fresh,
            previous,
            f"{folder} is made anew, but cannot be renamed; it lies in {fresh}, what it was before in {previous}; the next "
            f"command that writes, or genius repair {folder}, finishes it",
        )
    except (OSError, GeniusError) as error:
        if isinstance(error, Unfinished):
            raise
        with contextlib.suppress(GeniusError):  # the next writer removes it
            remove(fresh, folder, about.id)
        raise GeniusError(f"cannot replace {folder}: {getattr(error, 'strerror', None) or error}; it is unchanged") from None
    sync_name(folder, f"{folder} is made anew")


def sync_name(folder: Path, done: str) -> None:
    """Sync the name of a folder that was renamed.

    Args:
        folder: By its new name.
        done: What is done already, for the error.
    """
    with disk_errors(f"{done}, but a power cut may undo it"):
        sync_directory(folder.absolute().parent)


class Unfinished(GeniusError):
    """Both folders of a swap are whole, and none has the name: `finish_swap` gives it to the new one."""


def take_name(folder: Path, new: Path, old: Path, both_fail: str) -> None:
    """Rename `new` to `folder`, which is `old` now; if that fails, the old one gets its name back.

    Args:
        folder: The name.
        new: The index that is to have it.
        old: The index that had it.
        both_fail: What to say when neither can be renamed.

    Raises:
        OSError: The old one has its name back.
        Unfinished: Neither has it.
    """
    try:
        rename(new, folder)
    except OSError as error:
        try:
            rename(old, folder)
        except OSError:
            raise Unfinished(f"{both_fail}: {error.strerror or error}") from None
        raise


def begin_replacement(folder: Path, about: About) -> Path:
    """A new folder next to an index, to take its place; what earlier attempts left is removed. The caller holds the lock.

    Args:
        folder: Of the index.
        about: What it is.
    """
    clear(folder, about)
    previous = previous_of(folder)
    if (previous.is_symlink() or previous.exists()) and not is_sibling(previous, folder, origin_of(folder)):
        raise GeniusError(f"{previous} is in the way: it is not the previous generation of {folder}; move it elsewhere")
    fresh = replacement_of(folder)
    with disk_errors(f"cannot write {fresh}"):
        fresh.mkdir()
    write_origin(fresh, about.id)
    return fresh


def clear(folder: Path, about: About) -> None:
    """Remove what killed writers left: a replacement next to the index, half-written files in it. The caller holds the lock, so
    none of them is still being written.

    Args:
        folder: Of the index.
        about: What it is.
    """
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name.startswith(HALF):
                remove(path, folder)
    if is_sibling(replacement_of(folder), folder, about.id):
        remove(replacement_of(folder), folder, about.id)


def unfinished_swap(folder: Path) -> tuple[Path, Path] | None:
    """The new and the old folder of a swap that was broken off between its two renames; None if there is none.

    Args:
        folder: The name that neither has.
    """
    if folder.is_symlink() or folder.exists():
        return None
    old = previous_of(folder)
    fresh = replacement_of(folder)
    owner = origin_of(fresh)
    ours = owner is not None and is_sibling(fresh, folder, owner) and is_sibling(old, folder, owner)
    if ours and (fresh / ABOUT).is_file() and (old / ABOUT).is_file():
        return fresh, old
    return None


def finish_swap(folder: Path) -> None:
    """Do the second rename of a swap that was broken off. Only for commands that write.

    Args:
        folder: The name that neither folder has, or an index to which nothing happens.
    """
    found = unfinished_swap(folder)
    if found is None:
        return
    fresh, old = found
    failed = f"{folder} was being replaced when that was broken off, and cannot be put back"
    with WriteLock(old / ".lock", 30.0).hold(), disk_errors(failed, f"; it is whole in {old}"):
        if not folder.exists():  # whoever swaps holds this lock: it moved along
            rename(fresh, folder)
            sync_directory(folder.absolute().parent)


@dataclass(frozen=True, slots=True)
class About:
    """The contents of `genius.json`."""

    id: str  # unique to this index
    source: str | None  # URI of the model, for opening without naming it
    fingerprint: str  # of the model
    levels: tuple[int, ...]  # codebook sizes
    width: int  # of the embeddings
    created: str
    copied: Mapping[str, Any] = field(default_factory=dict)  # of a snapshot: id, version and time of what it was taken from
    format: int = FORMAT

    @property
    def vectors(self) -> bool:
        """Whether the table stores vectors, and not only codes."""
        return self.format != CODES_FORMAT

    @property
    def stored_width(self) -> int | None:
        """Of stored vectors; None: there are none."""
        if self.vectors:
            return self.width
        return None

    def to_dict(self) -> dict[str, Any]:
        body = {
            "format": self.format,
            "id": self.id,
            "model": {"source": self.source, "fingerprint": self.fingerprint},
            "levels": list(self.levels),
            "width": self.width,
            "created": self.created,
        }
        if self.copied:
            return {**body, "copied": dict(self.copied)}
        return body

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> About:
        model = body["model"]
        about = cls(
            body["id"],
            model["source"],
            model["fingerprint"],
            tuple(body["levels"]),
            body["width"],
            body["created"],
            body.get("copied", {}),
            body["format"],
        )
        texts = (about.id, about.fingerprint, about.created, about.source or "")
        numbers = (about.width, *about.levels)
        if not all(isinstance(t, str) for t in texts) or not all(type(n) is int and 0 < n < 2**31 for n in numbers):
            raise ValueError("its fields are not what they should be")
        return about


def read_about(folder: Path) -> About | None:
    """None if there is no index. A table with items but without a readable `genius.json` is damage, not "no index".

    Args:
        folder: Of the index, or where one would be.
    """
    refuse_foreign(folder)
    path = folder / ABOUT
    mend = f"genius repair {folder} writes it anew from the table"
    try:
        with open_regular(path) as file:
            text = file.read(MAX_SMALL).decode()
    except (FileNotFoundError, NotADirectoryError):
        if _appears(folder):
            return read_about(folder)
        if holds_data(folder):
            raise Damaged(f"{folder} holds a table with items but no {ABOUT}: {mend}") from None
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Damaged(f"cannot read {path}: {error}; {mend}") from None
    try:
        body = parse_json(text)
        number = body.get("format")
        if number not in (FORMAT, CODES_FORMAT):
            raise GeniusError(f"{folder} has index format {number!r}; this version reads {FORMAT} and {CODES_FORMAT}")
        return About.from_dict(unseal(text))
    except GeniusError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"cannot read {path}: {error}; {mend}") from None


def _appears(folder: Path) -> bool:
    """Whether an index that is missing because another process is replacing it has come; False if there is none.

    Raises:
        GeniusError: the replacement was broken off between its two renames.
    """
    for _ in range(LOOKS):
        if unfinished_swap(folder) is None:
            return (folder / ABOUT).is_file()  # it may have come since the caller looked for it
        time.sleep(LOOK_S)
    raise GeniusError(f"a replacement of {folder} was interrupted; nothing is lost: genius repair {folder} finishes it")


def write_about(folder: Path, about: About) -> None:
    """Write `genius.json`.

    Args:
        folder: Of the index.
        about: What the index is.
    """
    text = seal(about.to_dict())
    write_whole(folder / ABOUT, lambda path: path.write_text(text, encoding="utf-8"), durable=True)


def about_of(folder: Path) -> About:
    """What an index is; an error if there is none.

    Args:
        folder: Of the index.
    """
    about = read_about(folder)
    if about is None:
        raise GeniusError(f"no index at {folder}")
    return about


def open_store(folder: Path, about: About) -> Store:
    """The table of an index; refused if its files are not as they were written.

    Args:
        folder: Of the index.
        about: What `genius.json` says of it.
    """
    if not (folder / LEDGER).is_file():
        raise Damaged(f"{folder} is damaged: {LEDGER} is missing; genius repair {folder}")
    store = Store.open(folder)
    state = store.ledger.read()
    if state is not None and dict(state.about) != about.to_dict():
        raise Damaged(f"{folder} is damaged: {ABOUT} and {LEDGER} are not of the same index; genius repair {folder}")
    return store


def open_or_create(
    folder: Path, model: Genius | str | Path | None, create: bool, lock: WriteLock, vectors: bool = True
) -> tuple[About, Genius, Store]:
    if create:
        finish_swap(folder)
    if create:
        about = read_about(folder)
    else:
        about = about_of(folder)
    loaded = load_index_model(folder, model, about)
    if about is None:
        about = _create(folder, loaded, lock, vectors)
    if about.vectors and not vectors:
        raise GeniusError(f"{folder} stores vectors: an index without them has to be made anew, in another folder")
    fingerprint = loaded.fingerprint()
    if about.fingerprint != fingerprint:
        built = about.source or "another model"
        if built == INSIDE:
            built = "the model in its own folder"
        built = f"{built} ({about.fingerprint[:8]})"
        raise GeniusError(
            f"{folder} was built with {built}, not with this model ({fingerprint[:8]}): genius reencode changes its encoder"
        )
    config = loaded.config.quantizer
    if (about.levels, about.width) != (config.level_sizes, config.width):
        raise Damaged(f"{folder} is damaged: the level sizes in {ABOUT} differ from those of its model; genius repair {folder}")
    return about, loaded, open_store(folder, about)


def describe_index(folder: Path, about: About, reader: Reader) -> dict[str, Any]:
    """What an index is, without its model being loaded.

    Args:
        folder: Of the index.
        about: What `genius.json` says.
        reader: The version that is described.
    """
    return {
        "path": str(folder),
        "format": about.format,
        "items": reader.count(),
        "modalities": {modality.label: reader.count(f"modality = '{modality.label}'") for modality in Modality},
        "metadata": dict(reader.columns),
        "model": about.source,
        "fingerprint": about.fingerprint,
        "levels": list(about.levels),
        "width": about.width,
        "vectors": about.vectors,
        "version": reader.version,
        "created": about.created,
        "bytes": _size(folder),
        "learned": _learned(folder, about),
    }


def _learned(folder: Path, about: About) -> dict[str, Any] | None:
    """What the index has learned from queries; None: nothing, or nothing of this model."""
    bank = learned.load(folder, about.fingerprint, about.width, None)
    if bank is None:
        return None
    found = learned.learned_metadata(folder)
    return {
        "queries": int(found.get("queries", len(bank))),
        "time": found.get("learned"),
        "version": int(found.get("version", "0")),
        "chosen_by": found.get("chosen_by"),
        "directions": [asdict(direction) for direction in learned.directions_of(bank)],
    }


def _size(folder: Path) -> int:
    """Bytes of all files; some may vanish while we look."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total


def load_index_model(folder: Path, model: Genius | str | Path | None, about: About | None, graphs: bool = False) -> Genius:
    """The model of an index.

    Args:
        folder: Of the index.
        model: The model itself, its URI, or None for the one that the index was built with.
        about: Of the index; None: it is yet to be made.
        graphs: Take stored graphs, which need no torch, where the model has them.
    """
    if model is not None and not isinstance(model, str | Path):
        return model
    if model is None:
        if about is None:
            raise GeniusError(f"no index at {folder}: creating one needs a model")
        if about.source is None:
            raise GeniusError(f"{folder} does not say where its model lies: name it (--model)")
        if about.source == INSIDE:
            model = folder / MODEL
        else:
            model = about.source
    return open_model(model, graphs=graphs)


def source_of(model: Genius) -> str | None:
    """The URI a model came from; paths absolute, so that the index opens from any folder."""
    source: str | None = getattr(model, "source", None)
    if source is None:
        return None
    scheme, _, location = source.partition(":")
    if scheme == "local-dir":
        return f"local-dir:{Path(location).absolute()}"
    if location and scheme in ("bundled", "hf-hub"):
        return source
    return f"local-dir:{Path(source).absolute()}"


def describe_model(model: Genius, folder: Path | None = None) -> About:
    """A new index of a model, on paper.

    Args:
        model: Of the index.
        folder: Where the index will be; None: nowhere yet.
    """
    config = model.config.quantizer
    if max(config.level_sizes) > 1 << 16:
        raise GeniusError(f"an index stores codes in 16 bits; this model has levels of {max(config.level_sizes)} codes")
    created = datetime.now(UTC).isoformat()
    source = source_of(model)
    if folder is not None and source == f"local-dir:{(folder / MODEL).absolute()}":
        source = INSIDE
    return About(uuid.uuid4().hex, source, model.fingerprint(), config.level_sizes, config.width, created)


def save_inside(folder: Path, model: Genius) -> None:
    """Save a model into the folder of an index that will be made with it, which then finds it wherever it is moved.

    Args:
        folder: Of the index; made if it is not there.
        model: Its `source` becomes the folder.
    """
    model.source = write_inside(folder, model.save_pretrained)


def write_inside(folder: Path, write: Callable[[Path], None]) -> str:
    """Write a model into the folder of an index that will be made with it.

    Args:
        folder: Of the index; made if it is not there.
        write: Writes the model into the folder that it is given.

    Returns:
        The model's URI.
    """
    make_folder(folder)
    with disk_errors(f"cannot write {folder / MODEL}"):
        write(folder / MODEL)
    return f"local-dir:{(folder / MODEL).absolute()}"


def make_folder(folder: Path) -> None:
    """A folder for a new index, its name on the disk; one that holds anything else is left alone.

    Args:
        folder: Of the index that will be made.
    """
    missing = [path for path in folder.absolute().parents if not path.exists()]
    with disk_errors(f"cannot create an index at {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder, *missing):
            sync_directory(path.absolute().parent)
        # half-written files of ours do not count as foreign: another process may be creating the same index, or was killed at it
        foreign = sorted(p.name for p in folder.iterdir() if p.name not in OWN and not p.name.startswith(HALF))
    if foreign:
        raise GeniusError(f"{folder} is not an index and not empty (it holds {foreign[0]!r}): choose another path")


# -- ids that stay deleted when their folder is indexed again ------------------------------------------------------


def deleted_ids(folder: Path) -> set[str]:
    """Ids of files that were deleted from the index by hand.

    Raises:
        GeniusError: They cannot be read. Taken for none, they would come back, and the next deletion would forget them for good.
    """
    try:
        body = read_json(folder / DELETED, MAX_DELETED)
    except FileNotFoundError:
        return set()
    except GeniusError as error:
        raise GeniusError(f"{said(error)}; nothing is changed (without the file, no id counts as deleted)") from None
    if not isinstance(body, list):
        raise GeniusError(
            f"{folder / DELETED} is not a list of ids; nothing is changed (without the file, no id counts as deleted)"
        )
    return {value for value in body if isinstance(value, str)}


def keep_deleted(folder: Path, ids: Iterable[str]) -> None:
    """Write the ids that stay deleted. The caller holds the lock of the index."""
    write_json(folder / DELETED, sorted(set(ids)), durable=True)


def _create(folder: Path, model: Genius, lock: WriteLock, vectors: bool) -> About:
    if not vectors and not model.fitted:
        raise GeniusError(
            "an index without vectors needs a model whose codes were fitted: genius index --fit, or a trained model"
        )
    make_folder(folder)
    about = describe_model(model, folder)
    if not vectors:
        about = replace(about, format=CODES_FORMAT)
    with lock.hold():
        there = read_about(folder)
        if there is not None:  # another process was quicker
            return there
        store = Store.create(folder, len(about.levels), about.width, vectors)
        store.begin_ledger(about.to_dict())
        write_about(folder, about)  # last: before it, there is no index
        return about
