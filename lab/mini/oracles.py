"""Matchers that are told what every drawing shows: how far text -> image would get if drawings were recognised perfectly.

Each ranks the drawings of the pool for a question by the words of their concepts; none looks at a picture. Knows words, vectors
and qrels; nothing of files.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

KS = (1, 5, 10)
CHUNK = 100  # questions at a time: their scores of all drawings are 50 MB


def ranks(score: Callable[[slice], Tensor], owner: Tensor, right: Sequence[set[int]], deepest: int = 50) -> Tensor:
    """(Q,) place of the first right drawing, from 0; `deepest` where it is later. `score` gives (n, concepts) of a slice of
    the questions; `owner` (drawings,) names each drawing's concept; `right` holds rows of drawings. Ties fall by chance."""
    chance = 1e-5 * torch.rand(len(owner), generator=torch.Generator().manual_seed(0))
    out = []
    for start in range(0, len(right), CHUNK):
        part = slice(start, min(start + CHUNK, len(right)))
        best = (score(part)[:, owner] + chance).topk(deepest, dim=1).indices
        out += first_right(best, right[part])
    return torch.tensor(out)


def first_right(best: Tensor, right: Sequence[set[int]]) -> list[int]:
    """Place of the first right row of each ranking, or the ranking's length."""
    return [
        next((k for k, row in enumerate(rows) if row in good), len(rows)) for rows, good in zip(best.tolist(), right, strict=True)
    ]


def hit_rates(found: Tensor) -> dict[str, float]:
    """Per cent at 1, 5 and 10, and how many questions."""
    return {f"hit@{k}": round(100 * (found < k).float().mean().item(), 1) for k in KS} | {"n": len(found)}


def best_of(vectors: Tensor, owner: Tensor, concepts: int, questions: Tensor) -> Callable[[slice], Tensor]:
    """A concept scores as the best of its texts: `vectors` (texts, D), `owner` (texts,) the concept of each."""

    def score(part: slice) -> Tensor:
        scores = questions[part] @ vectors.T  # (n, texts)
        out = scores.new_full((len(scores), concepts), -1.0)
        return out.scatter_reduce(1, owner.expand(len(scores), -1), scores, "amax")

    return score


def closed_vocabulary(concepts: Tensor, seen: Tensor, questions: Tensor, nearest: int) -> Callable[[slice], Tensor]:
    """A recogniser that is never wrong but has the words of training concepts only: an unseen thing is the weighted mean of the
    `nearest` training concepts (ConSE, Norouzi et al. 2014, true similarities as weights). `concepts` (C, D), `seen` (C,)."""
    known = concepts[seen]
    like, where = (concepts @ known.T).topk(nearest, dim=1)
    told = F.normalize((known[where] * (like / 0.1).softmax(1)[..., None]).sum(1), dim=1)
    told = torch.where(seen[:, None], concepts, told)
    return lambda part: questions[part] @ told.T


def words_of(text: str) -> list[str]:
    """Lower-case words without a plural's s."""
    return [w[:-1] if len(w) > 3 and w.endswith("s") else w for w in re.findall(r"[a-z0-9]+", text.lower())]


def lexical(
    documents: Sequence[str], questions: Sequence[str], slope: float = 1.2, length: float = 0.75
) -> Callable[[slice], Tensor]:
    """BM25."""
    counts = [Counter(words_of(d)) for d in documents]
    sizes = torch.tensor([float(sum(c.values())) for c in counts])
    postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row, count in enumerate(counts):
        for word, times in count.items():
            postings[word].append((row, times))
    norm = slope * (1 - length + length * sizes / sizes.mean())

    def score(part: slice) -> Tensor:
        asked = questions[part]
        out = torch.zeros(len(asked), len(documents))
        for i, question in enumerate(asked):
            for word in set(words_of(question)) & postings.keys():
                rows = torch.tensor([r for r, _ in postings[word]])
                times = torch.tensor([float(t) for _, t in postings[word]])
                rarity = math.log(1 + (len(documents) - len(rows) + 0.5) / (len(rows) + 0.5))
                out[i, rows] += rarity * times * (slope + 1) / (times + norm[rows])
        return out

    return score
