"""`QueryBank`: a sample of the queries that a model was trained on, and what follows from their distribution.

An index that knows items alone cannot know where queries look. From a few thousand query vectors follow the metric in which
quantization error counts (`metric`), which modality a query wants (`modality_log_probs`), and which items are similar to every
query (`item_bias`). No labels but the target modality are kept, and no text or image. Knows vectors; nothing of files of an
index or searches. Arrays are numpy's; tensors are converted when a bank is made.

A model folder may hold one (`queries.safetensors`); `Genius.queries` is it, or None.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from genius.errors import GeniusError
from genius.features import as_numpy
from genius.files import write_whole
from genius.weight_arrays import opened

FILE = "queries.safetensors"
FORMAT = "genius-queries-1"
SIZE = 8192  # queries kept by default: 2 MB at width 256
SHRINKAGE = 0.1  # of the mean diagonal, added to the metric: directions in which no query looks keep some weight
FEWEST = 64  # queries of a target below which all queries serve
MODALITIES = 3
PENALTY = 1e-4  # on the squared weights of the probe
TEMPERATURE = 0.05  # t of the item bias
PSEUDO_QUERIES = 500  # a bias from n queries has the weight n / (n + this): a small bank corrects little,
UNJUDGED_WEIGHT = 0.3  # and none more than this where no positives have judged it: more lost hits among icons
JUDGED_WEIGHT = 0.65  # where they have: weights near 1 lose hits in collections that are larger than what chose them
MOST_WEIGHT = 2.0  # of a bias in a file
LEAST_TEMPERATURE = 0.005
CODE_RANGE = 127  # of vectors in 8 bits
LEAST_SCALE = 2.0**-14  # the smallest normal half
NOTHING: Mapping[str, str] = MappingProxyType({})
QUERIES_AT_ONCE = 1024  # compared with a block of items: 64 MB at 16,384 items

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class QueryBank:
    """Query vectors and what they ask for.

    Args:
        z: (n, D) fused unit vectors of queries.
        modality: (n,) int64, what each query consists of.
        target: (n,) int64, the modality that each query wants; -1 unknown.
        probe_weight: (3, D) of the linear probe for the target modality; None: the bank has too few targets to fit one.
        probe_bias: (3,) of it.
        real: Whether they come from people or a data set. Synthetic queries say nothing about hubs: they give no item bias.
        bias_weights: (3, 3) w of the item bias by query modality and target (`genius.model.bias_choice`); None: by their number.
        bias_temperatures: (3, 3) t of the item bias; None: `TEMPERATURE`.
        code_shares: (3, 3) share of the item bias that is taken off scores made of codes, 0 to 1; None: nobody judged them, and
            nothing is taken off.
    """

    z: Floats
    modality: Ints
    target: Ints
    probe_weight: Floats | None = None
    probe_bias: Floats | None = None
    real: bool = True
    bias_weights: Floats | None = None
    bias_temperatures: Floats | None = None
    code_shares: Floats | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if hasattr(value, "detach"):
                object.__setattr__(self, field.name, as_numpy(value))

    def __len__(self) -> int:
        return len(self.z)

    @property
    def width(self) -> int:
        return int(self.z.shape[1])

    def in_direction(self, query_modality: int, target: int) -> Bools:
        """(n,) which queries are of one direction."""
        same: Bools = (self.modality == query_modality) & (self.target == target)
        return same

    def directions(self) -> list[tuple[int, int]]:
        """Query modality and target of the directions that the bank knows enough real queries of."""
        pairs = [(query, target) for query in range(MODALITIES) for target in range(MODALITIES)]
        return [pair for pair in pairs if self.real and int(self.in_direction(*pair).sum()) >= FEWEST]

    def subset(self, kept: Bools) -> QueryBank:
        """Some queries, without the probe and what was chosen for the item bias."""
        return QueryBank(self.z[kept], self.modality[kept], self.target[kept], real=self.real)

    @classmethod
    def of(cls, z: Any, modality: Any, target: Any, *, size: int = SIZE, seed: int = 0, real: bool = True) -> QueryBank:
        """A random sample of queries, and the probe that is fitted to it.

        Args:
            z: (n, D) fused unit vectors of training queries, any n; an array or a tensor.
            modality: (n,) what each consists of.
            target: (n,) the modality of its positives, -1 unknown.
            size: Most queries that are kept.
            seed: Of the sample.
            real: Whether they come from people or a data set, not synthetic.

        Raises:
            GeniusError: If the shapes do not fit or a vector is not finite.
        """
        vectors = as_numpy(z).astype(np.float32)
        modality = as_numpy(modality).astype(np.int64)
        target = as_numpy(target).astype(np.int64)
        _check(vectors, modality, target, "query bank")
        order = np.sort(np.random.default_rng(seed).permutation(len(vectors))[:size])
        kept = _unpacked(*_packed(vectors[order]))  # what a loaded bank holds
        weight, bias = _fit_probe(kept, target[order])
        return cls(kept, modality[order], target[order], weight, bias, real)

    def metric(self, target: int = -1) -> Floats:
        """(D, D) float32 C = E[q q^T] of the queries that want `target`, not centred, plus `SHRINKAGE` of its mean diagonal.

        The squared error of a score q . (x - y), averaged over queries, is (x - y)^T C (x - y).

        Args:
            target: A modality; -1, or one that few queries want: all queries.
        """
        target_queries = self.z[self.target == target]
        if target < 0 or len(target_queries) < FEWEST:
            target_queries = self.z
        if not len(target_queries):  # nothing is known of queries: all directions count alike
            return np.eye(self.width, dtype=np.float32)
        second_moment = target_queries.T @ target_queries / np.float32(len(target_queries))
        mean_diagonal = second_moment.diagonal().mean()
        metric: Floats = second_moment + SHRINKAGE * mean_diagonal * np.eye(self.width, dtype=np.float32)
        return metric

    def modality_log_probs(self, z: Any) -> Floats | None:
        """(Q, 3) log p(target modality | query) by the probe for queries z (Q, D); None where there is no probe."""
        if self.probe_weight is None or self.probe_bias is None:
            return None
        logits = as_numpy(z) @ self.probe_weight.T + self.probe_bias
        log_probs: Floats = logits - _log_sum_exp(logits.T)[:, None]
        return log_probs

    def bias_weight(self, query_modality: int, target: int) -> float:
        """w of `item_bias`: 0 for a direction that the bank knows too few queries of, near 1 for one that it knows well.

        0, too, for synthetic queries.
        """
        if not self.real:
            return 0.0
        queries = int(self.in_direction(query_modality, target).sum())
        if queries < FEWEST:
            return 0.0
        if self.bias_weights is not None:
            return float(self.bias_weights[query_modality, target])
        return unjudged_weight(queries)

    def temperature(self, query_modality: int, target: int) -> float:
        """t of `item_bias`."""
        if self.bias_temperatures is None:
            return TEMPERATURE
        return float(self.bias_temperatures[query_modality, target])

    def code_share(self, query_modality: int, target: int) -> float:
        """Share of `item_bias` that is taken off scores made of codes: those of reconstructions, and log-probabilities."""
        if self.code_shares is None:
            return 0.0
        return float(self.code_shares[query_modality, target])

    def item_bias(self, vectors: Any, query_modality: int, target: int) -> Floats:
        """How similar items are to queries in general: b(x) = w t log mean over queries q of exp(q . x / t).

        An item that is similar to every query (a hub) is found too often. Ranking by q . x - b(x) corrects it (inverted softmax;
        QB-Norm, Bogolin et al., CVPR 2022).

        Args:
            vectors: (n, D) unit vectors of items.
            query_modality: What the queries consist of.
            target: The modality of the items.

        Returns:
            (n,) float32; zeros where the bank knows too few queries of this direction.
        """
        vectors = as_numpy(vectors)
        weight = self.bias_weight(query_modality, target)
        if not weight:
            return np.zeros(len(vectors), np.float32)
        direction_queries = self.z[self.in_direction(query_modality, target)]
        temperature = self.temperature(query_modality, target)
        bias: Floats = np.float32(weight) * mean_similarity(direction_queries, vectors, temperature)
        return bias

    def digest(self) -> str:
        """Hex digest of what metric and item bias are made of."""
        digest = hashlib.sha256(self.z.astype(np.float16).tobytes())
        digest.update(self.modality.tobytes())
        digest.update(self.target.tobytes())
        for numbers in (self.bias_weights, self.bias_temperatures, self.code_shares):
            if numbers is not None:
                digest.update(numbers.astype(np.float32).tobytes())
        return digest.hexdigest()[:32]

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write `queries.safetensors` into a model folder; it appears whole or not at all."""
        write_whole(folder / FILE, self.write)

    def write(self, path: Path, about: Mapping[str, str] = NOTHING) -> None:
        """Write the file itself.

        Args:
            path: The file.
            about: Further metadata of it.
        """
        arrays: dict[str, NDArray[Any]] = {
            **_stored(self.z),
            "modality": self.modality.astype(np.int8),
            "target": self.target.astype(np.int8),
            "real": np.array([self.real], np.uint8),
        }
        if self.probe_weight is not None and self.probe_bias is not None:
            arrays["probe_weight"] = np.ascontiguousarray(self.probe_weight)
            arrays["probe_bias"] = np.ascontiguousarray(self.probe_bias)
        if self.bias_weights is not None and self.bias_temperatures is not None:
            arrays["bias_weights"] = self.bias_weights.astype(np.float32)
            arrays["bias_temperatures"] = self.bias_temperatures.astype(np.float32)
            if self.code_shares is not None:
                arrays["code_shares"] = self.code_shares.astype(np.float32)
        path.write_bytes(
            save(arrays, metadata={"format": FORMAT, **about})
        )  # `save_file` would leave a file of its own when killed

    @classmethod
    def load(cls, folder: Path, width: int) -> QueryBank | None:
        """The bank of a model folder; None where it has none.

        Args:
            folder: Of the model.
            width: D of the model.

        Raises:
            GeniusError: If the file is not a bank of this width.
        """
        path = folder / FILE
        if not path.exists():
            return None
        return cls.read(path, width)

    @classmethod
    def read(cls, path: Path, width: int) -> QueryBank:
        """The bank of a file that `write` made.

        Args:
            path: The file.
            width: D of the model.

        Raises:
            GeniusError: If the file is not a bank of this width.
        """
        with opened(path) as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        try:
            z = _read_vectors(arrays, path)
            modality = arrays["modality"].astype(np.int64)
            target = arrays["target"].astype(np.int64)
        except KeyError as error:
            raise GeniusError(f"{path} lacks {error.args[0]}: it should hold a sample of queries") from None
        _check(z, modality, target, str(path))
        if z.shape[1] != width:
            raise GeniusError(f"{path} holds queries {z.shape[1]} wide, the model is {width} wide")
        weight = arrays.get("probe_weight")
        bias = arrays.get("probe_bias")
        real = bool(arrays.get("real", np.ones(1)).all())
        numbers = _bias_numbers(arrays, path)
        if weight is None or bias is None:
            return cls(z, modality, target, None, None, real, *numbers)
        if weight.shape != (MODALITIES, width) or bias.shape != (MODALITIES,):
            raise GeniusError(f"{path} holds a probe of shape {weight.shape}, expected {(MODALITIES, width)}")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise GeniusError(f"{path} holds a probe that is not finite")
        return cls(z, modality, target, weight.astype(np.float32), bias.astype(np.float32), real, *numbers)


def mean_similarity(queries: Floats, vectors: Floats, temperature: float) -> Floats:
    """(n,) t log mean over queries (Q, D) of exp(q . x / t) for vectors x (n, D): between their mean and their maximum."""
    total = np.full(len(vectors), -np.inf, np.float32)
    for first in range(0, len(queries), QUERIES_AT_ONCE):
        similarities = queries[first : first + QUERIES_AT_ONCE] @ vectors.T
        total = np.logaddexp(total, _log_sum_exp(similarities / np.float32(temperature)))
    similarity: Floats = np.float32(temperature) * (total - np.float32(np.log(len(queries))))
    return similarity


def unjudged_weight(queries: int, agreement: float = 1.0, most: float = UNJUDGED_WEIGHT) -> float:
    """w of an item bias from so many queries, where no positives of this collection are known that could choose it.

    Args:
        queries: Their number.
        agreement: How far they agree on which items are similar to queries in general, 0 to 1.
        most: What is known of other queries of the direction.
    """
    return min(most, agreement * queries / (queries + PSEUDO_QUERIES))


def _packed(z: Floats) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """8-bit rows and the scale (n, 1) of each, a half: their product is exact in float32."""
    largest = np.abs(z).max(1, keepdims=True, initial=0) / CODE_RANGE
    scale = np.maximum(largest, LEAST_SCALE).astype(np.float16)
    codes = np.clip(np.round(z / scale.astype(np.float32)), -CODE_RANGE, CODE_RANGE)
    return codes.astype(np.int8), scale


def _unpacked(codes: NDArray[np.int8], scale: NDArray[np.float16]) -> Floats:
    vectors: Floats = codes.astype(np.float32) * scale.astype(np.float32)
    return vectors


def _stored(z: Floats) -> dict[str, NDArray[Any]]:
    """Vectors as a file holds them: in 8 bits where these are all that they have, else in halves."""
    codes, scale = _packed(z)
    if np.array_equal(_unpacked(codes, scale), z):
        return {"z": codes, "scale": scale}
    return {"z": z.astype(np.float16)}


def _read_vectors(arrays: Mapping[str, Any], path: Path) -> Floats:
    """Vectors of a file, in 8 bits or (as they were stored before) in halves."""
    z = np.asarray(arrays["z"])
    if z.dtype != np.int8:
        return z.astype(np.float32)
    scale = np.asarray(arrays["scale"])
    if z.ndim != 2 or scale.shape != (len(z), 1) or scale.dtype != np.float16:
        raise GeniusError(f"{path} holds queries in 8 bits without a scale for each")
    return _unpacked(z, scale)


def _bias_numbers(stored: Mapping[str, Any], path: Path) -> tuple[Floats | None, Floats | None, Floats | None]:
    """Weights and temperatures of the item bias and shares of codes, where a file has them."""
    if "bias_weights" not in stored or "bias_temperatures" not in stored:
        return None, None, None
    weights = np.asarray(stored["bias_weights"], np.float32)
    temperatures = np.asarray(stored["bias_temperatures"], np.float32)
    right = weights.shape == temperatures.shape == (MODALITIES, MODALITIES)
    right = right and bool(((weights >= 0) & (weights <= MOST_WEIGHT) & (temperatures >= LEAST_TEMPERATURE)).all())
    if not right or not np.isfinite(temperatures).all():
        raise GeniusError(f"{path} holds weights or temperatures of the item bias that are out of range")
    if "code_shares" not in stored:
        return weights, temperatures, None
    shares = np.asarray(stored["code_shares"], np.float32)
    if shares.shape != weights.shape or not bool(((shares >= 0) & (shares <= 1)).all()):
        raise GeniusError(f"{path} holds shares of the item bias for codes that are out of range")
    return weights, temperatures, shares


def _log_sum_exp(values: Floats) -> Floats:
    """(m, n) -> (n,) log of the sum of exponentials."""
    largest = values.max(0)
    total: Floats = largest + np.log(np.exp(values - largest).sum(0))
    return total


def _check(z: NDArray[Any], modality: Ints, target: Ints, where: str) -> None:
    if z.ndim != 2:
        raise GeniusError(f"{where}: query vectors must be (queries, width), got {z.shape}")
    if modality.shape != (len(z),) or target.shape != (len(z),):
        raise GeniusError(f"{where}: {len(z)} queries need one modality and one target each")
    if not np.isfinite(z).all():
        raise GeniusError(f"{where}: a query vector is not finite")
    if len(z) and (int(target.min()) < -1 or int(target.max()) >= MODALITIES):
        raise GeniusError(f"{where}: targets must be -1 (unknown) to {MODALITIES - 1}")


def _fit_probe(z: Floats, target: Ints) -> tuple[Floats | None, Floats | None]:
    """Multinomial logistic regression of the target modality on z; None without two targets of `FEWEST` queries each."""
    counts = np.bincount(target[target >= 0], minlength=MODALITIES)
    if int((counts >= FEWEST).sum()) < 2:
        return None, None
    import torch  # training needs it; reading a bank does not
    import torch.nn.functional as F

    known = target >= 0
    inputs = torch.from_numpy(z[known])
    labels = torch.from_numpy(target[known])
    weight = torch.zeros(MODALITIES, z.shape[1], requires_grad=True)
    bias = torch.zeros(MODALITIES, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(inputs, weight, bias), labels) + PENALTY * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach().numpy(), bias.detach().numpy()
