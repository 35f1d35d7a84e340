"""Encoders as other libraries write them: `sentence-transformers`' folders give a CLIP's own vectors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from colour_clip import COLOURS, photo, write_clip

from genius import Genius, GeniusError, Index, Item
from genius.encoders import load_encoder
from genius.encoders.objects import as_encoder
from genius.fit import FitConfig

PICTURES = [photo(colour, 3) for colour in COLOURS]
TEXTS = [f"a photo of {colour}." for colour in COLOURS]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip"), steps=2)


def same(a: Any, b: Any) -> bool:
    pictures = torch.allclose(a.encode_images(PICTURES), b.encode_images(PICTURES), atol=1e-5)
    return pictures and torch.allclose(a.encode_texts(TEXTS), b.encode_texts(TEXTS), atol=1e-5)


def modules(folder: Path, *kinds: str) -> Path:
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if kind == "here" else f"{i}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    folder.mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


@pytest.mark.parametrize("behind", [(), ("Normalize",)])
def test_sentence_transformers_folders_give_the_vectors_of_their_clip(
    clip: Path, tmp_path: Path, behind: tuple[str, ...]
) -> None:
    folder = modules(tmp_path / "st", "CLIPModel", *behind)
    shutil.copytree(clip, folder / "0_CLIPModel")
    assert same(load_encoder(clip), load_encoder(folder))


def test_a_folder_that_sentence_transformers_itself_wrote(clip: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    try:
        whole = library.SentenceTransformer(str(clip), device="cpu")
        whole.save(str(tmp_path / "theirs"))
    except Exception as error:  # a release that reads no plain CLIP folder
        pytest.skip(f"this release cannot write one: {error}")
    assert same(load_encoder(clip), load_encoder(tmp_path / "theirs"))


def bert(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: modules(p, "Transformer", "Pooling"), "reads texts only"),
        (lambda p: modules(p, "CLIPModel", "Dense"), "a Dense layer after its towers"),
        (lambda p: modules(p), "lists no modules"),
        (lambda p: modules(bert(p), "here"), "reads texts only: choose an encoder with an image tower"),
        (bert, "reads texts only: choose an encoder with an image tower"),
    ],
)
def test_models_that_see_no_pictures_are_named_in_one_line(tmp_path: Path, make: Callable[[Path], Path], said: str) -> None:
    with pytest.raises(GeniusError, match=said) as error:
        load_encoder(make(tmp_path / "m"))
    assert "\n" not in str(error.value)


def test_a_sentence_transformer_of_texts_and_images(clip: Path, tmp_path: Path) -> None:
    """An object of the library over a CLIP-shaped checkpoint: texts and images, and the vectors are the library's."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    source = library.SentenceTransformer(str(clip), device="cpu")
    encoder = as_encoder(source)
    theirs = torch.as_tensor(source.encode(["a red thing"]))
    assert torch.allclose(encoder.encode_texts(["a red thing"]), theirs, atol=1e-5)
    images = torch.as_tensor(source.encode(PICTURES[:2]))
    assert torch.allclose(encoder.encode_images(PICTURES[:2]), images, atol=1e-5)
    items = [Item(colour, image=picture) for colour, picture in zip(COLOURS, PICTURES, strict=True)]
    model = Genius.from_encoder(source).fit(items, config=FitConfig(steps=5))  # type: ignore[call-arg]
    index = Index(tmp_path / "i.genius", model)
    index.add(items)
    first = next(iter(COLOURS))
    assert index.search(image=PICTURES[0], target="image", k=1)[0].id == first
