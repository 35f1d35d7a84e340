"""`Index`: items on disk that can be added, deleted, filtered and searched while others do the same.

The door of this room. The table (store.py) is the truth; the search side (live.py) follows it. Every call sees one
version: its filter, its search and the items it returns belong together. What a write has returned from survives
any crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.features import Features
from genius.index import fields, likeness, searching, writing
from genius.index.backup import Copied, snapshot
from genius.index.fields import Field
from genius.index.filters import compile_where
from genius.index.folder import About, describe
from genius.index.prepare import Stamped
from genius.index.reader import PAYLOAD
from genius.index.results import AddReport, Hits, PrefixView
from genius.index.state import State
from genius.index.targets import gather, spread
from genius.model.genius import Genius
from genius.search import SearchParams
from genius.types import ImageInput, Item, Modality, Query


class Index:
    """Open or create the index at `path` for `model` (a `Genius`, its URI, or None for the one it was built with).

    `version` opens an older version, read-only. `lock_timeout`: seconds a write waits for other writers.
    `thumbnails`: longest side of the stored previews, 0 for none. `durable`: a write returns once it is on the disk; without,
    a power cut may take the last ones. Safe to share between threads.
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
        durable: bool = True,
    ) -> None:
        self._state = State(
            Path(path),
            model,
            create=create,
            read_only=read_only,
            version=version,
            lock_timeout=lock_timeout,
            thumbnails=thumbnails,
            durable=durable,
        )

    @classmethod
    def open(cls, path: str | Path, model: Genius | str | Path | None = None, **options: Any) -> Index:
        """Open an index that exists, by default with the model it was built with."""
        return cls(path, model, create=False, **options)

    @property
    def path(self) -> Path:
        return self._state.path

    @property
    def model(self) -> Genius:
        return self._state.model

    @property
    def about(self) -> About:
        """Which model this index belongs to, and the shape of its IDs."""
        return self._state.about

    @property
    def read_only(self) -> bool:
        return self._state.read_only

    def close(self) -> None:
        """Nothing needs saving: every write was on disk when it returned. Here so that `with` works."""

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.count()

    def __contains__(self, item_id: object) -> bool:
        if not isinstance(item_id, str):
            return False
        return self._state.consistent(lambda: item_id in self._state.find([item_id]))

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {self.count()} items, version {self.version})"

    def __reduce__(self) -> Any:
        """Pickled, an index is its path: another process opens it anew. Its model must be one that can be loaded again."""
        state = self._state
        if state.about.source is None and state.model.source is None:
            raise GeniusError("this index's model was never saved, so another process cannot load it: save it, or pass the path")
        options = {"read_only": state.read_only, "version": state.pinned, **state.options}
        return _reopen, (self.path.absolute(), state.model.source or state.about.source, options)

    def __copy__(self) -> Index:
        return self.__deepcopy__({})

    def __deepcopy__(self, _: Any) -> Index:
        """A second handle on the same folder, with the same model."""
        state = self._state
        options: Any = {"read_only": state.read_only, "version": state.pinned, **state.options}
        return Index(self.path, self.model, create=False, **options)

    # -- versions ----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version this index shows now."""
        return self._state.consistent(lambda: self._state.reader().version)

    def versions(self) -> list[dict[str, Any]]:
        """Versions that can still be opened: number, time, items; oldest first."""
        return self._state.store.versions()

    def refresh(self) -> int:
        """Move to the newest version on disk (every call does so by itself) and return it."""
        return self.version

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

        Streams: each batch (or 64 MB of items) is one commit, safe on disk once `on_progress` has been called with its report.
        `features` gives the encoder's output for `items` and spares running it.
        """
        return self._write(items, False, batch_size, on_error, on_progress, features)

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
        return self._write(items, True, batch_size, on_error, on_progress, features)

    def _write(
        self,
        items: Iterable[Item],
        replace: bool,
        batch_size: int,
        on_error: Literal["raise", "skip"],
        on_progress: Callable[[AddReport], None] | None,
        features: Features | None,
    ) -> AddReport:
        if isinstance(items, Item):
            items = [items]
        if not isinstance(items, Iterable):
            raise GeniusError(f"expected items, got {type(items).__name__}")
        pairs: Iterator[Stamped] = ((item, None) for item in items)
        return writing.write(
            self._state,
            pairs,
            replace=replace,
            batch_size=batch_size,
            on_error=on_error,
            on_progress=on_progress,
            features=features,
        )

    def delete(self, ids: str | Iterable[str], *, missing: Literal["raise", "skip"] = "raise") -> int:
        """Delete items; returns how many. An unknown id is an error before anything is deleted, unless `missing="skip"`."""
        return writing.delete(self._state, ids, missing)

    # -- metadata fields ---------------------------------------------------------------------------------------

    def fields(self) -> list[Field]:
        """Metadata fields: name, kind, how many items have each."""
        return self._state.consistent(lambda: fields.fields(self._state.reader()))

    def drop_field(self, name: str) -> int:
        """Take a field away, from every item, too; how many had it."""
        return fields.drop(self._state, name)

    def rename_field(self, old: str, new: str) -> int:
        """Give a field another name; how many items have it."""
        return fields.rename(self._state, old, new)

    def retype_field(self, name: str, kind: str, *, lossy: bool = False) -> int:
        """Make a field text, number or boolean; how many items have it then. `lossy`: drop values that cannot become so."""
        return fields.retype(self._state, name, kind, lossy=lossy)

    # -- upkeep ------------------------------------------------------------------------------------------------

    def snapshot(self, target: str | Path) -> Copied:
        """Copy what this index shows now into a new folder, which is an index itself. Others may write meanwhile."""
        return snapshot(self.path, target, self._state.pinned)

    def optimize(self, *, keep: timedelta = writing.KEEP) -> None:
        """Merge small files, drop versions older than `keep`, and leave a fresh cache so that opening is quick."""
        writing.optimize(self._state, keep)

    # -- reading -----------------------------------------------------------------------------------------------

    @overload
    def get(self, ids: str, *, missing: Literal["raise", "skip"] = "raise") -> Item: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, ids: Sequence[str], *, missing: Literal["raise", "skip"] = "raise") -> list[Item]: ...
    def get(self, ids: str | Sequence[str], *, missing: Literal["raise", "skip"] = "raise") -> Item | list[Item]:
        """The items with these ids, in this order; one id gives one item. An unknown id is an error, or left out.

        An image is the path it was added with, or the stored bytes when it came without one.
        """
        if isinstance(ids, str):
            return self._fetch([ids], "raise")[0]
        return self._fetch(ids, missing)

    def _fetch(self, ids: Sequence[str], missing: Literal["raise", "skip"]) -> list[Item]:
        distinct = writing.check_ids(ids)
        rows = self._columns(distinct, [*PAYLOAD, "_image_bytes"], missing)
        wanted = list(ids)
        return [searching.to_item(rows[item_id]) for item_id in wanted if item_id in rows]

    def _columns(
        self, wanted: list[str], columns: Sequence[str], missing: Literal["raise", "skip"] = "raise"
    ) -> dict[str, dict[str, Any]]:
        """Table columns of items by id."""

        def call() -> dict[str, dict[str, Any]]:
            with self._state.lock:
                live = self._state.current()
                rows = live.find(writing.check_ids(wanted))
                writing.check_missing(wanted, rows, missing)
                seqs = {item_id: int(live.seqs[row]) for item_id, row in rows.items()}
                reader = live.reader
            found = reader.rows(list(seqs.values()), columns)
            return {item_id: found[seq] for item_id, seq in seqs.items()}

        return self._state.consistent(call)

    def thumbnail(self, item_id: str) -> bytes | None:
        """The JPEG preview of an item, None if it has none."""
        value = self._columns([item_id], ["_thumbnail"])[item_id]["_thumbnail"]
        return value if isinstance(value, bytes) else None

    def codes(self, item_id: str) -> tuple[int, ...]:
        """The ID that the quantizer gave an item."""
        return tuple(int(code) for code in self._columns([item_id], ["_codes"])[item_id]["_codes"])

    def count(self, where: str | None = None) -> int:
        """Items, or those that match `where`."""

        def call() -> int:
            reader = self._state.reader()
            return reader.count(None if where is None else compile_where(where, reader.columns))

        return self._state.consistent(call)

    def columns(self) -> dict[str, str]:
        """Metadata keys that `where` can name, and what each holds: text, number or boolean."""
        return self._state.consistent(lambda: dict(self._state.reader().columns))

    def items(self, where: str | None = None) -> Iterator[Item]:
        """Every item of one version, in no promised order; pictures without a path come as stored bytes.

        If another process drops that version meanwhile (`optimize(keep=0)`), the rest is of the newest; each id comes once.
        """
        for row in searching.stream(self._state, [*PAYLOAD, "_image_bytes"], where):
            yield searching.to_item(row)

    def below(self, prefix: Sequence[int | None] = (), *, limit: int = 20, offset: int = 0, per_child: int = 0) -> PrefixView:
        """What lives under the first codes of an ID, None for any code. `per_child`: also the first items of the 64 fullest
        next codes."""
        wanted, levels = tuple(prefix), self.about.levels
        for name, value in (("limit", limit), ("offset", offset), ("per_child", per_child)):
            searching.whole(name, value, -(2**31), 2**31)
        if not all(code is None or (isinstance(code, int | np.integer) and not isinstance(code, bool)) for code in wanted):
            raise GeniusError(f"a prefix is whole numbers, got {wanted!r}")
        if len(wanted) > len(levels):
            raise GeniusError(f"a prefix of {len(wanted)} codes; IDs have {len(levels)}")
        for level, code in enumerate(wanted):
            if code is not None and not 0 <= code < levels[level]:
                raise GeniusError(f"code {code} at level {level} is not in 0..{levels[level] - 1}")
        return self._state.consistent(lambda: self._below(wanted, max(limit, 0), max(offset, 0), max(per_child, 0)))

    def _below(self, wanted: tuple[int | None, ...], limit: int, offset: int, per_child: int) -> PrefixView:
        with self._state.lock:
            live = self._state.current()
            rows = live.below(wanted)
            children: dict[int, int] = {}
            if len(wanted) < len(self.about.levels) and len(rows):
                following = live.codes_of(rows)[:, len(wanted)]
                codes, counts = np.unique(following, return_counts=True)
                children = {int(codes[i]): int(counts[i]) for i in np.argsort(-counts, kind="stable")}
            shown = rows[offset : offset + limit]
            if per_child and children:
                firsts = [rows[np.flatnonzero(following == code)[:per_child]] for code in list(children)[:64]]
                shown = np.unique(np.concatenate([shown, *firsts]))
            shown_codes, seqs, reader = live.codes_of(shown), live.seqs[shown], live.reader
        found = reader.rows(seqs, PAYLOAD)
        items = searching.display(reader, [found[int(seq)] for seq in seqs])
        return PrefixView(wanted, len(rows), children, items, [tuple(row) for row in shown_codes.tolist()])

    def info(self) -> dict[str, Any]:
        """What this index is, for people and machines."""
        return self._state.consistent(lambda: describe(self.path, self.about, self._state.reader()))

    def advice(self) -> str | None:
        """One line if items look unlike what the model knows, or have outgrown its codes; None if all is well."""
        return likeness.advice(self)

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
        modality: Modality | str | int | None = None,
    ) -> Hits:
        """Items that answer a text, an image, or both; best first.

        `target`: image (anything with a picture), text (anything with words) or pair (both); `modality`: exactly that kind of
        item. `where`: SQL over metadata, applied inside the search, so k hits come back if k
        match (and when at most 50,000 do, all are compared). `beams` and `rerank` (how many items are re-ranked by
        embedding) trade speed for recall; given explicitly, they are obeyed under filters, too. Where the model was
        calibrated, each hit has the `probability` that it answers, and `hits.answerable` is that of there being an answer.
        """
        if target is not None and modality is not None:
            raise GeniusError("target and modality both say what is wanted: use one of them")
        wanted = modality if target is None else target
        kind = None if wanted is None else Modality.parse(wanted)
        query = Query(text=text, image=image, instruction=instruction, target=kind)
        options: Any = {"where": where, "min_score": min_score, "beams": beams, "rerank": rerank, "params": params}
        return self.search_many([query], k, strict=modality is not None, **options)[0]

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
        strict: bool = False,
    ) -> list[Hits]:
        """One list of hits a query, all from one version and under one filter; one pass through the model.

        `strict`: a query's target is exactly the kind of item that is found (`modality` of `search`)."""
        searching.check(k, min_score)
        if not queries:
            return []
        asked, owner = (list(queries), list(range(len(queries)))) if strict else spread(queries, self._state.kinds())
        embedded = self.model.embed_queries(asked)
        targets = torch.tensor([-1 if query.target is None else int(query.target) for query in asked])
        hits = self.search_embedded(
            embedded.z, embedded.dense, targets, k, where=where, min_score=min_score, beams=beams, rerank=rerank, params=params,
            pictured=embedded.modality != Modality.TEXT,
        )  # fmt: skip
        return gather(hits, owner, k)

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
        pictured: Tensor | None = None,
    ) -> list[Hits]:
        """Search with query vectors z (Q, D), re-ranking vectors dense (Q, D) and modality codes (Q,), -1 for any.

        `pictured` (Q,): which questions have a picture; probabilities depend on it, and without it there are none."""
        searching.check(k, min_score)
        searching.check_vectors(self._state, z, dense, targets)
        chosen = searching.settings(self._state, beams, rerank, params)
        adapt = beams is None and rerank is None  # explicit settings are obeyed, filter or not
        return self._state.consistent(
            lambda: searching.search(self._state, z, dense, targets, k, where, min_score, chosen, adapt, pictured)
        )


def _reopen(path: Path, source: str, options: dict[str, Any]) -> Index:
    return Index(path, source, create=False, **options)
