"""Dictionaries: WordNet, GCIDE and the Moby thesaurus, and the masking of headwords.

Readers of the files as Debian and npm ship them. Knows nothing of icons.
"""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

MASK = "___"
_CONCRETE = {5, 6, 8, 13, 15, 17, 18, 19, 20, 27}  # animal artifact body food place object person phenomenon plant substance
_POS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
_B64 = {c: i for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}
_STOP = frozenset("a an and any are as at be by for from has in into is it its of on or one some that the their to used "
                  "usually which who with without not than especially etc more other such having being made".split())


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

    def sense(self, phrase: str) -> str | None:
        """The sense an icon of that name most likely shows: the only one, or a concrete first noun sense."""
        ids = self.senses.get(phrase) or self.senses.get(_singular(phrase)) or []
        if not ids:
            return None
        first = self.synsets[ids[0]]
        nouns = [i for i in ids if i[0] == "n"]
        if len(ids) == 1 or first.concrete or (len(nouns) == 1 and first.pos == "n"):
            return ids[0]
        for i in nouns[:3]:  # an icon shows a thing: prefer an early concrete sense to an abstract first one
            if self.synsets[i].concrete:
                return i
        return ids[0] if len(ids) <= 3 else None

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

    def near_words(self, phrase: str, limit: int) -> list[str]:
        """Thesaurus words whose own entry looks most like this one's: the lists mix senses, the overlap un-mixes them."""
        mine = self.thesaurus.get(phrase)
        if not mine:
            return []
        have = set(mine)
        scored = []
        for word in mine:
            other = self.thesaurus.get(word)
            if not other or phrase not in other or word == phrase:
                continue
            shared = len(have.intersection(other))
            scored.append((shared / (len(have) + len(other) - shared), word))
        scored.sort(key=lambda s: (-s[0], s[1]))
        return [w for s, w in scored[:limit] if s > 0.08]


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
    stems = {stem(w) for p in phrases for w in re.findall(r"[a-zA-Z]{2,}", p) if w.lower() not in _STOP}
    long = tuple(s for s in stems if len(s) >= 5)

    def hide(match: re.Match[str]) -> str:
        word = stem(match.group(0))
        return MASK if word in stems or (long and word.startswith(long)) else match.group(0)

    hidden = re.sub(r"[A-Za-z]{2,}", hide, text)
    return re.sub(rf"{MASK}(?:[\s-]+{MASK})+", MASK, hidden)


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
    seen: set[int] = set()
    for line in (folder / "gcide.index").read_text("utf-8", "replace").splitlines():
        head, _, rest = line.partition("\t")
        if head.startswith("00-") or not head:
            continue
        offset, size = (_base64(x) for x in rest.split("\t")[:2])
        if offset in seen:  # several spellings lead to one article: the first is enough
            continue
        seen.add(offset)
        article = data[offset : offset + size].decode("utf-8", "replace")
        found[head.lower()].extend(_senses(article))
    return dict(found)


def _base64(text: str) -> int:
    value = 0
    for c in text:
        value = value * 64 + _B64[c]
    return value


def _senses(article: str) -> list[str]:
    if article.startswith("\n"):
        article = article.lstrip("\n")
    head, _, body = article.partition("\n")
    # The header may run over several lines (etymology in brackets); the definition starts after it.
    text = head + "\n" + body
    parts = re.split(r"\n\s{2,4}(?:\d+\.|\([a-z]\))\s", text)
    chosen = parts[1:] if len(parts) > 1 else [text]
    result = []
    for part in chosen:
        if "WordNet" in part or "WN" in part:
            continue
        if part is text:
            part = re.sub(r"^[^\\\n]*\\[^\\]*\\", "", part)
            part = re.sub(r"^[^\[\n]{0,60}?\b(?:n|a|adv|v\. ?[ti]|v|p\. ?p|prep|interj|pl|imp)\.(?:\s*;?\s*pl\. \S+)?", "", part)
        part = re.split(r"\n\s*(?:Syn:|Note:)|--[A-Z]|\n\s*\n", part)[0]
        part = re.sub(r"\[[^\]]*\]", " ", part)
        part = re.sub(r"\([A-Z][\w.& ]{0,18}\.\)", " ", part)
        part = re.split(r"[;:,]\s+as,|\s--\s|\[", part)[0]
        part = re.sub(r"[{}]", "", part)
        part = re.sub(r"\s+", " ", part).strip(" .;,")
        if len(part.split()) >= 4 and "\\" not in part:
            result.append(" ".join(part.split()[:45]))
    return result
