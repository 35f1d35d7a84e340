"""The one reader of `torch.save`'s files (`.pth`, `.pt`, `.bin`). No code in a file is run, and torch never opens one.

Since torch 1.6 such a file is a zip archive: a pickle that describes the objects, and one stored (not compressed) record
for the numbers of each tensor. The archive is checked before anything is read: programs (TorchScript), tars and bare
pickles of older releases, compressed, encrypted, doubled or overlapping records are refused. The pickle goes through
`plain_pickle`; every tensor must lie inside its record. So memory and time grow with the file, never with what it claims.
"""

from __future__ import annotations

import itertools
import mmap
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.files import open_plain
from genius.plain_pickle import Name, Refused, Unknown, load

MAX_RECORDS, MAX_DIRECTORY = 50_000, 16 << 20  # tensors of a file; bytes of the archive's table of contents
MAX_PICKLE, MAX_STEPS = 16 << 20, 300_000  # and a little more for a larger file: a long list of ids is honest there
MAX_DIMENSIONS, MAX_DEPTH = 16, 64

_DTYPES: dict[str, torch.dtype] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
_OTHER_RECORDS = frozenset({"version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id"})


def read_torch_file(path: str | Path, select: Callable[[Any], Any] = lambda content: content, *, mapped: bool = False) -> Any:
    """What a file of `torch.save` holds: numbers, texts, containers and tensors. Anything else in it is an `Unknown`.

    `select` takes the part that is wanted out of the whole: only its tensors are read, and compared with their checksums.
    `mapped`: tensors stay in the file until they are touched.
    """
    path = Path(path)
    try:
        with open_plain(path) as file:
            archive = _Archive(file)
            content = select(archive.describe())
            return archive.tensors(content, mapped)
    except GeniusError:
        raise
    except FileNotFoundError:
        raise GeniusError(f"no such checkpoint: {path}") from None
    except OSError as error:
        raise GeniusError(f"cannot read {path}: {error.strerror or error}") from None
    except Refused as error:
        raise GeniusError(f"{path} is not a readable checkpoint: {error}") from None


# -- the archive -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Record:
    start: int  # of its bytes in the file
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class _Storage:
    """The numbers of one record, as one dtype."""

    key: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor that has not been read yet."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


_Tensors: TypeAlias = dict[tuple[str, torch.dtype], Tensor]


class _Archive:
    def __init__(self, file: Any) -> None:
        self.file = file
        self.size = file.seek(0, 2)
        self.records = _records(file, self.size)
        order = self._bytes("byteorder") if "byteorder" in self.records else b"little"
        if order != b"little":
            raise Refused("its numbers are not little-endian")

    def describe(self) -> Any:
        """The content, with a `_View` for each tensor."""
        if "data.pkl" not in self.records:
            raise Refused("it is a zip archive without data.pkl, so no file of torch.save")
        if self.records["data.pkl"].size > MAX_PICKLE + self.size // 64:
            raise Refused(f"its pickle has {self.records['data.pkl'].size:,} bytes")
        steps = MAX_STEPS + self.size // 256
        return load(self._bytes("data.pkl"), _call, self._persistent, steps)

    def _bytes(self, name: str) -> bytes:
        record = self.records[name]
        if record.size > MAX_PICKLE + self.size // 64:
            raise Refused(f"its {name} has {record.size:,} bytes")
        self.file.seek(record.start)
        body: bytes = self.file.read(record.size)
        if zlib.crc32(body) != record.crc:
            raise Refused(f"its {name} does not have the checksum that the archive says")
        return body

    def _persistent(self, reference: Any) -> _Storage:
        """("storage", class, key, device, count) -> the record it names."""
        if not isinstance(reference, tuple) or len(reference) != 5 or reference[0] != "storage":
            raise Refused("it refers to something outside that is no tensor's storage")
        kind, key, count = reference[1], reference[2], reference[4]
        dtype = _DTYPES.get(kind.name) if isinstance(kind, Name) and kind.module == "torch" else None
        if dtype is None:
            raise Refused(f"it holds numbers of an unknown kind ({kind.name if isinstance(kind, Name) else 'no name'})")
        record = self.records.get(f"data/{key}") if isinstance(key, str) else None
        if record is None or not _whole(count) or count * dtype.itemsize != record.size:
            raise Refused(f"the storage {str(key)[:40]!r} is missing or has another size than it says")
        return _Storage(key, dtype, count)

    def tensors(self, content: Any, mapped: bool) -> Any:
        """The same content with real tensors. The file is mapped, so that nothing is read twice."""
        views = _views(content)
        total = sum(_numel(view.shape) * view.storage.dtype.itemsize for view in views.values())
        if total > 2 * self.size:
            raise Refused(f"its tensors claim {total:,} bytes of a file of {self.size:,}")
        if not views:
            return _replace(content, {}, {}, 0)
        memory = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_COPY)
        storages: _Tensors = {}
        made: dict[int, Tensor] = {}
        for number, view in views.items():
            tensor = self._storage(memory, view.storage, storages).as_strided(view.shape, view.stride, view.offset)
            made[number] = tensor if mapped and view.storage.dtype != torch.bool else tensor.clone()
        return _replace(content, made, {}, 0)

    def _storage(self, memory: mmap.mmap, storage: _Storage, known: _Tensors) -> Tensor:
        place = (storage.key, storage.dtype)
        if place not in known:
            record = self.records[f"data/{storage.key}"]
            with memoryview(memory) as whole, whole[record.start : record.start + record.size] as part:
                if zlib.crc32(part) != record.crc:
                    raise Refused(f"the numbers of storage {storage.key} do not have the checksum that the archive says")
            stored = torch.uint8 if storage.dtype == torch.bool else storage.dtype
            if not storage.count:
                known[place] = torch.empty(0, dtype=storage.dtype)
            elif record.start % stored.itemsize:  # torch aligns its records, others may not
                known[place] = torch.frombuffer(bytearray(memory[record.start : record.start + record.size]), dtype=stored)
            else:
                known[place] = torch.frombuffer(memory, dtype=stored, count=storage.count, offset=record.start)
            if storage.dtype == torch.bool and storage.count:
                known[place] = known[place] != 0
        return known[place]


def _records(file: Any, size: int) -> dict[str, _Record]:
    """Name below the archive's root -> where its bytes lie. Refuses whatever `torch.save` does not write."""
    file.seek(0)
    start = file.read(4)
    if start != b"PK\x03\x04":
        old = start[:1] in (b"\x80", b"(", b"}") or _is_tar(file)
        hint = "a bare pickle or tar, as torch wrote before 1.6 (load and save it again with a newer torch)" if old else "no zip"
        raise Refused(f"it is {hint}, not an archive of torch.save")
    _check_directory(file, size)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeDecodeError, struct.error):
        raise Refused("its table of contents is broken") from None
    if not entries or len(entries) > MAX_RECORDS:
        raise Refused(f"it has {len(entries):,} records")
    root = entries[0].filename.partition("/")[0] + "/"
    records: dict[str, _Record] = {}
    for entry in entries:
        name = entry.filename.removeprefix(root) if entry.filename.startswith(root) else f"../{entry.filename}"
        _check_record(entry, name)
        if name in records:
            raise Refused(f"it holds {name} twice")
        records[name] = _Record(_data_start(file, entry, size), entry.file_size, entry.CRC)
    spans = sorted((record.start, record.start + record.size) for record in records.values() if record.size)
    if any(end > begin for (_, end), (begin, _) in itertools.pairwise(spans)):
        raise Refused("its records overlap")
    return records


def _is_tar(file: Any) -> bool:
    file.seek(257)
    return bool(file.read(5) == b"ustar")


def _check_directory(file: Any, size: int) -> None:
    """The archive's end says how large its table of contents is: look before a library reads it into memory."""
    tail = _at(file, max(size - 22, 0), 22)
    if len(tail) != 22 or tail[:4] != b"PK\x05\x06" or tail[20:] != b"\0\0":
        raise Refused("it does not end as a zip archive: cut off, or something is appended to it")
    entries, length, offset = struct.unpack("<HII", tail[10:20])
    end = size - 22
    locator = _at(file, end - 20, 20) if end >= 20 else b""
    if locator[:4] == b"PK\x06\x07":
        place = struct.unpack("<Q", locator[8:16])[0]
        record = _at(file, place, 56) if place <= size - 56 else b""
        if record[:4] != b"PK\x06\x06":
            raise Refused("its table of contents is broken")
        entries, length, offset = struct.unpack("<QQQ", record[32:56])
        end = place
    if entries > MAX_RECORDS or length > MAX_DIRECTORY:
        raise Refused(f"its table of contents has {entries:,} entries and {length:,} bytes")
    if offset + length != end:
        raise Refused("its table of contents is not where it says: two files in one")


def _at(file: Any, place: int, size: int) -> bytes:
    file.seek(place)
    part: bytes = file.read(size)
    return part


def _check_record(entry: zipfile.ZipInfo, name: str) -> None:
    if name == "constants.pkl" or name.startswith("code/"):
        raise Refused("it is a TorchScript archive, which holds programs: export the state dict instead (torch.save)")
    known = name in _OTHER_RECORDS or name == "data.pkl" or (name.startswith("data/") and name[5:].isdecimal())
    if not known:
        raise Refused(f"it holds {name[:60]!r}, which torch.save does not write")
    if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
        raise Refused(f"its {name} is compressed, which torch.save does not do")
    if entry.flag_bits & 0x41:
        raise Refused(f"its {name} is encrypted")


def _data_start(file: Any, entry: zipfile.ZipInfo, size: int) -> int:
    """Where a record's bytes begin: its own header, before them, has a length of its own."""
    header = _at(file, entry.header_offset, 30)
    if len(header) != 30 or header[:4] != b"PK\x03\x04":
        raise Refused(f"{entry.filename[:60]!r} is not where the table of contents says")
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    start = entry.header_offset + 30 + name_length + extra_length
    if file.read(name_length) != entry.orig_filename.encode() or start + entry.file_size > size:
        raise Refused(f"{entry.filename[:60]!r} is not where the table of contents says")
    return int(start)


# -- what the pickle may call ------------------------------------------------------------------------------------


def _call(name: Name, arguments: tuple[Any, ...]) -> Any:
    known = _CALLS.get((name.module, name.name))
    if known is None:
        return Unknown()
    try:
        return known(*arguments)
    except (TypeError, ValueError) as error:
        raise Refused(str(error) if isinstance(error, Refused) else f"it calls {name.name} in a wrong way") from None


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> _View:
    if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(stride, tuple):
        raise Refused("it describes a tensor in a wrong way")
    numbers = (offset, *shape, *stride)
    if len(shape) != len(stride) or len(shape) > MAX_DIMENSIONS or not all(_whole(n) and n < 2**62 for n in numbers):
        raise Refused("it describes a tensor of impossible shape")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    count = _numel(shape)
    if count > storage.count or (count and last >= storage.count):
        raise Refused(f"a tensor of shape {shape} does not fit into its storage of {storage.count:,} numbers")
    return _View(storage, offset, shape, stride)


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): lambda *arguments: Unknown() if arguments else {},
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    ("torch", "Size"): lambda values=(): tuple(values) if isinstance(values, list | tuple) else Unknown(),
}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


# -- from views to tensors ---------------------------------------------------------------------------------------


def _views(content: Any) -> dict[int, _View]:
    """Every tensor of the content, by identity; without recursion, since a stranger chose how deep it is."""
    found: dict[int, _View] = {}
    seen: set[int] = set()
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        if isinstance(value, _View):
            found[id(value)] = value
        elif isinstance(value, Mapping):
            seen.add(id(value))
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            seen.add(id(value))
            waiting.extend(value)
    return found


def _replace(value: Any, made: Mapping[int, Tensor], done: dict[int, Any], depth: int) -> Any:
    if isinstance(value, _View):
        return made[id(value)]
    if not isinstance(value, dict | list | tuple):
        return value
    if depth > MAX_DEPTH:
        raise Refused(f"it is nested more than {MAX_DEPTH} deep")
    if id(value) not in done:  # what is shared in the file is shared here; without it, sharing could be made to explode
        done[id(value)] = None  # of what contains itself, the inner one
        if isinstance(value, dict):
            done[id(value)] = {key: _replace(inner, made, done, depth + 1) for key, inner in value.items()}
        else:
            done[id(value)] = type(value)(_replace(inner, made, done, depth + 1) for inner in value)
    return done[id(value)]


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """The `model` state dict of a published `.pth`, with compile and DDP prefixes removed. No code in the file is run."""

    def state_of(content: Any) -> dict[str, Any]:
        state = content.get("model", content) if isinstance(content, dict) else None
        if not isinstance(state, dict) or not state or not all(isinstance(name, str) for name in state):
            raise GeniusError(f"{path} holds no `model` state dict")
        return state

    # mapped, not read: most of a file is optimizer state and momentum copies that nobody asks for
    state = read_torch_file(path, state_of, mapped=True)
    if not all(isinstance(value, Tensor) for value in state.values()):
        raise GeniusError(f"{path} holds no `model` state dict")
    return {re.sub(r"(^|\.)(_orig_mod|module)\.", r"\1", name): tensor for name, tensor in state.items()}
