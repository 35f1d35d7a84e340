"""`TrainConfig`: one file that trains all three stages, and how such files build on each other.

A config is TOML (or JSON) of the fields below. `base = "other.toml"` starts from another file (or `builtin:NAME`)
and overrides single fields, so that an ablation is one line. Knows nothing of training itself.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from genius.config import from_dict, merge
from genius.errors import GeniusError
from genius.model.generator import SIZES

BUILTIN = "builtin:"
STAGES = ("encoder", "quantizer", "generator")
CONFIGS = Path(__file__).parent / "configs"


Loop = TypeVar("Loop", bound="LoopConfig")


@dataclass(frozen=True)
class LoopConfig:
    """What every stage's loop needs. The loop itself is `genius.train.loop`."""

    steps: int = 1000  # optimizer steps; 0 skips the stage's training
    epochs: float = 0.0  # > 0: in place of `steps`, as many as it takes to meet the training questions so often
    batch: int = 256  # examples per optimizer step, over all processes and accumulation steps
    accumulate: int = 1  # micro-batches per optimizer step (gradients are averaged)
    lr: float = 1e-4  # peak learning rate of AdamW
    betas: tuple[float, ...] = (0.9, 0.98)  # of AdamW
    eps: float = 1e-8  # of AdamW
    weight_decay: float = 1e-4  # on matrices only
    warm_up: float = 0.05  # share of the steps with a linearly growing rate; then cosine. From 2: so many steps
    final_lr: float = 0.0  # the cosine ends at this share of the peak; 1: the rate stays
    # of a question's answers one is drawn at every visit, or one once and for all epochs (published)
    answers: Literal["new", "kept"] = "new"
    clip: float = 1.0  # of the gradient norm; 0: none
    precision: Literal["auto", "fp32"] = "auto"  # auto: bfloat16 autocast on a GPU, float32 elsewhere
    record: bool = (
        True  # on one GPU, run steps of fixed shape as a recorded CUDA graph: small decoders train several times faster
    )
    validations: int = 20  # looks at the honest questions, evenly spread over the steps; 0: at the end only
    patience: int = 6  # looks without a better value before the stage stops; the best weights stay. 0: always the last ones
    average: float = 0.99  # decay of the running averages of the weights, which are what is looked at and kept; 0: none
    log_every: int = 20  # steps between lines of metrics.jsonl
    checkpoint_seconds: float = 30.0  # a checkpoint at least this often ...
    checkpoint_steps: int = 0  # ... and every so many steps (0: by time only)

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch < 1 or self.accumulate < 1 or self.batch % self.accumulate:
            raise GeniusError(f"steps {self.steps}, batch {self.batch}, accumulate {self.accumulate} do not fit together")
        if self.epochs < 0 or self.warm_up < 0:
            raise GeniusError(f"epochs {self.epochs} and warm_up {self.warm_up} must not be negative")
        if len(self.betas) != 2 or self.lr <= 0:
            raise GeniusError("AdamW needs a positive lr and two betas")


def with_steps(config: Loop, visits: int) -> Loop:
    """The same with its epochs, if it says any, counted in steps over `visits` examples an epoch."""
    if not config.epochs:
        return config
    return dataclasses.replace(config, steps=max(1, round(config.epochs * visits / config.batch)), epochs=0.0)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of what is trained. The paper's: width 768, projection 2560, hidden 5120, 3 + 8 x 4096, decoder small."""

    width: int = 0  # of encoder vectors and z; 0: that of the features (with heads: 256)
    projection: int = 512  # of the fusion
    hidden: int = 1024  # of the fusion
    level_sizes: tuple[int, ...] = ()  # of every level, the modality first; empty: chosen by the size of the pool
    modality_code: Literal["given", "nearest", "classifier", "none"] = "given"  # none: level 0 becomes as large as level 1
    shared: bool = False  # one codebook for all levels but the first
    gradient: Literal["straight-through", "rotation"] = "rotation"
    published_revival: bool = False
    encode_sweeps: int = 3  # how often later codes are chosen again in view of all the others; 0: as the paper
    # > 0: from this level on every modality has codebooks of its own, where its code is told; 0: one a level, as the paper
    own_books_from: int = 1
    decoder: str = "mini"  # tiny, compact, mini, small, base, large
    head: Literal["codebooks", "table"] = "codebooks"  # codes are as likely as they are near, or have a free row each (the paper)
    prefix_tokens: int = 8  # N of Eq. 9
    dropout: float = 0.1
    normalizer: Literal["vocabulary", "level"] = "level"
    rerank_embedding: Literal["fused", "score-fusion"] = "fused"

    def __post_init__(self) -> None:
        if self.decoder not in SIZES:
            raise GeniusError(f"unknown decoder {self.decoder!r}: use {', '.join(SIZES)}")
        if self.modality_code == "none" and len(self.level_sizes) > 1:  # so that the ablation is one line on any base
            object.__setattr__(self, "level_sizes", (self.level_sizes[1], *self.level_sizes[1:]))


@dataclass(frozen=True)
class PairConfig(LoopConfig):
    """What both contrastive stages know beyond the paper; 0 turns each off."""

    hard_negatives: int = 8  # how often the nearest wrong candidates are looked up, as further negatives of L_cl
    modality_weight: float = 1.0  # of the loss that makes z say which modality it is, or asks for
    modality_temperature: float = 0.1


@dataclass(frozen=True)
class EncoderStageConfig(PairConfig):
    """Stage 1 (Eq. 2 and 3): what of the encoder is trained."""

    steps: int = 1000
    batch: int = 1024
    lr: float = 1e-3
    weight_decay: float = 0.05
    # none: features are used as they are. heads: maps on frozen towers' features. towers: the whole encoder, from pairs.
    # auto: heads where pictures' and texts' features differ in width or the model asks for another one, else none
    train: Literal["auto", "none", "heads", "towers"] = "auto"
    hidden: int = 512  # of the heads' residual MLPs; without dropout wide ones memorise
    temperature: float = 0.04  # of the contrastive loss
    symmetric: bool = True  # both directions, as published
    dropout: float = 0.3  # of the heads' inputs and hidden units


@dataclass(frozen=True)
class QuantizerStageConfig(PairConfig):
    """Stage 2 (Eq. 7 and 8): fusion and codebooks."""

    steps: int = 800
    batch: int = 1024
    lr: float = 2e-4
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.05
    temperature: float = 0.05  # tau of Eq. 3 (published 0.01)
    symmetric: bool = True  # contrastive in both directions, as published
    all_positives: bool = True  # False: labels are the diagonal, other positives count as negatives, as published
    contrastive_weight: float = 1.0  # alpha; 0: without L_cl (Table 4)
    # mean: L_rq is the mean over levels and dimensions, L_mse over dimensions of unit vectors, as published; sum: the
    # paper's literal norms. The default weights are the paper's and fit "mean".
    reduction: Literal["mean", "sum"] = "mean"
    rq_weight: float = 100.0  # beta
    mse_weight: float = 100.0  # gamma; 0: without L_mse (Table 4)
    # L_cl and the modality loss once more, against the targets' reconstructions: what is ranked when only codes are stored
    codes_weight: float = 1.0
    start_from_sum: bool = True  # the fusion starts as the encoder's own sum of both modalities
    quantize_from: float = 0.3  # share of the steps with L_cl alone, before k-means sets the codebooks
    kmeans_from: Literal["sample", "first-batch"] = "sample"  # what the codebooks start from; the paper: the first batch
    kmeans_sample: int = 200_000  # vectors for k-means (the whole training set below that)
    kmeans_iterations: int = 20
    refit: bool = True  # at the end, k-means once more, on the pool's embeddings
    between: int = 8  # ... a modality with fewer items a code learns its later codes from points between them too; 0: none
    together: int = 3  # ... and so many sweeps that fit the later levels' codebooks to each other; 0: none


@dataclass(frozen=True)
class GeneratorStageConfig(LoopConfig):
    """Stage 3 (Eq. 9 to 11): the decoder, on frozen z and codes."""

    steps: int = 1500
    batch: int = 1024
    lr: float = 1e-3
    weight_decay: float = 0.05
    # what the decoder reads. items: items and invented items, moved by the offsets of honest questions (ours).
    # pairs: training questions, augmented (the paper)
    inputs: Literal["items", "pairs"] = "items"
    virtual: float = 1.0  # items: share of the inputs that start from no item but from an invented one
    aside: float = 1.0  # items: how far they are moved in any direction beside the honest offset, as a share of its length
    shortest: float = 0.8  # items: an honest offset is scaled by a random number from this ...
    longest: float = 1.4  # ... to this
    # pairs: 4.3.2. linear: Eq. 11 as printed; scalar: brought to unit length, as questions have; sqrt-per-dimension: published
    augmentation: Literal["none", "linear", "scalar", "sqrt-per-dimension"] = "scalar"
    alpha: float = 2.0  # pairs: of Beta(alpha, alpha)
    reduction: Literal["mean", "sum"] = "mean"  # of Eq. 10 over an ID's codes: mean is published, sum the formula
    codebook_scale: float = 0.0  # table: > 0: tokens start at that times a random map of the codebooks (published 100)


@dataclass(frozen=True)
class TrainConfig:
    """Everything one training run needs."""

    data: str = ""  # a FeatureSet folder, a pairs file (JSONL/CSV), or "synthetic:SIZE"
    output: str = ""  # the model folder; checkpoints and metrics live in its `training/`
    seed: int = 0
    held_out: float = 0.1  # share of the training questions that no stage trains on, by group (`genius.train.holdout`)
    held_out_data: str = ""  # a FeatureSet folder of honest questions over the same pool, in place of a share of the training's
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tensorboard: bool = False  # write TensorBoard files beside metrics.jsonl
    # the (frozen or starting) encoder; needed to train from pairs. With features: the one they came from, stored with the model
    encoder_uri: str | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    encoder: EncoderStageConfig = field(default_factory=EncoderStageConfig)
    quantizer: QuantizerStageConfig = field(default_factory=QuantizerStageConfig)
    generator: GeneratorStageConfig = field(default_factory=GeneratorStageConfig)
    # defaults of `SearchParams` stored with the model
    search: dict[str, Any] = field(default_factory=dict)


def builtin_names() -> list[str]:
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def read_train_config(source: str, overrides: dict[str, Any] | None = None, base: str | None = None) -> TrainConfig:
    """A config by path or `builtin:NAME`, its bases first, `overrides` (dotted names) last.

    `base` takes the place of the file's own, so that a built-in ablation runs on any config.
    """
    values = _resolve(source, base, seen=())
    given: dict[str, Any] = {}
    for name, value in (overrides or {}).items():
        _put(given, name.split("."), value)
    values = _above(values, given)
    return from_dict(TrainConfig, values, where=source)


def _resolve(source: str, base: str | None, seen: tuple[str, ...]) -> dict[str, Any]:
    path = _locate(source)
    if str(path) in seen:
        raise GeniusError(f"{source}: its bases go in a circle")
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise GeniusError(f"no such config: {source}") from None
    except (OSError, ValueError) as error:
        raise GeniusError(f"cannot read {source}: {error}") from None
    if not isinstance(values, dict):
        raise GeniusError(f"{source}: expected a table of fields")
    parent = base if base is not None else values.get("base")
    values.pop("base", None)
    if parent is None:
        return values
    if not isinstance(parent, str):
        raise GeniusError(f"{source}: base must be a path or {BUILTIN}NAME")
    if base is None and not parent.startswith(BUILTIN):
        parent = str(path.parent / parent)
    return _above(_resolve(parent, None, (*seen, str(path))), values)


def _above(below: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """`values` over those of a base. Who says how long a stage takes says it once: steps there take the place of epochs below."""
    for stage in STAGES:
        own, under = values.get(stage), below.get(stage)
        if isinstance(own, dict) and isinstance(under, dict):
            if {"steps", "epochs"} <= own.keys():
                raise GeniusError(f"{stage}: give steps or epochs, not both")
            for said, other in (("steps", "epochs"), ("epochs", "steps")):
                if said in own:
                    under.pop(other, None)
    return merge(below, values)


def _locate(source: str) -> Path:
    if not source.startswith(BUILTIN):
        return Path(source)
    name = source.removeprefix(BUILTIN)
    if name not in builtin_names():
        raise GeniusError(f"no built-in config {name!r}: there are {', '.join(builtin_names())}")
    return CONFIGS / f"{name}.toml"


def _put(values: dict[str, Any], names: list[str], value: Any) -> None:
    for name in names[:-1]:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise GeniusError(f"{name} is not a table")
    values[names[-1]] = value
