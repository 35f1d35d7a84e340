"""The losses of the paper (Eq. 2, 3, 7, 8, 10) as functions of tensors; and what processes exchange.

Means are over this process's rows. With equal batches on every process the average over processes (what DDP takes) is
the loss of the whole batch, and `gather_rows` makes its gradients exactly those of one process with all rows.
Knows nothing of modules, stages or schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather as all_gather_with_gradients


def world_size() -> int:
    """How many processes train together."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1


def _all_gather(rows: Tensor) -> Tensor:
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


def gather_rows(rows: Tensor) -> Tensor:
    """Rows (B, ...) of all processes in rank order: (world * B, ...), with gradients back to each."""
    if world_size() == 1:
        return rows
    if rows.dtype == torch.bool:
        return _all_gather(rows.to(torch.uint8)).bool()
    if rows.requires_grad:
        return torch.cat(all_gather_with_gradients(rows.contiguous()))
    return _all_gather(rows)


def gather_halves(rows: Tensor) -> Tensor:
    """Rows (2B, ...), queries and then targets, of all processes: all queries, then all targets."""
    if world_size() == 1:
        return rows
    halves = _all_gather(rows).view(world_size(), 2, len(rows) // 2, *rows.shape[1:])
    return halves.transpose(0, 1).flatten(0, 2)


def rank() -> int:
    """The number of this process, from 0."""
    if world_size() > 1:
        return dist.get_rank()
    return 0


# What must be equal on every process is computed by the first: k-means, mining and codes sum floating-point numbers in
# an order that differs from GPU to GPU, and a code chosen differently is another ID.


def once(work: Callable[[], None], results: Callable[[], Iterable[Tensor]]) -> None:
    """The first process does `work`; then every process gets its `results`, tensors that are filled in place."""
    if rank() == 0:
        work()
    send(results())


def send(tensors: Iterable[Tensor]) -> None:
    """The first process's tensors to all others, in place."""
    if world_size() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)


def info_nce(scores: Tensor, positive: Tensor) -> Tensor:
    """Mean over rows of -log p(positive) with several positives per row.

    `scores` (B, N) are similarities over temperature, `positive` (B, N) marks the row's positives. Each positive
    competes with the row's negatives only: other positives are neither rewarded against nor pushed away.
    With one positive per row this is Eq. 3's cross-entropy.
    """
    lowest = torch.finfo(scores.dtype).min
    negatives = scores.masked_fill(positive, lowest).logsumexp(1, keepdim=True)  # (B, 1)
    losses = torch.logaddexp(scores, negatives) - scores  # (B, N): -log of e^s / (e^s + sum of negatives)
    weights = positive / positive.sum(1, keepdim=True).clamp(min=1)
    return (losses * weights).sum() / scores.shape[0]


def contrastive(
    queries: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    positive: Tensor | None = None,
    symmetric: bool = True,
    more: Tensor | None = None,
    more_positive: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Eq. 2 and 3 on unit vectors (B, D), in batch, negatives gathered over processes: loss and top-1 accuracy.

    Args:
        queries: Unit vectors (B, D) of this process.
        targets: Unit vectors (B, D) of their positives.
        temperature: tau of Eq. 3.
        positive: (B, world * B) which of the *gathered* targets are positives of each local query; None: only its own
            (published: labels = arange).
        symmetric: Average both directions (published); Eq. 3 has queries -> targets alone.
        more: (E, D) further candidates (hard negatives).
        more_positive: (B, world * E) which of those are positives after all and do not count.

    Returns:
        The loss and the top-1 accuracy.
    """
    local = queries.shape[0]
    first = rank() * local
    all_targets = gather_rows(targets)
    own_rows = torch.arange(local, device=queries.device)
    if positive is None:
        positive = torch.zeros(local, all_targets.shape[0], dtype=torch.bool, device=queries.device)
        positive[own_rows, first + own_rows] = True
    scores = queries @ all_targets.T / temperature  # (B, world * B)
    if more is None:
        loss = info_nce(scores, positive)
    else:
        assert more_positive is not None
        negatives = queries @ gather_rows(more).T / temperature
        negatives = negatives.masked_fill(more_positive, torch.finfo(scores.dtype).min)
        loss = info_nce(torch.cat([scores, negatives], 1), torch.cat([positive, torch.zeros_like(more_positive)], 1))
    if symmetric:
        all_queries = gather_rows(queries)
        back = gather_rows(positive)[:, first : first + local].T  # (B, world * B) queries of each local target
        loss = (loss + info_nce(targets @ all_queries.T / temperature, back)) / 2
    with torch.no_grad():
        accuracy = positive.gather(1, scores.argmax(1, keepdim=True)).float().mean()
    return loss, accuracy


# Means, as in the public code. As the paper prints the norms of Eq. 7 and L_mse, the weights of 100 that section 5.2 gives them
# count levels * D and D times as much, and z nearly collapses (docs/recipes.md).


def residual_loss(residuals: Sequence[Tensor], chosen: Sequence[Tensor]) -> Tensor:
    """L_rq, Eq. 7: |r_{i-1} - sg(e_i)|^2, the mean over rows, levels and dimensions."""
    return torch.stack([F.mse_loss(r, e.detach()) for r, e in zip(residuals, chosen, strict=True)]).mean()


def reconstruction_loss(query: Tensor, target: Tensor) -> Tensor:
    """L_mse of 4.2.4: the quantised query against the quantised target, unit vectors (N, D), the mean over dimensions."""
    return F.mse_loss(F.normalize(query, dim=1), F.normalize(target, dim=1))


def code_losses(log_p: Sequence[Tensor], codes: Tensor) -> Tensor:
    """Cross-entropy of Eq. 10 per level: log p (B, K_l) of each level and codes (B, M) -> (M,) nats.

    Eq. 10 is their sum; the published code takes their mean.
    """
    chosen = [level.gather(1, codes[:, i : i + 1]).mean() for i, level in enumerate(log_p)]
    return -torch.stack(chosen)
