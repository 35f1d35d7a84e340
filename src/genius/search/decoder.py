"""The generator as search runs it: fused weights, keys and values by ancestry, the prefix once per query.

Computes exactly what `Generator.hidden` computes, in another order: norm weights are folded into the matrices
behind them, q, k and v are one product, and beams are rows of the *query's* attention to its prefix, so that
prefix keys and values are never copied per beam. Knows nothing of tries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.model.generator import Block, Generator


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


@dataclass(slots=True)
class _Layer:
    qkv: Tensor  # (d, 3 * inner), self-attention norm folded in
    out: Tensor  # (inner, d)
    cross_q: Tensor  # (d, inner), cross-attention norm folded in
    cross_kv: Tensor  # (d, 2 * inner)
    cross_out: Tensor  # (inner, d)
    ff_in: Tensor  # (d, d_ff), feed-forward norm folded in
    ff_out: Tensor  # (d_ff, d)


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
        self.layers = [self._fuse(block, place) for block in generator.blocks if isinstance(block, Block)]

    @staticmethod
    def _fuse(block: Block, place: Callable[[Tensor], Tensor]) -> _Layer:
        own, cross = block.self_attention, block.cross_attention
        qkv = torch.cat([own.q.weight, own.k.weight, own.v.weight]).detach()  # (3 * inner, d)
        return _Layer(
            qkv=place((qkv * block.self_norm.weight.detach()).T),
            out=place(own.o.weight.T),
            cross_q=place((cross.q.weight.detach() * block.cross_norm.weight.detach()).T),
            cross_kv=place(torch.cat([cross.k.weight, cross.v.weight]).detach().T),
            cross_out=place(cross.o.weight.T),
            ff_in=place((block.ff_in.weight.detach() * block.ff_norm.weight.detach()).T),
            ff_out=place(block.ff_out.weight.T),
        )

    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps).to(x.dtype)

    def start(self, z: Tensor) -> Memory:
        """Prefix keys and values of every layer, once per query (Eq. 9)."""
        queries, tokens, width = z.shape[0], self.config.prefix_tokens, self.config.d_model
        prefix = torch.addmm(self.prefix_bias, z.to(self.dtype), self.prefix_weight.T).view(queries * tokens, width)
        prefix = self._norm(prefix) * self.prefix_norm
        cross = []
        for layer in self.layers:
            both = (prefix @ layer.cross_kv).view(queries, tokens, 2, self.heads, -1)
            cross.append((both[:, :, 0].transpose(1, 2).contiguous(), both[:, :, 1].transpose(1, 2).contiguous()))
        return Memory(cross, [])

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
            if done + length > 1:
                mixed = F.scaled_dot_product_attention(
                    q,
                    both[:, :, 0].transpose(1, 2),
                    both[:, :, 1].transpose(1, 2),
                    attn_mask=bias.expand(rows, -1, -1, -1),
                    scale=1.0,
                )
            else:
                mixed = both[:, :, 1].transpose(1, 2)  # one token attends to itself
            x = torch.addmm(x, mixed.transpose(1, 2).reshape(rows * length, self.inner), layer.out)
            q = (self._norm(x) @ layer.cross_q).view(queries, beams * length, self.heads, d_kv).transpose(1, 2)
            mixed = F.scaled_dot_product_attention(q, *memory.cross[i], scale=1.0)
            x = torch.addmm(x, mixed.transpose(1, 2).reshape(rows * length, self.inner), layer.cross_out)
            x = torch.addmm(x, torch.relu_(self._norm(x) @ layer.ff_in), layer.ff_out)
        return self._norm(x).view(queries, beams, length, -1), Memory(memory.cross, grown)

    # -- the head ----------------------------------------------------------------------------------------------

    def level_head(self, level: int) -> Tensor:
        """(K_level, d) rows of the output head."""
        start = self.config.offsets[level]
        return self.head[start : start + self.config.level_sizes[level]]

    def level_logits(self, hidden: Tensor, level: int) -> Tensor:
        """(R, d) -> (R, K_level) float32."""
        return (hidden @ self.level_head(level).T).float()

    def log_normalizer(self, hidden: Tensor, chunk: int = 4096) -> Tensor:
        """log of the sum of exp over the whole table, (R, d) -> (R,) float32: the published normaliser."""
        parts = [(hidden @ self.head[i : i + chunk].T).float().logsumexp(1) for i in range(0, self.config.vocabulary, chunk)]
        return torch.stack(parts).logsumexp(0)

    def token(self, codes: Tensor, level: int) -> Tensor:
        return codes + self.config.offsets[level]
