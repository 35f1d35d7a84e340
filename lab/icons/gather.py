"""From source packages to `Material`: icons with concepts, tags, dictionaries, applications.

Reads the files of each package; knows nothing of rendering, tasks or the output layout.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from lab.icons.apps import read_apps, theme_icons
from lab.icons.lexicon import Lexicon, read_gcide, read_moby, read_wordnet
from lab.icons.model import Icon, Material
from lab.icons.names import canonical, split_mods, strip_variant, words_of
from lab.icons.sets import FILLED_BY_DEFAULT, GENERIC_STYLES, SET_STYLE, SETS, STYLE_NAMES, TONED, SetSpec
from lab.icons.sources import Sources

_TONES = ("light", "medium-light", "medium", "medium-dark", "dark")
_MAX_SVG = 14_000  # a drawing of more bytes costs more room in the archive than it teaches


def gather(folder: Path) -> Material:
    """Fetches what is missing below `folder` and reads it all."""
    sources = Sources(folder)
    iconify = sources.npm("@iconify/json")
    emoji = _read_emoji(sources.npm("emojibase-data"), sources.npm("emojilib"))
    raw = [record for name, spec in SETS.items() for record in _read_set(iconify / "json" / f"{name}.json", name, spec, emoji)]
    tags_by_icon, alias_names = _read_tags(sources)
    wordnet = sources.debian("wordnet-base") / "usr/share/wordnet"
    synsets, senses = read_wordnet(wordnet)
    definitions = read_gcide(sources.debian("dict-gcide") / "usr/share/dictd")
    lexicon = Lexicon(synsets, senses, definitions, read_moby(sources.npm("moby") / "words.txt"))
    apps = read_apps(sources.appstream())
    icons, aliases = name_icons(raw, lexicon)
    known = {i.base for i in icons if i.kind == "brand"}
    found, apps = theme_icons(sources, apps, known)
    icons.extend(found)
    concepts = {(i.set, i.name): i for i in icons}
    tags: dict[str, set[str]] = defaultdict(set)
    for (set_name, name), words in tags_by_icon.items():
        icon = concepts.get((set_name, name))
        if icon is not None:
            tags[icon.concept] |= words
    for icon in icons:
        if icon.hexcode in emoji.tags:
            tags[icon.concept] |= emoji.tags[icon.hexcode]
    by_phrase = {i.phrase: i.base for i in icons}
    for a, b in alias_names:
        if a in by_phrase and b in by_phrase:
            aliases.append((by_phrase[a], by_phrase[b]))
    used = {i.set for i in icons}
    collections = json.loads((iconify / "collections.json").read_text())
    provenance = sources.provenance + [
        {
            "source": f"icon set {k}",
            "version": str(v.get("version", "")),
            "licence": v["license"].get("spdx", v["license"]["title"]),
            "author": v["author"]["name"],
        }
        for k, v in collections.items()
        if k in used
    ]
    return Material(icons, dict(tags), aliases, lexicon, apps, provenance)


class Emoji:
    """Labels and tags by code point, and the way from a set's own name to a code point."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.tags: dict[str, set[str]] = defaultdict(set)
        self.slugs: dict[str, str] = {}  # squashed label -> code point
        self.tones: dict[str, tuple[str, int]] = {}  # toned code point -> (base, tone)

    def lookup(self, name: str) -> str:
        return self.slugs.get(re.sub(r"[^a-z0-9]", "", name.lower()), "")


def _read_emoji(base: Path, lib: Path) -> Emoji:
    emoji = Emoji()
    for entry in json.loads((base / "en/data.json").read_text()):
        code = _code(entry["hexcode"])
        emoji.labels[code] = entry["label"].lower()
        emoji.tags[code] |= {t.lower() for t in entry.get("tags", [])}
        emoji.slugs[re.sub(r"[^a-z0-9]", "", entry["label"].lower())] = code
        for skin in entry.get("skins", []):
            if isinstance(skin.get("tone"), int):
                emoji.tones[_code(skin["hexcode"])] = (code, skin["tone"])
    for char, words in json.loads((lib / "dist/emoji-en-US.json").read_text()).items():
        code = _code("-".join(f"{ord(c):X}" for c in char))
        if code in emoji.labels:
            emoji.tags[code] |= {w.replace("_", " ").lower() for w in words}
            for word in words[:1]:
                emoji.slugs.setdefault(re.sub(r"[^a-z0-9]", "", word.lower()), code)
    return emoji


def _code(hexcode: str) -> str:
    return "-".join(p for p in hexcode.upper().split("-") if p not in {"FE0F", "FE0E"})


Raw = tuple[str, SetSpec, str, list[str], str, str, str]  # set, spec, name, words, style, svg, hexcode


def _read_set(path: Path, name: str, spec: SetSpec, emoji: Emoji) -> list[Raw]:
    data: dict[str, Any] = json.loads(path.read_text())
    codes = {v: _code(k) for k, v in data.get("chars", {}).items()} if spec.kind == "emoji" else {}
    declared = sorted((s for s in data.get("suffixes", {}) if s), key=len, reverse=True)
    has_plain = "" in data.get("suffixes", {})
    result: list[Raw] = []
    for key, icon in data["icons"].items():
        if icon.get("hidden") or len(icon["body"]) > _MAX_SVG or "<animate" in icon["body"] or "<image" in icon["body"]:
            continue
        svg = wrap(icon["body"], icon, data)
        if spec.kind == "emoji":
            found = _emoji_record(key, codes.get(key, ""), name, emoji)
            if found is not None:
                code, words, style = found
                result.append((name, spec, key, words, style, svg, code))
            continue
        stem, style = key, ""
        for suffix in declared:
            if key.endswith("-" + suffix):
                stem, style = key[: -len(suffix) - 1], suffix
                break
        if spec.styles is not None and (style not in spec.styles or (not style and not has_plain)):
            continue
        words = words_of(stem)
        while len(words) > 1 and (words[-1] in GENERIC_STYLES or words[-1] in spec.strip):
            style = style or words[-1]
            words = words[:-1]
        if not words or "negative" in words:
            continue
        if name == "devicon" and words[-1] == "wordmark":
            continue
        words = [w for w in words if w not in {"logo", "brand"}] or words
        plain = "filled" if name in FILLED_BY_DEFAULT and not style else STYLE_NAMES.get(style, style)
        result.append((name, spec, key, words, plain, svg, ""))
    return result


def _emoji_record(key: str, code: str, name: str, emoji: Emoji) -> tuple[str, list[str], str] | None:
    plain, tone = key, 0
    for index, word in enumerate(_TONES, start=1):
        for end in (f"-{word}-skin-tone", f"-{word}"):
            if key.endswith(end) and (code in emoji.tones or end.endswith("tone")):
                plain, tone = key[: -len(end)], index
    if code in emoji.tones:
        code, tone = emoji.tones[code]
    elif "skin-tone" in plain or (tone and not code):
        if "skin-tone" in plain:  # two people of two tones: too many to draw
            return None
        code = emoji.lookup(plain)
    if tone and name not in TONED:
        return None
    code = code if code in emoji.labels else emoji.lookup(plain)
    if not code:
        return None
    label = emoji.labels[code]
    words = words_of(label.replace("’", "").replace("'", ""))
    return code, words, f"tone-{tone}" if tone else ""


def wrap(body: str, icon: dict[str, Any], data: dict[str, Any]) -> str:
    """A complete drawing from the body that the set stores and the size it leaves to its defaults."""
    box = [
        icon.get("left", data.get("left", 0)),
        icon.get("top", data.get("top", 0)),
        icon.get("width", data.get("width", 16)),
        icon.get("height", data.get("height", 16)),
    ]
    link = ' xmlns:xlink="http://www.w3.org/1999/xlink"' if "xlink:" in body else ""
    return f'<svg xmlns="http://www.w3.org/2000/svg"{link} viewBox="{" ".join(map(str, box))}">{body}</svg>'


def name_icons(raw: list[Raw], lexicon: Lexicon) -> tuple[list[Icon], list[tuple[str, str]]]:
    """Concepts for all icons. Needs all names at once: `x-off` is a crossed-out x only where x is a name itself."""
    known: dict[str, set[str]] = defaultdict(set)
    for set_name, _, _, words, _, _, _ in raw:
        known[" ".join(strip_variant(words)[0])].add(set_name)
    names = {p for p, sets in known.items() if p in lexicon.senses or len(sets) >= 2}
    per_set: dict[str, set[str]] = defaultdict(set)
    for phrase, sets in known.items():
        for set_name in sets:
            per_set[set_name].add(phrase)
    icons: list[Icon] = []
    aliases: list[tuple[str, str]] = []
    taken: set[tuple[str, str, str]] = set()
    for set_name, spec, key, words, style, svg, code in raw:
        style = style or SET_STYLE.get(set_name, "")
        if code:
            phrase, variant, base, mods = " ".join(words), "", canonical(" ".join(words)), tuple[str, ...]()
        else:
            short, variant = strip_variant(words)
            phrase = " ".join(short)
            base, mods = (canonical(phrase), ()) if spec.kind == "brand" else split_mods(short, names, per_set[set_name])
        full = "-".join(x for x in (style, f"v{variant}" if variant else "") if x)
        mark = (spec.family, f"{phrase}/{spec.kind}", full + ("" if spec.family != "fontawesome" else set_name[:2]))
        if mark in taken and spec.family in {"fontawesome", "material", "lucide"}:
            continue  # the same drawing in another packaging of the family
        taken.add(mark)
        icons.append(Icon(set_name, spec.family, key, full, base, mods, phrase, svg, spec.kind, code))
        plural = base + "s"
        if plural in known:
            aliases.append((base, plural))
    return icons, aliases


def _read_tags(sources: Sources) -> tuple[dict[tuple[str, str], set[str]], list[tuple[str, str]]]:
    tags: dict[tuple[str, str], set[str]] = defaultdict(set)
    aliases: list[tuple[str, str]] = []
    for name, words in json.loads((sources.npm("lucide-static") / "tags.json").read_text()).items():
        tags["lucide", name] |= _clean(words)
    for name, entry in json.loads((sources.npm("@tabler/icons") / "icons.json").read_text()).items():
        words = _clean([*map(str, entry.get("tags", []))])
        tags["tabler", name] |= words
        tags["tabler", f"{name}-filled"] |= words
    for entry in json.loads((sources.npm("@mdi/svg") / "meta.json").read_text()):
        tags["mdi", entry["name"]] |= _clean(entry.get("aliases", []))
    script = (sources.npm("@phosphor-icons/core") / "dist/index.mjs").read_text()
    for match in re.finditer(r'name: "([^"]+)",\s+pascal_name.*?tags: \[(.*?)\]', script, re.DOTALL):
        words = _clean(re.findall(r'"([^"]+)"', match.group(2)))
        for end in ("", "-fill", "-duotone"):
            tags["ph", match.group(1) + end] |= words
    base = sources.python("fontawesomefree") / "static/fontawesomefree/metadata/icon-families.json"
    for name, entry in json.loads(base.read_text()).items():
        words = _clean([*entry.get("search", {}).get("terms", []), entry.get("label", "")])
        for set_name in ("fa7-solid", "fa7-regular", "fa7-brands", "la"):
            tags[set_name, name] |= words
        for other in entry.get("aliases", {}).get("names", []):
            aliases.append((" ".join(words_of(name)), " ".join(words_of(other))))
    return tags, aliases


def _clean(words: list[str]) -> set[str]:
    found = set()
    for word in words:
        text = re.sub(r"[-_]+", " ", word.lower()).strip()
        text = re.sub(r" (?:outlined?|filled|fill|solid|variant|new)$", "", text)
        if len(text) >= 2 and re.fullmatch(r"[a-z][a-z0-9 '&]*", text) and len(text.split()) <= 5:
            found.add(text)
    return found
