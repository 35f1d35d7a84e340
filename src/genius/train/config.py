"""`TrainConfig`: one file that trains all three stages, how such files build on each other, and the recipes.

A config is TOML (or JSON) of the fields below. `base = "other.toml"` starts from another file (or `builtin:NAME`)
and overrides single fields, so that an ablation is one line. A field that another one makes meaningless (`RULES`) is
refused. `model.recipe` names one of `RECIPES`: ours, the paper's, and that of its public code. What a recipe fixes
cannot be set by itself: nobody who trains needs to decide it, and a reproduction wants all of it (`docs/recipes.md`
compares them). Values of earlier versions are still read (`current_names`). Knows nothing of training itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from genius.config import flat, from_dict, nested, read_values
from genius.errors import GeniusError
from genius.model.config import SIZES
from genius.search.params import SearchParams

RecipeName = Literal["default", "paper", "published"]
BUILTIN = "builtin:"
STAGES = ("encoder", "quantizer", "generator")
CONFIGS = Path(__file__).parent / "configs"
AnyStage = TypeVar("AnyStage", bound="StageConfig")


@dataclass(frozen=True)
class Schedule:
    """AdamW and its learning rate over a stage's steps."""

    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    warm_up: float = 0.05  # share of the steps with a linearly growing rate; then cosine. From 2: so many steps
    final_lr: float = 0.0  # the cosine ends at this share of the peak; 1: the rate stays
    clip: float = 1.0  # norm at which gradients are clipped; 0: they are not


@dataclass(frozen=True)
class Recipe:
    """What follows from the name; the defaults are ours."""

    # codebooks: logits of codes are their similarities, scaled and corrected; table: a free output row per code
    head: Literal["codebooks", "table"] = "codebooks"
    codebook_scale: float = 0.0  # table: > 0: token embeddings start at that times a random map of the codebooks
    modality_codebooks: bool = True  # each modality has codebooks of its own, if its code is given and none are shared
    gradient: Literal["straight-through", "rotation"] = "rotation"  # how L_mse passes the choice of codes
    published_revival: bool = False  # the published rule for unused codes: it redraws most of a large codebook
    rerank_embedding: Literal["fused", "score-fusion"] = "fused"  # z, or the encoder's own sum
    positives: Literal["redrawn", "fixed"] = "redrawn"  # one of a query's positives: drawn at every visit, or once
    symmetric: bool = True  # L_cl in both directions
    all_positives: bool = True  # False: labels are the diagonal, other positives count as negatives
    start_from_sum: bool = True  # the fusion starts as the encoder's own sum of both modalities; False: at random
    kmeans_from: Literal["sample", "first-batch"] = "sample"  # what the codebooks start from
    refit: bool = True  # at the end of stage 2, k-means once more, on the pool's embeddings
    quantizer: Schedule = Schedule(betas=(0.9, 0.999))
    generator: Schedule = Schedule()


RECIPES: dict[RecipeName, Recipe] = {
    "default": Recipe(),
    "paper": Recipe(
        head="table",
        modality_codebooks=False,
        gradient="straight-through",
        symmetric=False,
        all_positives=False,
        start_from_sum=False,
        kmeans_from="first-batch",
        refit=False,
        quantizer=Schedule(betas=(0.9, 0.999), warm_up=0.0, final_lr=1.0, clip=0.0),
        generator=Schedule(betas=(0.9, 0.999), warm_up=0.0, clip=0.0),
    ),
    "published": Recipe(
        head="table",
        codebook_scale=100.0,
        modality_codebooks=False,
        published_revival=True,
        rerank_embedding="score-fusion",
        positives="fixed",
        all_positives=False,
        start_from_sum=False,
        kmeans_from="first-batch",
        refit=False,
        quantizer=Schedule(betas=(0.9, 0.999), eps=1e-6, warm_up=0.0, final_lr=0.1, clip=0.0),
        generator=Schedule(eps=1e-6, warm_up=500),
    ),
}


@dataclass(frozen=True)
class RunConfig:
    """The loop of every stage (`genius.train.loop`)."""

    accumulate: int = 1  # micro-batches per optimizer step (gradients are averaged)
    precision: Literal["auto", "fp32"] = "auto"  # auto: bfloat16 autocast on a GPU, float32 elsewhere
    # validations (20 per stage) without a better value before a stage stops; the best weights are kept. 0: the last ones
    patience: int = 6
    average: float = 0.99  # decay of the running averages of the weights, which are validated and kept; 0: none
    compile: bool = False  # run the generator's steps through torch.compile (CUDA graphs on a GPU)
    log_every: int = 20  # steps between lines of metrics.jsonl
    checkpoint_steps: int = 0  # steps between checkpoints, in addition to one every 30 seconds; 0: by time only


@dataclass(frozen=True)
class StageConfig:
    """What every stage has."""

    steps: int = 1000  # optimizer steps
    epochs: float = 0.0  # > 0: passes over the training queries, in place of `steps`
    batch: int = 256  # examples per optimizer step, over all processes and accumulation steps
    lr: float = 1e-4  # peak learning rate of AdamW
    weight_decay: float = 1e-4  # on matrices only

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1 or self.lr <= 0:
            raise GeniusError(f"steps {self.steps}, batch {self.batch}, lr {self.lr}: all must be above zero")
        if self.epochs < 0:
            raise GeniusError(f"epochs {self.epochs} must not be negative")


def with_steps(config: AnyStage, visits: int) -> AnyStage:
    """The same with its epochs, if any, as steps; an epoch is `visits` examples."""
    if not config.epochs:
        return config
    return dataclasses.replace(config, steps=max(1, round(config.epochs * visits / config.batch)), epochs=0.0)


@dataclass(frozen=True)
class ModelConfig:
    """The recipe and the sizes. The paper's: width 768, projection 2560, hidden 5120, 3 + 8 x 4096, decoder small."""

    recipe: RecipeName = "default"  # ours, the paper's, or its public code's (`RECIPES` in `genius.train.config`)
    width: int = 0  # of encoder vectors and z; 0: that of the features (with heads: 256)
    projection: int = 512  # of the fusion
    hidden: int = 1024  # of the fusion
    level_sizes: tuple[int, ...] = ()  # codes per level, the modality first; empty: chosen by the size of the pool
    # given: level 0 is the modality. nearest: it is learned (the paper's K1 = 3). classifier: a label without a vector.
    # none: there is no such level, and a first size of 3 becomes that of level 1
    modality_code: Literal["given", "nearest", "classifier", "none"] = "given"
    shared: bool = False  # one codebook for all levels but the first
    quantizer: str = "residual"  # name of a registered quantizer (`genius.model.quantizer.register`)
    encode_sweeps: int = 3  # sweeps that choose later codes again, given all the others; 0: as the paper
    decoder: str = "mini"  # nano, tiny, compact, mini, small, base, large
    prefix_tokens: int = 8  # N of Eq. 9

    def __post_init__(self) -> None:
        if self.decoder not in SIZES:
            raise GeniusError(f"unknown decoder {self.decoder!r}: use {', '.join(SIZES)}")
        if self.modality_code in ("nearest", "none") and self.constants.head == "codebooks":
            raise GeniusError(
                f"modality_code = {self.modality_code!r} does not give the first code, and the decoder of recipe "
                f"{self.recipe!r} needs it: use recipe 'paper' or 'published'"
            )
        if self.modality_code == "none" and len(self.level_sizes) > 1 and self.level_sizes[0] == 3:
            object.__setattr__(self, "level_sizes", (self.level_sizes[1], *self.level_sizes[1:]))  # the ablation is one line

    @property
    def constants(self) -> Recipe:
        """What follows from the recipe's name."""
        return RECIPES[self.recipe]


@dataclass(frozen=True)
class PairConfig(StageConfig):
    """What both contrastive stages add to the paper; 0 turns each off."""

    hard_negatives: int = 8  # rounds of mining the nearest negatives, as further negatives of L_cl
    modality_weight: float = 1.0  # of the loss that makes z encode the modality it has or wants


@dataclass(frozen=True)
class EncoderStageConfig(PairConfig):
    """Stage 1 (Eq. 2 and 3): what of the encoder is trained."""

    steps: int = 1000
    batch: int = 1024
    lr: float = 1e-3
    weight_decay: float = 0.05
    # none: features are used as they are. heads: maps on frozen towers' features. towers: the whole encoder, from pairs.
    # auto: heads where image and text features differ in width or the model needs another width, else none
    train: Literal["auto", "none", "heads", "towers"] = "auto"
    hidden: int = 512  # of the heads' residual MLPs; without dropout wide ones memorise
    temperature: float = 0.04  # of the contrastive loss
    dropout: float = 0.3  # of the heads' inputs and hidden units
    # of whole towers: images or texts whose activations are in memory at once, the others' are computed again; 0: all.
    # 128 of 512: 0.8 in place of 4.9 GiB, at 2.7 times the time (lab/paper/whole_towers.json)
    chunk: int = 0
    workers: int = 0  # of whole towers: processes that decode images, two steps ahead; 0: four threads


@dataclass(frozen=True)
class QuantizerStageConfig(PairConfig):
    """Stage 2 (Eq. 7 and 8): fusion and codebooks. The weights of Eq. 8 are the paper's and fit its code's means."""

    steps: int = 800
    batch: int = 1024
    lr: float = 2e-4
    weight_decay: float = 0.05
    temperature: float = 0.05  # tau of Eq. 3 (published 0.01)
    contrastive_weight: float = 1.0  # alpha; 0: without L_cl (Table 4)
    rq_weight: float = 100.0  # beta
    mse_weight: float = 100.0  # gamma; 0: without L_mse (Table 4)
    # of L_cl and the modality loss against the targets' reconstructions, which rank when only codes are stored
    codes_weight: float = 1.0
    quantize_from: float = 0.3  # share of the steps with L_cl alone, before k-means sets the codebooks
    kmeans_iterations: int = 20  # of the k-means that sets the codebooks


@dataclass(frozen=True)
class GeneratorStageConfig(StageConfig):
    """Stage 3 (Eq. 9 to 11): the decoder, on frozen z and codes."""

    steps: int = 1500
    batch: int = 1024
    lr: float = 1e-3
    weight_decay: float = 0.05
    # what the decoder reads. items: synthetic items, moved by the offsets of held-out queries (ours). queries: training
    # queries as they are. The others mix these with their positives (4.3.2). linear: Eq. 11; sqrt-per-dimension: published
    inputs: Literal["items", "queries", "linear", "sqrt-per-dimension"] = "items"


@dataclass(frozen=True)
class TrainConfig:
    """Everything one training run needs."""

    data: str = ""  # a FeatureSet folder, a pairs file (JSONL/CSV), or "synthetic:SIZE"
    output: str = ""  # the model folder; checkpoints and metrics live in its `training/`
    seed: int = 0  # of everything random: the same seed on the same machine gives the same model
    held_out: float = 0.1  # share of the training queries that no stage trains on, by group (`genius.train.holdout`)
    held_out_data: str = ""  # a FeatureSet folder of held-out queries over the same pool, in place of such a share
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU where there is one
    # the (frozen or initial) encoder; needed to train from pairs. With features: where they came from, stored with the model
    encoder_uri: str | None = None
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    encoder: EncoderStageConfig = field(default_factory=EncoderStageConfig)
    quantizer: QuantizerStageConfig = field(default_factory=QuantizerStageConfig)
    generator: GeneratorStageConfig = field(default_factory=GeneratorStageConfig)
    # defaults of `SearchParams` stored with the model
    search: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        SearchParams.of_table(self.search)
        for name, stage in (("encoder", self.encoder), ("quantizer", self.quantizer), ("generator", self.generator)):
            if self.run.accumulate < 1 or stage.batch % self.run.accumulate:
                raise GeniusError(f"{name}.batch {stage.batch} and run.accumulate {self.run.accumulate} do not fit together")
        values = flat(dataclasses.asdict(self))
        for rule in RULES:
            switch = values.get(rule.switch)
            if not rule.off(switch):
                continue
            defaults = flat(dataclasses.asdict(TrainConfig()))  # its switches are on
            for name in rule.ignored:
                if values.get(name) != defaults.get(name):
                    raise GeniusError(f"{name} has no effect with {rule.switch} = {switch!r}: leave one of them out")


class Rule(NamedTuple):
    """Some values of one field leave others without any effect."""

    switch: str
    off: Callable[[Any], bool]
    ignored: tuple[str, ...]


RULES = (
    Rule("held_out", lambda share: share == 0, ("run.patience",)),  # nothing to validate on
    Rule("held_out_data", bool, ("held_out",)),
    *(Rule(f"{stage}.epochs", bool, (f"{stage}.steps",)) for stage in STAGES),
    Rule(
        "encoder.train",
        lambda part: part == "none",
        tuple(f"encoder.{f.name}" for f in dataclasses.fields(EncoderStageConfig) if f.name != "train"),
    ),
    Rule(
        "encoder.train",
        lambda part: part == "towers",
        ("encoder.hidden", "encoder.dropout", "encoder.hard_negatives", "encoder.modality_weight"),
    ),
    Rule("encoder.train", lambda part: part == "heads", ("encoder.chunk", "encoder.workers")),
    Rule(
        "quantizer.contrastive_weight",
        lambda weight: weight == 0,
        ("quantizer.temperature", "quantizer.hard_negatives", "quantizer.codes_weight"),
    ),
    Rule("search.reranker", lambda by: by == "none", ("search.rerank",)),  # every ID is generated to its end
)


def that_trains(config: TrainConfig, part: str) -> TrainConfig:
    """The config with what of the encoder is trained, where it left that open."""
    try:
        return dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, train=part))  # type: ignore[arg-type]
    except GeniusError as error:
        raise GeniusError(f"these features need no heads, so nothing of the encoder is trained, and {error}") from None


def builtin_names() -> list[str]:
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def builtin_about() -> dict[str, str]:
    """Each built-in config and what it is: the first line of its file."""
    out = {}
    for name in builtin_names():
        line = (CONFIGS / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0]
        out[BUILTIN + name] = line.removeprefix("# ").partition(": genius train")[0].rstrip(":")
    return out


def read_train_config(source: str, overrides: dict[str, Any] | None = None) -> TrainConfig:
    """A training config, its bases first, overrides last.

    Args:
        source: Path of a TOML or JSON file, or `builtin:NAME`.
        overrides: Dotted names and values, such as {"generator.steps": 500}.

    Raises:
        GeniusError: If a field is unknown, does not fit, or has no effect.
    """
    values = _above(_resolve(source, seen=()), flat(overrides or {}))
    return from_dict(TrainConfig, current_names(nested(values)), where=source)


def current_names(values: dict[str, Any]) -> dict[str, Any]:
    """A config's values with those of earlier versions under their present names; TensorBoard is no longer written."""
    values = {name: value for name, value in values.items() if name != "tensorboard"}
    stage = values.get("generator")
    if not isinstance(stage, dict):
        return values
    stage = {name: value for name, value in stage.items() if (name, value) != ("virtual", 1.0)}  # what all runs have now
    if stage.get("inputs") == "questions":
        stage["inputs"] = "queries"
    return {**values, "generator": stage}


def _resolve(source: str, seen: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a file over those of its bases, by dotted name."""
    path = _locate(source)
    if str(path) in seen:
        raise GeniusError(f"{source}: its base configs form a cycle")
    values = read_values(path)
    if not isinstance(values, dict):
        raise GeniusError(f"{source}: expected a table of fields")
    parent = values.pop("base", None)
    if parent is None:
        return flat(values)
    if not isinstance(parent, str):
        raise GeniusError(f"{source}: base must be a path or {BUILTIN}NAME")
    if not parent.startswith(BUILTIN):
        parent = str(path.parent / parent)
    return _above(_resolve(parent, (*seen, str(path))), flat(values))


def _above(below: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """`values` over those of a base. Fields of the base that they leave without effect are dropped: a config is refused
    only if it names both a field and what makes it meaningless."""
    dropped = {f"{stage}.epochs" for stage in STAGES if f"{stage}.steps" in values}  # of steps and epochs the last one counts
    for rule in RULES:
        if rule.switch in values and rule.off(values[rule.switch]):
            dropped.update(rule.ignored)
    return {name: value for name, value in below.items() if name not in dropped} | values


def _locate(source: str) -> Path:
    if not source.startswith(BUILTIN):
        return Path(source)
    name = source.removeprefix(BUILTIN)
    if name not in builtin_names():
        raise GeniusError(f"no built-in config {name!r}: there are {', '.join(builtin_names())}")
    return CONFIGS / f"{name}.toml"
