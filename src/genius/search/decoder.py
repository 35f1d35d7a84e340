"""The generator as search runs it: fused weights, keys and values by ancestry, the prefix once per query.

Computes exactly what `Generator.hidden` computes, in another order: norm weights are folded into the matrices
behind them, q, k and v are one product, and beams are rows of the *query's* attention to its prefix, so that
prefix keys and values are never copied per beam. Knows nothing of tries.

In int8 (CPU) the products are approximate, everything between them is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.model.generator import Block, Generator
from genius.search.int8 import Int8Matrix


@dataclass(slots=True)
class Memory:
    """Attention memory of the beams of a batch."""

    cross: list[tuple[Tensor, Tensor]]  # per layer: keys, values (Q, heads, prefix, d_kv), shared by a query's beams
    past: list[Tensor]  # per layer: (Q, n, t, 2 * inner) keys and values of the t tokens so far

    def select(self, queries: Tensor) -> Memory:
        """Keep some queries."""
        return Memory([(k[queries], v[queries]) for k, v in self.cross], [p[queries] for p in self.past])

    def follow(self, parent: Tensor) -> Memory:
        """Beams of the next level (Q, n') continue the beams `parent` of this one."""
        queries = torch.arange(parent.shape[0], device=parent.device)[:, None]
        return Memory(self.cross, [p[queries, parent] for p in self.past])


M = TypeVar("M", Tensor, Int8Matrix)


@dataclass(slots=True)
class Layer(Generic[M]):
    """The matrices of one block."""

    qkv: M  # (d, 3 * inner), self-attention norm folded in
    out: M  # (inner, d)
    cross_q: M  # (d, inner), cross-attention norm folded in
    cross_kv: M  # (d, 2 * inner)
    cross_out: M  # (inner, d)
    ff_in: M  # (d, d_ff), feed-forward norm folded in
    ff_out: M  # (d_ff, d)


def _fuse(block: Block, place: Callable[[Tensor], M]) -> Layer[M]:
    own, cross = block.self_attention, block.cross_attention
    qkv = torch.cat([own.q.weight, own.k.weight, own.v.weight]).detach()  # (3 * inner, d)
    return Layer(
        qkv=place((qkv * block.self_norm.weight.detach()).T),
        out=place(own.o.weight.detach().T),
        cross_q=place((cross.q.weight.detach() * block.cross_norm.weight.detach()).T),
        cross_kv=place(torch.cat([cross.k.weight, cross.v.weight]).detach().T),
        cross_out=place(cross.o.weight.detach().T),
        ff_in=place((block.ff_in.weight.detach() * block.ff_norm.weight.detach()).T),
        ff_out=place(block.ff_out.weight.detach().T),
    )


class Decoder:
    """Fused copy of a `Generator` for inference, on one device in one dtype."""

    def __init__(self, generator: Generator, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.config, self.device, self.dtype = generator.config, device, dtype
        self.heads, self.inner = self.config.heads, self.config.heads * self.config.d_kv
        self.eps = generator.final_norm.eps

        def place(weight: Tensor) -> Tensor:
            return weight.detach().to(device, dtype).contiguous()

        self.tokens = place(generator.tokens.weight)  # (V, d) inputs
        # T5 scales tied embeddings; the final norm's weight goes into the head as well
        self.head = place(
            generator.tokens.weight.detach().float() * generator.final_norm.weight.detach().float() * self.config.d_model**-0.5
        )
        self.prefix_weight, self.prefix_bias = place(generator.prefix.weight), place(generator.prefix.bias)
        self.prefix_norm = place(generator.prefix_norm.weight)
        # additive position bias (1, heads, M, M), causal: row t serves the t-th token of any run
        self.bias = place(generator.bias(self.config.levels).float().clamp(min=-1e30))
        self.layers = [_fuse(block, place) for block in generator.blocks if isinstance(block, Block)]
        # logits are at most |h| |w|: where that cannot overflow, exp needs no shift
        self.calm = float(self.head.float().norm(dim=1).max()) * self.config.d_model**0.5 < 80
        self.pieces = 1024 if device.type == "cpu" else 8192  # columns of the head at a time: on a CPU they stay in cache

    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps).to(x.dtype)

    def start(self, z: Tensor) -> Memory:
        """Prefix keys and values of every layer, once per query (Eq. 9)."""
        queries, tokens, width = z.shape[0], self.config.prefix_tokens, self.config.d_model
        prefix = self._norm(self._project(z.to(self.dtype)).view(queries * tokens, width)) * self.prefix_norm
        cross = []
        for layer in self.layers:
            both = (prefix @ layer.cross_kv).view(queries, tokens, 2, self.heads, -1)
            cross.append((both[:, :, 0].transpose(1, 2).contiguous(), both[:, :, 1].transpose(1, 2).contiguous()))
        return Memory(cross, [])

    def _project(self, z: Tensor) -> Tensor:
        return torch.addmm(self.prefix_bias, z, self.prefix_weight.T)

    def run(self, tokens: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """New tokens (Q, n, L) of every beam, after the past -> normed hidden states (Q, n, L, d), grown memory."""
        queries, beams, length = tokens.shape
        rows, d_kv = queries * beams, self.config.d_kv
        done = memory.past[0].shape[2] if memory.past else 0
        bias = self.bias[:, :, done : done + length, : done + length]
        x = F.embedding(tokens.reshape(-1), self.tokens)  # (rows * L, d)
        grown = []
        for i, layer in enumerate(self.layers):
            qkv = self._norm(x) @ layer.qkv
            q = qkv[:, : self.inner].view(rows, length, self.heads, d_kv).transpose(1, 2)
            new = qkv[:, self.inner :].view(queries, beams, length, 2 * self.inner)
            whole = torch.cat([memory.past[i], new], 2) if memory.past else new
            grown.append(whole)
            both = whole.reshape(rows, done + length, 2, self.heads, d_kv)
            k, v = both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
            if done + length > 1:
                v = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(rows, -1, -1, -1), scale=1.0)
            x = _plus(x, v.transpose(1, 2).reshape(rows * length, self.inner), layer.out)  # a lone token attends to itself
            q = (self._norm(x) @ layer.cross_q).view(queries, beams * length, self.heads, d_kv).transpose(1, 2)
            v = F.scaled_dot_product_attention(q, *memory.cross[i], scale=1.0)
            x = _plus(x, v.transpose(1, 2).reshape(rows * length, self.inner), layer.cross_out)
            x = _plus(x, torch.relu_(self._norm(x) @ layer.ff_in), layer.ff_out)
        return self._norm(x).view(queries, beams, length, -1), Memory(memory.cross, grown)

    # -- the head ----------------------------------------------------------------------------------------------

    def level_head(self, level: int) -> Tensor:
        """(K_level, d) rows of the output head."""
        start = self.config.offsets[level]
        return self.head[start : start + self.config.level_sizes[level]]

    def level_logits(self, hidden: Tensor, level: int) -> Tensor:
        """(R, d) -> (R, K_level) float32."""
        return (hidden @ self.level_head(level).T).float()

    def log_normalizer(self, hidden: Tensor, level: int = -1, logits: Tensor | None = None) -> Tensor:
        """log of the sum of exp over the whole table, (R, d) -> (R,) float32: the published normaliser.

        `logits` (R, K) of one `level` are not computed again.
        """
        if logits is None:
            spans = [(0, self.config.vocabulary)]
        else:
            start = self.config.offsets[level]
            spans = [(0, start), (start + logits.shape[1], self.config.vocabulary)]
        pieces = [(i, min(i + self.pieces, end)) for start, end in spans for i in range(start, end, self.pieces)]
        if not self.calm:
            parts = [(hidden @ self.head[i:j].T).float().logsumexp(1) for i, j in pieces]
            return torch.stack(parts if logits is None else [*parts, logits.logsumexp(1)]).logsumexp(0)
        rows = 512 if self.device.type == "cpu" else len(hidden)
        mass = [self._mass(part, pieces) for part in hidden.split(rows)] if len(hidden) else [hidden.new_zeros(0)]
        total = torch.cat(mass)
        return (total if logits is None else total + logits.exp().sum(1)).log()

    def _mass(self, hidden: Tensor, pieces: list[tuple[int, int]]) -> Tensor:
        total = torch.zeros(len(hidden), device=self.device)
        for i, j in pieces:
            total += (hidden @ self.head[i:j].T).float().exp_().sum(1)
        return total

    def token(self, codes: Tensor, level: int) -> Tensor:
        return codes + self.config.offsets[level]


class Int8Decoder(Decoder):
    """The same with int8 products (CPU): for beams that only pick candidates."""

    def __init__(self, generator: Generator) -> None:
        super().__init__(generator, torch.device("cpu"))
        self.layers = [_fuse(block, Int8Matrix) for block in generator.blocks if isinstance(block, Block)]  # type: ignore[arg-type]
        self.prefix_matrix = Int8Matrix(self.prefix_weight.T)
        self.specials = self.head[: self.config.offsets[0]].T.contiguous()
        self.level_matrices = [Int8Matrix(self.level_head(level).T) for level in range(self.config.levels)]

    def _project(self, z: Tensor) -> Tensor:
        return (z @ self.prefix_matrix).add_(self.prefix_bias)

    def level_logits(self, hidden: Tensor, level: int) -> Tensor:
        return hidden @ self.level_matrices[level]

    def log_normalizer(self, hidden: Tensor, level: int = -1, logits: Tensor | None = None) -> Tensor:
        parts = [] if logits is None else [logits]
        others = [i for i in range(self.config.levels) if logits is None or i != level]
        if self.calm:
            total = (hidden @ self.specials).exp_().sum(1)
            total += sum((part.exp().sum(1) for part in parts), torch.zeros_like(total))
            for i in others:
                total += (hidden @ self.level_matrices[i]).exp_().sum(1)
            return total.log()
        parts = [
            part.logsumexp(1) for part in [*parts, hidden @ self.specials, *(hidden @ self.level_matrices[i] for i in others)]
        ]
        return torch.stack(parts).logsumexp(0)


def _plus(x: Tensor, y: Tensor, weight: Tensor | Int8Matrix) -> Tensor:
    return torch.addmm(x, y, weight) if isinstance(weight, Tensor) else (y @ weight).add_(x)


_fused: WeakKeyDictionary[Generator, tuple[object, Decoder]] = WeakKeyDictionary()


def decoder_of(generator: Generator, device: torch.device) -> Decoder:
    """The float32 decoder of a generator, fused again only when a weight has changed or moved."""
    try:
        state: object = (device, tuple((w.data_ptr(), w._version) for w in generator.parameters()))
    except RuntimeError:  # inference tensors keep no version
        return Decoder(generator, device)
    known = _fused.get(generator)
    if known is None or known[0] != state:
        known = (state, Decoder(generator, device))
        _fused[generator] = known
    return known[1]
