"""Generator: z -> probability of the next code, given the codes so far (paper 4.3).

A T5 decoder (self-attention with relative positions, cross-attention to N prefix vectors made from z, RMSNorm, no biases),
implemented here in torch: the published weights load one to one. It is the only decoder of the package: training reads whole
IDs at once, search reads one code at a time with the keys and values of the codes before (`genius.search.decoder`). Knows
nothing of tries: which codes exist is the search's business.

Two heads say how likely the next code is. "table" (the paper's) has a free row for every code: one token table serves every
level, [3 specials | codes of level 0 | codes of level 1 | ...]. Level l only ever reads its own slice; `normalizer` says whether
probabilities are over that slice or the whole table. "codebooks" (ours, `CodebookHead`) is tied to the codebooks: a code is as
likely as it is similar to the residual of z.

    logit(c) = a_l (2 r.c - b_l |c|^2),   r = z - codes so far + U_l h

h is the decoder's state; a_l, b_l and U_l are learned, c are the quantizer's own rows. Where every modality has codebooks of its
own it has its own a_l and b_l too: otherwise log-probabilities of texts and of images would not be comparable, and the modality
that is more similar to all queries would be preferred. U starts at zero, so an untrained decoder *is* similarity with a
temperature, and training says how far to trust it and where to correct it. Input tokens come from the codebooks too, so nothing
here grows with the number of codes, and a code that was never a target in its place can still be generated. Level 0, the
modality, keeps a small free head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.errors import GeniusError
from genius.model.codebooks import Codebooks
from genius.model.config import FAST, SPECIALS, START_SCALE, GeneratorConfig, current_name
from genius.model.cuda import TRITON

if TYPE_CHECKING:
    from genius.model.quantizer import ResidualQuantizer

Rows = slice | Tensor
ByModality = Sequence[tuple[int | Tensor, Rows]]
"""Which rows of a batch belong to which modality: slices where a batch is sorted (fixed shapes), index tensors elsewhere."""


def by_modality(modality: Tensor) -> ByModality:
    """The rows of each modality that occurs in modality (R,)."""
    return [(int(one), (modality == one).nonzero()[:, 0]) for one in modality.unique().tolist()]


class CodebookHead(nn.Module):
    """Input tokens and next-code logits from the codebooks of a quantizer, which stays the owner of its rows."""

    def __init__(self, quantizer: Codebooks, d_model: int) -> None:
        super().__init__()
        self.__dict__["quantizer"] = quantizer  # not a submodule: its rows are saved once, as the quantizer's
        self.level_sizes = quantizer.config.level_sizes
        width = quantizer.config.width
        later = len(self.level_sizes) - 1  # levels after the modality
        self.start = nn.Parameter(torch.randn(d_model))
        self.modality_in = nn.Embedding(self.level_sizes[0], d_model)
        self.modality_out = nn.Linear(d_model, self.level_sizes[0])
        self.read = nn.ModuleList(nn.Linear(width, d_model) for _ in range(later - 1))  # the last code is never read
        self.residual_shift = nn.ModuleList(nn.Linear(d_model, width) for _ in range(later))  # U_l
        self.modalities = 1
        if quantizer.config.modality_codebooks_from:
            self.modalities = 3
        # level after level, a number for each modality; a row of numbers, no matrix, since matrices decay in training
        self.log_scale = nn.Parameter(torch.full((later * self.modalities,), START_SCALE / FAST))  # log a_l / FAST
        self.norm_weight = nn.Parameter(torch.full((later * self.modalities,), 1 / FAST))  # b_l / FAST
        with torch.no_grad():
            for level, layer in enumerate(self.read, start=1):
                assert isinstance(layer, nn.Linear)
                size = quantizer.codebook(level).square().mean().sqrt().clamp(min=1e-6)
                layer.weight /= size.cpu()  # codes of every level are read as tokens of like size
            for layer in self.residual_shift:
                assert isinstance(layer, nn.Linear)
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    quantizer: Codebooks

    def token(self, level: int, code: Tensor, modality: Tensor) -> Tensor:
        """(..., d_model) what the decoder reads for codes (...) of a level, of items whose first codes are `modality` (...)."""
        if level == 0:
            return self.modality_in(code)  # type: ignore[no-any-return]
        return self.read[level - 1](self.quantizer.vectors(level, code, modality))  # type: ignore[no-any-return]

    def correction(self, states: Tensor) -> Tensor:
        """Mean |U_l h|^2 over states (B, M, d_model) before each code: how far the decoder moves the residual."""
        far = [layer(states[:, level]).float().square().sum(1).mean() for level, layer in enumerate(self.residual_shift, start=1)]
        return torch.stack(far).mean()

    def scale(self, level: int, modality: int | Tensor) -> Tensor:
        """a_l"""
        return (FAST * self._number(self.log_scale, level, modality)).exp()

    def _number(self, numbers: Tensor, level: int, modality: int | Tensor) -> Tensor:
        place: int | Tensor = (level - 1) * self.modalities
        if self.quantizer.config.has_modality_codebooks(level):
            place = place + modality
        if isinstance(place, Tensor):
            return numbers.index_select(0, place)
        return numbers[place]

    def _codebook(self, level: int, modality: int | Tensor) -> Tensor:
        """(K, width) the rows that codes of a level stand for, of one modality's items."""
        if isinstance(modality, int):
            return self.quantizer.codebook_of(level, modality)
        if not self.quantizer.config.has_modality_codebooks(level):
            return self.quantizer.codebook_of(level, 0)
        codebooks = self.quantizer.codebook(level).unflatten(0, (3, -1))
        codebook: Tensor = codebooks.index_select(0, modality.view(1))[0]
        return codebook

    def logits(self, level: int, hidden: Tensor, residual: Tensor, rows: ByModality | Tensor) -> Tensor:
        """(R, K_level) of states (R, d_model) and residuals (R, width), z minus the codes so far; float32.

        `rows`: which are of which modality; or the modality of each row (R,): those of all modalities are then computed.
        """
        if level == 0:
            return self.modality_out(hidden).float()  # type: ignore[no-any-return]
        moved: Tensor = residual.float() + self.residual_shift[level - 1](hidden).float()  # r
        with torch.autocast(moved.device.type, enabled=False):
            if not self.quantizer.config.has_modality_codebooks(level):
                return self._logits_of(level, 0, moved)
            if isinstance(rows, Tensor):
                logits = self._logits_of(level, 0, moved)
                for modality in range(1, self.modalities):
                    logits = torch.where((rows == modality)[:, None], self._logits_of(level, modality, moved), logits)
                return logits
            parts = [self._logits_of(level, modality, moved[own]) for modality, own in rows]
            if all(isinstance(own, slice) for _, own in rows):
                return torch.cat(parts)  # a sorted batch: its blocks follow each other
            out = moved.new_empty(len(moved), self.level_sizes[level])
            for (_, own), part in zip(rows, parts, strict=True):
                out[own] = part
            return out

    def _logits_of(self, level: int, modality: int | Tensor, moved: Tensor) -> Tensor:
        codebook = self._codebook(level, modality)
        scale = self.scale(level, modality)
        bias = -scale * FAST * self._number(self.norm_weight, level, modality) * codebook.square().sum(1)
        return torch.addmm(bias, 2 * scale * moved, codebook.T)

    def residuals(self, z: Tensor, codes: Tensor) -> list[Tensor]:
        """z minus the codes before each level: M tensors (B, width)."""
        out = [z]
        for level in range(codes.shape[1] - 1):
            out.append(out[-1] - self.quantizer.vectors(level, codes[:, level], codes[:, 0]))
        return out


START = 0


class KeysValues(NamedTuple):
    """Attention memory of one layer: both (rows, heads, length, d_kv)."""

    keys: Tensor
    values: Tensor


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and x.dtype == self.weight.dtype:  # one kernel
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps)).to(self.weight.dtype)


class Attention(nn.Module):
    """T5 attention: no scaling by sqrt(d), no biases; an additive bias carries positions."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        inner = config.heads * config.d_kv
        self.heads = config.heads
        self.d_kv = config.d_kv
        self.dropout = config.dropout
        self.q = nn.Linear(config.d_model, inner, bias=False)
        self.k = nn.Linear(config.d_model, inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.o = nn.Linear(inner, config.d_model, bias=False)

    def split(self, x: Tensor) -> Tensor:
        parts: Tensor = x.unflatten(-1, (self.heads, self.d_kv)).transpose(1, 2)  # (rows, heads, length, d_kv)
        return parts

    def project(self, x: Tensor) -> KeysValues:
        return KeysValues(self.split(self.k(x)), self.split(self.v(x)))

    def forward(self, x: Tensor, memory: KeysValues, bias: Tensor | None = None) -> Tensor:
        """Attend from x (rows, length, d_model) to a memory of as many rows, or of fewer that divide them.

        Fewer: the beams of a query lie side by side in `x` and share one row of memory, which is not copied for each.
        """
        shape = x.shape
        x = x.reshape(memory.keys.shape[0], -1, shape[-1])
        scores = self.split(self.q(x)) @ memory.keys.transpose(-1, -2)  # (rows, heads, length, memory)
        if bias is not None:
            scores = scores + bias
        weights = F.dropout(scores.float().softmax(-1).to(scores.dtype), self.dropout, self.training)
        out: Tensor = self.o((weights @ memory.values).transpose(1, 2).flatten(2))
        return out.view(shape)


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention to the prefix, feed-forward; each pre-normed, each residual."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        self.self_norm = RMSNorm(config.d_model)
        self.self_attention = Attention(config)
        self.cross_norm = RMSNorm(config.d_model)
        self.cross_attention = Attention(config)
        self.ff_norm = RMSNorm(config.d_model)
        self.ff_in = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.ff_out = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, cross: KeysValues, bias: Tensor, past: KeysValues | None) -> tuple[Tensor, KeysValues]:
        normed = self.self_norm(x)
        memory = self.self_attention.project(normed)
        if past is not None:
            memory = KeysValues(torch.cat([past.keys, memory.keys], 2), torch.cat([past.values, memory.values], 2))
        x = x + self.dropout(self.self_attention(normed, memory, bias))
        x = x + self.dropout(self.cross_attention(self.cross_norm(x), cross))
        x = x + self.dropout(self.ff_out(self.dropout(F.relu(self.ff_in(self.ff_norm(x))))))
        return x, memory


class Generator(nn.Module):
    """log p(T | z) = sum over levels of log p(t_k | P(z), t_<k) (Eq. 10)."""

    def __init__(self, config: GeneratorConfig, quantizer: ResidualQuantizer | None = None) -> None:
        """`quantizer`: whose codebooks the head "codebooks" is tied to."""
        super().__init__()
        self.config = config
        if config.head == "table":
            self.tokens = nn.Embedding(config.vocabulary, config.d_model)  # tied: also the output head
        elif quantizer is None or not quantizer.config.labelled:
            raise GeniusError("a head tied to the codebooks needs a quantizer whose first code is the modality")
        else:
            self.codebook_head = CodebookHead(quantizer, config.d_model)
        self.prefix = nn.Linear(config.width, config.prefix_tokens * config.d_model)  # MLP of Eq. 9: one layer, as published
        self.prefix_norm = RMSNorm(config.d_model)
        self.position_bias = nn.Embedding(config.buckets, config.heads)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self.final_norm = RMSNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.register_load_state_dict_pre_hook(_rename_head)  # type: ignore[no-untyped-call]
        self._initialise()

    def _initialise(self) -> None:
        """T5's own initialisation."""
        config = self.config
        if config.head == "table":
            nn.init.normal_(self.tokens.weight, std=1.0)
        nn.init.normal_(self.position_bias.weight, std=config.d_model**-0.5)
        for block in self.blocks:
            assert isinstance(block, DecoderBlock)
            for attention in (block.self_attention, block.cross_attention):
                nn.init.normal_(attention.q.weight, std=(config.d_model * config.d_kv) ** -0.5)
                nn.init.normal_(attention.k.weight, std=config.d_model**-0.5)
                nn.init.normal_(attention.v.weight, std=config.d_model**-0.5)
                nn.init.normal_(attention.o.weight, std=(config.heads * config.d_kv) ** -0.5)
            nn.init.normal_(block.ff_in.weight, std=config.d_model**-0.5)
            nn.init.normal_(block.ff_out.weight, std=config.d_ff**-0.5)

    @torch.no_grad()
    def init_from_codebooks(self, codebooks: list[Tensor], scale: float) -> None:
        """Start each code's token at scale * W e / |e| with one random W, as published (scale 100 there)."""
        random = nn.Linear(self.config.width, self.config.d_model, bias=False, device=self.tokens.weight.device)
        rows = torch.cat([F.normalize(codebook.to(self.tokens.weight), dim=1) for codebook in codebooks])
        self.tokens.weight[SPECIALS:] = scale * random(rows)

    @property
    def device(self) -> torch.device:
        return self.prefix.weight.device

    # -- the pieces that search uses ---------------------------------------------------------------------------

    def prefix_memory(self, z: Tensor) -> Tensor:
        """P(z) of Eq. 9, through the published 0-layer encoder (norm and dropout): (B, prefix_tokens, d_model)."""
        prefix = self.prefix(z).unflatten(1, (self.config.prefix_tokens, self.config.d_model))
        return self.dropout(self.prefix_norm(self.dropout(prefix)))  # type: ignore[no-any-return]

    def cross_memory(self, z: Tensor) -> list[KeysValues]:
        """Cross-attention keys and values of every layer, once per query: (B, heads, prefix_tokens, d_kv)."""
        memory = self.prefix_memory(z)
        return [block.cross_attention.project(memory) for block in self.blocks]  # type: ignore[union-attr, operator]

    def bias(self, length: int, past: int = 0) -> Tensor:
        """Causal mask and relative positions for `length` new tokens after `past`: (1, heads, length, past + length)."""
        device = self.position_bias.weight.device
        query = torch.arange(past, past + length, device=device)[:, None]
        key = torch.arange(past + length, device=device)[None, :]
        distance = (query - key).clamp(min=0)
        buckets = self.config.buckets
        half = buckets // 2
        growth = torch.log(distance.clamp(min=1).float() / half) / math.log(self.config.max_distance / half)
        far = half + (growth * (buckets - half)).long()
        bucket = torch.where(distance < half, distance, far.clamp(max=buckets - 1))
        bias = self.position_bias(bucket).permute(2, 0, 1)[None]  # (1, heads, length, past + length)
        return bias.masked_fill(key > query, torch.finfo(bias.dtype).min)  # type: ignore[no-any-return]

    def inputs(self, codes: Tensor, first: int = 0) -> Tensor:
        """What the decoder reads before it generates the next code: the start token, then codes (B, l).

        Args:
            codes: (B, l) the codes so far.
            first: how many of these l + 1 inputs were read before and are left out.

        Returns:
            (B, l + 1 - first, d_model)
        """
        tokens: list[Tensor] = []
        if first == 0:
            start = self.tokens.weight[START] if self.config.head == "table" else self.codebook_head.start
            tokens.append(start.expand(codes.shape[0], -1))
        for level in range(max(first - 1, 0), codes.shape[1]):
            if self.config.head == "codebooks":
                tokens.append(self.codebook_head.token(level, codes[:, level], codes[:, 0]))
            else:
                tokens.append(self.tokens(codes[:, level] + self.config.offsets[level]))
        return torch.stack(tokens, 1)

    def hidden(self, x: Tensor, cross: list[KeysValues], past: list[KeysValues] | None = None) -> tuple[Tensor, list[KeysValues]]:
        """Run new inputs after those read before.

        Args:
            x: (rows, length, d_model) the new inputs.
            cross: from `cross_memory`, for each layer: a row for each row of `x`, or one for the beams of a query side by side.
            past: keys and values of the inputs read before, for each layer; None before the first.

        Returns:
            Final hidden states, of the shape of `x`, and the grown keys and values.
        """
        x = self.dropout(x)
        read = 0
        past_of_layer: Sequence[KeysValues | None] = [None] * len(self.blocks)
        if past is not None:
            read = past[0].keys.shape[2]
            past_of_layer = past
        bias = self.bias(x.shape[1], read).to(x.dtype)
        grown = []
        for i, block in enumerate(self.blocks):
            x, memory = block(x, cross[i], bias, past_of_layer[i])
            grown.append(memory)
        return self.dropout(self.final_norm(x)), grown

    def log_probs(self, level: int, hidden: Tensor, residual: Tensor | None = None, rows: ByModality | Tensor = ()) -> Tensor:
        """log p of every code of `level` from hidden states (R, d_model): (R, K_level).

        The head "codebooks" also needs `residual` (R, width), z minus the codes so far, and which rows are of which modality."""
        if self.config.head == "codebooks":
            assert residual is not None
            return self.codebook_head.logits(level, hidden, residual, rows).log_softmax(-1)
        scaled = hidden * self.config.d_model**-0.5  # T5 scales tied embeddings
        start = self.config.offsets[level]
        rows_of_own = slice(start, start + self.config.level_sizes[level])
        if self.config.normalizer == "vocabulary" and TRITON and scaled.is_cuda and not torch.is_grad_enabled():
            from genius.model.log_sum_exp import token_log_probs

            return token_log_probs(scaled, self.tokens.weight, rows_of_own)
        own: Tensor = (scaled @ self.tokens.weight[rows_of_own].T).float()
        if self.config.normalizer == "level":
            return own.log_softmax(-1)
        sums = [own.logsumexp(-1)]
        # slice by slice, each of which stays in the cache: all logits at once would be hundreds of megabytes
        for number, rows_of_level in enumerate(self.tokens.weight.split([SPECIALS, *self.config.level_sizes])):
            if number != level + 1:
                sums.append((scaled @ rows_of_level.T).float().logsumexp(-1))
        return own - torch.stack(sums).logsumexp(0)[..., None]

    def residual(self, z: Tensor, codes: Tensor) -> Tensor | None:
        """(R, width) z minus the codes so far (R, l), where the head reads it."""
        if self.config.head == "table":
            return None
        if not codes.shape[1]:
            return z
        return z - self.codebook_head.quantizer.decode_prefix(codes)

    # -- training ----------------------------------------------------------------------------------------------

    def states(self, z: Tensor, codes: Tensor) -> Tensor:
        """(B, M, d_model) before each code of IDs (B, M), which are given (teacher forcing)."""
        return self.hidden(self.inputs(codes[:, :-1]), self.cross_memory(z))[0]

    def code_log_probs(
        self, z: Tensor, codes: Tensor, rows: ByModality | None = None, states: Tensor | None = None
    ) -> list[Tensor]:
        """Teacher-forced log p over each level's codes: a list of (B, K_level), given `codes` (B, M) int64.

        `rows`: which rows are of which modality, where the caller knows (a sorted batch keeps fixed shapes); `states`, where
        it has them."""
        hidden = states
        if hidden is None:
            hidden = self.states(z, codes)
        residuals: list[Tensor] | list[None] = [None] * self.config.levels
        if self.config.head == "codebooks":
            residuals = self.codebook_head.residuals(z, codes)
            if rows is None:
                rows = by_modality(codes[:, 0])
        return [self.log_probs(level, hidden[:, level], residuals[level], rows or ()) for level in range(self.config.levels)]

    def forward(self, z: Tensor, codes: Tensor) -> Tensor:
        """log p(t_k | z, t_<k) of the given codes: (B, M). The loss of Eq. 10 is minus its mean over tokens."""
        log_p = self.code_log_probs(z, codes)
        return torch.stack([lp.gather(1, codes[:, i : i + 1])[:, 0] for i, lp in enumerate(log_p)], dim=1)


def _rename_head(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded: give those of old files today's names."""
    for name in [name for name in state if name.startswith(prefix) and current_name(name) != name]:
        state[current_name(name)] = state.pop(name)
