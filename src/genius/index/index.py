"""`Index`: items on disk that can be added, deleted, filtered and searched while others do the same.

The table (store.py) is the truth; the search side (live.py) follows it. Every call sees one version: its filter,
its search and the items it returns belong together. Writers take turns through a file lock; what a write call
has returned from survives any crash.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.features import Features
from genius.index import base as bases
from genius.index import metadata as meta
from genius.index.filters import compile_where
from genius.index.folder import open_or_create
from genius.index.live import Live
from genius.index.lock import WriterLock
from genius.index.prepare import Prepared, Stamped, prepare
from genius.index.results import AddReport, Hit, PrefixView
from genius.index.store import PAYLOAD, Reader
from genius.model.genius import Genius
from genius.search import SearchParams
from genius.types import ImageInput, Item, Modality, Query

MAX_K = 10_000
CACHE_FROM = 2_000  # smaller indexes are read whole when opened: quicker than a cache
REBUILD_SHARE = 0.2  # a cache that lacks more than this share of the rows is built anew when opened
COMPACT_AT = 128  # table fragments at which a writer merges them


class Index:
    """Open or create the index at `path` for `model` (a `Genius`, its URI, or None for the one the index was built with).

    `version` opens an older version, read-only. Safe to share between threads.
    """

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
    ) -> None:
        self.path = Path(path)
        self.read_only = read_only or version is not None
        self.thumbnails = thumbnails
        self._pinned = version
        self._lock = threading.RLock()  # guards the search side
        self._writer = WriterLock(self.path / ".lock", lock_timeout)
        self.about, self.model, self._store = open_or_create(self.path, model, create and not self.read_only, self._writer)
        self._key = bases.CacheKey(self.about.id, self.about.fingerprint, self.about.levels, self.about.width)
        self._live = self._open_live(self._store.at(self._store.latest() if version is None else version))
        self._masks: dict[tuple[int, str], np.ndarray] = {}

    @classmethod
    def open(cls, path: str | Path, model: Genius | str | Path | None = None, **options: Any) -> Index:
        """Open an index that exists, by default with the model it was built with."""
        return cls(path, model, create=False, **options)

    def _open_live(self, reader: Reader) -> Live:
        root, key = self.path / "cache", self._key
        cached = bases.newest(root, key, reader.version)
        count = reader.count()
        if cached is not None and count - cached.items <= REBUILD_SHARE * count:
            return Live(self.model, cached, reader)
        if count < CACHE_FROM or self._pinned is not None or self.read_only:
            return Live(self.model, bases.build(reader, key.level_sizes, key.width, None), reader)
        with self._writer.hold():  # one process builds; the next finds it
            cached = bases.newest(root, key, reader.version)
            if cached is None or count - cached.items > REBUILD_SHARE * count:
                cached = bases.build_cached(reader, key, root)
                bases.forget(root, keep=cached.version)
            return Live(self.model, cached, reader)

    def close(self) -> None:
        """Let go of files. Nothing needs saving: every write was committed when it returned."""
        with self._lock:
            self._masks.clear()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.count()

    def __contains__(self, item_id: str) -> bool:
        with self._lock:
            return item_id in self._current().find([item_id])

    # -- versions ----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version this index shows now."""
        with self._lock:
            return self._current().version

    def versions(self) -> list[dict[str, Any]]:
        """Versions that can still be opened: number, time, items; oldest first."""
        return self._store.versions()

    def refresh(self) -> int:
        """Move to the newest version on disk (every call does so by itself) and return it."""
        return self.version

    def _current(self, gone: Sequence[int] = ()) -> Live:
        """The search side at the newest version. Call with the lock held."""
        if self._pinned is None:
            latest = self._store.latest()
            if latest != self._live.version:
                self._live.advance(self._store.at(latest), gone)
        return self._live

    # -- writing -----------------------------------------------------------------------------------------------

    def add(
        self,
        items: Iterable[Item],
        *,
        batch_size: int = 256,
        on_error: Literal["raise", "skip"] = "raise",
        on_progress: Callable[[AddReport], None] | None = None,
        features: Features | None = None,
    ) -> AddReport:
        """Add items whose ids are new; ids that exist stay as they are, so a broken-off run can simply be repeated.

        Streams: each batch is one commit, safe once `on_progress` has been called for it (with that batch's report).
        `features` gives the encoder's output for `items` and spares reading them again.
        """
        return self._write(((item, None) for item in items), False, batch_size, on_error, on_progress, features)

    def upsert(
        self,
        items: Iterable[Item],
        *,
        batch_size: int = 256,
        on_error: Literal["raise", "skip"] = "raise",
        on_progress: Callable[[AddReport], None] | None = None,
        features: Features | None = None,
    ) -> AddReport:
        """Add items, each in place of the one with its id if there is one. A batch appears whole or not at all."""
        return self._write(((item, None) for item in items), True, batch_size, on_error, on_progress, features)

    def _write(
        self,
        items: Iterable[Stamped],
        replace: bool,
        batch_size: int,
        on_error: Literal["raise", "skip"],
        on_progress: Callable[[AddReport], None] | None = None,
        features: Features | None = None,
    ) -> AddReport:
        self._check_writable()
        if batch_size < 1:
            raise GeniusError(f"batch_size must be at least 1, got {batch_size}")
        total = AddReport()
        at = 0
        for batch in _batched(items, batch_size):
            part = None if features is None else features[slice(at, at + len(batch))]
            at += len(batch)
            report = self._write_batch(batch, replace, on_error, part)
            total.merge(report)
            if on_progress is not None:
                on_progress(report)
        return total

    def _write_batch(
        self, batch: list[Stamped], replace: bool, on_error: Literal["raise", "skip"], features: Features | None
    ) -> AddReport:
        report = AddReport()
        chosen: dict[str, int] = {}  # id -> position in the batch
        for position, (item, _) in enumerate(batch):
            if item.id in chosen:
                report.existing += not replace
            if replace or item.id not in chosen:  # add: the first wins; upsert: the last
                chosen[item.id] = position
        if not replace:  # do not read pictures of what is there already
            with self._lock:
                there = self._current().find(chosen)
            report.existing += len(there)
            chosen = {item_id: position for item_id, position in chosen.items() if item_id not in there}
        if not chosen:
            return report
        positions = list(chosen.values())
        part = None if features is None else features[torch.tensor(positions)]
        ready = prepare(self.model, [batch[p] for p in positions], self.thumbnails, on_error, part)
        report.problems += ready.problems
        if ready.items:
            self._commit(ready, replace, report)
        return report

    def _commit(self, ready: Prepared, replace: bool, report: AddReport) -> None:
        with self._writer.hold():
            with self._lock:
                live = self._current()
                there = live.find([item.id for item in ready.items])
            if not replace and there:
                report.existing += len(there)
                ready = ready.without(there)
                if not ready.items:
                    return
            fresh = meta.new_columns(
                live.reader.columns, ((item.id, row) for item, row in zip(ready.items, ready.metadata, strict=True))
            )
            self._store.latest()
            first = self._store.next_seq()
            if fresh:
                self._store.add_columns(fresh)
            rows = self._store.table(ready.columns(first, {**live.reader.columns, **fresh}))
            if replace and there:
                self._store.replace(rows)
            else:
                self._store.append(rows)
            with self._lock:
                self._current(gone=list(there.values()) if replace else ())
            report.added += len(ready.items) - (len(there) if replace else 0)
            report.replaced += len(there) if replace else 0
            self._compact_if_scattered()

    def delete(self, ids: str | Iterable[str], *, missing: Literal["raise", "skip"] = "raise") -> int:
        """Delete items; returns how many. An unknown id is an error before anything is deleted, unless `missing="skip"`."""
        self._check_writable()
        wanted = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
        with self._writer.hold():
            with self._lock:
                live = self._current()
                rows = live.find(wanted)
                _check_missing(wanted, rows, missing)
                seqs = [int(live.seqs[row]) for row in rows.values()]
            if seqs:
                self._store.latest()
                self._store.delete(seqs)
                with self._lock:
                    self._current(gone=list(rows.values()))
            return len(seqs)

    def optimize(self, *, keep: timedelta = timedelta(days=7)) -> None:
        """Merge small files, drop versions older than `keep`, and leave a fresh cache so that opening is quick."""
        self._check_writable()
        with self._writer.hold():
            self._store.latest()
            self._store.compact(keep)
            with self._lock:
                reader = self._store.at(self._store.latest())
                fresh = bases.build_cached(reader, self._key, self.path / "cache")
                bases.forget(self.path / "cache", keep=fresh.version)
                self._live = Live(self.model, fresh, reader)

    def _compact_if_scattered(self) -> None:
        """Many small commits leave many small files, and every scan opens them all."""
        if self._store.latest() % 32 == 0 and self._store.fragments() > COMPACT_AT:
            self._store.compact(timedelta(days=7))

    def _check_writable(self) -> None:
        if self.read_only:
            pinned = f" at version {self._pinned}" if self._pinned is not None else ""
            raise GeniusError(f"{self.path} is open read-only{pinned}")

    # -- reading -----------------------------------------------------------------------------------------------

    @overload
    def get(self, ids: str, *, missing: Literal["raise", "skip"] = "raise") -> Item: ...
    @overload
    def get(self, ids: Iterable[str], *, missing: Literal["raise", "skip"] = "raise") -> list[Item]: ...
    def get(self, ids: str | Iterable[str], *, missing: Literal["raise", "skip"] = "raise") -> Item | list[Item]:
        """The items with these ids, in this order; one id gives one item. An unknown id is an error or left out."""
        wanted = [ids] if isinstance(ids, str) else list(ids)
        if isinstance(ids, str):
            missing = "raise"
        with self._lock:
            live = self._current()
            rows = live.find(wanted)
            _check_missing(wanted, rows, missing)
            seqs = {item_id: int(live.seqs[row]) for item_id, row in rows.items()}
            reader = live.reader
        found = reader.rows(list(seqs.values()), [*PAYLOAD, "_image_bytes"])
        items = [_item(found[seqs[item_id]]) for item_id in wanted if item_id in seqs]
        return items[0] if isinstance(ids, str) else items

    def thumbnail(self, item_id: str) -> bytes | None:
        """The JPEG thumbnail of an item, None if it has no picture."""
        value = self._column(item_id, "_thumbnail")
        return value if isinstance(value, bytes) else None

    def codes(self, item_id: str) -> tuple[int, ...]:
        """The ID that the quantizer gave an item."""
        value = self._column(item_id, "_codes")
        assert isinstance(value, list)
        return tuple(int(code) for code in value)

    def _column(self, item_id: str, column: str) -> object:
        with self._lock:
            live = self._current()
            rows = live.find([item_id])
            _check_missing([item_id], rows, "raise")
            seq, reader = int(live.seqs[rows[item_id]]), live.reader
        return reader.rows([seq], [column])[seq][column]

    def count(self, where: str | None = None) -> int:
        """Items, or those that match `where`."""
        with self._lock:
            reader = self._current().reader
        return reader.count(None if where is None else compile_where(where, reader.columns))

    def columns(self) -> dict[str, str]:
        """Metadata keys that `where` can name, and what each holds: text, number or boolean."""
        with self._lock:
            return dict(self._current().reader.columns)

    def items(self, where: str | None = None) -> Iterator[Item]:
        """Every item of one version, in no promised order; pictures without a path come as stored bytes."""
        with self._lock:
            reader = self._current().reader
        sql = None if where is None else compile_where(where, reader.columns)
        for row in reader.stream([*PAYLOAD, "_image_bytes"], sql):
            yield _item(row)

    def below(self, prefix: Sequence[int] = (), *, limit: int = 20) -> PrefixView:
        """What lives under the first codes of an ID."""
        wanted = tuple(int(code) for code in prefix)
        levels = self.about.levels
        if len(wanted) > len(levels):
            raise GeniusError(f"a prefix of {len(wanted)} codes; IDs have {len(levels)}")
        for level, code in enumerate(wanted):
            if not 0 <= code < levels[level]:
                raise GeniusError(f"code {code} at level {level} is not in 0..{levels[level] - 1}")
        with self._lock:
            live = self._current()
            rows = live.below(wanted)
            children: dict[int, int] = {}
            if len(wanted) < len(levels) and len(rows):
                codes, counts = np.unique(live.codes_of(rows)[:, len(wanted)], return_counts=True)
                children = {int(codes[i]): int(counts[i]) for i in np.argsort(-counts, kind="stable")}
            shown = rows[: max(limit, 0)]
            shown_codes, seqs, reader = live.codes_of(shown), live.seqs[shown], live.reader
        found = reader.rows(seqs, PAYLOAD)
        items = self._items(reader, [found[int(seq)] for seq in seqs])
        full = [tuple(int(c) for c in row) for row in shown_codes]
        return PrefixView(wanted, len(rows), children, items, [item.id for item in items], full)

    def info(self) -> dict[str, Any]:
        """What this index is, for people and machines."""
        with self._lock:
            live = self._current()
            reader, cached = live.reader, live.base
        kinds = {m.label: reader.count(f"modality = '{m.label}'") for m in Modality}
        return {
            "path": str(self.path),
            "items": reader.count(),
            "modalities": kinds,
            "version": reader.version,
            "model": self.about.source,
            "fingerprint": self.about.fingerprint,
            "levels": list(self.about.levels),
            "width": self.about.width,
            "metadata": dict(reader.columns),
            "cached_version": cached.version,
            "bytes": sum(p.stat().st_size for p in self.path.rglob("*") if p.is_file()),
        }

    # -- search ------------------------------------------------------------------------------------------------

    def search(
        self,
        text: str | None = None,
        image: ImageInput | None = None,
        instruction: str | None = None,
        target: Modality | str | int | None = None,
        k: int = 10,
        where: str | None = None,
        min_score: float | None = None,
        beams: int | None = None,
        rerank: int | None = None,
        params: SearchParams | None = None,
    ) -> list[Hit]:
        """Items that answer a text, an image, or both; best first.

        `target`: image, text or pair. `where`: SQL over metadata, applied inside the search: k hits come back if k
        match. `beams` and `rerank` (items re-ranked by embedding) trade speed for recall.
        """
        kind = None if target is None else Modality.parse(target)
        query = Query(text=text, image=image, instruction=instruction, target=kind)
        return self.search_many([query], k, where=where, min_score=min_score, beams=beams, rerank=rerank, params=params)[0]

    def search_many(
        self,
        queries: Sequence[Query],
        k: int = 10,
        *,
        where: str | None = None,
        min_score: float | None = None,
        beams: int | None = None,
        rerank: int | None = None,
        params: SearchParams | None = None,
    ) -> list[list[Hit]]:
        """One list of hits a query, all from one version and under one filter; one pass through the model."""
        if not queries:
            return []
        self._check_search(k, min_score)
        embedded = self.model.embed_queries(queries)
        targets = torch.tensor([-1 if q.target is None else int(q.target) for q in queries])
        return self.search_embedded(
            embedded.z, embedded.dense, targets, k, where=where, min_score=min_score, beams=beams, rerank=rerank, params=params
        )

    def search_embedded(
        self,
        z: Tensor,
        dense: Tensor | None = None,
        targets: Tensor | None = None,
        k: int = 10,
        *,
        where: str | None = None,
        min_score: float | None = None,
        beams: int | None = None,
        rerank: int | None = None,
        params: SearchParams | None = None,
    ) -> list[list[Hit]]:
        """Search with query vectors z (Q, D), re-ranking vectors dense (Q, D) and modality codes (Q,), -1 for any."""
        self._check_search(k, min_score)
        settings = self._params(beams, rerank, params)
        with self._lock:
            live = self._current()
            allowed = self._allowed(live, where, targets)
            rows, scores = _run(live, z, dense, targets if self._labelled else None, k, settings, allowed)
            codes = [live.codes_of(row) for row in rows]
            seqs = [live.seqs[row] for row in rows]
            reader = live.reader
        found = reader.rows(np.concatenate(seqs) if seqs else [], PAYLOAD)
        wanted = [[found[int(seq)] for seq in part] for part in seqs]
        flat = self._items(reader, [row for part in wanted for row in part])
        answers: list[list[Hit]] = []
        at = 0
        for q, part in enumerate(wanted):
            hits = [
                Hit(item.id, float(scores[q][i]), tuple(int(c) for c in codes[q][i]), item, Modality.parse(part[i]["modality"]))
                for i, item in enumerate(flat[at : at + len(part)])
            ]
            at += len(part)
            answers.append(hits if min_score is None else [hit for hit in hits if hit.score >= min_score])
        return answers

    @property
    def _labelled(self) -> bool:
        return self.model.config.quantizer.labelled

    def _check_search(self, k: int, min_score: float | None) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MAX_K:
            raise GeniusError(f"k must be a whole number from 1 to {MAX_K:,}, got {k!r}")
        if min_score is not None and math.isnan(min_score):
            raise GeniusError("min_score is not a number")

    def _params(self, beams: int | None, rerank: int | None, params: SearchParams | None) -> SearchParams:
        settings = params or SearchParams(**self.model.config.search)
        if beams is not None:
            if not 1 <= beams <= MAX_K:
                raise GeniusError(f"beams must be from 1 to {MAX_K:,}, got {beams}")
            settings = dataclasses.replace(settings, beams=beams)
        if rerank is not None:
            if not 0 <= rerank <= 100_000_000:
                raise GeniusError(f"rerank must be from 0 to 100,000,000, got {rerank}")
            settings = dataclasses.replace(settings, rerank=rerank)
        return settings

    def _allowed(self, live: Live, where: str | None, targets: Tensor | None) -> np.ndarray | None:
        """(N,) or (Q, N) rows that may be found; None for all."""
        mask = None if where is None else self._mask(live, compile_where(where, live.reader.columns))
        if targets is None or self._labelled or bool((targets < 0).all()):
            return mask
        # this model's first code does not say the modality: the table does
        whole = np.ones(len(live.seqs), bool) if mask is None else mask
        kinds = {int(t): self._mask(live, f"modality = '{Modality(int(t)).label}'") for t in targets.unique() if t >= 0}
        return np.stack([whole & kinds[int(t)] if t >= 0 else whole for t in targets])

    def _mask(self, live: Live, sql: str) -> np.ndarray:
        key = (live.version, sql)
        if key not in self._masks:
            mask = np.zeros(len(live.seqs), bool)
            mask[live.rows_of(live.reader.seqs(sql))] = True
            while len(self._masks) >= 16:
                self._masks.pop(next(iter(self._masks)))
            self._masks[key] = mask
        return self._masks[key]

    def _items(self, reader: Reader, rows: list[dict[str, Any]]) -> list[Item]:
        """Items for display: a picture that has no path is shown by its thumbnail."""
        bare = [row["_seq"] for row in rows if row["_image"] is None and row["modality"] != Modality.TEXT.label]
        small = reader.rows(bare, ["_thumbnail"]) if bare else {}
        lacking = [seq for seq in bare if small[seq]["_thumbnail"] is None]
        full = reader.rows(lacking, ["_image_bytes"]) if lacking else {}
        pictures = {seq: small[seq]["_thumbnail"] or full[seq]["_image_bytes"] for seq in bare}
        return [_item({**row, "_image_bytes": pictures.get(row["_seq"])}) for row in rows]


def _run(
    live: Live,
    z: Tensor,
    dense: Tensor | None,
    targets: Tensor | None,
    k: int,
    settings: SearchParams,
    allowed: np.ndarray | None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Rows and scores of each query, best first, without the padding."""
    queries = z.shape[0]
    engine = live.engine()
    if engine is None or live.alive == 0:
        return [np.empty(0, np.int64)] * queries, [np.empty(0)] * queries
    result = engine.search(z, k=k, params=settings, dense=dense, target=targets, allowed=allowed)
    rows, scores = result.rows.cpu().numpy(), result.scores.float().cpu().numpy()
    kept = [row >= 0 for row in rows]
    return [row[keep] for row, keep in zip(rows, kept, strict=True)], [s[keep] for s, keep in zip(scores, kept, strict=True)]


def _batched(items: Iterable[Stamped], size: int) -> Iterator[list[Stamped]]:
    batch: list[Stamped] = []
    for pair in items:
        if not isinstance(pair[0], Item):
            raise GeniusError(f"expected an Item, got {type(pair[0]).__name__}")
        batch.append(pair)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _check_missing(wanted: Sequence[str], found: dict[str, int], missing: Literal["raise", "skip"]) -> None:
    if missing == "raise":
        unknown = [item_id for item_id in wanted if item_id not in found]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise GeniusError(f"no item {unknown[0]!r}{more} in this index")


def _item(row: dict[str, Any]) -> Item:
    image = row["_image"] if row["_image"] is not None else row.get("_image_bytes")
    return Item(row["id"], image=image, text=row["text"], metadata=meta.load(row["_metadata"]))
