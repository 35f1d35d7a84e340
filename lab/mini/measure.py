"""Features and hit rates of a student on the whole benchmark, as inference makes them (no augmentation)."""

from __future__ import annotations

import torch
from torch import Tensor

from genius.features import Features
from genius.ranking import nearest_rows
from lab.mini.augment import plain
from lab.mini.data import Bench, Questions, TextTable, compose
from lab.mini.student import Student

CHUNK = 4096


def place(vectors: Tensor, mask: Tensor) -> Tensor:
    return vectors.new_zeros(len(mask), vectors.shape[1]).index_copy(0, mask.nonzero()[:, 0], vectors)


@torch.no_grad()
def drawing_vectors(student: Student, bench: Bench) -> Tensor:
    """(N, width) of every drawing."""
    device, side = bench.flat.device, student.encoder.config.image_size
    chunk = min(CHUNK, len(bench.drawings))
    out = torch.empty(len(bench.drawings), student.encoder.width, device=device)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        for start in range(0, len(out), chunk):
            first = min(start, len(out) - chunk)  # always full chunks: a convolution plans anew for each size
            out[first : first + chunk] = student.images(plain(bench.drawings[first : first + chunk], side))
    return out


@torch.no_grad()
def text_vectors(student: Student, table: TextTable, rows: Tensor, prefix: TextTable, prefix_rows: Tensor) -> Tensor:
    """(n, width) of texts with their instructions; -1 leaves a part out."""
    device, length = rows.device, student.encoder.config.text_length
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        parts = [
            student.texts(*compose(table, r, prefix, p, length))
            for r, p in zip(rows.split(2 * CHUNK), prefix_rows.split(2 * CHUNK), strict=True)
        ]
    return torch.cat(parts)


@torch.no_grad()
def pool_features(student: Student, bench: Bench, drawings: Tensor) -> Features:
    """Features of every candidate, from those of the drawings."""
    pictured, written = bench.pool_image >= 0, bench.pool_text >= 0
    rows = bench.pool_text[written]
    texts = text_vectors(student, bench.texts, rows, bench.instructions, torch.full_like(rows, -1))
    return Features(place(drawings[bench.pool_image[pictured]], pictured), place(texts, written), pictured, written)


@torch.no_grad()
def question_features(student: Student, bench: Bench, q: Questions, drawings: Tensor, prompt: int | None = 0) -> Features:
    """Features of queries; `prompt` chooses the instruction of each task, None a random one of all eight."""
    which = torch.randint(8, q.task.shape, device=q.task.device) if prompt is None else torch.full_like(q.task, prompt)
    texts = text_vectors(student, bench.texts, q.text, bench.instructions, bench.by_task[q.task, which])
    asked = q.image >= 0
    return Features(drawings[q.image.clamp(min=0)] * asked[:, None], texts, asked, torch.ones_like(asked))


@torch.no_grad()
def fused(embed: object, features: Features) -> Tensor:
    """(n, width) unit vectors, in parts."""
    assert callable(embed)
    return torch.cat([embed(features[i : i + 16384]).float() for i in range(0, len(features), 16384)])


@torch.no_grad()
def dense_hits(query: Tensor, pool: Tensor, bench: Bench, q: Questions) -> dict[int, dict[str, float]]:
    """task -> hit@k of exhaustive search over the whole pool."""
    best = nearest_rows(query, pool, 10)
    return hits(best, bench, q)


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


def line(table: dict[int, dict[str, float]]) -> str:
    return "  ".join(f"{t}: " + "/".join(f"{v[f'hit@{k}']:.1f}" for k in (1, 5, 10)) for t, v in table.items())
