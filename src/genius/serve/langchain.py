"""Where `GeniusRetriever` was before: it is in `genius.integrations.langchain`."""

from genius.integrations.langchain import GeniusRetriever, as_document

__all__ = ["GeniusRetriever", "as_document"]
