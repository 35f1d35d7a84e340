"""The model that ships: it fits, loads, keeps its fingerprint, and its words mean something."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw

from genius import Genius, GeniusError, Item, Query
from genius.encoders import bundled_names, load_encoder, resolve

pytestmark = pytest.mark.skipif("mini" not in bundled_names(), reason="the bundled weights are not in this checkout")


def test_it_fits_in_25_megabytes_and_has_its_card() -> None:
    folder = resolve("bundled:mini")
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 25_000_000
    assert (folder / "README.md").read_text(encoding="utf-8") == (
        Path(__file__).parents[2] / "docs" / "model-card-mini.md"
    ).read_text(encoding="utf-8")


def test_a_changed_bit_of_its_weights_is_noticed(tmp_path: Path) -> None:
    for part, name in (("", "model.safetensors"), ("encoder", "weights.safetensors"), ("encoder", "tokenizer.json")):
        copy = tmp_path / name
        shutil.copytree(resolve("bundled:mini"), copy)
        body = bytearray((copy / part / name).read_bytes())
        body[len(body) // 2] ^= 1
        (copy / part / name).write_bytes(body)
        with pytest.raises(GeniusError, match=f"{name} is damaged or was exchanged"):
            Genius.from_pretrained(copy)


def test_a_new_version_of_the_library_still_opens_indexes_built_with_it() -> None:
    """An index refuses another model's codes: a field that is new in the config must not make the same weights another model."""
    assert Genius.from_pretrained("bundled:mini").fingerprint() == "0e6ca3536c9a3166512461ed85aee687"


def test_saving_the_loaded_model_keeps_its_fingerprint(tmp_path: Path) -> None:
    model = Genius.from_pretrained("bundled:mini")
    model.save_pretrained(tmp_path, dtype=torch.int8)
    assert Genius.from_pretrained(tmp_path).fingerprint() == model.fingerprint()


def test_items_and_queries_become_unit_vectors_and_codes() -> None:
    model = Genius.from_pretrained("bundled:mini")
    picture = Image.new("RGB", (100, 60), "white")
    ImageDraw.Draw(picture).ellipse((20, 10, 80, 50), outline="black", width=5)
    items = model.embed_items(
        [Item("a", image=picture), Item("b", text="a red bicycle"), Item("c", image=picture, text="an oval")]
    )
    assert torch.allclose(items.z.norm(dim=1), torch.ones(3), atol=1e-5)
    codes = model.quantizer.encode(items.z, items.modality)
    assert codes[:, 0].tolist() == [0, 1, 2] and codes.shape[1] == model.config.quantizer.levels
    assert model.embed_queries([Query(text="an oval"), Query(image=picture)]).z.shape == items.z[:2].shape


@pytest.mark.parametrize(
    ("word", "near", "far"),
    [
        ("physician", "doctor", "banana"),
        ("angry", "furious", "bicycle"),
        ("save money", "piggy bank", "thunderstorm"),
        ("put out a fire", "fire extinguisher", "violin"),
        ("automobile", "car", "tulip"),
    ],
)
def test_words_of_one_meaning_are_near(word: str, near: str, far: str) -> None:
    vectors = F.normalize(load_encoder("bundled:mini").encode_texts([word, near, far]), dim=1)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
