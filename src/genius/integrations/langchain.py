"""An index as a LangChain vector store. Needs `langchain-core`.

    store = GeniusVectorStore.from_texts(["a red bicycle"], embedding, path="notes.genius")
    store.similarity_search("bike", k=1, filter={"price": {"$lt": 50}})
    store.as_retriever(search_kwargs={"k": 5, "target": "image"})

With `embedding`, vectors are LangChain's and the index has no encoder; without, the index's own model reads texts and images.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from genius.errors import GeniusError
from genius.index import Index
from genius.integrations.documents import document_fields, metadata_of, where_of
from genius.types import Item, name_of

Filter = str | Mapping[str, Any]


class GeniusVectorStore(VectorStore):  # type: ignore[misc]
    """Documents in an index.

    Args:
        index: An open index: with an encoder, or (`Index.create(path, dim=...)`) for the vectors of `embedding`.
        embedding: Makes the vectors; None: the index's own encoder does.
    """

    def __init__(self, index: Index, embedding: Embeddings | None = None) -> None:
        if embedding is None and index.model.encoder is None:
            raise GeniusError(f"{index.path} has no encoder: give the embedding whose vectors it holds")
        self.index = index
        self.embedding = embedding

    @property
    def embeddings(self) -> Embeddings | None:
        """What makes the vectors; None: the index's own encoder."""
        return self.embedding

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | Path = "langchain.genius",
        model: str = "bundled:mini",
        **options: Any,
    ) -> GeniusVectorStore:
        """Create an index, or open the one at `path`, and add texts.

        Args:
            texts: Contents of documents.
            embedding: Makes the vectors; None: `model` does.
            metadatas: One mapping for each text.
            ids: One for each text; random by default.
            path: Folder of the index.
            model: URI of the model of a new index, if there is no `embedding`.
            options: Ignored.
        """
        if (Path(path) / "genius.json").is_file():
            index = Index.open(path)
        elif embedding is None:
            index = Index.create(path, model)
        else:
            index = Index.create(path, dim=len(embedding.embed_query("width")))
        store = cls(index, embedding)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **options: Any,
    ) -> list[str]:
        """Add documents, each in place of the one with its id.

        Args:
            texts: Their contents.
            metadatas: One mapping for each.
            ids: One for each; None: a random one.
            options: Ignored.

        Returns:
            Their ids.
        """
        contents = list(texts)
        names = [given or uuid.uuid4().hex for given in ids or [None] * len(contents)]
        about = metadatas or [{} for _ in contents]
        if not len(contents) == len(names) == len(about):
            raise GeniusError(f"{len(contents)} texts, {len(names)} ids and {len(about)} metadatas: give one for each")
        vectors: Sequence[Any] = [None] * len(contents)
        if self.embedding is not None and contents:
            vectors = self.embedding.embed_documents(contents)
        items = []
        for name, text, metadata, vector in zip(names, contents, about, vectors, strict=True):
            items.append(Item(name, text=text, metadata=document_fields(metadata), vector=vector))
        self.index.upsert(items)
        return names

    def delete(self, ids: list[str] | None = None, **options: Any) -> bool:
        """Delete documents.

        Args:
            ids: Unknown ones are ignored; None: all documents.
            options: Ignored.
        """
        if ids is None:
            ids = [name for name, _ in self.index.values()]
        self.index.delete(ids, missing="skip")
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Documents by id, in this order.

        Args:
            ids: Unknown ones are left out.
        """
        return [_document(item) for item in self.index.get(list(ids), missing="skip")]

    # -- search ------------------------------------------------------------------------------------------------

    def similarity_search(self, query: str, k: int = 4, filter: Filter | None = None, **options: Any) -> list[Document]:
        """Documents that match a text, best first.

        Args:
            query: The text.
            k: Number of documents.
            filter: SQL over metadata, or a mapping (`genius.integrations.documents.where_of`).
            options: Of `Index.search`, such as `target`, `mode="hybrid"` and `diverse`.
        """
        return [document for document, _ in self.similarity_search_with_score(query, k, filter, **options)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter | None = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """Documents and their scores: cosine similarities; higher is better.

        Args:
            query: The text.
            k: Number of documents.
            filter: As for `similarity_search`.
            options: As for `similarity_search`.
        """
        options.setdefault("target", "any")
        if self.embedding is None:
            hits = self.index.search(query, k=k, where=where_of(filter), **options)
        else:
            words = query if options.get("mode") in ("hybrid", "words") else None
            vector = self.embedding.embed_query(query)
            hits = self.index.search(words, vector=vector, k=k, where=where_of(filter), **options)
        return [(_document(hit.item), hit.score) for hit in hits]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Filter | None = None, **options: Any
    ) -> list[Document]:
        """Documents that are most similar to a vector.

        Args:
            embedding: The vector.
            k: Number of documents.
            filter: As for `similarity_search`.
            options: As for `similarity_search`.
        """
        options.setdefault("target", "any")
        hits = self.index.search(vector=embedding, k=k, where=where_of(filter), **options)
        return [_document(hit.item) for hit in hits]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: min(1.0, max(0.0, (1 + score) / 2))


def _document(item: Item) -> Document:
    metadata = metadata_of(item.metadata)
    if isinstance(item.image, str | Path):
        metadata["image"] = str(item.image)
    return Document(page_content=item.text or name_of(item) or item.id, metadata=metadata, id=item.id)
