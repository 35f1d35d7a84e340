"""Is it data? The encoder and its fusion learn from a share of the training concepts and are asked about concepts they never saw.

    (from the repository's root; after `render`, `tokens` and `teach`)
    python -m lab.mini.scaling --data PACKED --work WORK --share 0           # language alone, once, for all shares
    python -m lab.mini.scaling --data PACKED --work WORK --share 0.25 --seconds 150 --out quarter.json
    python -m lab.mini.scaling --fit eighth.json quarter.json half.json all.json

Of a concept that is left out no drawing, question, name, tag or answer is learned from. Concepts that are edits of one another
("bell", "bell off") stay together, as in the benchmark's split; a smaller share is a part of a larger one. What no drawing
shows (dictionaries, text -> text) stays, and so do the vocabulary and where token vectors start. Shares may run at the same
time: they only read WORK, and wait there for what `--share 0` leaves.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import time
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from genius.features import Features
from lab.mini.batches import Draws
from lab.mini.data import Bench, Questions, language_texts, load_bench, read_arrays
from lab.mini.learn import Language, Plan, Teaching, run
from lab.mini.measure import dense_hits, drawing_vectors, fused, hits, line, pool_features, question_features, text_vectors
from lab.mini.student import Student, start_from_teacher
from lab.mini.train import Log, language_of, new_student, save_state, settings, tokens_of

SEEN = 0.125  # questions of seen concepts are taken from this share, so that larger shares are asked the same ones
ASKED = 2000  # of each task
BARS = {"0": ("text -> image", 35.0), "4": ("image -> image", 60.0)}


def choose(concepts: list[str], training: list[int], share: float, seed: int) -> Tensor:
    """(concepts,) bool: groups of training concepts in random order until they are this share of all."""
    groups = defaultdict(list)
    for concept in training:
        groups[concepts[concept].split("+")[0]].append(concept)
    order, kept = sorted(groups), torch.zeros(len(concepts), dtype=torch.bool)
    random.Random(seed).shuffle(order)
    for name in order:
        if int(kept.sum()) >= round(share * len(training)):
            break
        kept[groups[name]] = True
    return kept


def part_of(bench: Bench, kept: Tensor) -> Bench:
    """The benchmark whose training concepts are `kept` alone. The pool, and other splits' questions, stay as they are."""
    gone = torch.zeros(len(bench.concept), dtype=torch.bool, device=bench.flat.device)  # (drawings,)
    gone[bench.train] = ~kept.to(gone.device)[bench.concept[bench.train]]

    def shows(rows: Tensor) -> Tensor:
        return (rows >= 0) & gone[rows.clamp(min=0)]

    lost, q = shows(bench.pool_image), bench.questions["train"]
    stays = ~lost[bench.flat]
    starts = torch.cat([stays.new_zeros(1, dtype=torch.long), stays.cumsum(0)])[bench.starts]
    asked = ~shows(q.image) & (starts[q.answers + 1] > starts[q.answers])
    questions = Questions(q.image[asked], q.text[asked], q.task[asked], q.answers[asked])
    part = replace(bench, train=bench.train[~gone[bench.train]], starts=starts, flat=bench.flat[stays])
    part.questions = {**bench.questions, "train": questions}
    # texts that answer only questions that are left out are no negatives either
    before, after = torch.zeros_like(bench.allowed), torch.zeros_like(bench.allowed)
    before[bench.members(q.answers)[1]] = True
    after[part.members(questions.answers)[1]] = True
    part.allowed = bench.allowed & ~lost & (after | ~before)
    return part


def texts_kept(data: Path, body: dict[str, Any], part: Bench, kept: Tensor, trial: bool) -> Tensor:
    """(corpus,) bool: dictionary texts, and of the benchmark's own those that kept concepts and questions say."""
    with lzma.open(data / "corpus.xz", "rt", encoding="utf-8") as file:
        own = set(json.load(file)["own"])
    for row in part.questions["train"].text.unique().tolist():
        own.discard(body["texts"][row] if row >= 0 else "")
    for concept in kept.nonzero()[:, 0].tolist():
        names, tags = body["words"][concept]
        own -= {*names, *tags, f"{names[0]}: {', '.join(tags[:3])}"}
    return torch.tensor([text not in own for text in language_texts(data, 100 if trial else None)[1]])


@torch.no_grad()
def seen_hits(query: Tensor, pool: Tensor, bench: Bench, q: Questions) -> dict[int, dict[str, float]]:
    """Hit rates of training questions without what questions of other splits do not meet either: drawings of the asked
    concept that are no answer, being by the hand that drew the question."""
    best = []
    for rows in torch.arange(len(q.task), device=query.device).split(512):
        answers = torch.zeros(len(rows), len(pool), dtype=torch.bool, device=query.device)
        answers[bench.members(q.answers[rows])] = True
        key = bench.pool_key[bench.flat[bench.starts[q.answers[rows]]]]
        hidden = (bench.pool_key[None] == key[:, None]) & ~answers
        best.append((query[rows] @ pool.T).masked_fill(hidden, -2.0).topk(min(10, len(pool)), dim=1).indices)
    return hits(torch.cat(best), bench, q)


@torch.no_grad()
def recognised(student: Student, bench: Bench, language: Language, vectors: Tensor, rows: Tensor) -> dict[str, float]:
    """How often the own concept of the drawings `rows` is among the first of all concepts by their names."""
    device, sizes = rows.device, language.word_starts.diff()
    owner = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)
    place = torch.arange(len(owner), device=device)
    place = place[place - language.word_starts[owner] < language.names[owner]]
    texts = text_vectors(student, language.table, language.words + place, bench.instructions, torch.full_like(place, -1))
    yes, drawn = torch.ones_like(place, dtype=torch.bool), torch.ones_like(rows, dtype=torch.bool)
    names = fused(student.fusion, Features(torch.zeros_like(texts), texts, ~yes, yes))
    pictures = fused(student.fusion, Features(vectors[rows], torch.zeros_like(vectors[rows]), drawn, ~drawn))
    scores = names.new_full((len(rows), len(sizes)), -2.0)
    scores.scatter_reduce_(1, owner[place][None].expand(len(rows), -1), pictures @ names.T, "amax")
    rank = (scores > scores.gather(1, bench.concept[rows][:, None])).sum(1)
    return {f"hit@{k}": 100 * (rank < k).float().mean().item() for k in (1, 5, 10)} | {"n": len(rows)}


class Watched(Teaching):
    """Counts its steps, and writes down now and then how far the averaged student is."""

    body: dict[str, Any]
    whole: Bench  # with every concept: what is asked does not depend on the share
    asked: Questions  # of seen concepts
    out: Path
    steps = 0
    started = 0.0

    def task_step(self) -> tuple[Tensor, dict[str, Tensor]]:
        self.started, self.steps = self.started or time.time(), self.steps + 1
        return super().task_step()

    def look(self, student: Student, log: Log) -> Tensor:
        """One point of the curve. (N, width) of all drawings."""
        elapsed, bench, fusion = time.time() - self.started, self.whole, student.fusion
        vectors = drawing_vectors(student, bench)
        pool = fused(fusion, pool_features(student, bench, vectors))
        found = {
            split: dense_hits(fused(fusion, question_features(student, bench, q, vectors)), pool, bench, q)
            for split, q in bench.questions.items() if split != "train"
        }  # fmt: skip
        found["seen"] = seen_hits(fused(fusion, question_features(student, bench, self.asked, vectors)), pool, bench, self.asked)
        self.body["curve"].append({"seconds": round(elapsed, 1), "step": self.steps, **found})
        self.write()
        log(f"step {self.steps}, val {line(found['val'])} | seen {line(found['seen'])}")
        return vectors

    def write(self) -> None:
        part = self.out.with_suffix(".part")
        part.write_text(json.dumps(self.body, indent=1))
        part.replace(self.out)


def some(rows: Tensor, count: int) -> Tensor:
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:count].to(rows.device)]


def study(args: argparse.Namespace, log: Log) -> None:
    settings(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    student, tokens = new_student(args.data).to(device), tokens_of(args.data).tokenizer
    student.encoder.image.stem.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bench = load_bench(args.data, args.work / "drawings.npy", tokens, device, args.trial)
    arrays, texts, _ = read_arrays(args.data, args.trial)
    training = bench.concept[bench.train].unique().tolist()
    kept = choose(texts["concepts"], training, args.share, args.seed)
    part = part_of(bench, kept)
    corpus = texts_kept(args.data, texts, part, kept, args.trial)
    language, pieces = language_of(part, args.work, tokens, corpus)
    size = args.batch / Plan.batch
    scaled: dict[str, Any] = {name: round(size * getattr(Plan, name)) for name in ("language_batch", "words", "composites")}
    scaled |= {"negatives": tuple(round(size * n) for n in Plan.negatives), "warm_up": args.warm_up, "lr": args.lr}
    scaled |= {"weight_decay": args.weight_decay, "mine_every": args.look_every / args.seconds}
    start = args.work / "language.safetensors"
    if args.share == 0:
        start_from_teacher(student, pieces)
        plan = Plan(args.language_seconds, 0.0, args.batch, **scaled)
        kinds = Draws(bench, plan.shares, plan.batch, plan.negatives)  # not asked in this phase
        save_state(run(Teaching(student, bench, language, kinds, plan), plan, log, lambda _: None), start)
        return log(f"{len(language.vectors):,} texts of no concept read")
    plan = Plan(0.0, args.seconds, args.batch, **scaled)
    teaching = Watched(student, part, language, Draws(part, plan.shares, plan.batch, plan.negatives), plan)
    q = part_of(bench, choose(texts["concepts"], training, min(SEEN, args.share), args.seed)).questions["train"]
    rows = torch.cat([some((q.task == task).nonzero()[:, 0], ASKED) for task in (0, 4)])
    asked, tasks = Questions(q.image[rows], q.text[rows], q.task[rows], q.answers[rows]), part.questions["train"].task
    teaching.body = {
        "share": args.share, "seed": args.seed, "concepts": int(kept.sum()), "of": len(training), "drawings": len(part.train),
        "questions": {str(t): int((tasks == t).sum()) for t in tasks.unique().tolist()}, "texts": len(language.vectors),
        "negatives": [len(rows) for rows in teaching.draws.by_kind], "plan": asdict(plan), "curve": [],
    }  # fmt: skip
    teaching.whole, teaching.asked, teaching.out = bench, asked, args.out
    log(str({name: value for name, value in teaching.body.items() if name != "plan"}))
    while not start.exists():
        if time.time() - args.started > 300:
            raise SystemExit(f"{start} does not come: run --share 0")
        time.sleep(0.5)
    student.load_state_dict(load_file(start, device=str(device)))

    def seen(_: Teaching, average: Student, log: Log) -> None:
        vectors = teaching.look(average, log)
        if len(teaching.body["curve"]) % 2:  # mining costs as much as the rest of a look
            teaching.draws.mine(average, vectors)

    average = run(teaching, plan, log, lambda _: None, seen)
    vectors = teaching.look(average, log)
    unseen = some((arrays["image_split"] == 1).nonzero()[:, 0].to(device), ASKED)
    known = some(bench.train[torch.isin(bench.concept[bench.train], bench.concept[q.image[q.image >= 0]].unique())], ASKED)
    for name, rows in (("unseen", unseen), ("seen", known)):
        teaching.body[f"recognised {name}"] = recognised(average, bench, language, vectors, rows)
    teaching.write()
    log(f"names: unseen {teaching.body['recognised unseen']}, seen {teaching.body['recognised seen']}")


def fit(files: list[Path]) -> None:
    """hit@5 against log2 of the number of concepts, at each share's best moment on validation questions."""
    runs = sorted((json.loads(file.read_text()) for file in files), key=lambda body: body["concepts"])
    size = np.log2([body["concepts"] for body in runs])
    for task, (name, bar) in BARS.items():
        best = [max(body["curve"], key=lambda point: point["val"][task]["hit@5"]) for body in runs]
        for split in ("val", "test"):
            y = np.array([point[split][task]["hit@5"] for point in best])
            slope, base = np.polyfit(size, y, 1)
            print(f"{name}, {split}: " + ", ".join(f"{b['concepts']:,} {v:.1f}" for b, v in zip(runs, y, strict=True)), end="; ")
            print(f"{slope:z.2f} a doubling (largest error {np.abs(base + slope * size - y).max():.2f}); ", end="")
            print(f"{bar:.0f} at {2 ** min(60.0, (bar - base) / slope):,.0f} concepts" if slope > 0.01 else "no growth")
        print(
            f"{name}: best after "
            + ", ".join(f"{point['step']} steps, seen {point['seen'][task]['hit@5']:.1f}" for point in best)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=Path, nargs="+", help="results of several shares: the line through them, and no training")
    parser.add_argument("--data", type=Path, help="what prepare.py wrote")
    parser.add_argument("--work", type=Path, help="what train.py render, tokens and teach wrote")
    parser.add_argument("--out", type=Path, default=Path("scaling.json"))
    parser.add_argument("--share", type=float, default=1.0, help="of the training concepts; 0: language alone")
    parser.add_argument("--seed", type=int, default=0, help="of the choice and of the training")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--language-seconds", type=float, default=Plan.language_seconds)
    parser.add_argument("--look-every", type=float, default=30.0, help="seconds between two points of the curve")
    parser.add_argument("--batch", type=int, default=Plan.batch, help="questions a step; all else of a step scales with it")
    parser.add_argument("--lr", type=float, default=Plan.lr)
    parser.add_argument("--warm-up", type=int, default=100, help="steps")
    parser.add_argument("--weight-decay", type=float, default=Plan.weight_decay)
    parser.add_argument("--trial", action="store_true", help="on the little data of train.py --trial")
    args = parser.parse_args()
    if args.fit:
        return fit(args.fit)
    args.started = time.time()
    study(args, lambda text: print(f"[{time.time() - args.started:6.1f}] {text}", flush=True))


if __name__ == "__main__":
    main()
