"""What towers read: texts -> token ids, by a `tokenizer.json` of the `tokenizers` library; pictures -> normalised pixels, as
CLIP-like models expect them, with Pillow and numpy only.

`Pixels.prepare` shrinks one picture to the tower's input, `__call__` makes the batch. They are apart so that loading
threads can shrink each picture as soon as it is decoded: memory then holds small pictures, however large the files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from genius.errors import GeniusError, said
from genius.files import read_json

MAX_PATCHES = 4096  # that NaFlex may ask for, and pixels of the side of one: both come out of a file
MAX_PATCH_SIDE = 64
LARGEST_SIDE = 1024  # pixels of a picture before it is cut into patches
MAX_SIDE = 8192  # of what a tower may ask for: it comes out of a file, and every picture is brought to it
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
THIN = 16  # times the shorter side: a longer picture is cropped before it is resized, or it would grow without bound
PREPARED = "genius-prepared"  # marks an image that needs no more scaling, which its size alone does not show
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "lanczos": Image.Resampling.LANCZOS}


class Tokens:
    """A tokenizer with a length limit; id 0 pads unless the file names another.

    Args:
        tokenizer: A `tokenizers.Tokenizer`.
        length: Most tokens of a text; longer ones are cut.
    """

    def __init__(self, tokenizer: Any, length: int) -> None:
        self.tokenizer = tokenizer
        self.length = length
        tokenizer.enable_truncation(length)
        if tokenizer.padding is None:
            tokenizer.enable_padding(pad_id=0)

    @classmethod
    def load(cls, path: Path, length: int) -> Self:
        """Read a `tokenizer.json`.

        Args:
            path: The file.
            length: Most tokens of a text.
        """
        from tokenizers import Tokenizer

        try:
            return cls(Tokenizer.from_file(str(path)), length)
        except Exception as error:  # the library raises bare Exceptions
            raise GeniusError(f"cannot read the tokenizer {path}: {said(error)}") from None

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(n, longest) ids and attention mask."""
        if not texts:
            return np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64)
        rows = self.tokenizer.encode_batch(list(texts))
        ids = np.array([row.ids for row in rows], np.int64)
        mask = np.array([row.attention_mask for row in rows], np.int64)
        return ids, mask

    def largest(self) -> int:
        """The largest id that may come out, which must be a row of the model's token embeddings."""
        padding = self.tokenizer.padding or {}
        ids: list[int] = list(self.tokenizer.get_vocab(with_added_tokens=True).values())
        return max([int(padding.get("pad_id", 0)), *ids])

    def save(self, path: Path) -> None:
        """Write the tokenizer as `tokenizer.json`.

        Args:
            path: The file.
        """
        path.write_text(self.tokenizer.to_str(), encoding="utf-8")

    def digest(self) -> str:
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Pixels:
    """How a tower wants its pictures; the defaults are CLIP's."""

    size: int = 224  # side of the square input
    # crop: shorter side to `resize`, then the centre square (CLIP). squash: both sides to `size` (SigLIP).
    # pad: longer side to `size`, padded with white, so that nothing is cut and nothing is distorted (drawings).
    fit: Literal["crop", "squash", "pad"] = "crop"
    resize: int = 0  # shorter side before the crop; 0: `size`
    filter: Literal["bilinear", "bicubic", "lanczos"] = "bicubic"
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_SIDE or not 0 <= self.resize <= MAX_SIDE:
            raise GeniusError(f"image size {self.size} and resize {self.resize} must be at most {MAX_SIDE} pixels")
        _check_colours(self.mean, self.std)

    def prepare(self, picture: Image.Image) -> Image.Image:
        """RGB picture -> RGB picture of `size` x `size`. One that was prepared before is returned as it is.

        Args:
            picture: An RGB picture.
        """
        if picture.info.get(PREPARED) == self:
            return picture
        rgb = picture
        if picture.mode != "RGB":
            rgb = picture.convert("RGB")
        small = self._fitted(rgb)
        small.info = {PREPARED: self}
        return small

    def _fitted(self, picture: Image.Image) -> Image.Image:
        if picture.size == (self.size, self.size) and self.resize in (0, self.size):
            return picture.copy()
        how = FILTERS[self.filter]
        if self.fit == "squash":
            return picture.resize((self.size, self.size), how)
        width, height = picture.size
        if self.fit == "pad":
            scale = self.size / max(width, height)
            small = picture.resize((max(1, round(width * scale)), max(1, round(height * scale))), how)
            square = Image.new("RGB", (self.size, self.size), (255, 255, 255))
            square.paste(small, ((self.size - small.width) // 2, (self.size - small.height) // 2))
            return square
        short = self.resize or self.size
        # the longer side is cut off, not rounded, as torchvision and transformers do
        new = (int(short * width / height), short)
        if width <= height:
            new = (short, int(short * height / width))
        left = (new[0] - self.size) // 2
        top = (new[1] - self.size) // 2
        if max(new) > THIN * short:
            across = width / new[0]
            down = height / new[1]
            box = (left * across, top * down, (left + self.size) * across, (top + self.size) * down)
            return picture.resize((self.size, self.size), how, box=box)
        return picture.resize(new, how).crop((left, top, left + self.size, top + self.size))

    def __call__(self, pictures: Sequence[Image.Image], device: Any = "cpu") -> Any:
        """(n, 3, size, size) float32.

        Args:
            pictures: RGB images.
            device: Of torch: it gets one byte per colour, does the arithmetic and holds the tensor. None: a numpy array.
        """
        mean = np.array(self.mean, np.float32) * 255
        std = np.array(self.std, np.float32) * 255
        if not pictures:
            stack = np.empty((0, self.size, self.size, 3), np.uint8)
        else:
            stack = np.stack([np.asarray(self.prepare(picture), dtype=np.uint8) for picture in pictures])
        if device is None:
            normalised = (stack.astype(np.float32) - mean) / std
            return np.ascontiguousarray(normalised.transpose(0, 3, 1, 2))
        import torch

        on_device = [torch.from_numpy(array).to(device) for array in (stack, mean, std)]
        return ((on_device[0].float() - on_device[1]) / on_device[2]).permute(0, 3, 1, 2).contiguous()

    def to_preprocessor(self) -> dict[str, Any]:
        """The same as a transformers `preprocessor_config.json`."""
        crop = self.fit == "crop"
        size = {"height": self.size, "width": self.size}
        if crop:
            size = {"shortest_edge": self.resize or self.size}
        return {
            "do_resize": True,
            "size": size,
            "resample": int(FILTERS[self.filter]),
            "do_center_crop": crop,
            "crop_size": {"height": self.size, "width": self.size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }


@dataclass(frozen=True)
class Patches:
    """Pictures -> patches in their own aspect ratio (NaFlex of SigLIP 2), by the image processor of `transformers`.

    A picture is scaled so that it fills at most `most` patches of `side` x `side` pixels; its sides become multiples of `side`.
    """

    side: int = 16
    most: int = 256
    filter: str = "bilinear"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        if not 1 <= self.side <= MAX_PATCH_SIDE or not 1 <= self.most <= MAX_PATCHES:
            raise GeniusError(
                f"{self.most} patches of {self.side} pixels a side: at most {MAX_PATCHES} of {MAX_PATCH_SIDE} pixels"
            )
        _check_colours(self.mean, self.std)

    def prepare(self, picture: Image.Image) -> Image.Image:
        """RGB picture of a moderate size; it is scaled to whole patches with its batch.

        Args:
            picture: A picture.
        """
        small = picture.convert("RGB")
        small.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
        return small

    def __call__(self, pictures: Sequence[Image.Image], device: Any = "cpu") -> Any:
        """Tensors on the device: patches (n, most, 3 * side * side) float32, which are there (n, most), and (n, 2) grids
        (down, across).

        Args:
            pictures: RGB images.
            device: Of torch.
        """
        found = self._processor(images=list(pictures), return_tensors="pt")
        return tuple(found[name].to(device) for name in ("pixel_values", "pixel_attention_mask", "spatial_shapes"))

    @cached_property
    def _processor(self) -> Any:
        import transformers

        by_pillow = getattr(transformers, "Siglip2ImageProcessorPil", None) or transformers.Siglip2ImageProcessor
        settings = self.to_preprocessor()
        del settings["image_processor_type"]
        return by_pillow(**settings)

    def to_preprocessor(self) -> dict[str, Any]:
        """The same as a transformers `preprocessor_config.json`."""
        return {
            "image_processor_type": "Siglip2ImageProcessor",
            "do_resize": True,
            "patch_size": self.side,
            "max_num_patches": self.most,
            "resample": int(FILTERS[self.filter]),
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }


def _check_colours(mean: Sequence[float], std: Sequence[float]) -> None:
    if len(mean) != 3 or len(std) != 3 or not all(float(value) for value in std):
        raise GeniusError(f"mean {mean} and deviation {std}: three numbers each, deviations not zero")


def read_patches(directory: Path, side: int, most: int) -> Patches:
    """Patches from a SigLIP 2 NaFlex folder's `preprocessor_config.json`.

    Args:
        directory: The folder.
        side: Pixels of a patch's side of the model, which the file must not contradict.
        most: Patches of a picture, where the folder does not say.
    """
    path, body = _preprocessor(directory)
    if path is None:
        return Patches(side, most)
    try:
        found = int(body.get("patch_size", side))
        if found != side:
            raise GeniusError(f"{path}: patches of {found} pixels, but the model reads patches of {side}")
        return Patches(side, int(body.get("max_num_patches", most)), **_colours(body, "bilinear", (0.5,) * 3, (0.5,) * 3))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise GeniusError(f"cannot read {path}: {error}") from None


def _preprocessor(directory: Path) -> tuple[Path | None, Any]:
    """The file that describes how images are prepared, and what it says of that; (None, {}) without one."""
    for name in ("preprocessor_config.json", "processor_config.json"):  # newer folders have it in the second
        path = directory / name
        if not path.is_file():
            continue
        try:
            body = read_json(path, 1 << 20)
            return path, body.get("image_processor", body)
        except (OSError, ValueError, AttributeError) as error:
            raise GeniusError(f"cannot read {path}: {error}") from None
    return None, {}


def _colours(body: Any, usual: str, mean: tuple[float, ...], std: tuple[float, ...]) -> dict[str, Any]:
    """Filter, mean and deviation of a `preprocessor_config.json`; the last three arguments are the defaults."""
    filters = {int(value): name for name, value in FILTERS.items()}
    shared: dict[str, Any] = {
        "filter": filters.get(int(body.get("resample", FILTERS[usual])), "bicubic"),
        "mean": tuple(body.get("image_mean", mean)),
        "std": tuple(body.get("image_std", std)),
    }
    if not body.get("do_normalize", True):
        shared |= {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    return shared


def read_pixels(directory: Path, default_size: int) -> Pixels:
    """Pixels from a transformers folder's `preprocessor_config.json`; CLIP's at `default_size` without one."""
    path, body = _preprocessor(directory)
    if path is None:
        return Pixels(size=default_size)
    try:
        size = body.get("size", default_size)
        shared = _colours(body, "bicubic", CLIP_MEAN, CLIP_STD)
        if isinstance(size, dict) and "shortest_edge" not in size:
            if size["height"] != size["width"]:
                raise GeniusError(f"{path}: only square inputs are read, not {size['height']} x {size['width']}")
            return Pixels(size=int(size["height"]), fit="squash", **shared)
        short = _side(size, "shortest_edge")
        crop = body.get("crop_size")
        side = short
        if crop and body.get("do_center_crop", True):
            side = _side(crop, "height")
        return Pixels(size=side, resize=short, **shared)
    except GeniusError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise GeniusError(f"cannot read {path}: {error}") from None


def _side(size: Any, name: str) -> int:
    """A side in pixels, which configs give as a number or as a table of named sides."""
    if isinstance(size, dict):
        size = size[name]
    return int(size)
