"""Desktop applications: descriptions from Debian's AppStream catalogue, drawings from icon themes.

The same application drawn by several themes is the benchmark's "redrawn icon"; its description is the text to find.
"""

from __future__ import annotations

import gzip
import html
import re
from collections.abc import Iterable
from pathlib import Path

from genius.data.icons.model import App, Icon
from genius.data.icons.names import words_of
from genius.data.icons.sources import Sources
from genius.errors import GeniusError

_THEMES = {  # Debian package -> folder of application icons; the first that has one gives the "official" drawing
    "papirus-icon-theme": "usr/share/icons/Papirus/64x64/apps",
    "numix-icon-theme-circle": "usr/share/icons/Numix-Circle/48/apps",
    "breeze-icon-theme": "usr/share/icons/breeze/apps/48",
    "faenza-icon-theme": "usr/share/icons/Faenza/apps/scalable",
}
_MAX_SVG = 30_000


def read_apps(path: Path) -> list[App]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise GeniusError("reading the AppStream catalogue needs PyYAML: pip install pyyaml") from None
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, App] = {}
    for document in text.split(b"\n---\n"):
        if b"Type: desktop-application" not in document:
            continue
        entry = yaml.load(document, Loader=loader)
        name = str((entry.get("Name") or {}).get("C", "")).strip()
        description = _plain(str((entry.get("Description") or {}).get("C", "")))
        summary = str((entry.get("Summary") or {}).get("C", "")).strip()
        base = " ".join(words_of(name))
        if not base or not summary or len(description.split()) < 8 or base in found:
            continue
        icon = entry.get("Icon") or {}
        names = [str(icon.get("stock", "")), str(entry.get("ID", "")).removesuffix(".desktop")]
        names += [str(c.get("name", "")).removesuffix(".png").split("_", 1)[-1] for c in icon.get("cached") or []]
        names += [names[1].rsplit(".", 1)[-1], str(entry.get("Package", "")), name.replace(" ", "-")]
        keys = tuple(dict.fromkeys(k for n in names if n for k in (n, n.lower())))
        found[base] = App(base, name, summary, description, keys)
    return list(found.values())


def _plain(markup: str) -> str:
    text = html.unescape(re.sub(r"<[^>]+>", " ", markup))
    words = re.sub(r"\s+", " ", text).strip().split(" ")
    return " ".join(words[:60])


def theme_icons(sources: Sources, apps: Iterable[App], brands: set[str]) -> tuple[list[Icon], list[App]]:
    """Drawings of the applications, and the applications that have at least two hands' drawings."""
    roots = {name: sources.debian(name) / folder for name, folder in _THEMES.items()}
    icons: list[Icon] = []
    kept: list[App] = []
    for app in apps:
        drawn = []
        for theme, root in roots.items():
            svg = _first(root, app.keys)
            if svg is not None:
                slug = app.base.replace(" ", "-")
                drawn.append(Icon(theme, theme, slug, "", app.base, (), app.base, svg, "app"))
        if len(drawn) + (app.base in brands) >= 2:
            icons.extend(drawn)
            kept.append(app)
    return icons, kept


def _first(root: Path, keys: tuple[str, ...]) -> str | None:
    for key in keys:
        path = root / f"{key}.svg"
        if "/" in key or not path.exists():
            continue
        svg = minify(path.read_text("utf-8", "replace"))
        if len(svg) <= _MAX_SVG and "<image" not in svg:
            return svg
    return None


def minify(svg: str) -> str:
    """Drops what drawing programs leave behind and no renderer looks at."""
    svg = re.sub(r"<\?xml.*?\?>|<!--.*?-->|<!DOCTYPE[^>]*>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r"<metadata.*?</metadata>|<sodipodi:namedview.*?(?:/>|</sodipodi:namedview>)", "", svg, flags=re.DOTALL
    )
    svg = re.sub(r'\s(?:inkscape|sodipodi):[\w-]+="[^"]*"', "", svg)
    svg = re.sub(r"(\.\d{2})\d+", r"\1", svg)
    return re.sub(r">\s+<", "><", re.sub(r"\s+", " ", svg)).strip()
