"""GENIUS inside MTEB: a model as a search model, and an index as the back-end of any MTEB encoder. Needs the extra `mteb`.

    import mteb
    from genius.evaluate.mteb import GeniusSearch, IndexBackend
    mteb.evaluate(GeniusSearch("bundled:mini"), mteb.get_tasks(tasks=["CIRRIT2IRetrieval"]))

    from mteb.models.search_wrappers import SearchEncoderWrapper
    encoder = mteb.get_model("intfloat/multilingual-e5-small")
    mteb.evaluate(SearchEncoderWrapper(encoder, index_backend=IndexBackend(encoder)), mteb.get_tasks(tasks=["NFCorpus"]))

`GeniusSearch` is MTEB's `SearchProtocol`: rows with `id` and any of `text`, `title`, `image`, `instruction` come in.
`IndexBackend` is its `IndexEncoderSearchProtocol`: vectors of the encoder come in. Nothing of MTEB is imported before it is
needed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.encoders.base import batched, encode_items, encode_queries
from genius.errors import GeniusError
from genius.features import as_numpy
from genius.index import Hits, Index
from genius.model.genius import Genius
from genius.search import CodeTrie, SearchEngine, SearchParams, SearchRequest
from genius.search.params import MAX_K
from genius.types import Item, Modality, Query, instruction_for

LIKE_COSINE = ("dot", "euclidean")  # similarities of MTEB that order vectors of length 1 as the cosine does
UNIT_NORM = 1e-3  # how far lengths of vectors may be from 1 where an encoder is not compared by cosine
AT_ONCE = 256  # queries of one search
_LETTERS = {"i": Modality.IMAGE, "t": Modality.TEXT, "it": Modality.PAIR}


class GeniusSearch:
    """Implements MTEB's `SearchProtocol`: encode and index a corpus once, then answer its queries.

    Args:
        model: A model with an encoder, or its URI.
        params: How to search; the model's defaults if None.
        name: That MTEB stores results under.
        chunk: Rows whose images are in memory at once.

    Raises:
        GeniusError: If the model has no encoder.
    """

    def __init__(
        self, model: str | Genius, *, params: SearchParams | None = None, name: str | None = None, chunk: int = 2048
    ) -> None:
        default_name = "genius/model"
        if isinstance(model, str):
            default_name = f"genius/{model.rsplit('/', 1)[-1]}"
            model = Genius.from_pretrained(model)
        self.model = model
        if self.model.encoder is None:
            raise GeniusError("MTEB evaluates images and texts: the model needs an encoder")
        self.params = params or SearchParams.of_model(self.model)
        self.name = name or default_name
        self.chunk = chunk
        self._ids: list[str] = []
        self._engine: SearchEngine | None = None

    # -- SearchProtocol ----------------------------------------------------------------------------------------

    def index(self, corpus: Any, *, encode_kwargs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Encode the corpus and build its trie.

        Args:
            corpus: Rows with `id` and any of `text`, `title`, `image`.
            encode_kwargs: `batch_size` of the encoder.
            _: What else MTEB hands over; not used.

        Raises:
            GeniusError: If the corpus is empty.
        """
        batch = int((encode_kwargs or {}).get("batch_size", 64))
        assert self.model.encoder is not None
        ids: list[str] = []
        codes = []
        dense = []
        for rows in batched(map(dict, corpus), self.chunk):
            items = [_item(row) for row in rows]
            features, _kept, _problems = encode_items(self.model.encoder, items, batch_size=batch)
            z, ranked = self.model.embed(features)
            codes.append(self.model.quantizer.encode(z, features.modality.to(self.model.device)).cpu().numpy())
            dense.append(ranked.half())
            ids += [item.id for item in items]
        if not ids:
            raise GeniusError("the MTEB corpus is empty")
        trie = CodeTrie.build(np.concatenate(codes), self.model.config.quantizer.level_sizes)
        self._ids = ids
        self._engine = SearchEngine(
            self.model.generator, self.model.quantizer, trie, torch.cat(dense), device=str(self.model.device)
        )

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any = None,
        top_k: int = 100,
        encode_kwargs: Mapping[str, Any] | None = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """The best documents of each query.

        Args:
            queries: Rows with `id` and any of `text`, `image`, `instruction`.
            task_metadata: MTEB's; its category says which modality is looked for.
            top_k: Documents of each query.
            encode_kwargs: `batch_size` of the encoder.
            top_ranked: Query id -> the only documents to rank (re-ranking tasks).
            _: What else MTEB hands over; not used.

        Returns:
            Query id -> document id -> score.

        Raises:
            GeniusError: If no corpus was indexed.
        """
        if self._engine is None:
            raise GeniusError("index a corpus first")
        batch = int((encode_kwargs or {}).get("batch_size", 64))
        assert self.model.encoder is not None
        target = _target(task_metadata)
        place = {name: row for row, name in enumerate(self._ids)}
        out: dict[str, dict[str, float]] = {}
        for rows in batched(map(dict, queries), self.chunk):
            batch_queries = [_query(row, target) for row in rows]
            z, dense = self.model.embed(encode_queries(self.model.encoder, batch_queries, batch_size=batch))
            names = [str(row["id"]) for row in rows]
            allowed = None
            if top_ranked is not None:
                allowed = _allowed(names, top_ranked, place, len(self._ids))
            result = self._engine.search(z, k=min(top_k, len(self._ids)), params=self.params, dense=dense, allowed=allowed)
            for name, items, scores in zip(names, result.rows.tolist(), result.scores.tolist(), strict=True):
                out[name] = {self._ids[row]: float(score) for row, score in zip(items, scores, strict=True) if row >= 0}
        return out

    @property
    def mteb_model_meta(self) -> Any:
        """What MTEB stores with the results."""
        try:
            from mteb.models import ModelMeta
        except ImportError:
            raise GeniusError("MTEB is not installed: pip install 'genius-search[mteb]'") from None
        count = sum(p.numel() for p in self.model.network.parameters())
        return ModelMeta(
            loader=None, name=self.name, revision=self.model.fingerprint()[:12], release_date=None, languages=None,
            n_parameters=count, memory_usage_mb=None, max_tokens=None, embed_dim=self.model.config.width, license=None,
            open_weights=True, public_training_code=None, public_training_data=None, framework=["PyTorch"],
            similarity_fn_name="cosine", use_instructions=True, training_datasets=None, modalities=["image", "text"],
        )  # fmt: skip


class IndexBackend:
    """An index of the vectors of any MTEB encoder: MTEB's `IndexEncoderSearchProtocol`.

    Vectors are stored as 16-bit floats and compared by cosine, by the plan that the size of the collection asks for: below 80,000
    documents all are compared. An encoder that MTEB compares by dot product or Euclidean distance is accepted if its vectors have
    length 1: the order is the same then. Scores are cosines in any case.

    Args:
        model: The MTEB encoder whose vectors are indexed, or None: compared by cosine.
        folder: Where the index of the present corpus is; a temporary folder by default. It must not be an index yet.
        params: How to search; the index's defaults if None.

    Raises:
        GeniusError: If the encoder is compared in another way.
    """

    def __init__(self, model: Any = None, *, folder: str | Path | None = None, params: SearchParams | None = None) -> None:
        similarity = getattr(getattr(model, "mteb_model_meta", None), "similarity_fn_name", None)
        self.similarity = str(getattr(similarity, "value", similarity) or "cosine")
        if self.similarity not in ("cosine", *LIKE_COSINE):
            raise GeniusError(f"this encoder is compared by {self.similarity}; an index compares by cosine")
        self.folder = folder
        self.params = params
        self._index: Index | None = None
        self._rows: dict[str, int] = {}  # document -> its number, which is its id in the index
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def add_documents(self, embeddings: Any, idxs: Sequence[str]) -> None:
        """Add documents.

        Args:
            embeddings: (n, D) array or tensor.
            idxs: Their n ids.

        Raises:
            GeniusError: If a vector is not finite or zero, an id comes twice, or vectors are not fit for cosine.
        """
        vectors = _matrix(embeddings)
        names = [str(name) for name in idxs]
        if len(names) != len(vectors):
            raise GeniusError(f"{len(names)} ids for {len(vectors)} embeddings")
        self._check_norms(vectors)
        rows = dict(zip(names, range(len(self._rows), len(self._rows) + len(names)), strict=True))
        if len(rows) < len(names) or not rows.keys().isdisjoint(self._rows):
            raise GeniusError("a document's id comes twice in the corpus")
        items = [Item(str(row), vector=vector) for row, vector in zip(rows.values(), vectors, strict=True)]
        if self._index is None:
            self._index = Index.create(self._place(), dim=vectors.shape[1])
        self._index.add(items)
        self._rows |= rows

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: Callable[..., Any] | None = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        query_idx_to_id: Mapping[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """The best documents of each query.

        Args:
            embeddings: (Q, D) array or tensor.
            top_k: Documents of each query.
            similarity_fn: Not used: documents are compared by cosine.
            top_ranked: Query id -> the only documents to rank (re-ranking tasks).
            query_idx_to_id: Row of `embeddings` -> query id; needed with `top_ranked`.

        Returns:
            Scores, and positions: in the order of `add_documents`, or within the query's list of `top_ranked`.

        Raises:
            GeniusError: If no documents were added, or `top_ranked` comes without ids of queries.
        """
        if self._index is None:
            raise GeniusError("add documents before searching")
        if top_ranked is not None and query_idx_to_id is None:
            raise GeniusError("top_ranked needs query_idx_to_id")
        vectors = _matrix(embeddings)
        scores: list[list[float]] = []
        positions: list[list[int]] = []
        for start in range(0, len(vectors), AT_ONCE):
            part = range(start, min(start + AT_ONCE, len(vectors)))
            candidates: list[dict[int, int] | None] = [None] * len(part)
            if top_ranked is not None and query_idx_to_id is not None:
                candidates = [self._candidates(top_ranked.get(query_idx_to_id[row], ())) for row in part]
            for own_scores, own_positions in self._search(vectors[start : part.stop], top_k, candidates):
                scores.append(own_scores)
                positions.append(own_positions)
        return scores, positions

    def clear(self) -> None:
        """Forget the corpus. The index of a folder that was given stays on disk."""
        self._index = None
        self._rows = {}
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _search(
        self, vectors: NDArray[np.float32], top_k: int, candidates: Sequence[dict[int, int] | None]
    ) -> Iterator[tuple[list[float], list[int]]]:
        assert self._index is not None
        query_numbers = [number for number, rows in enumerate(candidates) if rows is None or rows]
        requests = [self._request(top_k, candidates[number]) for number in query_numbers]
        queries = [Query(vector=vectors[number]) for number in query_numbers]
        found = dict(zip(query_numbers, self._index.search_each(queries, requests), strict=True))
        for number, rows in enumerate(candidates):
            hits = found.get(number, Hits())
            positions = [int(hit.id) for hit in hits]
            if rows is not None:
                positions = [rows[row] for row in positions]
            yield [hit.score for hit in hits], positions

    def _request(self, top_k: int, rows: Mapping[int, int] | None) -> SearchRequest:
        where = None
        k = min(top_k, len(self._rows), MAX_K)
        if rows is not None:
            where = f"id IN ({', '.join(repr(str(row)) for row in rows)})"
            k = min(k, len(rows))
        return SearchRequest(k, where, params=self.params, any_modality=True)

    def _candidates(self, documents: Sequence[str]) -> dict[int, int]:
        """Row -> position in a query's list of documents."""
        rows: dict[int, int] = {}
        for position, name in enumerate(documents):
            if str(name) not in self._rows:
                raise GeniusError(f"no document {name!r} in the corpus")
            rows.setdefault(self._rows[str(name)], position)
        return rows

    def _check_norms(self, vectors: NDArray[np.float32]) -> None:
        if self.similarity == "cosine":
            return
        worst = float(np.abs(np.linalg.norm(vectors, axis=1) - 1).max(initial=0))
        if worst > UNIT_NORM:
            raise GeniusError(
                f"this encoder is compared by {self.similarity} and its vectors are not of length 1; an index compares by cosine"
            )

    def _place(self) -> Path:
        if self.folder is not None:
            return Path(self.folder)
        self._temporary = tempfile.TemporaryDirectory(prefix="genius-mteb-")
        return Path(self._temporary.name) / "corpus.genius"


def _matrix(embeddings: Any) -> NDArray[np.float32]:
    """(n, D) float32 of an array or a tensor on any device."""
    vectors = as_numpy(embeddings).astype(np.float32, copy=False)
    if vectors.ndim != 2:
        raise GeniusError(f"embeddings have shape {vectors.shape}; one vector for each document or query is needed")
    return vectors


def _item(row: Mapping[str, Any]) -> Item:
    text = " ".join(part for part in (row.get("title"), row.get("text") or row.get("body")) if part)
    return Item(str(row["id"]), image=row.get("image"), text=text or None)


def _query(row: Mapping[str, Any], target: Modality | None) -> Query:
    text = row.get("text") or row.get("query")
    if isinstance(text, list):  # a conversation: what was said last
        text = text[-1]
        if isinstance(text, Mapping):
            text = text["content"]
        text = str(text)
    query = Query(text=text or None, image=row.get("image"))
    instruction = row.get("instruction")
    if not instruction and target is not None:
        instruction = instruction_for(query.modality, target)
    return Query(text=query.text, image=query.image, instruction=instruction or None)


def _target(metadata: Any) -> Modality | None:
    """What a task wants, from MTEB's category: "t2i" -> image, "it2t" -> text, "i2it" -> pair."""
    category = str(getattr(metadata, "category", "") or "")
    return _LETTERS.get(category.partition("2")[2])


def _allowed(names: Sequence[str], top_ranked: Mapping[str, Sequence[str]], place: Mapping[str, int], items: int) -> torch.Tensor:
    mask = torch.zeros(len(names), items, dtype=torch.bool)
    for i, name in enumerate(names):
        rows = [place[str(document)] for document in top_ranked.get(name, ()) if str(document) in place]
        mask[i, rows] = True
    return mask
