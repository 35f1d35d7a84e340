"""Several processes that train as one: rows gathered with their gradients, and work that the first does for all.

k-means, mining and codes add up floating-point numbers in an order that differs from GPU to GPU, and a code chosen the other way
is another ID. Knows nothing of what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _all_gather(rows: Tensor) -> Tensor:
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


class _GatherRows(torch.autograd.Function):
    """all_gather whose backward sums what every process's loss says about the local rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.local = rows.shape[0]
        return _all_gather(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad)
        start = dist.get_rank() * ctx.local
        return grad[start : start + ctx.local]


def gather_rows(rows: Tensor) -> Tensor:
    """Rows (B, ...) of all processes in rank order: (world * B, ...), with gradients back to each."""
    if world_size() == 1:
        return rows
    if rows.dtype == torch.bool:
        return _all_gather(rows.to(torch.uint8)).bool()
    return _GatherRows.apply(rows) if rows.requires_grad else _all_gather(rows)  # type: ignore[no-untyped-call, no-any-return]


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def once(work: Callable[[], None], results: Callable[[], Iterable[Tensor]]) -> None:
    """The first process does `work`; then every one has its `results`, tensors of known shapes that are filled in place."""
    if rank() == 0:
        work()
    send(results())


def send(tensors: Iterable[Tensor]) -> None:
    """The first process's tensors to all others, in place."""
    if world_size() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)
