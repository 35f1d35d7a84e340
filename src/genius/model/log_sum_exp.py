"""log sum exp of the logits of a whole vocabulary by one Triton kernel, which writes no logits. Imported on CUDA only.

The normalizer of log-probabilities over all tokens. Products of halves are summed in float32. Knows tensors; nothing of codes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from genius.model.cuda import WIDE_SUMS

ROWS = 128  # of states in a tile
FEW_ROWS = 64  # likewise, where there are no more
TOKENS = 128  # in a tile
DEPTH = 64  # numbers of states and tokens that are multiplied at a time; it divides their width
WARPS = 8
STAGES = 3
PROGRAMS = 264  # twice the multiprocessors of a large GPU: fewer rows share the vocabulary among more programs
LOGITS = 1 << 27  # that are held at a time where torch multiplies, in float32: half a gigabyte


@triton.jit  # type: ignore[untyped-decorator]
def _log_sum_exp(  # type: ignore[no-untyped-def]
    states, tokens, out, rows, vocabulary, tiles,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """log sum exp of the logits of some rows over some tiles of tokens, by a running maximum and the sum relative to it."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    known = row[:, None] < rows
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for tile in range(part * tiles, part * tiles + tiles):
        token = tile * TOKENS + tl.arange(0, TOKENS)
        exists = token[None, :] < vocabulary
        products = tl.zeros((ROWS, TOKENS), tl.float32)
        for first in range(0, WIDTH, DEPTH):
            at = first + tl.arange(0, DEPTH)
            left = tl.load(states + row[:, None] * WIDTH + at[None, :], mask=known, other=0.0)
            right = tl.load(tokens + token[None, :] * WIDTH + at[:, None], mask=exists, other=0.0)
            products = tl.dot(left, right, products)
        products = tl.where(exists, products, -1e30)
        larger = tl.maximum(most, tl.max(products, 1))
        total = total * tl.exp(most - larger) + tl.sum(tl.exp(products - larger[:, None]), 1)
        most = larger
    tl.store(out + part * rows + row, most + tl.log(total), mask=row < rows)


def token_log_probs(states: Tensor, tokens: Tensor, own: slice) -> Tensor:
    """(R, n) float32 log-probabilities of some tokens among all, for states (R, D). Without gradients.

    Args:
        states: (R, D).
        tokens: (V, D).
        own: Of the n tokens.
    """
    precision = _precision(states)
    if precision == torch.float32 or not WIDE_SUMS:
        logits = (states @ tokens[own].T).float()
    else:
        logits = torch.mm(states.to(precision), tokens[own].to(precision).T, out_dtype=torch.float32)
    return logits.sub_(log_sum_exp(states, tokens)[:, None])


def _precision(states: Tensor) -> torch.dtype:
    """The precision of matrix products, with autocast."""
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return states.dtype


def log_sum_exp(states: Tensor, tokens: Tensor) -> Tensor:
    """(R,) float32 log sum exp of the logits of all tokens (V, D) for states (R, D). Without gradients.

    Args:
        states: (R, D).
        tokens: (V, D).
    """
    precision = _precision(states)
    rows, width = states.shape
    if precision == torch.float32 or width % DEPTH or not rows:
        parts = -(-rows * len(tokens) // LOGITS)
        sums = [(states @ part.T).float().logsumexp(-1) for part in tokens.chunk(max(1, parts))]
        return torch.stack(sums).logsumexp(0)
    together = ROWS if rows > FEW_ROWS else FEW_ROWS
    blocks = -(-rows // together)
    tiles = -(-len(tokens) // TOKENS)
    each = -(-tiles // max(1, min(tiles, PROGRAMS // blocks)))  # tiles of a program
    out = torch.empty(-(-tiles // each), rows, device=states.device)
    _log_sum_exp[(blocks, len(out))](
        states.to(precision).contiguous(), tokens.to(precision), out, rows, len(tokens), each, width, together, TOKENS, DEPTH,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out.logsumexp(0)
