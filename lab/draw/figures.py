"""The paper's figures on drawings of our own: what codes mean, the embedding space in two dimensions, queries with results.

The collection is 288 pictograms and their 24 names, the model is `bundled:mini`, which has not seen them. `record` measures and
keeps the figures as JSON; the other functions draw them. Queries and positives were fixed before any result was seen.
"""

from __future__ import annotations

import datetime
import math
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genius.flatten import flattened
from genius.index import Index
from genius.model.genius import Genius
from genius.search.trie import CodeTrie
from genius.types import Item, Modality, Query
from lab import current_commit
from lab.draw.beam import thing
from lab.draw.pictograms import PICTOGRAMS, names, picture
from lab.draw.svg import ACCENT, INK, LINE, SOFT, WASH, Svg

CODES, SHOWN, WORDS, RESULTS = 8, 8, 4, 6
CALLED = {"glass": "magnifying glass", "drop": "water drop", "music": "music note"}  # where the short name says something else

TEXTS = (
    "rain", "weather", "night", "love", "favourite", "mail", "secret", "forest", "coffee", "energy", "sea", "country", "alarm",
    "safety", "time", "search", "water", "song", "drive", "cut", "read", "photograph", "home", "warm", "hot drink", "nature",
)  # fmt: skip

# (query text, query image, target modality, names of positives)
QUERIES: tuple[tuple[str, str, str, str], ...] = (
    ("protect against rain", "", "image", "umbrella"),
    ("send a message on paper", "", "image", "letter"),
    ("the night sky", "", "image", "moon star"),
    ("open a door", "", "image", "key lock"),
    ("something warm to drink", "", "image", "cup"),
    ("a red heart", "", "image", "heart"),
    ("take a photo", "", "image", "camera"),
    ("", "fish blue filled", "image", "fish"),
    ("", "clock green outlined", "image", "clock"),
    ("make it filled", "star blue outlined", "image", "star"),
    ("the same in red", "house green filled", "image", "house"),
    ("", "scissors black outlined", "text", "scissors"),
    ("weather", "", "text", "sun cloud umbrella lightning drop"),
)


def called(name: str) -> str:
    return CALLED.get(name, name)


@torch.no_grad()
def record() -> dict[str, Any]:
    model, drawn, things = Genius.from_pretrained("bundled:mini"), names(), list(PICTOGRAMS)
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.svg" for name in drawn}
        for name, path in files.items():
            path.write_text(picture(name), encoding="utf-8")
        pictures = [Item(name, image=path) for name, path in files.items()]
        texts = [Item(name, text=called(name)) for name in things]
        index = Index(Path(folder) / "own.genius", model, durable=False)
        index.add([*pictures, *texts])
        seen = model.embed_items(pictures)
        results = [_search(index, files, *query) for query in QUERIES]
        index.close()
    body = {
        "date": datetime.date.today().isoformat(),
        "commit": current_commit(),
        "model": "bundled:mini " + model.fingerprint(),
        "pictures": len(drawn),
    }
    read = model.embed_items(texts)
    return {**body, **_codes(model, seen.z, drawn, things), **_plane(seen.dense, read.dense, drawn, things), "results": results}


def _search(index: Index, files: dict[str, Path], words: str, shown: str, target: str, right: str) -> dict[str, Any]:
    found = index.search(words or None, image=files[shown] if shown else None, target=target, k=RESULTS + 1)
    hits = [hit.id for hit in found if hit.id != shown][:RESULTS]
    return {"text": words, "picture": shown, "target": target, "right": right.split(), "hits": hits}


def _codes(model: Genius, z: torch.Tensor, drawn: list[str], things: list[str]) -> dict[str, Any]:
    """Second codes of images with the most varied items: drawings below the code, and texts that generate it."""
    modalities = torch.full((len(z),), int(Modality.IMAGE))
    trie = CodeTrie.build(model.quantizer.encode(z, modalities), model.config.quantizer.level_sizes)
    texts = [*map(called, things), *TEXTS]
    embedded = model.embed_queries([Query(text=text, target=Modality.IMAGE) for text in texts]).z
    log_p = model.generator.next_log_probs(embedded, torch.zeros(len(texts), 1, dtype=torch.long))
    existing = np.asarray(trie.children((0,))[0])
    first = existing[log_p[:, torch.from_numpy(existing.astype(np.int64))].argmax(1).numpy()]
    texts_of: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for row, (code, text) in enumerate(zip(first.tolist(), texts, strict=True)):
        texts_of[code].append((float(log_p[row, code]), text))
    below = {code: [drawn[int(row)] for row in trie.rows_below((0, code))] for code in existing.tolist()}
    things_of = {code: {name.split()[0] for name in group} for code, group in below.items()}
    richest = sorted(below, key=lambda code: (-len(things_of[code]), -len(below[code])))[:CODES]
    shown = []
    for code in richest:
        words = [[text, round(p, 2)] for p, text in sorted(texts_of[code], reverse=True)[:WORDS]]
        shown.append({"code": code, "items": len(below[code]), "things": _varied(below[code]), "words": words})
    own = sum(name in things_of[code] for name, code in zip(things, first.tolist(), strict=False))  # the names come first
    deeper = [
        [drawn[int(row)] for row in trie.rows_below((0, richest[0], int(code)))] for code in trie.children((0, richest[0]))[0]
    ]
    return {
        "second_codes": len(existing),
        "codes": shown,
        "names_whose_code_holds_the_thing": own,
        "deeper": {"code": richest[0], "groups": [_varied(group) for group in sorted(deeper, key=len)[::-1]]},
    }


def _varied(below: list[str]) -> list[str]:
    """Up to `SHOWN` of them, each thing once before any twice."""
    first = {name.split()[0]: name for name in reversed(below)}
    return [*first.values(), *(name for name in below if name not in first.values())][:SHOWN]


def _plane(seen: torch.Tensor, read: torch.Tensor, drawn: list[str], things: list[str]) -> dict[str, Any]:
    """UMAP of images and names, centred per modality; and how often the most similar image of a name shows that thing."""
    near = (read @ seen.T).argmax(1).tolist()
    right = sum(drawn[row].split()[0] == name for row, name in zip(near, things, strict=True))
    centred = torch.cat([seen - seen.mean(0), read - read.mean(0)])
    flat = flattened(torch.nn.functional.normalize(centred, dim=1).numpy())
    low, high = flat.min(0), flat.max(0)
    places = ((flat - low) / (high - low)).round(3).tolist()
    return {
        "places": dict(zip(drawn, places[: len(drawn)], strict=True)),
        "names": dict(zip(things, places[len(drawn) :], strict=True)),
        "names_whose_nearest_picture_shows_them": right,
    }


def codes(body: dict[str, Any]) -> Svg:
    """Eight codes as boxes, and below them the fullest one divided by its next code."""
    wide, high, gap, left, top = 268, 150, 16, 24, 92
    per = 4
    rows = -(-len(body["codes"]) // per)
    groups = body["deeper"]["groups"][:10]
    svg = Svg(left * 2 + per * (wide + gap) - gap, top + rows * (high + gap) + 190, "What the second code of an image means")
    svg.text(
        left,
        40,
        "The second code of an image: drawings that have it, and texts for which the decoder generates it",
        20,
        INK,
        weight=700,
    )
    svg.text(
        left,
        66,
        f"{len(body['codes'])} of {body['second_codes']} codes, those with most items; {body['pictures']} drawings",
        14,
        SOFT,
    )
    for number, entry in enumerate(body["codes"]):
        x, y = left + number % per * (wide + gap), top + number // per * (high + gap)
        svg.rect(x, y, wide, high)
        svg.text(x + 14, y + 28, str(entry["code"]), 19, ACCENT, weight=700)
        svg.text(x + wide - 14, y + 27, f"{entry['items']} drawings", 13, SOFT, "end")
        for i, name in enumerate(entry["things"]):
            thing(svg, name, x + 28 + 30.5 * i, y + 58, 24, False)
        for i, (text, log_p) in enumerate(entry["words"][:3]):
            svg.text(x + 14, y + 95 + 19 * i, f"“{text}”", 13.5, INK)
            svg.text(x + wide - 14, y + 95 + 19 * i, f"p {math.exp(log_p):.2f}", 12.5, SOFT, "end")
        if not entry["words"]:
            svg.text(x + 14, y + 95, "none of the texts", 13, SOFT)
    y = top + rows * (high + gap) + 22
    svg.text(left, y, f"Code {body['deeper']['code']} divided by the next code", 16, INK, weight=700)
    at = left
    for group in groups:
        room = 18 + 28 * len(group)
        if at + room > svg.width - left:
            break
        svg.rect(at, y + 18, room, 52, WASH, LINE)
        for i, name in enumerate(group):
            thing(svg, name, at + 23 + 28 * i, y + 44, 22, False)
        at += room + 10
    own = body["names_whose_code_holds_the_thing"]
    said = f"For {own} of {len(body['names'])} names, the generated second code holds a drawing of that thing."
    svg.text(left, y + 108, said, 14, SOFT)
    return svg


def plane(body: dict[str, Any]) -> Svg:
    """Every drawing and every name at its UMAP position."""
    wide, high, left, top = 1000, 660, 90, 130
    svg = Svg(wide + 2 * left, high + top + 50, "Drawings and their names in two dimensions")
    svg.text(24, 40, "288 drawings and their names, UMAP of the embeddings", 20, INK, weight=700)
    right, total = body["names_whose_nearest_picture_shows_them"], len(body["names"])
    svg.text(
        24,
        66,
        f"overlapping items are moved apart; for {right} of {total} names the most similar drawing shows that thing",
        14,
        SOFT,
    )

    spots = {**body["places"], **{called(name): place for name, place in body["names"].items()}}
    roomy = [9.5 if name in body["places"] else 6.0 + 2.8 * min(len(name), 8) for name in spots]
    apart = _apart(np.array(list(spots.values())) * (wide, high) + (left, top), np.array(roomy))
    for name, (x, y) in zip(spots, apart.tolist(), strict=True):
        if name in body["places"]:
            thing(svg, name, x, y, 17, False)
        else:
            svg.rect(x - 4 * len(name) - 6, y - 10, 8 * len(name) + 12, 20, "#fff", ACCENT, 6)
            svg.text(x, y + 4.5, name, 12.5, ACCENT, "middle", 650)
    return svg


def _apart(places: np.ndarray, radius: np.ndarray, rounds: int = 200) -> np.ndarray:
    """Push overlapping items apart, a little in each round."""
    least = radius[:, None] + radius
    places = places + 0.01 * np.stack([np.cos(np.arange(len(places))), np.sin(np.arange(len(places)))], 1)  # none on another
    for _ in range(rounds):
        gap = places[:, None] - places
        far = np.hypot(*gap.transpose(2, 0, 1)) + 1e-6
        push = np.where((far < least) & ~np.eye(len(places), dtype=bool), (least - far) / far, 0.0)
        places = places + 0.25 * (push[..., None] * gap).sum(1)
    return places


def sheet(body: dict[str, Any]) -> Svg:
    """One query per row; positives have a frame."""
    left, row, cell, start = 24, 66, 92, 470
    svg = Svg(start + RESULTS * cell + 24, 92 + len(body["results"]) * row, "Queries and their results")
    svg.text(left, 40, "Queries over 288 drawings and 24 names", 20, INK, weight=700)
    svg.text(
        left,
        64,
        "framed: positives, fixed before any result was seen; results in ranked order",
        14,
        SOFT,
    )
    for number, result in enumerate(body["results"]):
        y = 84 + number * row
        svg.line([(left, y), (svg.width - left, y)], LINE, 1)
        x = left + 8
        if result["picture"]:
            thing(svg, result["picture"], x + 18, y + row / 2, 34, False)
            x += 56
        if result["text"]:
            svg.text(x, y + row / 2 + 5, f"“{result['text']}”", 16, INK)
        svg.text(start - 24, y + row / 2 + 5, f"→ {'images' if result['target'] == 'image' else 'texts'}", 13, SOFT, "end")
        for place, name in enumerate(result["hits"]):
            middle = start + place * cell + cell / 2
            good = name.split()[0] in result["right"]
            if good:
                svg.rect(middle - cell / 2 + 5, y + 6, cell - 10, row - 12, WASH, ACCENT, 8, 1.5)
            if len(name.split()) == 3:
                thing(svg, name, middle, y + row / 2, 34, False)
            else:
                svg.text(middle, y + row / 2 + 5, called(name), 12 if len(called(name)) > 9 else 14, INK, "middle")
    return svg
