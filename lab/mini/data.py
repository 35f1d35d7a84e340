"""What `prepare.py` packed, as tensors on the training device: drawings, texts as token ids, queries and answers.

Knows files and tensors; nothing of losses or models.
"""

from __future__ import annotations

import json
import lzma
import multiprocessing
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genius.types import TEMPLATES, Modality, format_text
from lab.icons.write import INSTRUCTIONS
from lab.mini.corpus import misspell, spans

SIDE = 96  # of a stored drawing; the tower reads 64: the margin is for augmentation
CLS, SEP, PAD = 2, 3, 0
I, T, P = Modality.IMAGE, Modality.TEXT, Modality.PAIR  # noqa: E741
KINDS = {0: (T, I), 1: (T, T), 2: (T, P), 3: (I, T), 4: (I, I), 6: (P, T), 7: (P, I), 8: (P, P)}  # task -> (query, target)
SPLITS = ("train", "val", "test")


# -- drawings ------------------------------------------------------------------------------------------------------


def _draw(work: tuple[Path, int, list[str]]) -> None:
    """Render some SVGs into their rows of the file."""
    from lab.icons.render import draw

    target, first, svgs = work
    out = np.lib.format.open_memmap(target, mode="r+")
    for i, svg in enumerate(svgs, first):
        try:
            out[i] = np.asarray(draw(svg, SIDE)).transpose(2, 0, 1)
        except (ValueError, OSError):
            out[i] = 255
    out.flush()


def render(folder: Path, target: Path, rows: list[int] | None, workers: int) -> None:
    """The archive's drawings (all, or these rows) as one array (N, 3, SIDE, SIDE) uint8 in the file `target`."""
    sys.path.insert(0, str(folder))  # resvg_py of the GPU machine
    with lzma.open(folder / "svg.jsonl.xz", "rt", encoding="utf-8") as file:
        lines = file.readlines()
    svgs = [json.loads(lines[i])["svg"] for i in (range(len(lines)) if rows is None else rows)]
    part = target.with_name(f"part-{target.name}")
    np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=(len(svgs), 3, SIDE, SIDE)).flush()
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        pool.map(_draw, [(part, i, svgs[i : i + 250]) for i in range(0, len(svgs), 250)], chunksize=1)
    part.rename(target)


# -- texts ---------------------------------------------------------------------------------------------------------


@dataclass
class TextTable:
    """Many texts as padded token ids without the special tokens."""

    ids: Tensor  # (N, longest) int32
    lengths: Tensor  # (N,) int64

    @classmethod
    def join(cls, tables: list[TextTable]) -> tuple[TextTable, list[int]]:
        """One table of all, and where each begins."""
        wide = max(t.ids.shape[1] for t in tables)
        ids = torch.cat([torch.nn.functional.pad(t.ids, (0, wide - t.ids.shape[1])) for t in tables])
        starts = np.cumsum([0, *(len(t.lengths) for t in tables)])[:-1].tolist()
        return cls(ids, torch.cat([t.lengths for t in tables])), starts

    @classmethod
    def make(cls, tokenizer: Any, texts: list[str], longest: int, device: torch.device) -> TextTable:
        """Texts are formatted as the encoder will see them."""
        tokenizer = type(tokenizer).from_str(tokenizer.to_str())  # a copy: ours must not pad
        tokenizer.no_padding()
        ids = np.zeros((len(texts), longest), np.int32)
        lengths = np.zeros(len(texts), np.int64)
        for start in range(0, len(texts), 50_000):
            part = [format_text(t) for t in texts[start : start + 50_000]]
            for k, encoding in enumerate(tokenizer.encode_batch(part, add_special_tokens=False)):
                row = encoding.ids[:longest]
                ids[start + k, : len(row)], lengths[start + k] = row, len(row)
        return cls(torch.from_numpy(ids).to(device), torch.from_numpy(lengths).to(device))


def compose(
    table: TextTable, rows: Tensor, prefix: TextTable, prefix_rows: Tensor, longest: int, fixed: bool = False
) -> tuple[Tensor, Tensor]:
    """[CLS] prefix text [SEP] for each row; -1 leaves a part out. (n, L) ids and mask; `fixed`: L is `longest`."""
    before = torch.where(prefix_rows >= 0, prefix.lengths[prefix_rows.clamp(min=0)], 0)
    after = torch.where(rows >= 0, table.lengths[rows.clamp(min=0)], 0)
    after = torch.minimum(after, longest - 2 - before)
    width = longest if fixed else int((before + after).max()) + 2
    place = torch.arange(width, device=rows.device)[None]
    head = prefix.ids[prefix_rows.clamp(min=0)]
    tail = table.ids[rows.clamp(min=0)]
    at = (place - 1).clamp(0, head.shape[1] - 1).expand(len(rows), -1)
    out = torch.where((place >= 1) & (place <= before[:, None]), head.gather(1, at), PAD)
    at = (place - 1 - before[:, None]).clamp(0, tail.shape[1] - 1)
    inside = (place > before[:, None]) & (place <= (before + after)[:, None])
    out = torch.where(inside, tail.gather(1, at), out)
    out = torch.where(place == 0, CLS, out)
    end = (before + after)[:, None] + 1
    return torch.where(place == end, SEP, out).long(), (place <= end).long()


# -- queries and answers -----------------------------------------------------------------------------------------


@dataclass
class Questions:
    """One split's queries."""

    image: Tensor  # (Q,) row of the drawings, -1 none
    text: Tensor  # (Q,) row of the texts, -1 none
    task: Tensor  # (Q,)
    answers: Tensor  # (Q,) number of the answer list


@dataclass
class Bench:
    """The whole benchmark."""

    drawings: Tensor  # (N, 3, SIDE, SIDE) uint8
    texts: TextTable  # of queries and candidates
    instructions: TextTable
    by_task: Tensor  # (9, 8) instruction rows of each task: four of the benchmark, four of the library
    pool_image: Tensor  # (C,) row of the drawings, -1 none
    pool_text: Tensor  # (C,)
    pool_key: Tensor  # (C,) equal for candidates of one concept and one modality; -1 for texts
    allowed: Tensor  # (C,) bool: may be shown in training; no drawing of a test concept, no answer of a test query
    concept: Tensor  # (N,) of each drawing
    train: Tensor  # rows of the training concepts' drawings
    demo: Tensor  # (N,) bool: of a family that pip installs
    words: list[tuple[list[str], list[str]]]  # names and tags of each concept
    starts: Tensor  # (A + 1,) of the answer lists in `flat`
    flat: Tensor
    questions: dict[str, Questions]

    def draw_answers(self, lists: Tensor) -> Tensor:
        """One candidate of each list: the first (the exact one) in a quarter of the cases, else at random, those of
        the demo's families twice as often."""
        size, device = self.starts[lists + 1] - self.starts[lists], lists.device

        def any_of() -> Tensor:
            return self.flat[self.starts[lists] + (torch.rand(lists.shape, device=device) * size).long()]

        one, other = any_of(), any_of()
        known = self.demo[self.pool_image[other].clamp(min=0)] & (self.pool_image[other] >= 0)
        picked = torch.where(known, other, one)
        return torch.where(torch.rand(lists.shape, device=device) < 0.25, self.flat[self.starts[lists]], picked)

    def members(self, lists: Tensor) -> tuple[Tensor, Tensor]:
        """(row of `lists`, candidate) for every answer of every list."""
        sizes = self.starts[lists + 1] - self.starts[lists]
        rows = torch.repeat_interleave(torch.arange(len(lists), device=lists.device), sizes)
        offset = torch.arange(len(rows), device=lists.device) - (sizes.cumsum(0) - sizes)[rows]
        return rows, self.flat[self.starts[lists][rows] + offset]

    def table(self, lists: Tensor, width: int) -> Tensor:
        """(n, width) answers of each list, -1 where it has fewer; the rest is cut."""
        at = torch.arange(width, device=lists.device)[None]
        first, size = self.starts[lists][:, None], (self.starts[lists + 1] - self.starts[lists])[:, None]
        return torch.where(at < size, self.flat[(first + at).clamp(max=len(self.flat) - 1)], -1)


def read_arrays(folder: Path, trial: bool) -> tuple[dict[str, Tensor], dict[str, Any], list[int] | None]:
    """The packed arrays and texts; for a trial a small part of them, and which drawings that part needs."""
    with lzma.open(folder / "bench.xz", "rb") as file:
        arrays = {name: torch.from_numpy(value) for name, value in np.load(file).items()}
    with lzma.open(folder / "bench.json.xz", "rt", encoding="utf-8") as file:
        body = json.load(file)
    arrays = {n: (t if n == "image_demo" else t.long()) for n, t in arrays.items()}
    arrays["flat"] = arrays.pop("answer_steps").cumsum(0)
    arrays["starts"] = torch.cat([torch.zeros(1, dtype=torch.long), arrays.pop("answer_sizes").cumsum(0)])
    return _part(arrays, body) if trial else (arrays, body, None)


def _part(a: dict[str, Tensor], body: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any], list[int]]:
    """A small benchmark of the same shape: some queries of every task, their answers, some other candidates."""
    chance = torch.Generator().manual_seed(0)
    lists: list[list[int]] = []
    for split, count in (("train", 90), ("val", 6), ("test", 6)):
        rows = []
        for task in KINDS:
            own = (a[f"{split}_task"] == task).nonzero()[:, 0]
            rows.append(own[torch.randperm(len(own), generator=chance)[:count]])
        kept = torch.cat(rows)
        for name in ("image", "text", "task", "answers"):
            a[f"{split}_{name}"] = a[f"{split}_{name}"][kept]
        answers = a[f"{split}_answers"]
        old = [a["flat"][a["starts"][i] : a["starts"][i + 1]][:3].tolist() for i in answers.tolist()]
        a[f"{split}_answers"] = torch.arange(len(old)) + len(lists)
        lists += old
    pool = torch.tensor(sorted({c for one in lists for c in one} | set(range(0, len(a["pool_image"]), 700))))
    row = {c: i for i, c in enumerate(pool.tolist())}
    a["starts"] = torch.tensor([0, *np.cumsum([len(one) for one in lists]).tolist()])
    a["flat"] = torch.tensor([row[c] for one in lists for c in one])
    a["pool_image"], a["pool_text"] = a["pool_image"][pool], a["pool_text"][pool]
    named = [a["pool_image"], *(a[f"{s}_image"] for s in SPLITS)]
    used = torch.unique(torch.cat(named))
    used = used[used >= 0]
    for tensor in named:
        tensor.copy_(torch.where(tensor >= 0, torch.searchsorted(used, tensor.clamp(min=0)), -1))
    for name in ("image_concept", "image_split", "image_demo"):
        a[name] = a[name][used]
    named = [a["pool_text"], *(a[f"{s}_text"] for s in SPLITS)]
    texts = torch.unique(torch.cat(named))
    texts = texts[texts >= 0]
    for tensor in named:
        tensor.copy_(torch.where(tensor >= 0, torch.searchsorted(texts, tensor.clamp(min=0)), -1))
    return a, {**body, "texts": [body["texts"][i] for i in texts.tolist()]}, used.tolist()


def load_bench(folder: Path, drawings: Path, tokenizer: Any, device: torch.device, trial: bool) -> Bench:
    arrays, body, _ = read_arrays(folder, trial)
    texts = TextTable.make(tokenizer, body["texts"], 60, device)
    said = [s for task in KINDS for s in (*INSTRUCTIONS[task], *TEMPLATES[KINDS[task]])]
    by_task = torch.full((9, 8), -1)
    for n, task in enumerate(KINDS):
        by_task[task] = torch.arange(8) + 8 * n
    concept, pool_image, pool_text = arrays["image_concept"], arrays["pool_image"], arrays["pool_text"]
    modality = (pool_text >= 0).long() + (pool_image >= 0)  # 1 alone, 2 pair
    key = torch.where(pool_image >= 0, concept[pool_image.clamp(min=0)] * 3 + modality, -1)
    allowed = (pool_image < 0) | (arrays["image_split"][pool_image.clamp(min=0)] == 0)
    questions = {}
    for split in SPLITS:
        q = Questions(*(arrays[f"{split}_{name}"] for name in ("image", "text", "task", "answers")))
        questions[split] = Questions(*(t.to(device) for t in (q.image, q.text, q.task, q.answers)))
    bench = Bench(
        torch.from_numpy(np.load(drawings)).to(device), texts, TextTable.make(tokenizer, said, 40, device), by_task.to(device),
        pool_image.to(device), pool_text.to(device), key.to(device), allowed.to(device), concept.to(device),
        (arrays["image_split"] == 0).nonzero()[:, 0].to(device), arrays["image_demo"].bool().to(device),
        [tuple(w) for w in body["words"]], arrays["starts"].to(device), arrays["flat"].to(device), questions,
    )  # fmt: skip
    for split in ("val", "test"):
        bench.allowed[bench.members(questions[split].answers)[1]] = False
    return bench


def language_texts(folder: Path, limit: int | None, seed: int = 1) -> tuple[list[str], list[str]]:
    """(what the student reads, what the teacher reads): dictionary texts, spans of them, our words, misspelt ones."""
    with lzma.open(folder / "corpus.xz", "rt", encoding="utf-8") as file:
        body = json.load(file)
    chance = random.Random(seed)
    texts, own = body["texts"][:limit], body["own"][:limit]
    if limit is None:
        texts = chance.sample(texts, min(450_000, len(texts)))
    cut = [s for t in texts[::2] for s in spans(t, chance)]
    student = [*texts, *cut, *own]
    teacher = list(student)
    for text in chance.sample(student, min(60_000, len(student) // 4)):
        student.append(misspell(text, chance))
        teacher.append(text)
    return student, teacher
