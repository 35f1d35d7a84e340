"""`GeniusConfig`: everything about a model but its weights (fusion, quantizer, decoder); how it is read from a folder, names of
fields and weights in files of earlier versions, and the fingerprint that identifies a model. Imports no torch.

The folder may be untrusted: sizes are bounded, and its config cannot name a checkpoint outside of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from genius.config import changed, from_dict, merge
from genius.errors import GeniusError
from genius.features import module_of
from genius.files import read_json
from genius.model.confidence import Confidence

FORMAT = 1
CONFIG = "config.json"
MAX_CONFIG = 1 << 20  # bytes of it
MAX_WORK = 4096  # the most that settings of the quantizer's search may ask for

# What the first release wrote of a model with all defaults. A fingerprint is made of this and of what differs from the defaults,
# so that a field added later, left at its default, changes no fingerprint, and indexes built before still open.
_FIRST_RELEASE: dict[str, Any] = {
    "fusion": {"width": 768, "projection": 2560, "hidden": 5120},
    "quantizer": {
        "width": 768, "level_sizes": [3] + [4096] * 8, "modality_code": "given", "shared": False, "gradient": "rotation",
        "decay": 0.9, "epsilon": 1e-5, "patience": 4.0, "published_revival": False, "encode_beam": 1,
    },
    "generator": {
        "width": 768, "level_sizes": [3] + [4096] * 8, "d_model": 512, "layers": 6, "heads": 8, "d_kv": 64, "d_ff": 2048,
        "prefix_tokens": 30, "dropout": 0.1, "buckets": 32, "max_distance": 128, "normalizer": "vocabulary",
    },
    "encoder": None,
    "rerank_embedding": "fused",
    "search": {},
}  # fmt: skip
_RETIRED = {"quantizer": {"encode_beam": 1}}  # fields that older models name, and the only value that still has a meaning
_RENAMED = {"quantizer": {"own_books_from": "modality_codebooks_from"}}  # name in the first release -> name today

FAST = 20.0  # a_l and b_l are read as this times a parameter: Adam then moves them as fast as two numbers a level may move
START_SCALE = 2.5  # log a_l before training
HEAD = "codebook_head."  # prefix of the weights of `CodebookHead`
# names of weights today -> in the first release, whose files are still read and whose names fingerprints are made of
FIRST_NAMES = {f"{HEAD}residual_shift.": "nearness.bend.", HEAD: "nearness."}
OTHER_NAMES = {f"{HEAD}bend.": f"{HEAD}residual_shift."}  # names of versions in between -> today
SCALES = (f"{HEAD}log_scale", f"{HEAD}norm_weight")
"""Weights that were one number per level before every modality had its own."""


@dataclass(frozen=True, slots=True)
class FusionConfig:
    """Sizes of the fusion module; the defaults are the published ones."""

    width: int = 768  # of the encoder's vectors and of z
    projection: int = 2560  # of each modality before they are joined
    hidden: int = 5120  # of the two MLPs after the join


ModalityCode = Literal["given", "nearest", "classifier", "none"]
GradientEstimator = Literal["straight-through", "rotation"]


@dataclass(frozen=True, slots=True)
class QuantizerConfig:
    """Shape and update rule of the codebooks; the defaults are the paper's sizes."""

    width: int = 768  # of z
    level_sizes: tuple[int, ...] = (3,) + (4096,) * 8  # K_i of every level, modality first
    # given: level 0 is the item's modality. nearest: unsupervised, as published. classifier: a label that takes
    # no part in the residuals (supplement C.2). none: no modality code at all (Table 4).
    modality_code: ModalityCode = "given"
    shared: bool = False  # one codebook for all levels but the first (supplement C.5)
    gradient: GradientEstimator = "rotation"  # how L_mse reaches the fusion through the argmin
    decay: float = 0.9  # of the moving averages
    epsilon: float = 1e-5  # Laplace smoothing of cluster sizes
    # A code unused for `patience` times its expected interval is moved onto a random residual. The published
    # rule (moving-average size below 2, every step) is `published_revival`: it redraws most of a large codebook.
    patience: float = 4.0
    published_revival: bool = False
    encode_sweeps: int = 0  # sweeps that choose later codes again, given all the others (lower error; 0: as the paper)
    settled: int = 2  # the first levels, which are never chosen again, nor moved when levels are fitted to each other
    # > 0: from this level on every modality has codebooks of its own. A code follows the modality's code, so three
    # codebooks cost no bit of the ID, and texts do not share codes with images. 0: one codebook per level, as the paper.
    modality_codebooks_from: int = 0
    family: str = "residual"  # name of a registered quantizer (`genius.model.quantizer.register`)

    def __post_init__(self) -> None:
        object.__setattr__(self, "level_sizes", tuple(int(k) for k in self.level_sizes))
        if len(self.level_sizes) < 2 or min(self.level_sizes) < 1:
            raise GeniusError(f"a quantizer needs at least two levels of positive size, got {self.level_sizes}")
        if self.modality_code != "none" and self.level_sizes[0] != 3:
            raise GeniusError(f"level 0 has one code per modality, so size 3, not {self.level_sizes[0]}")
        if self.shared and len(set(self.level_sizes[1:])) > 1:
            raise GeniusError("a shared codebook needs levels of equal size")
        if self.settled < 1:
            raise GeniusError(f"settled must be at least 1 (the modality level), got {self.settled}")
        if self.modality_codebooks_from and (self.shared or not self.labelled):
            raise GeniusError("modality_codebooks_from needs modality codes and codebooks that are not shared")

    @property
    def levels(self) -> int:
        return len(self.level_sizes)

    @property
    def labelled(self) -> bool:
        """Whether level 0 is given rather than searched."""
        return self.modality_code in ("given", "classifier")

    def has_modality_codebooks(self, level: int) -> bool:
        """Whether every modality has a codebook of its own at this level."""
        return 0 < self.modality_codebooks_from <= level and level > 0

    def codebook_number(self, level: int) -> int:
        """Number of the codebook that a level uses: its own, or the second where they are shared."""
        if self.shared:
            return min(level, 1)
        return level

    def codebook_size(self, number: int) -> int:
        """Rows of a codebook: one per code, or one per code and modality."""
        if self.has_modality_codebooks(number):
            return 3 * self.level_sizes[number]
        return self.level_sizes[number]

    def codebook_rows(self, level: int, modality: int) -> slice:
        """Rows of a level's codebook that are one modality's."""
        if not self.has_modality_codebooks(level):
            return slice(None)
        size = self.level_sizes[level]
        return slice(modality * size, (modality + 1) * size)


SPECIALS = 3  # pad (the start token), eos, unk: kept for the published vocabulary


@dataclass(frozen=True, slots=True)
class GeneratorConfig:
    """Shape of the decoder; the defaults are the paper's (T5-small, 30 prefix vectors)."""

    width: int = 768  # of z
    level_sizes: tuple[int, ...] = (3,) + (4096,) * 8  # K_i of every level
    d_model: int = 512
    layers: int = 6
    heads: int = 8
    d_kv: int = 64  # width of one head
    d_ff: int = 2048
    prefix_tokens: int = 30  # N of Eq. 9
    dropout: float = 0.1
    buckets: int = 32  # of the relative position bias
    max_distance: int = 128
    normalizer: Literal["vocabulary", "level"] = "vocabulary"  # softmax over all codes (published) or one level's
    head: Literal["table", "codebooks"] = "table"  # a free row for each code (the paper), or similarity to the codebooks' rows

    def __post_init__(self) -> None:
        object.__setattr__(self, "level_sizes", tuple(int(k) for k in self.level_sizes))
        if not self.level_sizes or min(self.level_sizes) < 1:
            raise GeniusError(f"level_sizes must be positive, got {self.level_sizes}")
        if self.head == "codebooks" and self.normalizer != "level":
            raise GeniusError("a head tied to the codebooks normalizes per level: set normalizer = 'level'")

    @property
    def levels(self) -> int:
        return len(self.level_sizes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """First row of each level in the token table."""
        starts = [SPECIALS]
        for size in self.level_sizes[:-1]:
            starts.append(starts[-1] + size)
        return tuple(starts)

    @property
    def vocabulary(self) -> int:
        return SPECIALS + sum(self.level_sizes)


SIZES: dict[str, dict[str, int]] = {
    "nano": {"d_model": 64, "layers": 1, "heads": 2, "d_kv": 32, "d_ff": 128},
    "tiny": {"d_model": 128, "layers": 2, "heads": 4, "d_kv": 32, "d_ff": 512},
    "compact": {"d_model": 192, "layers": 3, "heads": 3, "d_kv": 64, "d_ff": 512},
    "mini": {"d_model": 256, "layers": 4, "heads": 4, "d_kv": 64, "d_ff": 1024},
    "small": {"d_model": 512, "layers": 6, "heads": 8, "d_kv": 64, "d_ff": 2048},
    "base": {"d_model": 768, "layers": 12, "heads": 12, "d_kv": 64, "d_ff": 3072},
    "large": {"d_model": 1024, "layers": 24, "heads": 16, "d_kv": 64, "d_ff": 4096},
}
"""T5 shapes by name (`small`, `base`, `large` are the paper's; `mini`, `compact` and `tiny` are for small data, `nano` for
collections without queries, where similarity does the work)."""


@dataclass(frozen=True, slots=True)
class GeniusConfig:
    """Everything about a model but its weights."""

    fusion: FusionConfig = field(default_factory=FusionConfig)
    quantizer: QuantizerConfig = field(default_factory=QuantizerConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    encoder: str | None = None  # URI of the encoder ("hf-hub:…"); None with an `encoder/` folder: that one
    rerank_embedding: Literal["fused", "score-fusion"] = "fused"  # z (the paper's 4.4), or the encoder's own (published)
    search: dict[str, Any] = field(default_factory=dict)  # defaults of this model for `genius.search.SearchParams`
    confidence: dict[str, Any] = field(default_factory=dict)  # re-ranking -> weights (`genius.model.confidence`)
    instructions: bool = True  # whether the target modality is also put into words; not for encoders without instructions

    def __post_init__(self) -> None:
        widths = {self.fusion.width, self.quantizer.width, self.generator.width}
        if len(widths) > 1:
            raise GeniusError(f"fusion, quantizer and generator have different widths: {sorted(widths)}")
        if self.quantizer.level_sizes != self.generator.level_sizes:
            raise GeniusError(
                f"quantizer levels {self.quantizer.level_sizes} differ from the generator's {self.generator.level_sizes}"
            )
        for weights in self.confidence.values():
            Confidence.read(weights)

    @property
    def width(self) -> int:
        return self.fusion.width


def identity(config: GeniusConfig) -> dict[str, Any]:
    """The part of the configuration that decides codes and embeddings: search defaults may change freely."""
    values = changed(dataclasses.replace(config, search={}, encoder=None, confidence={}))
    for part, names in _RENAMED.items():
        for first, today in names.items():
            if today in values.get(part, {}):
                values[part][first] = values[part].pop(today)
    return merge(_FIRST_RELEASE, values)


# -- names of weights, and the fingerprint that is made of weights ---------------------------------------------------


def current_name(name: str) -> str:
    """Today's name of a weight, by the one it has in a file of any version."""
    for today, first in FIRST_NAMES.items():
        name = name.replace(first, today)
    for other, today in OTHER_NAMES.items():
        name = name.replace(other, today)
    return name


def first_name(name: str) -> str:
    """The name that a weight had in the first version: fingerprints are made of these, and must not change."""
    for today, first in FIRST_NAMES.items():
        name = name.replace(today, first)
    return name


def as_one_number(name: str, weight: Any, modalities: int) -> Any:
    """A weight as it was when all modalities shared one number, if they do not differ: fingerprints must not change.

    Args:
        name: Of today.
        weight: A tensor or an array.
        modalities: That have numbers of their own.
    """
    if not name.endswith(SCALES):
        return weight
    by_modality = weight.reshape(-1, modalities)
    if bool((by_modality == by_modality[:, :1]).all()):
        return by_modality[:, 0]
    return weight


def model_fingerprint(config: GeniusConfig, weights: Mapping[str, Any], encoder: str | None) -> str:
    """32 hex digits over the configuration and every weight.

    Args:
        config: Of the model.
        weights: By name, tensors or arrays.
        encoder: The encoder's fingerprint; None without one.
    """
    digest = hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode())
    modalities = 1
    if config.generator.head == "codebooks" and config.quantizer.modality_codebooks_from:
        modalities = 3
    for name, weight in sorted(((first_name(name), weight) for name, weight in weights.items()), key=lambda entry: entry[0]):
        digest.update(name.encode())
        digest.update(_raw_bytes(as_one_number(current_name(name), weight, modalities)))
    if encoder is not None:
        digest.update(encoder.encode())
    return digest.hexdigest()[:32]


def _raw_bytes(weight: Any) -> bytes:
    if isinstance(weight, np.ndarray):
        return weight.tobytes()
    tensor = weight.detach().cpu().contiguous()
    raw: bytes = tensor.view(module_of(tensor).uint8).numpy().tobytes()
    return raw


# -- reading ---------------------------------------------------------------------------------------------------------


def _current_fields(body: Any, path: Path) -> Any:
    """A config of any version with the fields of this one."""
    if not isinstance(body, dict):
        return body
    for part, values in _RETIRED.items():
        table = body.get(part)
        if not isinstance(table, dict):
            continue
        for name, value in values.items():
            if table.pop(name, value) != value:
                raise GeniusError(f"{path}: {part}.{name} is no longer supported: this model needs version 0.1")
    for part, names in _RENAMED.items():
        table = body.get(part)
        if not isinstance(table, dict):
            continue
        for first, today in names.items():
            if first in table:
                table.setdefault(today, table.pop(first))
    return body


def read_model_config(directory: Path) -> GeniusConfig:
    path = directory / CONFIG
    try:
        body = read_json(path, MAX_CONFIG)
    except FileNotFoundError:
        raise GeniusError(f"no GENIUS model at {directory}: {CONFIG} is missing") from None
    if not isinstance(body, dict) or "model" not in body:
        hint = ""
        if isinstance(body, dict) and "model_type" in body:
            hint = f"; if it is an encoder such as a CLIP: genius index FILES --encoder {directory}"
        raise GeniusError(f"{path} is not a GENIUS model's config{hint}")
    if body.get("format") != FORMAT:
        raise GeniusError(f"{path} has format {body.get('format')!r}; this version reads {FORMAT}")
    config = from_dict(GeniusConfig, _current_fields(body["model"], path), where=str(path))
    sweeps = config.quantizer.encode_sweeps  # work, which no weight's shape bounds
    if not 0 <= sweeps <= MAX_WORK:
        raise GeniusError(f"{path}: encode_sweeps is {sweeps}; from 0 to {MAX_WORK} makes sense")
    return config


def encoder_uri(directory: Path, uri: str) -> str:
    """The encoder that a model's config names. A pickle must lie in the model's own folder: configs are untrusted."""
    scheme, _, location = uri.partition(":")
    if scheme in ("bundled", "hf-hub") and location:
        return uri
    named = Path(uri)
    if scheme in ("local-dir", "uniir") and location:
        named = Path(location)
    if scheme != "uniir" and named.suffix not in (".pth", ".pt", ".bin"):
        return uri
    inside = (directory / named).resolve()
    if not inside.is_relative_to(directory.resolve()):
        raise GeniusError(
            f"{directory / CONFIG} names the checkpoint {uri!r} outside of its folder, which is refused: put the file into the "
            f"model's folder (uniir:NAME.pth), or save the encoder as a folder of safetensors (local-dir:PATH)"
        )
    return f"uniir:{inside}"
