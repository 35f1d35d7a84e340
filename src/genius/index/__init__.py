"""`Index`: items on disk with their codes, embeddings and metadata, that can be added, deleted, filtered and searched while
others do the same.

The door of this room. The table (store.py) is the truth; the search side (opened.py) follows it. Every call sees one version: its
filter, its search and the items it returns belong together. What a write has returned from survives any crash. Knows models and
the search engine; knows nothing of HTTP or the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from genius.encoders.base import batched
from genius.errors import GeniusError, counted
from genius.features import Features
from genius.index import explaining, searching, writing
from genius.index.explaining import Explanation
from genius.index.filters import compile_where
from genius.index.folder import About, describe
from genius.index.opened import OpenIndex
from genius.index.prepare import Stamped
from genius.index.reader import PAYLOAD
from genius.index.repair import Copied, snapshot
from genius.index.results import AddReport, Hit, Hits, PrefixView
from genius.index.searching import wanted_kind
from genius.index.writing import Field, OnError
from genius.model.genius import Genius
from genius.search import SearchParams, SearchRequest
from genius.types import ContentInput, ImageInput, Item, Modality, Query

__all__ = ["AddReport", "Hit", "Hits", "Index", "PrefixView"]

ANY = SearchRequest()  # ten answers, as the model likes to search
THREE = SearchRequest(3)  # answers that are explained


class Index:
    """Open or create the index at `path` for `model` (a `Genius`, its URI, or None for the one it was built with).

    `create`: make it if it is not there; `read_only`: refuse writes; `version` opens an older version, read-only.
    `lock_timeout`: seconds a write waits for other writers. `thumbnails`: longest side of the stored previews, 0 for none.
    `durable`: a write returns once it is on the disk; without, a power cut may take the last ones. Safe to share between threads.

    >>> import tempfile
    >>> from genius import Genius, Index, Item
    >>> index = Index(tempfile.mkdtemp() + "/notes.genius", Genius.from_pretrained("bundled:mini"))
    >>> report = index.add([Item("1", text="a red bicycle", metadata={"price": 40}), {"id": "2", "text": "a boat on the sea"}])
    >>> report.added, len(index)
    (2, 2)
    >>> [hit.id for hit in index.search("bicycle", k=1)]
    ['1']
    >>> [hits[0].id for hits in index.search_many(["ship", "wheel"])]
    ['2', '1']
    >>> [hit.id for hit in index.search("anything", where="price < 50")]
    ['1']
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
        self._state = OpenIndex(
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
        """Open the index at `path`, which exists, by default with the `model` it was built with; `options` as for `Index`."""
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
        return isinstance(item_id, str) and self._state.consistent(lambda: item_id in self._state.find([item_id]))

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {counted(self.count(), 'item')}, version {self.version})"

    def __reduce__(self) -> Any:
        """Pickled, an index is its path: another process opens it anew. Its model must be one that can be loaded again."""
        state = self._state
        if state.about.source is None and state.model.source is None:
            raise GeniusError("this index's model was never saved, so another process cannot load it: save it, or pass the path")
        options: Any = {"read_only": state.read_only, "version": state.pinned, **state.options}
        return partial(Index.open, self.path.absolute(), state.model.source or state.about.source, **options), ()

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
        items: Iterable[Item | Mapping[str, Any]],
        *,
        batch_size: int = 256,
        on_error: OnError = "raise",
        on_progress: Callable[[AddReport], None] | None = None,
        features: Features | None = None,
    ) -> AddReport:
        """Add items whose ids are new; ids that exist stay as they are, so a broken-off run can simply be repeated.

        Streams: each `batch_size` (or 64 MB) of items is one commit, safe on disk once `on_progress` has been called with its
        report. `on_error="skip"` leaves out what cannot be read, and the report says what. `features` gives the encoder's output
        for `items` and spares running it.
        """
        return writing.write(
            self._state,
            _stamped(items),
            replace=False,
            batch_size=batch_size,
            on_error=on_error,
            on_progress=on_progress,
            features=features,
        )

    def upsert(
        self,
        items: Iterable[Item | Mapping[str, Any]],
        *,
        batch_size: int = 256,
        on_error: OnError = "raise",
        on_progress: Callable[[AddReport], None] | None = None,
        features: Features | None = None,
    ) -> AddReport:
        """Add items, each in place of the one with its id if there is one. A batch appears whole or not at all. `batch_size`,
        `on_error`, `on_progress` and `features` as for `add`."""
        return writing.write(
            self._state,
            _stamped(items),
            replace=True,
            batch_size=batch_size,
            on_error=on_error,
            on_progress=on_progress,
            features=features,
        )

    def delete(self, ids: str | Iterable[str], *, missing: OnError = "raise") -> int:
        """Delete the items with these `ids`; returns how many. An unknown id is an error before anything is deleted, unless
        `missing="skip"`."""
        return writing.delete(self._state, ids, missing)

    # -- metadata fields ---------------------------------------------------------------------------------------

    def fields(self) -> list[Field]:
        """Metadata fields: name, kind, how many items have each."""
        return self._state.consistent(lambda: writing.fields_of(self._state.reader()))

    def drop_field(self, name: str) -> int:
        """Take the field `name` away, from every item, too; how many had it."""
        return writing.drop_field(self._state, name)

    def rename_field(self, old: str, new: str) -> int:
        """Call the field `old` `new` from now on; how many items have it."""
        return writing.rename_field(self._state, old, new)

    def retype_field(self, name: str, kind: str, *, lossy: bool = False) -> int:
        """Make the field `name` of the `kind` text, number or boolean; how many items have it then. `lossy`: drop values that
        cannot become so."""
        return writing.retype_field(self._state, name, kind, lossy=lossy)

    # -- upkeep ------------------------------------------------------------------------------------------------

    def snapshot(self, target: str | Path) -> Copied:
        """Copy what this index shows now into the new folder `target`, an index itself. Others may write meanwhile."""
        return snapshot(self.path, target, self._state.pinned)

    def optimize(self, *, keep: timedelta = writing.KEEP) -> None:
        """Merge small files, drop versions older than `keep`, and leave a fresh cache so that opening is quick."""
        writing.optimize(self._state, keep)

    # -- reading -----------------------------------------------------------------------------------------------

    @overload
    def get(self, ids: str, *, missing: OnError = "raise") -> Item: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, ids: Sequence[str], *, missing: OnError = "raise") -> list[Item]: ...
    def get(self, ids: str | Sequence[str], *, missing: OnError = "raise") -> Item | list[Item]:
        """The items with these ids, in this order; one id gives one item. An unknown id is an error, or with `missing="skip"`
        left out.

        An image is the path it was added with, or the stored bytes when it came without one.
        """
        wanted = [ids] if isinstance(ids, str) else ids
        rows = self._columns(writing.check_ids(wanted), [*PAYLOAD, "_image_bytes"], "raise" if isinstance(ids, str) else missing)
        items = [searching.to_item(rows[item_id]) for item_id in wanted if item_id in rows]
        return items[0] if isinstance(ids, str) else items

    def _columns(self, wanted: list[str], columns: Sequence[str], missing: OnError = "raise") -> dict[str, dict[str, Any]]:
        """Table columns of items by id."""
        return self._state.consistent(lambda: searching.columns_of(self._state, wanted, columns, missing))

    def thumbnail(self, item_id: str) -> bytes | None:
        """The JPEG preview of the item `item_id`, None if it has none."""
        value = self._columns([item_id], ["_thumbnail"])[item_id]["_thumbnail"]
        return value if isinstance(value, bytes) else None

    def codes(self, item_id: str) -> tuple[int, ...]:
        """The ID that the quantizer gave the item `item_id`."""
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
        """Every item of one version (that matches `where`), in no promised order; pictures without a path come as stored bytes.

        If another process drops that version meanwhile (`optimize(keep=0)`), the rest is of the newest; each id comes once.
        """
        for row in searching.stream(self._state, [*PAYLOAD, "_image_bytes"], where):
            yield searching.to_item(row)

    def values(self, field: str | None = None, where: str | None = None) -> Iterator[tuple[str, Any]]:
        """Id and one metadata value of every item, in no promised order. Reads those two columns only.

        Args:
            field: A metadata field; None: ids alone, each with None.
            where: SQL filter over metadata.

        Yields:
            (id, value); None where an item lacks the field.

        Raises:
            GeniusError: There is no such field, or the filter does not parse.
        """
        fields = self.columns()
        if field is not None and field not in fields:
            raise GeniusError(f"no field {field!r}, there are: {', '.join(sorted(fields)) or 'none'}")
        columns = ["id"] if field is None else ["id", field]
        for row in searching.stream(self._state, columns, where):
            yield row["id"], None if field is None else row[field]

    def below(self, prefix: Sequence[int | None] = (), *, limit: int = 20, offset: int = 0, per_child: int = 0) -> PrefixView:
        """What lives under `prefix`, the first codes of an ID, None for any code: `limit` of its items from `offset` on.
        `per_child`: also the first items of the 64 fullest next codes."""
        return explaining.below(self._state, prefix, limit, offset, per_child)

    def kinds(self) -> set[Modality]:
        """Kinds of items that there are; one whose last item was just deleted may still be named."""
        return self._state.consistent(self._state.kinds)

    def info(self) -> dict[str, Any]:
        """What this index is, for people and machines."""
        return self._state.consistent(lambda: describe(self.path, self.about, self._state.reader()))

    def advice(self) -> str | None:
        """One line if items look unlike what the model knows, or have outgrown its codes; None if all is well."""
        return self._state.consistent(lambda: explaining.advice(self._state))

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
        minus: Query | ContentInput | None = None,
        diverse: bool = False,
    ) -> Hits:
        """Items that answer a text, an image, or both; best first.

        `instruction`: what is wanted, in words of your own. `target`: image (anything with a picture), text (anything with
        words) or pair (both); `modality`: exactly that kind of item. `min_score`: leave out what scores lower. `where`: SQL over
        metadata, applied inside the search, so k hits come back if k
        match (and when at most 50,000 do, all are compared). `beams` and `rerank` (how many items are re-ranked by
        embedding) trade speed for recall; given explicitly, they are obeyed under filters, too; `params` are all such settings at
        once. Where the model was calibrated, each hit has the `probability` that it answers, and `hits.answerable` is that of
        there being an answer. `minus`: words or a picture that answers should not be like. `diverse`: answers that differ, one
        a subtree of codes. Where nothing is found, `hits.why` says why.
        """
        query = Query(text, image, instruction, wanted_kind(target, modality), None if minus is None else Query.of(minus))
        request = SearchRequest(k, where, min_score, beams, rerank, params, modality is not None, diverse)
        return self.search_many([query], request)[0]

    def search_many(self, queries: Sequence[Query | ContentInput], request: SearchRequest = ANY) -> list[Hits]:
        """One list of hits a query, all from one version and under one filter; one pass through the model.

        Each of `queries` may be given as words, a picture, or {"text": ..., "image": ...}; `request` says what is asked of all.
        """
        return self.search_each(queries, [request] * len(queries))

    def search_each(self, queries: Sequence[Query | ContentInput], requests: Sequence[SearchRequest]) -> list[Hits]:
        """The same for `queries` with `requests` of their own: all share one pass through the encoder, equal requests one
        search."""
        return searching.answer(self._state, queries, requests)

    def vectors(self, batch: int = 256) -> Iterator[tuple[list[str], Tensor, list[Modality]]]:
        """Ids, stored vectors (n, D) and kinds of all items of one version, `batch` at a time."""
        rows = searching.stream(self._state, ["id", "modality", "_embedding"])
        for part in batched(rows, batch):
            stored = torch.from_numpy(np.stack([np.asarray(row["_embedding"], np.float32) for row in part]))
            yield [row["id"] for row in part], stored, [Modality.parse(row["modality"]) for row in part]

    def search_embedded(
        self,
        z: Tensor,
        dense: Tensor | None = None,
        targets: Tensor | None = None,
        request: SearchRequest = ANY,
        *,
        pictured: Tensor | None = None,
    ) -> list[Hits]:
        """Search with query vectors z (Q, D), re-ranking vectors dense (Q, D) and modality codes `targets` (Q,), -1 for any.

        `request`: what is asked of all. `pictured` (Q,): which questions have a picture; probabilities depend on it, and
        without it there are none."""
        asked = searching.QueryVectors(z, dense, targets, pictured)
        asked.check(self.about.width)
        searching.check(request)
        return self._state.consistent(lambda: searching.search(self._state, [(asked, request)]))[0]

    def explain(self, query: Query, request: SearchRequest = THREE, *, shown: int = 5, rejected: int = 3) -> Explanation:
        """How the answers to a query came about: at every step the codes kept and the best rejected, with log p and words.

        `request`: how many answers, and all else that a search may be asked. `shown`: beams of every step that are shown
        besides those that lead to answers; `rejected`: codes that were not kept.
        """
        if not isinstance(query, Query):
            raise GeniusError(f"explain takes a Query, got {type(query).__name__}")
        hits = self.search_many([query], request)[0]
        return self._state.consistent(
            lambda: explaining.explain(self._state, query, hits, request=request, shown=shown, rejected=rejected)
        )


def _stamped(items: Iterable[Item | Mapping[str, Any]]) -> Iterator[Stamped]:
    if isinstance(items, Item):
        items = [items]
    if not isinstance(items, Iterable):
        raise GeniusError(f"expected items, got {type(items).__name__}")
    return ((Item.of(item), None) for item in items)
