"""Which weights a stage leaves behind: running averages, judged on honest questions, the best of them; and how they are judged.

Without questions to judge by, or where a config asks for neither (the paper), the last weights stay as they are. Knows
parameters, numbers and hit rates; nothing of losses or loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from genius.data.features import FeatureSet
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.nearest import nearest_rows

AVERAGE, BEST = "average.", "best."
AT = (1, 5, 10)  # hits that are counted


class Selection:
    """Follows the parameters of a stage."""

    def __init__(self, stage: nn.Module, decay: float, patience: int) -> None:
        """`decay` of the running averages, 0: none; `patience`: looks without a better value before the stage should stop."""
        self.stage, self.decay, self.patience = stage, decay, patience
        self.average: dict[str, Tensor] = self._copy() if decay > 0 else {}
        self.best: dict[str, Tensor] = {}
        self.value, self.waited, self.steps = float("-inf"), 0, 0

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
            pairs = [(self.average[name], p) for name, p in self._parameters()]
            torch._foreach_lerp_([mine for mine, _ in pairs], [p for _, p in pairs], 1 - decay)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, the stage has the weights that would be kept."""
        before = self._copy() if self.average else {}
        self._put(self.average)
        try:
            yield
        finally:
            self._put(before)

    def look(self, value: float) -> bool:
        """Take a judgement of the weights that `kept` shows; whether the stage should stop."""
        if value > self.value:
            self.value, self.waited = value, 0
            self.best = {name: t.clone() for name, t in (self.average or self._copy()).items()}
        else:
            self.waited += 1
        return 0 < self.patience <= self.waited

    def finish(self) -> None:
        """Put the kept weights into the stage."""
        self._put(self.best if self.patience and self.best else self.average)

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, p in self._parameters():
            if name in weights:
                p.copy_(weights[name])

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold beside the stage's own weights."""
        kept = {AVERAGE + name: tensor for name, tensor in self.average.items()}
        return kept | {BEST + name: tensor for name, tensor in self.best.items()}

    def numbers(self) -> dict[str, float]:
        shown = None if self.value == float("-inf") else self.value
        return {"value": shown, "waited": self.waited, "averaged": self.steps}  # type: ignore[dict-item]

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        device = next(self._parameters())[1].device
        for prefix, into in ((AVERAGE, self.average), (BEST, self.best)):
            for name, tensor in tensors.items():
                if name.startswith(prefix):
                    into[name.removeprefix(prefix)] = tensor.to(device)
        value = numbers.get("value")
        self.value = float("-inf") if value is None else float(value)
        self.waited, self.steps = int(numbers.get("waited", 0)), int(numbers.get("averaged", 0))


def hit_rates(rows: Tensor, data: FeatureSet, prefix: str, at: tuple[int, ...] = AT) -> dict[str, float]:
    """hit@k of result `rows` (Q, k): a query counts when any of its positives is among the first k."""
    right = answer_mask(rows, data)
    return {f"{prefix}_hit@{k}": right[:, :k].any(1).float().mean().item() for k in at}


def answer_mask(rows: Tensor, data: FeatureSet) -> Tensor:
    """(Q, k) bool: which of the found rows answer their question."""
    size = len(data.pool)
    keys = (data.pairs[:, 0] * size + data.pairs[:, 1]).to(rows.device)
    asked = torch.arange(len(rows), device=rows.device)[:, None]
    return torch.isin(asked * size + rows, keys) & (rows >= 0)


def quick_hits(queries: Tensor, pool: Tensor, data: FeatureSet) -> float:
    """Mean over tasks of hit@1, @5 and @10 of the dense vectors: smoother than any of them."""
    right = answer_mask(nearest_rows(queries, pool, max(AT)), data).cpu()
    values = torch.stack([right[:, :k].any(1).float() for k in AT]).mean(0)
    return float(torch.stack([values[data.tasks == task].mean() for task in data.tasks.unique()]).mean())


def dense_hits(queries: Tensor, pool: Tensor, data: FeatureSet, prefix: str = "dense") -> dict[str, float]:
    return hit_rates(nearest_rows(queries, pool, max(AT)), data, prefix)


def generator_hits(
    generator: Generator, quantizer: ResidualQuantizer, codes: Tensor, pool: Tensor, queries: Tensor, data: FeatureSet, beams: int
) -> dict[str, float]:
    """Plain GENIUS and GENIUS^R (the same beams, re-ranked) at full depth over the whole pool."""
    from genius.search import CodeTrie, SearchEngine, SearchParams

    device = str(codes.device)
    trie = CodeTrie.build(codes.cpu().numpy(), quantizer.config.level_sizes)
    engine = SearchEngine(generator, quantizer, trie, pool, device=device)
    out: dict[str, float] = {}
    for name in ("genius", "genius-r"):
        params = SearchParams(beams=beams).named(name)
        found = [engine.search(z, k=max(AT), params=params).rows.cpu() for z in queries.split(64)]
        out.update(hit_rates(torch.cat(found), data, name.replace("-", "_")))
    return out
