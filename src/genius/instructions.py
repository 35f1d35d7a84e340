"""What an instruction asks for, in any wording, and the instructions that a model was trained with.

A model knows the few wordings of each direction (query modality -> target modality) that it was trained with; another wording
moves its query vector, and the target modality is lost. So an instruction that the model does not know is *read*
(`read_instruction`), and the model's own wording of what it asks for takes its place (`KnownInstructions`, stored with a model as
`instructions.json`).

Reading has two steps. Words get classes (*photo*: image, *blurb*: text, *this*, *fits*) from `bundled/instructions/words.json`;
slips of the pen are forgiven, and a word that is not listed gets the class of the most similar one by the model's own text
encoder, or is content. A small convolutional network over the classes, trained on sentences of a grammar
(`lab.wordings`), says which modality is wanted. Content (*the same shoe in red*: shoe, red) stays in the query. Knows words and
queries; nothing of models or indexes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from genius.errors import GeniusError
from genius.files import read_json, write_json
from genius.types import Modality, Query, format_text, is_unicode

FILE = "instructions.json"
MAX_BYTES = 1 << 20
MOST = 64  # wordings of a direction; more: training had free instructions, and none may replace another
CACHED = 4096  # readings that are kept
Direction = tuple[Modality, Modality]  # of the query, and of its target
Floats = NDArray[np.float32]
LEAST_LENGTH = 1e-12  # of a vector that is divided by its length

MODEL = Path(__file__).parent / "bundled" / "instructions" / "reader.safetensors"
WORDS: Mapping[str, tuple[str, ...]] = {  # class -> its words
    name: tuple(words.split()) for name, words in json.loads(MODEL.with_name("words.json").read_text(encoding="utf-8")).items()
}
CONTENT, SIGN = "content", "sign"
CLASSES = (*WORDS, SIGN)
NOUNS = frozenset(("image", "text", "entry", "captioned", "illustrated"))  # their words are known with a letter wrong
OPEN = (  # classes that an unlisted word may have
    *("image", "text", "entry", "item", "parts", "captioned", "illustrated", "change", "find", "show", "see", "tell"),
    *("fit", "answer", "question", "same", "adjective", CONTENT),
)
TARGETS = (Modality.IMAGE, Modality.TEXT, Modality.PAIR, None)  # as the network's outputs are ordered
LONGEST = 48  # words that are read
SPAN = 5  # words that a convolution sees
SPELLED_WRONG = 6  # letters from which such a word may have one wrong
LIKE_ENOUGH = 0.5  # cosine from which a word has the class of the most similar listed one; chosen with listed words left out
TOKENS = re.compile(r"[^\W\d_]+|[.,:;?!&+]")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction as it was understood.

    Args:
        target: The modality that it asks for; None: it names none.
        content: What is left of it: words that say neither how nor what kind; empty: none.
    """

    target: Modality | None
    content: str = ""


Classify = Callable[[Sequence[str]], Sequence[str]]
"""Classes of words that are not listed."""


def all_content(words: Sequence[str]) -> list[str]:
    """The classes of unknown words where nothing is known about them: content."""
    return [CONTENT] * len(words)


def read_instruction(
    text: str, query: Modality, classify: Classify = all_content, listed: Mapping[str, Sequence[str]] = WORDS
) -> Instruction:
    """What an instruction asks for.

    Args:
        text: The instruction.
        query: What the query consists of: an instruction may refer to its image or its text.
        classify: Classes of words that are not listed.
        listed: Words of each class.

    Examples:
        >>> read_instruction("Which photos show the same shoe in red?", Modality.IMAGE)
        Instruction(target=<Modality.IMAGE: 0>, content='shoe in red')
        >>> read_instruction("Words for this picture, please.", Modality.IMAGE).target.label
        'text'
    """
    known = {word: name for name, own in listed.items() for word in own}
    joined = re.sub(r"\w+(?:-\w+)+", lambda match: _whole(match[0], known), text.lower().replace("w/", "with "))
    words = TOKENS.findall(joined)[:LONGEST]
    classes = word_classes(words, known, classify)
    target = TARGETS[int(np.argmax(_network().logits(classes, query)))]
    return Instruction(target, _content(text, classes, words))


def _whole(word: str, known: Mapping[str, str]) -> str:
    """A word with hyphens in one piece, if that is a known word: *write-up*."""
    joined = word.replace("-", "")
    if any(form in known for form in _forms(joined)):
        return joined
    return word


def word_classes(words: Sequence[str], known: Mapping[str, str], classify: Classify) -> list[str]:
    """The class of each word.

    Args:
        words: In lower case, and signs.
        known: Word -> class.
        classify: Classes of words that are not known.
    """
    out = [_class_of(word, known) for word in words]
    unknown = [place for place, found in enumerate(out) if not found]
    for place, found in zip(unknown, classify([words[place] for place in unknown]), strict=True):
        out[place] = found
    return out


def _class_of(word: str, known: Mapping[str, str]) -> str:
    """The class of a word, of its singular, or of the known word that it is with a letter wrong; empty: none."""
    for form in _forms(word):
        if form in known:
            return known[form]
    if not word.isalpha():
        return SIGN
    for corrected in _exchanged(word):
        if corrected in known:
            return known[corrected]
    if len(word) >= SPELLED_WRONG:
        for corrected in _one_letter_off(word.removesuffix("s")):
            if known.get(corrected) in NOUNS:
                return known[corrected]
    return ""


def _forms(word: str) -> list[str]:
    """A word and what may be its singular."""
    forms = [word]
    if word.endswith("ies"):
        forms.append(word[:-3] + "y")
    if word.endswith("es"):
        forms.append(word[:-2])
    if word.endswith("s"):
        forms.append(word[:-1])
    return forms


def _exchanged(word: str) -> Iterable[str]:
    """Words with two neighbouring letters exchanged: *teh*."""
    for at in range(len(word) - 1):
        yield word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def _one_letter_off(word: str) -> Iterable[str]:
    """Words with a letter more, less or other, beyond the first."""
    for at in range(1, len(word) + 1):
        before, after = word[:at], word[at:]
        yield before + after[1:]
        for letter in "abcdefghijklmnopqrstuvwxyz":
            yield before + letter + after
            yield before + letter + after[1:]


def _content(text: str, classes: Sequence[str], words: Sequence[str]) -> str:
    """The part of an instruction from its first to its last content word, as it was written."""
    content = {words[place] for place, found in enumerate(classes) if found == CONTENT and not _is_verb(classes, place)}
    places = [match for match in re.finditer(r"[^\W\d_]+", text) if match[0].lower() in content]
    if not places:
        return ""
    return text[places[0].start() : places[-1].end()]


def _is_verb(classes: Sequence[str], place: int) -> bool:
    """Whether an unknown word says what to do: *unearth the photo*."""
    begins = all(found in ("filler", "person", "aux") for found in classes[:place])
    return begins and any(found in ("the", "a", "this", "person", "its") for found in classes[place + 1 : place + 2])


class _Network:
    """Two convolutions over classes of words, their maximum and mean, and a hidden layer."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
        self.numbers = {name: place + 1 for place, name in enumerate(CLASSES)}

    def logits(self, classes: Sequence[str], query: Modality) -> Floats:
        """(4,) of `TARGETS`."""
        x = self.arrays["embedding_weight"][[self.numbers[name] for name in classes] or [0]]  # (L, D)
        x = np.maximum(self._linear("first", _windows(x)) + self.arrays["query_weight"][int(query)], 0)
        x = np.maximum(self._linear("second", _windows(x)), 0)
        pooled = np.concatenate([x.max(0), x.mean(0)])
        return self._linear("out", np.maximum(self._linear("hidden", pooled), 0))

    def _linear(self, name: str, x: Floats) -> Floats:
        out: Floats = x @ self.arrays[f"{name}_weight"].T + self.arrays[f"{name}_bias"]
        return out


@cache
def _network() -> _Network:
    return _Network(load_file(MODEL))


def _windows(x: Floats) -> Floats:
    """(L, D) -> (L, SPAN * D): each place with its neighbours."""
    padded = np.pad(x, ((SPAN // 2, SPAN // 2), (0, 0)))
    return np.concatenate([padded[at : at + len(x)] for at in range(SPAN)], 1)


class WordClasses:
    """Classes of words that are not listed: that of the most similar listed word, by a text encoder.

    Args:
        encode: Texts -> (n, D) vectors, an array or a tensor.
        listed: Words of each class.
    """

    def __init__(self, encode: Callable[[Sequence[str]], Any], listed: Mapping[str, Sequence[str]] = WORDS) -> None:
        self._encode = encode
        self._examples = [(word, name) for name in OPEN for word in listed[name]]
        self._vectors: Floats | None = None  # encoded when the first unknown word comes

    def __call__(self, words: Sequence[str]) -> list[str]:
        """The class of each word.

        Args:
            words: In lower case.
        """
        if not words:
            return []
        if self._vectors is None:
            self._vectors = self._unit_vectors([word for word, _ in self._examples])
        similarities = self._unit_vectors(words) @ self._vectors.T
        out = []
        for row, nearest in enumerate(similarities.argmax(1).tolist()):
            found = CONTENT
            if similarities[row, nearest] >= LIKE_ENOUGH:
                found = self._examples[nearest][1]
            out.append(found)
        return out

    def _unit_vectors(self, words: Sequence[str]) -> Floats:
        vectors = np.asarray(self._encode([format_text(word) for word in words]), np.float32)
        unit: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), LEAST_LENGTH)
        return unit


# -- the instructions of a model -------------------------------------------------------------------------------------


class KnownInstructions:
    """Wordings that a model knows.

    Args:
        wordings: Direction -> its wordings. The first takes the place of wordings that are not known.
        listed: Words of each class.

    Examples:
        >>> from genius.types import TEMPLATES
        >>> known = KnownInstructions(TEMPLATES)
        >>> known.in_own_words(Query("a red bicycle", instruction="Snapshots, please.")).instruction
        'Find an image that matches the description.'
    """

    def __init__(self, wordings: Mapping[Direction, Iterable[str]], listed: Mapping[str, Sequence[str]] = WORDS) -> None:
        self.wordings = {direction: tuple(own) for direction, own in wordings.items() if own}
        self._known = {(query, _normalized(text)) for (query, _), own in self.wordings.items() for text in own}
        self._listed = listed
        self._classes: Classify = all_content
        self._read = lru_cache(CACHED)(self._read_again)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KnownInstructions) and self.wordings == other.wordings

    __hash__ = None  # type: ignore[assignment]

    def read_words_by(self, encode_texts: Callable[[Sequence[str]], Any]) -> None:
        """Let an encoder classify words that no list has; without one they are content.

        Args:
            encode_texts: Of the model's encoder. It reads some 700 words when the first unknown word comes.
        """
        self._classes = WordClasses(encode_texts, self._listed)
        self._read.cache_clear()

    def in_own_words(self, query: Query) -> Query:
        """The query with an instruction that the model knows, where its own is another and it is clear what it asks for.

        Content in the instruction (*the same shoe in red*) stays: it follows the model's wording; beside an image only if the
        model knows images with words for this target. A target that is given
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
        content = reading.content
        query_modality = query.modality
        if content and query_modality == Modality.IMAGE:
            if (Modality.PAIR, target) in self.wordings:
                query_modality = Modality.PAIR  # an image, and words that say what about it
            else:
                content = ""  # training had no words about an image for this target, and they would move the query vector
        own = self.wordings.get((query_modality, target))
        if own is None:
            return query
        instruction = own[0]
        if content:
            instruction = f"{instruction} {content}."
        return replace(query, instruction=instruction)

    def _only_target(self, query: Modality) -> Modality | None:
        """The target that all known wordings of a query modality have; None: there are several, or none."""
        targets = {target for own, target in self.wordings if own == query}
        if len(targets) == 1:
            return targets.pop()
        return None

    def _read_again(self, text: str, query: Modality) -> Instruction:
        return read_instruction(text, query, self._classes, self._listed)

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
