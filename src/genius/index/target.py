"""What a query looks for: the target that was given, or the default one.

A target is what people mean by it: an image is anything with an image, a text anything with a text, a pair has both. Without a
target and without an instruction, a search looks for images: things to look at. A collection that has none is searched for texts.
Python, HTTP, the page, the command line, LangChain and MCP all come here, so that the same query has the same results everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from genius.errors import GeniusError
from genius.search import SearchRequest
from genius.types import Modality, Query

ANY = "any"
"""The target of a search among items of every modality."""

MODALITIES_OF = {
    Modality.IMAGE: (Modality.IMAGE, Modality.PAIR),
    Modality.TEXT: (Modality.TEXT, Modality.PAIR),
    Modality.PAIR: (Modality.PAIR,),
}
"""Target -> modalities of the items that are meant by it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target as a caller gave it.

    Args:
        modality: Modality that was named; None: none was.
        strict: Items of exactly this modality, not all that contain it.
        any_modality: Items of every modality were asked for.
    """

    modality: Modality | None = None
    strict: bool = False
    any_modality: bool = False

    @classmethod
    def parse(cls, target: Modality | str | int | None = None, modality: Modality | str | int | None = None) -> Target:
        """Parse the two arguments that every interface has.

        Args:
            target: "image" (anything with an image), "text" (anything with a text), "pair" (both) or "any"; None: the default.
            modality: In place of `target`: exactly this modality.

        Raises:
            GeniusError: Both are given, or one is unknown.
        """
        if target is not None and modality is not None:
            raise GeniusError("give either target or modality, not both")
        if target == ANY:
            return cls(any_modality=True)
        if modality is not None:
            return cls(Modality.parse(modality), strict=True)
        if target is not None:
            return cls(Modality.parse(target))
        return cls()


def default_target(held: Collection[Modality]) -> Modality | None:
    """The target of a query that names none: images if the collection has any, else texts; None for an empty collection.

    Args:
        held: Modalities of the items of the collection.
    """
    if Modality.IMAGE in held or Modality.PAIR in held:
        return Modality.IMAGE
    if Modality.TEXT in held:
        return Modality.TEXT
    return None


def with_default(query: Query, request: SearchRequest, held: Collection[Modality]) -> Query:
    """The query with the default target, where it names none: neither by a target nor by an instruction or a vector.

    Args:
        query: The query as it was given.
        request: Its request, which may ask for every modality.
        held: Modalities of the items of the collection.
    """
    if query.target is not None or query.instruction is not None or request.any_modality:
        return query
    if query.vector is not None:  # a vector says nothing of modalities
        return query
    return replace(query, target=default_target(held))


def spread(queries: Sequence[Query], held: Collection[Modality]) -> tuple[list[Query], list[int]]:
    """One query for each modality that is meant by a target.

    Args:
        queries: Queries with targets, or without for every modality.
        held: Modalities of the items of the collection.

    Returns:
        The queries, and for each the position of its original in `queries`.
    """
    searched: list[Query] = []
    owner: list[int] = []
    for number, query in enumerate(queries):
        modalities: Sequence[Modality | None] = [None]
        if query.target is not None:
            modalities = [modality for modality in MODALITIES_OF[query.target] if modality in held] or [query.target]
        searched += [replace(query, target=modality) for modality in modalities]
        owner += [number] * len(modalities)
    return searched, owner
