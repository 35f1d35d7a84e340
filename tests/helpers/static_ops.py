"""The steps between matrix products of the CUDA search, in plain torch: what `kernels.py` must agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from genius.search.cuda_search import Looked, Ranges
from genius.search.forest import ragged, widen


class TorchOps:
    """Any device; used to test the static search where there is no GPU."""

    def add_norm(self, x: Tensor, y: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
        """x (R, d) float32 += y, in place; returns x / rms(x)."""
        if y is not None:
            x += y.float()
        return (x * torch.rsqrt(x.square().mean(1, keepdim=True) + eps)).to(dtype)

    def self_attention(self, cache: Tensor, ancestors: Tensor, bias: Tensor, first: int, length: int, heads: int) -> Tensor:
        """cache (slots, 3 * inner) holds q, k, v of every token; row r's past is ancestors[r], its own `length` tokens
        start at slot first + r * length. bias (heads, M) by distance. -> (R * length, inner)."""
        rows, past = ancestors.shape
        inner = cache.shape[1] // 3
        own = first + torch.arange(rows * length, device=cache.device).view(rows, length)
        slots = torch.cat([ancestors.long(), own], 1)  # (R, past + length)
        q = cache[own, :inner].float().unflatten(2, (heads, -1)).transpose(1, 2)
        k = cache[slots, inner : 2 * inner].float().unflatten(2, (heads, -1)).transpose(1, 2)
        v = cache[slots, 2 * inner :].float().unflatten(2, (heads, -1)).transpose(1, 2)
        keys = past + length
        distance = (past + torch.arange(length, device=cache.device))[:, None] - torch.arange(keys, device=cache.device)
        scores = q @ k.transpose(2, 3) + bias[:, distance.clamp(min=0)]
        weights: Tensor = scores.masked_fill(distance < 0, -torch.inf).softmax(3)
        mixed: Tensor = (weights @ v).transpose(1, 2).reshape(rows * length, inner)
        return mixed.to(cache.dtype)

    def cross_attention(self, q: Tensor, kv: Tensor, queries: int, heads: int) -> Tensor:
        """q (Q * n, inner), kv (Q * prefix, 2 * inner) -> (Q * n, inner)."""
        inner = q.shape[1]
        split = q.float().view(queries, -1, heads, inner // heads).transpose(1, 2)
        both = kv.float().view(queries, -1, 2, heads, inner // heads)
        k, v = both[:, :, 0].transpose(1, 2), both[:, :, 1].transpose(1, 2)
        return ((split @ k.transpose(2, 3)).softmax(3) @ v).transpose(1, 2).reshape(q.shape).to(q.dtype)

    def linear_relu(self, h: Tensor, weight: Tensor, zero: Tensor) -> Tensor:
        return torch.relu(h @ weight)

    def logits(self, h: Tensor, head: Tensor) -> Tensor:
        return (h @ head.T).float()

    def log_normalizer(self, h: Tensor, head: Tensor) -> Tensor:
        """(R, d), (V, d) -> (R,) log of the sum of exp of all logits."""
        return (h @ head.T).float().logsumexp(1)

    def pick(self, h: Tensor, head: Tensor, token: Tensor) -> Tensor:
        """Logit of one token per row: (R,)."""
        return (h.float() * head[token].float()).sum(1)

    def expand(self, logits: Tensor, base: Tensor, lo: Tensor, hi: Tensor, codes: Tensor) -> Tensor:
        """(R, K) logits -> the same plus base (R,) at the codes found in codes[lo:hi], -inf elsewhere."""
        row, place = ragged(hi - lo)
        code = widen(codes[lo[row] + place])
        out = torch.full_like(logits, -torch.inf)
        out[row, code] = (logits + base[:, None])[row, code]
        return out

    def find(
        self, codes: Tensor, lo: Tensor, hi: Tensor, parent: Tensor, code: Tensor, child: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Range of child `code` of each `parent` (a row of lo, hi; negative: none) in the space of the next level."""
        shape = parent.shape
        parent, code = parent.flatten(), code.flatten()
        real = parent >= 0
        first, last = torch.where(real, lo[parent.clamp(min=0)], 0), torch.where(real, hi[parent.clamp(min=0)], 0)
        row, place = ragged(last - first)
        same = widen(codes[first[row] + place]) == code[row]
        before = torch.zeros_like(first).index_add(0, row, (widen(codes[first[row] + place]) < code[row]).long())
        left = first + before
        right = left + torch.zeros_like(first).index_add(0, row, same.long())
        if child is not None:
            left, right = child[left].long(), child[right].long()
        return torch.where(real, left, 0).view(shape), torch.where(real, right, 0).view(shape)

    def dots(self, query: Tensor, rows: Tensor, vectors: Tensor, scales: Tensor | None) -> Tensor:
        """query (Q, D), rows (Q, C), -1: none -> (Q, C) dot products, -inf where there is none."""
        at = rows.clamp(min=0)
        values = (vectors[at].float() * query[:, None]).sum(2)
        values = values if scales is None else values * scales[at]
        return values.masked_fill(rows < 0, -torch.inf)

    def look_up(self, ranges: Ranges, looked: Looked, tables: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        """Every place of a query's stretches, laid out in slots: (Q, slots) cosines by codes, -inf in empty slots, and places."""
        slot = torch.arange(slots, dtype=torch.int32, device=tables.device).expand(len(tables), slots).contiguous()
        which = torch.searchsorted(ranges.ends, slot, right=True).clamp(max=ranges.ends.shape[1] - 1)
        inside = slot < ranges.ends[:, -1:]
        place = torch.where(inside, ranges.begins.gather(1, which) + slot, 0)
        place = place if looked.positions is None else torch.where(inside, looked.positions[place.long()], 0)
        total, block = ranges.shared.gather(1, which), ranges.block.gather(1, which).long()
        for level, codes in enumerate(looked.codes):
            total = total + tables.gather(1, block + looked.starts[level] + widen(codes[place.long()])).float()
        total = total * looked.inverse[place.long()]
        return total.masked_fill(~inside, -torch.inf), place
