"""Pictograms of our own, as SVG paths on a square of 24: a small collection to search in the documentation's live demo."""

from __future__ import annotations

from pathlib import Path

from genius.index import Index
from genius.model.genius import Genius
from genius.types import Item

# name -> (filled shapes, drawn lines)
PICTOGRAMS: dict[str, tuple[str, str]] = {
    "umbrella": ("M2 12a10 10 0 0 1 20 0z", "M12 12v7a2.5 2.5 0 0 1-5 0"),
    "house": ("M12 3 2 12h3v9h5v-6h4v6h5v-9h3z", ""),
    "sun": ("M12 7a5 5 0 1 0 0 10 5 5 0 0 0 0-10z", "M12 1v3M12 20v3M1 12h3M20 12h3M4 4l2 2M18 18l2 2M20 4l-2 2M6 18l-2 2"),
    "heart": ("M12 21C4 15 1 11 2 7c1-4 7-5 10 0 3-5 9-4 10 0 1 4-2 8-10 14z", ""),
    "star": ("M12 1.5 15.2 8.6 23 9.4 17.2 14.6 18.8 22.3 12 18.4 5.2 22.3 6.8 14.6 1 9.4 8.8 8.6z", ""),
    "letter": ("", "M2 5h20v14H2zM2 5l10 8L22 5"),
    "key": ("", "M7 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM11 12h11M18 12v4M22 12v4"),
    "tree": ("M12 1 5 10h3l-5 7h18l-5-7h3zM10.5 17h3v6h-3z", ""),
    "cup": ("M3 7h14v7a6 6 0 0 1-6 6H9a6 6 0 0 1-6-6z", "M17 9h2a3 3 0 0 1 0 6h-2M7 2v3M11 2v3"),
    "lightning": ("M13 1 4 14h7l-1 9 10-14h-7z", ""),
    "moon": ("M15 2a10 10 0 1 0 7 14A9 9 0 0 1 15 2z", ""),
    "cloud": ("M7 19a5 5 0 0 1-.5-10A6.5 6.5 0 0 1 19 10.500a4.300 4.300 0 0 1-1 8.500z", ""),
    "fish": ("M2 12c4-7 11-7 15-2l5-4v12l-5-4c-4 5-11 5-15-2z", ""),
    "flag": ("M5 3h15l-4 5 4 5H5z", "M5 2v21"),
    "bell": ("M12 2a6 6 0 0 0-6 6v6l-2.500 4h17L18 14V8a6 6 0 0 0-6-6zM9.500 19.500a2.500 2.500 0 0 0 5 0z", ""),
    "lock": ("M4 11h16v11H4z", "M7 11V7a5 5 0 0 1 10 0v4"),
    "clock": ("", "M12 2a10 10 0 1 0 0 20 10 10 0 0 0 0-20zM12 6v6l4 3"),
    "glass": ("", "M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM15 15l7 7"),
    "drop": ("M12 2c5 7 7 9.500 7 13a7 7 0 0 1-14 0c0-3.500 2-6 7-13z", ""),
    "music": ("M8 16a3.500 3 0 1 0 0 6 3.500 3 0 0 0 0-6zM18 14a3.500 3 0 1 0 0 6 3.500 3 0 0 0 0-6z", "M10.800 19V4l10-2v15"),
    "car": ("M2 13l3-7h12l4 7v6H2z", "M6 20a2 2 0 1 0 .1 0M17 20a2 2 0 1 0 .1 0"),
    "scissors": ("", "M6 3a3 3 0 1 0 .1 0zM6 15a3 3 0 1 0 .1 0zM8.500 8 21 19M8.500 16.500 21 5"),
    "book": ("", "M12 5C9 3 5 3 2 4v15c3-1 7-1 10 1 3-2 7-2 10-1V4c-3-1-7-1-10 1zM12 5v15"),
    "camera": ("", "M2 7h5l2-3h6l2 3h5v13H2zM12 9a4.500 4.500 0 1 0 .1 0"),
}
COLOURS = {"black": "#1d1b26", "red": "#d62828", "blue": "#2654d6", "green": "#2e8b43", "orange": "#e0761e", "purple": "#8c3cbe"}
LOOKS = ("filled", "outlined")


def names() -> list[str]:
    """`umbrella red filled`: every pictogram in every colour and look."""
    return [f"{name} {colour} {look}" for name in PICTOGRAMS for colour in COLOURS for look in LOOKS]


def shape(name: str) -> str:
    """The SVG of one, on a square of 24."""
    what, colour, look = name.split()
    fill, lines = PICTOGRAMS[what]
    ink = COLOURS[colour]
    line = f'stroke="{ink}" stroke-width="2" stroke-linejoin="round" stroke-linecap="round"'
    inside = f'fill="{ink}"' if look == "filled" else f'fill="none" {line}'
    parts = [f'<path d="{fill}" {inside}/>'] if fill else []
    return "".join([*parts, *([f'<path d="{lines}" fill="none" {line}/>'] if lines else [])])


def picture(name: str) -> str:
    """A whole SVG file."""
    ground = '<rect x="-1" y="-1" width="26" height="26" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 26 26" width="128" height="128">{ground}{shape(name)}</svg>'


def build(folder: Path) -> Path:
    """An index of every pictogram in every colour, and of their names."""
    files = folder / "drawings"
    files.mkdir()
    items = []
    for name in names():
        path = files / f"{name.replace(' ', '-')}.svg"
        path.write_text(picture(name), encoding="utf-8")
        items.append(Item(name, image=path, metadata={"name": name}))
    items += [Item(name, text=name) for name in PICTOGRAMS]
    path = folder / "drawings.genius"
    with Index(path, Genius.from_pretrained("bundled:mini")) as index:
        index.add(items)
    return path
