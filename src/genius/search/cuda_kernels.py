"""Triton kernels of the CUDA search: the steps between matrix products, one kernel each. Imported on CUDA only.

Every kernel has a twin in `tests/helpers/static_ops.py` (plain torch, the truth it is tested against). Shapes: R rows = queries x
beams, L tokens a row, d model width, K codes of a level, V rows of the token table.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from genius.search.cuda_search import Looked, Ranges


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(x, y, h, d, eps, HAS_Y: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < d
    value = tl.load(x + row * d + at, mask=inside, other=0.0)
    if HAS_Y:
        value += tl.load(y + row * d + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(x + row * d + at, value, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / d + eps)
    tl.store(h + row * d + at, (value * scale).to(h.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _self_attention(  # type: ignore[no-untyped-def]
    cache, ancestors, bias, out, first, stride, inner, levels,
    L: tl.constexpr, PAST: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    j = tl.arange(0, KEYS)
    c = tl.arange(0, WIDTH)
    own = first + row * L
    slot = tl.load(ancestors + row * PAST + j, mask=j < PAST, other=0).to(tl.int64)
    slot = tl.where(j < PAST, slot, own + j - PAST)
    there = j < PAST + L
    q = tl.load(cache + (own + i)[:, None] * stride + head * WIDTH + c[None, :], mask=(i < L)[:, None], other=0.0)
    at = cache + slot[:, None] * stride + inner + head * WIDTH + c[None, :]
    k = tl.load(at, mask=there[:, None], other=0.0)
    v = tl.load(at + inner, mask=there[:, None], other=0.0)
    distance = (PAST + i)[:, None] - j[None, :]
    visible = (distance >= 0) & there[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    scores += tl.load(bias + head * levels + distance, mask=visible & (distance < levels), other=0.0)
    scores = tl.where(visible, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    weights = weights / tl.sum(weights, 1)[:, None]
    mixed = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    place = out + (row * L + i)[:, None] * inner + head * WIDTH + c[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), mask=(i < L)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _cross_attention(  # type: ignore[no-untyped-def]
    q_ptr, kv, out, rows, tokens, inner,
    BLOCK: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    j = tl.arange(0, KEYS)
    c = tl.arange(0, WIDTH)
    place = (query * rows + i)[:, None] * inner + head * WIDTH + c[None, :]
    q = tl.load(q_ptr + place, mask=(i < rows)[:, None], other=0.0)
    at = kv + (query * tokens + j)[:, None] * (2 * inner) + head * WIDTH + c[None, :]
    k = tl.load(at, mask=(j < tokens)[:, None], other=0.0)
    v = tl.load(at + inner, mask=(j < tokens)[:, None], other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    scores = tl.where((j < tokens)[None, :], scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    weights = weights / tl.sum(weights, 1)[:, None]
    mixed = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=(i < rows)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _log_normalizer(  # type: ignore[no-untyped-def]
    hidden, head, out, rows, vocabulary, per_part, d,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A matrix product whose result is only ever summed: log of the sum of exp over a part of the table."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    part = tl.program_id(1)
    c = tl.arange(0, BK)
    inside = (i < rows)[:, None]
    a_at = hidden + i.to(tl.int64)[:, None] * d + c[None, :]
    highest = tl.full((BM,), float("-inf"), tl.float32)
    mass = tl.zeros((BM,), tl.float32)
    start = part * per_part
    end = tl.minimum(start + per_part, vocabulary)
    for first in range(start, end, BN):
        n = first + tl.arange(0, BN)
        b_at = head + n.to(tl.int64)[None, :] * d + c[:, None]
        logits = tl.zeros((BM, BN), tl.float32)
        for at in range(0, d, BK):
            a = tl.load(a_at + at, mask=inside, other=0.0)
            b = tl.load(b_at + at, mask=(n < end)[None, :], other=0.0)
            logits = tl.dot(a, b, logits, input_precision=PRECISION)
        logits = tl.where((n < end)[None, :], logits * 1.4426950408889634, float("-inf"))
        new = tl.maximum(highest, tl.max(logits, 1))
        mass = mass * tl.exp2(highest - new) + tl.sum(tl.exp2(logits - new[:, None]), 1)
        highest = new
    tl.store(out + part.to(tl.int64) * rows + i, (highest + tl.log2(mass)) * 0.6931471805599453, mask=i < rows)


@triton.jit  # type: ignore[untyped-decorator]
def _pick(hidden, head, token, out, d, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    which = tl.load(token + row)
    a = tl.load(hidden + row * d + c, mask=c < d, other=0.0).to(tl.float32)
    b = tl.load(head + which * d + c, mask=c < d, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(a * b, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _expand(logits, base, lo, hi, codes, stride, out, size, MASK: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Scatter the logits of a beam's true children into a row of -inf: every child, whatever their number."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    for first in range(0, size, BLOCK):
        tl.store(out + row * size + first + at, float("-inf"), mask=first + at < size)
    tl.debug_barrier()
    worth = tl.load(base + row)
    start = tl.load(lo + row)
    end = tl.load(hi + row)
    for first in range(start, end, BLOCK):
        there = first + at < end
        code = tl.load(codes + (first + at).to(tl.int64) * stride, mask=there, other=0).to(tl.int32) & MASK
        value = tl.load(logits + row * size + code, mask=there, other=0.0)
        tl.store(out + row * size + code, value + worth, mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _find(  # type: ignore[no-untyped-def]
    codes, stride, lo, hi, parent, code, child, out_lo, out_hi, count,
    EXPLICIT: tl.constexpr, MASK: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Binary search for the range of a child; a negative parent gives an empty range."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    row = tl.load(parent + i, mask=inside, other=-1)
    real = inside & (row >= 0)
    want = tl.load(code + i, mask=real, other=0).to(tl.int32)
    low = tl.load(lo + row, mask=real, other=0)
    high = tl.load(hi + row, mask=real, other=0)
    a = low
    b = high
    for _ in range(STEPS):
        go = a < b
        middle = (a + b) // 2
        value = tl.load(codes + middle * stride, mask=real & go, other=0).to(tl.int32) & MASK
        less = value < want
        a = tl.where(go & less, middle + 1, a)
        b = tl.where(go & (less == 0), middle, b)
    if EXPLICIT:
        left = tl.load(child + a, mask=real, other=0).to(tl.int64)
        right = tl.load(child + a + 1, mask=real, other=0).to(tl.int64)
    else:
        left = a
        b = high
        for _ in range(STEPS):
            go = a < b
            middle = (a + b) // 2
            value = tl.load(codes + middle * stride, mask=real & go, other=0).to(tl.int32) & MASK
            less = value <= want
            a = tl.where(go & less, middle + 1, a)
            b = tl.where(go & (less == 0), middle, b)
        right = a
    tl.store(out_lo + i, tl.where(real, left, 0), mask=inside)
    tl.store(out_hi + i, tl.where(real, right, 0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _dots(  # type: ignore[no-untyped-def]
    query, rows, vectors, scales, out, count, d,
    SCALED: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    q = tl.program_id(0).to(tl.int64)
    s = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = s < count
    row = tl.load(rows + q * count + s, mask=inside, other=-1)
    real = row >= 0
    total = tl.zeros((BLOCK,), tl.float32)
    c = tl.arange(0, WIDTH)
    for at in range(0, d, WIDTH):
        there = at + c < d
        a = tl.load(query + q * d + at + c, mask=there, other=0.0)
        b = tl.load(vectors + row[:, None] * d + (at + c)[None, :], mask=real[:, None] & there[None, :], other=0.0)
        total += tl.sum(a[None, :] * b.to(tl.float32), 1)
    if SCALED:
        total *= tl.load(scales + row, mask=real, other=0.0)
    tl.store(out + q * count + s, tl.where(real, total, float("-inf")), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _look_up(  # type: ignore[no-untyped-def]
    ends, begins, shared, block, tables, codes, inverse, starts, positions, out, places, cells, slots, width, stride,
    LEVELS: tl.constexpr, STEPS: tl.constexpr, MASKED: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Which stretch a slot is of, by binary search; then its codes' numbers, summed, times one over its length."""
    q = tl.program_id(1).to(tl.int64)
    last = tl.load(ends + q * cells + cells - 1)
    for first in range(0, SPAN, BLOCK):
        slot = tl.program_id(0) * SPAN + first + tl.arange(0, BLOCK)
        inside = slot < tl.minimum(last, slots)
        a = tl.zeros((BLOCK,), tl.int32)
        b = tl.full((BLOCK,), 0, tl.int32) + (cells - 1)
        for _ in range(STEPS):
            middle = (a + b) // 2
            behind = tl.load(ends + q * cells + middle, mask=inside, other=0) <= slot
            a = tl.where(behind & (a < b), middle + 1, a)
            b = tl.where(behind, b, middle)
        place = tl.load(begins + q * cells + a, mask=inside, other=0) + slot
        if MASKED:
            place = tl.load(positions + place, mask=inside, other=0)
        total = tl.load(shared + q * cells + a, mask=inside, other=0.0)
        table = tables + q * width + tl.load(block + q * cells + a, mask=inside, other=0)
        for level in tl.static_range(LEVELS):
            code = tl.load(codes + level * stride + place, mask=inside, other=0).to(tl.int32) & 0xFFFF
            total += tl.load(table + tl.load(starts + level) + code, mask=inside, other=0.0).to(tl.float32)
        total *= tl.load(inverse + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + q * slots + slot, tl.where(inside, total, float("-inf")), mask=slot < slots)
        tl.store(places + q * slots + slot, tl.where(inside, place, 0), mask=slot < slots)


def _power(n: int, least: int = 16) -> int:
    return max(least, 1 << (n - 1).bit_length())


def _precision(tensor: Tensor) -> str:
    return "ieee" if tensor.dtype == torch.float32 else "tf32"  # only float32 operands look at it


def _bits(codes: Tensor) -> int:
    return {torch.uint8: 0xFF, torch.int16: 0xFFFF}.get(codes.dtype, 0x7FFFFFFF)


class TritonOps:
    """The same methods as `static_ops.TorchOps`, on CUDA tensors."""

    # tiles of the normaliser: rows, columns, depth, warps, stages (the fastest of those tried on an H200)
    small_tile = (64, 64, 64, 4, 5)  # up to 512 rows
    large_tile = (256, 128, 64, 8, 3)
    look_up_tile = (65536, 4096, 32)  # slots of a program, of a step; warps: one program a query, whose table stays in the cache

    def __init__(self) -> None:
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 1

    def add_norm(self, x: Tensor, y: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
        rows, d = x.shape
        out = torch.empty(rows, d, dtype=dtype, device=x.device)
        _add_norm[(rows,)](x, x if y is None else y, out, d, eps, y is not None, _power(d), num_warps=2)
        return out

    def self_attention(self, cache: Tensor, ancestors: Tensor, bias: Tensor, first: int, length: int, heads: int) -> Tensor:
        rows, past = ancestors.shape
        inner = cache.shape[1] // 3
        out = torch.empty(rows * length, inner, dtype=cache.dtype, device=cache.device)
        grid = (rows, heads)
        _self_attention[grid](
            cache, ancestors, bias, out, first, cache.stride(0), inner, bias.shape[1],
            length, past, _power(past + length), _power(length), inner // heads, _precision(cache), num_warps=1,
        )  # fmt: skip
        return out

    def cross_attention(self, q: Tensor, kv: Tensor, queries: int, heads: int) -> Tensor:
        inner, rows, tokens = q.shape[1], q.shape[0] // queries, kv.shape[0] // queries
        out = torch.empty_like(q)
        block = min(64, _power(rows))
        grid = (queries, heads, triton.cdiv(rows, block))
        _cross_attention[grid](
            q,
            kv,
            out,
            rows,
            tokens,
            inner,
            block,
            _power(tokens),
            inner // heads,
            _precision(q),
            num_warps=2 if block < 64 else 4,
        )
        return out

    def linear_relu(self, h: Tensor, weight: Tensor, zero: Tensor) -> Tensor:
        return torch._addmm_activation(zero, h, weight) if h.dtype != torch.float32 else torch.relu_(h @ weight)

    def logits(self, h: Tensor, head: Tensor) -> Tensor:
        if h.dtype == torch.float32:
            return h @ head.T
        return torch.mm(h, head.T, out_dtype=torch.float32)

    def log_normalizer(self, h: Tensor, head: Tensor) -> Tensor:
        rows, d = h.shape
        h = h.contiguous()  # the kernels count on it
        if h.dtype == torch.float32:  # the library's float32 product is faster than Triton's, even with the logits written out
            parts = [(h @ chunk.T).logsumexp(1) for chunk in head.split(8192)]
            return torch.stack(parts).logsumexp(0)
        bm, bn, bk, warps, stages = self.small_tile if rows <= 512 else self.large_tile
        blocks, columns = triton.cdiv(rows, bm), triton.cdiv(head.shape[0], bn)
        cuts = max(1, min(columns, triton.cdiv(4 * self.processors, blocks)))  # enough work for every multiprocessor
        per_part = triton.cdiv(columns, cuts) * bn
        cuts = triton.cdiv(head.shape[0], per_part)
        out = torch.empty(cuts, rows, device=h.device)
        _log_normalizer[(blocks, cuts)](
            h, head, out, rows, head.shape[0], per_part, d, bm, bn, bk, _precision(h), num_warps=warps, num_stages=stages
        )
        return out[0] if cuts == 1 else out.logsumexp(0)

    def pick(self, h: Tensor, head: Tensor, token: Tensor) -> Tensor:
        h = h.contiguous()
        out = torch.empty(len(h), device=h.device)
        _pick[(len(h),)](h, head, token, out, h.shape[1], _power(h.shape[1]), num_warps=1)
        return out

    def expand(self, logits: Tensor, base: Tensor, lo: Tensor, hi: Tensor, codes: Tensor) -> Tensor:
        out = torch.empty_like(logits)
        rows, size = logits.shape
        _expand[(rows,)](logits, base, lo, hi, codes, codes.stride(0), out, size, _bits(codes), 1024, num_warps=4)
        return out

    def find(
        self, codes: Tensor, lo: Tensor, hi: Tensor, parent: Tensor, code: Tensor, child: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        left, right = torch.empty_like(parent), torch.empty_like(parent)
        count = parent.numel()
        _find[(triton.cdiv(count, 128),)](
            codes, codes.stride(0), lo, hi, parent, code, codes if child is None else child, left, right, count,
            child is not None, _bits(codes), max(len(codes).bit_length(), 1), 128, num_warps=4,
        )  # fmt: skip
        return left, right

    def dots(self, query: Tensor, rows: Tensor, vectors: Tensor, scales: Tensor | None) -> Tensor:
        queries, count = rows.shape
        out = torch.empty(queries, count, device=rows.device)
        grid = (queries, triton.cdiv(count, 32))
        _dots[grid](
            query, rows, vectors, vectors if scales is None else scales, out, count, query.shape[1],
            scales is not None, 32, 128, num_warps=4,
        )  # fmt: skip
        return out

    def look_up(self, ranges: Ranges, looked: Looked, tables: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        queries, cells = ranges.ends.shape
        out = torch.empty(queries, slots, device=tables.device)
        places = torch.empty(queries, slots, dtype=torch.int32, device=tables.device)
        span, block, warps = self.look_up_tile
        span = min(span, max(_power(slots), block))
        positions = looked.positions
        _look_up[(triton.cdiv(slots, span), queries)](
            ranges.ends, ranges.begins, ranges.shared, ranges.block, tables, looked.codes, looked.inverse, looked.starts,
            ranges.ends if positions is None else positions, out, places, cells, slots, tables.shape[1], looked.codes.stride(0),
            len(looked.codes), cells.bit_length(), positions is not None, span, block, num_warps=warps,
        )  # fmt: skip
        return out, places
