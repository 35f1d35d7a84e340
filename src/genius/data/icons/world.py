"""What the tasks look things up in: drawings by concept, their split, what is held out of the pool, and the words.

Built once from the kept icons; then only read.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from genius.data.icons.concepts import Groups, group_concepts, split_of
from genius.data.icons.lexicon import MASK, Lexicon, content_stems, mask
from genius.data.icons.model import App, Icon, Material
from genius.data.icons.names import SHAPES, mod_phrases
from genius.data.icons.render import Render

_COMMON_TAG = 150  # concepts: a tag on more of them says nothing


def rng(*parts: object) -> random.Random:
    """Chance that depends on what it decides about, never on the order of work."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


@dataclass(slots=True)
class Words:
    """What can be said of one concept."""

    names: list[str]
    tags: list[str] = field(default_factory=list)
    synonyms: list[str] = field(default_factory=list)  # of the one sense meant
    near: list[str] = field(default_factory=list)  # thesaurus, looser
    said: list[str] = field(default_factory=list)  # the tags in other words: synonyms and glosses of them
    gloss: str = ""  # WordNet
    heads: frozenset[str] = frozenset()  # stems of the names
    definition: str = ""  # another dictionary's, headword masked
    caption: str = ""  # name and tags, as a text to be found


@dataclass(slots=True)
class World:
    icons: dict[str, list[Icon]]  # concept -> drawings
    split: dict[str, str]  # concept -> split
    pool: dict[str, list[Icon]]  # concept -> drawings that are candidates
    held: dict[str, list[Icon]]  # concept -> drawings kept out of the pool, to ask with
    words: dict[str, Words]
    apps: dict[str, App]
    senses: dict[str, str]  # base -> synset
    groups: Groups
    renders: dict[str, Render]
    brands: set[str]  # concepts that are only logos: their look cannot be known from their name
    tag_index: dict[str, list[str]] = field(default_factory=dict)  # tag -> concepts

    def split_of_gloss(self, gloss: str, headword: str) -> str:
        """A headword goes with the icon concept of that meaning or name, else by its gloss (synsets may share one)."""
        base = self._by_gloss.get(gloss)
        if base is None and headword in self._bases:
            base = headword
        return split_of(self.groups.find(base)) if base else split_of(f"gloss:{gloss}")

    _by_gloss: dict[str, str] = field(default_factory=dict)
    _bases: set[str] = field(default_factory=set)


def noisy(concept: str) -> bool:
    """Names that mean nothing outside their set: numbered ones, single letters."""
    base = concept.split("+")[0]
    return bool(re.search(r"\d", base)) or len(base) < 3 or len(base.split()) > 7


def build_world(
    material: Material, kept: list[Icon], copies: list[tuple[Icon, Icon]], renders: dict[str, Render]
) -> World:
    icons: dict[str, list[Icon]] = defaultdict(list)
    for icon in kept:
        icons[icon.concept].append(icon)
    bases = sorted({i.base for i in kept})
    senses = _choose_senses(bases, material)
    groups = group_concepts(kept, copies, material.aliases, material.lexicon)
    by_gloss: dict[str, str] = {}
    for base in bases:  # one text may describe two names: they must not be torn apart
        if base in senses:
            groups.join(by_gloss.setdefault(material.lexicon.synsets[senses[base]].gloss, base), base)
    split = {c: split_of(groups.find(members[0].base)) for c, members in icons.items()}
    pool, held = {}, {}
    for concept, members in icons.items():
        families = sorted({i.family for i in members})
        out: set[str] = set()
        if split[concept] != "train" and len(families) >= 2:
            out = set(rng("held", concept).sample(families, max(1, len(families) // 3)))
        pool[concept] = [i for i in members if i.family not in out]
        held[concept] = [i for i in members if i.family in out]
    brands = {c for c, members in icons.items() if all(i.kind == "brand" for i in members)}
    apps = {a.base: a for a in material.apps if a.base in icons}
    words, tag_index = _collect_words(material, icons, copies, senses)
    world = World(dict(icons), split, pool, held, words, apps, senses, groups, renders, brands, tag_index)
    world._by_gloss = by_gloss
    world._bases = set(bases)
    return world


def _choose_senses(bases: list[str], material: Material) -> dict[str, str]:
    found = {}
    for base in bases:
        if noisy(base):
            continue
        sense = material.lexicon.sense(base, material.tags.get(base, ()))
        if sense is not None:
            found[base] = sense
    return found


def _other_words(
    lexicon: Lexicon, base: str, names: list[str], tags: list[str], known: dict[str, list[Icon]]
) -> list[str]:
    """What the tags mean, said differently. A word that names another icon would ask for that one."""
    context = frozenset(s for text in (*names[:4], *tags) for s in content_stems(text))
    found: dict[str, None] = {}
    for tag in rng("said", base).sample(tags, min(len(tags), 10)):
        synonyms, gloss = lexicon.paraphrases(tag, context, base)
        for text in (*synonyms[:2], gloss):
            if text and text not in known and text not in names and text not in tags:
                found[text] = None
    return list(found)[:8]


def _collect_words(
    material: Material, icons: dict[str, list[Icon]], copies: list[tuple[Icon, Icon]], senses: dict[str, str]
) -> tuple[dict[str, Words], dict[str, list[str]]]:
    lexicon = material.lexicon
    phrases: dict[str, Counter[str]] = defaultdict(Counter)
    for members in icons.values():
        for icon in members:
            if not icon.mods:
                phrases[icon.base][icon.phrase] += 1
    for dropped, first in copies:  # a picture's second name is a name of its concept
        if not dropped.mods and not first.mods:
            phrases[first.base][dropped.phrase] += 1
    count = Counter(t for c, tags in material.tags.items() if c in icons for t in tags)
    words: dict[str, Words] = {}
    for concept, members in icons.items():
        base, mods = members[0].base, members[0].mods
        names = [p for p, _ in sorted(phrases[base].items(), key=lambda x: (-x[1], x[0]))] or [base]
        if base in names:  # the canonical name first, the common ones after it
            names = [base, *(n for n in names if n != base)]
        spoken = mod_phrases(names[:3], mods)
        if mods and not (set(mods) & set(SHAPES)):
            spoken = [members[0].phrase, *(s for s in spoken if s != members[0].phrase)]
        tags = sorted(
            t for t in material.tags.get(concept, ()) if count[t] <= _COMMON_TAG and t not in spoken and t not in names
        )
        entry = Words(spoken[:8], tags)
        if not noisy(concept):
            shown = rng("caption", concept).sample(tags, min(3, len(tags)))
            entry.caption = f"{spoken[0]}: {', '.join(shown)}" if shown else spoken[0]
        logos = sum(i.kind == "brand" for i in members)
        if not mods and base in senses and 2 * logos < len(members):  # a logo shows no sense of the word it borrowed
            synset = lexicon.synsets[senses[base]]
            heads = [base, *names[:3], *synset.lemmas]
            entry.gloss = synset.gloss
            entry.heads = frozenset(s for h in heads for s in content_stems(h))
            raw = lexicon.definition(base, synset.gloss)
            entry.definition = mask(raw, heads) if raw else ""
            if entry.definition.count(MASK) > 3 or entry.definition == entry.gloss:
                entry.definition = ""
            entry.synonyms = [w for w in synset.lemmas if w not in names][:5]
            entry.near = [
                w for w in lexicon.near_words(base, senses[base], 6) if w not in names and w not in entry.synonyms
            ]
        entry.said = _other_words(lexicon, base, names, entry.tags, icons)
        words[concept] = entry
    index: dict[str, list[str]] = defaultdict(list)
    for concept, entry in words.items():
        for tag in entry.tags:
            index[tag].append(concept)
    return words, dict(index)
