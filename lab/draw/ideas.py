"""Diagrams for readers who know CLIP: dense and generative retrieval, the three plans, residual codes, the trie."""

from __future__ import annotations

import math
import random

from lab.draw.svg import ACCENT, INK, LINE, SOFT, WASH, Svg

HUES = ("#d62828", "#2654d6", "#2ea043", "#e0a010", "#8c3cbe")
CENTROIDS = ((60, 60), (190, 70), (70, 160), (165, 165), (125, 108))


def two_ways() -> Svg:
    """One encoder; behind it an index of vectors, or a decoder that generates an ID."""
    svg = Svg(1120, 400, "Dense retrieval compares vectors; generative retrieval generates an ID")
    titles = (
        ("Dense retrieval", "items are vectors; the most similar vectors win"),
        ("Generative retrieval", "items have IDs; the decoder generates the ID of the item"),
    )
    for row, (name, note) in enumerate(titles):
        y = 84 + row * 190
        svg.text(24, y - 46, name, 19, INK, weight=700)
        svg.text(24, y - 22, note, 14, SOFT)
        _box(svg, 24, y, 120, 74, "query", "text, image")
        svg.arrow(148, y + 37, 188, y + 37)
        _box(svg, 192, y, 120, 74, "encoder", "CLIP, SigLIP …")
        svg.arrow(316, y + 37, 356, y + 37)
        _vector(svg, 362, y + 8)
        svg.arrow(990, y + 37, 1030, y + 37)
        svg.circle(1056, y + 37, 13, HUES[1])
    y = 84
    svg.arrow(404, y + 37, 470, y + 37)
    rng = random.Random(1)
    for i in range(230):
        colour = HUES[rng.randrange(5)] if rng.random() < 0.12 else LINE
        svg.circle(480 + (i % 46) * 11, y - 2 + i // 46 * 18, 3.4, colour)
    svg.text(480, y + 106, "compare with all vectors, or with those that an ANN index selects", 14, SOFT)
    y = 274
    svg.arrow(404, y + 37, 440, y + 37)
    _box(svg, 444, y, 110, 74, "decoder", "3 - 6 layers", ACCENT)
    svg.arrow(558, y + 37, 584, y + 37)
    for i, code in enumerate(("image", "17", "402", "9", "…")):
        x = 590 + i * 78
        svg.rect(x, y + 14, 66, 46, WASH, ACCENT)
        svg.text(x + 33, y + 43, code, 15, ACCENT, "middle", 700)
    svg.text(590, y + 92, "one code per step; a trie allows only IDs that exist", 14, SOFT)
    return svg


def plans() -> Svg:
    """The three plans of a search, and what follows all of them."""
    svg = Svg(1120, 360, "Three plans produce candidates; one re-ranker orders them")
    svg.text(24, 38, "One search: a plan finds candidates, a re-ranker orders them", 17, INK, weight=700)
    _box(svg, 24, 150, 130, 84, "query", "vector z, target")
    rows = (
        ("Flat", "compares all vectors of the target modality: exact, for small collections"),
        ("Scan", "Faiss IVF-PQ: probes cells, scores codes of 16 bytes, keeps the best"),
        ("Beam", "the decoder generates IDs under the trie: the paper's GENIUS"),
    )
    for row, (name, note) in enumerate(rows):
        y = 66 + row * 88
        svg.curve((154, 192), (206, y + 34), ACCENT, 1.8)
        svg.rect(210, y, 540, 68, WASH if name == "Beam" else "#fff", ACCENT, wide=1.5)
        svg.text(228, y + 29, name, 17, ACCENT, weight=700)
        svg.text(228, y + 52, note, 14, INK)
        svg.curve((750, y + 34), (802, 192), ACCENT, 1.8)
    _box(svg, 806, 150, 148, 84, "re-ranker", "vectors, codes, none")
    svg.arrow(958, 192, 990, 192)
    _box(svg, 994, 150, 102, 84, "hits", "id, score")
    svg.text(24, 338, "The modality's log-probability is part of the score in every plan; a given target is a filter.", 14, SOFT)
    return svg


def residuals() -> Svg:
    """Coarse to fine: each code is the nearest centroid of the residual that the codes before have left."""
    svg = Svg(1120, 330, "An ID goes from coarse to fine: each code quantizes the residual of the codes before")
    titles = ("first code: the modality", "second code: the region", "third code: within the region", "later codes: the residual")
    rng = random.Random(5)
    points = [(cx + rng.gauss(0, 16), cy + rng.gauss(0, 16), k) for k, (cx, cy) in enumerate(CENTROIDS) for _ in range(14)]
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
            for k, (cx, cy) in enumerate(CENTROIDS):
                ring = ACCENT if k == target[2] else LINE
                svg.circle(x + 125 + (cx - fx) * zoom, y + 105 + (cy - fy) * zoom, 9, "none", ring, 2)
        svg.circle(x + 125 + (target[0] - fx) * zoom, y + 105 + (target[1] - fy) * zoom, 10, "none", INK, 2.5)
        svg.raw("</g>")
    note = "the ringed item: its modality, then the nearest centroid, then the nearest centroid of the residual, and so on"
    svg.text(24, 306, note, 14, SOFT)
    return svg


def trie() -> Svg:
    """The IDs that exist form a trie; beam search expands its branches only."""
    svg = Svg(1120, 360, "The IDs that exist form a trie, and only its branches can be generated")
    svg.text(24, 38, "The IDs that exist form a trie: only its branches can be generated", 17, INK, weight=700)
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
    for x, words in ((70, "all items"), (270, "modality"), (520, "code"), (770, "code …")):
        svg.text(x, 346, words, 14, SOFT, "middle")
    for n in range(18):
        svg.circle(860 + n % 6 * 26, 150 + n // 6 * 28, 8, HUES[rng.randrange(5)] if n != 8 else HUES[1])
    svg.arrow(786, 190, 840, 190)
    svg.text(852, 258, "items of the generated IDs,", 14, SOFT)
    svg.text(852, 278, "re-ranked by their vectors (GENIUS^R)", 13, SOFT)
    return svg


def logo() -> str:
    """The mark of the project: a path through a trie. White, for the coloured header of the site."""
    return _mark("#fff")


def favicon() -> str:
    return _mark(ACCENT)


def _mark(ink: str) -> str:
    points = ((4, 5), (10, 11), (16, 8.5), (20, 19))
    path = " ".join(f"{x},{y}" for x, y in points)
    dots = "".join(f'<circle cx="{x}" cy="{y}" r="{2.6 if i in (0, 3) else 1.9}"/>' for i, (x, y) in enumerate(points))
    faint = f'<path d="M4 5 4 19M10 11 10 20M16 8.500 20 4" stroke="{ink}" stroke-width="1.300" opacity=".45"/>'
    line = f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="2" stroke-linejoin="round"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="{ink}">{faint}{line}{dots}</svg>\n'


def _box(svg: Svg, x: float, y: float, w: float, h: float, name: str, note: str, stroke: str = LINE) -> None:
    svg.rect(x, y, w, h, "#fff", stroke, wide=2 if stroke == ACCENT else 1)
    svg.text(x + w / 2, y + h / 2 - 5, name, 16, INK, "middle", 650)
    svg.text(x + w / 2, y + h / 2 + 17, note, 13, SOFT, "middle")


def _vector(svg: Svg, x: float, y: float) -> None:
    for i in range(6):
        shade = 0.25 + 0.75 * abs(math.sin(2.3 * i + 1))
        svg.raw(f'<rect x="{x}" y="{y + i * 10}" width="32" height="8" fill="{ACCENT}" opacity="{shade:.2f}"/>')
