"""An index as a LlamaIndex vector store. Needs `llama-index-core`.

    store = GeniusVectorStore.create("notes.genius", dim=384)
    VectorStoreIndex.from_documents(documents, storage_context=StorageContext.from_defaults(vector_store=store))

Vectors are LlamaIndex's. A node is an item: its id, its text, its flat metadata as fields, and the whole node as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from genius.errors import GeniusError
from genius.index import Index
from genius.integrations.documents import WHOLE, condition, document_fields, joined
from genius.types import Item

NODE = "node_json"
NODE_TYPE = "node_type"
DOCUMENT = "ref_doc_id"
MODES = {
    VectorStoreQueryMode.DEFAULT: "similarity",
    VectorStoreQueryMode.HYBRID: "hybrid",
    VectorStoreQueryMode.TEXT_SEARCH: "words",
}


class GeniusVectorStore(BasePydanticVectorStore):  # type: ignore[misc]
    """Nodes in an index of vectors (`Index.create(path, dim=...)`).

    Args:
        index: An open index.
    """

    stores_text: bool = True
    flat_metadata: bool = False
    _index: Index = PrivateAttr()

    def __init__(self, index: Index) -> None:
        super().__init__(stores_text=True)
        self._index = index

    @classmethod
    def create(cls, path: str | Path, dim: int) -> GeniusVectorStore:
        """Create an index, or open it if it exists.

        Args:
            path: Folder of the index.
            dim: Width of the vectors.
        """
        if (Path(path) / "genius.json").is_file():
            return cls(Index.open(path))
        return cls(Index.create(path, dim=dim))

    @classmethod
    def class_name(cls) -> str:
        """Name under which LlamaIndex stores the class."""
        return "GeniusVectorStore"

    @property
    def client(self) -> Index:
        """The index."""
        return self._index

    # -- nodes -------------------------------------------------------------------------------------------------

    def add(self, nodes: Sequence[BaseNode], **options: Any) -> list[str]:
        """Add nodes with their embeddings, each in place of the one with its id.

        Args:
            nodes: With embeddings.
            options: Ignored.

        Returns:
            Their ids.
        """
        self._index.upsert([_item(node) for node in nodes])
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **options: Any) -> None:
        """Delete the nodes of a document.

        Args:
            ref_doc_id: Id of the document.
            options: Ignored.
        """
        if DOCUMENT in self._index.columns():
            self._delete(condition(DOCUMENT, "==", ref_doc_id))

    def delete_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **options: Any) -> None:
        """Delete nodes by id, by filter, or those that both name.

        Args:
            node_ids: Unknown ones are ignored.
            filters: Over metadata.
            options: Ignored.
        """
        where = _where(node_ids, None, filters)
        if where is None:
            raise GeniusError("name node ids or filters; clear() deletes all nodes")
        self._delete(where)

    def clear(self) -> None:
        """Delete all nodes."""
        self._delete(None)

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Nodes by id, by filter, or those that both name; all without either.

        Args:
            node_ids: Unknown ones are left out.
            filters: Over metadata.
        """
        return [_node(item) for item in self._index.items(_where(node_ids, None, filters))]

    def _delete(self, where: str | None) -> None:
        self._index.delete([name for name, _ in self._index.values(None, where)], missing="skip")

    # -- search ------------------------------------------------------------------------------------------------

    def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        """Nodes for a query: by its embedding, by its words (`TEXT_SEARCH`), or by both (`HYBRID`).

        Args:
            query: Its mode is DEFAULT, TEXT_SEARCH or HYBRID; `alpha` is the share of the embedding in HYBRID.
            options: Ignored.

        Raises:
            GeniusError: If the mode or a filter is another one.
        """
        if query.mode not in MODES:
            raise GeniusError(f"the mode {query.mode.value!r} is not one of {', '.join(mode.value for mode in MODES)}")
        if not len(self._index):
            return VectorStoreQueryResult(nodes=[], similarities=[], ids=[])
        search: dict[str, Any] = {"mode": MODES[query.mode], "target": "any"}
        if query.mode is not VectorStoreQueryMode.DEFAULT:
            search["text"] = query.query_str
            if not self._index.words_fields():
                self._index.index_words()
        if query.mode is not VectorStoreQueryMode.TEXT_SEARCH:
            if query.query_embedding is None:
                raise GeniusError("the query has no embedding")
            search["vector"] = query.query_embedding
        k = query.similarity_top_k
        if query.mode is VectorStoreQueryMode.HYBRID:
            k = query.hybrid_top_k or k
            if query.alpha is not None:
                search["words_weight"] = (1 - query.alpha) / max(query.alpha, 0.001)  # similarity has the weight 1
        where = _where(query.node_ids, query.doc_ids, query.filters)
        hits = self._index.search(k=k, where=where, **search)
        return VectorStoreQueryResult(
            nodes=[_node(hit.item) for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[hit.id for hit in hits],
        )


def _item(node: BaseNode) -> Item:
    whole = node_to_metadata_dict(node, remove_text=False, flat_metadata=False)
    fields = document_fields(node.metadata)
    fields.pop(WHOLE, None)  # the node's JSON has it
    fields[NODE] = whole["_node_content"]
    fields[NODE_TYPE] = whole["_node_type"]
    if node.ref_doc_id is not None:
        fields[DOCUMENT] = node.ref_doc_id
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    return Item(node.node_id, text=text or None, metadata=fields, vector=node.get_embedding())


def _node(item: Item) -> BaseNode:
    return metadata_dict_to_node({"_node_content": item.metadata[NODE], "_node_type": item.metadata[NODE_TYPE]})


def _where(node_ids: list[str] | None, doc_ids: list[str] | None, filters: MetadataFilters | None) -> str | None:
    parts: list[str | None] = []
    if node_ids:  # LlamaIndex passes empty lists for "any"
        parts.append(condition("id", "in", node_ids))
    if doc_ids:
        parts.append(condition(DOCUMENT, "in", doc_ids))
    if filters is not None:
        parts.append(_filters(filters))
    return joined(parts, "and")


def _filters(filters: MetadataFilters) -> str | None:
    parts: list[str | None] = []
    for one in filters.filters:
        if isinstance(one, MetadataFilter):
            parts.append(condition(one.key, one.operator.value, one.value))
        else:
            parts.append(_filters(one))
    if filters.condition is FilterCondition.NOT:
        return f"NOT ({joined(parts, 'or')})"
    return joined(parts, (filters.condition or FilterCondition.AND).value)
