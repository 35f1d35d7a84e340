"""The eight tasks: which query is asked with what, and which candidates are its positives.

Test and validation queries are made first; a training query that repeats one of theirs is dropped. All positives are
listed in test and validation; in training, where one of them is drawn at a time, up to `_TRAIN_POSITIVES`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from lab.icons.edits import find_edits, wording
from lab.icons.lexicon import MASK, Lexicon, content_stems, mask
from lab.icons.model import Icon
from lab.icons.world import Words, World, noisy, rng

_TRAIN_POSITIVES = 40
CAPS = {"train": 200_000, "val": 1_000, "test": 3_000}  # queries per task
_COPY = 6.0  # mean grey difference (of 255) below which two drawings count as one

TEMPLATES = (
    "a drawing of {}",
    "an icon of {}",
    "{} icon",
    "a picture of {}",
    "{} symbol",
    "show me {}",
    "something for {}",
)
NAME_QUESTIONS = (
    "what is this called?",
    "what does the picture show?",
    "name this",
    "what is it?",
    "describe the drawing",
)
GLOSS_QUESTIONS = (
    "what does this mean?",
    "define the thing in the picture",
    "give me the definition",
    "explain what this is",
)
APP_QUESTIONS = ("what does this program do?", "which application is this?", "describe the program behind this icon")
ENTRY_QUESTIONS = (
    "find its entry in the picture dictionary",
    "show it with an explanation",
    "which entry explains this?",
    "the illustrated definition of this",
)
APP_ENTRY_QUESTIONS = (
    "show the official icon and what the program does",
    "find this program's page",
    "which program is it, and what is it for?",
)


Key = tuple[str | None, str | None]
"""Image and text of a candidate, which it is known by."""


@dataclass(slots=True)
class Candidate:
    image: str | None
    text: str | None

    @property
    def modality(self) -> str:
        if self.image and self.text:
            return "image,text"
        return "image" if self.image else "text"


@dataclass(slots=True)
class BenchQuery:
    task: int
    split: str
    text: str | None
    image: str | None
    positives: list[Key]  # keys of candidates


@dataclass(slots=True)
class Bench:
    candidates: dict[Key, Candidate] = field(default_factory=dict)
    queries: list[BenchQuery] = field(default_factory=list)

    def candidate(self, image: str | None, text: str | None) -> Key:
        self.candidates.setdefault((image, text), Candidate(image, text))
        return image, text


def make_bench(world: World, lexicon: Lexicon) -> Bench:
    bench = Bench()
    pairs = _add_candidates(bench, world)
    made: list[BenchQuery] = []
    made += _text_to_image(world)
    made += _text_to_text(bench, world, lexicon)
    made += _text_to_pair(world, pairs)
    made += _from_image(world, pairs)
    made += _edits(world)
    bench.queries = _tidy(made)
    return bench


Pairs = dict[str, list[tuple[Icon, str]]]


def _add_candidates(bench: Bench, world: World) -> Pairs:
    pairs: Pairs = defaultdict(list)
    for concept in sorted(world.icons):
        words = world.words[concept]
        for icon in world.pool[concept]:
            bench.candidate(icon.path, None)
        if words.caption and concept not in world.brands:
            bench.candidate(None, words.caption)
        for text in _long_texts(world, concept):
            bench.candidate(None, text)
            seen: set[str] = set()
            drawn = [i for i in world.pool[concept] if not i.style.startswith("tone-")]
            rng("pairs", concept).shuffle(drawn)
            drawn.sort(key=lambda i: i.set != "papirus-icon-theme")
            for icon in drawn:  # two hands: the positive is no single picture
                if len(seen) < 2 and icon.family not in seen:
                    seen.add(icon.family)
                    bench.candidate(icon.path, text)
                    pairs[concept].append((icon, text))
    return pairs


def _long_texts(world: World, concept: str) -> list[str]:
    app = world.apps.get(concept)
    return [t for t in (world.words[concept].gloss, app_text(app.description, app.name) if app else "") if t]


def app_text(text: str, name: str) -> str:
    return mask(text, [name])


def _tidy(made: Iterable[BenchQuery]) -> list[BenchQuery]:
    """Merges equal queries, keeps training clear of test queries, and applies the caps."""
    merged: dict[tuple[int, str, str | None, str | None], BenchQuery] = {}
    for q in made:
        key = (q.task, q.split, q.text, q.image)
        if key in merged:
            known = set(merged[key].positives)
            merged[key].positives.extend(a for a in q.positives if a not in known)
        elif q.positives:
            merged[key] = q
    asked = {(q.task, q.text, q.image) for q in merged.values() if q.split != "train"}
    kept: dict[tuple[int, str], list[BenchQuery]] = defaultdict(list)
    for q in merged.values():
        if q.split == "train" and (q.task, q.text, q.image) in asked:
            continue
        kept[q.task, q.split].append(q)
    result: list[BenchQuery] = []
    for (task, split), queries in sorted(kept.items()):
        if len(queries) > CAPS[split]:
            chosen = sorted(queries, key=lambda q: rng("cap", task, q.text, q.image).random())[: CAPS[split]]
            ids = {id(q) for q in chosen}
            queries = [q for q in queries if id(q) in ids]
        for q in queries:
            if split == "train" and len(q.positives) > _TRAIN_POSITIVES:
                first, rest = q.positives[:1], q.positives[1:]
                q.positives = first + rng("answers", q.text, q.image).sample(rest, _TRAIN_POSITIVES - 1)
        result.extend(queries)
    return result


def _images(icons: Iterable[Icon]) -> list[Key]:
    return [(i.path, None) for i in icons]


def _foreign(world: World, phrase: str, concept: str) -> bool:
    """The phrase is the name of something else: it would ask for that."""
    return phrase in world.words and phrase != concept


def _say(world: World, concept: str, words: Words) -> Iterator[tuple[str, str]]:
    """(kind, text) of everything that may be typed to find the concept."""
    chance = rng("say", concept)
    for name in words.names[:6]:
        yield "name", name
    for template in chance.sample(TEMPLATES, 2):
        yield "sentence", template.format(chance.choice(words.names[:3]))
    for word in words.synonyms:
        if not _foreign(world, word, concept):
            yield "synonym", word
    for word in words.near[:5]:
        if not _foreign(world, word, concept):
            yield "near", word
    for text in words.said:
        yield "said", text
    if words.gloss and len(words.gloss.split()) >= 3:
        yield "gloss", words.gloss
    if words.definition:
        yield "definition", words.definition
    yield from _tag_mixes(world, concept, words)


def _tag_mixes(world: World, concept: str, words: Words, times: int = 4) -> Iterator[tuple[str, str]]:
    """Two or three tags that together are on no other concept."""
    chance = rng("tags", concept)
    plain = [t for t in words.tags if not _foreign(world, t, concept)]
    for k in range(times if len(plain) >= 2 else 0):
        chosen = chance.sample(plain, min(len(plain), 2 + k % 2))
        shared = set.intersection(*(set(world.tag_index[t]) for t in chosen))
        if shared == {concept}:
            yield "tags", (", " if chance.random() < 0.5 else " ").join(chosen)


def _text_to_image(world: World) -> Iterator[BenchQuery]:
    for concept in sorted(world.icons):
        words, split = world.words[concept], world.split[concept]
        said = list(dict.fromkeys(_say(world, concept, words)))
        if split != "train":
            if noisy(concept) or concept in world.brands:
                continue
            said = _some(said, concept)
        elif concept in world.brands or noisy(concept):
            said = said[:2]
        for _, text in said:
            yield BenchQuery(0, split, text, None, _images(world.pool[concept]))
    for tag, concepts in sorted(world.tag_index.items()):  # one tag, several things: for training only
        train = [c for c in concepts if world.split[c] == "train"]
        if train and len(concepts) <= 50 and (tag not in world.words or world.split[tag] == "train"):
            yield BenchQuery(0, "train", tag, None, _images(i for c in train for i in world.pool[c]))


def _some(said: list[tuple[str, str]], concept: str) -> list[tuple[str, str]]:
    """At most one query of each kind, so that no concept dominates the test."""
    chance = rng("some", concept)
    kinds: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for item in said:
        kinds[item[0]].append(item)
    return [chance.choice(items) for kind, items in kinds.items() if kind not in {"near", "said"}]


def _text_to_text(bench: Bench, world: World, lexicon: Lexicon) -> Iterator[BenchQuery]:
    for head in sorted(lexicon.definitions):
        texts, sense = lexicon.definitions[head], lexicon.only_sense(head)
        if sense is None or not texts or len(head) < 3:
            continue
        synset = lexicon.synsets[sense]
        heads = [head, *synset.lemmas]
        gloss = synset.gloss
        plain = texts[0] if len(texts) == 1 else lexicon.definition(head, synset.gloss)
        if not plain or len(gloss.split()) < 3:
            continue
        query = mask(plain, heads)
        informative = content_stems(query.replace(MASK, " "))
        if len(informative) < 3 or query.lower() == gloss.lower():
            continue
        split = world.split_of_gloss(gloss, head)
        if len(texts) > 1 and split != "train":
            continue  # the sense was guessed by overlap: good enough to learn from, not to be judged by
        yield BenchQuery(1, split, query, None, [bench.candidate(None, gloss)])
    for concept in sorted(world.words):
        words, split = world.words[concept], world.split[concept]
        if not words.gloss or split != "train":
            continue
        positives: list[Key] = [(None, words.gloss)]
        if words.definition:
            yield BenchQuery(1, split, words.definition, None, list(positives))
        for text in (words.names[0], ", ".join(words.synonyms), ", ".join(words.near[:3])):
            if text:
                yield BenchQuery(1, split, text, None, list(positives))


def _gives_away(text: str, words: Words) -> bool:
    """The query holds a word of the name that its positive holds too."""
    return bool(content_stems(text) & words.heads & content_stems(words.gloss))


def _text_to_pair(world: World, pairs: Pairs) -> Iterator[BenchQuery]:
    for concept in sorted(pairs):
        words, split, app = world.words[concept], world.split[concept], world.apps.get(concept)
        gloss = [(i.path, t) for i, t in pairs[concept] if t == words.gloss]
        described = [(i.path, t) for i, t in pairs[concept] if t != words.gloss]
        if app is not None and described:
            yield BenchQuery(2, split, app_text(app.summary, app.name), None, list(described))
            if split == "train":
                yield BenchQuery(2, split, app.name, None, list(described))
        if not gloss:
            continue
        said = [s for s in dict.fromkeys(_say(world, concept, words)) if s[0] not in {"gloss", "near", "said"}]
        if split != "train":
            said = [s for s in said if s[0] in {"definition", "tags", "synonym"} and not _gives_away(s[1], words)]
            said = _some(said, concept)
        for _, text in said:
            yield BenchQuery(2, split, text, None, list(gloss))


def _asking(world: World, concept: str, train: int, test: int) -> list[Icon]:
    """Drawings to ask with. Outside training those held out of the pool come first."""
    chance = rng("asking", concept)
    plain = [i for i in world.icons[concept] if not i.style.startswith("tone-")]
    if world.split[concept] == "train":
        return chance.sample(plain, min(train, len(plain)))
    held = [i for i in world.held[concept] if not i.style.startswith("tone-")]
    return chance.sample(held or plain, min(test, len(held or plain)))


def _from_image(world: World, pairs: Pairs) -> Iterator[BenchQuery]:
    for concept in sorted(world.icons):
        split, words = world.split[concept], world.words[concept]
        chance = rng("image", concept)
        yield from _image_to_image(world, concept)
        if concept in world.brands or noisy(concept):
            continue
        app, captions = world.apps.get(concept), [(None, words.caption)]
        for icon in _asking(world, concept, 6, 2):
            texts: list[Key] = [(None, t) for t in _long_texts(world, concept)]
            if app is None:
                texts += captions
            yield BenchQuery(3, split, None, icon.path, list(texts))
            if app is None:
                names = list[Key](captions)
                yield BenchQuery(6, split, chance.choice(NAME_QUESTIONS), icon.path, names)
            if words.gloss:
                yield BenchQuery(6, split, chance.choice(GLOSS_QUESTIONS), icon.path, [(None, words.gloss)])
            if app is not None:
                text = app_text(app.description, app.name)
                yield BenchQuery(6, split, chance.choice(APP_QUESTIONS), icon.path, [(None, text)])
            if split != "train" and not world.held[concept]:
                continue  # a pair must be found from another hand's drawing
            others = [(i.path, t) for i, t in pairs.get(concept, []) if i.family != icon.family]
            gloss = [o for o in others if o[1] == words.gloss]
            if gloss:
                yield BenchQuery(8, split, chance.choice(ENTRY_QUESTIONS), icon.path, list(gloss))
            if app is not None and len(others) > len(gloss):
                described = [o for o in others if o[1] != words.gloss]
                yield BenchQuery(8, split, chance.choice(APP_ENTRY_QUESTIONS), icon.path, list(described))


def _image_to_image(world: World, concept: str) -> Iterator[BenchQuery]:
    split = world.split[concept]
    if split != "train" and not world.held[concept]:
        return
    for icon in _asking(world, concept, 8, 3):
        others = [i for i in world.pool[concept] if i.family != icon.family]
        thumb = world.renders[icon.path].thumb.astype(np.int16)
        if split != "train" and any(_copy(thumb, world.renders[i.path].thumb) for i in others):
            continue  # a near-copy under another name would be a gift
        yield BenchQuery(4, split, None, icon.path, _images(others))


def _copy(a: np.ndarray, b: np.ndarray) -> bool:
    return float(np.abs(a - b.astype(np.int16)).mean()) < _COPY


def _edits(world: World) -> Iterator[BenchQuery]:
    for edit in find_edits(world):
        split = world.split[edit.target.concept]
        if world.split[edit.source.concept] != split:
            continue
        if (
            split != "train"
            and edit.kind in {"style", "tone"}
            and rng("style", edit.source.path, edit.target.path).random() > 0.25
        ):
            continue  # style changes are many and alike: in the test, meaning comes first
        for text in wording(edit, 2 if split == "train" and edit.kind == "semantic" else 1):
            yield BenchQuery(7, split, text, edit.source.path, _images(edit.positives))
