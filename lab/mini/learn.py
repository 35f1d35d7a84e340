"""Step 2, the encoder: both towers and the fusion, trained together in a fixed number of seconds.

First language alone (the teacher's vectors), then all eight tasks at once: contrastive on the fused vector z and on the plain
sum of both towers (Eq. 2), every answer of a query counted as one, against mined negatives (`batches`). Beside it, what
carries to concepts that no training query mentions: drawings are told apart by the teacher's vectors of all concepts'
words, and by the text tower's own; any text ranks the step's drawings as the teacher ranks their words; language goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.features import Features
from genius.model.quantizer import score_fusion
from lab.mini.augment import augmented, overlay
from lab.mini.batches import Batch, Draws
from lab.mini.data import Bench, TextTable, compose
from lab.mini.measure import dense_hits, drawing_vectors, fused, line, pool_features, question_features
from lab.mini.student import Average, Student


@dataclass
class Plan:
    """How long and how hard."""

    language_seconds: float = 20.0  # phase 1
    seconds: float = 380.0  # phase 2
    batch: int = 2048  # queries per step
    negatives: tuple[int, int, int] = (512, 384, 128)  # mined ones: pictures, texts, pairs
    language_batch: int = 2048  # texts per step of phase 1; half of it beside the tasks
    words: int = 1536  # drawings per step that are told by words of their concept
    composites: int = 256  # drawings per step that are two in one
    lr: float = 1e-3
    warm_up: int = 200  # steps, in each phase
    weight_decay: float = 0.05
    temperature: float = 0.05
    sum_weight: float = 0.5  # of the contrastive loss on the towers' sum
    language_weight: float = 1.0
    geometry_weight: float = 1.0  # of matching the teacher's similarities between texts
    concept_weight: float = 3.0  # of pulling drawings to their concept's words
    words_weight: float = 0.5
    ranking_weight: float = 0.5  # of ranking drawings for any text as the teacher ranks their words
    no_instruction: float = 0.1
    average: float = 0.998
    mine_every: float = 0.15  # share of phase 2 between two minings
    # how often each task is asked: text->image, text->text, text->pair, image->text, image->image, and with a query
    shares: tuple[tuple[int, float], ...] = (
        (0, 0.33), (1, 0.07), (2, 0.06), (3, 0.11), (4, 0.19), (6, 0.08), (7, 0.12), (8, 0.04),
    )  # fmt: skip


@dataclass
class Language:
    """What the teacher said: of texts, of concepts, and the concepts' words themselves."""

    table: TextTable  # queries' and candidates' texts, then the corpus, then words of concepts
    corpus: int  # where the corpus begins in `table`
    vectors: Tensor  # (n, teacher width) of the corpus
    concepts: Tensor  # (concepts, teacher width)
    words: int  # where the words begin
    word_starts: Tensor  # (concepts + 1,) of each concept's words, names first
    names: Tensor  # (concepts,) how many of them are names

    def pick(self, concept: Tensor) -> Tensor:
        """A word of each concept: a name in six of ten cases."""
        start, names = self.word_starts[concept], self.names[concept]
        count = self.word_starts[concept + 1] - start
        size = torch.where(torch.rand(concept.shape, device=concept.device) < 0.6, names, count)
        return self.words + start + (torch.rand(concept.shape, device=concept.device) * size).long()


def unit(x: Tensor) -> Tensor:
    return F.normalize(x.float(), dim=1)


def language_loss(student: Student, own: Tensor, goal: Tensor, plan: Plan) -> Tensor:
    """`own` (n, width), what the text tower made of texts; `goal` what the teacher did."""
    count, device = len(own), own.device
    said = student.say(own)
    near = 1 - F.cosine_similarity(said, goal).mean()
    # ... and nearer to its own vector than to the others': a constant satisfies the cosine, not this
    told = F.cross_entropy(unit(said) @ unit(goal).T / 0.05, torch.arange(count, device=device))
    mine, same = unit(own), torch.eye(count, dtype=torch.bool, device=device)
    wanted = (goal @ goal.T / 0.05).masked_fill(same, -1e4).softmax(1)
    got = (mine @ mine.T / 0.05).masked_fill(same, -1e4).log_softmax(1)
    return plan.language_weight * (2 * near + 0.5 * told) + plan.geometry_weight * 0.25 * -(wanted * got).sum(1).mean()


class Teaching:
    """The losses of one step."""

    def __init__(self, student: Student, bench: Bench, language: Language, draws: Draws, plan: Plan) -> None:
        self.student, self.bench, self.language, self.draws, self.plan = student, bench, language, draws, plan
        device, length = bench.flat.device, student.encoder.config.text_length
        self.length, self.device = length, device
        known = torch.unique(bench.concept[bench.train])
        self.goals = language.concepts[known].float()  # (K, teacher width)
        self.classes = torch.full((len(language.concepts),), -1, device=device)
        self.classes[known] = torch.arange(len(known), device=device)
        self.cuts: dict[str, list[tuple[int, int]]] = {}

    # -- texts -----------------------------------------------------------------------------------------------------

    def some_texts(self, count: int) -> tuple[Tensor, Tensor]:
        """Rows of the corpus, and instructions before a third of them: what is asked for does not change what is meant."""
        rows = torch.randint(len(self.language.vectors), (count,), device=self.device)
        prefix = torch.randint(len(self.bench.instructions.lengths), (count,), device=self.device)
        return rows, torch.where(torch.rand(count, device=self.device) < 0.3, prefix, -1)

    def read(self, name: str, rows: Tensor, prefix: Tensor) -> Tensor:
        """(n, width): texts of the joint table. The first call of a kind fixes how batches of it are cut."""
        ids, mask = compose(self.language.table, rows, self.bench.instructions, prefix, self.length, fixed=True)
        if name not in self.cuts:
            lengths = mask.sum(1).sort().values.tolist()
            ends = [round(share * len(rows)) for share in (0.3, 0.5, 0.7, 0.85, 0.96)] + [len(rows)]
            wide = [min(self.length, 4 * math.ceil((lengths[end - 1] + 1) / 4)) for end in ends[:-1]] + [self.length]
            self.cuts[name] = [(e - s, w) for s, e, w in zip([0, *ends], ends, wide, strict=False)]
        return self.student.training_texts(ids, mask, self.cuts[name])

    def language_step(self) -> tuple[Tensor, dict[str, Tensor]]:
        rows, prefix = self.some_texts(self.plan.language_batch)
        own = self.read("language", self.language.corpus + rows, prefix)
        with torch.autocast(self.device.type, enabled=False):
            return language_loss(self.student, own, self.language.vectors[rows].float(), self.plan), {}

    # -- all tasks -------------------------------------------------------------------------------------------------

    def task_step(self) -> tuple[Tensor, dict[str, Tensor]]:
        bench, plan, draws, language, student = self.bench, self.plan, self.draws, self.language, self.student
        batch = draws(plan.no_instruction)
        # every picture in one pass: the queries', the candidates', and two-in-one
        rows = torch.cat([batch.image[draws.asked], bench.pool_image[batch.columns[draws.pictured]]])
        main, badge = bench.train[torch.randint(len(bench.train), (2, plan.composites), device=self.device)]
        pixels = torch.cat([bench.drawings[rows], overlay(bench.drawings[main], bench.drawings[badge])])
        movable = torch.cat([draws.movable, torch.ones_like(main, dtype=torch.bool)])
        seen = student.training_images(augmented(pixels, movable))
        # every text in one pass
        told = torch.randperm(len(rows), device=self.device)[: plan.words]  # these drawings are told by words
        words = language.pick(bench.concept[rows[told]])
        lessons, prefix = self.some_texts(plan.language_batch // 2)
        written = bench.pool_text[batch.columns[draws.written]]
        wanted = bench.by_task[0, torch.randint(8, words.shape, device=self.device)]
        wanted = torch.where(torch.rand(words.shape, device=self.device) < 0.3, wanted, -1)
        read = self.read(
            "tasks",
            torch.cat([batch.text, written, language.corpus + lessons, words]),
            torch.cat([batch.prefix, torch.full_like(written, -1), prefix, wanted]),
        )
        ask, tell, own, word = read.split([draws.size, len(written), len(lessons), len(words)])
        with torch.autocast(self.device.type, enabled=False):
            goal = language.vectors[lessons].float()
            query, item = self.features(batch, seen, ask, tell)
            losses = self.contrastive(batch, query, item, own, goal)
            losses["concept"] = plan.concept_weight * self.concept_loss(seen, rows, main, badge)
            losses["words"] = plan.words_weight * self.words_loss(seen[told], word, bench.concept[rows[told]])
            losses["language"] = language_loss(student, own, goal, plan)
            total = torch.stack([v for n, v in losses.items() if not n.endswith("hit")]).sum()
        return total, losses

    def features(self, batch: Batch, seen: Tensor, ask: Tensor, tell: Tensor) -> tuple[Features, Features]:
        draws, width = self.draws, ask.shape[1]
        n, m, asked = draws.size, len(batch.columns), len(draws.asked)

        def at(count: int, rows: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
            mask = torch.zeros(count, dtype=torch.bool, device=self.device)
            mask[rows] = True
            return vectors.new_zeros(count, width).index_copy(0, rows, vectors), mask

        q_image, q_mask = at(n, draws.asked, seen[:asked])
        c_image, c_mask = at(m, draws.pictured, seen[asked : asked + len(draws.pictured)])
        c_text, t_mask = at(m, draws.written, tell)
        return Features(q_image, ask, q_mask, torch.ones_like(q_mask)), Features(c_image, c_text, c_mask, t_mask)

    def contrastive(self, batch: Batch, query: Features, item: Features, own: Tensor, goal: Tensor) -> dict[str, Tensor]:
        """Queries against candidates, both ways; and the ranking of the drawings for the corpus' texts `own`."""
        plan, draws, bench, n = self.plan, self.draws, self.bench, self.draws.size
        right = torch.arange(n, device=self.device)
        none = torch.zeros(len(own), dtype=torch.bool, device=self.device)
        alone = Features(torch.zeros_like(own), own, none, ~none)
        about = self.language.concepts[bench.concept[bench.pool_image[batch.columns[draws.drawn]]]].float()
        teacher = (goal @ about.T / 0.05).softmax(1)  # (texts, drawings)
        losses = {}
        for name, weight, embed in (("z", 1.0, self.student.fusion), ("sum", plan.sum_weight, score_fusion)):
            a, b = embed(query).float(), embed(item).float()
            scores = (a @ b.T / plan.temperature).masked_fill(batch.neutral, -1e4)
            forth, back = F.cross_entropy(scores, right), F.cross_entropy(scores[:, :n].T, right)
            losses[name] = weight * (0.7 * forth + 0.3 * back)
            losses[f"{name}-hit"] = (scores.argmax(1) == right).float().mean()
            ranked = (embed(alone).float() @ b[draws.drawn].T / plan.temperature).log_softmax(1)
            losses[f"{name}-rank"] = weight * plan.ranking_weight * -(teacher * ranked).sum(1).mean()
        return losses

    def concept_loss(self, seen: Tensor, rows: Tensor, main: Tensor, badge: Tensor) -> Tensor:
        """Each drawing to what the teacher says of its concept's words, against all training concepts."""
        said = unit(self.student.say(seen))
        scores, n = said @ self.goals.T / 0.07, len(rows)
        own = self.classes[self.bench.concept[rows]]
        near = 1 - (said[:n] * self.goals[own]).sum(1).mean()
        one, two = self.classes[self.bench.concept[main]], self.classes[self.bench.concept[badge]]
        mixed = 0.6 * F.cross_entropy(scores[n:], one) + 0.4 * F.cross_entropy(scores[n:], two)
        share = len(main) / len(seen)
        return 0.5 * near + 0.25 * ((1 - share) * F.cross_entropy(scores[:n], own) + share * mixed)

    def words_loss(self, seen: Tensor, words: Tensor, concept: Tensor) -> Tensor:
        """Drawings and words of their concepts as the text tower reads them, against the others of the step."""
        same = (concept[:, None] == concept[None]).fill_diagonal_(False)
        scores = (unit(seen) @ unit(words).T / self.plan.temperature).masked_fill(same, -1e4)
        right = torch.arange(len(seen), device=self.device)
        return 0.5 * (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right))


def rate(done: float, step: int, warm: int) -> float:
    """Share of the peak learning rate: steps count while warming up, time afterwards."""
    return min((step + 1) / warm, 0.005 + 0.995 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def run(
    teaching: Teaching,
    plan: Plan,
    log: Callable[[str], None],
    save: Callable[[Student], None],
    seen: Callable[[Teaching, Student, Callable[[str], None]], None] | None = None,
) -> Student:
    """Both phases, by the clock. Returns the averaged student; `save` gets it now and then, after `seen` (`look`) has."""
    student, device = teaching.student, teaching.device
    decayed = [p for p in student.parameters() if p.ndim > 1]
    rest = [p for p in student.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": plan.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    average = Average(student, plan.average)
    for phase, seconds in (("language", plan.language_seconds), ("tasks", plan.seconds)):
        if seconds <= 0:
            continue
        optimizer = torch.optim.AdamW(groups, lr=plan.lr, betas=(0.9, 0.98), fused=device.type == "cuda")
        started, step, spoken, mined = time.time(), 0, 0.0, 0.0
        student.train()
        while (elapsed := time.time() - started) < seconds:
            done = elapsed / seconds
            for group in optimizer.param_groups:
                group["lr"] = plan.lr * rate(done, step, plan.warm_up)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss, parts = teaching.language_step() if phase == "language" else teaching.task_step()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            step += 1
            if phase == "tasks" or step % 10 == 0:
                average.update()
            if time.time() - spoken > 10 or step <= 3:
                spoken = time.time()
                log(
                    f"{phase} {100 * done:3.0f} % step {step} ({step / (time.time() - started):.1f}/s): loss {loss.item():.3f} "
                    + " ".join(f"{n} {v.item():.3f}" for n, v in parts.items())
                )
                if phase == "tasks" and step > 1200 and parts["z-hit"].item() < 0.03:
                    raise SystemExit("the tasks are not being learned: stopped, to save the machine's time")
            if phase == "tasks" and done - mined > plan.mine_every and done < 0.95:
                mined = done
                (seen or look)(teaching, average.student, log)
                save(average.student)
        log(f"{phase}: {step} steps in {time.time() - started:.0f} s")
        average = Average(student, plan.average) if phase == "language" else average
    return average.student


def look(teaching: Teaching, student: Student, log: Callable[[str], None]) -> None:
    """Mine negatives with the averaged weights, and see how far they are on validation queries."""
    started, bench = time.time(), teaching.bench
    drawings = drawing_vectors(student, bench)
    pool = fused(student.fusion, pool_features(student, bench, drawings))
    q = bench.questions["val"]
    found = dense_hits(fused(student.fusion, question_features(student, bench, q, drawings)), pool, bench, q)
    teaching.draws.mine(student, drawings)
    log(f"val dense z: {line(found)}; mined in {time.time() - started:.1f} s")


def results(student: Student, bench: Bench, log: Callable[[str], None]) -> dict[str, Any]:
    """Dense hit rates on validation and test, of z and of the towers' sum."""
    drawings = drawing_vectors(student, bench)
    items, out = pool_features(student, bench, drawings), {}
    for split in ("val", "test"):
        questions = question_features(student, bench, bench.questions[split], drawings)
        for name, embed in (("z", student.fusion), ("sum", score_fusion)):
            found = dense_hits(fused(embed, questions), fused(embed, items), bench, bench.questions[split])
            out[f"{split}/dense-{name}"] = found
            log(f"{split} dense {name}: {line(found)}")
    return out
