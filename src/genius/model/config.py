"""Everything about a model but its weights: `GeniusConfig`, how it is read from a folder and what of it is the model's identity;
and what a model may be trusted with: does this hit answer the question, is there an answer in the collection at all, and do items
look like what the model knows?

The folder may be a stranger's: sizes are bounded, and its config can name no checkpoint outside of it.

Trust is two logistic models over what a search shows: whether the question has a picture, the kind of the hit, its score, its
place and how far it is behind the first; for the second one, how far the first is ahead of the others. They are fitted on honest
questions over the training pool (`fit`): for the second one each question is asked twice, once with its answers taken out of the
pool. Probabilities hold for collections like that one; in a much larger pool, or with questions of another sort, they are a
guide.

`Knows` is stored beside a model as `knows.json`. Codes describe what is like their own items closely, and anything else less so:
the distance of z to what its codes stand for says whether pictures look unlike what a model knows, and whether a collection has
outgrown its codes.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.config import changed, from_dict, merge
from genius.errors import GeniusError
from genius.files import read_json, write_whole
from genius.model.codebooks import QuantizerConfig
from genius.model.generator import GeneratorConfig
from genius.model.quantizer import FusionConfig
from genius.types import Modality

if TYPE_CHECKING:
    from genius.model.quantizer import ResidualQuantizer

KINDS = 3
GROUPS = 2 * KINDS  # (question with a picture or not) x (kind of the hit)
OF_HIT, OF_ANSWER = 2 * GROUPS + 2, 2 * GROUPS + 2  # weights
DEPTH = 10  # hits that the second one looks at
RIDGE = 1e-3
Floats = npt.NDArray[np.float64]
KNOWS = "knows.json"
MAX_KNOWS = 1 << 16  # bytes of it
USUAL = 0.75  # share of a model's own items that lie within the distance that is stored
STRANGE = 0.7  # share of other items beyond it from which they look unlike what the model knows
MARGIN = 0.02  # codes of a small collection describe it nearly without error: rounding must not count
FEW = 20  # items that say nothing yet


@dataclass(frozen=True, slots=True)
class Confidence:
    """The weights of both models, for one way of scoring."""

    hit: tuple[float, ...]
    answer: tuple[float, ...]

    @classmethod
    def read(cls, body: Any) -> Confidence:
        """From a model's config, which may be a stranger's."""
        try:
            hit, answer = (tuple(float(x) for x in body[name]) for name in ("hit", "answer"))
        except (TypeError, KeyError, ValueError):
            raise GeniusError("the model's `confidence` is no pair of weights") from None
        if (len(hit), len(answer)) != (OF_HIT, OF_ANSWER) or not all(map(math.isfinite, hit + answer)):
            raise GeniusError("the model's `confidence` has weights that do not fit")
        return cls(hit, answer)

    def to_dict(self) -> dict[str, list[float]]:
        return {"hit": [round(x, 6) for x in self.hit], "answer": [round(x, 6) for x in self.answer]}

    def of_hits(self, pictured: bool, scores: npt.ArrayLike, kinds: npt.ArrayLike) -> Floats:
        """(k,) probability of each hit of one question, best first, that it is an answer."""
        score, kind = np.asarray(scores, np.float64), np.asarray(kinds, np.int64)
        if not len(score):
            return np.zeros(0)
        features = _hit_features(np.full(len(score), pictured), score, kind, np.arange(len(score)), score[0])
        return _sigmoid(features @ np.array(self.hit))

    def of_answer(self, pictured: bool, scores: npt.ArrayLike, kinds: npt.ArrayLike) -> float:
        """Probability that the collection holds an answer to a question with these hits; 0 where nothing was found."""
        score, kind = np.asarray(scores, np.float64), np.asarray(kinds, np.int64)
        if not len(score):
            return 0.0
        return float(
            _sigmoid(_list_features(np.array([pictured]), score[None, :DEPTH], kind[None, :1]) @ np.array(self.answer))[0]
        )


def fit(pictured: Tensor, scores: Tensor, kinds: Tensor, right: Tensor, bare: Tensor, bare_kinds: Tensor) -> Confidence:
    """Of Q questions: their hits' scores, kinds and correctness (Q, k); scores and kinds (Q, k) without the answers."""
    asked = pictured.bool().cpu().numpy()
    score, kind, good = (t.double().cpu().numpy() for t in (scores, kinds, right))
    place = np.arange(score.shape[1])
    each = zip(asked, score, kind.astype(np.int64), strict=True)
    rows = [_hit_features(np.full(len(place), a), s, k, place, s[0]) for a, s, k in each]
    hit = _logistic(np.concatenate(rows), good.flatten())
    both = np.concatenate([score, bare.double().cpu().numpy()])[:, :DEPTH]
    both_kinds = np.concatenate([kind, bare_kinds.double().cpu().numpy()]).astype(np.int64)
    labels = np.concatenate([np.ones(len(asked)), np.zeros(len(asked))])
    answer = _logistic(_list_features(np.concatenate([asked, asked]), both, both_kinds), labels)
    return Confidence(hit, answer)


def auroc(values: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Probability that a positive has a higher value than a negative; ties count half."""
    value, label = np.asarray(values, np.float64), np.asarray(labels, bool)
    if label.all() or not label.any():
        return float("nan")
    ordered = np.sort(value)
    low, high = np.searchsorted(ordered, value), np.searchsorted(ordered, value, side="right")
    ranks = (low + high + 1) / 2
    positives = int(label.sum())
    return float((ranks[label].sum() - positives * (positives + 1) / 2) / (positives * (len(label) - positives)))


def _grouped(pictured: npt.NDArray[np.bool_], score: Floats, kind: npt.NDArray[np.int64]) -> Floats:
    """(n, 2 * GROUPS): for each group of questions and kinds, one and the score."""
    group = pictured.astype(np.int64) * KINDS + kind
    one = np.eye(GROUPS)[group]
    return np.concatenate([one, one * score[:, None]], 1)


def _list_features(pictured: npt.NDArray[np.bool_], scores: Floats, kinds: npt.NDArray[np.int64]) -> Floats:
    """Of lists of hits (Q, k): the first one's group and score, and how far it is ahead of the second and of all others."""
    others = scores[:, 1:]
    ahead = np.zeros((len(scores), 2))
    if others.shape[1]:
        ahead = np.stack([scores[:, 0] - others[:, 0], scores[:, 0] - others.mean(1)], 1)
    return np.concatenate([_grouped(pictured, scores[:, 0], kinds[:, 0]), ahead], 1)


def _hit_features(
    pictured: npt.NDArray[np.bool_], score: Floats, kind: npt.NDArray[np.int64], place: npt.NDArray[np.int64], first: float
) -> Floats:
    behind = np.stack([score - first, 1 / (1.0 + place)], 1)
    return np.concatenate([_grouped(pictured, score, kind), behind], 1)


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))  # type: ignore[no-any-return]


def _logistic(features: Floats, labels: Floats) -> tuple[float, ...]:
    """Weights of a logistic regression with a little shrinkage, so that an empty group stays finite."""
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    weights = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.binary_cross_entropy_with_logits(x @ weights, y) + RIDGE / len(y) * weights.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return tuple(weights.tolist())


@dataclass(frozen=True, slots=True)
class Knows:
    """Figures about a model's own items."""

    items: int  # that codes were fitted to
    reach: Mapping[str, float]  # kind -> the distance of z to its codes that `USUAL` of these items keep
    about: str = ""  # what these items are, in a few words
    fit: Mapping[str, Any] = field(default_factory=dict)  # of a model fitted without pairs: how, and what it keeps

    def to_dict(self) -> dict[str, Any]:
        return {"items": self.items, "reach": dict(self.reach), "about": self.about, "fit": dict(self.fit)}

    def strange(self, distance: Tensor, modality: Tensor) -> dict[str, float]:
        """Kind -> share of these items beyond reach, for the kinds that look unlike what is known."""
        out = {}
        for kind, reach in self.reach.items():
            own = distance[modality == int(Modality.parse(kind))]
            if len(own) >= FEW and (share := (own > reach + MARGIN).float().mean().item()) >= STRANGE:
                out[kind] = share
        return out


@torch.no_grad()
def distances(quantizer: ResidualQuantizer, z: Tensor, codes: Tensor) -> Tensor:
    """(N,) how far items z (N, D) are from what their codes (N, M) stand for."""
    far: Tensor = (z - quantizer.decode(codes)).norm(dim=1)
    return far


def knows(quantizer: ResidualQuantizer, z: Tensor, modality: Tensor, codes: Tensor, about: str = "") -> Knows:
    """Of the items that a model was made from, or others like them."""
    far, reach = distances(quantizer, z, codes), {}
    for kind in Modality:
        own = far[modality == int(kind)]
        if len(own) >= FEW:
            reach[kind.label] = round(torch.quantile(own[:100_000], USUAL).item(), 4)
    return Knows(len(z), reach, about)


def save_knows(directory: Path, known: Knows) -> None:
    text = json.dumps(known.to_dict(), indent=2) + "\n"
    write_whole(directory / KNOWS, lambda path: path.write_text(text, encoding="utf-8"))


def load_knows(directory: Path) -> Knows | None:
    """None where a model brings no such file."""
    path = directory / KNOWS
    try:
        body = read_json(path, MAX_KNOWS)
    except FileNotFoundError:
        return None
    try:
        reach = {Modality.parse(str(kind)).label: float(value) for kind, value in body["reach"].items()}
        return Knows(int(body["items"]), reach, str(body.get("about", "")), dict(body.get("fit", {})))
    except (GeniusError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise GeniusError(f"{path} is not what it should be: it says how closely codes describe their items") from None


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


@dataclass(frozen=True, slots=True)
class GeniusConfig:
    """Everything about a model but its weights."""

    fusion: FusionConfig = field(default_factory=FusionConfig)
    quantizer: QuantizerConfig = field(default_factory=QuantizerConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    encoder: str | None = None  # URI of the encoder ("hf-hub:…"); None with an `encoder/` folder: that one
    rerank_embedding: Literal["fused", "score-fusion"] = "fused"  # z (the paper's 4.4), or the encoder's own (published)
    search: dict[str, Any] = field(default_factory=dict)  # defaults of this model for `genius.search.SearchParams`
    confidence: dict[str, Any] = field(default_factory=dict)  # way of re-ranking -> weights (`genius.model.config`)
    instructions: bool = True  # whether a wanted kind is also said in words; not to an encoder that never learned such words

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
    return merge(_FIRST_RELEASE, changed(dataclasses.replace(config, search={}, encoder=None, confidence={})))


def _without_retired(body: Any, path: Path) -> Any:
    for part, names in _RETIRED.items():
        table = body.get(part) if isinstance(body, dict) else None
        if not isinstance(table, dict):
            continue
        for name, value in names.items():
            if table.pop(name, value) != value:
                raise GeniusError(f"{path}: {part}.{name} is no longer supported: this model needs version 0.1")
    return body


def read_config(directory: Path) -> GeniusConfig:
    path = directory / CONFIG
    try:
        body = read_json(path, MAX_CONFIG)
    except FileNotFoundError:
        raise GeniusError(f"no GENIUS model at {directory}: {CONFIG} is missing") from None
    if not isinstance(body, dict) or "model" not in body:
        encoder = isinstance(body, dict) and "model_type" in body
        hint = f"; if it is an encoder such as a CLIP: genius index FILES --encoder {directory}" if encoder else ""
        raise GeniusError(f"{path} is not a GENIUS model's config{hint}")
    if body.get("format") != FORMAT:
        raise GeniusError(f"{path} has format {body.get('format')!r}; this version reads {FORMAT}")
    config = from_dict(GeniusConfig, _without_retired(body["model"], path), where=str(path))
    sweeps = config.quantizer.encode_sweeps  # work, which no weight's shape bounds
    if not 0 <= sweeps <= MAX_WORK:
        raise GeniusError(f"{path}: encode_sweeps is {sweeps}; from 0 to {MAX_WORK} makes sense")
    return config


def encoder_uri(directory: Path, uri: str) -> str:
    """The encoder that a model's config names. A pickle must lie in the model's own folder: the config may be a stranger's."""
    scheme, _, rest = uri.partition(":")
    if scheme in ("bundled", "hf-hub") and rest:
        return uri
    named = Path(rest if scheme in ("local-dir", "uniir") and rest else uri)
    if scheme != "uniir" and named.suffix not in (".pth", ".pt", ".bin"):
        return uri
    inside = (directory / named).resolve()
    if not inside.is_relative_to(directory.resolve()):
        raise GeniusError(
            f"{directory / CONFIG} names the checkpoint {uri!r} outside of its folder, which is refused: put the file into the "
            f"model's folder (uniir:NAME.pth), or save the encoder as a folder of safetensors (local-dir:PATH)"
        )
    return f"uniir:{inside}"
