"""What `prepare.py` packed, as tensors on the training device: drawings, texts as token ids, questions and answers.

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
from corpus import misspell, spans
from torch import Tensor

from genius.data.icons.write import INSTRUCTIONS
from genius.instructions import TEMPLATES, format_text
from genius.types import Modality

SIDE = 96  # of a stored drawing; the tower reads 64: the margin is for augmentation
CLS, SEP, PAD = 2, 3, 0
I, T, P = Modality.IMAGE, Modality.TEXT, Modality.PAIR  # noqa: E741
KINDS = {0: (T, I), 1: (T, T), 2: (T, P), 3: (I, T), 4: (I, I), 6: (P, T), 7: (P, I), 8: (P, P)}  # task -> (query, target)
SPLITS = ("train", "val", "test")


# -- drawings ------------------------------------------------------------------------------------------------------


def _draw(svgs: list[str]) -> np.ndarray:
    from genius.data.icons.render import draw

    out = np.full((len(svgs), SIDE, SIDE, 3), 255, np.uint8)
    for i, svg in enumerate(svgs):
        try:
            out[i] = np.asarray(draw(svg, SIDE))
        except (ValueError, OSError):
            continue  # stays white
    return out


def start_drawing(folder: Path, limit: int | None, workers: int) -> Any:
    """Begin to render the archive in other processes; `.get()` of the result gives the arrays in order."""
    sys.path.insert(0, str(folder))  # resvg_py of the GPU machine
    with lzma.open(folder / "svg.jsonl.xz", "rt", encoding="utf-8") as file:
        svgs = [json.loads(line)["svg"] for line, _ in zip(file, range(limit or 10**9), strict=False)]
    pool = multiprocessing.get_context("fork").Pool(workers)
    return pool.map_async(_draw, [svgs[i : i + 250] for i in range(0, len(svgs), 250)], chunksize=1)


# -- texts ---------------------------------------------------------------------------------------------------------


@dataclass
class TextTable:
    """Many texts as padded token ids without the special tokens."""

    ids: Tensor  # (N, longest) int32
    lengths: Tensor  # (N,) int64

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


def compose(table: TextTable, rows: Tensor, prefix: TextTable, prefix_rows: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """[CLS] prefix text [SEP] for each row; -1 leaves a part out. (n, L) ids and mask."""
    before = torch.where(prefix_rows >= 0, prefix.lengths[prefix_rows.clamp(min=0)], 0)
    after = torch.where(rows >= 0, table.lengths[rows.clamp(min=0)], 0)
    after = torch.minimum(after, longest - 2 - before)
    width = int((before + after).max()) + 2
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


# -- questions and answers -----------------------------------------------------------------------------------------


@dataclass
class Questions:
    """One split's questions."""

    image: Tensor  # (Q,) row of the drawings, -1 none
    text: Tensor  # (Q,) row of the texts, -1 none
    task: Tensor  # (Q,)
    answers: Tensor  # (Q,) number of the answer list


@dataclass
class Bench:
    """The whole benchmark."""

    drawings: Tensor  # (N, 3, SIDE, SIDE) uint8
    texts: TextTable
    instructions: TextTable
    by_task: Tensor  # (9, 8) instruction rows of each task: four of the benchmark, four of the library
    pool_image: Tensor  # (C,) row of the drawings, -1 none
    pool_text: Tensor  # (C,)
    pool_key: Tensor  # (C,) equal for candidates of one concept and one modality; -1 for texts
    concept: Tensor  # (N,) of each drawing
    words: list[tuple[list[str], list[str]]]  # names and tags of each concept
    starts: Tensor  # (A + 1,) of the answer lists in `flat`
    flat: Tensor
    questions: dict[str, Questions]

    def draw_answers(self, lists: Tensor) -> Tensor:
        """One candidate of each list, at random; the first (the exact one) in a quarter of the cases."""
        size = self.starts[lists + 1] - self.starts[lists]
        pick = (torch.rand(lists.shape, device=lists.device) * size).long()
        pick = torch.where(torch.rand(lists.shape, device=lists.device) < 0.25, 0, pick)
        return self.flat[self.starts[lists] + pick].long()

    def members(self, lists: Tensor) -> tuple[Tensor, Tensor]:
        """(row of `lists`, candidate) for every answer of every list."""
        sizes = self.starts[lists + 1] - self.starts[lists]
        rows = torch.repeat_interleave(torch.arange(len(lists), device=lists.device), sizes)
        offset = torch.arange(len(rows), device=lists.device) - (sizes.cumsum(0) - sizes)[rows]
        return rows, self.flat[self.starts[lists][rows] + offset].long()


def load_bench(folder: Path, tokenizer: Any, rendering: Any, device: torch.device, limit: int | None) -> Bench:
    with lzma.open(folder / "bench.xz", "rb") as file:
        arrays = {name: torch.from_numpy(value) for name, value in np.load(file).items()}
    with lzma.open(folder / "bench.json.xz", "rt", encoding="utf-8") as file:
        body = json.load(file)
    texts = TextTable.make(tokenizer, body["texts"], 60, device)
    said = [s for task in KINDS for s in (*INSTRUCTIONS[task], *TEMPLATES[KINDS[task]])]
    by_task = torch.full((9, 8), -1)
    for n, task in enumerate(KINDS):
        by_task[task] = torch.arange(8) + 8 * n
    flat = arrays["answer_steps"].long().cumsum(0)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), arrays["answer_sizes"].long().cumsum(0)])
    concept, pool_image, pool_text = arrays["image_concept"].long(), arrays["pool_image"].long(), arrays["pool_text"].long()
    if limit is not None:  # a trial: few candidates, and any drawing stands for any other
        pool_image, pool_text, flat = pool_image[::200], pool_text[::200], flat // 200
    modality = (pool_text >= 0).long() + (pool_image >= 0)  # 1 alone, 2 pair
    key = torch.where(pool_image >= 0, concept[pool_image.clamp(min=0)] * 3 + modality, -1)
    if limit is not None:
        pool_image, concept = torch.where(pool_image >= 0, pool_image % limit, -1), concept[:limit]
    questions = {}
    for split in SPLITS:
        q = Questions(*(arrays[f"{split}_{name}"].long() for name in ("image", "text", "task", "answers")))
        if limit is not None:
            q = Questions(q.image[::200], q.text[::200], q.task[::200], q.answers[::200])
            q.image = torch.where(q.image >= 0, q.image % limit, -1)
        questions[split] = Questions(*(t.to(device) for t in (q.image, q.text, q.task, q.answers)))
    drawings = torch.from_numpy(np.concatenate(rendering.get())).to(device).permute(0, 3, 1, 2).contiguous()
    return Bench(
        drawings, texts, TextTable.make(tokenizer, said, 40, device), by_task.to(device), pool_image.to(device),
        pool_text.to(device), key.to(device), concept.to(device), [tuple(w) for w in body["words"]],
        starts.to(device), flat.to(device), questions,
    )  # fmt: skip


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
