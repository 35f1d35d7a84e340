"""LangChain's own standard tests of vector stores, and what they do not ask: filters, scores, the index's own encoder."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("langchain_tests", reason="langchain-tests is not installed: pip install 'genius-search[frameworks-test]'")

from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from genius import GeniusError, Index
from genius.integrations.langchain import GeniusVectorStore

EMBEDDING = DeterministicFakeEmbedding(size=6)


class TestStandard(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> VectorStore:
        embedding = self.get_embeddings()
        return GeniusVectorStore(Index.create(tmp_path / "store.genius", dim=len(embedding.embed_query("a"))), embedding)


@pytest.fixture
def store(tmp_path: Path) -> GeniusVectorStore:
    metadatas = [{"price": n, "colour": "red" if n % 2 else "blue", "tags": ["a", "b"], "it's": n} for n in range(6)]
    texts = [f"thing {n}" for n in range(6)]
    ids = [f"t{n}" for n in range(6)]
    return GeniusVectorStore.from_texts(texts, EMBEDDING, metadatas, ids=ids, path=tmp_path / "store.genius")


def ids(store: GeniusVectorStore, where: object) -> set[str]:
    return {str(document.id) for document in store.similarity_search("thing", k=10, filter=where)}  # type: ignore[arg-type]


def test_filters(store: GeniusVectorStore) -> None:
    assert ids(store, "price < 2") == {"t0", "t1"}
    assert ids(store, {"colour": "red"}) == {"t1", "t3", "t5"}
    assert ids(store, {"price": {"$gte": 2, "$lt": 5}, "colour": "blue"}) == {"t2", "t4"}
    assert ids(store, {"$or": [{"price": 0}, {"colour": {"$in": ["red"]}}]}) == {"t0", "t1", "t3", "t5"}
    assert ids(store, {"colour": {"$nin": ["red", "it's"]}}) == {"t0", "t2", "t4"}
    with pytest.raises(GeniusError, match="unknown operator '\\$near'"):
        ids(store, {"price": {"$near": 3}})
    with pytest.raises(GeniusError, match="no_such"):
        ids(store, {"no_such": 3})


def test_metadata_that_is_no_field_comes_back(store: GeniusVectorStore) -> None:
    [document] = store.get_by_ids(["t3"])
    assert document.metadata == {"price": 3, "colour": "red", "tags": ["a", "b"], "it's": 3}


def test_scores_are_similarities(store: GeniusVectorStore) -> None:
    (first, score), *_ = store.similarity_search_with_score("thing 4", k=3)
    assert first.id == "t4" and score == pytest.approx(1, abs=1e-2)
    assert store.similarity_search_by_vector(EMBEDDING.embed_query("thing 2"), k=1)[0].id == "t2"
    relevance = store.similarity_search_with_relevance_scores("thing 4", k=6)
    assert all(0 <= value <= 1 for _, value in relevance)


def test_it_can_be_opened_again_and_emptied(store: GeniusVectorStore) -> None:
    again = GeniusVectorStore.from_texts(["one more"], EMBEDDING, path=store.index.path)
    assert len(again.index) == 7
    with pytest.raises(GeniusError, match="has no encoder: give the embedding"):
        GeniusVectorStore(store.index)
    assert again.delete()
    assert again.similarity_search("thing") == []


def test_the_own_encoder_of_an_index(tmp_path: Path) -> None:
    import fake_encoder

    index = Index(tmp_path / "own.genius", fake_encoder.fake_model())
    store = GeniusVectorStore(index)
    store.add_texts(["a red bicycle", "a boat on the sea"], ids=["bike", "boat"])
    assert store.similarity_search("bicycle", k=1)[0].id == "bike"
    retriever = store.as_retriever(search_kwargs={"k": 1})
    assert retriever.invoke("sea")[0].page_content == "a boat on the sea"
