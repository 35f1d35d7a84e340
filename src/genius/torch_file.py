"""Reads untrusted files of `torch.save` (`.pth`, `.pt`, `.bin`) with `torch.load(weights_only=True)`.

`torch.load` keeps code in a file from running. It does not bound memory or time, so two checks come first:

- the zip directory: its size, names that `torch.save` writes, records stored without compression, checksums.
  TorchScript archives, tars and bare pickles (torch before 1.6) are refused;
- the pickle: its size, the operations and calls that a checkpoint needs, and dictionary keys that are cheap to hash.

Tensors are mapped from the file, and may not claim more than twice its size. Classes that torch does not know, such as the
OmegaConf object in the published checkpoints, become an inert `Placeholder`. Knows nothing of models.
"""

from __future__ import annotations

import pickletools
import re
import struct
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.files import open_regular

MAX_RECORDS = 50_000
MAX_DIRECTORY = 16 << 20  # bytes of the zip directory
MAX_PICKLE = 16 << 20  # bytes, plus 1/64 of the file: a long list of ids is legitimate in a large file
MAX_KEY = 2**61 - 1  # integers from here on can be chosen to collide in a dictionary


class _Refused(ValueError):
    """The file is damaged, or holds something that no checkpoint needs."""


class Placeholder:
    """Stands for an object of a class that torch does not know. Takes any state and keeps none."""

    def __new__(cls, *_: object, **__: object) -> Placeholder:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def read_torch_file(path: str | Path, select: Callable[[Any], Any] = lambda content: content) -> Any:
    """Read the numbers, strings, containers and tensors in a file of `torch.save`. No code in the file runs.

    Args:
        path: The file.
        select: Picks the wanted part of the content. Only its tensors are checked.

    Returns:
        The selected content, its tensors mapped from the file. Objects of unknown classes are a `Placeholder`.

    Raises:
        GeniusError: If the file is damaged, of another format, or holds something that no checkpoint needs.
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            body = _check_archive(file, size)
        content = select(_load(path, _check_pickle(body)))
        _check_tensors(content, size)
    except FileNotFoundError:
        raise GeniusError(f"no such checkpoint: {path}") from None
    except OSError as error:
        raise GeniusError(f"cannot read {path}: {error.strerror or error}") from None
    except _Refused as error:
        raise GeniusError(f"{path} is not a readable checkpoint: {error}") from None
    return content


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Read the `model` state dict of a published `.pth` file, without the prefixes of `torch.compile` and DDP.

    Args:
        path: The checkpoint.

    Returns:
        Tensors by name, mapped from the file: most of it is optimizer state that is never read.

    Raises:
        GeniusError: If the file is not a readable checkpoint or holds no `model` state dict.
    """

    def state_of(content: Any) -> Any:
        if isinstance(content, dict):
            return content.get("model", content)
        return None

    state = read_torch_file(path, state_of)
    named = isinstance(state, dict) and all(isinstance(name, str) for name in state)
    if not named or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise GeniusError(f"{path} holds no `model` state dict")
    return {re.sub(r"(^|\.)(_orig_mod|module)\.", r"\1", name): tensor for name, tensor in state.items()}


def _load(path: Path, unknown: set[str]) -> Any:
    allowed: list[Any] = [(Placeholder, name) for name in unknown]
    allowed.append((lambda *_: {}, "collections.defaultdict"))
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(allowed):
            warnings.simplefilter("ignore")  # of other pickle protocols
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # torch raises almost anything for a broken file, and many lines of advice
        raise _Refused("its pickle is broken, or holds something other than tensors, numbers and strings") from None


# -- the zip archive ---------------------------------------------------------------------------------------------

_OTHER_RECORDS = frozenset({"version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id"})


def _check_archive(file: BufferedReader, size: int) -> bytes:
    """Refuse whatever `torch.save` does not write; return the pickle."""
    start = _bytes_at(file, 0, 4)
    if start != b"PK\x03\x04":
        legacy = start[:1] in (b"\x80", b"(", b"}") or _bytes_at(file, 257, 5) == b"ustar"
        if legacy:
            raise _Refused("it has the format of torch before 1.6; load it and save it again with a newer torch")
        raise _Refused("it is not a zip archive, which torch.save writes")
    _check_directory(file, size)
    try:
        with zipfile.ZipFile(file) as archive:
            root = archive.infolist()[0].filename.partition("/")[0] + "/"
            _check_records(archive.infolist(), root, size)
            length = archive.getinfo(f"{root}data.pkl").file_size
            if length > MAX_PICKLE + size // 64:
                raise _Refused(f"its pickle has {length:,} bytes")
            body = archive.read(f"{root}data.pkl")
            damaged = archive.testzip()
    except _Refused:
        raise
    except KeyError:
        raise _Refused("it is a zip archive without data.pkl, so torch.save did not write it") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError, IndexError, EOFError, struct.error, RuntimeError):
        raise _Refused("its zip directory is broken") from None
    if damaged is not None:
        raise _Refused(f"its record {damaged[:60]!r} is damaged: the checksum differs")
    return body


def _check_directory(file: BufferedReader, size: int) -> None:
    """Read the size of the zip directory from the archive's end, before a library loads the directory into memory."""
    end = size - 22
    tail = _bytes_at(file, max(end, 0), 22)
    if len(tail) != 22 or tail[:4] != b"PK\x05\x06" or tail[20:] != b"\0\0":
        raise _Refused("it does not end as a zip archive: it is cut off, or something is appended")
    entries, length, offset = struct.unpack("<HII", tail[10:20])
    locator = _bytes_at(file, max(end - 20, 0), 20)
    if locator[:4] == b"PK\x06\x07":
        end = struct.unpack("<Q", locator[8:16])[0]
        record = _bytes_at(file, min(end, size), 56)
        if record[:4] != b"PK\x06\x06" or len(record) != 56:
            raise _Refused("its zip directory is broken")
        entries, length, offset = struct.unpack("<QQQ", record[32:56])
    if entries > MAX_RECORDS or length > MAX_DIRECTORY:
        raise _Refused(f"its zip directory has {entries:,} entries and {length:,} bytes")
    if offset + length != end:
        raise _Refused("its zip directory is not where the archive says: two files in one")


def _bytes_at(file: BufferedReader, position: int, size: int) -> bytes:
    file.seek(position)
    return file.read(size)


def _check_records(entries: list[zipfile.ZipInfo], root: str, size: int) -> None:
    names: set[str] = set()
    if len(entries) > MAX_RECORDS:
        raise _Refused(f"it has {len(entries):,} records")
    for entry in entries:
        name = entry.filename.removeprefix(root) if entry.filename.startswith(root) else f"../{entry.filename}"
        if name == "constants.pkl" or name.startswith("code/"):
            raise _Refused("it is a TorchScript archive, which holds programs: export the state dict instead (torch.save)")
        known = name in _OTHER_RECORDS or name == "data.pkl" or (name.startswith("data/") and name[5:].isdecimal())
        if not known:
            raise _Refused(f"it holds {name[:60]!r}, which torch.save does not write")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise _Refused(f"its {name} is compressed, which torch.save does not do")
        if entry.flag_bits & 0x41:
            raise _Refused(f"its {name} is encrypted")
        if name in names:
            raise _Refused(f"it holds {name} twice")
        names.add(name)
    if sum(entry.file_size for entry in entries) > size:
        raise _Refused("its records overlap")


# -- the pickle --------------------------------------------------------------------------------------------------

_STORAGES = frozenset(
    f"torch.{dtype}Storage" for dtype in ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
)
_DICT = "collections.OrderedDict"
_CALLS = frozenset(
    {_DICT, "collections.defaultdict", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter", "torch.Size"}
)
_REAL = ("torch", "collections", "builtins", "_codecs")  # packages in which torch.load calls the function that is named
_BLOCKED = ("os", "posix", "nt", "sys")

# What a value on the pickle's stack is. A global is its name, so any other string.
_MARK = "<mark>"
_KEY = "<key>"  # a number, a string or None that is cheap to hash
_EMPTY = "<empty tuple>"
_OTHER = "<other>"

_SCALARS = frozenset(
    ("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING")
)
_CONTAINERS = frozenset(
    ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS")
)
_OTHERS = frozenset(("BINPERSID", "BUILD", "STOP"))


def _check_pickle(body: bytes) -> set[str]:
    """Follow a pickle's operations without making anything; return the names that need a placeholder.

    `torch.load` bounds neither the memory of what it calls (`bytearray(2**40)`) nor the time of a dictionary whose keys were
    chosen to collide, and hashing a deeply nested tuple ends the process. So only the calls of a state dict are let through,
    and only strings, numbers and None as keys.
    """
    stack: list[str] = []
    memo: dict[int, str] = {}
    unknown: set[str] = set()
    try:
        argument: Any
        for operation, argument, _ in pickletools.genops(body):
            name = operation.name
            if name == "PROTO":
                continue
            if name == "MARK":
                stack.append(_MARK)
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name == "GLOBAL":
                stack.append(_check_global(argument, unknown))
            elif name == "EMPTY_TUPLE":
                stack.append(_EMPTY)
            elif name in _SCALARS:
                value = _OTHER
                if not isinstance(argument, int) or abs(argument) < MAX_KEY:
                    value = _KEY
                stack.append(value)
            elif name in ("REDUCE", "NEWOBJ"):
                arguments = stack.pop()
                _check_call(stack.pop(), arguments)
                stack.append(_OTHER)
            elif name in _CONTAINERS or name in _OTHERS:
                taken = _take(stack, operation)
                if name in ("SETITEM", "SETITEMS") and any(key != _KEY for key in taken[1::2]):
                    raise _Refused("a key of a dictionary is neither a string nor a number")
                stack.extend(_OTHER for _ in operation.stack_after)
            else:
                raise _Refused(f"it uses the pickle operation {name}, which no checkpoint needs")
    except (ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        if isinstance(error, _Refused):
            raise
        raise _Refused("its pickle is broken or cut off") from None
    return unknown


def _check_global(argument: str, unknown: set[str]) -> str:
    """The full name of a global. Names that torch does not know are added to `unknown`."""
    module, _, attribute = argument.partition(" ")
    if (module, attribute) in NAME_MAPPING:  # protocol 2 has the names of Python 2
        module, attribute = NAME_MAPPING[(module, attribute)]
    else:
        module = IMPORT_MAPPING.get(module, module)
    name = f"{module}.{attribute}"
    if module in _BLOCKED:
        raise _Refused(f"it names {name[:60]}, which acts on the system and is no part of a checkpoint")
    if name not in _STORAGES and name not in _CALLS:
        unknown.add(name)
    return name


def _check_call(function: str, arguments: str) -> None:
    if function in _CALLS:
        if function == _DICT and arguments != _EMPTY:
            raise _Refused("it makes a dictionary in a way that torch.save does not")
        return
    if function.partition(".")[0] in _REAL or function.startswith("<"):
        raise _Refused(f"it calls {function[:60]}, which no checkpoint needs")


def _take(stack: list[str], operation: pickletools.OpcodeInfo) -> list[str]:
    """Pop what an operation consumes, in the order of the pickle and without the mark."""
    before = operation.stack_before
    if pickletools.markobject not in before:
        taken = [stack.pop() for _ in before]
        return taken[::-1]
    taken = []
    while (value := stack.pop()) != _MARK:
        taken.append(value)
    taken.extend(stack.pop() for _ in range(before.index(pickletools.markobject)))
    return taken[::-1]


# -- the tensors -------------------------------------------------------------------------------------------------


def _check_tensors(content: Any, size: int) -> None:
    """Refuse tensors or storages that claim more than twice the file: a stride of 0 makes any shape of one number."""
    claimed = 0
    storages: dict[int, int] = {}
    seen: set[int] = set()
    waiting = [content]
    while waiting:  # no recursion: the file decides how deep it is
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            claimed += value.numel() * value.element_size()
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
    claimed = max(claimed, sum(storages.values()))
    if claimed > 2 * size:
        raise _Refused(f"its tensors claim {claimed:,} bytes in a file of {size:,}")
