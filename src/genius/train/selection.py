"""Which weights a stage keeps: running averages of the parameters, and the best of them on held-out queries.

Without held-out queries, or where a config asks for neither (the paper's recipes), the last weights stay.
Knows parameters and numbers; nothing of losses or loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

AVERAGE = "average."  # prefix of the averages in a checkpoint
BEST = "best."  # prefix of the best weights in a checkpoint


class Selection:
    """Follows the parameters of a stage."""

    def __init__(self, stage: nn.Module, decay: float, patience: int) -> None:
        """Args:
        stage: The module whose trainable parameters are followed.
        decay: Of the running averages; 0: none.
        patience: Validations without a better value before the stage should stop; 0: never.
        """
        self.stage = stage
        self.decay = decay
        self.patience = patience
        self.average: dict[str, Tensor] = {}
        if decay > 0:
            self.average = self._copy()
        self.best: dict[str, Tensor] = {}
        self.value = float("-inf")  # of the best weights
        self.waited = 0  # validations since
        self.steps = 0

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self.stage.named_parameters() if p.requires_grad)

    def _copy(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """After every step."""
        self.steps += 1
        if self.average:
            decay = min(self.decay, self.steps / (self.steps + 10))  # the first steps are soon forgotten
            names = [name for name, _ in self._parameters()]
            parameters: list[Tensor] = [p for _, p in self._parameters()]
            torch._foreach_lerp_([self.average[name] for name in names], parameters, 1 - decay)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside the context, the stage has the weights that would be kept."""
        before = {}
        if self.average:
            before = self._copy()
        self._put(self.average)
        try:
            yield
        finally:
            self._put(before)

    def look(self, value: float) -> bool:
        """Take the validation of the weights that `kept` shows; whether the stage should stop."""
        if value > self.value:
            self.value = value
            self.waited = 0
            self.best = {name: t.clone() for name, t in (self.average or self._copy()).items()}
        else:
            self.waited += 1
        return 0 < self.patience <= self.waited

    def finish(self) -> None:
        """Put the kept weights into the stage."""
        if self.patience and self.best:
            self._put(self.best)
        else:
            self._put(self.average)

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, p in self._parameters():
            if name in weights:
                p.copy_(weights[name])

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds in addition to the stage's own weights."""
        kept = {AVERAGE + name: tensor for name, tensor in self.average.items()}
        return kept | {BEST + name: tensor for name, tensor in self.best.items()}

    def numbers(self) -> dict[str, float]:
        value = None if self.value == float("-inf") else self.value
        return {"value": value, "waited": self.waited, "averaged": self.steps}  # type: ignore[dict-item]

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        device = next(self._parameters())[1].device
        for prefix, into in ((AVERAGE, self.average), (BEST, self.best)):
            for name, tensor in tensors.items():
                if name.startswith(prefix):
                    into[name.removeprefix(prefix)] = tensor.to(device)
        value = numbers.get("value")
        self.value = float("-inf") if value is None else float(value)
        self.waited = int(numbers.get("waited", 0))
        self.steps = int(numbers.get("averaged", 0))
