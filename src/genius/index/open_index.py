"""What an open index owns, and how it follows what other processes do: the base of `Index`.

`OpenIndex` owns the table (store.py), which is the truth, the live view (opened.py), which follows it, and two locks: `lock`
guards the live view among the threads of this process and is held briefly; `write_lock` is the file lock that writers of all
processes take in turn. The order is always `write_lock`, then `lock`. Every call sees one version: its filter, its search and the
items it returns belong together. Knows models and the search engine; knows nothing of items and queries.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from genius.errors import GeniusError
from genius.index import cache, learned, opened
from genius.index.folder import About, WriteLock, clear, open_or_create, read_about
from genius.index.ledger import Damaged
from genius.index.opened import RETRIES, CommittedRows, HistoryDiverged, Live, Replaced
from genius.index.paths import id_of, origin_of
from genius.index.reader import Reader, Vanished
from genius.index.store import Store
from genius.model.query_bank import QueryBank
from genius.search import ScanCache
from genius.types import Modality

if TYPE_CHECKING:
    from genius.model.genius import Genius

T = TypeVar("T")
logger = logging.getLogger("genius.index")
REBUILD_SHARE = 0.2  # a cache that lacks more than this share of the rows is built anew when opened


class OpenIndex:
    """An index folder, open. The arguments are those of `Index`."""

    def __init__(
        self,
        path: str | Path,
        model: Genius | str | Path | None = None,
        *,
        create: bool = True,
        read_only: bool = False,
        version: int | None = None,
        lock_timeout: float = 30.0,
        thumbnails: int = 256,
        vectors: bool = True,
    ) -> None:
        if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
            raise GeniusError(f"a version is a whole number, got {version!r}")
        self.path = Path(path)
        self.pinned = version
        self.options = {"lock_timeout": lock_timeout, "thumbnails": thumbnails}
        self.read_only = read_only or version is not None
        self.thumbnails = thumbnails
        self.lock = threading.RLock()
        self.follows = model is None and version is None  # an index that takes the place of this one (`genius reencode`)
        self.generation = 0  # how often another index has taken its place
        self._opening = threading.Lock()  # one thread opens the index that took the place of this one
        self._thread = threading.local()  # `generation` that a thread's call has begun with
        self.write_lock = WriteLock(self.path / ".lock", lock_timeout)
        self.about, self.model, self.store = self._open_parts(model, create and not self.read_only, vectors)
        self.commits = 0  # of this process
        self._swept = False  # what killed writers left was removed
        self.query_log: Callable[[Any, Any, Sequence[Modality | None]], None] | None = None  # given each query (`QueryLog.add`)
        self._learned: QueryBank | None = None
        self._learned_stamp: tuple[int, int, int] | None = None  # of the file that it was read from
        if version is None:
            self.live = self.consistent(self._open_newest)
        else:
            self.live = self._open(self.store.at(version))

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    # -- the live view: opening -----------------------------------------------------------------------------------------------

    def _open_parts(self, model: Genius | str | Path | None, create: bool, vectors: bool) -> tuple[About, Genius, Store]:
        """What describes the index, its model and its table; again, if another index took its place while they were read."""
        for _ in range(RETRIES):
            before = id_of(self.path)
            try:
                return open_or_create(self.path, model, create, self.write_lock, vectors)
            except GeniusError as error:
                if before is None:
                    raise
                after = read_about(self.path)  # waits while it is being replaced
                if after is None:
                    raise
                if after.id == before and not isinstance(error, Damaged):  # what looks damaged may be parts of two: it was back
                    raise
        return open_or_create(self.path, model, create, self.write_lock, vectors)

    def _open_newest(self) -> Live:
        reader = self.store.at(self.store.latest())
        self.refuse_another()  # the table may be that of an index which has taken this one's place since `about` was read
        return self._open(reader)

    def _open(self, reader: Reader) -> Live:
        live = self._from_cache(reader)
        if live is not None:
            return live
        if not self.read_only and reader.count() >= opened.CACHE_FROM:
            try:
                with self.write_lock.hold():  # one process builds; the next finds it
                    live = self._from_cache(reader)
                    if live is not None:
                        return live
                    return self.rebuild(reader)
            except GeniusError:
                pass  # a busy writer or a read-only folder: do without a cache
        return self._in_memory(reader)

    def _in_memory(self, reader: Reader) -> Live:
        return Live(self.model, cache.build(reader, self.about, None), reader)

    def _from_cache(self, reader: Reader) -> Live | None:
        cached = cache.newest(self.cache, self.about, reader.version)
        if cached is None:
            return None
        if cached.exactly(reader):
            return self._with_scans(Live(self.model, cached, reader))
        count = reader.count()
        if count - cached.items > REBUILD_SHARE * count:
            return None
        live = Live.verified(self.model, cached, reader)
        if live is None or live.wasteful:
            return None
        return self._with_scans(live)

    def _with_scans(self, live: Live) -> Live:
        """The live view with the place in its cache where the product codes of its base are kept."""
        base = live.base
        if base.cached:
            queries = ""
            if self.model.queries is not None:
                queries = self.model.queries.digest()
            identity = f"{self.about.id}:{self.about.fingerprint}:{base.version}:{base.manifest}:{queries}"
            live.scans = ScanCache(self.cache / str(base.version) / "scan", identity, not self.read_only)
        return live

    def rebuild(self, reader: Reader) -> Live:
        """A live view without history, and its cache on disk. The caller holds the write lock.

        Args:
            reader: the version.
        """
        base = cache.build_cached(reader, self.about, self.cache)
        cache.forget(self.cache, keep=base.version)
        return self._with_scans(Live(self.model, base, reader))

    # -- one version at a time ---------------------------------------------------------------------------------

    def current(self, gone: Sequence[int] = (), committed: CommittedRows | None = None, model: Genius | None = None) -> Live:
        """The live view at the newest version. Call with `lock` held.

        Args:
            gone: rows this process just deleted.
            committed: rows this process just wrote; it still holds the write lock.
            model: that the caller has encoded with; None: with none.

        Raises:
            Replaced: another index has taken the place of this one since the caller began, or has encoded.
        """
        begun = getattr(self._thread, "generation", None)
        if begun not in (None, self.generation) or (model is not None and model is not self.model):
            raise Replaced(f"{self.path} was replaced during this call")
        if self.pinned is None:
            self.refuse_another()
            latest = self.store.latest()
            if latest != self.live.version:
                reader = self.store.at(latest)
                try:
                    self.live.advance(reader, gone, self.store.continues(self.live.reader), committed)
                except HistoryDiverged:
                    self.live = self._in_memory(reader)
                if self.live.wasteful:
                    self.live = self._in_memory(reader)
        self.follow_learned()
        return self.live

    def follow_learned(self) -> None:
        """Search with what the index has learned from queries by now, in this process or in another."""
        with self.lock:
            stamp = learned.stamp(self.path)
            if stamp != self._learned_stamp:
                self._learned_stamp = stamp
                self._learned = learned.load(self.path, self.about.fingerprint, self.about.width, self.pinned)
            self.live.relearn(self._learned)

    def sure(self, ids: Sequence[str], model: Genius | None = None) -> Live:
        """`current`, certain about these ids: a cache is only a shortcut, and the table must not be changed by what it says.

        Call with `lock` held, by a writer.

        Args:
            ids: of items.
            model: as for `current`.
        """
        live = self.current(model=model)
        if live.cached and live.reader.present(ids) != set(live.find(ids)):
            cache.forget(self.cache, keep=None)
            self.live = live = self._in_memory(live.reader)
        return live

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Rows of the live view.

        Args:
            ids: of items; those that are not here are left out.
        """
        with self.lock:
            return self.current().find(ids)

    def reader(self) -> Reader:
        """The table at the newest version."""
        with self.lock:
            return self.current().reader

    def consistent(self, call: Callable[[], T]) -> T:
        """Run a read; again, on what is newest then, if another process cleaned its version away meanwhile, or replaced the
        index.

        Args:
            call: the read.
        """
        return self.following(lambda: self._on_newest(call))

    def following(self, call: Callable[[], T]) -> T:
        """Run a call whose encoder, table and live view belong to one index; again, if another one took its place meanwhile.

        Of nested calls the outermost is run again: what an inner one was given may come from the encoder of before.

        Args:
            call: a read or a write.
        """
        if getattr(self._thread, "generation", None) is not None:
            return call()
        for left in reversed(range(RETRIES + 1)):
            try:
                if left < RETRIES:
                    self._become_successor()
                self._thread.generation = self.generation
                return call()
            except Exception as error:
                if not left or not self._goes_on(error):
                    raise
                if not isinstance(error, GeniusError):  # tests have seen none: this one is to be looked into
                    logger.warning("a call is repeated because %s was replaced during it", self.path, exc_info=True)
            finally:
                self._thread.generation = None
        raise AssertionError("the last round returns or raises")

    def _goes_on(self, error: Exception) -> bool:
        """Whether a failed call is to be repeated: the index was replaced during it, perhaps for a moment only.

        Args:
            error: How it failed.
        """
        begun = getattr(self._thread, "generation", None)
        if begun not in (None, self.generation) or self._has_successor():
            return True
        if not self.follows or not isinstance(error, Replaced):
            return False
        about = read_about(self.path)
        return about is not None and about.id == self.about.id  # it is back: `go_back` after a switch

    def _has_successor(self) -> bool:
        """Whether an index that was made from this one has taken its place, and this one may follow."""
        if not self.follows:
            return False
        if self.path.exists() and origin_of(self.path) is None:
            return False
        about = read_about(self.path)  # waits while it is being replaced
        return about is not None and about.id != self.about.id and origin_of(self.path) is not None

    def _become_successor(self) -> None:
        """Open what has taken the place of this index: another model, table and live view."""
        with self._opening:
            if not self._has_successor():
                return  # another thread has done it
            options: Any = self.options
            fresh = type(self)(self.path, None, create=False, read_only=self.read_only, version=None, **options)
            fresh.model.to(self.model.device)
            with self.lock:
                self.about = fresh.about
                self.model = fresh.model
                self.store = fresh.store
                self.live = fresh.live
                self._learned = fresh._learned
                self._learned_stamp = fresh._learned_stamp
                self.generation += 1

    def _on_newest(self, call: Callable[[], T]) -> T:
        """Run a read; again, on what is newest then, if another process cleaned its version away meanwhile."""
        for _ in range(RETRIES):
            try:
                return call()
            except Vanished:
                if self.pinned is not None:
                    raise GeniusError(f"version {self.pinned} of {self.path} was removed by genius optimize") from None
        return call()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Alone among writers; what is written inside counts, as a whole and on the disk, when the block ends."""
        self.check_writable()
        with self.write_lock.hold():
            self.refuse_another()
            if not self._swept:
                clear(self.path, self.about)
                self._swept = True
            cache.sweep(self.cache)
            with self.store.change():
                yield

    def refuse_another(self) -> None:
        """One line if another index, perhaps of another model, has taken the place of the one that was opened."""
        state = self.store.ledger.read()
        if state is not None and state.about.get("id") != self.about.id:
            raise Replaced(f"{self.path} was replaced by another index since it was opened: open it again")

    def check_writable(self) -> None:
        """One line if the index is open read-only."""
        if self.read_only:
            pinned = ""
            if self.pinned is not None:
                pinned = f" at version {self.pinned}"
            raise GeniusError(f"{self.path} is open read-only{pinned}")
