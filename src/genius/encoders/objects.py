"""An encoder made of any Python object: one with `encode_images` and `encode_texts`, or a sentence-transformers model.

`as_encoder` wraps an object and checks what it returns. An object that reads texts only is accepted; images are then refused in
one line. An object cannot be stored with a model: a saved model notes what its encoder was, and
`Genius.from_pretrained(folder, encoder=obj)` brings it back together with the object.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from genius.encoders.base import Encoder
from genius.errors import GeniusError, said
from genius.weight_files import fingerprint

FAMILY = "object"
PROBES = ("a red bicycle", "two birds on a wire", "42")
"""Texts whose vectors tell objects without weights apart."""


def as_encoder(source: Any) -> Encoder:
    """Wrap an object as an encoder.

    Args:
        source: An `Encoder`; an object with `encode_texts` and, if it reads images, `encode_images`, each of which takes a list
            and returns one vector per entry; or a sentence-transformers model (`encode`; images if `modalities` lists them).

    Returns:
        An encoder whose `width` is that of the object's vectors.

    Raises:
        GeniusError: If the object has none of these methods, or its vectors are not of one finite width.
    """
    if isinstance(source, Encoder):
        return source
    if isinstance(source, type):
        raise GeniusError(f"{source.__name__} is a class: give an object of it")
    own = [getattr(source, name, None) for name in ("encode_texts", "encode_images")]
    texts, images = (method if callable(method) else None for method in own)
    if texts is not None or images is not None:
        return ObjectEncoder(source, texts, images)
    if callable(getattr(source, "encode", None)):
        return _from_sentence_transformer(source)
    raise GeniusError(
        f"a {type(source).__name__} is no encoder: it needs encode_texts and encode_images, or encode (sentence-transformers)"
    )


def _from_sentence_transformer(model: Any) -> ObjectEncoder:
    modalities = list(getattr(model, "modalities", ["text"]))

    def encode(inputs: Sequence[Any]) -> Any:
        return model.encode(list(inputs), convert_to_tensor=True, show_progress_bar=False)

    methods = dict.fromkeys(modalities, encode)
    return ObjectEncoder(model, methods.get("text"), methods.get("image"))


class ObjectEncoder:
    """Implements the encoder protocol with the methods of another object.

    Args:
        source: The object.
        texts: Its method for texts; None: it reads none.
        images: Its method for images; None: it reads none.
    """

    def __init__(self, source: Any, texts: Any, images: Any) -> None:
        self.source = source
        self.name = type(source).__name__
        self._texts = texts
        self._images = images
        self.width = self._find_width()

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Texts -> (n, width) float32 on the CPU."""
        if not texts:
            return torch.empty(0, self.width)
        if self._texts is None:
            raise GeniusError(f"the encoder {self.name} reads images only, and there is a text")
        return self._checked(self._texts, list(texts), self.width)

    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB pictures -> (n, width) float32 on the CPU."""
        if not images:
            return torch.empty(0, self.width)
        if self._images is None:
            raise GeniusError(f"the encoder {self.name} reads texts only, and there is an image")
        return self._checked(self._images, list(images), self.width)

    def save(self, directory: Path) -> None:
        """Note that the encoder is an object: its weights are not ours to store."""
        from genius.encoders import write_spec

        write_spec(directory, FAMILY, {"class": self.name, "width": self.width, "fingerprint": self.fingerprint()})

    def fingerprint(self) -> str:
        """The object's own, that of its weights, or that of its vectors for a few texts or images."""
        own = getattr(self.source, "fingerprint", None)
        if callable(own):
            return str(own())
        if isinstance(self.source, torch.nn.Module):
            return fingerprint(dict(self.source.state_dict()), {"class": self.name})
        unit = torch.nn.functional.normalize(self._probe(), dim=1)
        return fingerprint({"probe": (unit * 1000).round()}, {"class": self.name})

    def to(self, device: str | torch.device) -> ObjectEncoder:
        """Move the object, if it can be moved."""
        move = getattr(self.source, "to", None)
        if callable(move):
            move(device)
        return self

    def _find_width(self) -> int:
        declared = getattr(self.source, "width", None)
        if isinstance(declared, int) and declared > 0:
            return declared
        return int(self._probe().shape[1])

    def _probe(self) -> Tensor:
        if self._texts is not None:
            return self._checked(self._texts, list(PROBES), None)
        colours = [(255, 0, 0), (0, 80, 200), (20, 20, 20)]
        return self._checked(self._images, [Image.new("RGB", (64, 64), colour) for colour in colours], None)

    def _checked(self, encode: Any, inputs: list[Any], width: int | None) -> Tensor:
        """The vectors of `encode`, as (n, width) finite float32 on the CPU."""
        try:
            output = encode(inputs)
        except GeniusError:
            raise
        except Exception as error:  # of an object that we know nothing about
            raise GeniusError(f"the encoder {self.name} failed: {said(error)}") from error
        try:
            if isinstance(output, list | tuple):
                output = torch.stack([torch.as_tensor(vector) for vector in output])
            vectors = torch.as_tensor(output).detach().float().cpu()
        except (TypeError, ValueError, RuntimeError):
            raise GeniusError(f"the encoder {self.name} returned a {type(output).__name__}, not an array of vectors") from None
        if vectors.ndim != 2 or len(vectors) != len(inputs) or width not in (None, vectors.shape[1]):
            expected = f"({len(inputs)}, {width or 'width'})"
            raise GeniusError(f"the encoder {self.name} returned vectors of shape {tuple(vectors.shape)}, expected {expected}")
        if not bool(torch.isfinite(vectors).all()):
            raise GeniusError(f"the encoder {self.name} returned vectors that are not finite")
        return vectors


def same_object(source: Any, directory: Path) -> Encoder:
    """Wrap an object, and compare it with the note of a saved model's encoder at `directory`, if there is one.

    Raises:
        GeniusError: If the model was made with another encoder.
    """
    from genius.encoders import SPEC, read_spec

    encoder = as_encoder(source)
    if (directory / SPEC).is_file():
        family, spec = read_spec(directory)
        noted = spec.get("fingerprint")
        if family == FAMILY and noted != encoder.fingerprint():
            raise GeniusError(f"the encoder given is not the one that the model was made with ({spec.get('class', '?')})")
    return encoder


class SavedObject:
    """What is left of an object encoder in a model folder: the reason why it cannot be loaded alone."""

    @staticmethod
    def load(directory: Path, spec: dict[str, Any]) -> Encoder:
        raise GeniusError(
            f"the encoder at {directory} was a Python object ({str(spec.get('class', '?'))[:60]}): give it again, "
            "Genius.from_pretrained(FOLDER, encoder=OBJECT)"
        )
