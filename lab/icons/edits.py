"""image + text -> image: the same drawing, changed as the text asks. Derived from what sets name alike.

Both ends are drawings of one set by one hand, of concepts in one split; every drawing that shows the asked-for thing in
the asked-for way is a positive, the exact one first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from lab.icons.model import Icon
from lab.icons.world import World, rng

ADD: dict[str, tuple[str, ...]] = {
    "off": (
        "cross it out",
        "the same but crossed out",
        "disabled",
        "turn it off",
        "with a line through it",
        "strike it through",
        "switched off",
        "not allowed",
        "the opposite: no longer active",
        "put a slash across it",
    ),
    "plus": (
        "add a plus sign",
        "with a plus",
        "the version for adding one",
        "the same with a plus sign",
        "create a new one",
    ),
    "minus": ("add a minus sign", "with a minus", "the version for removing one", "the same with a minus sign"),
    "check": ("add a check mark", "with a tick", "marked as done", "the same but approved", "completed"),
    "x": ("add an x", "with a cross", "the version for cancelling", "the same with a cross mark", "rejected"),
    "lock": ("add a padlock", "locked", "the same but locked", "with a lock", "make it private"),
    "heart": ("add a heart", "with a heart", "the favourite one", "the same with a heart"),
    "star": ("add a star", "with a star", "starred", "the same with a star"),
    "search": ("add a magnifying glass", "search in it", "with a magnifier", "the version for searching"),
    "edit": ("add a pencil", "being edited", "with a pen", "the version for editing"),
    "question": ("add a question mark", "with a question mark", "unknown", "the same as a question"),
    "alert": ("add an exclamation mark", "with a warning", "something is wrong with it", "the same as an alert"),
    "cog": ("add a gear", "with a cog wheel", "its settings", "the version for configuring it"),
    "share": ("the version for sharing", "share it", "with a share symbol"),
    "clock": ("add a clock", "with a clock", "scheduled for later", "its time"),
    "code": ("with code brackets", "add code brackets", "for programmers"),
    "bolt": ("add a lightning bolt", "with a lightning bolt", "electrified"),
    "pin": ("add a pin", "pinned", "with a pin"),
    "dollar": ("add a dollar sign", "with a dollar sign", "for money"),
    "user": ("add a person", "with a person", "of a user"),
    "info": ("with an info sign", "add an i for information", "tell me more about it"),
    "shield": ("add a shield", "with a shield", "protected"),
    "pause": ("with a pause sign", "paused", "pause it"),
    "play": ("with a play sign", "play it", "add a play triangle"),
    "bookmark": ("add a bookmark", "with a bookmark", "bookmarked"),
    "sync": ("with circling arrows", "being refreshed", "add refresh arrows"),
    "circle": ("put it in a circle", "inside a circle", "the same in a ring", "with a circle around it"),
    "square": ("put it in a square", "inside a square", "with a box around it", "the same in a box"),
}
TAKE: dict[str, tuple[str, ...]] = {
    "off": ("not crossed out", "turn it back on", "remove the line through it", "enabled again"),
    "circle": ("without the circle", "take the circle away"),
    "square": ("without the square", "take the box away"),
}
STYLE: dict[str, tuple[str, ...]] = {
    "filled": ("make it filled", "fill it in", "the solid version", "the same but solid black"),
    "": ("only the outline", "make it an outline", "the line version", "not filled, just lines"),
    "duotone": ("in two tones", "the duotone version", "with a second, paler tone"),
    "color": ("in colour", "the coloured version", "make it colourful"),
    "mono": ("in black and white", "without colours", "the monochrome version"),
}
TONES = ("light", "medium-light", "medium", "medium-dark", "dark")
TONE_TEXTS = ("give it {} skin", "with a {} skin tone", "change the skin tone to {}", "{} skin")
TURNS = {("up", "down"), ("down", "up"), ("left", "right"), ("right", "left")}
TURN_TEXTS = {
    "down": ("pointing down", "turn it upside down", "the other way: down"),
    "up": ("pointing up", "the other way: up"),
    "left": ("pointing left", "mirror it to the left"),
    "right": ("pointing right", "mirror it to the right"),
}
_TOGETHER = {
    "fa7-regular": "fa7",
    "fa7-solid": "fa7",
    "icon-park": "icon-park",
    "icon-park-outline": "icon-park",
    "icon-park-solid": "icon-park",
    "fluent-emoji-flat": "fluent-emoji",
    "fluent-emoji-high-contrast": "fluent-emoji",
    "emojione": "emojione",
    "emojione-monotone": "emojione",
}


@dataclass(slots=True)
class Edit:
    kind: str  # semantic, inverse, style, tone or turn
    source: Icon
    target: Icon
    texts: tuple[str, ...]
    positives: list[Icon]  # the exact target first


def _hand(icon: Icon) -> str:
    return _TOGETHER.get(icon.set, icon.set)


def find_edits(world: World) -> Iterator[Edit]:
    in_pool = {i.path for icons in world.pool.values() for i in icons}
    by_key: dict[tuple[str, str, str], dict[tuple[str, ...], Icon]] = defaultdict(dict)
    by_look: dict[tuple[str, str], dict[str, Icon]] = defaultdict(dict)
    turned: dict[tuple[str, str, str], Icon] = {}
    for icons in world.icons.values():
        for icon in icons:
            by_key[_hand(icon), icon.base, icon.style].setdefault(icon.mods, icon)
            by_look[_hand(icon), icon.concept].setdefault(icon.style, icon)
            turned.setdefault((icon.set, icon.name, icon.style), icon)
    for _, versions in sorted(by_key.items()):
        yield from _semantic(versions, world, in_pool)
    for _, looks in sorted(by_look.items()):
        yield from _looks(looks, world, in_pool)
    yield from _turns(turned, world, in_pool)


def _semantic(versions: dict[tuple[str, ...], Icon], world: World, in_pool: set[str]) -> Iterator[Edit]:
    for mods, icon in sorted(versions.items()):
        for mod in mods:
            plain = versions.get(tuple(m for m in mods if m != mod))
            if plain is None:
                continue
            if icon.path in in_pool:
                yield Edit("semantic", plain, icon, ADD[mod], _positives(icon, world.pool[icon.concept]))
            if mod in TAKE and plain.path in in_pool:
                yield Edit("inverse", icon, plain, TAKE[mod], _positives(plain, world.pool[plain.concept]))


def _looks(looks: dict[str, Icon], world: World, in_pool: set[str]) -> Iterator[Edit]:
    for style, target in sorted(looks.items()):
        if target.path not in in_pool:
            continue
        positives = _positives(target, [i for i in world.pool[target.concept] if i.style == style and i.kind == target.kind])
        if style.startswith("tone-"):
            tone = TONES[int(style[5:]) - 1]
            texts = tuple(t.format(tone) for t in TONE_TEXTS)
            starts = [s for s in ("", f"tone-{(int(style[5:]) + 1) % 5 + 1}") if s in looks]
            for start in starts:
                yield Edit("tone", looks[start], target, texts, positives)
        elif (style in STYLE and target.kind != "emoji") or style == "mono":
            for start, source in sorted(looks.items()):
                if start != style and (start in STYLE):
                    yield Edit("style", source, target, STYLE[style], positives)


def _turns(icons: dict[tuple[str, str, str], Icon], world: World, in_pool: set[str]) -> Iterator[Edit]:
    for (set_name, name, style), icon in sorted(icons.items()):
        parts = name.split("-")
        for here, there in sorted(TURNS):
            if parts.count(here) != 1 or there in parts:
                continue
            other = icons.get((set_name, "-".join(there if p == here else p for p in parts), style))
            if other is None or other.path not in in_pool or world.split[other.concept] != world.split[icon.concept]:
                continue
            yield Edit("turn", icon, other, TURN_TEXTS[there], _positives(other, world.pool[other.concept]))


def _positives(exact: Icon, others: list[Icon]) -> list[Icon]:
    return [exact, *(i for i in others if i.path != exact.path)]


def wording(edit: Edit, times: int) -> list[str]:
    return rng("edit", edit.source.path, edit.target.path).sample(edit.texts, min(times, len(edit.texts)))
