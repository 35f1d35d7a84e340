"""What the parts of one open index share: the folder, the model, the table, the search side, and two locks.

`lock` guards the search side among the threads of this process and is held briefly; `writer` is the file lock
that writers of all processes take in turn. The order is always writer, then lock.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from genius.errors import GeniusError
from genius.index import cache
from genius.index.folder import FORMAT, about_of, open_or_create, upgrade
from genius.index.live import HistoryDiverged, Live
from genius.index.lock import WriterLock
from genius.index.reader import Reader, Vanished
from genius.model.genius import Genius
from genius.types import Modality

T = TypeVar("T")

CACHE_FROM = 2_000  # smaller indexes are read whole when opened: quicker than a cache
RETRIES = 4  # of a read whose version was cleaned away
REBUILD_SHARE = 0.2  # a cache that lacks more than this share of the rows is built anew when opened


class OpenIndex:
    """One open index folder."""

    def __init__(
        self,
        path: Path,
        model: Genius | str | Path | None,
        *,
        create: bool,
        read_only: bool,
        version: int | None,
        lock_timeout: float,
        thumbnails: int,
        durable: bool,
    ) -> None:
        if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
            raise GeniusError(f"a version is a whole number, got {version!r}")
        self.path = path
        self.pinned = version
        self.options = {"lock_timeout": lock_timeout, "thumbnails": thumbnails, "durable": durable}
        self.read_only = read_only or version is not None
        self.thumbnails = thumbnails
        self.lock = threading.RLock()
        self.writer = WriterLock(path / ".lock", lock_timeout)
        self.about, self.model, self.store = open_or_create(path, model, create and not self.read_only, self.writer, durable)
        self.key = cache.CacheKey(self.about.id, self.about.fingerprint, self.about.levels, self.about.width)
        self.commits = 0  # of this process
        if version is None:
            self.live = self.consistent(lambda: self._open(self.store.at(self.store.latest())))
        else:
            self.live = self._open(self.store.at(version))

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    # -- opening -----------------------------------------------------------------------------------------------

    def _open(self, reader: Reader) -> Live:
        live = self._from_cache(reader)
        if live is not None:
            return live
        if not self.read_only and reader.count() >= CACHE_FROM:
            try:
                with self.writer.hold():  # one process builds; the next finds it
                    live = self._from_cache(reader)
                    return live if live is not None else self.rebuild(reader)
            except GeniusError:
                pass  # a busy writer or a read-only folder: do without a cache
        return self._in_memory(reader)

    def _in_memory(self, reader: Reader) -> Live:
        return Live(self.model, cache.build(reader, self.key.level_sizes, self.key.width, None), reader)

    def _from_cache(self, reader: Reader) -> Live | None:
        cached = cache.newest(self.cache, self.key, reader.version)
        if cached is None:
            return None
        if cached.exactly(reader):
            return Live(self.model, cached, reader)
        count = reader.count()
        if count - cached.items > REBUILD_SHARE * count:
            return None
        live = Live.verified(self.model, cached, reader)
        return None if live is None or live.wasteful else live

    def rebuild(self, reader: Reader) -> Live:
        """A search side without history, and its cache on disk. The caller holds the writer's lock."""
        base = cache.build_cached(reader, self.key, self.cache)
        cache.forget(self.cache, keep=base.version)
        return Live(self.model, base, reader)

    # -- one version at a time ---------------------------------------------------------------------------------

    def current(self, gone: Sequence[int] = ()) -> Live:
        """The search side at the newest version. Call with `lock` held. `gone`: rows this process just deleted."""
        if self.pinned is None:
            latest = self.store.latest()
            if latest != self.live.version:
                reader = self.store.at(latest)
                try:
                    self.live.advance(reader, gone, trust=self.store.continues(self.live.reader))
                except HistoryDiverged:
                    self.live = self._in_memory(reader)
                if self.live.wasteful:
                    self.live = self._in_memory(reader)
        return self.live

    def sure(self, ids: Sequence[str]) -> Live:
        """`current`, certain about these ids: a cache is only a shortcut, and the table must not be changed by what it says.

        Call with `lock` held, by a writer.
        """
        live = self.current()
        if live.cached and live.reader.present(ids) != set(live.find(ids)):
            shutil.rmtree(self.cache, ignore_errors=True)
            self.live = live = self._in_memory(live.reader)
        return live

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        with self.lock:
            return self.current().find(ids)

    def reader(self) -> Reader:
        with self.lock:
            return self.current().reader

    def kinds(self) -> set[Modality]:
        """Kinds of items that there may be; one whose last item was just deleted may still be named."""
        with self.lock:
            return {Modality(kind) for kind in self.current().kinds(self.model.config.quantizer.labelled)}

    def consistent(self, call: Callable[[], T]) -> T:
        """Run a read; again, on what is newest then, if another process cleaned its version away meanwhile."""
        for _ in range(RETRIES):
            try:
                return call()
            except Vanished:
                if self.pinned is not None:
                    raise GeniusError(f"version {self.pinned} of {self.path} was cleaned away") from None
        return call()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Alone among writers; what is written inside counts, as a whole and on the disk, when the block ends."""
        self.check_writable()
        with self.writer.hold():
            if self.about.format < FORMAT:
                about = about_of(self.path)  # another process may have done it meanwhile
                self.about = upgrade(self.path, about, self.store) if about.format < FORMAT else about
            with self.store.change():
                yield

    def check_writable(self) -> None:
        if self.read_only:
            pinned = f" at version {self.pinned}" if self.pinned is not None else ""
            raise GeniusError(f"{self.path} is open read-only{pinned}")
