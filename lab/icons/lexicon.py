"""Dictionaries: WordNet, GCIDE and the Moby thesaurus, and the masking of headwords.

Readers of the files as Debian and npm ship them. Knows nothing of icons.
"""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MASK = "___"
_CONCRETE = {  # animal artifact body food place object person phenomenon plant substance
    5, 6, 8, 13, 15, 17, 18, 19, 20, 27,
}  # fmt: skip
_POS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
_B64 = {c: i for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}
_STOP = frozenset([
    "a", "an", "and", "any", "are", "as", "at", "be", "by", "for", "from", "has", "in", "into", "is", "it", "its", "of",
    "on", "or", "one", "some", "that", "the", "their", "to", "used", "usually", "which", "who", "with", "without",
    "not", "than", "especially", "etc", "more", "other", "such", "having", "being", "made",
])  # fmt: skip


@dataclass(slots=True)
class Synset:
    lemmas: tuple[str, ...]
    gloss: str
    concrete: bool
    pos: str


@dataclass(slots=True)
class Lexicon:
    synsets: dict[str, Synset] = field(default_factory=dict)  # "n00001740" -> synset
    senses: dict[str, list[str]] = field(default_factory=dict)  # lemma -> synset ids, nouns first, in sense order
    definitions: dict[str, list[str]] = field(default_factory=dict)  # GCIDE headword -> its definitions
    thesaurus: dict[str, tuple[str, ...]] = field(default_factory=dict)  # Moby root -> words
    _cache: dict[str, set[str]] = field(default_factory=dict)

    def sense(self, phrase: str, hints: Iterable[str] = ()) -> str | None:
        """The sense an icon of that name most likely shows, or None when that is a guess.

        Words people tag the icon with choose between senses (Lesk); without them an early concrete noun sense wins.
        """
        ids = self.senses.get(phrase) or self.senses.get(_singular(phrase)) or []
        ids = [i for i in ids if not re.search(r"\d{4}", self.synsets[i].gloss)]  # people and events of history
        if len(ids) <= 1:
            return ids[0] if ids else None
        wanted = {stem(w) for h in hints for w in re.findall(r"[a-zA-Z]{3,}", h)} - content_stems(phrase)
        best, top = None, 0.0
        for rank, i in enumerate(ids[:9]):
            found = self.synsets[i]
            words = content_stems(found.gloss) | {stem(w) for lemma in found.lemmas for w in lemma.split()}
            score = 2.0 * min(len(wanted & words), 2) + 1.5 * found.concrete + 0.5 * (found.pos == "n") - 0.4 * rank
            if score > top:
                best, top = i, score
        return best if top >= 1.0 else None

    def paraphrases(self, tag: str, context: frozenset[str], topic: str) -> tuple[list[str], str]:
        """(synonyms, gloss) of a tag in the sense that its icon means; nothing where no sense touches the context.

        `context` holds the stems of names and tags. "Extinguish" on a fire extinguisher gives "snuff out" and
        "put out, as of fires, flames, or lights", because that gloss speaks of fire.
        """
        mine = {stem(w) for w in tag.split()}
        best, top = None, 1  # one shared word happens by chance
        for i in self.senses.get(tag, ())[:5]:
            shared = len((self._stems(i) & context) - mine)
            if shared > top:
                best, top = i, shared
        if best is None:
            return [], ""
        found = self.synsets[best]
        return [w for w in found.lemmas if w not in (tag, topic)], found.gloss if 3 <= len(found.gloss.split()) <= 24 else ""

    def _stems(self, sense: str) -> set[str]:
        if sense not in self._cache:
            self._cache[sense] = content_stems(self.synsets[sense].gloss)
        return self._cache[sense]

    def only_sense(self, phrase: str) -> str | None:
        ids = self.senses.get(phrase, [])
        return ids[0] if len(ids) == 1 else None

    def definition(self, phrase: str, gloss: str) -> str | None:
        """A GCIDE definition of the same sense as `gloss`: the one sharing most content words, at least one."""
        best, score = None, 0
        wanted = content_stems(gloss)
        for text in self.definitions.get(phrase, [])[:6]:
            shared = len(wanted & content_stems(text))
            if shared > score:
                best, score = text, shared
        return best

    def near_words(self, phrase: str, sense: str, limit: int) -> list[str]:
        """Thesaurus words close to one sense of `phrase`.

        The lists mix senses: a word stays when one of its own glosses shares a content word with the gloss meant.
        """
        wanted = content_stems(self.synsets[sense].gloss) | content_stems(phrase)
        scored = []
        for word in self.thesaurus.get(phrase, ()):
            if word == phrase or len(word.split()) > 3:
                continue
            shared = max((len(wanted & content_stems(self.synsets[i].gloss)) for i in self.senses.get(word, ())[:2]), default=0)
            if shared >= 1:
                scored.append((-shared, word))
        return [w for _, w in sorted(set(scored))[:limit]]


def _singular(phrase: str) -> str:
    return phrase[:-1] if phrase.endswith("s") and not phrase.endswith("ss") else phrase


def stem(word: str) -> str:
    word = word.lower()
    for end in ("ations", "ation", "ingly", "ings", "ing", "edly", "ers", "ies", "ed", "er", "es", "ly", "s", "y", "e"):
        if word.endswith(end) and len(word) - len(end) >= 3:
            return word[: -len(end)]
    return word


def content_stems(text: str) -> set[str]:
    return {stem(w) for w in re.findall(r"[a-zA-Z]{3,}", text) if w.lower() not in _STOP}


def mask(text: str, phrases: list[str] | tuple[str, ...]) -> str:
    """Hides every word of `phrases` and its inflections, so that the headword cannot give the answer away."""
    heads = {w.lower() for p in phrases for w in re.findall(r"[a-zA-Z]{2,}", p) if w.lower() not in _STOP}
    stems = {stem(w) for w in heads}

    def hide(match: re.Match[str]) -> str:
        word = match.group(0).lower()
        return MASK if stem(word) in stems or any(_akin(word, h) for h in heads) else match.group(0)

    hidden = re.sub(r"[A-Za-z]{2,}", hide, text)
    return re.sub(rf"{MASK}(?:[\s-]+{MASK})+", MASK, hidden)


def _akin(a: str, b: str) -> bool:
    """Derived from one another: a long common beginning ("sorriness", "sorry")."""
    short, long = sorted((len(a), len(b)))
    common = next((k for k in range(short) if a[k] != b[k]), short)
    return common >= max(4, short - 1) or (common >= 6 and common >= 0.6 * long)


def read_wordnet(folder: Path) -> tuple[dict[str, Synset], dict[str, list[str]]]:
    synsets: dict[str, Synset] = {}
    senses: dict[str, list[str]] = defaultdict(list)
    for name, tag in _POS.items():
        for line in (folder / f"data.{name}").read_text("latin-1").splitlines():
            if line.startswith("  "):
                continue
            left, _, right = line.partition(" | ")
            parts = left.split(" ")
            count = int(parts[3], 16)
            lemmas = tuple(re.sub(r"\(\w+\)$", "", parts[4 + 2 * i]).replace("_", " ").lower() for i in range(count))
            gloss = re.split(r'; "|; \(?as in|\s*"', right.strip(), maxsplit=1)[0].strip(" ;")
            synsets[tag + parts[0]] = Synset(lemmas, gloss, tag == "n" and int(parts[1]) in _CONCRETE, tag)
        for line in (folder / f"index.{name}").read_text("latin-1").splitlines():
            if line.startswith("  "):
                continue
            parts = line.split()
            count = int(parts[2])
            senses[parts[0].replace("_", " ")].extend(tag + o for o in parts[-count:])
    return synsets, dict(senses)


def read_moby(path: Path) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in path.read_text("utf-8", "replace").splitlines():
        words = [w.strip().lower() for w in line.split(",")]
        if len(words) > 1:
            found[words[0]] = tuple(words[1:])
    return found


def read_gcide(folder: Path) -> dict[str, list[str]]:
    """headword -> definitions. Entries taken over from WordNet are left out: they would equal the gloss to be found."""
    data = gzip.decompress((folder / "gcide.dict.dz").read_bytes())
    found: dict[str, list[str]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for line in (folder / "gcide.index").read_text("utf-8", "replace").splitlines():
        head, _, rest = line.partition("\t")
        if head.startswith("00-") or not head or (head.lower(), rest) in seen:
            continue
        seen.add((head.lower(), rest))
        offset, size = (_base64(x) for x in rest.split("\t")[:2])
        article = data[offset : offset + size].decode("utf-8", "replace").lstrip("\n")
        if re.split(r"[\\,(\[]", article, maxsplit=1)[0].strip().lower() == head.lower():  # not a mention in another's article
            found[head.lower()].extend(_senses(article))
    return dict(found)


def _base64(text: str) -> int:
    value = 0
    for c in text:
        value = value * 64 + _B64[c]
    return value


def _senses(article: str) -> list[str]:
    if "WordNet" in article:
        return []
    text, found = article, 1
    while found:  # etymologies and sources, from the inside out
        text, found = re.subn(r"\[[^\[\]]*\]", " ", text)
    text = re.sub(r"^[^\\\n]*\\[^\\]*\\", "", text)  # the headword and its pronunciation
    parts = re.split(r"\n\s{2,4}(?:\d+\.|\([a-z]\))\s", text)
    if len(parts) == 1:
        head = r"^.{0,80}?\b(?:n|a|adv|v\. ?[ti]|v|p\. ?p|p\. ?a|prep|interj|pl|imp)\.(?:\s*;?\s*pl\. \S+)?"
        parts = ["", re.sub(head, "", text, count=1, flags=re.DOTALL)]
    result = []
    for part in parts[1:]:
        part = re.split(r"\n\s*(?:Syn:|Note:)|--\s*[A-Z]|\n\s*\n", part.strip())[0]
        part = re.sub(r"\([A-Z][\w.& ]{0,18}\.\)", " ", part)
        part = re.split(r"[;:,]\s+as,|\s--\s|\"", part)[0]
        part = re.sub(r"\s+", " ", re.sub(r"[{}]", "", part)).strip(" .;,")
        if len(part.split()) >= 4 and "\\" not in part and not re.search(r"[\[\]?]", part):
            result.append(" ".join(part.split()[:45]))
    return result
