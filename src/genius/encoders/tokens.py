"""Texts -> token ids, by a `tokenizer.json` of the `tokenizers` library. Pads to the longest of the batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from genius.errors import GeniusError


class Tokens:
    """A tokenizer with a length limit; id 0 pads unless the file names another."""

    def __init__(self, tokenizer: Any, length: int) -> None:
        self.tokenizer, self.length = tokenizer, length
        tokenizer.enable_truncation(length)
        if tokenizer.padding is None:
            tokenizer.enable_padding(pad_id=0)

    @classmethod
    def load(cls, path: Path, length: int) -> Self:
        from tokenizers import Tokenizer

        try:
            return cls(Tokenizer.from_file(str(path)), length)
        except Exception as error:  # the library raises bare Exceptions
            raise GeniusError(f"cannot read the tokenizer {path}: {str(error).splitlines()[0]}") from None

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """(n, longest) int64 ids and attention mask."""
        if not texts:
            return torch.zeros(0, 0, dtype=torch.long), torch.zeros(0, 0, dtype=torch.long)
        rows = self.tokenizer.encode_batch(list(texts))
        return torch.tensor([row.ids for row in rows]), torch.tensor([row.attention_mask for row in rows])

    def largest(self) -> int:
        """The largest id that may come out: a model's table of words must reach as far."""
        padding = self.tokenizer.padding or {}
        ids: list[int] = list(self.tokenizer.get_vocab(with_added_tokens=True).values())
        return max([int(padding.get("pad_id", 0)), *ids])

    def save(self, path: Path) -> None:
        path.write_text(self.tokenizer.to_str(), encoding="utf-8")

    def digest(self) -> str:
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()
