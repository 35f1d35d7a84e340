"""A LlamaIndex vector store: add, replace, query, filter, get and delete nodes; and LlamaIndex's own index over it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed: pip install 'genius-search[llamaindex]'")

from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from genius import GeniusError
from genius.integrations.llamaindex import GeniusVectorStore

THEMES = ("war", "mafia", "friendship", "war", "friendship")


def node(number: int) -> TextNode:
    vector = [0.1] * 5
    vector[number] = 1.0
    return TextNode(
        text=f"film number {number} about {THEMES[number]}",
        id_=f"n{number}",
        embedding=vector,
        metadata={"theme": THEMES[number], "year": 1990 + number, "cast": ["a", "b"], "rare": number == 2},
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc{number % 2}")},
    )


@pytest.fixture
def store(tmp_path: Path) -> GeniusVectorStore:
    store = GeniusVectorStore.create(tmp_path / "nodes.genius", dim=5)
    assert store.query(VectorStoreQuery(query_embedding=[1.0] * 5)).ids == []
    assert store.add([node(n) for n in range(5)]) == [f"n{n}" for n in range(5)]
    return store


def found(store: GeniusVectorStore, *filters: MetadataFilter, by: FilterCondition = FilterCondition.AND) -> set[str]:
    query = VectorStoreQuery(
        query_embedding=[1.0] * 5, similarity_top_k=10, filters=MetadataFilters(filters=[*filters], condition=by)
    )
    return set(store.query(query).ids or [])


def test_nodes_come_back_as_they_were(store: GeniusVectorStore) -> None:
    result = store.query(VectorStoreQuery(query_embedding=node(2).embedding, similarity_top_k=2))
    assert result.ids is not None and result.ids[0] == "n2" and len(result.ids) == 2
    assert result.nodes is not None and result.similarities is not None
    assert result.nodes[0].get_content() == node(2).get_content()
    assert result.nodes[0].metadata == node(2).metadata
    assert result.nodes[0].ref_doc_id == "doc0"
    assert result.similarities[0] == pytest.approx(1, abs=1e-2) and result.similarities[0] > result.similarities[1]


def test_filters(store: GeniusVectorStore) -> None:
    war = MetadataFilter(key="theme", value="war")
    late = MetadataFilter(key="year", value=1992, operator=FilterOperator.GTE)
    assert found(store, war) == {"n0", "n3"}
    assert found(store, war, late) == {"n3"}
    assert found(store, war, late, by=FilterCondition.OR) == {"n0", "n2", "n3", "n4"}
    assert found(store, war, by=FilterCondition.NOT) == {"n1", "n2", "n4"}
    assert found(store, MetadataFilter(key="theme", value=["mafia", "war"], operator=FilterOperator.NIN)) == {"n2", "n4"}
    with pytest.raises(GeniusError, match="cannot filter by 'all'"):
        found(store, MetadataFilter(key="theme", value=["war"], operator=FilterOperator.ALL))


def test_by_ids_and_documents(store: GeniusVectorStore) -> None:
    query = VectorStoreQuery(query_embedding=[1.0] * 5, similarity_top_k=10, node_ids=["n1", "n4"])
    assert set(store.query(query).ids or []) == {"n1", "n4"}
    query = VectorStoreQuery(query_embedding=[1.0] * 5, similarity_top_k=10, doc_ids=["doc1"])
    assert set(store.query(query).ids or []) == {"n1", "n3"}
    assert {one.node_id for one in store.get_nodes(["n0", "nobody"])} == {"n0"}


def test_words_and_both(store: GeniusVectorStore) -> None:
    by_words = VectorStoreQuery(query_str="mafia", similarity_top_k=1, mode=VectorStoreQueryMode.TEXT_SEARCH)
    assert store.query(by_words).ids == ["n1"]
    both = VectorStoreQuery(
        query_str="mafia", query_embedding=node(1).embedding, similarity_top_k=1, mode=VectorStoreQueryMode.HYBRID, alpha=0.5
    )
    assert store.query(both).ids == ["n1"]
    with pytest.raises(GeniusError, match="the mode 'sparse' is not one of"):
        store.query(VectorStoreQuery(query_embedding=[1.0] * 5, mode=VectorStoreQueryMode.SPARSE))


def test_replace_and_delete(store: GeniusVectorStore) -> None:
    changed = node(3)
    changed.set_content("another text")
    store.add([changed])
    assert len(store.client) == 5 and store.get_nodes(["n3"])[0].get_content() == "another text"
    store.delete("doc1")
    assert {one.node_id for one in store.get_nodes()} == {"n0", "n2", "n4"}
    store.delete_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="theme", value="war")]))
    store.delete_nodes(["n2", "nobody"])
    assert {one.node_id for one in store.get_nodes()} == {"n4"}
    asyncio.run(store.aclear())
    assert store.get_nodes() == []


def test_an_index_of_documents(tmp_path: Path) -> None:
    store = GeniusVectorStore.create(tmp_path / "documents.genius", dim=8)
    context = StorageContext.from_defaults(vector_store=store)
    documents = [Document(text=f"text {n}", metadata={"n": n}, doc_id=f"d{n}") for n in range(3)]
    index = VectorStoreIndex.from_documents(documents, storage_context=context, embed_model=MockEmbedding(embed_dim=8))
    assert len(index.as_retriever(similarity_top_k=2).retrieve("text")) == 2
    index.delete_ref_doc("d1")
    again = VectorStoreIndex.from_vector_store(
        GeniusVectorStore.create(tmp_path / "documents.genius", 8), MockEmbedding(embed_dim=8)
    )
    texts = {one.get_content() for one in again.as_retriever(similarity_top_k=5).retrieve("text")}
    assert texts == {"text 0", "text 2"}
