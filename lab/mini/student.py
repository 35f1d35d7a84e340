"""What is trained: the shipped encoder and fusion, and one map to the teacher's width that is thrown away.

Knows modules; nothing of queries, files or clocks. Training passes have fixed shapes and never wait for the GPU.
"""

from __future__ import annotations

import copy
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.encoders.mini import MiniEncoder
from genius.model.quantizer import Fusion

PLACES = 0.75  # share of the image grid's places that a training pass keeps
DROPOUT = 0.1  # before both towers' heads


class Student(nn.Module):
    """Towers, fusion, and `say`: one map for both towers, so that what is near the same words is near each other."""

    def __init__(self, encoder: MiniEncoder, fusion: Fusion, teacher_width: int) -> None:
        super().__init__()
        self.encoder, self.fusion = encoder, fusion
        self.say = nn.Linear(encoder.width, teacher_width, bias=False)
        for output in (fusion.mix_output, fusion.balance_output):  # starts as the sum of both towers
            nn.init.zeros_(output.weight)
            nn.init.zeros_(output.bias)

    def texts(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(n, width), for measuring. Short and long ones apart: padding costs as much as words."""
        lengths = mask.sum(1)
        out = ids.new_zeros(len(ids), self.encoder.width, dtype=torch.float32)
        for low, high in itertools.pairwise((0, 12, 20, 32, 64)):
            rows = ((lengths > low) & (lengths <= high)).nonzero()[:, 0]
            if len(rows):
                wide = max(0, high - ids.shape[1])
                part = self.encoder.text(F.pad(ids, (0, wide))[rows, :high], F.pad(mask, (0, wide))[rows, :high])
                out[rows] = part.float()
        return out

    def training_texts(self, ids: Tensor, mask: Tensor, cuts: list[tuple[int, int]]) -> Tensor:
        """The same in training: sorted by length, in parts of fixed size and width (`cuts`: rows, tokens). What is
        longer than its part is cut."""
        order = mask.sum(1).argsort()
        parts, start = [], 0
        for rows, width in cuts:
            some = order[start : start + rows]
            parts.append(self.encoder.text(ids[some, :width], mask[some, :width]).float())
            start += rows
        together = torch.cat(parts)
        return F.dropout(together.new_zeros(together.shape).index_copy(0, order, together), DROPOUT / 2, self.training)

    def images(self, pixels: Tensor) -> Tensor:
        """(n, width), for measuring."""
        return self.encoder.image(pixels.contiguous(memory_format=torch.channels_last)).float()  # type: ignore[no-any-return]

    def training_images(self, pixels: Tensor) -> Tensor:
        """The same in training: a quarter of the places is left out, so that no single one decides."""
        tower = self.encoder.image
        x = tower.stem(pixels.contiguous(memory_format=torch.channels_last)).flatten(2).transpose(1, 2) + tower.positions
        kept = torch.rand(x.shape[1], device=x.device).topk(round(PLACES * x.shape[1])).indices
        x = x[:, kept]
        for block in tower.blocks:
            x = block(x)
        x = tower.norm(x)
        weights = tower.attend(x).softmax(dim=1)
        joined = torch.cat([(weights * x).sum(1), x.mean(1)], dim=1)
        return tower.head(F.dropout(joined, DROPOUT, self.training)).float()  # type: ignore[no-any-return]


@torch.no_grad()
def start_from_teacher(student: Student, words: Tensor) -> None:
    """Token vectors start as the teacher's vectors of the tokens' strings (V, teacher width), so that the text tower
    is a bag of words that means something before the first step."""
    tower, config = student.encoder.text, student.encoder.config
    words = words.float() - words.float().mean(0)
    main = torch.linalg.svd(words.T @ words).U  # (teacher width, teacher width): the directions that say most come first
    narrow = config.text_tokens or config.text_width
    start = words @ main[:, :narrow]
    tower.tokens.weight.copy_(start / start.std() * 0.3)
    if narrow != config.text_width:
        tower.widen.weight.copy_(torch.eye(config.text_width, device=words.device)[:, :narrow])  # type: ignore[operator]
    tower.positions.mul_(0.2)
    nn.init.zeros_(tower.attend.weight)  # every token counts the same
    eye = torch.eye(config.text_width, device=words.device)
    tower.head.weight.copy_(0.5 * torch.cat([eye, eye], 1)[: student.encoder.width])
    nn.init.zeros_(tower.head.bias)
    student.say.weight.copy_(main[:, : student.encoder.width])


class Average:
    """Exponential average of a student's weights and statistics: a student of its own, for measuring."""

    def __init__(self, student: Student, decay: float) -> None:
        self.student, self.decay, self.steps = copy.deepcopy(student).eval(), decay, 0
        pairs = list(zip(self.student.state_dict().values(), student.state_dict().values(), strict=True))
        self.mine = [a for a, _ in pairs if a.is_floating_point()]
        self.theirs = [b for _, b in pairs if b.is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.mine, self.theirs, 1 - decay)
