"""`GeniusConfig`: everything about a model but its weights; how it is read from a folder, and what identifies the model.

The folder may be untrusted: sizes are bounded, and its config cannot name a checkpoint outside of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from genius.config import changed, from_dict, merge
from genius.errors import GeniusError
from genius.files import read_json
from genius.model.codebooks import QuantizerConfig
from genius.model.confidence import Confidence
from genius.model.generator import GeneratorConfig
from genius.model.quantizer import FusionConfig

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


def read_config(directory: Path) -> GeniusConfig:
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
