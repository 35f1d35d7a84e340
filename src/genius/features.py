"""`Features`: the output of an encoder for a batch, and the input of fusion.

Two vectors per item (image, text) and two masks that tell which are present. Later stages read features, never pixels, so they
are extracted once. Knows tensors; nothing of encoders or files.
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
        """Move to a device, then convert there: half-precision rows are transferred as they are."""
        image = self.image.to(device)
        text = self.text.to(device)
        if dtype is not None:
            image = image.to(dtype)
            text = text.to(dtype)
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
        """Check shapes and values; return self.

        Args:
            width: The expected width, if any.

        Raises:
            GeniusError: For wrong shapes, NaN or infinity, or rows with neither modality.
        """
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
        """Check that all parts have one row per item. Image and text may differ in width (towers before their heads)."""
        n = len(self)
        if self.text.shape[0] != n or self.image_mask.shape != (n,) or self.text_mask.shape != (n,):
            raise GeniusError(
                f"{name + ': ' if name else ''}features do not fit together: image {tuple(self.image.shape)}, "
                f"text {tuple(self.text.shape)}, masks {tuple(self.image_mask.shape)} and {tuple(self.text_mask.shape)}"
            )

    def check_rows(self, name: str = "", zeros: bool = True) -> None:
        """Check that present rows are finite.

        Args:
            name: Begins the error.
            zeros: Whether a vector of zeros is allowed.
        """
        what = name + " " if name else ""
        for modality, rows, mask in (("image", self.image, self.image_mask), ("text", self.text, self.text_mask)):
            finite = _each(rows, lambda part: torch.isfinite(part).all(dim=1))
            _refuse(mask & ~finite, f"{what}{modality} features are NaN or infinite")
            if not zeros:
                _refuse(mask & _each(rows, lambda part: (part == 0).all(dim=1)), f"{what}{modality} features are all zero")
        _refuse(~(self.image_mask | self.text_mask), f"{what}rows have neither an image nor a text")

    def masked(self) -> tuple[Tensor, Tensor]:
        """(image, text), with missing rows exactly zero even if they hold NaN."""
        zero = self.image.new_zeros(())
        return (
            torch.where(self.image_mask[:, None], self.image, zero),
            torch.where(self.text_mask[:, None], self.text, zero),
        )


def check_finite(vectors: Tensor, what: str) -> None:
    """Raise a GeniusError that counts the rows (N, D) with NaN or infinity and names the first."""
    if not math.isfinite(float(vectors.sum())):  # quick test: a sum is finite only if every value is
        _refuse(~torch.isfinite(vectors).all(dim=1), f"{what} are NaN or infinite")


def _each(rows: Tensor, test: Callable[[Tensor], Tensor], chunk: int = 65_536) -> Tensor:
    """Apply `test` to chunks of `rows` (N, width), which may be mapped from disk and larger than memory; (N,) bool."""
    return torch.cat([test(part) for part in rows.split(chunk)])


def _refuse(bad: Tensor, what: str) -> None:
    if bad.any():
        raise GeniusError(f"{int(bad.sum())} {what} (first: row {int(bad.nonzero()[0])})")
