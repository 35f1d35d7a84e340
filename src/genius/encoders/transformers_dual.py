"""CLIP, SigLIP and SigLIP 2 (fixed size and NaFlex): a dual encoder of `transformers`, its tokenizer, its pixels.

`hf-hub:openai/clip-vit-large-patch14`, `hf-hub:google/siglip2-base-patch16-224`, `hf-hub:google/siglip2-base-patch16-naflex`,
or a folder with the same files.

A family says how it pads texts and how it pools; loading, batching on a device, saving and the fingerprint are
shared. Outputs are the towers' projected vectors, raw: fusion decides about their length.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from PIL import Image
from torch import Tensor, nn

from genius.encoders import write_spec
from genius.encoders.inputs import Patches, Pixels, read_patches, read_pixels
from genius.errors import GeniusError, said
from genius.files import read_json
from genius.weight_files import build, fingerprint, read_shapes

VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
ATTENTION = "sdpa"
"""Always passed to transformers: a config that names another could make it fetch native code."""


class DualEncoder(nn.Module):
    """A transformers model with `text_model` and `vision_model`, in eval mode."""

    family: ClassVar[str]
    model_class: ClassVar[str]
    model: Any  # of transformers

    def __init__(self, model: Any, tokenizer: Any, pixels: Pixels | Patches) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.pixels: Any = pixels  # `Patches` of NaFlex, else `Pixels`
        self.width = self._width()
        self.eval().requires_grad_(False)

    @classmethod
    def load(cls, directory: Path, spec: dict[str, Any]) -> Self:
        """Read a folder that `save_pretrained` (theirs or ours) wrote. Weights must be safetensors."""
        transformers = import_transformers()
        where = f"cannot load the {cls.family} encoder at {directory}"
        family = getattr(transformers, cls.model_class)
        try:
            _check_sizes(family, directory)
            model, report = family.from_pretrained(
                directory,
                local_files_only=True,
                use_safetensors=True,
                torch_dtype=torch.float32,
                trust_remote_code=False,
                attn_implementation=ATTENTION,
                output_loading_info=True,
            )
            tokenizer = load_tokenizer(directory)
            pixels = cls._read_pixels(directory, model.config.vision_config)
        except Exception as error:  # the library raises many classes for an untrusted config
            raise GeniusError(f"{where}: {said(error)}") from None
        lacking = sorted(name for name in report["missing_keys"] if not name.endswith("position_ids"))
        if lacking:  # the library draws them at random, and a tower with one random layer still gives vectors
            raise GeniusError(f"{where}: {len(lacking)} tensors are missing (first: {lacking[0]})")
        words = model.config.text_config.vocab_size
        if max(tokenizer.get_vocab().values(), default=0) >= words:
            raise GeniusError(f"{where}: the tokenizer has token ids beyond the model's vocabulary of {words}")
        return cls(model, tokenizer, pixels)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def prepare_image(self, picture: Image.Image) -> Image.Image:
        return cast(Image.Image, self.pixels.prepare(picture))

    @torch.no_grad()
    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB pictures -> (n, width) float32 on the CPU."""
        if not images:
            return torch.empty(0, self.width)
        return self._pool_images(self.pixels(images, self.device)).float().cpu()

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Texts -> (n, width) float32 on the CPU. Longer ones are cut at the tower's length."""
        if not texts:
            return torch.empty(0, self.width)
        ids = self.tokenizer(
            self._formatted_texts(texts),
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

    @classmethod
    def _read_pixels(cls, directory: Path, config: Any) -> Pixels | Patches:
        return read_pixels(directory, config.image_size)

    def _width(self) -> int:
        raise NotImplementedError

    def _formatted_texts(self, texts: Sequence[str]) -> list[str]:
        """Texts as the tokenizer is to read them."""
        return list(texts)

    def _length(self) -> int:
        return int(self.model.config.text_config.max_position_embeddings)

    def _padding(self) -> bool | str:
        raise NotImplementedError

    def _pool_images(self, pixels: Any) -> Tensor:
        """What `pixels` of this encoder makes of a batch -> (n, width)."""
        raise NotImplementedError

    def _pool_texts(self, ids: Tensor, mask: Tensor) -> Tensor:
        raise NotImplementedError


def import_transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise GeniusError("this encoder needs transformers: pip install 'genius-search[hub]'") from None
    transformers.utils.logging.disable_progress_bar()  # of reading weights, which takes a moment: our own lines stay readable
    return transformers


def load_tokenizer(directory: Path) -> Any:
    """The folder's own tokenizer; a class of its own that it may bring along is not run."""
    transformers = import_transformers()
    if not any(path.name in VOCABULARIES for path in directory.iterdir()):  # the library would make an empty one up
        raise GeniusError("it has no tokenizer: put its tokenizer.json, or vocab.json and merges.txt, next to the weights")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    tokenizer(["An unheard-of wörd, 42 🎨"])  # some cannot read what they do not know: better said now than at a search
    return tokenizer


def _check_sizes(family: Any, directory: Path) -> None:
    """The config against the weights that are there, before the library builds what it asks for."""
    read_json(directory / "config.json", 1 << 20)
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        shapes |= read_shapes(path)
    config = family.config_class.from_pretrained(directory, local_files_only=True)
    config._attn_implementation = ATTENTION  # of the sub-configs too
    build(lambda: family(config), shapes, str(directory / "config.json"))


class ClipEncoder(DualEncoder):
    """psi_image and psi_text of the paper (4.1): the projected class token and the projected end-of-text token."""

    family = "clip"
    model_class = "CLIPModel"

    def _width(self) -> int:
        return int(self.model.config.projection_dim)

    def _padding(self) -> bool:
        return True  # attention is causal: what follows the end token cannot be seen

    def _pool_images(self, pixels: Any) -> Tensor:
        return cast(Tensor, self.model.visual_projection(self.model.vision_model(pixel_values=pixels).pooler_output))

    def _pool_texts(self, ids: Tensor, mask: Tensor) -> Tensor:
        return cast(Tensor, self.model.text_projection(self.model.text_model(input_ids=ids, attention_mask=mask).pooler_output))


class SiglipEncoder(DualEncoder):
    """Attention-pooled picture, last-token text; no projection."""

    family = "siglip"
    model_class = "SiglipModel"

    def _width(self) -> int:
        return int(self.model.config.vision_config.hidden_size)

    def _padding(self) -> str:
        return "max_length"  # it was trained so: padding takes part, and the last position is the one that is read

    def _pool_images(self, pixels: Any) -> Tensor:
        return cast(Tensor, self.model.vision_model(pixel_values=pixels).pooler_output)

    def _pool_texts(self, ids: Tensor, mask: Tensor) -> Tensor:
        # no attention mask: padding was visible in training
        return cast(Tensor, self.model.text_model(input_ids=ids).pooler_output)


class Siglip2Encoder(SiglipEncoder):
    """SigLIP 2 NaFlex: images keep their aspect ratio, as up to a few hundred patches; position embeddings are scaled to each."""

    family = "siglip2"
    model_class = "Siglip2Model"

    @classmethod
    def _read_pixels(cls, directory: Path, config: Any) -> Patches:
        if not config.vision_use_head:
            raise GeniusError("its image tower has no pooling head, so it gives no vector")
        if math.isqrt(config.num_patches) ** 2 != config.num_patches:
            raise GeniusError(f"its position embeddings are no square: {config.num_patches}")
        return read_patches(directory, int(config.patch_size), int(config.num_patches))

    def _formatted_texts(self, texts: Sequence[str]) -> list[str]:
        return [text.lower() for text in texts]  # trained so; tokenizers of earlier transformers leave it to the caller

    def _pool_images(self, pixels: Any) -> Tensor:
        patches, present, grids = pixels
        found = self.model.get_image_features(pixel_values=patches, pixel_attention_mask=present, spatial_shapes=grids)
        if isinstance(found, Tensor):  # of transformers 4
            return found
        return cast(Tensor, found.pooler_output)
