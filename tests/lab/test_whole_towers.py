"""Eq. 2 on whole towers: the program runs at a tiny size, and no product of the test or the validation is trained on."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lab.paper import whole_towers
from lab.paper.whole_towers import read_shop, split_shop

COLOURS = ("red", "green", "blue", "white")
THINGS = ("shirt", "shoe", "watch", "bag", "belt")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Made-up photos of 120 products."""
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.default_rng(0)
    bodies = []
    for _ in range(120):
        out = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (16, 12, 3), dtype=np.uint8)).save(out, "PNG")
        bodies.append(out.getvalue())
    np.savez(
        folder / "photos.npz",
        bytes=np.frombuffer(b"".join(bodies), np.uint8),
        ends=np.cumsum([len(body) for body in bodies]),
    )
    titles = [f"{COLOURS[p % 4]} {THINGS[p % 5]} {p}." for p in range(120)]
    queries = [
        (task, -1 if task in (0, 2) else p, p if task in (0, 2) else 120, [p], int(p % 6 == 0))
        for task in range(4)
        for p in range(120)
    ]
    meta = {"titles": list(range(120)), "texts": [*titles, "Find this."], "queries": queries, "test": list(range(0, 120, 6))}
    with gzip.open(folder / "meta.json.gz", "wt", encoding="utf-8") as file:
        json.dump(meta, file)
    return folder


def test_held_out_products_are_in_no_training_pair_and_no_pool_of_training(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_towers, "VALIDATION", 5)
    shop = read_shop(photos)
    split = split_shop(shop)
    held = shop.validation()
    assert held and not held & shop.test
    assert not set(split.train.products) & (held | shop.test)
    for number, positives in split.train.judged:
        _, photo, _, _, of_test = shop.queries[number]
        assert not of_test and photo not in held | shop.test and set(positives) <= set(split.train.products)
    assert {product for _, positives in split.validation.judged for product in positives} <= held
    assert len(split.test.products) == 120 and all(shop.queries[number][4] for number, _ in split.test.judged)
    judged = {query.id: query for query in split.test.queries()}
    task, _, _, positives, _ = shop.queries[split.test.judged[-1][0]]
    block = whole_towers.TARGET_BLOCK[task]
    assert judged[str(split.test.judged[-1][0])].positives == tuple(str(block * 120 + product) for product in positives)


def test_all_rows_at_a_tiny_size(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_towers, "VALIDATION", 5)
    monkeypatch.setattr(whole_towers, "HEADS_STEPS", 20)
    monkeypatch.setattr(whole_towers, "PILOT", (1, 2))
    monkeypatch.setattr(whole_towers, "FEWEST_STEPS", 6)
    features = tmp_path / "features"
    features.mkdir()
    random = np.random.default_rng(0)
    np.save(features / "images-0.npy", random.standard_normal((120, 10)).astype(np.float16))
    np.save(features / "texts.npy", random.standard_normal((121, 6)).astype(np.float16))
    out = tmp_path / "out.json"
    words = [str(out), "--photos", str(photos), "--fashion", str(features), "--shape", "tiny", "--seconds", "0.001",
             "--set", "encoder.batch=16", "--set", "encoder.workers=0", "--commit", "abc"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["whole_towers", *words])
    whole_towers.main()
    body = json.loads(out.read_text(encoding="utf-8"))
    assert list(body["rows"]) == ["whole", "third", "heads", "random", "pretrained"]
    assert body["about"]["steps"] == body["rows"]["whole"]["steps"] == 3 * body["rows"]["third"]["steps"] == 6
    assert [one["chunk"] for one in body["about"]["pilot"]] == [0, whole_towers.CHUNK]
    for row in body["rows"].values():
        low, high = row["interval"]
        assert low <= row["mean"] <= high and len(row["hit@5"]) == 4 and row["queries"] == 80
    for name in ("heads", "random", "pretrained"):
        row = body["rows"][name]
        best = max(row["heads"], key=lambda one: one["validation"])
        assert row["temperature"] == best["temperature"] and best["curve"]
    assert str(tmp_path) not in json.dumps(body["about"])
