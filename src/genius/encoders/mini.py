"""The bundled encoder: two small transformers for drawings (64 x 64) and short English texts.

Trained from scratch (docs/model-card-mini.md names the programs and their commit); nothing is downloaded at run time. On
disk: `encoder.json` (the config), `weights.safetensors` (matrices as int8 with one scale per row, or float32), and
`tokenizer.json`. Loading gives float32 modules: the small format is a matter of files only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from genius.config import from_dict
from genius.encoders import SPEC, write_spec
from genius.encoders.inputs import Pixels, Tokens
from genius.errors import GeniusError
from genius.weight_arrays import tensor_names, unpack
from genius.weight_files import build, check_fit, fingerprint, pack, read_shapes, read_tensors

WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
MEAN = (0.7, 0.7, 0.7)  # of drawings on white, roughly
STD = (0.35, 0.35, 0.35)


@dataclass(frozen=True, slots=True)
class MiniConfig:
    """Sizes of both towers."""

    width: int = 256  # of the vectors that come out
    image_size: int = 64  # side of the input
    image_stem: int = 128  # channels at a quarter of the input's side
    image_width: int = 256  # of the image transformer
    image_residuals: int = 2  # residual blocks at a quarter and at an eighth of the side
    image_layers: int = 3  # transformer blocks on the grid of an eighth
    text_vocabulary: int = 16000
    text_length: int = 64  # tokens; longer texts are cut
    text_width: int = 256  # of the text transformer
    text_tokens: int = 0  # of the token table, if narrower: a table is most of a small tower; 0: text_width
    text_layers: int = 4
    head_width: int = 64  # of one attention head, both towers
    storage: Literal["int8", "float32"] = "float32"  # of the matrices on disk

    def __post_init__(self) -> None:
        may_be_zero = ("text_tokens", "image_residuals", "image_layers", "text_layers")
        for name, value in asdict(self).items():
            if not isinstance(value, int) or value > 0 or (value == 0 and name in may_be_zero):
                continue
            raise GeniusError(f"{name} must be positive, got {value}")
        if self.image_width % self.head_width or self.text_width % self.head_width:
            raise GeniusError(
                f"the head width {self.head_width} must divide the tower widths {self.image_width} and {self.text_width}"
            )


class TransformerBlock(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.heads = width // head_width
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        for last in (self.out, self.down):  # a block starts as nothing: deep stacks train from the first step
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """(n, tokens, width); `bias` (n, 1, 1, tokens) is added to the attention scores."""
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))  # type: ignore[no-any-return]


class Convolution(nn.Module):
    """3 x 3."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, stride=stride, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Two convolutions, added to the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = Convolution(width, width, 1)
        self.second = Convolution(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))


class ImageTower(nn.Module):
    """(n, 3, size, size) -> (n, width). Convolutions down to an eighth of the side, then a transformer on that grid."""

    def __init__(self, config: MiniConfig) -> None:
        super().__init__()
        stem = config.image_stem
        width = config.image_width
        self.stem = nn.Sequential(
            Convolution(3, stem // 2, 2),
            nn.ReLU(),
            Convolution(stem // 2, stem, 2),
            nn.ReLU(),
            *(Residual(stem) for _ in range(config.image_residuals)),
            Convolution(stem, width, 2),
            nn.ReLU(),
            *(Residual(width) for _ in range(config.image_residuals)),
        )
        self.positions = nn.Parameter(torch.randn(1, (config.image_size // 8) ** 2, width) * 0.1)
        self.blocks = nn.ModuleList(TransformerBlock(width, config.head_width) for _ in range(config.image_layers))
        self.norm = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 1)  # how much each place says
        self.head = nn.Linear(2 * width, config.width)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.stem(pixels).flatten(2).transpose(1, 2) + self.positions  # (n, places, width)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        weights = self.attend(x).softmax(dim=1)  # (n, places, 1)
        return self.head(torch.cat([(weights * x).sum(1), x.mean(1)], dim=1))  # type: ignore[no-any-return]


class TextTower(nn.Module):
    """Token ids and mask, both (n, tokens) -> (n, width)."""

    def __init__(self, config: MiniConfig) -> None:
        super().__init__()
        width = config.text_width
        narrow = config.text_tokens or width
        self.tokens = nn.Embedding(config.text_vocabulary, narrow)
        nn.init.normal_(self.tokens.weight, std=0.3)
        self.widen: nn.Module = nn.Identity()
        if narrow != width:
            self.widen = nn.Linear(narrow, width, bias=False)
        self.positions = nn.Parameter(torch.randn(config.text_length, width) * 0.1)
        self.blocks = nn.ModuleList(TransformerBlock(width, config.head_width) for _ in range(config.text_layers))
        self.norm = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 1)  # how much each token says: an instruction less than the words after it
        self.head = nn.Linear(2 * width, config.width)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        real = mask.bool()
        x = self.widen(self.tokens(ids)) + self.positions[: ids.shape[1]]
        # a large finite number, not -inf: a row of padding alone must not become NaN
        bias = torch.where(real, 0.0, -1e4).to(x.dtype)[:, None, None]
        for block in self.blocks:
            x = block(x, bias)
        x = self.norm(x)
        weights = self.attend(x).masked_fill(~real[..., None], -1e4).softmax(dim=1)
        share = real[..., None].to(x.dtype)
        mean = (x * share).sum(1) / share.sum(1).clamp(min=1)
        return self.head(torch.cat([(weights * x).sum(1), mean], dim=1))  # type: ignore[no-any-return]


class MiniEncoder(nn.Module):
    """Both towers, the tokenizer and the pixels, behind the encoder protocol."""

    def __init__(self, config: MiniConfig, tokens: Tokens) -> None:
        super().__init__()
        self.config = config
        self.tokens = tokens
        self.width = config.width
        self.pixels = Pixels(config.image_size, "pad", filter="bilinear", mean=MEAN, std=STD)
        self.image = ImageTower(config)
        self.text = TextTower(config)
        self.eval()

    @property
    def device(self) -> torch.device:
        return self.image.positions.device

    def prepare_image(self, picture: Image.Image) -> Image.Image:
        return self.pixels.prepare(picture)

    @torch.no_grad()
    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB pictures -> (n, width) float32 on the CPU."""
        if not images:
            return torch.empty(0, self.width)
        return self.image(self.pixels(images, self.device)).float().cpu()  # type: ignore[no-any-return]

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Texts -> (n, width) float32 on the CPU."""
        if not texts:
            return torch.empty(0, self.width)
        ids, mask = (torch.from_numpy(array).to(self.device) for array in self.tokens(texts))
        return self.text(ids, mask).float().cpu()  # type: ignore[no-any-return]

    def save(self, directory: Path) -> None:
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        if self.config.storage == "int8":
            weights = pack(weights)
        save_file(weights, directory / WEIGHTS)
        self.tokens.save(directory / TOKENIZER)
        write_spec(directory, "mini", {"config": asdict(self.config)})

    @classmethod
    def load(cls, directory: Path, spec: dict[str, Any]) -> Self:
        where = f"cannot load the encoder at {directory}"
        path = directory / WEIGHTS
        try:
            config = from_dict(MiniConfig, spec.get("config"), SPEC)
            shapes = read_shapes(path)
            shapes = {name: shapes[name] for name in tensor_names(shapes)}
            tokens = Tokens.load(directory / TOKENIZER, config.text_length)
            if tokens.largest() >= config.text_vocabulary:
                raise GeniusError(
                    f"the tokenizer has token ids up to {tokens.largest()}, the model a vocabulary of {config.text_vocabulary}"
                )
            encoder = build(lambda: cls(config, tokens), shapes, str(path))
            check_fit(encoder, shapes, str(path))
            encoder.load_state_dict(unpack(read_tensors(path)), assign=True)
        except GeniusError as error:
            raise GeniusError(f"{where}: {error}") from None
        return encoder

    def fingerprint(self) -> str:
        settings = {**asdict(self.config), "storage": None, "tokens": self.tokens.digest()}
        if not self.config.text_tokens:  # the field is younger than the first models
            settings.pop("text_tokens")
        return fingerprint(self.state_dict(), settings)
