"""A stage's forward and backward as one recorded CUDA graph: small decoders are bound by launching kernels, not by running them.

For stages whose batches have the same shapes at every step. The recorded step computes what the plain one does; where
recording fails, training goes on without it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WARM_UP = 3  # plain steps before recording, as CUDA graphs ask for


class CapturedStep:
    """Call it with a batch: gradients are left in the parameters, as `loss.backward()` would leave them."""

    def __init__(self, module: nn.Module, batch: Any, half: bool) -> None:
        self.module, self.half = module, half
        self.inputs = type(batch)(*(part.clone() if isinstance(part, Tensor) else part for part in batch))
        random = torch.cuda.get_rng_state()  # recording must not change what later steps draw
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._zero()
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        self._zero()
        with torch.cuda.graph(self.graph):
            self.loss, self.values = self._run()
        self._zero()
        torch.cuda.set_rng_state(random)

    def __call__(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        for mine, given in zip(self.inputs, batch, strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(given)
            elif mine != given:
                raise ValueError("a recorded step takes batches of one shape")
        self._zero()
        self.graph.replay()
        return self.loss, self.values

    def _run(self) -> tuple[Tensor, dict[str, Tensor]]:
        # without autocast's cache: what it holds would outlive the recording
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half, cache_enabled=False):
            loss, values = self.module(self.inputs)
            loss.backward()
        return loss.detach(), {name: value.detach() for name, value in values.items()}

    def _zero(self) -> None:
        """Gradients stay where the graph adds to them."""
        grads = [p.grad for p in self.module.parameters() if p.grad is not None]
        if grads:
            torch._foreach_zero_(grads)
