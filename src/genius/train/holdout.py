"""Honest questions: training questions that no stage trains on. How they are held out, and what is chosen by them: which weights
a stage leaves behind (running averages, the best of them), and, at the end, what a model's scores mean
(`genius.model.config`).

A question is honest only if its answer is new to the stages as well: while four captions of a photo are trained on, the fifth
says little about photos nobody has seen. So questions are kept out by *group*: everything linked by an answer or by the same
picture or text stays on one side. Most of what is held out gives the offsets from which the decoder learns how far real questions
stand from their answers, the rest is for validation. Without questions to judge by, or where a config asks for neither (the
paper), the last weights stay as they are. Calibration says how well it does on questions that it was not fitted on: half of them
first, then all. Knows features, pairs, parameters and hit rates; nothing of losses or loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.features import Features
from genius.model.config import DEPTH, auroc, fit
from genius.model.generator import Generator
from genius.model.genius import Genius
from genius.model.quantizer import ResidualQuantizer
from genius.ranking import hit_at, judge, nearest_rows, nearest_scored

LARGEST = 0.1  # a group with a larger share of the questions links too much to hold anything out by it
MOST = 20_000  # questions held out at most: more offsets teach nothing new
JUDGING = 0.25  # of the held-out groups are for validation


class Split(NamedTuple):
    """One training set in three parts over the same pool."""

    train: FeatureSet
    offsets: FeatureSet | None  # honest questions that show where questions stand; None: too few for that
    validation: FeatureSet | None  # honest questions to stop and to choose by
    linked_by: str  # what groups were made of, in words

    def map(self, change: Callable[[FeatureSet], FeatureSet]) -> Split:
        """The same split of changed features."""
        train, *held = (part if part is None else change(part) for part in self[:3])
        assert train is not None
        return Split(train, held[0], held[1], self.linked_by)


def split(data: FeatureSet, share: float, seed: int) -> Split:
    """Keep about `share` of the questions out, by group; which ones is a function of `seed`."""
    count = len(data.queries)
    wanted = min(int(count * share), MOST)
    if wanted < 2:
        return Split(data, None, None, "nothing is held out")
    train, offsets, judging, linked_by = _in_three(data, wanted, seed)
    if not len(train.queries):
        return Split(data, None, None, "all questions are of one group, so nothing is held out")
    return Split(train, offsets if len(offsets.queries) else None, judging if len(judging.queries) else None, linked_by)


def with_honest(train: FeatureSet, given: FeatureSet, seed: int) -> Split:
    """All of `train` to train on; of the questions `given`, which nothing has seen, most for offsets and the rest to judge by."""
    if not len(given.queries):
        raise GeniusError("the set of held-out questions is empty")
    rest, offsets, judging, linked_by = _in_three(given, min(len(given.queries), MOST), seed)
    if not len(offsets.queries):
        offsets = rest  # all of one group, or more than are needed
    return Split(train, offsets if len(offsets.queries) else None, judging if len(judging.queries) else None, linked_by)


def _in_three(data: FeatureSet, wanted: int, seed: int) -> tuple[FeatureSet, FeatureSet, FeatureSet, str]:
    """About `wanted` questions in whole groups, a part of them apart: the other ones, most of these, and that part."""
    group, linked_by = groups(data)
    order = torch.randperm(int(group.max()) + 1, generator=torch.Generator().manual_seed(seed))
    place = order.argsort()[group]  # (Q,) each question's group in random order
    size = torch.bincount(place)
    until = int((size.cumsum(0) <= wanted).sum())  # whole groups only
    until = max(until, min(2, len(size) - 1))
    judging = place < max(1, round(JUDGING * until)) if until else torch.zeros_like(place, dtype=torch.bool)
    held = place < until
    rest, offsets, judged = (data.take_queries(rows.nonzero()[:, 0]) for rows in (~held, held & ~judging, judging))
    return rest, offsets, judged, linked_by


def groups(data: FeatureSet) -> tuple[Tensor, str]:
    """(Q,) group number of each question, and what links them. Questions of different groups share no answer and no content,
    as far as that leaves groups small enough; where it does not, fewer links count and the words say which."""
    queries, nodes = len(data.queries), len(data.queries) + len(data.pool)
    answers = data.pairs + torch.tensor([0, queries])
    own_words = data.queries.text_mask & ~data.queries.image_mask  # beside a picture, a question's text is what is wanted of it
    content = _same_content(data, own_words)
    for edges, words in (
        (torch.cat([answers, content]), "answers, pictures and texts"),
        (answers, "answers"),
    ):
        label = components(int(max(nodes, int(edges.max()) + 1)) if len(edges) else nodes, edges)[:queries]
        group = torch.unique(label, return_inverse=True)[1]
        if int(torch.bincount(group).max()) <= max(LARGEST * queries, 1):
            return group, words
    return torch.arange(queries), "nothing: every question by itself, since answers link most of them"


def components(nodes: int, edges: Tensor) -> Tensor:
    """(nodes,) the smallest node number of each node's connected component; `edges` (E, 2)."""
    label = torch.arange(nodes)
    if not len(edges):
        return label
    left, right = edges[:, 0], edges[:, 1]
    while True:
        low = torch.minimum(label[left], label[right])
        new = label.scatter_reduce(0, left, low, "amin").scatter_reduce(0, right, low, "amin")
        new = new[new]  # follow pointers, so that long chains take few rounds
        if torch.equal(new, label):
            return label
        label = new


def _same_content(data: FeatureSet, own_words: Tensor) -> Tensor:
    """(E, 2) edges from questions and items to a node for each distinct picture and text they hold."""
    queries, pool = len(data.queries), len(data.pool)
    rows = (torch.arange(queries), queries + torch.arange(pool))
    start, edges = queries + pool, []
    for kind in ("image", "text"):
        keys, owners = [], []
        for features, nodes in zip((data.queries, data.pool), rows, strict=True):
            mask = features.image_mask if kind == "image" else features.text_mask
            if kind == "text" and features is data.queries:
                mask = own_words
            keys.append(digest(features, kind)[mask])
            owners.append(nodes[mask])
        unique, which = torch.unique(torch.cat(keys), return_inverse=True)
        edges.append(torch.stack([torch.cat(owners), start + which], 1))
        start += len(unique)
    return torch.cat(edges)


def digest(features: Features, kind: str, chunk: int = 8192) -> Tensor:
    """(N,) int64, equal for equal vectors: an exact sum of the vectors' bits times fixed odd numbers, modulo 2^64."""
    vectors = features.image if kind == "image" else features.text
    weight = torch.randint(2**62, (vectors.shape[1],), generator=torch.Generator().manual_seed(0)) * 2 + 1
    parts = [(part.float().contiguous().view(torch.int32).long() * weight).sum(1) for part in vectors.split(chunk)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def few_questions(data: FeatureSet, most: int) -> FeatureSet:
    """At most about `most` questions, as many of each task as there are or as fit, evenly spread."""
    tasks = [(data.tasks == task).nonzero()[:, 0] for task in data.tasks.unique()]
    each = max(most // max(len(tasks), 1), 1)
    picked = [rows[torch.linspace(0, len(rows) - 1, min(each, len(rows))).long()] for rows in tasks]
    return data.take_queries(torch.cat(picked).sort().values) if picked else data


def judged_pool(data: FeatureSet, most: int, seed: int) -> FeatureSet:
    """The same questions over at most about `most` candidates: all their answers, and others drawn at random."""
    if len(data.pool) <= most:
        return data
    keep = torch.zeros(len(data.pool), dtype=torch.bool)
    keep[torch.randperm(len(data.pool), generator=torch.Generator().manual_seed(seed))[:most]] = True
    keep[data.pairs[:, 1]] = True
    rows = keep.nonzero()[:, 0]
    place = torch.full((len(data.pool),), -1, dtype=torch.long)
    place[rows] = torch.arange(len(rows))
    pairs = torch.stack([data.pairs[:, 0], place[data.pairs[:, 1]]], 1)
    ids = [data.pool_ids[row] for row in rows.tolist()]
    return FeatureSet(data.queries, data.pool[rows], pairs, data.query_ids, ids, data.tasks, data.names)


AVERAGE, BEST = "average.", "best."
AT = (1, 5, 10)  # hits that are counted
LEAST = 40  # questions below which nothing can be calibrated


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


def answer_mask(rows: Tensor, data: FeatureSet) -> Tensor:
    """(Q, k) bool: which of the found rows answer their question."""
    return torch.from_numpy(judge(rows.cpu().numpy(), data.positives()).hits).to(rows.device)


def hit_rates(rows: Tensor, data: FeatureSet, prefix: str, at: tuple[int, ...] = AT) -> dict[str, float]:
    """hit@k of result `rows` (Q, k)."""
    judged = judge(rows.cpu().numpy(), data.positives())
    return {f"{prefix}_hit@{k}": float(hit_at(judged, k).mean()) for k in at}


def quick_hits(queries: Tensor, pool: Tensor, data: FeatureSet) -> float:
    """Mean over tasks of hit@1, @5 and @10 of the dense vectors: smoother than any of them."""
    judged = judge(nearest_rows(queries, pool, max(AT)).cpu().numpy(), data.positives())
    values, tasks = np.mean([hit_at(judged, k) for k in AT], axis=0), data.tasks.numpy()
    return float(np.mean([values[tasks == task].mean() for task in np.unique(tasks)]))


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


class Lists(NamedTuple):
    """What exhaustive search shows for each question, with its answers in the pool and without them."""

    pictured: Tensor  # (Q,)
    scores: Tensor  # (Q, k)
    kinds: Tensor  # (Q, k)
    right: Tensor  # (Q, k)
    bare: Tensor  # (Q, k) scores without the answers
    bare_kinds: Tensor  # (Q, k)

    def take(self, rows: Tensor) -> Lists:
        return Lists(*(part[rows] for part in self))


def calibrate(model: Genius, honest: FeatureSet | None) -> tuple[dict[str, Any], dict[str, float]]:
    """Weights for each way of re-ranking, as a model's config keeps them, and how well they do."""
    if honest is None or len(honest.queries) < LEAST or len(honest.pool) <= DEPTH:
        return {}, {}
    device = model.device
    z, dense = model.embed(honest.queries)
    pool, vectors = model.embed(honest.pool)
    kinds = honest.pool.modality.to(device)
    codes = model.quantizer.encode(pool, kinds)
    parts = [F.normalize(model.quantizer.decode(part), dim=1) for part in codes.split(65_536)]
    ways = {"embeddings": (dense, vectors), "codes": (z, torch.cat(parts))}
    out: dict[str, Any] = {}
    values: dict[str, float] = {}
    for name, (asked, items) in ways.items():
        shown = lists(asked, items, kinds, honest)
        out[name] = fit(*shown).to_dict()
        values |= {f"{name}_{key}": value for key, value in judged(shown).items()}
    return out, values


@torch.no_grad()
def lists(asked: Tensor, items: Tensor, kinds: Tensor, data: FeatureSet) -> Lists:
    most = int(torch.bincount(data.pairs[:, 0]).max())
    depth = min(DEPTH + most, len(items))
    score, row = nearest_scored(asked, items, depth)
    right = answer_mask(row, data).to(score.device)
    other = right.float().sort(dim=1, stable=True).indices[:, :DEPTH]  # the best hits that are no answers
    pictured = data.queries.image_mask.to(score.device)
    kind = kinds[row]
    bare, bare_kinds = score.gather(1, other), kind.gather(1, other)
    return Lists(pictured, score[:, :DEPTH], kind[:, :DEPTH], right[:, :DEPTH], bare, bare_kinds)


def judged(shown: Lists) -> dict[str, float]:
    """AUROC of answerable or not, and how far probabilities of hits are from what happens, on questions not fitted on."""
    count = len(shown.pictured)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(shown.pictured.device)
    fitted = fit(*shown.take(order[: count // 2]))
    rest = shown.take(order[count // 2 :])
    asked = rest.pictured.cpu().numpy()
    score, kind, right = (t.double().cpu().numpy() for t in (rest.scores, rest.kinds, rest.right))
    there = [fitted.of_answer(bool(a), s, k) for a, s, k in zip(asked, score, kind, strict=True)]
    gone = zip(asked, rest.bare.cpu().numpy(), rest.bare_kinds.cpu().numpy(), strict=True)
    missing = [fitted.of_answer(bool(a), s, k) for a, s, k in gone]
    sure = np.stack([fitted.of_hits(bool(a), s, k) for a, s, k in zip(asked, score, kind, strict=True)])
    return {
        "answerable_auroc": auroc(there + missing, [True] * len(there) + [False] * len(missing)),
        "hit_auroc": auroc(sure.flatten(), right.flatten()),
        "hit_calibration_error": calibration_error(sure.flatten(), right.flatten()),
    }


def calibration_error(probability: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """Mean distance between what is said and what happens, over ten groups of like probability."""
    parts = np.array_split(np.argsort(probability), bins)
    return float(np.mean([abs(probability[p].mean() - right[p].mean()) for p in parts if len(p)]))
