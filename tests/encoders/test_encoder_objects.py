"""Any object as an encoder: its own methods, or those of sentence-transformers; text only too; one line for what does not fit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genius import Genius, GeniusError, Index, Item
from genius.encoders.objects import as_encoder
from genius.fit import FitConfig

WIDTH = 16
COLOURS = {"red": (250, 20, 20), "green": (20, 200, 40), "blue": (20, 40, 240), "white": (250, 250, 250), "black": (5, 5, 5)}
QUICK = FitConfig(steps=20)


def direction(name: str) -> Any:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).normal(size=WIDTH).astype(np.float32)


class Words:
    """Reads texts: the sum of a direction per word it knows."""

    def __init__(self, salt: str = "") -> None:
        self.salt = salt

    def encode_texts(self, texts: Sequence[str]) -> Any:
        return np.stack([sum(direction(self.salt + word.strip(".,").lower()) for word in text.split()) for text in texts])


class Both(Words):
    """Reads pictures too: the direction of the colour's name."""

    def encode_images(self, images: Sequence[Image.Image]) -> list[Any]:
        return [direction(self.salt + self._name(image)) for image in images]

    def _name(self, image: Image.Image) -> str:
        mean = np.asarray(image.resize((1, 1)), float)[0, 0]
        return min(COLOURS, key=lambda name: float(np.abs(mean - COLOURS[name]).sum()))


class LikeSentenceTransformer:
    """The part of SentenceTransformer's interface that is used."""

    modalities = ("text", "image")

    def __init__(self) -> None:
        self.both = Both()

    def encode(self, inputs: list[Any], *, convert_to_tensor: bool, show_progress_bar: bool) -> torch.Tensor:
        images = isinstance(inputs[0], Image.Image)
        found = self.both.encode_images(inputs) if images else self.both.encode_texts(inputs)
        return torch.as_tensor(np.stack(found)).double()


def pictures() -> list[Item]:
    return [Item(name, image=Image.new("RGB", (40, 40), colour)) for name, colour in COLOURS.items()]


def texts() -> list[Item]:
    return [Item(name, text=f"a {name} thing") for name in COLOURS]


@pytest.mark.parametrize("source", [Both(), LikeSentenceTransformer()], ids=["own methods", "sentence-transformers"])
def test_a_collection_is_fitted_and_searched_over_an_object(source: object, tmp_path: Path) -> None:
    items = pictures() + [Item(f"text {item.id}", text=item.text) for item in texts()]
    model = Genius.from_encoder(source).fit(items, config=QUICK)  # type: ignore[call-arg]
    assert model.config.width == WIDTH
    index = Index(tmp_path / "i.genius", model)
    index.add(items)
    for name in COLOURS:
        assert index.search(name, target="image", k=1)[0].id == name
    assert index.search(image=Image.new("RGB", (9, 9), COLOURS["blue"]), target="image", k=1)[0].id == "blue"


def test_a_saved_model_asks_for_its_object_and_takes_no_other(tmp_path: Path) -> None:
    model = Genius.from_encoder(Both()).fit(pictures(), config=QUICK)  # type: ignore[call-arg]
    model.save_pretrained(tmp_path / "m")
    with pytest.raises(GeniusError, match=r"was a Python object \(Both\).*encoder=OBJECT"):
        Genius.from_pretrained(tmp_path / "m")
    again = Genius.from_pretrained(tmp_path / "m", encoder=Both())
    assert again.fingerprint() == model.fingerprint()
    with pytest.raises(GeniusError, match="not the one that the model was made with"):
        Genius.from_pretrained(tmp_path / "m", encoder=Both(salt="other"))


def test_a_text_only_object(tmp_path: Path) -> None:
    model = Genius.from_encoder(Words()).fit(texts(), config=QUICK)  # type: ignore[call-arg]
    index = Index(tmp_path / "i.genius", model)
    index.add(texts())
    assert index.search("green", k=1)[0].id == "green"
    with pytest.raises(GeniusError, match="Words reads texts only, and there is an image"):
        index.search(image=Image.new("RGB", (9, 9)))


class Wrong:
    def __init__(self, value: Any) -> None:
        self.value = value

    def encode_texts(self, texts: Sequence[str]) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (object(), "is no encoder: it needs encode_texts"),
        (Words, "Words is a class"),
        (7, "a int is no encoder"),
        (Wrong(np.zeros(3)), r"shape \(3,\), expected \(3, width\)"),
        (Wrong(np.zeros((2, 4))), r"shape \(2, 4\), expected \(3, width\)"),
        (Wrong(np.full((3, 4), np.nan)), "not finite"),
        (Wrong("vectors"), "returned a str"),
        (Wrong(RuntimeError("out of\nmemory")), "failed: out of$"),
    ],
)
def test_what_is_no_encoder_is_one_line(source: object, message: str) -> None:
    with pytest.raises(GeniusError, match=message) as caught:
        as_encoder(source)
    assert "\n" not in str(caught.value)


def test_vectors_of_another_width_later_on() -> None:
    encoder = as_encoder(Words())
    encoder.source.encode_texts = lambda texts: np.zeros((len(texts), 3))  # type: ignore[attr-defined]
    encoder._texts = encoder.source.encode_texts  # type: ignore[attr-defined]
    with pytest.raises(GeniusError, match=r"shape \(1, 3\), expected \(1, 16\)"):
        encoder.encode_texts(["a"])


def test_a_real_sentence_transformer(tmp_path: Path) -> None:
    """A tiny BERT that the test writes, pooled by the library itself."""
    library = pytest.importorskip("sentence_transformers")
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "thing", ".", *COLOURS]
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes)).save_pretrained(tmp_path / "bert")
    transformers.BertTokenizerFast(str(tmp_path / "bert" / "vocab.txt")).save_pretrained(tmp_path / "bert")
    model = library.SentenceTransformer(str(tmp_path / "bert"), device="cpu")
    encoder = as_encoder(model)
    assert encoder.width == 32 and len(encoder.fingerprint()) == 32
    expected = torch.as_tensor(model.encode(["a red thing"]))
    torch.testing.assert_close(encoder.encode_texts(["a red thing"]), expected)
    with pytest.raises(GeniusError, match="reads texts only"):
        encoder.encode_images([Image.new("RGB", (8, 8))])
