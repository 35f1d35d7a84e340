"""What CLIP and SigLIP share: a dual encoder of `transformers`, its tokenizer, its pixels.

A family says how it pads texts and how it pools; loading, batching on a device, saving and the fingerprint are
here. Outputs are the towers' projected vectors, raw: fusion decides about their length.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from PIL import Image
from torch import Tensor, nn

from genius.encoders.digest import fingerprint
from genius.encoders.pixels import Pixels, read_pixels
from genius.encoders.registry import write_spec
from genius.errors import GeniusError


class DualEncoder(nn.Module):
    """A transformers model with `text_model` and `vision_model`, in eval mode."""

    family: ClassVar[str]
    model_class: ClassVar[str]

    def __init__(self, model: Any, tokenizer: Any, pixels: Pixels) -> None:
        super().__init__()
        self.model: Any
        self.model, self.tokenizer, self.pixels = model, tokenizer, pixels
        self.width = self._width()
        self.eval().requires_grad_(False)

    @classmethod
    def load(cls, directory: Path, spec: dict[str, Any]) -> Self:
        """Read a folder that `save_pretrained` (theirs or ours) wrote. Weights must be safetensors."""
        transformers = import_transformers()
        try:
            model = getattr(transformers, cls.model_class).from_pretrained(
                directory, local_files_only=True, use_safetensors=True, torch_dtype=torch.float32
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            raise GeniusError(f"cannot load the {cls.family} encoder at {directory}: {_first_line(error)}") from None
        return cls(model, tokenizer, read_pixels(directory, model.config.vision_config.image_size))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def prepare_image(self, picture: Image.Image) -> Image.Image:
        return self.pixels.prepare(picture)

    @torch.no_grad()
    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB pictures -> (n, width) float32 on the CPU."""
        if not images:
            return torch.empty(0, self.width)
        return self._pool_images(self.pixels(images).to(self.device)).float().cpu()

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Texts -> (n, width) float32 on the CPU. Longer ones are cut at the tower's length."""
        if not texts:
            return torch.empty(0, self.width)
        ids = self.tokenizer(
            list(texts),
            padding=self._padding(),
            truncation=True,
            max_length=self._length(),
            return_tensors="pt",
            return_attention_mask=True,
        )
        return self._pool_texts(ids["input_ids"].to(self.device), ids["attention_mask"].to(self.device)).float().cpu()

    def save(self, directory: Path) -> None:
        """A folder that transformers reads too."""
        directory = Path(directory)
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        body = json.dumps(self.pixels.to_preprocessor(), indent=2) + "\n"
        (directory / "preprocessor_config.json").write_text(body, encoding="utf-8")
        write_spec(directory, self.family)

    def fingerprint(self) -> str:
        probe = self.tokenizer(["The quick brown fox, 42!"], truncation=True, max_length=self._length())["input_ids"]
        settings = {
            "family": self.family,
            "pixels": self.pixels.to_preprocessor(),
            "tokenizer": [list(map(int, row)) for row in probe],
        }
        return fingerprint(self._weights(), settings)

    def _weights(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())

    # -- what a family says ------------------------------------------------------------------------------------

    def _width(self) -> int:
        raise NotImplementedError

    def _length(self) -> int:
        return int(self.model.config.text_config.max_position_embeddings)

    def _padding(self) -> bool | str:
        raise NotImplementedError

    def _pool_images(self, pixels: Tensor) -> Tensor:
        raise NotImplementedError

    def _pool_texts(self, ids: Tensor, mask: Tensor) -> Tensor:
        raise NotImplementedError


def import_transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise GeniusError("this encoder needs transformers: pip install 'genius-search[hub]'") from None
    return transformers


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
