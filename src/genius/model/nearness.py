"""The output head that is tied to the codebooks: a code is as likely as it is near to what is left of z.

    logit(c) = a_l (2 r.c - b_l |c|^2),   r = z - codes so far + U_l h

h is the decoder's state; a_l, b_l and U_l are learned, c are the quantizer's own rows. Where every modality has books of its own
it has its own a_l and b_l too: otherwise log p of texts and of pictures would not be of one measure, and the kind that lies
nearer to all questions would be preferred. U starts at zero, so an untrained decoder *is* nearness with a temperature, and
training says how far to trust it and where to bend it. Input tokens come from the codebooks too, so nothing here grows with the
number of codes, and a code that was never a target in its place can still be written. Level 0, the modality, keeps a small free
head.
Knows codebooks and states; nothing of attention or tries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from genius.model.codebooks import Codebooks

Rows = slice | Tensor
ByModality = Sequence[tuple[int, Rows]]
"""Which rows of a batch belong to which modality: slices where a batch is sorted (fixed shapes), index tensors elsewhere."""

FAST = 20.0  # a_l and b_l are read as this times a parameter: Adam then moves them as fast as two numbers a level may move
START_SCALE = 2.5  # log a_l before training


def by_modality(modality: Tensor) -> ByModality:
    """The rows of each modality that is there."""
    return [(kind, (modality == kind).nonzero()[:, 0]) for kind in modality.unique().tolist()]


class NearnessHead(nn.Module):
    """Input tokens and next-code logits from the codebooks of a quantizer, which stays the owner of its rows."""

    def __init__(self, quantizer: Codebooks, d_model: int) -> None:
        super().__init__()
        self.__dict__["quantizer"] = quantizer  # not a submodule: its rows are saved once, as the quantizer's
        self.level_sizes, width = quantizer.config.level_sizes, quantizer.config.width
        written = len(self.level_sizes) - 1  # levels after the modality
        self.start = nn.Parameter(torch.randn(d_model))
        self.modality_in = nn.Embedding(self.level_sizes[0], d_model)
        self.modality_out = nn.Linear(d_model, self.level_sizes[0])
        self.read = nn.ModuleList(nn.Linear(width, d_model) for _ in range(written - 1))  # the last code is never read
        self.bend = nn.ModuleList(nn.Linear(d_model, width) for _ in range(written))  # U_l
        self.kinds = 3 if quantizer.config.own_books_from else 1
        # level after level, a number for each kind; a row of numbers, no matrix, since matrices decay in training
        self.log_scale = nn.Parameter(torch.full((written * self.kinds,), START_SCALE / FAST))  # log a_l / FAST
        self.norm_weight = nn.Parameter(torch.full((written * self.kinds,), 1 / FAST))  # b_l / FAST
        with torch.no_grad():
            for level, layer in enumerate(self.read, start=1):
                assert isinstance(layer, nn.Linear)
                size = quantizer.codebook(level).square().mean().sqrt().clamp(min=1e-6)
                layer.weight /= size.cpu()  # codes of every level are read as tokens of like size
            for layer in self.bend:
                assert isinstance(layer, nn.Linear)
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    quantizer: Codebooks

    def token(self, level: int, code: Tensor, modality: Tensor) -> Tensor:
        """(..., d_model) what the decoder reads for codes (...) of a level, of items whose first codes are `modality` (...)."""
        if level == 0:
            return self.modality_in(code)  # type: ignore[no-any-return]
        return self.read[level - 1](self.quantizer.vectors(level, code, modality))  # type: ignore[no-any-return]

    def reach(self, level: int, hidden: Tensor, rest: Tensor) -> Tensor:
        """(R, width) r: what is left of z, bent by the state. Float32; `rest` (R, width) is z minus the codes so far."""
        return rest.float() + self.bend[level - 1](hidden).float()  # type: ignore[no-any-return]

    def bent(self, states: Tensor) -> Tensor:
        """Mean |U_l h|^2 over states (B, M, d_model) before each code: how far nearness is bent."""
        far = [layer(states[:, level]).float().square().sum(1).mean() for level, layer in enumerate(self.bend, start=1)]
        return torch.stack(far).mean()

    def bias(self, level: int, kind: int) -> Tensor:
        """(K,) -a_l b_l |c|^2 of every code of a kind's book."""
        book = self.quantizer.book_of(level, kind)
        with torch.autocast(book.device.type, enabled=False):
            return -self.scale(level, kind) * FAST * self.norm_weight[self._place(level, kind)] * book.square().sum(1)

    def scale(self, level: int, kind: int) -> Tensor:
        """a_l"""
        return (FAST * self.log_scale[self._place(level, kind)]).exp()

    def _place(self, level: int, kind: int) -> int:
        return (level - 1) * self.kinds + (kind if self.quantizer.config.own_books(level) else 0)

    def logits(self, level: int, hidden: Tensor, rest: Tensor, rows: ByModality) -> Tensor:
        """(R, K_level) of states (R, d_model); float32."""
        if level == 0:
            return self.modality_out(hidden).float()  # type: ignore[no-any-return]
        reach = self.reach(level, hidden, rest)
        with torch.autocast(reach.device.type, enabled=False):
            if not self.quantizer.config.own_books(level):
                return self._of(level, 0, reach)
            parts = [self._of(level, kind, reach[own]) for kind, own in rows]
            if all(isinstance(own, slice) for _, own in rows):
                return torch.cat(parts)  # a sorted batch: its blocks follow each other
            out = reach.new_empty(len(reach), self.level_sizes[level])
            for (_, own), part in zip(rows, parts, strict=True):
                out[own] = part
            return out

    def _of(self, level: int, kind: int, reach: Tensor) -> Tensor:
        return torch.addmm(self.bias(level, kind), 2 * self.scale(level, kind) * reach, self.quantizer.book_of(level, kind).T)

    def rests(self, z: Tensor, codes: Tensor) -> list[Tensor]:
        """z minus the codes before each level: M tensors (B, width)."""
        out = [z]
        for level in range(codes.shape[1] - 1):
            out.append(out[-1] - self.quantizer.vectors(level, codes[:, level], codes[:, 0] if level else None))
        return out


SCALES = ("nearness.log_scale", "nearness.norm_weight")


def one_for_all(name: str, shape: Sequence[int], wanted: Mapping[str, Tensor]) -> bool:
    """Whether a weight is from before every kind had its own a_l and b_l: one number a level."""
    return name.endswith(SCALES) and name in wanted and [3 * size for size in shape] == list(wanted[name].shape)


def for_each_kind(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of today from such ones: all kinds of a level take its number."""
    old = {name for name, tensor in tensors.items() if one_for_all(name, tensor.shape, wanted)}
    return {name: tensor.repeat_interleave(3) if name in old else tensor for name, tensor in tensors.items()}


def as_one_number(name: str, tensor: Tensor, kinds: int) -> Tensor:
    """A weight as it was before that, if its `kinds` do not differ: what fingerprints are made of must not change."""
    if not name.endswith(SCALES):
        return tensor
    by_kind = tensor.view(-1, kinds)
    return by_kind[:, 0] if bool((by_kind == by_kind[:, :1]).all()) else tensor
