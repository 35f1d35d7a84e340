"""Frozen towers + trained heads: any image tower, any text tower, joined in one width by `Heads`.

A tower is an ONNX file, or an object of the user's (`Tower`); neither is trained here. `Heads` map their vectors of any two
widths (1280 for pictures and 384 for texts, say) into one; `genius.train.encoder` trains them with Eq. 2 on features extracted
once. On disk such an encoder is a folder: `encoder.json` (sizes and pixels), `heads.safetensors`, `image.onnx`, `text.onnx`,
`tokenizer.json`. Other towers have no file format that is safe to read back, so an encoder with one works but does not save.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from genius.config import from_dict
from genius.encoders import write_spec
from genius.encoders.graphs import open_session
from genius.encoders.inputs import Pixels, Tokens
from genius.errors import GeniusError, said
from genius.features import Features
from genius.files import write_whole
from genius.weight_arrays import opened
from genius.weight_files import build, check_fit, fingerprint, read_shapes, read_tensors

HEADS = "heads.safetensors"
IMAGE = "image.onnx"
TEXT = "text.onnx"
TOKENIZER = "tokenizer.json"


class Head(nn.Module):
    """A linear map plus a small residual MLP on the normalised input."""

    def __init__(self, width_in: int, width_out: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width_in)
        self.project = nn.Linear(width_in, width_out)
        self.hidden = nn.Linear(width_in, hidden)
        self.output = nn.Linear(hidden, width_out)
        nn.init.zeros_(self.output.weight)  # starts as a linear map
        nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, width_in) -> (N, width_out), of length about one: what the fusion's layers expect."""
        x = self.dropout(self.norm(x))
        out: Tensor = self.project(x) + self.output(self.dropout(nn.functional.gelu(self.hidden(x))))
        return out / math.sqrt(out.shape[1])


class Heads(nn.Module):
    """One head per modality.

    Args:
        image_width: Of the image tower's vectors.
        text_width: Of the text tower's vectors.
        width: Of the result.
        hidden: Of the layer between.
        dropout: While training.
    """

    def __init__(self, image_width: int, text_width: int, width: int, hidden: int = 1024, dropout: float = 0.0) -> None:
        super().__init__()
        self.image_width = image_width
        self.text_width = text_width
        self.width = width
        self.hidden_width = hidden
        self.image = Head(image_width, width, hidden, dropout)
        self.text = Head(text_width, width, hidden, dropout)

    @property
    def sizes(self) -> dict[str, int]:
        """What `Heads` is made with, without dropout."""
        return {
            "image_width": self.image_width,
            "text_width": self.text_width,
            "width": self.width,
            "hidden": self.hidden_width,
        }

    def forward(self, towers: Features) -> Features:
        """Raw tower vectors, (N, image_width) and (N, text_width) -> features of one width. Masks pass through.

        Args:
            towers: Vectors of both towers with their masks.
        """
        image, text = towers.masked()
        return Features(self.image(image), self.text(text), towers.image_mask, towers.text_mask)

    @torch.no_grad()
    def apply_chunked(self, towers: Features, chunk: int = 8192) -> Features:
        """`forward` for any number of rows, without gradients, results on the CPU.

        Args:
            towers: Vectors of both towers with their masks.
            chunk: Rows at a time.
        """
        device = self.image.project.weight.device
        parts = [self(towers[i : i + chunk].to(device, torch.float32)).to("cpu") for i in range(0, max(len(towers), 1), chunk)]
        return Features.cat(parts)


def write_heads(heads: Heads, path: Path) -> None:
    """Write heads as a file that says their sizes."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in heads.state_dict().items()}
    sizes = {name: str(size) for name, size in heads.sizes.items()}
    write_whole(path, lambda target: save_file(tensors, target, metadata=sizes))


def read_heads(path: Path) -> Heads | None:
    """The heads in a file that training wrote; None where there is no such file."""
    if not path.is_file():
        return None
    with opened(path, "pt") as file:
        sizes = {name: int(value) for name, value in (file.metadata() or {}).items() if str(value).isdecimal()}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    heads = Heads(**sizes)
    heads.load_state_dict(tensors)
    return heads.eval()


class Tower(Protocol):
    """Named inputs (`pixel_values`, or `input_ids` and `attention_mask`) -> (n, width) vectors on the CPU."""

    width: int

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor: ...

    def digest(self) -> str: ...


class OnnxTower:
    """An ONNX file run by onnxruntime. Of a (n, tokens, width) output the mean over unmasked tokens is taken.

    Args:
        path: The ONNX file.
        threads: Of onnxruntime; 0: its own choice.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        self.path = Path(path)
        self.session = open_session(self.path, threads, any_device=True)
        self.inputs = [entry.name for entry in self.session.get_inputs()]
        width = self.session.get_outputs()[0].shape[-1]
        if not isinstance(width, int):
            raise GeniusError(f"{path} does not declare the width of its output")
        self.width = width

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        feed = self._feed(inputs)
        out = torch.from_numpy(np.ascontiguousarray(self.session.run(None, feed)[0])).float()
        return pooled(out, inputs.get("attention_mask"))

    def _feed(self, inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Inputs by name; a tower with one input takes the first, whatever it is called."""
        if len(self.inputs) == 1:
            return {self.inputs[0]: next(iter(inputs.values())).numpy()}
        feed = {}
        for name in self.inputs:
            if name == "token_type_ids" and name not in inputs:
                feed[name] = np.zeros_like(inputs["input_ids"].numpy())
            elif name in inputs:
                feed[name] = inputs[name].numpy()
            else:
                raise GeniusError(f"{self.path} wants an input {name!r}; there are: {', '.join(inputs)}")
        return feed

    def digest(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


def pooled(states: Tensor, mask: Tensor | None) -> Tensor:
    """(n, tokens, width) -> (n, width): the mean over tokens that are no padding. (n, width) is returned as it is."""
    if states.ndim == 2:
        return states
    if mask is None:
        return states.mean(1)
    weights = mask.to(states)[..., None]  # (n, tokens, 1)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


class TowersEncoder(nn.Module):
    """Image tower + text tower + heads, behind the encoder protocol.

    Args:
        image: Image tower.
        text: Text tower.
        heads: Map both to one width.
        pixels: Prepares images.
        tokens: Prepares texts.
    """

    def __init__(self, image: Tower, text: Tower, heads: Heads, pixels: Pixels, tokens: Tokens) -> None:
        super().__init__()
        if (image.width, text.width) != (heads.image_width, heads.text_width):
            raise GeniusError(
                f"the heads were made for towers of width {heads.image_width} and {heads.text_width}, "
                f"not {image.width} and {text.width}"
            )
        self.image_tower = image
        self.text_tower = text
        self.heads = heads
        self.pixels = pixels
        self.tokens = tokens
        self.width = heads.width
        self.eval().requires_grad_(False)

    def prepare_image(self, picture: Image.Image) -> Image.Image:
        """Reduce a picture to what the image tower reads.

        Args:
            picture: An RGB picture.
        """
        return self.pixels.prepare(picture)

    def tower_images(self, images: Sequence[Image.Image]) -> Tensor:
        """(n, image_width): before the heads. What `genius.train.encoder` trains the heads on.

        Args:
            images: RGB pictures.
        """
        if not images:
            return torch.empty(0, self.heads.image_width)
        return self.image_tower({"pixel_values": self.pixels(images, "cpu")})

    def tower_texts(self, texts: Sequence[str]) -> Tensor:
        """(n, text_width): before the heads.

        Args:
            texts: Texts.
        """
        if not texts:
            return torch.empty(0, self.heads.text_width)
        ids, mask = map(torch.from_numpy, self.tokens(texts))
        return self.text_tower({"input_ids": ids, "attention_mask": mask})

    @torch.no_grad()
    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        """(n, width): after the heads.

        Args:
            images: RGB pictures.
        """
        return self._through(self.heads.image, self.tower_images(images))

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """(n, width): after the heads.

        Args:
            texts: Texts.
        """
        return self._through(self.heads.text, self.tower_texts(texts))

    def _through(self, head: Head, vectors: Tensor) -> Tensor:
        out: Tensor = head(vectors.to(head.project.weight.device)).cpu()
        return out

    def save(self, directory: Path) -> None:
        """Write the encoder as a folder that `load` reads.

        Args:
            directory: The folder.
        """
        if not isinstance(self.image_tower, OnnxTower) or not isinstance(self.text_tower, OnnxTower):
            raise GeniusError("an encoder over other towers cannot be saved: export them to ONNX first")
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for source, name in ((self.image_tower.path, IMAGE), (self.text_tower.path, TEXT)):
            if source.resolve() != (directory / name).resolve():
                shutil.copyfile(source, directory / name)
        self.tokens.save(directory / TOKENIZER)
        write_heads(self.heads, directory / HEADS)
        write_spec(directory, "towers", self._settings())

    def _settings(self) -> dict[str, Any]:
        return {"heads": self.heads.sizes, "pixels": asdict(self.pixels), "length": self.tokens.length}

    @classmethod
    def load(cls, directory: Path, spec: dict[str, Any]) -> Self:
        """Read a folder that `save` wrote.

        Args:
            directory: The folder.
            spec: Its `encoder.json`.
        """
        try:
            shapes = read_shapes(directory / HEADS)
            heads = build(lambda: Heads(**spec["heads"]), shapes, str(directory / HEADS))
            check_fit(heads, shapes, str(directory / HEADS))
            heads.load_state_dict(read_tensors(directory / HEADS))
            pixels = from_dict(Pixels, spec["pixels"], str(directory))
            tokens = Tokens.load(directory / TOKENIZER, int(spec["length"]))
        except (GeniusError, KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise GeniusError(f"cannot load the towers' heads at {directory}: {said(error)}") from None
        return cls(OnnxTower(directory / IMAGE), OnnxTower(directory / TEXT), heads, pixels, tokens)

    def fingerprint(self) -> str:
        towers = {"image": self.image_tower.digest(), "text": self.text_tower.digest(), "tokens": self.tokens.digest()}
        return fingerprint(self.heads.state_dict(), {**self._settings(), **towers})
