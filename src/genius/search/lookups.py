"""Sums of numbers looked up by codes: for every ID of some stretches, how many items it holds, and which are the best; and the
other loops of a search on a CPU that are compiled.

By numba where it is installed, else numpy. Looked-up sums are added in the same order, so both give the same numbers to the last
bit; products may be added in any. Compiling, or loading what was compiled, takes longer than a few searches by numpy: a process
begins with numpy and changes over when it has searched some more. Knows arrays alone; what they mean is the business of
`genius.search.scan` and `genius.search.quick`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEP = 2.0**-12  # in which one over a length is held: 0.02 % of a unit vector's; reconstructions shorter than 1/16 count as that
BINS = 2048
TOUCHED = 16  # vectors that are asked for before the first of them is used: the memory then answers many at once
WARM = 50  # scans by numpy before a process pays for the compiled one
_scans = 0

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
EVERYONE = np.empty(0, np.bool_)
ANY_ORDER = {"reassoc", "contract", "nsz"}
NO_NODES = (np.empty(0, np.uint16), np.empty(0, np.int32), np.uint64(0))


def warmer() -> None:
    """One more scan in this process."""
    global _scans
    _scans += 1


@dataclass(frozen=True, slots=True)
class Found:
    """IDs (or nodes) that were looked at, what was summed for each, that times one over its length, and how many allowed items it
    holds: at least one."""

    ids: NDArray[Any]  # whole numbers of 4 or 8 bytes
    sums: Floats
    scores: Floats
    items: NDArray[np.int32]

    def least_of_best(self, wanted: int) -> np.float32:
        """The score down to which there are `wanted` items; the least of all where there are fewer."""
        if not len(self.scores):
            return np.float32(0)
        kernel = compiled("_least")
        if kernel is not None:
            return np.float32(kernel(self.scores, self.items, wanted))
        best = np.argsort(-self.scores, kind="stable")
        at = np.searchsorted(np.cumsum(self.items[best]), wanted)
        return np.float32(self.scores[best[min(int(at), len(best) - 1)]])

    @classmethod
    def joined(cls, parts: Sequence[Found]) -> Found:
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32), np.empty(0, np.int32))
        columns = zip(*((part.ids, part.sums, part.scores, part.items) for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


def members(lo: Ints, hi: Ints) -> Ints:
    """Every number of every stretch, stretch after stretch."""
    counts = hi - lo
    ends = np.cumsum(counts)
    inside: Ints = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(lo - (ends - counts), counts)
    return inside


def plain(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory as an ordinary read-only array: what runs over it is compiled for one kind only."""
    same = np.asarray(array).view(np.ndarray)
    same.flags.writeable = False
    return same


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of IDs (or of nodes above them, or of pairs), and what a query looks up for each."""

    lo: Ints
    hi: Ints
    shared: Floats  # what all in a stretch begin with
    codes: NDArray[Any]  # (n, levels or more) of every ID
    starts: tuple[np.uint64, ...]  # where each level begins in the table
    table: Floats  # (sum of K,) dots of the query with every code
    item_start: NDArray[Any]  # first item of each ID; none: one item an ID
    inverse: NDArray[np.uint16]  # by which sums are multiplied, in steps
    items: int  # in all of them
    node_codes: NDArray[Any]  # of the nodes that the stretches are of; none: they are of IDs
    node_child: NDArray[Any]
    node_start: np.uint64  # where their level begins in the table


class Rounded:
    """A matrix (or several) in 8 bits, in steps of each row's own: for one question reading it takes longer than multiplying, and
    this is a quarter of the bytes."""

    def __init__(self, weight: NDArray[Any]) -> None:
        self.scales = np.maximum(np.abs(weight).max(-1) / 127, 1e-30).astype(np.float32)
        self.values = np.ascontiguousarray(np.round(weight / self.scales[..., None]).astype(np.int8))
        self.parts = self.values, self.scales

    @cached_property
    def plain(self) -> Floats:
        """The same numbers in 32 bits."""
        wide: Floats = self.values * self.scales[..., None]
        return wide

    def times(self, x: Floats, few: int | None = None) -> Floats:
        """x (n, rows) @ this; by numpy where there are more than a few x."""
        kernel = None if few is not None and len(x) > few else compiled("_times")
        if kernel is None:
            product: Floats = x @ self.plain
            return product
        out = np.zeros((len(x), self.values.shape[1]), np.float32)
        for i in range(0, len(x), 2):
            kernel(x[i : i + 2], *self.parts, out[i : i + 2])
        return out


def look_up(scan: Stretches, order: NDArray[Any], allowed: Mask | None) -> Found:
    """What is in the stretches: every ID that holds an allowed item."""
    # a trie that spells out every level has no tails, and numba cannot index an empty tuple of where they start
    kernel = compiled("_loop") if scan.starts else None
    return by_numpy(scan, order, allowed) if kernel is None else by_numba(kernel, scan, order, allowed)


def by_numpy(scan: Stretches, order: NDArray[Any], allowed: Mask | None) -> Found:
    lo, hi, shared = scan.lo, scan.hi, scan.shared
    if len(scan.node_codes):
        nodes = members(lo, hi)
        shared = np.repeat(shared, hi - lo) + scan.table[int(scan.node_start) :][scan.node_codes[nodes]]
        lo, hi = scan.node_child[nodes].astype(np.int64), scan.node_child[nodes + 1].astype(np.int64)
    ids = members(lo, hi)
    sums = np.repeat(shared, hi - lo)
    codes = scan.codes[ids]
    for level, start in enumerate(scan.starts):
        sums += scan.table[int(start) :][codes[:, level]]
    scores = sums * (scan.inverse[ids] * np.float32(STEP))
    items = np.ones(len(ids), np.int32)
    if len(scan.item_start):
        items = (scan.item_start[ids + 1] - scan.item_start[ids]).astype(np.int32)
    if allowed is None:
        return Found(ids, sums, scores, items)
    ends = np.cumsum(items)
    places = members(scan.item_start[ids].astype(np.int64), scan.item_start[ids + 1]) if len(scan.item_start) else ids
    passed = np.append(0, np.cumsum(allowed[order[places]]))
    items = (passed[ends] - passed[ends - items]).astype(np.int32)
    some = items > 0
    return Found(ids[some], sums[some], scores[some], items[some])


def by_numba(kernel: Callable[..., int], scan: Stretches, order: NDArray[Any], allowed: Mask | None) -> Found:
    # half the bytes where they do: room that is taken anew for every scan is cleared by the system first
    ids = np.empty(scan.items, np.int32 if len(scan.codes) < 1 << 31 else np.int64)
    sums, scores, items = np.empty(scan.items, np.float32), np.empty(scan.items, np.float32), np.empty(scan.items, np.int32)
    count = kernel(
        scan.lo, scan.hi, scan.shared, scan.node_codes, scan.node_child, scan.node_start, scan.codes, scan.starts, scan.table,
        scan.inverse, np.float32(STEP), scan.item_start, order, EVERYONE if allowed is None else allowed,
        ids, sums, scores, items,
    )  # fmt: skip
    return Found(ids[:count], sums[:count], scores[:count], items[:count])


@cache
def _made(name: str) -> Callable[..., Any] | None:
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    for called in (_times, _unit) if name == "_states" else ():
        numba.extending.register_jitable(fastmath=ANY_ORDER)(called)
    # products may be added in any order, and no score is without a value
    free = {"_products": ANY_ORDER, "_states": ANY_ORDER, "_times": ANY_ORDER, "_least": {"nnan", "nsz"}}
    made: Callable[..., Any] = numba.njit(cache=True, nogil=True, fastmath=free.get(name, False))(globals()[name])
    return made


def compiled(name: str) -> Callable[..., Any] | None:
    """A compiled loop of this module; None without numba, or in a process that has hardly searched."""
    return _made(name) if _scans > WARM else None


def _loop(
    lo: Any, hi: Any, shared: Any, node_codes: Any, node_child: Any, node_start: Any, codes: Any, starts: Any, table: Any,
    inverse: Any, step: Any, item_start: Any, order: Any, allowed: Any, ids: Any, sums: Any, scores: Any, items: Any,
) -> Any:  # fmt: skip
    """Over every ID of every stretch, as `by_numpy`. There is no branch that a processor could guess wrong, and no signed index,
    which would be looked at for being negative: either takes as long as the look-ups."""
    count, one = np.uint64(0), np.uint64(1)
    nodes, several, masked = len(node_codes) > 0, len(item_start) > 0, len(allowed) > 0
    for r in range(len(lo)):
        base, node, first, end = shared[r], np.uint64(lo[r]), np.uint64(lo[r]), np.uint64(hi[r])
        if nodes:
            first, end = np.uint64(node_child[first]), np.uint64(node_child[end])
        for i in range(first, end):
            at = np.uint64(i)
            total = base
            if nodes:  # an ID is in this node, or it is the first of the next one
                node += np.uint64(at >= np.uint64(node_child[node + one]))
                total += table[node_start + node_codes[node]]
            for level in range(len(starts)):
                total += table[starts[level] + codes[at, level]]
            held = 1
            if several:
                held = item_start[at + one] - item_start[at]
            if masked:
                place = np.uint64(item_start[at]) if several else at
                passed = 0
                for other in range(place, place + np.uint64(held)):
                    passed += allowed[order[np.uint64(other)]]
                held = passed
            ids[count], sums[count], scores[count], items[count] = at, total, total * (np.float32(inverse[at]) * step), held
            count += np.uint64(held > 0)
    return count


def _least(scores: Any, items: Any, wanted: int) -> Any:
    """Items are counted in bins of scores; only the bin that holds the wanted one is sorted."""
    low = high = scores[0]
    for i in range(len(scores)):
        low, high = min(low, scores[i]), max(high, scores[i])
    if not high > low:
        return low
    bins = np.zeros(BINS, np.int64)
    scale = np.float32(BINS - 1) / (high - low)
    for i in range(len(scores)):
        bins[np.uint64((scores[i] - low) * scale)] += items[i]
    at, above = BINS - 1, 0
    while at > 0 and above + bins[at] < wanted:
        above += bins[at]
        at -= 1
    own, held, count = np.empty(bins[at] + 1, np.float32), np.empty(bins[at] + 1, np.int64), 0
    for i in range(len(scores)):
        own[count], held[count] = scores[i], items[i]
        count += np.uint64((scores[i] - low) * scale) == at
    best = np.argsort(own[:count])
    i = count - 1
    while i > 0 and above + held[best[i]] < wanted:
        above += held[best[i]]
        i -= 1
    return own[best[i]]


def _rows(ids: Any, scores: Any, items: Any, least: Any, first: Any, end: Any, item_start: Any, order: Any, allowed: Any) -> Any:
    """Rows of the allowed items of IDs down to a score, of those from `first` to `end`."""
    most, count, several, masked = 1, np.uint64(0), len(item_start) > 0, len(allowed) > 0
    for i in range(len(ids)):
        most += items[i] * (scores[i] >= least)
    rows = np.empty(most, np.int64)
    for i in range(len(ids)):
        if scores[i] >= least and first <= ids[i] < end:
            place = np.uint64(ids[i] - first)
            held = np.uint64(item_start[place + np.uint64(1)] - item_start[place]) if several else np.uint64(1)
            place = np.uint64(item_start[place]) if several else place
            for other in range(place, place + held):
                rows[count] = order[np.uint64(other)]
                count += np.uint64(allowed[rows[count]] if masked else True)
    return rows[:count]


def _products(bits: Any, rows: Any, query: Any, out: Any) -> None:
    """Dots of a query with some rows of vectors in half precision, given by their bits: what is below the sign, as the bits of a
    number of 32, is the number but for a power of two."""
    touched = np.uint32(0)
    for begin in range(0, len(rows), TOUCHED):
        end = min(begin + TOUCHED, len(rows))
        for r in range(begin, end):  # nothing waits for these reads, so they overlap
            for j in range(0, len(query), 32):
                touched += np.uint32(bits[np.uint64(rows[r]), np.uint64(j)])
        out[begin] = np.float32(touched)
        for r in range(begin, end):
            row, total = np.uint64(rows[r]), np.float32(0)
            for j in range(np.uint64(len(query))):
                half = np.uint32(bits[row, np.uint64(j)])
                sign, size = half & np.uint32(0x8000), half & np.uint32(0x7FFF)
                wide = np.uint32((sign << np.uint32(16)) | (size << np.uint32(13)))
                total += query[np.uint64(j)] * (wide.view(np.float32) * np.float32(2.0**112))
            out[r] = total


def _states(
    z: Any, kind: Any, end: Any, read: Any, asked: Any, nearer: Any, eps: Any,
    prefix_bias: Any, prefix_norm: Any, prefix: Any, prefix_steps: Any,
    qkv: Any, qkv_steps: Any, out: Any, out_steps: Any, cross_q: Any, cross_q_steps: Any, cross_out: Any, cross_out_steps: Any,
    ff_in: Any, ff_in_steps: Any, ff_out: Any, ff_out_steps: Any, keys: Any, key_steps: Any, values: Any, value_steps: Any,
    states: Any,
) -> None:  # fmt: skip
    """As `genius.search.quick.FirstRow._states`, question by question: one call in place of a hundred small ones."""
    width, heads, layers, each, wide = read.shape[1], len(nearer), len(qkv), keys.shape[2], ff_in.shape[2]
    inner, tokens = heads * each, len(prefix_bias) // width
    for question in range(len(z)):
        rows, memory = 1 + end - kind, prefix_bias.copy().reshape(1, tokens * width)
        _times(z[question : question + 1], prefix, prefix_steps, memory)
        memory = memory.reshape(tokens, width)
        _unit(memory, eps, memory)
        x, normed, weight = np.empty((rows, width), np.float32), np.empty((rows, width), np.float32), np.empty(tokens, np.float32)
        ask = np.empty((heads, rows, width), np.float32)
        for j in range(width):
            for t in range(tokens):
                memory[t, j] *= prefix_norm[j]
            for r in range(rows):  # the start, and a row for each kind
                x[r, j] = read[r + kind if r else 0, j]
                for h in range(heads):
                    ask[h, r, j] = asked[h, r + kind if r else 0, j]
        for i in range(layers):
            if i:
                _unit(x, eps, normed)
                both, mixed = np.zeros((rows, 3 * inner), np.float32), np.empty((rows, inner), np.float32)
                _times(normed, qkv[i], qkv_steps[i], both)
                for r in range(rows):
                    for h in range(heads):
                        total = nearer[h]
                        for j in range(h * each, (h + 1) * each):
                            total += both[r, j] * (both[r, inner + j] - both[0, inner + j])
                        own = np.float32(1) / (np.float32(1) + np.exp(-total)) if r else np.float32(0)
                        for j in range(h * each, (h + 1) * each):
                            start = both[0, 2 * inner + j]
                            mixed[r, j] = start + own * (both[r, 2 * inner + j] - start)
                if i == layers - 1:
                    gone = rows - states.shape[1]
                    x, normed, mixed, rows = x[gone:], normed[gone:], mixed[gone:], rows - gone
                _times(mixed, out[i], out_steps[i], x)
                _unit(x, eps, normed)
                q, ask = np.zeros((rows, inner), np.float32), np.zeros((heads, rows, width), np.float32)
                _times(normed, cross_q[i], cross_q_steps[i], q)
                for h in range(heads):
                    part = np.empty((rows, each), np.float32)
                    for r in range(rows):
                        for j in range(each):
                            part[r, j] = q[r, h * each + j]
                    _times(part, keys[i, h], key_steps[i, h], ask[h])
            given = np.empty((rows, inner), np.float32)
            for h in range(heads):
                heard, part = np.zeros((rows, width), np.float32), np.zeros((rows, each), np.float32)
                for r in range(rows):
                    most, whole = np.float32(-np.inf), np.float32(0)
                    for t in range(tokens):
                        total = np.float32(0)
                        for j in range(width):
                            total += ask[h, r, j] * memory[t, j]
                        weight[t], most = total, max(most, total)
                    for t in range(tokens):
                        weight[t] = np.exp(weight[t] - most)
                        whole += weight[t]
                    for t in range(tokens):
                        for j in range(width):
                            heard[r, j] += weight[t] / whole * memory[t, j]
                _times(heard, values[i, h], value_steps[i, h], part)
                for r in range(rows):
                    for j in range(each):
                        given[r, h * each + j] = part[r, j]
            _times(given, cross_out[i], cross_out_steps[i], x)
            _unit(x, eps, normed)
            hidden = np.zeros((rows, wide), np.float32)
            _times(normed, ff_in[i], ff_in_steps[i], hidden)
            for r in range(rows):
                for j in range(wide):
                    hidden[r, j] = max(hidden[r, j], np.float32(0))
            _times(hidden, ff_out[i], ff_out_steps[i], x)
        _unit(x[rows - states.shape[1] :], eps, states[question])


def _times(x: Any, weight: Any, steps: Any, out: Any) -> None:
    """out += x @ (weight * steps[:, None]). Four rows of the matrix at a time, so that sums are read and written a quarter as
    often, and for two rows of x, so that numbers are widened half as often."""
    last, columns, zero = len(weight) - 1, np.uint64(weight.shape[1]), np.float32(0)
    for i in range(0, len(weight), 4):
        a, b, c, d = np.uint64(i), np.uint64(min(i + 1, last)), np.uint64(min(i + 2, last)), np.uint64(min(i + 3, last))
        sa, sb = steps[a], steps[b] if i + 1 <= last else zero
        sc, sd = steps[c] if i + 2 <= last else zero, steps[d] if i + 3 <= last else zero
        for r in range(0, len(x) - 1, 2):
            a0, b0, c0, d0 = x[r, a] * sa, x[r, b] * sb, x[r, c] * sc, x[r, d] * sd
            a1, b1, c1, d1 = x[r + 1, a] * sa, x[r + 1, b] * sb, x[r + 1, c] * sc, x[r + 1, d] * sd
            for j in range(columns):
                wa, wb, wc, wd = (
                    np.float32(weight[a, j]),
                    np.float32(weight[b, j]),
                    np.float32(weight[c, j]),
                    np.float32(weight[d, j]),
                )
                out[r, j] += a0 * wa + b0 * wb + c0 * wc + d0 * wd
                out[r + 1, j] += a1 * wa + b1 * wb + c1 * wc + d1 * wd
        if len(x) % 2:
            r = len(x) - 1
            a0, b0, c0, d0 = x[r, a] * sa, x[r, b] * sb, x[r, c] * sc, x[r, d] * sd
            for j in range(columns):
                first = a0 * np.float32(weight[a, j]) + b0 * np.float32(weight[b, j])
                out[r, j] += first + c0 * np.float32(weight[c, j]) + d0 * np.float32(weight[d, j])


def _unit(x: Any, eps: Any, out: Any) -> None:
    """Rows over their root mean square."""
    for r in range(len(x)):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[r, j] * x[r, j]
        total = np.float32(1) / np.sqrt(total / np.float32(x.shape[1]) + eps)
        for j in range(x.shape[1]):
            out[r, j] = x[r, j] * total
