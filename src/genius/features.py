"""`Features`: what an encoder makes of a batch, and all that fusion needs.

Two vectors an item (image, text) and two masks that say which of them is real. Every later stage reads
features, never pixels, so that a training run can extract them once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.types import Modality


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

    def __getitem__(self, rows: Tensor | slice) -> Features:
        return Features(self.image[rows], self.text[rows], self.image_mask[rows], self.text_mask[rows])

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Features:
        """Moved first and widened there: half-precision rows cross to a GPU as they are."""
        image, text = self.image.to(device), self.text.to(device)
        if dtype is not None:
            image, text = image.to(dtype), text.to(dtype)
        return Features(image, text, self.image_mask.to(device), self.text_mask.to(device))

    @property
    def modality(self) -> Tensor:
        """(N,) int64: 0 image, 1 text, 2 pair."""
        both = self.image_mask & self.text_mask
        return torch.where(both, int(Modality.PAIR), torch.where(self.image_mask, int(Modality.IMAGE), int(Modality.TEXT)))

    @staticmethod
    def cat(parts: Sequence[Features]) -> Features:
        if not parts:
            raise GeniusError("no features to concatenate")
        return Features(
            torch.cat([p.image for p in parts]),
            torch.cat([p.text for p in parts]),
            torch.cat([p.image_mask for p in parts]),
            torch.cat([p.text_mask for p in parts]),
        )

    def check(self, width: int | None = None) -> Features:
        """Raise one clear line for wrong shapes, NaN, or rows with neither modality; return self."""
        self.check_shapes()
        if self.text.shape != self.image.shape:
            raise GeniusError(
                f"features do not fit together: image {tuple(self.image.shape)}, text {tuple(self.text.shape)}, "
                f"masks {tuple(self.image_mask.shape)} and {tuple(self.text_mask.shape)}"
            )
        if width is not None and self.width != width:
            raise GeniusError(f"features are {self.width} wide, the model expects {width}")
        self.check_rows()
        return self

    def check_shapes(self, name: str = "") -> None:
        """One row of each part for every item; the widths of image and text may still differ (towers before their heads)."""
        n = len(self)
        if self.text.shape[0] != n or self.image_mask.shape != (n,) or self.text_mask.shape != (n,):
            raise GeniusError(
                f"{name + ': ' if name else ''}features do not fit together: image {tuple(self.image.shape)}, "
                f"text {tuple(self.text.shape)}, masks {tuple(self.image_mask.shape)} and {tuple(self.text_mask.shape)}"
            )

    def check_rows(self, name: str = "", zeros: bool = True) -> None:
        """Numbers where there should be some. `name`: of what, for the message; `zeros`: whether a vector of zeros passes."""
        what = name + " " if name else ""
        for kind, rows, mask in (("image", self.image, self.image_mask), ("text", self.text, self.text_mask)):
            finite = _each(rows, lambda part: torch.isfinite(part).all(dim=1))
            _refuse(mask & ~finite, f"{what}{kind} features are NaN or infinite")
            if not zeros:
                _refuse(mask & _each(rows, lambda part: (part == 0).all(dim=1)), f"{what}{kind} features are all zero")
        _refuse(~(self.image_mask | self.text_mask), f"{what}rows have neither an image nor a text")

    def masked(self) -> tuple[Tensor, Tensor]:
        """(image, text) with the missing ones exactly zero, even where their rows held NaN."""
        zero = self.image.new_zeros(())
        return (
            torch.where(self.image_mask[:, None], self.image, zero),
            torch.where(self.text_mask[:, None], self.text, zero),
        )


def check_finite(vectors: Tensor, what: str) -> None:
    """Raise one clear line that counts the rows (N, D) with NaN or infinity and names the first."""
    if not math.isfinite(float(vectors.sum())):  # one quick look: a sum is finite only where everything is
        _refuse(~torch.isfinite(vectors).all(dim=1), f"{what} are NaN or infinite")


def _each(rows: Tensor, test: Callable[[Tensor], Tensor], chunk: int = 65_536) -> Tensor:
    """(N,) bool of `rows` (N, width), some at a time: they may be mapped from a disk and many times the memory."""
    return torch.cat([test(part) for part in rows.split(chunk)])


def _refuse(bad: Tensor, what: str) -> None:
    if bad.any():
        raise GeniusError(f"{int(bad.sum())} {what} (first: row {int(bad.nonzero()[0])})")
