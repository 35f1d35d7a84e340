"""The ledger: which version of the table was acknowledged last, and what every file of the table looked like then; and checksums
(128 or 64 bits of XXH3) of files, of rows of the table, and of small JSON files that seal themselves.

A commit of the table counts once its line is here, on the disk; versions without a line are those of writers that died or
failed, and are never shown. So a change of several commits is one, an older table put in place of a newer is noticed, and
each file has a checksum to be compared with. One line of JSON an event, each with its own checksum; only ever appended
to, or replaced as a whole. Checksums notice damage, not malice: who can write the folder can write them.
Knows nothing of LanceDB.

    {"ledger": 1, "about": {...}, "nonce": ...}              first: what genius.json says, too
    {"version": 7, "items": 13, "time": ..., "files": {...}} a change: name below items.lance -> "SIZE:CHECKSUM", new ones only
    {"cleaning": true}                                       files of old versions are being removed: some may be gone
"""

from __future__ import annotations

import json
import mmap
import re
import secrets
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.files import parse_json, sync_handle, write_whole
from genius.index.paths import LEDGER

if TYPE_CHECKING:
    import pyarrow as pa


SUM = "_sum"
"""The column of row sums."""

ROW = ("id", "text", "modality", "_seq", "_metadata", "_image", "_image_bytes", "_thumbnail", "_source", "_stamp")
VECTORS = ("_codes", "_embedding")
MAPPED_FROM = 1 << 20  # bytes; smaller files are quicker read than mapped
LEDGER_FORMAT = 1
MISSING = "is missing"
MAX_LEDGER = 256 << 20  # bytes; a change takes some hundred, and a clean-up begins anew
_NAME = re.compile(r"[A-Za-z0-9_.#-]{1,255}(/[A-Za-z0-9_.#-]{1,255}){0,7}")  # of a file of the table
_NOTED = re.compile(r"\d{1,18}:[0-9a-f]{32}")


def file_sum(path: Path) -> str:
    """ "SIZE:CHECKSUM" of a file.

    Args:
        path: Of the file.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if size < MAPPED_FROM:
            return f"{size}:{xxhash.xxh3_128_hexdigest(file.read())}"
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body:
            return f"{size}:{xxhash.xxh3_128_hexdigest(body)}"


def size_in(file_sum: str) -> int:
    """The size in what `file_sum` gives.

    Args:
        file_sum: "SIZE:CHECKSUM".
    """
    return int(file_sum.partition(":")[0])


def difference(path: Path, noted: str, deep: bool) -> str | None:
    """How a file differs from what was noted of it; None: it does not.

    Args:
        path: Of the file.
        noted: "SIZE:CHECKSUM".
        deep: Compare the checksum, and not only the size.
    """
    try:
        if path.stat().st_size != size_in(noted):
            return "has another size than when it was written"
        if deep and file_sum(path) != noted:
            return "has another checksum than when it was written"
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return None


def text_sum(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


# -- rows --------------------------------------------------------------------------------------------------------


def row_sums(rows: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
    """(n,) one checksum a row, over everything that is stored of an item but the columns made from its metadata."""
    if not hasattr(rows, "to_batches"):
        batches = [rows]
    else:
        batches = rows.to_batches()
    parts = [_batch_sums(batch) for batch in batches if batch.num_rows]
    if parts:
        return np.concatenate(parts)
    return np.empty(0, np.int64)


def _batch_sums(batch: pa.RecordBatch) -> NDArray[np.int64]:
    columns = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in ROW]
    stored = [name for name in VECTORS if name in batch.schema.names]  # an index may store codes alone
    vectors = [_bytes(batch.column(batch.schema.get_field_index(name))) for name in stored]
    out = np.empty(batch.num_rows, np.uint64)
    for i in range(batch.num_rows):
        digest = xxhash.xxh3_64()
        for column in columns:
            value = column[i]
            body = value
            if value is None:
                body = b""
            elif not isinstance(value, bytes):
                body = str(value).encode()
            digest.update(f"{-1 if value is None else len(body)}:".encode())  # so that nothing moves from column to column
            digest.update(body)
        for matrix in vectors:
            digest.update(matrix[i])
        out[i] = digest.intdigest()
    return out.view(np.int64)


def _bytes(column: Any) -> NDArray[np.uint8]:
    """A fixed-size list column as (n, bytes)."""
    values = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
    return np.ascontiguousarray(values.reshape(len(column), -1)).view(np.uint8)


# -- small JSON files --------------------------------------------------------------------------------------------


def seal(body: Mapping[str, Any]) -> str:
    """JSON text with a checksum of itself in it."""
    return json.dumps({**body, "sum": text_sum(json.dumps(body))}, indent=2) + "\n"


def unseal(text: str) -> dict[str, Any]:
    """What was sealed; a ValueError if a single character is not as it was written."""
    body = parse_json(text)
    if not isinstance(body, dict):
        raise ValueError("no JSON object")
    body.pop("sum", None)
    if seal(body) != text:
        raise ValueError("it is not as it was written (its checksum differs)")
    return body


class Damaged(GeniusError):
    """Something of an index is not as it was written."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What a ledger says when read to its end."""

    about: Mapping[str, Any] = field(default_factory=dict)
    head: int = 0  # the version that was acknowledged last
    items: int = 0  # of that version
    shown: frozenset[int] = frozenset()  # versions that were acknowledged; others are steps of a change
    files: Mapping[str, str] = field(default_factory=dict)
    cleaning: bool = False


class Ledger:
    """The ledger of one index folder. Readers notice by themselves what writers append."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LEDGER
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None  # inode, size, time
        self._header = b""  # the first line, which no two ledgers share
        self._end = 0  # of the last whole line
        self._ledger_state = LedgerState()

    def read(self) -> LedgerState | None:
        """Everything up to the last whole line; None if there is no ledger. A few microseconds if nothing is new."""
        with self._lock:
            try:
                about = self.path.stat()
                seen = (about.st_ino, about.st_size, about.st_mtime_ns)
                if seen == self._seen:
                    return self._ledger_state
                if about.st_size > MAX_LEDGER or not stat.S_ISREG(about.st_mode):
                    raise Damaged(self._damage("its size"))
                with self.path.open("rb") as file:
                    same = self._header != b"" and file.read(len(self._header)) == self._header
                    start = 0
                    if same:
                        start = self._end
                    file.seek(start)
                    body = file.read()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise GeniusError(f"cannot read {self.path}: {error.strerror or error}") from None
            self._ledger_state, used = self._fold(self._ledger_state if start else LedgerState(), body)
            if not start:
                self._header = body[: body.index(b"\n") + 1]
            self._end = start + used
            self._seen = seen
            return self._ledger_state

    def _fold(self, state: LedgerState, body: bytes) -> tuple[LedgerState, int]:
        """The book after these lines, and how many bytes they have. A last line without an end was never acknowledged."""
        whole = body.rfind(b"\n") + 1
        if not body.endswith(b"\0"):  # space that was allocated for a line and never filled
            try:
                _parse(body[whole:-1])
            except ValueError:
                pass
            else:  # a line that is right but for its last character
                raise Damaged(self._damage("its end"))
        for line in body[:whole].split(b"\n")[:-1]:
            try:
                event = _parse(line)
                state = _after(state, event, first=not state.about)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise Damaged(self._damage(f"the line that begins with {line[:16]!r}")) from None
        if not state.about:
            raise Damaged(self._damage("its first line"))
        return state, whole

    def _damage(self, what: str) -> str:
        folder = self.path.parent
        return f"{folder} is damaged: {self.path.name} is not as it was written ({what}); genius repair {folder}"

    # -- writing (the caller holds the write lock) ------------------------------------------------------------

    def append(self, event: Mapping[str, Any]) -> None:
        """Add a line. It is on the disk when this returns.

        Args:
            event: The line, as JSON.

        Raises:
            GeniusError: the line could not be written. It was taken back, or, where the disk refuses that too, the error says
                that it is not known whether the line is there.
        """
        self.read()
        try:
            with self.path.open("r+b") as file:
                file.truncate(self._end)  # what a crash may have left of a line
                file.seek(self._end)
                file.write(_line(event))
                file.flush()
                sync_handle(file.fileno())
        except OSError as error:
            reason = error.strerror or error
            if self._taken_back():
                raise GeniusError(f"cannot write {self.path}: {reason}; the change is not made") from None
            raise GeniusError(
                f"cannot write {self.path}: {reason}; it is not known whether the change is made: open the index again to see"
            ) from None

    def _taken_back(self) -> bool:
        """Remove a line that may be there and must not count; whether that was possible."""
        try:
            with self.path.open("r+b") as file:
                file.truncate(self._end)
                sync_handle(file.fileno())
        except OSError:
            return False
        self._seen = None
        return True

    def acknowledge(self, version: int, items: int, files: Mapping[str, str]) -> None:
        self.append({"version": version, "items": items, "time": _now(), "files": dict(files)})

    def rewrite(self, state: LedgerState) -> None:
        """Begin anew: what the book says, in two lines."""
        events = [
            {"ledger": LEDGER_FORMAT, "about": dict(state.about), "nonce": secrets.token_hex(8)},
            {
                "version": state.head,
                "items": state.items,
                "time": _now(),
                "files": dict(sorted(state.files.items())),
                "shown": sorted(state.shown),
            },
        ]
        body = b"".join(map(_line, events))
        write_whole(self.path, lambda path: path.write_bytes(body), durable=True)


def _line(event: Mapping[str, Any]) -> bytes:
    text = json.dumps(event, separators=(",", ":"))
    return f"{text_sum(text)} {text}\n".encode()


def _parse(line: bytes) -> dict[str, Any]:
    given, _, text = line.decode("ascii").partition(" ")
    if text_sum(text) != given:
        raise ValueError("checksum")
    event = parse_json(text)
    if not isinstance(event, dict):
        raise ValueError("no object")
    return event


def _after(state: LedgerState, event: Mapping[str, Any], first: bool) -> LedgerState:
    if first:
        if event["ledger"] != LEDGER_FORMAT or not isinstance(event["about"], dict):
            raise ValueError("format")
        return replace(state, about=event["about"])
    if "cleaning" in event:
        return replace(state, cleaning=True)
    head = _version(event["version"])
    for name, noted in event["files"].items():
        if _NAME.fullmatch(name) is None or ".." in name.split("/") or _NOTED.fullmatch(noted) is None:
            raise ValueError("a file that is not below the table")
    return replace(
        state,
        head=head,
        items=_version(event["items"]),
        shown=state.shown | {head, *map(_version, event.get("shown", ()))},
        files={**state.files, **event["files"]},
        cleaning=False,
    )


def _version(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("not a number of versions or items")
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
