"""Step 2, the encoder: both towers and the fusion, trained together in a fixed number of seconds.

First language alone (the teacher's vectors), then all eight tasks at once: contrastive on the fused vector z and on the
plain sum of both towers (Eq. 2), every answer of a question counted as one, with the language lessons going on beside it
and each drawing also pulled to what the teacher says of its concept's words. That last part is what carries to
concepts no training question mentions.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from augment import augmented, plain
from torch import Tensor, nn

from data import Bench, Questions, TextTable, compose
from genius.encoders.mini import MiniEncoder
from genius.features import Features
from genius.model.fusion import Fusion, score_fusion


@dataclass
class Plan:
    """How long and how hard."""

    language_seconds: float = 40.0  # phase 1
    seconds: float = 240.0  # phase 2
    batch: int = 2048  # questions per step
    language_batch: int = 2048  # texts per step of phase 1; half of it beside the tasks
    lr: float = 1e-3
    warm_up: int = 200  # steps, in each phase
    weight_decay: float = 0.05
    temperature: float = 0.05
    sum_weight: float = 0.5  # of the contrastive loss on the towers' sum
    language_weight: float = 1.0
    geometry_weight: float = 1.0  # of matching the teacher's similarities between texts
    concept_weight: float = 3.0  # of pulling drawings to their concept's words
    no_instruction: float = 0.08
    # how often each task is asked: text->image, text->text, text->pair, image->text, image->image, and with a question
    shares: tuple[tuple[int, float], ...] = (
        (0, 0.27),
        (1, 0.09),
        (2, 0.07),
        (3, 0.12),
        (4, 0.17),
        (6, 0.09),
        (7, 0.14),
        (8, 0.05),
    )


class Student(nn.Module):
    """What is trained: the shipped encoder and fusion, and two maps to the teacher's width that are thrown away."""

    def __init__(self, encoder: MiniEncoder, fusion: Fusion, teacher_width: int) -> None:
        super().__init__()
        self.encoder, self.fusion = encoder, fusion
        self.say_text, self.say_image = nn.Linear(encoder.width, teacher_width), nn.Linear(encoder.width, teacher_width)
        for output in (fusion.mix_output, fusion.balance_output):  # starts as the sum of both towers
            nn.init.zeros_(output.weight)
            nn.init.zeros_(output.bias)

    def texts(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(n, width). Short and long ones apart: padding costs as much as words."""
        lengths = mask.sum(1)
        out = ids.new_zeros(len(ids), self.encoder.width, dtype=torch.float32)
        for low, high in itertools.pairwise((0, 16, 28, 64)):
            rows = ((lengths > low) & (lengths <= high)).nonzero()[:, 0]
            if len(rows):
                fixed = torch.cat(
                    [rows, rows[:1].expand(-len(rows) % 256 if rows.is_cuda else 0)]
                )  # few shapes: each new one costs a GPU time
                part = self.encoder.text(
                    F.pad(ids, (0, max(0, high - ids.shape[1])))[fixed, :high],
                    F.pad(mask, (0, max(0, high - ids.shape[1])))[fixed, :high],
                )
                out = out.index_copy(0, rows, part[: len(rows)].float())
        return out

    def images(self, pixels: Tensor) -> Tensor:
        more = -len(pixels) % 512 if pixels.is_cuda else 0  # few shapes: a convolution plans anew for each
        fixed = torch.cat([pixels, pixels[torch.arange(more, device=pixels.device) % len(pixels)]])
        return self.encoder.image(fixed.contiguous(memory_format=torch.channels_last))[: len(pixels)].float()  # type: ignore[no-any-return]


@torch.no_grad()
def start_from_teacher(student: Student, words: Tensor) -> None:
    """Token vectors start as the teacher's vectors of the tokens' strings (V, teacher width), so that the text tower
    is a bag of words that means something before the first step."""
    tower, width = student.encoder.text, student.encoder.config.text_width
    words = words.float() - words.float().mean(0)
    main = torch.linalg.svd(words.T @ words).U[:, :width]  # (teacher width, width): the directions that say most
    start = words @ main
    tower.tokens.weight.copy_(start / start.std() * 0.3)
    tower.positions.mul_(0.2)
    nn.init.zeros_(tower.attend.weight)  # every token counts the same
    eye = torch.eye(width, device=words.device)
    tower.head.weight.copy_(0.5 * torch.cat([eye, eye], 1)[: student.encoder.width])
    nn.init.zeros_(tower.head.bias)
    student.say_text.weight.copy_(main[:, : student.encoder.width])
    nn.init.zeros_(student.say_text.bias)


class Lessons:
    """Texts with the teacher's vectors."""

    def __init__(self, table: TextTable, vectors: Tensor, bench: Bench) -> None:
        self.table, self.vectors, self.bench = table, vectors, bench

    def loss(self, student: Student, count: int, plan: Plan) -> Tensor:
        device = self.vectors.device
        rows = torch.randint(len(self.vectors), (count,), device=device)
        instructions = self.bench.instructions
        prefix = torch.randint(len(instructions.lengths), (count,), device=device)
        prefix = torch.where(
            torch.rand(count, device=device) < 0.3, prefix, -1
        )  # what is asked for does not change what is meant
        own = student.texts(*compose(self.table, rows, instructions, prefix, student.encoder.config.text_length))
        goal = self.vectors[rows].float()
        said = student.say_text(own)
        near = 1 - F.cosine_similarity(said, goal).mean()
        # ... and nearer to its own vector than to the others': a constant satisfies the cosine, not this
        told = F.cross_entropy(F.normalize(said, dim=1) @ F.normalize(goal, dim=1).T / 0.05, torch.arange(count, device=device))
        some = min(count, 2048)
        mine, theirs = F.normalize(own[:some], dim=1), goal[:some]
        same = torch.eye(some, dtype=torch.bool, device=device)
        wanted = (theirs @ theirs.T / 0.05).masked_fill(same, -1e4).softmax(1)
        got = (mine @ mine.T / 0.05).masked_fill(same, -1e4).log_softmax(1)
        return plan.language_weight * (2 * near + 0.5 * told) + plan.geometry_weight * 0.25 * -(wanted * got).sum(1).mean()


class Tasks:
    """Questions with answers."""

    def __init__(self, bench: Bench, concept_vectors: Tensor, plan: Plan) -> None:
        self.bench, self.concept_vectors, self.plan = bench, concept_vectors, plan
        questions = bench.questions["train"]
        self.rows = {task: (questions.task == task).nonzero()[:, 0] for task, _ in plan.shares}

    def draw(self) -> Questions:
        questions, plan, device = self.bench.questions["train"], self.plan, self.bench.flat.device
        parts = []
        for task, share in plan.shares:
            rows = self.rows[task]
            if len(rows):
                parts.append(rows[torch.randint(len(rows), (max(1, round(share * plan.batch)),), device=device)])
        picked = torch.cat(parts)
        return Questions(questions.image[picked], questions.text[picked], questions.task[picked], questions.answers[picked])

    def loss(self, student: Student) -> tuple[Tensor, dict[str, Tensor]]:
        bench, plan = self.bench, self.plan
        q = self.draw()
        target = bench.draw_answers(q.answers)
        columns, own = torch.unique(
            target, return_inverse=True
        )  # each candidate once; `own`: the column of each question's answer
        query, item, extra = self.embed(student, q, columns, own)
        positive = torch.zeros(len(target), len(bench.pool_image), dtype=torch.bool, device=target.device)
        positive[bench.members(q.answers)] = True
        key, free = bench.pool_key, q.task != 7
        losses = {}
        for name, weight, embed in (("z", 1.0, student.fusion), ("sum", plan.sum_weight, score_fusion)):
            a, b = embed(query).float(), embed(item).float()
            # other answers, and other drawings of the same concept beyond the list, are no negatives
            neutral = positive[:, columns] | (
                (key[columns][None] == key[target][:, None]) & (key[columns] >= 0)[None] & free[:, None]
            )
            neutral[torch.arange(len(own)), own] = False
            scores = a @ b.T / plan.temperature
            forth = F.cross_entropy(scores.masked_fill(neutral, -1e4), own)
            back_scores = scores.T.masked_fill(neutral.T, -1e4)  # (columns, questions)
            first = torch.full((len(columns),), len(own), device=own.device).scatter_reduce(
                0, own, torch.arange(len(own), device=own.device), "amin"
            )
            others = own[None] == torch.arange(len(columns), device=own.device)[:, None]
            others[torch.arange(len(columns)), first] = False  # a second question with the same drawn answer is no negative
            back = F.cross_entropy(back_scores.masked_fill(others, -1e4), first)
            losses[name] = weight * (0.7 * forth + 0.3 * back)
            losses[f"{name}-hit"] = (scores.masked_fill(neutral, -1e4).argmax(1) == own).float().mean()
        losses["concept"] = plan.concept_weight * extra
        return losses["z"] + losses["sum"] + losses["concept"], losses

    def concept_loss(self, student: Student, vectors: Tensor, concept: Tensor) -> Tensor:
        """Each drawing to what the teacher says of its concept's words, against the other concepts of the batch."""
        said = student.say_image(vectors).float()
        present, own = torch.unique(concept, return_inverse=True)
        goals = self.concept_vectors[present].float()
        near = 1 - F.cosine_similarity(said, goals[own]).mean()
        return 0.5 * near + 0.25 * F.cross_entropy(F.normalize(said, dim=1) @ goals.T / 0.07, own)

    def embed(self, student: Student, q: Questions, columns: Tensor, own: Tensor) -> tuple[Features, Features, Tensor]:
        """Features of questions and of the distinct candidates, all pictures in one pass; and the concept loss."""
        bench, plan, device = self.bench, self.plan, q.image.device
        asked, pictured = q.image >= 0, bench.pool_image[columns] >= 0
        rows = torch.cat([q.image[asked], bench.pool_image[columns][pictured]])
        strict = torch.zeros(len(columns), dtype=torch.bool, device=device)
        strict[own[q.task == 7]] = True  # colour and direction may be what is asked for
        free = torch.cat([(q.task != 7)[asked], ~strict[pictured]])
        vectors = student.images(augmented(bench.drawings[rows], free))
        concept = self.concept_loss(student, vectors, bench.concept[rows])
        prefix = bench.by_task[q.task, torch.randint(8, q.task.shape, device=device)]
        bare = (torch.rand(q.task.shape, device=device) < plan.no_instruction) & (q.text >= 0)
        prefix = torch.where(bare & ((q.task == 0) | (q.task == 7)), -1, prefix)
        written = bench.pool_text[columns] >= 0
        length = student.encoder.config.text_length
        ask = student.texts(*compose(bench.texts, q.text, bench.instructions, prefix, length))
        none = torch.full_like(bench.pool_text[columns][written], -1)
        told = student.texts(*compose(bench.texts, bench.pool_text[columns][written], bench.instructions, none, length))
        return (
            Features(_place(vectors[: int(asked.sum())], asked), ask, asked, torch.ones_like(asked)),
            Features(_place(vectors[int(asked.sum()) :], pictured), _place(told, written), pictured, written),
            concept,
        )


def _place(vectors: Tensor, mask: Tensor) -> Tensor:
    return vectors.new_zeros(len(mask), vectors.shape[1]).index_copy(0, mask.nonzero()[:, 0], vectors)


def rate(done: float, step: int, warm: int) -> float:
    """Share of the peak learning rate: steps count while warming up, time afterwards."""
    return min((step + 1) / warm, 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def run(student: Student, lessons: Lessons, tasks: Tasks, plan: Plan, log: Any) -> None:
    """Both phases, by the clock."""
    device = lessons.vectors.device
    decayed = [p for p in student.parameters() if p.ndim > 1]
    rest = [p for p in student.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": plan.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    for phase, seconds in (("language", plan.language_seconds), ("tasks", plan.seconds)):
        optimizer = torch.optim.AdamW(groups, lr=plan.lr, betas=(0.9, 0.98), fused=device.type == "cuda")
        started, step, spoken = time.time(), 0, 0.0
        student.train()
        while (elapsed := time.time() - started) < seconds:
            done = elapsed / seconds
            for group in optimizer.param_groups:
                group["lr"] = plan.lr * rate(done, step, plan.warm_up)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                if phase == "language":
                    loss, parts = lessons.loss(student, plan.language_batch, plan), {}
                else:
                    loss, parts = tasks.loss(student)
                    language = lessons.loss(student, plan.language_batch // 2, plan)
                    loss, parts = loss + language, {**parts, "language": language}
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            step += 1
            if time.time() - spoken > 10 or step <= 3:
                spoken = time.time()
                log(
                    f"{phase} {100 * done:3.0f} % step {step}: loss {loss.item():.3f} "
                    + " ".join(f"{n} {v.item():.3f}" for n, v in parts.items())
                )
            if phase == "tasks" and step == 1200 and parts["z-hit"].item() < 0.05:
                raise SystemExit("the tasks are not being learned: stopped, to save the machine's time")
        log(f"{phase}: {step} steps in {time.time() - started:.0f} s")
    student.eval()


# -- measuring -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def pool_features(student: Student, bench: Bench, chunk: int = 4096) -> Features:
    """Features of every candidate, as inference makes them (no augmentation). Each drawing and text once."""
    device, length = bench.flat.device, student.encoder.config.text_length
    side = student.encoder.config.image_size
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        starts = range(0, len(bench.drawings), chunk)
        images = torch.cat([student.images(plain(bench.drawings[i : i + chunk], side)) for i in starts])
        used = bench.pool_text >= 0
        rows = bench.pool_text[used]
        texts = []
        for part in rows.split(chunk):
            ids, mask = compose(bench.texts, part, bench.instructions, torch.full_like(part, -1), length)
            texts.append(student.texts(ids, mask))
    pictured = (bench.pool_image >= 0) & (bench.pool_image < len(images))
    return Features(_place(images[bench.pool_image[pictured]], pictured), _place(torch.cat(texts), used), pictured, used)


@torch.no_grad()
def question_features(student: Student, bench: Bench, q: Questions, prompt: int | None = 0, chunk: int = 4096) -> Features:
    """Features of questions; `prompt` chooses the instruction of each task, None a random one of the first four."""
    device, length = bench.flat.device, student.encoder.config.text_length
    side = student.encoder.config.image_size
    parts = []
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        for rows in torch.arange(len(q.task), device=device).split(chunk):
            asked = q.image[rows] >= 0
            images = (
                student.images(plain(bench.drawings[q.image[rows][asked]], side))
                if asked.any()
                else torch.zeros(0, student.encoder.width, device=device)
            )
            which = torch.randint(8, rows.shape, device=device) if prompt is None else torch.full_like(rows, prompt)
            ids, mask = compose(bench.texts, q.text[rows], bench.instructions, bench.by_task[q.task[rows], which], length)
            parts.append(Features(_place(images, asked), student.texts(ids, mask), asked, torch.ones_like(asked)))
    return Features.cat(parts)


@torch.no_grad()
def dense_hits(
    query: Tensor, pool: Tensor, bench: Bench, q: Questions, ks: tuple[int, ...] = (1, 5, 10)
) -> dict[int, dict[str, float]]:
    """task -> hit@k of exhaustive search over the whole pool."""
    best = torch.cat([(part @ pool.T).topk(max(ks), dim=1).indices for part in query.split(512)])
    return hits(best, bench, q, ks)


def hits(best: Tensor, bench: Bench, q: Questions, ks: tuple[int, ...] = (1, 5, 10)) -> dict[int, dict[str, float]]:
    """task -> hit@k of ranked candidates (Q, >= k)."""
    right = torch.zeros(best.shape, dtype=torch.bool, device=best.device)
    for start in range(0, len(best), 2048):
        part = slice(start, start + 2048)
        answers = torch.zeros(len(best[part]), len(bench.pool_image), dtype=torch.bool, device=best.device)
        answers[bench.members(q.answers[part])] = True
        right[part] = answers.gather(1, best[part].clamp(min=0)) & (best[part] >= 0)
    return {
        task: {f"hit@{k}": 100 * right[q.task == task][:, :k].any(1).float().mean().item() for k in ks}
        | {"n": int((q.task == task).sum())}
        for task in sorted(set(q.task.tolist()))
    }
