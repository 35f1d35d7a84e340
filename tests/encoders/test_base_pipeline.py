"""Items and queries -> features: order, masks, broken pictures, pairs, bounded loading."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from genius import GeniusError, Item, Modality, Query
from genius.encoders import base
from genius.encoders.base import encode_items, encode_queries


class Recorder:
    """Image -> its first pixel; text -> its length. Knows what it was given."""

    width = 3

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.batches: list[int] = []

    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        self.batches.append(len(images))
        return torch.tensor([image.getpixel((0, 0)) for image in images], dtype=torch.float32)

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        self.texts += texts
        return torch.tensor([[len(t), 0.0, 0.0] for t in texts])

    def save(self, directory: Path) -> None: ...

    def fingerprint(self) -> str:
        return "recorder"


def colour(i: int) -> Image.Image:
    return Image.new("RGB", (8, 8), (i, 2 * i, 3 * i))


def test_rows_keep_their_order_and_masks() -> None:
    items = [Item(str(i), image=colour(i) if i % 3 != 1 else None, text="word" if i % 3 != 0 else None) for i in range(20)]
    features, kept, problems = encode_items(Recorder(), items, batch_size=3)
    assert kept == list(range(20)) and not problems
    assert features.modality.tolist() == [[0, 1, 2][i % 3] for i in range(20)]
    pictured = features.image_mask.nonzero()[:, 0]
    assert features.image[pictured, 0].tolist() == [float(i) for i in range(20) if i % 3 != 1]
    assert features.image[~features.image_mask].abs().sum() == 0


def test_broken_pictures_are_reported_and_skipped_or_raised(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    items = [
        Item("a", image=colour(1)),
        Item("b", image=str(tmp_path / "bad.png")),
        Item("c", image=str(tmp_path / "no.png")),
        Item("d", image=colour(4)),
    ]
    features, kept, problems = encode_items(Recorder(), items, on_error="skip", batch_size=2)
    assert kept == [0, 3] and features.image[:, 0].tolist() == [1.0, 4.0]
    assert [p.split(":")[0] for p in problems] == ["b", "c"] and all("\n" not in p for p in problems)
    with pytest.raises(GeniusError, match=r"bad\.png"):
        encode_items(Recorder(), items, batch_size=2)


def test_progress_counts_every_row_also_the_broken_ones(tmp_path: Path) -> None:
    items = [Item(str(i), image=str(tmp_path / "no.png")) if i == 2 else Item(str(i), image=colour(i)) for i in range(7)]
    seen: list[int] = []
    encode_items(Recorder(), items, batch_size=3, on_error="skip", on_progress=seen.append)
    assert seen == [3, 3, 1]


def test_only_two_batches_are_open_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, encoded, lock, worst = [0], [0], threading.Lock(), [0]
    real = base.loaded

    def counting(source: object, **options: object) -> AbstractContextManager[Image.Image]:
        with lock:
            opened[0] += 1
            worst[0] = max(worst[0], opened[0] - encoded[0])
        return real(source, **options)  # type: ignore[arg-type]

    class Slow(Recorder):
        def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
            out = super().encode_images(images)
            with lock:
                encoded[0] += len(images)
            return out

    monkeypatch.setattr(base, "loaded", counting)
    encode_items(Slow(), [Item(str(i), image=colour(i % 80)) for i in range(60)], batch_size=5)
    assert opened[0] == 60 and worst[0] <= 10


def test_pictures_are_shrunk_where_they_are_opened() -> None:
    class Shrinking(Recorder):
        def prepare_image(self, picture: Image.Image) -> Image.Image:
            return picture.resize((2, 2))

        def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
            assert all(image.size == (2, 2) for image in images)
            return super().encode_images(images)

    assert encode_items(Shrinking(), [Item(str(i), image=colour(i)) for i in range(5)])[0].image[4, 0] == 4


def test_a_pair_is_read_by_both_towers() -> None:
    items = [Item("p", image=colour(5), text="both"), Item("i", image=colour(6)), Item("t", text="words")]
    features, _, _ = encode_items(Recorder(), items)
    assert features.modality.tolist() == [Modality.PAIR, Modality.IMAGE, Modality.TEXT]
    assert features.image[:2, 0].tolist() == [5.0, 6.0] and features.text[[0, 2]].any(1).all()
    assert not features.image[2].any() and not features.text[1].any()


def test_queries_read_instruction_and_text() -> None:
    encoder = Recorder()
    features = encode_queries(
        encoder, [Query(text="red bicycle", instruction="find it"), Query(image=colour(1), target=Modality.TEXT)]
    )
    assert encoder.texts == ["Find it red bicycle.", "Find a text that describes the image."]
    assert features.text_mask.all() and features.image_mask.tolist() == [False, True]


def test_nothing_gives_empty_features() -> None:
    features, kept, problems = encode_items(Recorder(), [])
    assert len(features) == 0 and features.width == 3 and kept == [] and problems == []
