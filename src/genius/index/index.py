"""`Index`: items on disk with their codes, embeddings and metadata, that can be added, deleted, filtered and searched while
others do the same. What a write has returned from survives any crash.

The public API of this package: each method checks nothing by itself, and hands over to the module of its task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from genius.encoders.base import batched
from genius.errors import GeniusError, counted
from genius.features import Features
from genius.index import learned, searching, words, writing
from genius.index.folder import deleted_ids, describe_index, keep_deleted, read_about, write_inside
from genius.index.learned import Learned
from genius.index.open_index import OpenIndex
from genius.index.prepare import Stamped
from genius.index.reader import HIT_COLUMNS
from genius.index.repair import Copied, snapshot
from genius.index.results import AddReport, Hits, PrefixView
from genius.index.target import Target
from genius.index.writing import Field, OnError
from genius.model.unfitted import write_model
from genius.search import SearchParams, SearchRequest
from genius.search.params import WORDS_WEIGHT, whole
from genius.types import ContentInput, ImageInput, Item, Modality, Query, VectorInput

if TYPE_CHECKING:
    from torch import Tensor

    from genius.model.genius import Genius

ANY = SearchRequest()  # ten answers, as the model likes to search
ORDERED_AT_ONCE = 256  # items that are read together when they are listed in an order
THREE = SearchRequest(3)  # answers that are explained


class Index(OpenIndex):
    """An index folder, open. Safe to share between threads.

    Args:
        path: the folder.
        model: a `Genius`, its URI, or None for the one that the index was built with.
        create: make the index if it is not there.
        read_only: refuse writes.
        version: open this older version, read-only; None for the newest, which is followed.
        lock_timeout: seconds that a write waits for other writers.
        thumbnails: longest side of stored previews in pixels, 0 for none.
        vectors: False: a new index stores codes alone, some 100 bytes per item, and ranks by them.

    Raises:
        GeniusError: there is no index, it is damaged, or it belongs to another model.

    Examples:
        >>> import tempfile
        >>> from genius import Genius, Index, Item
        >>> index = Index(tempfile.mkdtemp() + "/notes.genius", Genius.from_pretrained("bundled:mini"))
        >>> bicycle = Item("1", text="a red bicycle", metadata={"price": 40})
        >>> report = index.add([bicycle, {"id": "2", "text": "a boat on the sea"}])
        >>> report.added, len(index)
        (2, 2)
        >>> [hit.id for hit in index.search("bicycle", k=1)]
        ['1']
        >>> [hits[0].id for hits in index.search_many(["ship", "wheel"])]
        ['2', '1']
        >>> [hit.id for hit in index.search("anything", where="price < 50")]
        ['1']
    """

    @classmethod
    def create(
        cls, path: str | Path, model: Genius | str | Path | None = None, *, dim: int | None = None, **options: Any
    ) -> Index:
        """Make a new index: of a model, or of vectors of your own.

        Args:
            path: The folder; there must be no index yet.
            model: A `Genius` or its URI.
            dim: In place of a model: the width of your own vectors (`Item(vector=…)`, `search(vector=…)`). Such an index has no
                encoder and compares by cosine. `genius.fit.folder.refit` fits its codes once there are items.
            options: As for `Index`.

        Raises:
            GeniusError: If there is an index already, or neither or both of `model` and `dim` are given.

        Examples:
            >>> import tempfile
            >>> index = Index.create(tempfile.mkdtemp() + "/own.genius", dim=3)
            >>> report = index.add([Item("a", vector=[1, 0, 0]), Item("b", vector=[0, 1, 0], metadata={"year": 2024})])
            >>> [hit.id for hit in index.search(vector=[0.1, 0.9, 0])]
            ['b', 'a']
        """
        path = Path(path)
        if (model is None) == (dim is None):
            raise GeniusError("an index has either a model or, for vectors of your own, a width (dim)")
        if dim is not None and not options.get("vectors", True):
            raise GeniusError("an index of your own vectors stores them: its codes mean nothing until they are fitted")
        if read_about(path) is not None:
            raise GeniusError(f"{path} is an index already: open it with Index(path)")
        if dim is not None:
            model = write_inside(path, partial(write_model, width=dim))
        return cls(path, model, create=True, **options)

    @classmethod
    def open(cls, path: str | Path, model: Genius | str | Path | None = None, **options: Any) -> Index:
        """Open an index that exists.

        Args:
            path: the folder.
            model: a `Genius`, its URI, or None for the one that the index was built with.
            options: as for `Index`.
        """
        return cls(path, model, create=False, **options)

    def close(self) -> None:
        """Nothing needs saving: every write was on disk when it returned. Here so that `with` works."""

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.count()

    def __contains__(self, item_id: object) -> bool:
        return isinstance(item_id, str) and self.consistent(lambda: item_id in self.find([item_id]))

    def __iter__(self) -> Iterator[Item]:
        """All items of one version (`items`)."""
        return self.items()

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {counted(self.count(), 'item')}, version {self.version})"

    def __reduce__(self) -> Any:
        """Pickled, an index is its path: another process opens it anew. Its model must be one that can be loaded again."""
        if self.about.source is None and self.model.source is None:
            raise GeniusError("this index's model was never saved, so another process cannot load it: save it, or pass the path")
        options: Any = {"read_only": self.read_only, "version": self.pinned, **self.options}
        return partial(Index.open, self.path.absolute(), self.model.source or self.about.source, **options), ()

    # -- versions ----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version this index shows now."""
        return self.consistent(lambda: self.reader().version)

    def versions(self) -> list[dict[str, Any]]:
        """Versions that can still be opened: number, time, items; oldest first."""
        return self.store.versions()

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
        """Add items whose ids are new; ids that exist stay as they are, so an interrupted run can simply be repeated.

        Args:
            items: read one by one; a mapping has the fields of `Item`.
            batch_size: items of one commit; fewer where they are more than 64 MB.
            on_error: "raise" at the first item that cannot be read, or "skip" it; the report says which were skipped.
            on_progress: called with the report of each commit, once that is on the disk.
            features: the encoder's output for `items`, in place of running it.

        Returns:
            How many were added, and what was skipped.

        Examples:
            >>> index.add([Item("3", text="a green door")]).added
            1
            >>> index.delete("3")
            1
        """
        return writing.write(self, _stamped(items), False, batch_size, on_error, on_progress, features)

    def upsert(
        self,
        items: Iterable[Item | Mapping[str, Any]],
        *,
        batch_size: int = 256,
        on_error: OnError = "raise",
        on_progress: Callable[[AddReport], None] | None = None,
        features: Features | None = None,
    ) -> AddReport:
        """Add items, each in place of the one with its id if there is one. A batch appears whole or not at all.

        Args:
            items: read one by one; of several with one id in a batch, the last counts.
            batch_size: as for `add`.
            on_error: as for `add`.
            on_progress: as for `add`.
            features: as for `add`.

        Returns:
            How many were added and replaced, and what was skipped.

        Examples:
            >>> index.upsert([Item("1", text="a red bicycle", metadata={"price": 40})]).replaced
            1
        """
        return writing.write(self, _stamped(items), True, batch_size, on_error, on_progress, features)

    def delete(self, ids: str | Iterable[str], *, missing: OnError = "raise") -> int:
        """Delete items.

        Args:
            ids: one id or several.
            missing: "raise" if an id is unknown, before anything is deleted, or "skip" it.

        Returns:
            How many were deleted.
        """
        self.check_writable()
        item_ids = writing.check_ids([ids] if isinstance(ids, str) else ids)
        return self.following(lambda: self._delete(item_ids, missing))

    def _delete(self, ids: list[str], missing: OnError) -> int:
        """Delete, and note which of these came from files: indexing their folder again does not bring them back."""
        with self.write_lock.hold():
            rows = self._columns(ids, ["_source"], missing)
            from_files = {item_id for item_id, row in rows.items() if row["_source"] is not None}
            kept = deleted_ids(self.path)
            if not from_files <= kept:
                keep_deleted(self.path, kept | from_files)
            return writing.delete(self, ids, missing)

    # -- metadata fields ---------------------------------------------------------------------------------------

    def fields(self) -> list[Field]:
        """Metadata fields: name, type, how many items have each."""
        return self.consistent(lambda: writing.list_fields(self.reader()))

    # -- upkeep ------------------------------------------------------------------------------------------------

    def snapshot(self, target: str | Path) -> Copied:
        """Copy what this index shows now into a new folder, an index itself. Others may write meanwhile.

        Args:
            target: the new folder. It appears once every row was read back from it.
        """
        return snapshot(self.path, target, self.pinned)

    def index_words(self, fields: Sequence[str] = ()) -> list[str]:
        """Make the full-text index that `search(mode="words")` and `mode="hybrid"` need. Later items are found, too.

        Args:
            fields: metadata fields of texts that are searched besides texts, ids and file names.

        Returns:
            All fields that are searched.

        Raises:
            GeniusError: a field does not exist or holds no texts.
        """
        return self.following(lambda: words.index_words(self, fields))

    def words_fields(self) -> list[str]:
        """Fields that can be searched by words; empty without a full-text index."""
        return self.consistent(lambda: words.words_fields(self.reader()))

    def optimize(self, *, keep: timedelta = writing.KEEP) -> None:
        """Merge small files, drop old versions, and leave a fresh cache so that opening is quick.

        Args:
            keep: versions younger than this can still be opened.
        """
        self.following(lambda: writing.optimize(self, keep))

    def reencode(self, encoder: str, *, skip_missing: bool = False, device: str = "cpu") -> Any:
        """Switch to another encoder. Others search and change the index meanwhile, and follow the switch.

        Args:
            encoder: URI of the encoder. Codes and decoder are fitted to the items.
            skip_missing: Leave out items whose image file is gone, instead of refusing.
            device: Where the encoder runs.

        Returns:
            What was done (`genius.fit.reencode.Reencoded`).

        Raises:
            GeniusError: Items cannot be encoded again, or the encoder cannot be read; the index is as it was.
        """
        from genius.fit.reencode import reencode

        self.check_writable()
        done = reencode(self.path, encoder, skip_missing=skip_missing, device=device)
        self.follows = True
        self.consistent(self.reader)  # moves on to it now
        return done

    def learn(
        self,
        queries: Iterable[Query | ContentInput | Mapping[str, Any]],
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> Learned:
        """Learn from queries which items are similar to every query: their scores are corrected from then on (item bias).

        Takes the place of what was learned before. Equal queries count once; no text and no image is kept.

        Args:
            queries: Each a text, an image, a `Query`, or a mapping with the fields of a search request (`text`, `image`,
                `instruction`, `target`), or `vector` and `query_modality`; with `clicked`, the ids of items that answered it, or
                without. At least 64 different ones of one direction, such as text -> image.
            on_progress: Called with the number of queries that were embedded.

        Returns:
            What was learned of each direction. A weight of 0 means no correction: the queries are few, disagree, or rank
            the clicked items no better with it.

        Raises:
            GeniusError: If there are too few different queries, or one cannot be read; the index is unchanged.
        """
        from genius.index import learning  # loaded late, as other modules that a search does not need: it starts sooner

        return learning.learn(self, queries, on_progress)

    def forget(self) -> bool:
        """Drop what was learned from queries.

        Returns:
            Whether there was anything.
        """
        self.check_writable()
        with self.write_lock.hold():
            forgotten = learned.forget(self.path)
        self.follow_learned()
        return forgotten

    # -- reading -----------------------------------------------------------------------------------------------

    @overload
    def get(self, ids: str, *, missing: OnError = "raise") -> Item: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, ids: Sequence[str], *, missing: OnError = "raise") -> list[Item]: ...
    def get(self, ids: str | Sequence[str], *, missing: OnError = "raise") -> Item | list[Item]:
        """Items by id. An image is the path that it was added with, or the stored bytes where it came without one.

        Args:
            ids: one id, or several.
            missing: "raise" if an id is unknown, or "skip" it.

        Returns:
            One item for one id, else a list in the order of `ids`.

        Examples:
            >>> index.get("1").text
            'a red bicycle'
        """
        item_ids = ids
        if isinstance(ids, str):
            item_ids = [ids]
            missing = "raise"
        rows = self._columns(item_ids, [*HIT_COLUMNS, "_image_bytes"], missing)
        items = [searching.item_of_row(rows[item_id]) for item_id in item_ids if item_id in rows]
        if isinstance(ids, str):
            return items[0]
        return items

    def _columns(self, ids: Sequence[str], columns: Sequence[str], missing: OnError = "raise") -> dict[str, dict[str, Any]]:
        """Table columns of items by id, of one version."""
        wanted = writing.check_ids(ids)

        def read() -> dict[str, dict[str, Any]]:
            with self.lock:
                live = self.current()
                rows = live.find(wanted)
                seqs = {item_id: int(live.seqs[row]) for item_id, row in rows.items()}
                reader = live.reader
            writing.check_missing(wanted, rows, missing)
            rows_by_seq = reader.rows(list(seqs.values()), columns)
            return {item_id: rows_by_seq[seq] for item_id, seq in seqs.items()}

        return self.consistent(read)

    def thumbnail(self, item_id: str) -> bytes | None:
        """The stored preview of an item.

        Args:
            item_id: of the item.

        Returns:
            A JPEG, or None if it has none.
        """
        value = self._columns([item_id], ["_thumbnail"])[item_id]["_thumbnail"]
        if isinstance(value, bytes):
            return value
        return None

    def codes(self, item_id: str) -> tuple[int, ...]:
        """The ID that the quantizer gave an item.

        Args:
            item_id: of the item.

        Examples:
            >>> len(index.codes("1")) == len(index.about.levels)
            True
        """
        return tuple(int(code) for code in self._columns([item_id], ["_codes"])[item_id]["_codes"])

    def count(self, where: str | None = None) -> int:
        """The number of items.

        Args:
            where: count only items that match this condition over metadata.

        Examples:
            >>> index.count(), index.count("price < 50")
            (2, 1)
        """

        def call() -> int:
            reader = self.reader()
            return reader.count(searching.condition(reader, where))

        return self.consistent(call)

    def columns(self) -> dict[str, str]:
        """Metadata keys that `where` can name, and what each holds: text, number or boolean.

        Examples:
            >>> index.columns()
            {'price': 'number'}
        """
        return self.consistent(lambda: dict(self.reader().columns))

    def items(
        self, where: str | None = None, *, order_by: str | None = None, descending: bool = False, limit: int | None = None
    ) -> Iterator[Item]:
        """Every item of one version, in no promised order; images without a path come as stored bytes.

        If another process drops that version meanwhile (`optimize(keep=0)`), the rest is of the newest; each id comes once.

        Args:
            where: only items that match this condition over metadata.
            order_by: a metadata field, or "id"; items without the field come last.
            descending: largest first.
            limit: items at most; None for all.

        Raises:
            GeniusError: there is no such field, or `where` cannot be read.

        Examples:
            >>> sorted(item.id for item in index.items())
            ['1', '2']
        """
        if limit is not None:
            whole("limit", limit, 0, 2**31)
        if order_by is not None:
            yield from self._ordered_items(where, order_by, descending, limit)
            return
        for row in islice(searching.stream(self, [*HIT_COLUMNS, "_image_bytes"], where), limit):
            yield searching.item_of_row(row)

    def _ordered_items(self, where: str | None, order_by: str, descending: bool, limit: int | None) -> Iterator[Item]:
        field = None
        if order_by != "id":
            field = order_by
        pairs = [(value, item_id) for item_id, value in self.values(field, where)]
        if field is None:
            pairs = [(item_id, item_id) for _, item_id in pairs]
        having = sorted((pair for pair in pairs if pair[0] is not None), reverse=descending)
        names = [item_id for _, item_id in having] + sorted(item_id for value, item_id in pairs if value is None)
        for part in batched(names[:limit], ORDERED_AT_ONCE):
            yield from self.get(part, missing="skip")

    def to_dataset(self, where: str | None = None, *, vectors: bool = False) -> Any:
        """The items as a Hugging Face `datasets.Dataset`; `genius.index.exchange.items_of_dataset` reads one.

        Args:
            where: only items that match this condition over metadata.
            vectors: whether each row has the stored vector, too.

        Raises:
            GeniusError: `datasets` is not installed.
        """
        from genius.index import exchange

        stored: dict[str, list[float]] | None = None
        if vectors:
            stored = {}
            for names, part, _ in self.vectors():
                stored.update(zip(names, part.tolist(), strict=True))
        return exchange.dataset_of(self.items(where), self.consistent(lambda: self.reader().columns), stored)

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
        if field is None:
            columns = ["id"]
        else:
            columns = ["id", field]
        for row in searching.stream(self, columns, where):
            yield row["id"], None if field is None else row[field]

    def below(self, prefix: Sequence[int | None] = (), *, limit: int = 20, offset: int = 0, per_child: int = 0) -> PrefixView:
        """The items whose IDs begin with a prefix, and the codes that follow it.

        Args:
            prefix: the first codes of an ID; None stands for any code.
            limit: items that are listed.
            offset: items that are skipped first.
            per_child: items that are listed for each of the 64 fullest next codes.

        Examples:
            >>> index.below(index.codes("1")[:1]).count
            2
        """
        from genius.index import explaining

        return explaining.below(self, prefix, limit, offset, per_child)

    def modalities(self) -> set[Modality]:
        """Modalities of the items. One whose last item was just deleted may still be named.

        Examples:
            >>> [modality.label for modality in index.modalities()]
            ['text']
        """

        def present() -> set[Modality]:
            with self.lock:
                return {Modality(modality) for modality in self.current().modalities(self.model.config.quantizer.labelled)}

        return self.consistent(present)

    def info(self) -> dict[str, Any]:
        """What this index is, for people and machines.

        Examples:
            >>> index.info()["items"]
            2
        """
        return self.consistent(lambda: describe_index(self.path, self.about, self.reader()))

    def advice(self) -> str | None:
        """One line if items look unlike what the model knows, or have outgrown its codes; None if all is well."""
        from genius.index import explaining

        return self.consistent(lambda: explaining.advice(self))

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
        *,
        vector: VectorInput | None = None,
        mode: str = "similarity",
        words_weight: float = WORDS_WEIGHT,
        item_bias: bool | None = None,
        min_probability: float | None = None,
    ) -> Hits:
        """Items that answer a text, an image, both, or a vector of your own; best first.

        Args:
            text: words of the query.
            image: its image: a path, bytes or a PIL image.
            instruction: what is wanted, in words of your own.
            target: "image" (anything with an image), "text" (anything with text), "pair" (both) or "any". Default: images, or
                texts in a collection without images; with an `instruction`, every modality.
            k: hits to return.
            where: SQL over metadata, applied inside of the search: k hits come back if k items match.
            min_score: leave out hits that score lower.
            beams: beams of the decoder; more find more and take longer.
            rerank: items that are re-ranked by their embeddings; given explicitly, it is obeyed under filters, too.
            params: all search settings at once.
            modality: in place of `target`: exactly items of this modality.
            minus: a text or an image that hits should not be similar to.
            diverse: hits that differ: one from each subtree of codes.
            vector: in place of text and image: (D,), or {"image": (D,), "text": (D,)}. In an index with an encoder, its output.
            mode: "similarity", "words" (full-text search, BM25) or "hybrid" (both, fused by reciprocal ranks). The last two
                need `index_words`. An item that the text names exactly (id, file name, indexed field) comes first.
            words_weight: weight of words in a hybrid search; similarity has 1.
            item_bias: False: scores are not corrected by what was learned from queries; None: as the model's settings say.
            min_probability: no hits where the collection holds an answer with a lower probability; needs a calibrated model.

        Returns:
            The hits. Where the model was calibrated, each has the `probability` that it answers, and `hits.answerable` is the
            probability that there is an answer. Where nothing is found, `hits.why` says why.

        Raises:
            GeniusError: an argument is out of range, or `where` cannot be read.

        Examples:
            >>> index.search("a red bicycle", k=1)[0].id
            '1'
            >>> [hit.id for hit in index.search("a bicycle", where="price < 50")]
            ['1']
        """
        parsed_target = Target.parse(target, modality)
        query = Query(text, image, instruction, parsed_target.modality, minus, vector)  # type: ignore[arg-type]
        request = SearchRequest(
            k,
            where,
            min_score,
            beams,
            rerank,
            params,
            parsed_target.strict,
            diverse,
            mode,
            words_weight,
            item_bias,
            min_probability,
            parsed_target.any_modality,
        )
        return self.search_many([query], request)[0]

    def search_many(self, queries: Sequence[Query | ContentInput], request: SearchRequest = ANY) -> list[Hits]:
        """Several queries under one request: one pass through the model, one version.

        Args:
            queries: each a `Query`, a text, an image, or {"text": ..., "image": ...}.
            request: the settings of all queries.

        Returns:
            The hits of each query.

        Examples:
            >>> [hits[0].id for hits in index.search_many(["a red bicycle", "a boat"])]
            ['1', '2']
        """
        return self.search_each(queries, [request] * len(queries))

    def search_each(self, queries: Sequence[Query | ContentInput], requests: Sequence[SearchRequest]) -> list[Hits]:
        """Several queries, each under a request of its own: one pass through the encoder for all, one search for equal requests.

        Args:
            queries: each a `Query`, a text, an image, or {"text": ..., "image": ...}.
            requests: one for each query.

        Returns:
            The hits of each query.
        """
        return self.following(lambda: words.search_by_mode(self, queries, requests))

    def vectors(self, batch: int = 256) -> Iterator[tuple[list[str], Tensor, list[Modality]]]:
        """Ids, stored vectors (n, D) and modalities of all items of one version.

        Args:
            batch: items at a time.
        """
        import torch

        rows = searching.stream(self, ["id", "modality", "_embedding"])
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
        modality: Tensor | None = None,
    ) -> list[Hits]:
        """Search with vectors in place of texts and images.

        Args:
            z: (Q, D) what the decoder reads.
            dense: (Q, D) what stored vectors are compared with; None for `z`.
            targets: (Q,) modality codes, -1 for any; None for any.
            request: the settings of all queries.
            pictured: (Q,) which queries have an image; probabilities depend on it, and without it there are none.
            modality: (Q,) what each query consists of; the item bias depends on it, and without it there is none.

        Returns:
            The hits of each query.
        """
        vectors = searching.QueryVectors(z, dense, targets, pictured, modality)
        vectors.check(self.about.width)
        searching.check(request)
        return self._on_newest(lambda: searching.search(self, [(vectors, request)]))[0]  # vectors of this encoder

    def explain(self, query: Query, request: SearchRequest = THREE, *, shown: int = 5, rejected: int = 3) -> dict[str, Any]:
        """How the hits of a query came about: at every step the codes kept and the best rejected, with log-probability and words.

        Args:
            query: the query.
            request: how many hits, and other settings.
            shown: beams of every step that are shown besides those that lead to hits.
            rejected: codes of every step that were not kept.

        Returns:
            JSON-ready: `summary` names the plan, `answers` has the hits with the log-probability of each of their codes, `traces`
            the steps of one beam search for each target modality. docs/serving.md describes all fields: HTTP has the same.

        Examples:
            >>> [answer["id"] for answer in index.explain(Query("a boat"))["answers"]][:1]
            ['2']
        """
        from genius.index import explaining

        if not isinstance(query, Query):
            raise GeniusError(f"explain takes a Query, got {type(query).__name__}")

        def call() -> dict[str, Any]:
            hits = self.search_many([query], request)[0]
            searched = replace(query, target=hits.target)
            return explaining.explain(self, searched, hits, request=request, shown=shown, rejected=rejected)

        return self.consistent(call)


def _stamped(items: Iterable[Item | Mapping[str, Any]]) -> Iterator[Stamped]:
    if isinstance(items, Item):
        items = [items]
    if not isinstance(items, Iterable):
        raise GeniusError(f"expected items, got {type(items).__name__}")
    return ((Item.of(item), None) for item in items)
