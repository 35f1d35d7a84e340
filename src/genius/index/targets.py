"""What a target means to people: an image is anything with a picture, a text anything with words, a pair has both.

A question for several kinds is asked once for each that the index holds, in the words of that kind, and the answers are put
together. Knows queries and hits; nothing of how they are found.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from genius.errors import GeniusError
from genius.index.results import Hits
from genius.types import Modality, Query

MEANT = {
    Modality.IMAGE: (Modality.IMAGE, Modality.PAIR),
    Modality.TEXT: (Modality.TEXT, Modality.PAIR),
    Modality.PAIR: (Modality.PAIR,),
}


def wanted_kind(target: Modality | str | int | None, modality: Modality | str | int | None) -> Modality | None:
    """What is looked for: `target` as people mean it, or exactly a `modality`; one of them says it, or neither."""
    if target is not None and modality is not None:
        raise GeniusError("target and modality both say what is wanted: use one of them")
    wanted = modality if target is None else target
    return None if wanted is None else Modality.parse(wanted)


def spread(queries: Sequence[Query], there: Collection[Modality]) -> tuple[list[Query], list[int]]:
    """One query for each kind that is wanted and there, and which of `queries` each belongs to; `there`: kinds in the index."""
    asked, owner = [], []
    for number, query in enumerate(queries):
        kinds: Sequence[Modality | None] = [None]
        if query.target is not None:
            kinds = [kind for kind in MEANT[query.target] if kind in there] or [query.target]
        asked += [replace(query, target=kind) for kind in kinds]
        owner += [number] * len(kinds)
    return asked, owner


def gather(answers: Sequence[Hits], owner: Sequence[int], k: int) -> list[Hits]:
    """The hits of the queries that `spread` was given, best first."""
    parts: list[list[Hits]] = [[] for _ in range(max(owner, default=-1) + 1)]
    for hits, number in zip(answers, owner, strict=True):
        parts[number].append(hits)
    return [_together(own, k) if len(own) > 1 else own[0] for own in parts]


def _together(parts: Sequence[Hits], k: int) -> Hits:
    whole = Hits(sorted((hit for hits in parts for hit in hits), key=lambda hit: -hit.score)[:k])
    sure = [hits.answerable for hits in parts if hits.answerable is not None]
    whole.answerable = max(sure, default=None)  # there is an answer if there is one of either kind
    return whole


def why_nothing(asked: str | None, strict: bool, counts: dict[str, int], where: str | None, min_score: float | None) -> str:
    """Why a search found nothing, and what to do. `counts`: items of the index by kind; `asked`: the wanted kind."""
    held = ", ".join(f"{count:,} {kind}{'s' if count != 1 else ''}" for kind, count in counts.items() if count)
    if not held:
        return "nothing found: the index is empty; add files with genius index"
    if where is not None:
        wanted = f" of what is wanted ({asked})" if asked else ""
        return f"nothing found: nothing{wanted} matches the condition {where!r}; search without it, or change it"
    if min_score is not None:
        return f"nothing found: no answer scores {min_score:g} or more; lower the score, or leave it out"
    if asked is not None:
        kinds = (Modality.parse(asked),) if strict else MEANT[Modality.parse(asked)]
        if not any(counts.get(kind.label) for kind in kinds):
            wanted = {"image": "a picture", "text": "words", "pair": "a picture and words"}[Modality.parse(asked).label]
            what = f"is of the kind {asked}" if strict else f"has {wanted}"
            return f"nothing found: no item {what}, there are {held}; leave the target out to look for anything"
    return f"nothing found among {held}"
