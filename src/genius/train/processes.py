"""What one process does for all: work that must come out the same everywhere is done by the first and sent to the others.

k-means, mining and codes add up floating-point numbers in an order that differs from GPU to GPU, and a code chosen the other way
is another ID. Knows nothing of what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch.distributed as dist
from torch import Tensor

from genius.train.losses import world_size


def first_process() -> bool:
    return world_size() == 1 or dist.get_rank() == 0


def once(work: Callable[[], None], results: Callable[[], Iterable[Tensor]]) -> None:
    """The first process does `work`; then every one has its `results`, tensors of known shapes that are filled in place."""
    if first_process():
        work()
    send(results())


def send(tensors: Iterable[Tensor]) -> None:
    """The first process's tensors to all others, in place."""
    if world_size() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)
