"""Pixels against transformers' own Pillow processors, and the shrinking that loading threads do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image

from genius import GeniusError
from genius.encoders.inputs import Pixels, read_pixels
from genius.types import load_image


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_same_pixels_as_transformers(name: str, pictures: list[Image.Image], tmp_path: Path) -> None:
    if name == "clip":
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil as Processor

        theirs = Processor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    else:
        from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil as Processor

        theirs = Processor(size={"height": 32, "width": 32})
    theirs.save_pretrained(tmp_path)
    ours = read_pixels(tmp_path, 32)(pictures)
    expected = torch.from_numpy(np.stack(theirs(pictures)["pixel_values"]))
    assert ours.shape == expected.shape and (ours - expected).abs().max() < 2e-5


@pytest.mark.parametrize("pixels", [Pixels(16), Pixels(16, "squash"), Pixels(16, "pad"), Pixels(16, resize=20)])
def test_preparing_first_changes_nothing(pixels: Pixels, pictures: list[Image.Image]) -> None:
    prepared = [pixels.prepare(p) for p in pictures]
    assert all(p.size == (16, 16) for p in prepared)
    assert torch.equal(pixels(prepared), pixels(pictures))
    assert torch.equal(pixels([load_image(p) for p in prepared]), pixels(pictures))  # nor does opening it again


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize("size", [(1, 200_000), (200_000, 1), (3, 40_000)])
def test_thin_pictures_do_not_grow(fit: Literal["crop", "squash", "pad"], size: tuple[int, int]) -> None:
    assert Pixels(224, fit).prepare(Image.new("RGB", size)).size == (224, 224)


def test_cropping_first_is_cropping_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = Image.effect_noise((40, 800), 60).convert("RGB")
    usual = np.asarray(Pixels(16, resize=20)._fitted(picture), int)
    monkeypatch.setattr("genius.encoders.inputs.THIN", 2)
    assert np.abs(np.asarray(Pixels(16, resize=20)._fitted(picture), int) - usual).max() <= 2


def test_padding_keeps_everything_and_fills_with_white() -> None:
    square = Pixels(16, "pad").prepare(Image.new("RGB", (32, 8), (0, 0, 0)))
    array = np.asarray(square)
    assert (array[:6] == 255).all() and (array[7:9] == 0).all()


def test_round_trip_through_a_preprocessor_file(tmp_path: Path) -> None:
    for pixels in (Pixels(24, resize=30), Pixels(24, "squash", filter="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3)):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(pixels.to_preprocessor()))
        assert read_pixels(tmp_path, 999) == pixels


def test_no_file_means_clip_and_a_broken_one_is_named(tmp_path: Path) -> None:
    assert read_pixels(tmp_path, 48) == Pixels(48)
    (tmp_path / "preprocessor_config.json").write_text("[")
    with pytest.raises(GeniusError, match="preprocessor_config"):
        read_pixels(tmp_path, 48)
