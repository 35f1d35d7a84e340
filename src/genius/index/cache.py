"""The search side's arrays of one table version, and the folder that caches them.

A cache is only ever a shortcut: deleting `cache/` loses nothing. Which part carries which guarantee:

    base.json   names index, model, version and the checksum of every file: a foreign or damaged cache is not used
    seqs        rows are matched with the table by `_seq`, which is never used twice: what a cached row says stays true
    manifest    the checksum of the version's manifest: at that very version nothing is compared, and hits are shown from here
    extents     vectors are not copied but mapped from the table's files (`extents.py`); `embeddings.npy` where that fails

Rows that are gone or new are found by comparing with the table. A cache is written under another name and renamed. One that is
doubtful in any way is built anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.index.commit import DATA_FILE, data_files, table_folder
from genius.index.extents import Extents, Finder
from genius.index.folder import About
from genius.index.ledger import difference, file_sum, seal, size_in, unseal
from genius.index.paths import MAX_SMALL, remove
from genius.index.reader import HitColumns, Reader
from genius.search import CodeTrie
from genius.search.vectors import StoredVectors

FORMAT = 5
"""Of a cache. One of another format is built anew."""

TRIE = "trie_"  # how the names of the files of a trie begin
BASE = "base.json"
BUILDING = ".building-"  # how the name of a cache that is being written begins
VERIFY_UP_TO = 8 << 30
"""Bytes of a file whose checksum is compared when it is mapped; of larger vectors only the size (`genius check` reads all)."""

MAX_RUNS_PER_ROW = 1 / 16  # more runs than this, and a copy of the vectors is smaller than what says where they are
MAX_SEGMENTS = 64  # arrays that a search visits; of more, a copy of the vectors is quicker


def hash_id(item_id: str) -> int:
    """64 bits of an id; equal hashes are verified against the table.

    Args:
        item_id: Of an item.
    """
    body = item_id.encode("utf-8", "surrogatepass")  # no such id can be stored, but one may be looked up
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "little")


def short_hash(hashes: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The upper half of hashes: what a cache keeps of them."""
    return (hashes >> np.uint64(32)).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class Base:
    """All rows of one version, row i being the i-th smallest `_seq`. Arrays may be memory-mapped."""

    version: int
    seqs: NDArray[np.int64]  # (N,) ascending
    hashes: NDArray[np.uint32]  # (N,) short hashes of ids, ascending
    hash_rows: NDArray[np.int64] | NDArray[np.uint32]  # (N,) row of each hash
    trie: CodeTrie
    segments: Sequence[NDArray[np.float16]]  # each (n, D): the vectors; none where only codes are stored
    order: NDArray[np.int64] | None = None  # (N,) where in the concatenated segments each row's vector is; None: in order
    manifest: str | None = None  # checksum of the file that defines the version
    shown: HitColumns | None = None  # what hits show of the rows, at this very version: metadata of a row may change later
    extents: Extents | None = None  # where the segments lie in the table; None: they are a copy
    cached: bool = False  # whether this came out of a file, and not straight from the table
    has_vectors: bool = True  # whether the table stores vectors, and not only codes

    @property
    def items(self) -> int:
        return len(self.seqs)

    def vectors(self) -> StoredVectors | None:
        """(N, D) vectors: mapped, not copied; None: only codes are stored."""
        if not self.has_vectors:
            return None
        return StoredVectors(self.segments, self.order)

    def exactly(self, reader: Reader) -> bool:
        """Whether this is of the very version that `reader` shows: then nothing needs to be compared."""
        return self.version == reader.version and self.manifest is not None and self.manifest == reader.noted

    def candidates(self, item_id: str) -> NDArray[np.int64]:
        """Rows whose id may be `item_id`."""
        key = np.uint32(hash_id(item_id) >> 32)
        low = np.searchsorted(self.hashes, key, "left")
        high = np.searchsorted(self.hashes, key, "right")
        return np.asarray(self.hash_rows[low:high]).astype(np.int64)


def build(reader: Reader, about: About, folder: Path | None, index: Path | None = None) -> Base:
    """Read every row of a version.

    Args:
        reader: the version.
        about: the index.
        folder: where a copy of the vectors may be written; None: in memory.
        index: the index folder, to look for the vectors in the table's own files; None: copy them.
    """
    level_sizes = about.levels
    width = about.stored_width
    total = reader.count()
    seqs = np.empty(total, np.int64)
    codes = np.empty((total, len(level_sizes)), np.uint16)
    hashes = np.empty(total, np.uint64)
    at = 0
    for part_seqs, ids, part_codes in reader.codes():
        end = at + len(part_seqs)
        _refuse_another_size("codes", part_codes, len(level_sizes))
        seqs[at:end] = part_seqs
        codes[at:end] = part_codes
        hashes[at:end] = [hash_id(i) for i in ids]
        at = end
    if at != total:
        raise GeniusError(f"the index holds {total} items but {at} could be read")
    order = np.argsort(seqs, kind="stable")  # after compaction or upserts the table's order is another
    seqs = seqs[order]
    if (seqs[1:] == seqs[:-1]).any():
        raise GeniusError("the index holds two items with the same number: it is damaged, or was not made by GENIUS")
    by_hash = np.argsort(hashes[order], kind="stable")
    trie = CodeTrie.build(codes[order], level_sizes)
    extents = None
    segments: list[NDArray[np.float16]] = []
    places = None
    if width is not None:
        if index is not None:
            extents = _find(reader, seqs, width, index)
        if extents is not None and index is not None:
            segments, places = extents.mapped(table_folder(index), width)
        else:
            segments = [_copy(reader, seqs, width, folder)]
    return Base(
        reader.version,
        seqs,
        short_hash(hashes[order][by_hash]),
        by_hash.astype(np.int64),
        trie,
        segments,
        places,
        reader.noted,
        extents=extents,
        has_vectors=width is not None,
    )


def _refuse_another_size(what: str, rows: NDArray[Any], size: int) -> None:
    if rows.shape[1] != size:
        raise GeniusError(f"items of this index have {rows.shape[1]} {what}, its model makes {size}: it was made by another")


def _copy(reader: Reader, seqs: NDArray[np.int64], width: int, folder: Path | None) -> NDArray[np.float16]:
    """(N, D) all vectors, in a file of `folder`, or in memory."""
    shape = (len(seqs), width)
    vectors: NDArray[np.float16]
    if folder is not None and len(seqs):
        vectors = _new_file(folder / "embeddings.npy", shape)
    else:
        vectors = np.empty(shape, np.float16)
    for part_seqs, part in reader.embeddings():
        _refuse_another_size("values", part, width)
        vectors[np.searchsorted(seqs, part_seqs)] = part
    return vectors


def _find(reader: Reader, seqs: NDArray[np.int64], width: int, index: Path) -> Extents | None:
    """Where the table's files hold the vectors; None if they do not hold them plainly."""
    try:
        names = data_files(index, reader.version)
        finder = Finder(table_folder(index), names, len(seqs), width)
    except (OSError, ValueError):
        return None
    try:
        for part_seqs, part in reader.embeddings():
            _refuse_another_size("values", part, width)
            finder.add(np.searchsorted(seqs, part_seqs), part)
            if not finder.whole:
                return None
        found = finder.extents()
    finally:
        finder.close()
    if found is None or len(found.runs) > 1 + MAX_RUNS_PER_ROW * len(seqs):
        return None
    if found.arrays(width) > MAX_SEGMENTS:
        return None
    return found


def _new_file(path: Path, shape: tuple[int, int]) -> NDArray[np.float16]:
    """A new array in a file. Its space is allocated at once: running out while writing to a map would kill the process."""
    array: NDArray[np.float16] = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


# -- cache -----------------------------------------------------------------------------------------------------


def _owner(about: About) -> dict[str, Any]:
    """What a cached base belongs to."""
    return {
        "index": about.id,
        "fingerprint": about.fingerprint,
        "levels": list(about.levels),
        "width": about.stored_width,
    }


def build_cached(reader: Reader, about: About, root: Path) -> Base:
    """Build, and leave a cache behind; without disk space or permission, build in memory.

    Args:
        reader: The version.
        about: The index.
        root: Its cache folder.
    """
    try:
        if root.is_symlink():
            raise OSError(f"{root} is a link")
        root.mkdir(exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=root, prefix=BUILDING))
    except OSError:
        return build(reader, about, None)
    try:
        try:
            base = build(reader, about, scratch, root.parent)
        except OSError:
            return build(reader, about, None)
        try:
            HitColumns.write(reader, base.seqs, scratch)
            _write(base, about, scratch)
            target = root / f"{reader.version}"
            if target.exists():
                _discard(target, root.parent)
            scratch.replace(target)
        except (OSError, MemoryError, GeniusError):
            return base  # complete, if not saved; a map of a file that is removed below stays valid
        saved = load(target, about)
        if saved is None:
            return base
        return saved
    finally:
        remove(scratch, root.parent)


def _write(base: Base, owner: About, folder: Path) -> None:
    np.save(folder / "seqs.npy", base.seqs)
    np.save(folder / "hashes.npy", base.hashes)
    np.save(folder / "hash_rows.npy", base.hash_rows.astype(np.uint32 if base.items < 2**32 else np.int64))
    about: dict[str, Any] = {"format": FORMAT, **_owner(owner)}
    about |= {"version": base.version, "items": base.items, "manifest": base.manifest}
    if base.extents is not None:
        np.save(folder / "extents.npy", base.extents.runs)
        table = table_folder(folder.parent.parent)
        about["vectors"] = {name: (table / name).stat().st_size for name in base.extents.files}
    elif base.has_vectors and isinstance(base.segments[0], np.memmap):
        base.segments[0].flush()  # it is the file already
    elif base.has_vectors:
        np.save(folder / "embeddings.npy", base.segments[0])
    about["top"] = base.trie.top
    for name, array in base.trie.arrays().items():
        np.save(folder / f"{TRIE}{name}.npy", array)
    about["files"] = {path.name: file_sum(path) for path in sorted(folder.iterdir())}
    (folder / BASE).write_text(seal(about))


def newest(root: Path, about: About, version: int) -> Base | None:
    """The latest intact cache of a version or an older one.

    Args:
        root: The cache folder.
        about: The index.
        version: Of the table.
    """
    try:
        names = sorted((int(p.name) for p in root.iterdir() if p.name.isdecimal()), reverse=True)
    except (OSError, ValueError):
        return None
    for name in names:
        if name <= version:
            base = load(root / str(name), about)
            if base is not None:
                return base
    return None


def load(folder: Path, owner: About) -> Base | None:
    """Open a cache by memory-map; None unless it is this index's, this model's, and as it was written.

    Args:
        folder: Of the cache.
        owner: The index.
    """
    try:
        about = read_base(folder)
        if any(about.get(name) != value for name, value in _owner(owner).items()):
            return None
        if about["format"] != FORMAT or damage(folder, about["files"]):
            return None
        items = int(about["items"])
        arrays = {name: _mapped(folder / f"{name}.npy") for name in ("seqs", "hashes", "hash_rows")}
        trie = _load_trie(folder, about["files"], owner.levels, int(about["top"]))
        segments: list[NDArray[np.float16]] = []
        order = None
        extents = None
        stored = items
        if owner.stored_width is not None:
            segments, order, extents = _load_vectors(folder, about, owner.stored_width)
            stored = sum(len(segment) for segment in segments)
        if order is not None:
            stored = len(order)
        if any(len(array) != items for array in arrays.values()) or trie.items != items or stored != items:
            return None
        shown = HitColumns.open(arrays["seqs"], folder)
        return Base(
            int(about["version"]),
            arrays["seqs"],
            arrays["hashes"],
            arrays["hash_rows"],
            trie,
            segments,
            order,
            about["manifest"],
            shown,
            extents,
            cached=True,
            has_vectors=owner.stored_width is not None,
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):  # GeniusError is a ValueError
        return None


def read_base(folder: Path) -> dict[str, Any]:
    """What `base.json` says; a ValueError if it is not as it was written.

    Args:
        folder: Of the cache.
    """
    with (folder / BASE).open("rb") as file:
        return unseal(file.read(MAX_SMALL).decode())


def _load_trie(folder: Path, files: Mapping[str, str], level_sizes: tuple[int, ...], top: int) -> CodeTrie:
    """The trie of a cache; pages are read when a search first touches them."""
    names = [name for name in files if name.startswith(TRIE)]
    arrays = {Path(name).stem.removeprefix(TRIE): _mapped(folder / name) for name in names}
    return CodeTrie(level_sizes, arrays, top)


def _load_vectors(
    folder: Path, about: Mapping[str, Any], width: int
) -> tuple[list[NDArray[np.float16]], NDArray[np.int64] | None, Extents | None]:
    if "vectors" not in about:
        return [_mapped(folder / "embeddings.npy")], None, None
    table = table_folder(folder.parent.parent)
    sizes = dict(about["vectors"])
    for name, size in sizes.items():
        if DATA_FILE.fullmatch(name) is None or (table / name).stat().st_size != size:
            raise ValueError(f"{name} is not a data file of this table, or not as it was")
    extents = Extents(tuple(sizes), np.load(folder / "extents.npy"))
    segments, order = extents.mapped(table, width)
    return segments or [np.empty((0, width), np.float16)], order, extents


def _mapped(path: Path) -> NDArray[Any]:
    """An array of a file; an ordinary array over the map: numpy takes its time to cut a piece out of a memory-map."""
    loaded: NDArray[Any] = np.load(path, mmap_mode="r")
    return loaded.view(np.ndarray)


def damage(folder: Path, files: Mapping[str, str], limit: int = VERIFY_UP_TO) -> list[str]:
    """Files of a cache that are not as they were written.

    Args:
        folder: Of the cache.
        files: What was noted of each.
        limit: Bytes above which only the size is compared.
    """
    if any(Path(name).name != name for name in files):
        raise ValueError("it names files outside of the cache")
    return [name for name, noted in files.items() if difference(folder / name, noted, size_in(noted) <= limit) is not None]


def _discard(path: Path, index: Path) -> None:
    """Remove a cache: first the file that tells what it is, so that none is believed while it goes."""
    remove(path / BASE, index)
    remove(path, index)


def sweep(root: Path) -> None:
    """Remove what crashed builds left. The caller holds the write lock, so nobody is building."""
    with contextlib.suppress(OSError, GeniusError):
        for path in root.glob(f"{BUILDING}*"):
            remove(path, root.parent)


def forget(root: Path, keep: int | None) -> None:
    """Remove caches of other versions than `keep`, and what crashed builds left. Opened maps stay valid on POSIX.

    Only what a cache's name has is removed, and nothing through a link.
    """
    try:
        names = [path.name for path in root.iterdir()]
    except OSError:
        return
    for name in names:
        ours = name.isdecimal() or name.startswith(BUILDING)
        if ours and name != str(keep):
            with contextlib.suppress(GeniusError, OSError):
                _discard(root / name, root.parent)
