"""A real beam search as a picture: the codes of an ID, generated one after another while the collection narrows.

The collection is our own pictograms, so that the picture is ours; the model is `bundled:mini`. `record` runs the search and keeps
its beams as JSON, `draw` makes the picture from it.
"""

from __future__ import annotations

import datetime
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from genius.model.genius import Genius
from genius.search.trie import CodeTrie
from genius.types import Item, Modality, Query
from lab import current_commit
from lab.draw.pictograms import names, picture, shape
from lab.draw.svg import ACCENT, INK, LINE, SOFT, WASH, Svg

QUERY, BEAMS, LEVELS, SHOWN = "protect against rain", 3, 4, 6


@torch.no_grad()
def record() -> dict[str, Any]:
    """Every step of a search with `BEAMS` beams: prefixes kept, the best one not kept, and the items below each."""
    model, drawn = Genius.from_pretrained("bundled:mini"), names()
    with tempfile.TemporaryDirectory() as folder:
        for name in drawn:
            (Path(folder) / f"{name}.svg").write_text(picture(name), encoding="utf-8")
        embedded = model.embed_items([Item(name, image=Path(folder) / f"{name}.svg") for name in drawn])
    codes = model.quantizer.encode(embedded.z, embedded.modality)
    trie = CodeTrie.build(codes, model.config.quantizer.level_sizes)
    z = model.embed_queries([Query(text=QUERY, target=Modality.IMAGE)]).z
    beams: list[tuple[tuple[int, ...], float]] = [((int(Modality.IMAGE),), 0.0)]
    levels = []
    for _ in range(LEVELS):
        extended: list[tuple[float, tuple[int, ...], float]] = []
        for prefix, score in beams:
            log_p = model.generator.next_log_probs(z, torch.tensor([prefix]))[0]
            following = trie.children(prefix)[0].tolist()
            extended += [(score + float(log_p[code]), (*prefix, code), float(log_p[code])) for code in following]
        extended.sort(reverse=True)
        kept = extended[:BEAMS]
        beams = [(prefix, score) for score, prefix, _ in kept]
        prefixes = []
        for place, (score, prefix, log_p_of_code) in enumerate(extended[: BEAMS + 1]):
            prefixes.append(_prefix(trie, drawn, prefix, score, log_p_of_code, place < BEAMS))
        levels.append({"candidates": len(extended), "prefixes": prefixes})
    return {
        "date": datetime.date.today().isoformat(),
        "commit": current_commit(),
        "model": "bundled:mini " + model.fingerprint(),
        "query": QUERY,
        "beams": BEAMS,
        "items": len(drawn),
        "levels": levels,
    }


def _prefix(trie: CodeTrie, drawn: list[str], prefix: tuple[int, ...], score: float, log_p: float, kept: bool) -> dict[str, Any]:
    below = [drawn[int(row)] for row in trie.rows_below(prefix)]
    first = {
        what: next(name for name in below if name.startswith(what))
        for what, _ in Counter(n.split()[0] for n in below).most_common()
    }
    shown = [*first.values(), *(name for name in below if name not in first.values())][:SHOWN]
    facts = {"items": len(below), "score": round(score, 3), "log_p": round(log_p, 3), "kept": kept}
    return {"prefix": list(prefix), **facts, "things": shown}


def thing(svg: Svg, name: str, x: float, y: float, unit: float, faint: bool) -> None:
    """One pictogram, centred, in a square of side `unit`."""
    place = f"translate({x - unit / 2:.1f} {y - unit / 2:.1f}) scale({unit / 24:.3f})"
    svg.raw(f'<g transform="{place}" opacity="{0.35 if faint else 1}">{shape(name)}</g>')


def draw(body: dict[str, Any]) -> Svg:
    """Columns are codes, boxes are prefixes; prefixes that were not kept are faint."""
    wide, high, gap, left, top = 200, 92, 44, 24, 96
    columns = len(body["levels"])
    svg = Svg(left * 2 + 190 + columns * (wide + gap), top + (BEAMS + 1) * (high + 14) + 34, f"A search for “{body['query']}”")
    svg.text(left, 40, f"“{body['query']}”", 24, INK, weight=700)
    svg.text(
        left,
        66,
        f"{body['items']} drawings of our own; {body['beams']} beams are kept at every step",
        14,
        SOFT,
    )
    svg.rect(left, top, 150, high, WASH, ACCENT, wide=2)
    svg.text(left + 14, top + 30, "image", 18, ACCENT, weight=700)
    svg.text(left + 14, top + 52, "code 1: modality", 13, SOFT)
    svg.text(left + 14, top + 72, f"{body['items']} items", 13, SOFT)
    places: dict[tuple[int, ...], tuple[float, float]] = {(0,): (left + 150, top + high / 2)}
    for number, level in enumerate(body["levels"]):
        x = left + 150 + gap + number * (wide + gap)
        svg.text(x, top - 8, f"code {number + 2}: {level['candidates']} exist", 13, SOFT)
        here: dict[tuple[int, ...], tuple[float, float]] = {}
        for row, prefix in enumerate(level["prefixes"]):
            y, kept, best = top + row * (high + 14), prefix["kept"], row == 0
            start = places.get(tuple(prefix["prefix"][:-1]))
            if start is not None:
                svg.curve(start, (x, y + high / 2), ACCENT if best else LINE, 3 if best else 1.5)
            svg.rect(x, y, wide, high, "#fff" if kept else "none", ACCENT if best else LINE, wide=2 if best else 1)
            ink = INK if kept else SOFT
            svg.text(x + 12, y + 24, str(prefix["prefix"][-1]), 17, ink, weight=700)
            svg.text(x + wide - 12, y + 23, f"log p {prefix['log_p']:.1f}", 12.5, SOFT, "end")
            for i, name in enumerate(prefix["things"]):
                thing(svg, name, x + 26 + 30 * i, y + 51, 23, not kept)
            count = f"{prefix['items']} {'item' if prefix['items'] == 1 else 'items'}" + ("" if kept else ", not kept")
            svg.text(x + 12, y + high - 10, count, 12.5, SOFT)
            here[tuple(prefix["prefix"])] = (x + wide, y + high / 2)
        places = here
    return svg
