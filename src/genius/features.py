"""`Features`: the output of an encoder for a batch, and the input of fusion.

Two vectors per item (image, text) and two masks that tell which are present. Later stages read features, never pixels, so they
are extracted once. They are tensors, or numpy arrays where an encoder runs without torch (`genius.encoders.graphs`); what is here
works with both. Knows arrays; nothing of encoders or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.types import Modality

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def module_of(array: Any) -> Any:
    """The module whose functions work on an array: numpy, or torch."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def as_numpy(array: Any) -> NDArray[Any]:
    """A numpy array of what may be a tensor on any device, or a sequence; bfloat16, which numpy lacks, as float32."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":
            array = array.float()
    return np.asarray(array)


@dataclass(frozen=True, slots=True)
class Features:
    """A batch of N items or queries. A missing modality has mask 0; its row is ignored, whatever it holds."""

    image: Tensor  # (N, width)
    text: Tensor  # (N, width)
    image_mask: Tensor  # (N,) bool
    text_mask: Tensor  # (N,) bool

    def __len__(self) -> int:
        return self.image.shape[0]

    @property
    def width(self) -> int:
        return self.image.shape[1]

    def __getitem__(self, rows: Tensor | slice | list[int]) -> Features:
        return Features(self.image[rows], self.text[rows], self.image_mask[rows], self.text_mask[rows])

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Features:
        """Move to a device, then convert there: half-precision rows are transferred as they are."""
        tensors = self.as_tensors()
        image = tensors.image.to(device)
        text = tensors.text.to(device)
        if dtype is not None:
            image = image.to(dtype)
            text = text.to(dtype)
        return Features(image, text, tensors.image_mask.to(device), tensors.text_mask.to(device))

    @property
    def modality(self) -> Tensor:
        """(N,) int64: 0 image, 1 text, 2 pair."""
        both = self.image_mask & self.text_mask
        where = module_of(self.image).where
        alone = where(self.image_mask, int(Modality.IMAGE), int(Modality.TEXT))
        modality: Tensor = where(both, int(Modality.PAIR), alone)
        return modality

    @staticmethod
    def cat(parts: Sequence[Features]) -> Features:
        if not parts:
            raise GeniusError("no features to concatenate")
        concatenate = module_of(parts[0].image).concatenate
        return Features(
            concatenate([part.image for part in parts]),
            concatenate([part.text for part in parts]),
            concatenate([part.image_mask for part in parts]),
            concatenate([part.text_mask for part in parts]),
        )

    def as_tensors(self) -> Features:
        """The same features as tensors; arrays share their memory with them."""
        if not isinstance(self.image, np.ndarray):
            return self
        import torch

        arrays: Any = (self.image, self.text, self.image_mask, self.text_mask)
        return Features(*map(torch.from_numpy, arrays))

    def check(self, width: int | None = None, name: str = "rows", zeros: bool = True) -> Features:
        """Check shapes and values; return self.

        Args:
            width: Of both vectors, if they must have one.
            name: What the rows are, for errors.
            zeros: Whether a vector of zeros is allowed.

        Raises:
            GeniusError: For wrong shapes, NaN or infinity, or rows with neither modality.
        """
        self.check_shapes(name)
        widths = {self.image.shape[1], self.text.shape[1]}
        if width is not None and widths != {width}:
            raise GeniusError(f"features are {' and '.join(map(str, sorted(widths)))} wide, the model expects {width}")
        for modality, rows, mask in (("image", self.image, self.image_mask), ("text", self.text, self.text_mask)):
            isfinite = module_of(rows).isfinite
            finite = _each(rows, lambda part: isfinite(part).all(1))  # noqa: B023 - called at once
            _refuse(mask & ~finite, f"{name}: {modality} features are NaN or infinite")
            if not zeros:
                _refuse(mask & _each(rows, lambda part: (part == 0).all(1)), f"{name}: {modality} features are all zero")
        _refuse(~(self.image_mask | self.text_mask), f"{name} have neither an image nor a text")
        return self

    def check_shapes(self, name: str) -> None:
        """Check that all parts have one row per item; image and text may differ in width.

        Args:
            name: What the rows are, for errors.
        """
        n = len(self)
        if self.text.shape[0] != n or self.image_mask.shape != (n,) or self.text_mask.shape != (n,):
            raise GeniusError(
                f"{name}: features do not fit together: image {tuple(self.image.shape)}, "
                f"text {tuple(self.text.shape)}, masks {tuple(self.image_mask.shape)} and {tuple(self.text_mask.shape)}"
            )

    def masked(self) -> tuple[Tensor, Tensor]:
        """(image, text), with missing rows exactly zero even if they hold NaN."""
        image = _or_zero(self.image_mask, self.image)
        text = _or_zero(self.text_mask, self.text)
        return image, text


def _or_zero(mask: Tensor, rows: Tensor) -> Tensor:
    """Rows (N, width), zeros where mask (N,) is false."""
    module = module_of(rows)
    kept: Tensor = module.where(mask[:, None], rows, module.zeros_like(rows[:1]))
    return kept


def check_finite(vectors: Any, what: str) -> None:
    """Raise a GeniusError that counts the rows (N, D) with NaN or infinity and names the first."""
    if not math.isfinite(float(vectors.sum())):  # quick test: a sum is finite only if every value is
        _refuse(~module_of(vectors).isfinite(vectors).all(1), f"{what} are NaN or infinite")


def _each(rows: Tensor, test: Callable[[Tensor], Tensor], chunk: int = 65_536) -> Tensor:
    """Apply `test` to chunks of `rows` (N, width), which may be mapped from disk and larger than memory; (N,) bool."""
    parts = [test(rows[start : start + chunk]) for start in range(0, max(len(rows), 1), chunk)]
    joined: Tensor = module_of(rows).concatenate(parts)
    return joined


def _refuse(bad: Tensor, what: str) -> None:
    if bad.any():
        first = int(module_of(bad).argmax(bad * 1))
        raise GeniusError(f"{int(bad.sum())} {what} (first: row {first})")
