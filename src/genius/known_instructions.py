"""The instructions that a model was trained with, and queries put into them. Stored with a model as `instructions.json`.

A model was trained with a few wordings for each direction (query modality -> target modality). `KnownInstructions.in_own_words`
replaces another wording by one of them, if it is clear what it asks for (`genius.instructions`). Knows nothing of indexes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from genius.files import read_json, write_json
from genius.instructions import LEXICON, Classify, Instruction, WordClass, WordClasses, all_content, read_instruction
from genius.types import Modality, Query, is_unicode

FILE = "instructions.json"
MAX_BYTES = 1 << 20
MOST = 64  # wordings of a direction; more: training had free instructions, and none may replace another
CACHED = 4096  # readings that are kept
Direction = tuple[Modality, Modality]  # of the query, and of its target


class KnownInstructions:
    """Wordings that a model knows.

    Args:
        wordings: Direction -> its wordings. The first takes the place of wordings that are not known.
        lexicon: Words of each class.

    Examples:
        >>> from genius.types import TEMPLATES
        >>> known = KnownInstructions(TEMPLATES)
        >>> known.in_own_words(Query("a red bicycle", instruction="Snapshots, please.")).instruction
        'Find an image that matches the description.'
    """

    def __init__(self, wordings: Mapping[Direction, Iterable[str]], lexicon: Mapping[WordClass, Sequence[str]] = LEXICON) -> None:
        self.wordings = {direction: tuple(own) for direction, own in wordings.items() if own}
        self._known = {(query, _normalized(text)) for (query, _), own in self.wordings.items() for text in own}
        self._lexicon = lexicon
        self._classes: Classify = all_content
        self._read = lru_cache(CACHED)(self._read_again)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KnownInstructions) and self.wordings == other.wordings

    __hash__ = None  # type: ignore[assignment]

    def read_words_by(self, encode_texts: Callable[[Sequence[str]], Any]) -> None:
        """Let an encoder classify words that no list has; without one they are content.

        Args:
            encode_texts: Of the model's encoder. It reads some 400 words when the first unknown word comes.
        """
        self._classes = WordClasses(encode_texts, self._lexicon)
        self._read.cache_clear()

    def in_own_words(self, query: Query) -> Query:
        """The query with an instruction that the model knows, where its own is another and it is clear what it asks for.

        Content in the instruction (*the same shoe in red*) stays: it follows the model's wording. A target that is given
        counts more than what the instruction says.

        Args:
            query: Any query.
        """
        if query.instruction is None or query.vector is not None:
            return query
        if (query.modality, _normalized(query.instruction)) in self._known:
            return query
        reading = self._read(query.instruction, query.modality)
        target = query.target
        if target is None:
            target = reading.target
        if target is None:
            target = self._only_target(query.modality)
        if target is None:
            return query
        query_modality = query.modality
        if reading.content and query_modality == Modality.IMAGE and (Modality.PAIR, target) in self.wordings:
            query_modality = Modality.PAIR  # an image, and words that say what about it
        own = self.wordings.get((query_modality, target))
        if own is None:
            return query
        instruction = own[0]
        if reading.content:
            instruction = f"{instruction} {reading.content}."
        return replace(query, instruction=instruction)

    def _only_target(self, query: Modality) -> Modality | None:
        """The target that all known wordings of a query modality have; None: there are several, or none."""
        targets = {target for own, target in self.wordings if own == query}
        if len(targets) == 1:
            return targets.pop()
        return None

    def _read_again(self, text: str, query: Modality) -> Instruction:
        return read_instruction(text, query, self._classes, self._lexicon)

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write `instructions.json`; it appears whole or not at all.

        Args:
            folder: Of a model, or of features.
        """
        known = []
        for (query, target), own in self.wordings.items():
            known.append({"query": query.label, "target": target.label, "wordings": list(own)})
        write_json(folder / FILE, {"format": 1, "known": known}, indent=2)

    @classmethod
    def load(cls, folder: Path) -> KnownInstructions | None:
        """The instructions of a folder; None where it has no such file.

        Args:
            folder: Of a model, or of features.

        Raises:
            GeniusError: If the file is invalid.
        """
        path = folder / FILE
        try:
            body = read_json(path, MAX_BYTES)
        except FileNotFoundError:
            return None
        try:
            wordings = {_direction(entry): _texts(entry) for entry in body["known"]}
        except (GeniusError, KeyError, TypeError, ValueError, AttributeError):
            raise GeniusError(f"{path} is invalid: expected wordings by the modalities of query and target") from None
        return cls(wordings)

    @classmethod
    def of(cls, used: Iterable[tuple[str | None, Modality, Modality]]) -> KnownInstructions | None:
        """The instructions of training queries; None if some have none, or there are too many to be a fixed set.

        Args:
            used: Instruction, query modality and target modality of each query.
        """
        found: dict[Direction, dict[str, int]] = {}
        for text, query, target in used:
            if not text:
                return None
            own = found.setdefault((query, target), {})
            own[text] = own.get(text, 0) + 1
            if len(own) > MOST:
                return None
        if not found:
            return None
        return cls({direction: sorted(own, key=lambda text: (-own[text], text)) for direction, own in found.items()})


def _normalized(text: str) -> str:
    """Without capitals, signs and further spaces."""
    return " ".join(re.findall(r"\w+", text.lower()))


def _direction(entry: Mapping[str, Any]) -> Direction:
    return Modality.parse(entry["query"]), Modality.parse(entry["target"])


def _texts(entry: Mapping[str, Any]) -> tuple[str, ...]:
    texts = tuple(entry["wordings"])
    if not texts or len(texts) > MOST or not all(isinstance(text, str) and text.strip() and is_unicode(text) for text in texts):
        raise ValueError
    return texts
