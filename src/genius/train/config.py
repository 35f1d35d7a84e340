"""`TrainConfig`: one file that trains all three stages, and how such files build on each other.

A config is TOML (or JSON) of the fields below. `base = "other.toml"` starts from another file (or `builtin:NAME`)
and overrides single fields, so that an ablation is one line. Knows nothing of training itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from genius.config import from_dict, merge, read_values
from genius.errors import GeniusError
from genius.model.generator import SIZES

BUILTIN = "builtin:"
STAGES = ("encoder", "quantizer", "generator")
CONFIGS = Path(__file__).parent / "configs"
Answers = Literal["new", "kept"]
Reduction = Literal["mean", "sum"]
AnyStage = TypeVar("AnyStage", bound="StageConfig")


@dataclass(frozen=True)
class RunConfig:
    """How the loop of every stage runs (`genius.train.loop`): the same for all of them."""

    accumulate: int = 1  # micro-batches per optimizer step (gradients are averaged)
    precision: Literal["auto", "fp32"] = "auto"  # auto: bfloat16 autocast on a GPU, float32 elsewhere
    record: bool = (
        True  # on one GPU, run steps of fixed shape as a recorded CUDA graph: small decoders train several times faster
    )
    validations: int = 20  # looks at the honest questions, evenly spread over the steps
    patience: int = 6  # looks without a better value before a stage stops; the best weights stay. 0: always the last ones
    average: float = 0.99  # decay of the running averages of the weights, which are what is looked at and kept; 0: none
    log_every: int = 20  # steps between lines of metrics.jsonl
    checkpoint_steps: int = 0  # a checkpoint every so many steps, besides those every 30 seconds; 0: by time only


@dataclass(frozen=True)
class StageConfig:
    """What every stage has to be told."""

    steps: int = 1000  # optimizer steps; 0 skips the stage's training
    epochs: float = 0.0  # > 0: in place of `steps`, as many as it takes to meet the training questions so often
    batch: int = 256  # examples per optimizer step, over all processes and accumulation steps
    lr: float = 1e-4  # peak learning rate of AdamW
    weight_decay: float = 1e-4  # on matrices only

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch < 1 or self.lr <= 0:
            raise GeniusError(f"steps {self.steps}, batch {self.batch}, lr {self.lr}: none may be negative, nor batch or lr zero")
        if self.epochs < 0 or self.warm_up < 0:
            raise GeniusError(f"epochs {self.epochs} and warm_up {self.warm_up} must not be negative")
        if len(self.betas) != 2:
            raise GeniusError("AdamW needs two betas")

    # What follows is the same for every stage; where recipes differ in it, the stage has a field of that name.

    @property
    def betas(self) -> tuple[float, ...]:
        """Of AdamW."""
        return (0.9, 0.98)

    @property
    def eps(self) -> float:
        """Of AdamW."""
        return 1e-8

    @property
    def warm_up(self) -> float:
        """Share of the steps with a linearly growing rate; then cosine. From 2: so many steps."""
        return 0.05

    @property
    def final_lr(self) -> float:
        """The cosine ends at this share of the peak; 1: the rate stays."""
        return 0.0

    @property
    def clip(self) -> float:
        """Norm at which gradients are clipped; 0: they are not."""
        return 1.0

    @property
    def answers(self) -> Answers:
        """Of a question's answers one is drawn at every visit (new), or one once and for all epochs (kept)."""
        return "new"


def with_steps(config: AnyStage, visits: int) -> AnyStage:
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
    gradient: Literal["straight-through", "rotation"] = "rotation"  # how L_mse reaches the fusion through the choice of codes
    published_revival: bool = False  # the published rule for codes that are not used: it redraws most of a large codebook
    encode_sweeps: int = 3  # how often later codes are chosen again in view of all the others; 0: as the paper
    # > 0: from this level on every modality has codebooks of its own, where its code is told; 0: one a level, as the paper
    own_books_from: int = 1
    decoder: str = "mini"  # nano, tiny, compact, mini, small, base, large
    head: Literal["codebooks", "table"] = "codebooks"  # codes are as likely as they are near, or have a free row each (the paper)
    prefix_tokens: int = 8  # N of Eq. 9
    rerank_embedding: Literal["fused", "score-fusion"] = "fused"

    def __post_init__(self) -> None:
        if self.decoder not in SIZES:
            raise GeniusError(f"unknown decoder {self.decoder!r}: use {', '.join(SIZES)}")
        if self.modality_code == "none" and len(self.level_sizes) > 1:  # so that the ablation is one line on any base
            object.__setattr__(self, "level_sizes", (self.level_sizes[1], *self.level_sizes[1:]))


@dataclass(frozen=True)
class PairConfig(StageConfig):
    """What both contrastive stages know beyond the paper; 0 turns each off."""

    hard_negatives: int = 8  # how often the nearest wrong candidates are looked up, as further negatives of L_cl
    modality_weight: float = 1.0  # of the loss that makes z say which modality it is, or asks for


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
    dropout: float = 0.3  # of the heads' inputs and hidden units


@dataclass(frozen=True)
class QuantizerStageConfig(PairConfig):
    """Stage 2 (Eq. 7 and 8): fusion and codebooks."""

    steps: int = 800
    batch: int = 1024
    lr: float = 2e-4
    weight_decay: float = 0.05
    eps: float = 1e-8  # of AdamW
    warm_up: float = 0.05  # share of the steps with a linearly growing rate; then cosine. From 2: so many steps
    final_lr: float = 0.0  # the cosine ends at this share of the peak; 1: the rate stays
    clip: float = 1.0  # of the gradient norm; 0: none
    answers: Answers = "new"  # of a question's answers one is drawn at every visit, or one once and for all epochs (published)
    temperature: float = 0.05  # tau of Eq. 3 (published 0.01)
    contrastive_weight: float = 1.0  # alpha; 0: without L_cl (Table 4)
    symmetric: bool = True  # L_cl in both directions, as published
    all_positives: bool = True  # False: labels are the diagonal, other positives count as negatives, as published
    # mean: L_rq is the mean over levels and dimensions, L_mse over dimensions of unit vectors, as published; sum: the
    # paper's literal norms. The default weights are the paper's and fit "mean".
    reduction: Reduction = "mean"
    rq_weight: float = 100.0  # beta
    mse_weight: float = 100.0  # gamma; 0: without L_mse (Table 4)
    # L_cl and the modality loss once more, against the targets' reconstructions: what is ranked when only codes are stored
    codes_weight: float = 1.0
    start_from_sum: bool = True  # the fusion starts as the encoder's own sum of both modalities; False: at random
    quantize_from: float = 0.3  # share of the steps with L_cl alone, before k-means sets the codebooks
    kmeans_from: Literal["sample", "first-batch"] = "sample"  # what the codebooks start from; the paper: the first batch
    kmeans_iterations: int = 20
    refit: bool = True  # at the end, k-means once more, on the pool's embeddings

    @property
    def betas(self) -> tuple[float, ...]:
        return (0.9, 0.999)


@dataclass(frozen=True)
class GeneratorStageConfig(StageConfig):
    """Stage 3 (Eq. 9 to 11): the decoder, on frozen z and codes."""

    steps: int = 1500
    batch: int = 1024
    lr: float = 1e-3
    weight_decay: float = 0.05
    # what the decoder reads. items: items and invented items, moved by the offsets of honest questions (ours).
    # pairs: training questions, augmented (the paper)
    inputs: Literal["items", "pairs"] = "items"
    virtual: float = 1.0  # items: share of the inputs that start from no item but from an invented one
    # pairs: 4.3.2. linear: Eq. 11 as printed; scalar: brought to unit length, as questions have; sqrt-per-dimension: published
    augmentation: Literal["none", "linear", "scalar", "sqrt-per-dimension"] = "scalar"
    reduction: Reduction = "mean"  # of Eq. 10 over an ID's codes: mean is published, sum the formula
    codebook_scale: float = 0.0  # table: > 0: tokens start at that times a random map of the codebooks (published 100)
    betas: tuple[float, ...] = (0.9, 0.98)  # of AdamW
    eps: float = 1e-8  # of AdamW
    warm_up: float = 0.05  # share of the steps with a linearly growing rate; then cosine. From 2: so many steps
    clip: float = 1.0  # of the gradient norm; 0: none
    answers: Answers = "new"  # pairs: as in the quantizer's stage


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
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    encoder: EncoderStageConfig = field(default_factory=EncoderStageConfig)
    quantizer: QuantizerStageConfig = field(default_factory=QuantizerStageConfig)
    generator: GeneratorStageConfig = field(default_factory=GeneratorStageConfig)
    # defaults of `SearchParams` stored with the model
    search: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, stage in (("encoder", self.encoder), ("quantizer", self.quantizer), ("generator", self.generator)):
            if self.run.accumulate < 1 or stage.batch % self.run.accumulate:
                raise GeniusError(f"{name}.batch {stage.batch} and run.accumulate {self.run.accumulate} do not fit together")


def builtin_names() -> list[str]:
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def read_train_config(source: str, overrides: dict[str, Any] | None = None) -> TrainConfig:
    """A config by path or `builtin:NAME`, its bases first, `overrides` (dotted names) last."""
    values = _resolve(source, seen=())
    given: dict[str, Any] = {}
    for name, value in (overrides or {}).items():
        _put(given, name.split("."), value)
    values = _above(values, given)
    return from_dict(TrainConfig, values, where=source)


def _resolve(source: str, seen: tuple[str, ...]) -> dict[str, Any]:
    path = _locate(source)
    if str(path) in seen:
        raise GeniusError(f"{source}: its bases go in a circle")
    values = read_values(path)
    if not isinstance(values, dict):
        raise GeniusError(f"{source}: expected a table of fields")
    parent = values.pop("base", None)
    if parent is None:
        return values
    if not isinstance(parent, str):
        raise GeniusError(f"{source}: base must be a path or {BUILTIN}NAME")
    if not parent.startswith(BUILTIN):
        parent = str(path.parent / parent)
    return _above(_resolve(parent, (*seen, str(path))), values)


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
