"""From items to rows: every picture decoded once, in threads, and nothing of one item in the row of another."""

from __future__ import annotations

import io
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_encoder import fake_model
from PIL import Image

from genius import GeniusError, Item
from genius.encoders import base
from genius.encoders.base import encode_items
from genius.index import prepare as room
from genius.index.prepare import AT_ONCE, Stamp, prepare
from genius.index.writing import item_batches


def png(i: int, size: tuple[int, int] = (64, 48)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (i, 255 - i, 7)).save(buffer, "PNG")
    return buffer.getvalue()


def mixed(count: int, folder: Path) -> list[Item]:
    """Pictures by bytes, by path and opened, texts, pairs; every seventh cannot be used, in one way or another."""
    items = []
    for i in range(count):
        path = folder / f"{i}.png"
        path.write_bytes(png(i))
        bad = (
            Item(f"bad\x01{i}", text="t"),
            Item(f"bad{i}", image=b"no picture"),
            Item(f"bad{i}", text="t", metadata={"x": object()}),
        )
        good = (
            Item(f"bytes{i}", image=png(i)),
            Item(f"path{i}", image=path, text="words"),
            Item(f"open{i}", image=Image.new("RGB", (64, 48), (i, 255 - i, 7))),
            Item(f"text{i}", text=f"only words {i}"),
        )
        items.append(bad[i % 3] if i % 7 == 3 else good[i % 4])
    return items


@pytest.mark.parametrize("given", [False, True])
def test_rows_belong_together(given: bool, tmp_path: Path) -> None:
    model, items = fake_model(), mixed(90, tmp_path)
    features = None
    if given:  # the encoder's output for the good ones, nonsense for the others
        usable = [i for i in range(90) if i % 7 != 3]
        read = encode_items(model.encoder, [items[i] for i in usable])[0]
        rows = torch.zeros(90, dtype=torch.long)
        rows[usable] = torch.arange(len(usable))
        features = read[rows]
    ready = prepare(model, [(item, None) for item in items], 32, "skip", features)
    assert ready.ids == [items[i].id for i in range(90) if i % 7 != 3]
    assert len(ready.problems) == 13 and all("bad" in line and "\n" not in line for line in ready.problems)
    for row, stored in enumerate(ready.rows):
        alone = prepare(model, [(stored.item, None)], 32, "raise")
        assert (ready.codes[row] == alone.codes[0]).all()
        assert abs(ready.embeddings[row].astype(float) - alone.embeddings[0].astype(float)).max() < 2e-3
        assert stored.picture == alone.rows[0].picture
        assert (stored.picture.thumbnail is None) == (stored.item.image is None)
    with pytest.raises(GeniusError, match="bad"):
        prepare(model, [(item, None) for item in items], 32, "raise", features)


@pytest.mark.parametrize("given", [False, True])
def test_each_picture_is_decoded_once_and_in_threads(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    place = room if given else base
    real = place.loaded

    def counting(source: object, **options: object) -> AbstractContextManager[Image.Image]:
        seen.append(threading.current_thread().name)
        return real(source, **options)  # type: ignore[arg-type]

    model, items = fake_model(), [Item(str(i), image=png(i)) for i in range(70)]
    features = encode_items(model.encoder, items)[0] if given else None
    monkeypatch.setattr(place, "loaded", counting)
    prepare(model, [(item, None) for item in items], 32, "raise", features)
    assert len(seen) == 70 and all(name.startswith("genius-images") for name in seen)


def test_what_is_kept_of_a_large_picture() -> None:
    """Bytes as they came; a picture that has none as a JPEG of 1600 pixels; previews as small as asked for."""
    model, large = fake_model(), Image.new("RGB", (4000, 2000), (200, 10, 10))
    buffer = io.BytesIO()
    large.save(buffer, "PNG")
    ready = prepare(model, [(Item("bytes", image=buffer.getvalue()), None), (Item("opened", image=large), None)], 256, "raise")
    assert ready.rows[0].picture.data == buffer.getvalue()
    sizes = [Image.open(io.BytesIO(data or b"")).size for data in (ready.rows[1].picture.data, ready.rows[0].picture.thumbnail)]
    assert sizes == [(1600, 800), (256, 128)]


def test_a_batch_ends_with_a_pass_of_the_encoder() -> None:
    """Of items read from files: what is encoded together does not depend on the size of a commit."""
    pairs = [(Item(str(i), text="a"), Stamp("file", "mark", (0, i // 70))) for i in range(140)]
    batches = list(item_batches(pairs, 48))
    assert [pair for batch in batches for pair in batch] == pairs
    ends = np.cumsum([len(batch) for batch in batches])[:-1].tolist()
    assert all(end % 70 % AT_ONCE == 0 for end in ends) and len(ends) > 2
    assert [len(batch) for batch in item_batches([(item, None) for item, _ in pairs], 48)] == [48, 48, 44]
