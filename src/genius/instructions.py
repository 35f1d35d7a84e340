"""What an instruction asks for, in any wording, and the instructions that a model was trained with.

A model knows the few wordings of each direction (query modality -> target modality) that it was trained with; another wording
moves its query vector, and the target modality is lost. So an instruction that the model does not know is *read*
(`read_instruction`): its nouns (*photo*, *caption*, *entry*) name the target, unless they refer to the query (*this photo*, *the
caption below*), and the model's own wording takes its place (`KnownInstructions`, stored with a model as `instructions.json`).
Words that say neither how nor what kind are content (*the same shoe in red*: shoe, red) and stay in the query.

A word that is in no list here may be classified by the model's text encoder (`WordClasses`). Knows words and queries; nothing of
models or indexes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.files import read_json, write_json
from genius.types import Modality, Query, format_text, is_unicode

FILE = "instructions.json"
MAX_BYTES = 1 << 20
MOST = 64  # wordings of a direction; more: training had free instructions, and none may replace another
CACHED = 4096  # readings that are kept
Direction = tuple[Modality, Modality]  # of the query, and of its target
IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR
LEAST_LENGTH = 1e-12  # of a vector that is divided by its length


class WordClass(Enum):
    """What a word does in an instruction."""

    IMAGE = "a noun for images"
    TEXT = "a noun for texts"
    ENTRY = "a noun for something with parts"
    CAPTIONED = "with a text, of an image"
    ILLUSTRATED = "with an image, of a text"
    ASK = "asks, or says how an answer relates to the query"
    CHANGE = "says that the answer differs from the query"
    CONTENT = "anything else"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LEXICON: Mapping[WordClass, tuple[str, ...]] = {
    WordClass.IMAGE: _words(
        "image picture photo photograph snapshot snap pic visual illustration drawing painting sketch graphic "
        "artwork screenshot portrait icon symbol thumbnail poster rendering figure jpeg photography imagery "
        "depiction shot"
    ),
    WordClass.TEXT: _words(
        "text description caption passage paragraph sentence article snippet summary explanation blurb wording "
        "note title writeup document words writing prose essay abstract quote headline report review definition "
        "commentary comment section segment phrase excerpt narrative story transcript"
    ),
    WordClass.ENTRY: _words("entry record item result post page card listing profile datasheet pair combination duo"),
    WordClass.CAPTIONED: _words("captioned annotated labelled labeled titled commented"),
    WordClass.ILLUSTRATED: _words("illustrated pictured"),
    WordClass.ASK: _words(
        "find show retrieve look looking get give fetch search searching dig bring pull locate return display list "
        "select identify provide suggest pick track hunt want need would like could can you we i me us please see "
        "tell help asked asking know have has had am is are be was do does did seek seeking obtain discover "
        "present offer browse determine choose fits fit matches match matching suits suit belongs belong "
        "corresponds correspond corresponding relates relate goes go aligns align meets meet describes describe "
        "describing depicts depict depicting shows showing portrays captures capture explains explain explaining "
        "represents illustrates answers answer answering talks talking clarifies says say same similar alike "
        "resembling resembles identical right best correct suitable fitting appropriate good most closest nearest "
        "relevant proper related exact other further more thing things something one ones kind sort anything "
        "everything subject object product goods model line use using based here there now just only also both each "
        "together along asks ask "
        "let wanted needed question questions love make put written read stands stand evidence made combined "
        "accompanied following described given provided means meaning said reply replies drawn reference shown "
        "displayed attached above below uploaded submitted query input including containing alongside beside next "
        "got topic keyword term short brief nice full detailed couple few several many number comes come appears "
        "appear called name named summarise summarize anyone someone everyone lets try check quick quickly included "
        "according accordingly took saw known turn convert transform translate"
    ),
    WordClass.CHANGE: _words(
        "change changes changed different difference edit edits edited modification modifications modified altered "
        "alter altering alteration variation variant vary version revise revised adapt adapted adjust adjusted modify tweak "
        "tweaked amend amended update updated replace replaced swap swapped instructions instruction"
    ),
}
CLASS_OF_WORD = {word: name for name, own in LEXICON.items() for word in own}
FUNCTION_WORDS = frozenset(
    _words(
        "a an the this these that those my your his her its their our it they them he she some any another which "
        "what who whose whom where when how why of for in on at by to from into onto about over under with without "
        "within and or plus but not no as than then so if all every behind after before near around against will "
        "shall should may might must been being up down out off through during per via regarding concerning upon "
        "between s t m re ve d ll"
    )
)
DEMONSTRATIVES = frozenset(_words("this these those my your"))
GIVEN = frozenset(
    _words("given provided following reference shown displayed attached above below uploaded submitted query input described")
)
OF_THE_QUERY = frozenset(_words("about of at in on to from like describe explain answer read"))  # before *the image*
INDEFINITE = frozenset(_words("a an another some any which what its their one more other all every each no same"))
JOINS = frozenset(
    _words("and with plus including containing alongside beside accompanied combined has having together along next")
)
PHRASES = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"\b(?:go|goes|going|went|agrees?|aligns?|belongs?|corresponds?|deals?|fits?|match(?:es)?) with\b", "matches"),
        # what the query is: *I've got the photo, show me ...*
        (r"\b(i|we)(?: have|'ve)?(?: only| just| already)? (?:have|got|took|made|saw|know) (?:an?|the|its)\b", r"\1 have this"),
        # a clause in place of a noun: *with whatever is written on it*, *and what it is called*, *what it looks like*
        (
            r"\b(and|plus|with|including|alongside) what(?:ever)?(?: \w+){1,2} (?:written|said|says?|called|named)\b",
            r"\1 a text",
        ),
        (r"(?<!\btell me )(?<!\bdescribe )(?<!\bexplain )\bwhat (?:it|that|this|they|these) looks? like\b", "a picture"),
        # *name* as a noun
        (r"\b(an?|the|its|their|this|proper|official|full|right|correct|brand|product|item) name(s?)\b", r"\1 title\2"),
    )
)
TELLS = frozenset(  # what is asked of an image: *what has been written about this photo?*
    _words(
        "written tell tells describe describes described explain explains say says said call called name named read answers "
        "summarise summarize means"
    )
)
SHOWS = frozenset(_words("show shows shown showing"))  # *show me* asks for anything
SEES_ALONE = frozenset(_words("see seen look looks looking view watch visualise visualize illustrate illustrates depict depicts"))
SEES = SEES_ALONE | SHOWS
SAYS = frozenset(_words("says said describes describe mentions asks tells states wants"))  # after *the text*: of the query
COMPARES = frozenset(_words("match matches pair pairs compare fit align combine"))  # *match this with a text*
RESEMBLES = frozenset(_words("more similar alike another other others resembling resembles like same"))
EXCLUDES = frozenset(_words("not no without never"))
LOOSE_ENTRIES = frozenset(_words("item result combination duo pair"))  # they may be of one modality
PARTS = frozenset(_words("pair combination duo"))
CONTENT_WORDS = _words(  # examples, for the words that an encoder classifies
    "shoe shirt bag bicycle car house dog cat tree chair table watch cup boat hat dress lamp bird red blue "
    "green black white yellow dark bright small large old new striped round wood leather cotton metal glass "
    "silk wool stone child woman man wheel roof handle flower beach kitchen garden collar zip river mountain "
    "sport running summer winter party office school music food water sky street night morning game phone "
    "computer book horse train plane city country happy sad fast slow hot cold money law science history war "
    "peace health doctor brand size price cheap sale men women boys girls formal casual vintage heel sleeve "
    "neck logo pattern plain navy grey pink purple orange brown gold silver"
)
LIKE_ENOUGH = 0.5  # cosine from which a word has the class of the most similar known one; chosen with each known word left out


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction as it was understood.

    Args:
        target: The modality that it names; None: it names none.
        content: What is left of it: words that say neither how nor what kind; empty: none.
    """

    target: Modality | None
    content: str = ""


SURE = 2


@dataclass(slots=True)
class _Noun:
    place: int  # among the words
    modality: Modality
    reference: int  # 0: what is wanted, 1: perhaps the query (*the photo*), `SURE`: the query (*this photo*)


Classify = Callable[[Sequence[str]], Sequence[WordClass]]
"""Classes of words that the lexicon does not have."""


def all_content(words: Sequence[str]) -> list[WordClass]:
    """The classes of unknown words where nothing is known about them: content."""
    return [WordClass.CONTENT] * len(words)


def read_instruction(text: str, query: Modality, classify: Classify = all_content) -> Instruction:
    """What an instruction asks for.

    Args:
        text: The instruction.
        query: What the query consists of: an instruction may refer to its image or its text.
        classify: Classes of words that are not in the lexicon.

    Examples:
        >>> read_instruction("Which photos show the same shoe in red?", Modality.IMAGE)
        Instruction(target=<Modality.IMAGE: 0>, content='shoe in red')
        >>> read_instruction("Words for this picture, please.", Modality.IMAGE).target.label
        'text'
    """
    lowered = text.lower()
    for phrase, plainer in PHRASES:
        lowered = phrase.sub(plainer, lowered)
    whole = re.sub(r"\w+(?:-\w+)+", lambda match: _whole(match[0]), lowered)
    words = re.findall(r"[^\W\d_]+|[.,;:?!]", whole)
    classes = _classes(words, classify)
    nouns = [noun for noun in _nouns(words, classes, query) if not _excluded(words, noun.place)]
    target = _target(words, classes, nouns, query)
    return Instruction(target, _content(text, classes, words))


def _whole(word: str) -> str:
    """A word with hyphens in one piece, if that is a known word: *write-up*."""
    joined = word.replace("-", "")
    if any(form in CLASS_OF_WORD for form in _forms(joined)):
        return joined
    return word


def _classes(words: Sequence[str], classify: Classify) -> list[WordClass | None]:
    """The class of each word; None: a function word or a sign."""
    out: list[WordClass | None] = []
    unknown = []
    for place, word in enumerate(words):
        if not word.isalpha():
            out.append(None)
            continue
        found = next((CLASS_OF_WORD[form] for form in _forms(word) if form in CLASS_OF_WORD), None)
        out.append(found)
        if found is None and word not in FUNCTION_WORDS:
            unknown.append(place)
    for place, found in zip(unknown, classify([words[place] for place in unknown]), strict=True):
        out[place] = found
    return out


def _forms(word: str) -> list[str]:
    """A word and what may be its singular."""
    forms = [word]
    if word.endswith("ies"):
        forms.append(word[:-3] + "y")
    if word.endswith("s"):
        forms.append(word[:-1])
    return forms


MODALITY_OF = {WordClass.IMAGE: IMAGE, WordClass.TEXT: TEXT}
PAIRED_ENTRIES = {  # *an illustrated page*, *an annotated version*
    (first, second) for first in (WordClass.ILLUSTRATED, WordClass.CAPTIONED) for second in (WordClass.ENTRY, WordClass.CHANGE)
}
PAIRED = {(WordClass.CAPTIONED, IMAGE), (WordClass.ILLUSTRATED, TEXT)}  # *a captioned photo*, *an illustrated text*


def _nouns(words: Sequence[str], classes: Sequence[WordClass | None], query: Modality) -> list[_Noun]:
    """Nouns for images and texts, and how surely each refers to the query."""
    out = []
    for place, found in enumerate(classes):
        if found not in MODALITY_OF:
            continue
        following = next(iter(classes[place + 1 : place + 2]), None)
        paired = any(form in PARTS for word in words[place + 1 : place + 3] for form in _forms(word))
        if following in MODALITY_OF and not paired:  # *image caption*, *visual description*: the second noun counts
            continue
        modality = MODALITY_OF[found]
        reference = 0
        if query in (modality, PAIR):
            reference = _reference(words, place)
        out.append(_Noun(place, modality, reference))
    return out


def _reference(words: Sequence[str], place: int) -> int:
    """How surely a noun refers to the query, by the words around it."""
    definite = 0
    for before in range(place - 1, max(place - 6, -1), -1):
        word = words[before]
        if word in DEMONSTRATIVES or word in GIVEN:
            return SURE
        if word == "the":
            definite = 1
            if before and words[before - 1] in GIVEN | OF_THE_QUERY:  # *given the image*, *about the image*
                return SURE
            if place + 1 < len(words) and words[place + 1] in SAYS:  # *as the text says*
                return SURE
            break
        if word in INDEFINITE or word in FUNCTION_WORDS or not word.isalpha():
            break
    return definite


def _excluded(words: Sequence[str], place: int) -> bool:
    """Whether a noun is what is not wanted: *no words*, *not a text*."""
    return any(word in EXCLUDES for word in words[max(place - 2, 0) : place])


def _target(
    words: Sequence[str], classes: Sequence[WordClass | None], nouns: Sequence[_Noun], query: Modality
) -> Modality | None:
    """The modality that nouns name together, or else verbs."""
    for noun in nouns:
        if noun.place and (classes[noun.place - 1], noun.modality) in PAIRED:
            return PAIR
        if noun.reference < SURE and _is_a_part(words, noun.place):
            return PAIR
    if not PAIRED_ENTRIES.isdisjoint(pairwise(classes)) or _wants_entry(words, classes, nouns):
        return PAIR
    if not nouns:
        return _by_verbs(words, classes, query)
    surest = min(noun.reference for noun in nouns)
    if surest == SURE and query == PAIR and WordClass.CHANGE in classes:  # *alter this according to the note*
        return IMAGE
    first = next(noun for noun in nouns if noun.reference == surest)
    if surest == SURE and first.modality == IMAGE and not TELLS.isdisjoint(words[: first.place]):
        return TEXT
    if surest == SURE and first.modality == TEXT and query == TEXT and not SEES_ALONE.isdisjoint(words[: first.place]):
        return IMAGE
    if surest == SURE and WordClass.CONTENT in classes[: first.place]:  # *the gist of this photo*: a word that no one knows
        return None
    for one, other in pairwise(nouns):
        if one.modality == other.modality or not _joined(words, one.place, other.place):
            continue
        if one is first and other.reference < SURE:  # *a photo and the text*
            return PAIR
        if other is first and not _depends(words, one.place):  # *this photo with its text*
            return PAIR
    return first.modality


def _wants_entry(words: Sequence[str], classes: Sequence[WordClass | None], nouns: Sequence[_Noun]) -> bool:
    """Whether something with parts is wanted: *entries with a picture*, *the page that this photo is from*.

    It is the first noun that may be wanted; and parts are named, or shown and described.
    """
    wanted = [noun.place for noun in nouns if noun.reference < SURE]
    place = next((at for at, found in enumerate(classes) if found is WordClass.ENTRY), None)
    if place is None or any(other < place for other in wanted):
        return False
    if not LOOSE_ENTRIES.isdisjoint(_forms(words[place])):
        return any(_joined(words, place, other) for other in wanted)
    shown_and_described = not SEES.isdisjoint(words[place:]) and not TELLS.isdisjoint(words[place:])
    return bool(nouns) or shown_and_described


def _is_a_part(words: Sequence[str], place: int) -> bool:
    """Whether a noun is a part of what is wanted, whatever that is.

    *With its picture*, *this with a picture*, *photo included*, *photo and all*.
    """
    if tuple(words[place + 1 : place + 3]) == ("and", "all") or words[place + 1 : place + 2] == ["included"]:
        return True
    if place < 2 or words[place - 2] not in JOINS:
        return False
    if words[place - 1] in ("its", "their"):
        return True
    compared = place > 3 and words[place - 4] in COMPARES
    return place > 2 and words[place - 3] == "this" and words[place - 1] in ("a", "an", "the") and not compared


def _by_verbs(words: Sequence[str], classes: Sequence[WordClass | None], query: Modality) -> Modality | None:
    """The target of an instruction without a noun for one: *what is this called?*, *can I see it?*, *more like this*."""
    if query == PAIR and WordClass.CHANGE in classes:  # of an image, as a text says
        return IMAGE
    if not TELLS.isdisjoint(words) and query != TEXT:
        return TEXT
    identify = query == IMAGE and tuple(words[:1]) in (("what",), ("who",))
    if identify and RESEMBLES.isdisjoint(words) and WordClass.CONTENT not in classes:
        return TEXT  # *what is this?*
    if not SEES_ALONE.isdisjoint(words) and query != IMAGE:
        return IMAGE
    if not RESEMBLES.isdisjoint(words) and query != PAIR and WordClass.CONTENT not in classes:
        return query
    return None


def _depends(words: Sequence[str], place: int) -> bool:
    """Whether a noun belongs to another word before it: *about the photo*, *describe the photo*."""
    return any(word in OF_THE_QUERY for word in words[max(place - 4, 0) : place])


def _joined(words: Sequence[str], one: int, other: int) -> bool:
    """Whether two nouns are joined: *a photo with its caption*, *image and text*, *an image-text pair*."""
    between = words[one + 1 : other]
    if not between:
        return True
    return any(word in JOINS for word in between[:2])  # *and*, *comes with*


def _content(text: str, classes: Sequence[WordClass | None], words: Sequence[str]) -> str:
    """The part of an instruction from its first to its last content word, as it was written."""
    content = [word for word, found in zip(words, classes, strict=True) if found is WordClass.CONTENT]
    if not content:
        return ""
    places = [match for match in re.finditer(r"[^\W\d_]+", text) if match[0].lower() in content]
    if not places:
        return ""
    return text[places[0].start() : places[-1].end()]


class WordClasses:
    """Classes of words that the lexicon does not have: that of the most similar word it has, by a text encoder.

    Args:
        encode: Texts -> (n, D) vectors, an array or a tensor.
    """

    def __init__(self, encode: Callable[[Sequence[str]], Any]) -> None:
        self._encode = encode
        self._examples = [*CLASS_OF_WORD.items(), *((word, WordClass.CONTENT) for word in CONTENT_WORDS)]
        self._vectors: NDArray[np.float32] | None = None  # encoded when the first unknown word comes

    def __call__(self, words: Sequence[str]) -> list[WordClass]:
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
            found = WordClass.CONTENT
            if similarities[row, nearest] >= LIKE_ENOUGH:
                found = self._examples[nearest][1]
            out.append(found)
        return out

    def _unit_vectors(self, words: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.asarray(self._encode([format_text(word) for word in words]), np.float32)
        unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), LEAST_LENGTH)
        return unit


# -- the instructions of a model -------------------------------------------------------------------------------------


class KnownInstructions:
    """Wordings that a model knows.

    Args:
        wordings: Direction -> its wordings. The first takes the place of wordings that are not known.

    Examples:
        >>> from genius.types import TEMPLATES
        >>> known = KnownInstructions(TEMPLATES)
        >>> known.in_own_words(Query("a red bicycle", instruction="Snapshots, please.")).instruction
        'Find an image that matches the description.'
    """

    def __init__(self, wordings: Mapping[Direction, Iterable[str]]) -> None:
        self.wordings = {direction: tuple(own) for direction, own in wordings.items() if own}
        self._known = {(query, _normalized(text)) for (query, _), own in self.wordings.items() for text in own}
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
        self._classes = WordClasses(encode_texts)
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
        return read_instruction(text, query, self._classes)

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
