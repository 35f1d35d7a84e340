"""Object stores (`s3://BUCKET/...`): sources are copied from there, and an index is published there and followed from there.

An index lives on a disk, where its codes are mapped and its writer holds a lock; no object store has either. So what is in the
store is a copy: its files never change once written, and the ledger, sent last, says which of them make a version. Who follows it
fetches what is new and then the ledger, so that only whole versions are ever seen, and compares checksums on opening. One writer:
the disk's. Publishing is refused where something else lies in the store, or more than this index knows of, and while somebody
else publishes there: everybody lays down a claim first, and then looks for those of others. Stores show what was written to
everyone at once, so of two at the same moment one at least sees the other, and goes.

Knows files and the ledger; talks to the store through pyarrow, which comes with the index anyway.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import platform
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from genius.errors import GeniusError
from genius.files import read_json, write_json, write_whole
from genius.index.commit import manifest_name, table_folder
from genius.index.folder import WriteLock, about_of
from genius.index.ledger import Ledger, LedgerState, file_sum, size_in
from genius.index.paths import ABOUT, DELETED, LEDGER, MODEL, PUBLISHED, remove
from genius.index.store import Store

CLAIMS = "publishing"  # folder of who publishes at the moment
EVERY_S = 5.0  # between looks at an index that is followed
HALF_FETCHED = re.compile(r"\..+\.\d+-\d+")  # what a fetch that was killed left (`write_whole`)
TRIES = 5  # of a fetch whose files are cleaned up meanwhile


class Place:
    """A folder in an object store."""

    def __init__(self, url: str) -> None:
        from pyarrow import fs

        self.url = url
        self.root = url.removeprefix("s3://")
        endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")
        options: dict[str, Any] = {"scheme": endpoint.scheme, "endpoint_override": endpoint.netloc} if endpoint.netloc else {}
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        with self._errors("reach"):
            self.store = fs.S3FileSystem(**options, **({"region": region} if region else {}))

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            if isinstance(error, GeniusError):
                raise
            raise GeniusError(f"cannot {doing} {self.url}: {' '.join(str(error).split())[:300]}") from None

    def files(self) -> dict[str, tuple[int, int]]:
        """Name below this place -> size and time of everything there."""
        from pyarrow import fs

        with self._errors("list"):
            found = self.store.get_file_info(fs.FileSelector(self.root, recursive=True, allow_not_found=True))
        names = {info.path.removeprefix(f"{self.root}/"): info for info in found if info.type == fs.FileType.File}
        return {name: (info.size, info.mtime_ns or 0) for name, info in names.items()}

    def read(self, name: str) -> bytes | None:
        try:
            with self._errors("read"), self.store.open_input_stream(f"{self.root}/{name}") as stream:
                body: bytes = stream.read()
                return body
        except FileNotFoundError:
            return None

    def fetch(self, name: str, target: Path) -> None:
        """One object into a file, whole or not at all."""

        def copy(path: Path) -> None:
            with self._errors("read"), self.store.open_input_stream(f"{self.root}/{name}") as stream, path.open("wb") as file:
                shutil.copyfileobj(stream, file, 1 << 20)

        write_whole(target, copy)

    def send(self, source: Path | bytes, name: str) -> None:
        """One file, or these bytes, into an object.

        Sent again if that fails: an answer that is lost makes the last step of an upload fail.
        """
        try:
            self._send(source, name)
        except GeniusError:
            self._send(source, name)

    def _send(self, source: Path | bytes, name: str) -> None:
        with (
            self._errors("write to"),
            io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file,
            self.store.open_output_stream(f"{self.root}/{name}") as stream,
        ):
            shutil.copyfileobj(file, stream, 1 << 20)

    def object(self) -> tuple[int, int] | None:
        """Size and time if this place is an object, not a folder."""
        with self._errors("read"):
            about = self.store.get_file_info(self.root)
        if not about.is_file:
            return None
        return about.size, about.mtime_ns or 0

    def remove(self, name: str) -> None:
        with self._errors("write to"), contextlib.suppress(FileNotFoundError):
            self.store.delete_file(f"{self.root}/{name}")


# -- sources -------------------------------------------------------------------------------------------------------


def fetch_sources(url: str, folder: Path) -> Path:
    """Everything under `url` as files under `folder`, with the store's times, so that what did not change is not read again."""
    try:
        return _fetch_sources(Place(url), folder)
    except FileNotFoundError:
        raise GeniusError(f"{url} changes while it is copied: try again") from None
    except OSError as error:
        raise GeniusError(f"cannot write {folder}: {error.strerror or error}") from None


def _fetch_sources(place: Place, folder: Path) -> Path:
    url = place.url
    found = place.files()
    target = folder / place.root
    single = None
    if not found:
        single = place.object()
        if single is None:
            raise GeniusError(f"nothing is stored at {url}")
    if single is not None:
        found = {target.name: single}
        place.root = str(Path(place.root).parent)
        target = target.parent
    for name, (size, time) in found.items():
        path = (target / name).resolve()
        if not path.is_relative_to(target.resolve()):
            raise GeniusError(f"{url} holds an object whose name leads out of it: {name!r}")
        if not path.is_file() or (path.stat().st_size, path.stat().st_mtime_ns) != (size, time):
            place.fetch(name, path)
            os.utime(path, ns=(time, time))
    if single is not None:
        return target / next(iter(found))
    for path in target.rglob("*"):
        if path.is_file() and path.relative_to(target).as_posix() not in found:
            path.unlink()
    return target


# -- an index ------------------------------------------------------------------------------------------------------


def publish(folder: Path, url: str, alone: bool = False) -> LedgerState:
    """Copy an index to the store, or bring the copy there up to date; what it says now. Writers wait meanwhile.

    `alone`: the caller knows that nobody else publishes there; claims in the store are of those who were killed."""
    about_of(folder)
    place = Place(url)
    with WriteLock(folder / ".lock", 30.0).hold(), _claim(place, alone):
        state = Store(folder).state()
        there = {name: about for name, about in place.files().items() if not _is_claim(name)}
        before = _ledger_state(place)
        _refuse_another(folder, place, state, before, there)
        _note(folder, _next(place.url), _mark(state))  # a kill may leave the store at it, or files of it there
        table = table_folder(folder)
        for name in sorted(state.files, key=lambda name: name.startswith("_versions")):  # what defines a version after its data
            if there.get(f"{table.name}/{name}", (-1, 0))[0] != size_in(state.files[name]):
                place.send(table / name, f"{table.name}/{name}")
        for path in [folder / ABOUT, folder / DELETED, *sorted((folder / MODEL).rglob("*"))]:
            if path.is_file():
                place.send(path, path.relative_to(folder).as_posix())
        _send_ledger(place, folder, state)
        try:
            _note(folder, place.url, _mark(state))
            for name in there:
                if name.startswith(f"{table.name}/") and name.removeprefix(f"{table.name}/") not in state.files:
                    place.remove(name)
        except GeniusError as error:
            raise GeniusError(f"{error}; the new version is made all the same, publish again to tidy up") from None
    return state


def _send_ledger(place: Place, folder: Path, state: LedgerState) -> None:
    """Send the ledger: from here on the new version counts. Says truly whether it does."""
    try:
        place.send(folder / LEDGER, LEDGER)
    except GeniusError as error:
        try:
            found = _ledger_state(place)
        except GeniusError:
            raise GeniusError(f"{error}; whether the new version is there is not known: publish again") from None
        if found is None or _mark(found) != _mark(state):
            raise GeniusError(f"{error}; the store is as it was") from None


@contextmanager
def _claim(place: Place, alone: bool) -> Iterator[None]:
    """Inside, nobody else publishes here: everybody writes a claim first, and then looks for those of others.

    A claim that cannot be removed keeps others out, and the error says so.
    """
    mine = f"{CLAIMS}/{secrets.token_hex(8)}"
    done = False
    try:
        place.send(f"{platform.node()} since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n".encode(), mine)
        for other in [name for name in place.files() if _is_claim(name) and name != mine]:
            if not alone:
                who = _claimant(place, other)
                raise GeniusError(f"{place.url}: {who} is publishing there; if it was killed, use genius publish --alone")
            place.remove(other)
        yield
        done = True
    finally:
        stays = None
        try:
            place.remove(mine)
        except GeniusError as error:
            stays = error
        if done and stays is not None:
            raise GeniusError(
                f"{stays}; the new version is made all the same, but the note that we publish stays: publish with --alone"
            ) from None


def _claimant(place: Place, claim: str) -> str:
    """Who wrote a claim; "somebody" where it was removed after it was listed, at whatever moment of the reading."""
    try:
        body = place.read(claim)
    except GeniusError:
        body = None
    return (body or b"somebody").decode(errors="replace").strip()


def _is_claim(name: str) -> bool:
    return name.startswith(f"{CLAIMS}/")


def _refuse_another(folder: Path, place: Place, state: LedgerState, before: LedgerState | None, there: dict[str, Any]) -> None:
    """Unless nothing is there, or a version of this very index, or what was published from here last (and cleaned up since)."""
    noted = _published(folder)
    if before is None:
        if there and _next(place.url) not in noted:
            raise GeniusError(f"{place.url} holds other objects ({next(iter(there))!r}): choose another URL")
        return
    if before.about["id"] != state.about["id"]:
        raise GeniusError(f"{place.url} holds another index: choose another URL")
    name = manifest_name(before.head)
    ours = before.head in state.shown and state.files.get(name) == before.files.get(name)
    ours = ours or _mark(before) in (noted.get(place.url), noted.get(_next(place.url)))
    if not ours:
        raise GeniusError(f"{place.url} holds changes that this index does not have: another process publishes there")


def _published(folder: Path) -> dict[str, str]:
    """Where this index was published, and what was there afterwards."""
    try:
        noted: dict[str, str] = read_json(folder / PUBLISHED)
        return noted
    except (FileNotFoundError, GeniusError):
        return {}


def _note(folder: Path, name: str, mark: str) -> None:
    write_json(folder / PUBLISHED, {**_published(folder), name: mark})


def _next(url: str) -> str:
    """Under which name the version is noted that is on its way to `url`."""
    return f"{url} (next)"


def _mark(state: LedgerState) -> str:
    return f"{state.head} {state.files.get(manifest_name(state.head))}"


def _ledger_state(place: Place) -> LedgerState | None:
    ledger = place.read(LEDGER)
    if ledger is None:
        return None
    return _state_of(ledger)


def _state_of(ledger: bytes) -> LedgerState:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / LEDGER).write_bytes(ledger)
        state = Ledger(Path(folder)).read()
        assert state is not None
        return state


def fetch_index(url: str, folder: Path) -> LedgerState:
    """Bring a local copy of a published index up to date. Who has it open moves on by itself, to whole versions only."""
    place = Place(url)
    for _ in range(TRIES):
        try:
            return _fetch(place, folder)
        except FileNotFoundError:
            continue  # cleaned up since the ledger was read: there is a newer one
        except OSError as error:
            raise GeniusError(f"cannot write {folder}: {error.strerror or error}") from None
    raise GeniusError(f"{url} changes faster than it can be copied, or files of it are missing")


def _fetch(place: Place, folder: Path) -> LedgerState:
    ledger = place.read(LEDGER)
    if ledger is None:
        raise GeniusError(f"no index at {place.url} (genius publish INDEX {place.url} puts one there)")
    state = _state_of(ledger)
    table = table_folder(folder)
    for name, noted in state.files.items():
        path = table / name
        if not path.is_file() or path.stat().st_size != size_in(noted):
            place.fetch(f"{table.name}/{name}", path)
            if file_sum(path) != noted:
                path.unlink()
                raise GeniusError(f"{name} of {place.url} arrived as something else than was published: try again")
    for name in place.files():
        if name in (ABOUT, DELETED) or (name.startswith(f"{MODEL}/") and ".." not in name):
            place.fetch(name, folder / name)
    if place.read(LEDGER) != ledger:
        raise FileNotFoundError(LEDGER)  # published again meanwhile
    write_whole(folder / LEDGER, lambda path: path.write_bytes(ledger))
    for path in table.rglob("*"):
        if path.is_file() and path.relative_to(table).as_posix() not in state.files:
            path.unlink()
    for path in [*folder.iterdir(), *(folder / MODEL).rglob("*")]:
        if HALF_FETCHED.fullmatch(path.name):
            remove(path, folder)
    return state


def local_copy(url: str) -> Path:
    """Where the local copy of a published index is kept, brought up to date: GENIUS_CACHE, or ~/.cache/genius."""
    cache = Path(os.environ.get("GENIUS_CACHE") or Path.home() / ".cache" / "genius")
    folder = cache / f"{hashlib.blake2b(url.encode(), digest_size=8).hexdigest()}-{Path(url).name}"
    folder.mkdir(parents=True, exist_ok=True)
    with WriteLock(folder / ".fetching", 600.0).hold():
        fetch_index(url, folder)
    return folder


def follow(url: str, every_s: float = EVERY_S) -> threading.Thread:
    """Keep the local copy up to date, in a thread that ends with the process. A store that is away is tried again."""

    def run() -> None:
        while True:
            threading.Event().wait(every_s)
            with contextlib.suppress(GeniusError, OSError):
                local_copy(url)

    thread = threading.Thread(target=run, name="genius-follow", daemon=True)
    thread.start()
    return thread
