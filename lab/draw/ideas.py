"""Drawings of ideas, for people who know CLIP: two ways from a question to an answer, and how codes come to be."""

from __future__ import annotations

import math
import random

from lab.draw.svg import ACCENT, INK, LINE, SOFT, WASH, Svg

HUES = ("#d62828", "#2654d6", "#2ea043", "#e0a010", "#8c3cbe")


def two_ways() -> Svg:
    """The same encoder; behind it a list that is compared, or a decoder that writes."""
    svg = Svg(1120, 380, "CLIP compares a vector with all others; GENIUS writes an ID")
    for row, (name, note) in enumerate((("CLIP + a vector index", "near is good"), ("GENIUS", "written is found"))):
        y = 70 + row * 180
        svg.text(24, y - 26, name, 19, INK, weight=700)
        svg.text(24 + 13 * len(name), y - 26, note, 14, SOFT)
        _box(svg, 24, y, 120, 74, "question", "words, picture")
        svg.arrow(148, y + 37, 188, y + 37)
        _box(svg, 192, y, 120, 74, "encoder", "CLIP, SigLIP …")
        svg.arrow(316, y + 37, 356, y + 37)
        _vector(svg, 362, y + 8)
    y = 70
    svg.arrow(404, y + 37, 470, y + 37)
    rng = random.Random(1)
    for i in range(230):
        x, v = 480 + (i % 46) * 11, y - 2 + i // 46 * 18
        svg.circle(x, v, 3.4, HUES[rng.randrange(5)] if rng.random() < 0.12 else LINE)
    svg.text(480, y + 106, "compare with every vector, or walk a graph of them", 14, SOFT)
    svg.arrow(990, y + 37, 1030, y + 37)
    svg.circle(1056, y + 37, 13, HUES[1])
    y = 250
    svg.arrow(404, y + 37, 440, y + 37)
    _box(svg, 444, y, 110, 74, "decoder", "a small one", ACCENT)
    for i, code in enumerate(("picture", "17", "402", "9", "…")):
        x = 590 + i * 78
        svg.rect(x, y + 14, 66, 46, WASH, ACCENT)
        svg.text(x + 33, y + 43, code, 15, ACCENT, "middle", 700)
    svg.arrow(558, y + 37, 584, y + 37)
    svg.text(590, y + 92, "one code after another; only IDs that exist can be written", 14, SOFT)
    svg.arrow(990, y + 37, 1030, y + 37)
    svg.circle(1056, y + 37, 13, HUES[1])
    return svg


def residuals() -> Svg:
    """Coarse to fine: each code takes off what it stands for, the next describes what is left."""
    svg = Svg(1120, 330, "An ID is coarse to fine: each code describes what the codes before have left over")
    titles = ("first code: the kind", "second code: the region", "third code: where in it", "later codes: what is left")
    rng = random.Random(5)
    points = [(cx + rng.gauss(0, 16), cy + rng.gauss(0, 16), k) for k, (cx, cy) in enumerate(CENTRES) for _ in range(14)]
    target = points[17]
    for i, title in enumerate(titles):
        x, y, zoom = 24 + i * 274, 64, (1, 1, 2, 4)[i]
        svg.text(x, 40, title, 14.5, INK, weight=600)
        svg.rect(x, y, 250, 210, "#fff")
        svg.raw(
            f'<clipPath id="c{i}"><rect x="{x}" y="{y}" width="250" height="210" rx="10"/></clipPath><g clip-path="url(#c{i})">'
        )
        fx, fy = (125.0, 105.0) if zoom == 1 else target[:2]
        for px, py, k in points:
            u, v = x + 125 + (px - fx) * zoom, y + 105 + (py - fy) * zoom
            own = i == 0 or k == target[2]
            svg.circle(u, v, 4 if zoom < 4 else 7, HUES[k] if own else LINE)
        if i:
            for k, (cx, cy) in enumerate(CENTRES):
                svg.circle(
                    x + 125 + (cx - fx) * zoom, y + 105 + (cy - fy) * zoom, 9, "none", ACCENT if k == target[2] else LINE, 2
                )
        svg.circle(x + 125 + (target[0] - fx) * zoom, y + 105 + (target[1] - fy) * zoom, 10, "none", INK, 2.5)
        svg.raw("</g>")
    svg.text(
        24,
        306,
        "the ringed item, described by: its kind, then the nearest centre, then the nearest centre of what remains, and so on",
        14,
        SOFT,
    )
    return svg


CENTRES = ((60, 60), (190, 70), (70, 160), (165, 165), (125, 108))


def trie() -> Svg:
    """IDs that exist form a tree; a beam walks it; the budget says where it may stop."""
    svg = Svg(1120, 360, "The IDs that exist form a tree, and only its branches can be written")
    svg.text(24, 38, "IDs that exist form a tree: only its branches can be written", 17, INK, weight=700)
    root, rng = (70.0, 188.0), random.Random(2)
    svg.circle(*root, 11, ACCENT)
    for i in range(3):
        a = (270.0, 92.0 + i * 96)
        svg.curve(root, a, ACCENT if i == 1 else LINE, 3 if i == 1 else 1.5)
        for j in range(3):
            b = (520.0, a[1] - 32 + j * 32)
            on = i == 1 and j < 2
            svg.curve(a, b, ACCENT if on else LINE, 2.5 if on else 1.2)
            for k in range(3):
                c = (770.0, b[1] - 9 + k * 9)
                svg.curve(b, c, ACCENT if on and k == 0 else LINE, 2 if on and k == 0 else 0.8)
                svg.circle(*c, 3, ACCENT if on else LINE)
            svg.circle(*b, 6, ACCENT if on else "#fff", ACCENT if on else LINE, 2)
        svg.circle(*a, 8, ACCENT if i == 1 else "#fff", ACCENT if i == 1 else LINE, 2)
    for x, words in ((70, "everything"), (270, "kind"), (520, "code"), (770, "code …")):
        svg.text(x, 346, words, 14, SOFT, "middle")
    for n in range(18):
        svg.circle(860 + n % 6 * 26, 150 + n // 6 * 28, 8, HUES[rng.randrange(5)] if n != 8 else HUES[1])
    svg.arrow(786, 190, 840, 190)
    svg.text(852, 258, "few enough are left:", 14, SOFT)
    svg.text(852, 278, "rank them by their vectors", 14, SOFT)
    return svg


def _box(svg: Svg, x: float, y: float, w: float, h: float, name: str, note: str, stroke: str = LINE) -> None:
    svg.rect(x, y, w, h, "#fff", stroke, wide=2 if stroke == ACCENT else 1)
    svg.text(x + w / 2, y + 32, name, 16, INK, "middle", 650)
    svg.text(x + w / 2, y + 54, note, 13, SOFT, "middle")


def _vector(svg: Svg, x: float, y: float) -> None:
    for i in range(6):
        shade = 0.25 + 0.75 * abs(math.sin(2.3 * i + 1))
        svg.raw(f'<rect x="{x}" y="{y + i * 10}" width="32" height="8" fill="{ACCENT}" opacity="{shade:.2f}"/>')
