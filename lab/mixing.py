"""Does log p add anything to exhaustive dense search, when both are told the wanted kind?

A mix of the two is learned by conditional logit on held-out training questions (which of the candidates is the answer?) and
measured on test questions. Knows models and feature sets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.features import FeatureSet
from genius.model.genius import Genius
from genius.train.holdout import answer_mask

CANDIDATES = 50


def learned_mix(model: Genius, honest: FeatureSet, test: FeatureSet) -> dict[str, Any]:
    """hit@5 of dense, of log p over dense's candidates, and of the mix, of every task; the weights of the mix."""
    learn, right, _ = candidates(model, honest)
    weights = torch.zeros(2, device=learn.device, requires_grad=True)
    known = right.any(1)  # a question whose answer is not among the candidates teaches nothing
    optimizer = torch.optim.LBFGS([weights], max_iter=200)

    def loss() -> Tensor:
        optimizer.zero_grad()
        log_share = (learn[known] @ weights).log_softmax(1)
        value = -log_share.masked_fill(~right[known], -torch.inf).logsumexp(1).mean()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    scores, right, tasks = candidates(model, test)
    rules = {"dense": torch.tensor([1.0, 0.0]), "log p": torch.tensor([0.0, 1.0]), "mix": weights.detach().cpu()}
    hits = {name: _hits(scores @ rule.to(scores.device), right) for name, rule in rules.items()}
    out: dict[str, Any] = {"weights": {"dense": weights[0].item(), "log p": weights[1].item()}, "learned_on": len(learn)}
    for task in sorted(set(tasks.tolist())):
        own = (tasks == task).numpy()
        entry = {name: round(float(hit[own].mean()), 4) for name, hit in hits.items()}
        gain = hits["mix"][own] - hits["dense"][own]
        picks = np.random.default_rng(0).integers(0, len(gain), (1000, len(gain)))
        low, high = np.quantile(gain[picks].mean(1), [0.025, 0.975])
        out[test.task_name(task)] = entry | {"gain": [round(float(v), 4) for v in (gain.mean(), low, high)]}
    return out


@torch.inference_mode()
def candidates(model: Genius, data: FeatureSet, chunk: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Of the nearest items of the wanted kind: (Q, C, 2) standard dense scores and log p, (Q, C) which are right; (Q,) tasks."""
    device = model.device
    pool, ranked = (rows.to(device) for rows in model.embed(data.pool.to(device)))
    z, asked = (rows.to(device) for rows in model.embed(data.queries.to(device)))
    kinds = data.pool.modality.to(device)
    codes = model.quantizer.encode(pool, kinds)
    wanted = torch.zeros(len(z), dtype=torch.long, device=device)
    wanted[data.pairs[:, 0].to(device)] = kinds[data.pairs[:, 1].to(device)]
    dense, near = [], []
    for rows in torch.arange(len(z), device=device).split(512):
        scores = (asked[rows] @ ranked.T).masked_fill(kinds[None] != wanted[rows, None], -torch.inf)
        best = scores.topk(CANDIDATES, dim=1)
        dense.append(best.values)
        near.append(best.indices)
    found, nearness = torch.cat(near), torch.cat(dense)
    log_p = []
    for rows in torch.arange(len(z), device=device).split(chunk):
        each = z[rows].repeat_interleave(CANDIDATES, 0)
        log_p.append(model.generator(each, codes[found[rows].flatten()]).sum(1).view(-1, CANDIDATES))
    scores = torch.stack([_standard(nearness), _standard(torch.cat(log_p))], 2)
    return scores, answer_mask(found, data), data.tasks.cpu()


def _standard(scores: Tensor) -> Tensor:
    return F.layer_norm(scores.float(), scores.shape[1:])


def _hits(scores: Tensor, right: Tensor) -> np.ndarray:
    best = scores.topk(5, dim=1).indices
    return right.gather(1, best).any(1).float().cpu().numpy()  # type: ignore[no-any-return]
