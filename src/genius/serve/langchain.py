"""An index as a LangChain retriever: `GeniusRetriever(index=Index.open("my.genius"), k=5).invoke("a red bicycle")`.

Needs `langchain-core`, which GENIUS does not install. A document's text is the item's text, or its name if it is an image.
"""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from genius.index import Hit, Index
from genius.index.target import Target
from genius.search import SearchRequest
from genius.types import Query, name_of


class GeniusRetriever(BaseRetriever):  # type: ignore[misc]
    """Documents that match a query, best first."""

    index: Any  # an open `Index`
    k: int = 10
    target: str | None = None  # image, text, pair or any; default: images, or texts if the index has no images
    where: str | None = None  # SQL filter over metadata
    diverse: bool = False

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        assert isinstance(self.index, Index)
        wanted = Target.parse(self.target)
        asked = Query(query, target=wanted.modality)
        request = SearchRequest(self.k, self.where, diverse=self.diverse, any_modality=wanted.any_modality)
        return [as_document(hit) for hit in self.index.search_many([asked], request)[0]]


def as_document(hit: Hit) -> Document:
    about = {"id": hit.id, "score": hit.score, "modality": hit.modality.label, "image": hit.to_dict()["image"]}
    return Document(page_content=hit.item.text or name_of(hit.item) or hit.id, metadata={**hit.item.metadata, **about}, id=hit.id)
