"""Which queries and candidates a step sees. Shapes are the same in every step, and nothing waits for the GPU.

A step's candidates are one right answer of each query and mined negatives: candidates of every modality that the model
itself ranked high for one of the queries. Random candidates are hardly ever *about* what is asked and of the wrong kind,
so without mining a model never learns that a text about a thing is no answer to the wish for its picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genius.types import Modality
from lab.mini.data import KINDS, Bench
from lab.mini.measure import fused, pool_features, question_features
from lab.mini.student import Student

ANSWERS = 40  # a training query has at most so many
DEPTH = 24  # mined negatives are drawn from the first so many of each modality


@dataclass
class Batch:
    """One step's queries and candidates (rows of the benchmark's tables)."""

    image: Tensor  # (B,) of each query, -1 none
    text: Tensor  # (B,)
    prefix: Tensor  # (B,) instruction, -1 none
    columns: Tensor  # (B + negatives,) candidates; column i answers query i
    neutral: Tensor  # (B, B + negatives) bool: neither right nor wrong


class Draws:
    """Queries with answers and mined negatives."""

    def __init__(self, bench: Bench, shares: tuple[tuple[int, float], ...], batch: int, negatives: tuple[int, int, int]) -> None:
        self.bench, self.questions, device = bench, bench.questions["train"], bench.flat.device
        order = sorted(shares)
        self.rows = [((self.questions.task == task).nonzero()[:, 0], round(share * batch)) for task, share in order]
        tasks = torch.tensor([task for (task, _), (_, count) in zip(order, self.rows, strict=True) for _ in range(count)])
        self.size, self.negatives = len(tasks), negatives
        kinds = torch.tensor([int(KINDS[t][1]) for t in tasks.tolist()] + [m for m in range(3) for _ in range(negatives[m])])
        self.tasks, self.free = tasks.to(device), (tasks != 7).to(device)
        has = torch.tensor([KINDS[t][0] != Modality.TEXT for t in tasks.tolist()])
        self.asked = has.nonzero()[:, 0].to(device)  # queries with a picture
        self.pictured = (kinds != int(Modality.TEXT)).nonzero()[:, 0].to(device)  # columns with one
        self.written = (kinds != int(Modality.IMAGE)).nonzero()[:, 0].to(device)
        self.drawn = (kinds == int(Modality.IMAGE)).nonzero()[:, 0].to(device)  # columns that are a picture alone
        both = torch.cat([tasks, torch.full((sum(negatives),), 7)])
        # colour and direction may be what is asked for
        self.movable = torch.cat([tasks[has] != 7, (both != 7)[self.pictured.cpu()]]).to(device)
        pool_kind = torch.where(bench.pool_text < 0, 0, torch.where(bench.pool_image < 0, 1, 2))
        self.by_kind = [(bench.allowed & (pool_kind == m)).nonzero()[:, 0] for m in range(3)]
        self.mined: list[Tensor] | None = None

    def __call__(self, bare: float) -> Batch:
        bench, q, device = self.bench, self.questions, self.tasks.device
        picked = torch.cat([rows[torch.randint(len(rows), (count,), device=device)] for rows, count in self.rows])
        text, lists = q.text[picked], q.answers[picked]
        target = bench.draw_answers(lists)
        prefix = bench.by_task[self.tasks, torch.randint(8, (self.size,), device=device)]
        plain = (torch.rand(self.size, device=device) < bare) & (text >= 0) & ((self.tasks == 0) | (self.tasks == 7))
        columns = torch.cat([target, *(self._negatives(picked, m, count) for m, count in enumerate(self.negatives))])
        answers = bench.table(lists, ANSWERS).int()
        # other answers, and other drawings of the same concept beyond the list, are no negatives
        neutral = (answers[:, :, None] == columns.int()[None, None]).any(1)
        key = bench.pool_key
        neutral |= (key[columns][None] == key[target][:, None]) & (key[columns] >= 0)[None] & self.free[:, None]
        neutral[:, : self.size].fill_diagonal_(False)
        return Batch(q.image[picked], text, torch.where(plain, -1, prefix), columns, neutral)

    def _negatives(self, questions: Tensor, kind: int, count: int) -> Tensor:
        own, device = self.by_kind[kind], questions.device
        some = own[torch.randint(len(own), (count,), device=device)]
        if self.mined is None:
            return some
        lists = self.mined[kind][questions[torch.randint(len(questions), (count,), device=device)]].long()
        chance = torch.rand(lists.shape, device=device).masked_fill(lists < 0, -1.0)
        found = lists.gather(1, chance.argmax(1, keepdim=True))[:, 0]
        return torch.where(found >= 0, found, some)

    @torch.no_grad()
    def mine(self, student: Student, drawings: Tensor) -> None:
        """For every training query, the wrong candidates of each modality that `student` ranks first."""
        bench, q = self.bench, self.questions
        half = torch.bfloat16 if bench.flat.is_cuda else torch.float32
        pool = fused(student.fusion, pool_features(student, bench, drawings)).to(half)
        asked = fused(student.fusion, question_features(student, bench, q, drawings, None)).to(half)
        own_key = torch.where(q.task == 7, -2, bench.pool_key[bench.flat[bench.starts[q.answers]]])
        self.mined = []
        for rows in self.by_kind:
            vectors, depth = pool[rows].T.contiguous(), min(DEPTH, len(rows))
            parts = []
            for part in torch.arange(len(q.task), device=rows.device).split(8192):
                best = rows[(asked[part] @ vectors).topk(depth, dim=1).indices]
                answers = bench.table(q.answers[part], ANSWERS)
                right = (best[:, :, None] == answers[:, None]).any(2)
                right |= (bench.pool_key[best] == own_key[part][:, None]) & (bench.pool_key[best] >= 0)
                parts.append(torch.where(right, -1, best).int())
            self.mined.append(torch.cat(parts))
