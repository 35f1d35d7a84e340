"""`QueryBank`: a sample of the queries that a model was trained on, and what follows from their distribution.

An index that knows items alone cannot know where queries look. From a few thousand query vectors follow the metric in which
quantization error counts (`metric`), which modality a query wants (`modality_log_probs`), and which items are similar to every
query (`item_bias`). No labels but the target modality are kept, and no text or image. Knows vectors; nothing of files of an
index or searches.

A model folder may hold one (`queries.safetensors`); `Genius.queries` is it, or None.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from genius.errors import GeniusError
from genius.files import write_whole
from genius.weight_files import read_tensors

FILE = "queries.safetensors"
FORMAT = "genius-queries-1"
SIZE = 8192  # queries kept by default: 4 MB at width 256
SHRINKAGE = 0.1  # of the mean diagonal, added to the metric: directions in which no query looks keep some weight
FEWEST = 64  # queries of a target below which all queries serve
MODALITIES = 3
PENALTY = 1e-4  # on the squared weights of the probe
TEMPERATURE = 0.05  # t of the item bias
PSEUDO_QUERIES = 500  # a bias from n queries has the weight n / (n + this): a small bank corrects little
QUERIES_AT_ONCE = 1024  # compared with a block of items: 128 MB at 32,768 items


@dataclass(frozen=True, slots=True)
class QueryBank:
    """Query vectors and what they ask for.

    Args:
        z: (n, D) fused unit vectors of queries.
        modality: (n,) int64, what each query consists of.
        target: (n,) int64, the modality that each query wants; -1 unknown.
        probe_weight: (3, D) of the linear probe for the target modality; None: the bank has too few targets to fit one.
        probe_bias: (3,) of it.
        real: Whether they come from people or a data set. Invented queries say nothing about hubs: they give no item bias.
    """

    z: Tensor
    modality: Tensor
    target: Tensor
    probe_weight: Tensor | None = None
    probe_bias: Tensor | None = None
    real: bool = True

    def __len__(self) -> int:
        return len(self.z)

    @property
    def width(self) -> int:
        return int(self.z.shape[1])

    @classmethod
    def of(cls, z: Tensor, modality: Tensor, target: Tensor, *, size: int = SIZE, seed: int = 0, real: bool = True) -> QueryBank:
        """A random sample of queries, and the probe that is fitted to it.

        Args:
            z: (n, D) fused unit vectors of training queries, any n.
            modality: (n,) what each consists of.
            target: (n,) the modality of its positives, -1 unknown.
            size: Most queries that are kept.
            seed: Of the sample.
            real: Whether they come from people or a data set, not invented.

        Raises:
            GeniusError: If the shapes do not fit or a vector is not finite.
        """
        z = z.detach().float().cpu()
        modality = modality.detach().long().cpu()
        target = target.detach().long().cpu()
        _check(z, modality, target, "query bank")
        order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))[:size]
        order = order.sort().values
        kept = z[order].half().float()  # what a loaded bank holds
        weight, bias = _fit_probe(kept, target[order])
        return cls(kept, modality[order], target[order], weight, bias, real)

    def metric(self, target: int = -1) -> Tensor:
        """(D, D) float32 C = E[q q^T] of the queries that want `target`, not centred, plus `SHRINKAGE` of its mean diagonal.

        The squared error of a score q . (x - y), averaged over queries, is (x - y)^T C (x - y).

        Args:
            target: A modality; -1, or one that few queries want: all queries.
        """
        own = self.z[self.target == target]
        if target < 0 or len(own) < FEWEST:
            own = self.z
        if not len(own):  # nothing is known of queries: all directions count alike
            return torch.eye(self.width)
        second_moment = own.T @ own / max(len(own), 1)
        mean_diagonal = second_moment.diagonal().mean()
        return second_moment + SHRINKAGE * mean_diagonal * torch.eye(self.width)

    def modality_log_probs(self, z: Tensor) -> Tensor | None:
        """(Q, 3) log p(target modality | query) by the probe for queries z (Q, D); None where there is no probe."""
        if self.probe_weight is None or self.probe_bias is None:
            return None
        return F.linear(z, self.probe_weight.to(z.device), self.probe_bias.to(z.device)).log_softmax(1)

    def bias_weight(self, query_modality: int, target: int) -> float:
        """w of `item_bias`: 0 for a direction that the bank knows too few queries of, near 1 for one that it knows well.

        0, too, for queries that were invented.
        """
        if not self.real:
            return 0.0
        queries = int(((self.modality == query_modality) & (self.target == target)).sum())
        if queries < FEWEST:
            return 0.0
        return queries / (queries + PSEUDO_QUERIES)

    def item_bias(self, vectors: Tensor, query_modality: int, target: int) -> Tensor:
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
        weight = self.bias_weight(query_modality, target)
        if not weight:
            return torch.zeros(len(vectors), device=vectors.device)
        own = self.z[(self.modality == query_modality) & (self.target == target)].to(vectors.device)
        total = torch.full((len(vectors),), -torch.inf, device=vectors.device)
        for queries in own.split(QUERIES_AT_ONCE):
            part = (queries @ vectors.T / TEMPERATURE).logsumexp(0)
            total = torch.logaddexp(total, part)
        return weight * TEMPERATURE * (total - math.log(len(own)))

    def digest(self) -> str:
        """Hex digest of what the metric is made of."""
        digest = hashlib.sha256(self.z.half().contiguous().numpy().tobytes())
        digest.update(self.modality.contiguous().numpy().tobytes())
        digest.update(self.target.contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write `queries.safetensors` into a model folder; it appears whole or not at all."""
        tensors = {
            "z": self.z.half().contiguous(),
            "modality": self.modality.to(torch.int8).contiguous(),
            "target": self.target.to(torch.int8).contiguous(),
            "real": torch.tensor([self.real], dtype=torch.uint8),
        }
        if self.probe_weight is not None and self.probe_bias is not None:
            tensors["probe_weight"] = self.probe_weight.contiguous()
            tensors["probe_bias"] = self.probe_bias.contiguous()
        write_whole(folder / FILE, lambda path: save_file(tensors, path, metadata={"format": FORMAT}))

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
        tensors = read_tensors(path)
        try:
            z = tensors["z"].float()
            modality = tensors["modality"].long()
            target = tensors["target"].long()
        except KeyError as error:
            raise GeniusError(f"{path} lacks {error.args[0]}: it should hold a sample of queries") from None
        _check(z, modality, target, str(path))
        if z.shape[1] != width:
            raise GeniusError(f"{path} holds queries {z.shape[1]} wide, the model is {width} wide")
        weight = tensors.get("probe_weight")
        bias = tensors.get("probe_bias")
        real = bool(tensors.get("real", torch.ones(1)).all())
        if weight is None or bias is None:
            return cls(z, modality, target, real=real)
        if weight.shape != (MODALITIES, width) or bias.shape != (MODALITIES,):
            raise GeniusError(f"{path} holds a probe of shape {tuple(weight.shape)}, expected {(MODALITIES, width)}")
        if not bool(torch.isfinite(weight).all() and torch.isfinite(bias).all()):
            raise GeniusError(f"{path} holds a probe that is not finite")
        return cls(z, modality, target, weight.float(), bias.float(), real)


def _check(z: Tensor, modality: Tensor, target: Tensor, where: str) -> None:
    if z.ndim != 2 or not z.is_floating_point():
        raise GeniusError(f"{where}: query vectors must be (queries, width), got {tuple(z.shape)}")
    if modality.shape != (len(z),) or target.shape != (len(z),):
        raise GeniusError(f"{where}: {len(z)} queries need one modality and one target each")
    if not bool(torch.isfinite(z).all()):
        raise GeniusError(f"{where}: a query vector is not finite")
    if len(z) and (int(target.min()) < -1 or int(target.max()) >= MODALITIES):
        raise GeniusError(f"{where}: targets must be -1 (unknown) to {MODALITIES - 1}")


def _fit_probe(z: Tensor, target: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Multinomial logistic regression of the target modality on z; None without two targets of `FEWEST` queries each."""
    counts = torch.bincount(target[target >= 0], minlength=MODALITIES)
    if int((counts >= FEWEST).sum()) < 2:
        return None, None
    known = target >= 0
    inputs = z[known]
    labels = target[known]
    weight = torch.zeros(MODALITIES, z.shape[1], requires_grad=True)
    bias = torch.zeros(MODALITIES, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(inputs, weight, bias), labels) + PENALTY * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()
