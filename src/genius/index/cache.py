"""The search side's arrays of one table version, and the folder that caches them.

A cache is only ever a shortcut. It is named by index, model and version, written beside and renamed, compared with its
checksums when opened, and rows are matched by `_seq`, which is never used twice: what a cached row says stays true,
and rows that are gone or new are found by comparing with the table. At the very version that it was made of, which the checksum
of that version's manifest proves, nothing is compared, and hits are shown from here: the table need not even be opened.
One that is doubtful in any way is built anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from genius.errors import GeniusError
from genius.files import write_whole
from genius.index.ledger import file_sum, seal, size_in, unseal
from genius.index.paths import remove
from genius.index.reader import PAYLOAD, Kept, Reader
from genius.search import CodeTrie

FORMAT = 3
TRIE = "genius-trie-2"
_DTYPES: dict[str, Any] = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "I32": np.int32, "I64": np.int64}
BASE = "base.json"
BUILDING = ".building-"  # how the name of a cache that is being written begins
VERIFY_UP_TO = 8 << 30
"""Bytes of a file whose checksum is compared when it is mapped; of larger vectors only the size (`genius check` reads all)."""

ARRAYS = ("seqs", "codes", "embeddings", "hashes", "hash_rows")
SHOWN, SPANS = "shown.bin", "spans.npy"  # what hits show of each row, and where in that file


def hash_id(item_id: str) -> int:
    """64 bits of an id; equal hashes are verified against the table."""
    body = item_id.encode("utf-8", "surrogatepass")  # no such id can be stored, but one may be asked for
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Base:
    """All rows of one version, row i being the i-th smallest `_seq`. Arrays may be memory-mapped."""

    version: int
    seqs: NDArray[np.int64]  # (N,) ascending
    codes: NDArray[np.uint16]  # (N, M)
    embeddings: NDArray[np.float16]  # (N, D)
    hashes: NDArray[np.uint64]  # (N,) of ids, ascending
    hash_rows: NDArray[np.int64]  # (N,) row of each hash
    trie: CodeTrie
    manifest: str | None = None  # checksum of the file that defines the version
    kept: Kept | None = None  # what hits show of the rows, at this very version: metadata of a row may change later

    @property
    def items(self) -> int:
        return len(self.seqs)

    @property
    def cached(self) -> bool:
        """Whether this came out of a file, and not straight from the table."""
        return isinstance(self.seqs, np.memmap)

    def exactly(self, reader: Reader) -> bool:
        """Whether this is of the very version that `reader` shows: then nothing needs to be compared."""
        return self.version == reader.version and self.manifest is not None and self.manifest == reader.noted

    def candidates(self, item_id: str) -> NDArray[np.int64]:
        """Rows whose id may be `item_id`."""
        key = np.uint64(hash_id(item_id))
        low, high = np.searchsorted(self.hashes, key, "left"), np.searchsorted(self.hashes, key, "right")
        return np.asarray(self.hash_rows[low:high])


def build_trie(codes: NDArray[np.uint16], level_sizes: Sequence[int]) -> CodeTrie:
    return CodeTrie.build(codes.astype(np.int32), level_sizes)  # torch does little with unsigned 16 bits


def build(reader: Reader, level_sizes: tuple[int, ...], width: int, folder: Path | None) -> Base:
    """Read every row of a version. With `folder`, embeddings go straight to a file there, not through memory."""
    total = reader.count()
    seqs = np.empty(total, np.int64)
    codes = np.empty((total, len(level_sizes)), np.uint16)
    hashes = np.empty(total, np.uint64)
    shape = (total, width)
    embeddings: NDArray[np.float16]
    if folder is not None and total:
        embeddings = _mapped(folder / "embeddings.npy", shape)
    else:
        embeddings = np.empty(shape, np.float16)
    at = 0
    for part_seqs, ids, part_codes in reader.codes():
        end = at + len(part_seqs)
        seqs[at:end], codes[at:end] = part_seqs, part_codes
        hashes[at:end] = [hash_id(i) for i in ids]
        at = end
    if at != total:
        raise GeniusError(f"the index holds {total} items but {at} could be read")
    order = np.argsort(seqs, kind="stable")  # after compaction or upserts the table's order is another
    seqs, codes, hashes = seqs[order], codes[order], hashes[order]
    for part_seqs, part_embeddings in reader.embeddings():
        rows = np.searchsorted(seqs, part_seqs)
        embeddings[rows] = part_embeddings
    by_hash = np.argsort(hashes, kind="stable")
    trie = build_trie(codes, level_sizes)
    return Base(reader.version, seqs, codes, embeddings, hashes[by_hash], by_hash.astype(np.int64), trie, reader.noted)


def _keep(reader: Reader, seqs: NDArray[np.int64], folder: Path) -> None:
    """Write what hits show of every row, in the order of the table; `spans` says where each row's is."""
    spans, at = np.zeros((len(seqs), 2), np.int64), 0
    with (folder / SHOWN).open("wb") as file:
        for row in reader.stream(PAYLOAD):
            body = Kept.written(row)
            file.write(body)
            spans[np.searchsorted(seqs, row["_seq"])] = at, at + len(body)
            at += len(body)
    np.save(folder / SPANS, spans)


def _mapped(path: Path, shape: tuple[int, int]) -> NDArray[np.float16]:
    """A new array in a file. Its room is taken at once: running out while writing to a map would kill the process."""
    array: NDArray[np.float16] = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


# -- cache -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What a cached base belongs to."""

    index: str  # unique id of the index folder
    fingerprint: str  # of the model
    level_sizes: tuple[int, ...]
    width: int


def build_cached(reader: Reader, key: CacheKey, root: Path) -> Base:
    """Build and leave a cache behind; without room or permission for one, build in memory."""
    try:
        if root.is_symlink():
            raise OSError(f"{root} is a link")
        root.mkdir(exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=root, prefix=BUILDING))
    except OSError:
        return build(reader, key.level_sizes, key.width, None)
    try:
        try:
            base = build(reader, key.level_sizes, key.width, scratch)
        except OSError:
            return build(reader, key.level_sizes, key.width, None)
        try:
            _keep(reader, base.seqs, scratch)
            _write(base, key, scratch)
            target = root / f"{reader.version}"
            if target.exists():
                remove(target, root.parent)
            scratch.replace(target)
        except (OSError, GeniusError, SafetensorError):
            return base  # complete, if not saved; a map of a file that is removed below stays valid
        saved = load(target, key)
        return base if saved is None else saved
    finally:
        remove(scratch, root.parent)


def _write(base: Base, key: CacheKey, folder: Path) -> None:
    for name in ARRAYS:
        array = getattr(base, name)
        if isinstance(array, np.memmap):
            array.flush()  # it is the file already
        else:
            np.save(folder / f"{name}.npy", array)
    save_trie(base.trie, folder / "trie.safetensors")
    files = {path.name: file_sum(path) for path in sorted(folder.iterdir())}
    about = {"version": base.version, "items": base.items, "files": files, "manifest": base.manifest}
    (folder / BASE).write_text(seal(about | _identity(key)))


def _identity(key: CacheKey) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "index": key.index,
        "fingerprint": key.fingerprint,
        "levels": list(key.level_sizes),
        "width": key.width,
    }


def newest(root: Path, key: CacheKey, version: int) -> Base | None:
    """The latest intact cache of `version` or an older one."""
    try:
        names = sorted((int(p.name) for p in root.iterdir() if p.name.isdigit()), reverse=True)
    except OSError:
        return None
    for name in names:
        if name <= version:
            base = load(root / str(name), key)
            if base is not None:
                return base
    return None


def load(folder: Path, key: CacheKey) -> Base | None:
    """Open by memory-map; None unless it is this index's, this model's, and as it was written."""
    try:
        about = unseal((folder / BASE).read_text())
        if any(about.get(name) != value for name, value in _identity(key).items()) or damage(folder, about["files"]):
            return None
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r" if about["items"] else None) for name in ARRAYS}
        trie = load_trie(folder / "trie.safetensors")
        if any(len(array) != about["items"] for array in arrays.values()) or trie.items != about["items"]:
            return None
        spans = np.load(folder / SPANS, mmap_mode="r" if about["items"] else None)
        body = np.memmap(folder / SHOWN, np.uint8, mode="r") if about["items"] else np.empty(0, np.uint8)
        kept = Kept(arrays["seqs"], spans, body)
        return Base(version=int(about["version"]), trie=trie, manifest=about["manifest"], kept=kept, **arrays)
    except (OSError, ValueError, KeyError):  # GeniusError is a ValueError
        return None


def damage(folder: Path, files: Mapping[str, str], limit: int = VERIFY_UP_TO) -> list[str]:
    """Files of a cache that are not as they were written; larger ones than `limit` are compared by size only."""
    wrong = []
    for name, noted in files.items():
        size = size_in(noted)
        if (folder / name).stat().st_size != size or (size <= limit and file_sum(folder / name) != noted):
            wrong.append(name)
    return wrong


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
            with contextlib.suppress(GeniusError):
                remove(root / name, root.parent)


# -- tries on disk -------------------------------------------------------------------------------------------------


def save_trie(trie: CodeTrie, path: Path) -> None:
    """One file in the safetensors layout; it appears whole or not at all."""
    from safetensors.numpy import save_file

    metadata = {"format": TRIE, "level_sizes": json.dumps(trie.level_sizes), "top": str(trie.top)}
    arrays = {key: np.ascontiguousarray(value) for key, value in trie.arrays().items()}
    write_whole(path, lambda target: save_file(arrays, target, metadata=metadata))


def load_trie(path: Path) -> CodeTrie:
    """Read a saved trie; pages are read when a search first touches them."""
    header, start = _read_header(path)
    metadata = header.pop("__metadata__", {})
    if metadata.get("format") != TRIE:
        raise GeniusError(f"{path} is not a trie of this version ({TRIE})")
    arrays: dict[str, NDArray[Any]] = {}
    size = path.stat().st_size
    for name, entry in header.items():
        dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
        if start + end > size:
            raise GeniusError(f"{path} is cut short: {size} bytes where {start + end} are needed")
        empty = begin == end
        arrays[name] = np.empty(shape, dtype) if empty else np.memmap(path, dtype, mode="r", offset=start + begin, shape=shape)
    return CodeTrie(json.loads(metadata["level_sizes"]), arrays, int(metadata["top"]))


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The safetensors header and where the data begins."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > 1 << 20:
                raise ValueError("no header")
            return json.loads(file.read(length)), 8 + length
    except FileNotFoundError:
        raise GeniusError(f"no such trie: {path}") from None
    except (OSError, ValueError, struct.error) as error:
        raise GeniusError(f"cannot read {path} as a trie: {error}") from None
