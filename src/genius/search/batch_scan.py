"""The code scan for many questions at once, with fixed shapes: the default search on a GPU, filters and additions included.

As `genius.search.scan`: one decoder row for each kind, the likeliest cells until a budget of items, their cosines by codes, the
vectors of the best. Every question has the same number of slots, which its cells' items are laid out in, so nothing waits for a
value and a CUDA graph records it. Ranking nodes by nearness first, as a CPU does in any case, is done here where nodes hold many
items: else looking at two and a half times the codes costs a GPU less. A filter is turned into the list of the places it lets
through, once a call, and cells count only those: a question looks at as many allowed items as without a filter. Knows tries,
codebooks, vectors and masks over rows. Any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.errors import GeniusError
from genius.model.quantizer import ResidualQuantizer
from genius.search.beam import BROKEN, check_queries
from genius.search.cuda_graphs import BUCKETS, Answers, Recordings, batches, bucket_of
from genius.search.cuda_search import Looked, Ops, Ranges, StaticDecoder
from genius.search.decoder import Decoder
from genius.search.forest import TrieView, widen
from genius.search.params import Reranker, SearchParams, SearchResult
from genius.search.rerank import Reconstructions, Vectors
from genius.search.scan import DEEP, NARROW, WIDE

SCANNED, COMPARED = 12, 0.6  # as `genius.search.quick`'s
WHOLE = 30  # ... in place of the first where whole cells are looked at, which takes more codes for the same recall
FEWEST = 64  # cells laid out in any case
SPARE = 2  # cells laid out, times those that would hold the budget if all were alike
SPARED = 16  # ... under a filter, which leaves less in each
SLOTS = 1 << 25  # laid out at once, over all questions
ITEMS_AT_ONCE = 1 << 20
DOUBTED = 4  # times k items are measured exactly where codes have the last word


@dataclass(frozen=True, slots=True)
class Nodes:
    """A level of the trie that is ranked by nearness."""

    looked: Looked
    child: Tensor  # (n + 1,) where each begins among the nodes of the next such level, or among the items
    held: float  # items in one, on average


class BatchCells:
    """One trie: where each cell begins and ends, what is ranked in them, the codes of every item, and one over its length."""

    def __init__(self, view: TrieView, lengths: Reconstructions, starts: Tensor) -> None:
        trie, device, self.view = view.trie, view.device, view
        kinds, size = trie.level_sizes[:2]
        below, owner = view.node_child[1].long(), torch.repeat_interleave(widen(view.node_codes[0]), view.node_child[0].diff())
        cell = owner * size + widen(view.node_codes[1])
        self.lo, self.hi = (torch.zeros(kinds * size, dtype=torch.long, device=device) for _ in range(2))  # of items
        self.lo[cell], self.hi[cell] = view.item_range(2, below[:-1], below[1:])
        self.first, self.last = self.lo, self.hi  # in the space of what is ranked first
        self.some = len(cell)  # cells that are not empty
        self.ranked: list[Nodes] = []
        codes = torch.empty(trie.levels - 2, trie.items, dtype=torch.int16, device=device)  # a level after the other
        inverse = torch.empty(trie.items, dtype=torch.float16, device=device)
        for i in range(0, trie.items, ITEMS_AT_ONCE):
            at = torch.arange(i, min(i + ITEMS_AT_ONCE, trie.items), device=device)
            own = self.codes_at(at)
            codes[:, at], inverse[at] = own[:, 2:].T.to(torch.int16), (1 / lengths.lengths(own)).half()
        self.items = Looked(codes, inverse, starts[1:])
        level = 2
        while level < view.top and trie.items >= DEEP * len(view.node_codes[level]):
            if level == 2:
                self.first, self.last = torch.zeros_like(self.lo), torch.zeros_like(self.hi)
                self.first[cell], self.last[cell] = below[:-1], below[1:]
            begin = view.item_range(level, *[torch.arange(len(view.node_codes[level]) + 1, device=device)] * 2)[0]
            inverse = torch.cat(
                [(1 / lengths.lengths(self.codes_at(part)[:, : level + 1])).half() for part in begin[:-1].split(ITEMS_AT_ONCE)]
            )
            looked = Looked(view.node_codes[level].to(torch.int16)[None], inverse, starts[level - 1 : level])
            following = level + 1 < view.top and trie.items >= DEEP * len(view.node_codes[level + 1])
            child = view.node_child[level].long() if following else begin
            self.ranked.append(Nodes(looked, child, trie.items / len(view.node_codes[level])))
            level += 1
        self.below = Looked(codes[level - 2 :], self.items.inverse, starts[level - 1 :])  # items, by what is not ranked
        self.left = trie.items  # items that are allowed
        self.mask: Tensor | None = None  # what `before` and `positions` are of
        self.before: Tensor | None = None
        self.positions: Tensor | None = None

    def codes_at(self, at: Tensor) -> Tensor:
        """(n, M) of items by their sorted positions."""
        return self.view.codes_of_ids(self.view.ids_at(at))

    def allow(self, mask: Tensor) -> None:
        """mask (N,) over rows: how many allowed items come before each position, and where they are."""
        if mask is self.mask:
            return
        self.mask, order, items = mask, self.view.order.long(), self.view.trie.items
        if self.before is None or self.positions is None:
            self.before = torch.zeros(items + 1, dtype=torch.int32, device=order.device)
            self.positions = torch.zeros(items + 1, dtype=torch.int32, device=order.device)
        passes = mask[order]
        torch.cumsum(passes, 0, dtype=torch.int32, out=self.before[1:])
        self.left = int(self.before[-1])  # waits for the device, once a filter
        place = torch.where(passes, self.before[:-1].long(), items)  # the others go where nobody looks
        self.positions.scatter_(0, place, torch.arange(items, dtype=torch.int32, device=order.device))

    def places(self, lo: Tensor, hi: Tensor, masked: bool) -> tuple[Tensor, Tensor]:
        """Item positions -> places among the allowed ones."""
        if not masked:
            return lo, hi
        assert self.before is not None
        return self.before[lo].long(), self.before[hi].long()


@dataclass(frozen=True, slots=True)
class ScanShape:
    """What a recorded scan is for."""

    queries: int
    k: int
    rerank: int
    reranker: Reranker
    targets: bool  # whether some queries' targets are known
    masked: bool  # whether some items are left out
    ranked: bool  # whether nodes are ranked, where that is worth it: not where most of what they hold is left out
    everywhere: bool = False  # whether all cells are laid out: where the likeliest hold too few items


class BatchScan:
    """Tries that are searched as one, on one device."""

    def __init__(
        self,
        decoder: Decoder,
        ops: Ops,
        quantizer: ResidualQuantizer,
        views: Sequence[TrieView],
        vectors: Vectors | None,
        known: BatchScan | None = None,
    ) -> None:
        """`known`: one whose cells may be of some of these tries."""
        device, config = views[0].device, quantizer.config
        self.decoder, self.ops, self.quantizer, self.views, self.vectors = decoder, ops, quantizer, list(views), vectors
        self.kinds, self.size, self.total = config.level_sizes[0], config.level_sizes[1], sum(view.trie.items for view in views)
        self.lengths = Reconstructions(quantizer, device)
        written = torch.tensor(config.level_sizes[1:], device=device)
        starts = (written.cumsum(0) - written).to(torch.int32)
        ready = {} if known is None else {id(cells.view): cells for cells in known.cells}
        self.cells: list[BatchCells] = [ready.get(id(view)) or BatchCells(view, self.lengths, starts) for view in views]
        self.means = quantizer.codebook(0).detach().to(device, torch.float32)
        books = [
            torch.cat([quantizer.book_of(level, kind) for level in range(1, config.levels)])
            for kind in range(self.kinds if config.own_books_from > 0 else 1)
        ]
        self.blocks = len(books[0]) if len(books) > 1 else 0  # from one kind's part of a table to the next
        self.books = torch.cat(books).detach().to(device, decoder.dtype)  # (kinds or 1 x sum of K, D)
        self.recorded: Recordings[ScanShape] = Recordings(lambda shape: StaticScan(shape, self))

    @property
    def beside(self) -> bool:
        """Whether vectors must be brought to the device: nothing that waits for the host can be recorded."""
        return self.vectors is not None and self.vectors.place != self.vectors.device

    def search(
        self, z: Tensor, dense: Tensor, k: int, params: SearchParams, target: Tensor | None, allowed: Tensor | None
    ) -> SearchResult:
        """target (Q,), -1 unknown; allowed (N,) bool: what is alive and passes the filter."""
        if allowed is not None:
            for cells in self.cells:
                cells.allow(allowed)
        masked = allowed is not None
        ranked = not masked or 2 * sum(cells.left for cells in self.cells) >= self.total
        step = max(SLOTS // min(max(WHOLE * params.rerank, k), self.total), 1)
        parts = []
        for at in batches(len(z), max(bucket for bucket in BUCKETS if bucket <= step)):
            shape = ScanShape(bucket_of(len(z[at])), k, params.rerank, params.reranker, target is not None, masked, ranked)
            parts.append(self._batch(shape, z[at], dense[at], None if target is None else target[at]))
        rows, scores, touched, _ = parts[0] if len(parts) == 1 else (torch.cat(column) for column in zip(*parts, strict=True))
        return SearchResult(rows, scores, touched)

    def _batch(self, shape: ScanShape, z: Tensor, dense: Tensor, target: Tensor | None) -> Answers:
        rows, scores, touched, flags = self.recorded.run(shape, z, dense, target, graph=not self.beside)
        again = flags.nonzero()[:, 0]  # waits for the device
        if len(again):
            if shape.everywhere or (touched[again] < 0).any():
                check_queries(z)
                check_queries(dense, "dense")
                raise GeniusError(BROKEN)
            wide = replace(shape, queries=bucket_of(len(again)), ranked=False, everywhere=True)
            some = self._batch(wide, z[again], dense[again], None if target is None else target[again])
            rows[again], scores[again], touched[again], flags[again] = some
        return rows, scores, touched, flags


class StaticScan(StaticDecoder):
    """One `ScanShape`."""

    def __init__(self, shape: ScanShape, scan: BatchScan) -> None:
        width = scan.decoder.config.width if scan.vectors is None else scan.vectors.width
        super().__init__(scan.decoder, scan.ops, shape.queries, width, 2 * shape.queries * scan.kinds)
        self.shape, self.scan = shape, scan

    def run(self) -> None:
        """One search of every query."""
        shape, scan = self.shape, self.scan
        liked = self._liked()
        counts = [hi - lo for lo, hi in (cells.places(cells.lo, cells.hi, shape.masked) for cells in scan.cells)]
        tables = self.z.to(scan.books.dtype) @ scan.books.T  # (Q, kinds or 1 x sum of K)
        liked = liked.masked_fill(torch.stack(counts).sum(0) == 0, -torch.inf)
        middles = self.z @ scan.means.T
        found = [self._scanned(cells, liked, tables, middles) for cells in scan.cells]
        scores, rows = (torch.cat([part[i] for part in found], 1) for i in (0, 1))
        self.touched = torch.stack([part[2] for part in found]).sum(0)
        if shape.reranker == "embeddings":
            scores = self._dots(rows)
        else:
            at = torch.arange(self.queries, device=self.device).repeat_interleave(rows.shape[1])
            codes = torch.cat([part[3] for part in found], 1)
            scores = scan.lengths.cosine(self.z, at, codes.flatten(0, 1)).view_as(scores).masked_fill(rows < 0, -torch.inf)
        scores, by = scores.topk(min(shape.k, scores.shape[1]), dim=1)
        short = shape.k - scores.shape[1]
        self.rows = F.pad(torch.where(scores > -torch.inf, rows.gather(1, by), -1), (0, short), value=-1)
        self.scores = F.pad(scores, (0, short), value=-torch.inf)
        broken = torch.isnan(liked).any(1) | torch.isnan(scores).any(1)
        kinds = torch.stack(counts).sum(0).view(scan.kinds, scan.size).sum(1).expand(self.queries, -1)
        if shape.targets:
            own = torch.arange(scan.kinds, device=self.device) == self.target[:, None]
            kinds = torch.where(own | (self.target[:, None] < 0), kinds, 0)
        reachable = kinds.sum(1).clamp(max=shape.k)
        self.flags = broken | ((self.rows >= 0).sum(1) < reachable)
        self.touched = torch.where(broken, -1, self.touched)

    def _liked(self) -> Tensor:
        """(Q, kinds * K) log p of every cell; -inf for those of another kind than the target."""
        head, queries = self.decoder.head, self.queries
        codes, states = self._first_two(self._prefix())
        flat = codes.view(-1, 1)
        logits, mass = head.fixed(0, states[:, 0, 0].contiguous(), head.rest(self.z, flat[:queries, :0]), None, self.ops)
        kinds = logits - mass[:, None]
        if self.shape.targets:
            kinds = self._given(kinds)
        rest = head.rest(self.z.repeat_interleave(codes.shape[1], 0), flat)
        logits, mass = head.fixed(1, states[:, :, 1].flatten(0, 1).contiguous(), rest, flat[:, 0], self.ops)
        return (logits - mass[:, None] + kinds.view(-1, 1)).view(queries, -1)

    def _scanned(
        self, cells: BatchCells, liked: Tensor, tables: Tensor, middles: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The best by their codes: cosines and rows (Q, n), -1 in empty slots; how many were looked at (Q,); codes (Q, n, M), if
        they have the last word."""
        shape, scan, items = self.shape, self.scan, cells.view.trie.items
        ranked = cells.ranked if shape.ranked else []
        slots = min(max((SCANNED if ranked else WHOLE) * shape.rerank, shape.k), items)
        most = slots * NARROW ** max(len(ranked) - 1, 0)
        wide = min(WIDE * most if ranked else slots, items)
        count = len(cells.lo)
        if not shape.everywhere:
            spare = SPARED if shape.masked else SPARE
            count = min(count, max(FEWEST, spare * wide * cells.some // max(items, 1)))
        likely, best = liked.topk(count, dim=1)
        there, kind = likely > -torch.inf, best // scan.size
        block = (kind * scan.blocks).to(torch.int32)
        shared = middles.gather(1, kind) + tables.gather(1, block.long() + best % scan.size).float()
        lo, hi = (cells.first[best], cells.last[best]) if ranked else (cells.lo[best], cells.hi[best])
        for nodes in ranked:
            room = int(wide / nodes.held) + 1
            ranges = _laid_out(lo, torch.where(there, hi, lo), shared, block)
            scores, places = self.ops.look_up(ranges, nodes.looked, tables, room)
            wide, most = min(most, items), most // NARROW
            scores, by = scores.topk(min(int(SPARE * wide / nodes.held) + shape.k, room), dim=1)
            node, there = places.gather(1, by).long(), scores > -torch.inf
            which = torch.searchsorted(ranges.ends, by.to(torch.int32), right=True).clamp(max=ranges.ends.shape[1] - 1)
            block, shared = ranges.block.gather(1, which), ranges.shared.gather(1, which)
            code = block.long() + nodes.looked.starts + widen(nodes.looked.codes[0][node])
            shared, lo, hi = shared + tables.gather(1, code).float(), nodes.child[node], nodes.child[node + 1]
        lo, hi = cells.places(lo, hi, shape.masked)
        ranges = _laid_out(lo, torch.where(there, hi, lo), shared, block)
        looked = replace(cells.below if ranked else cells.items, positions=cells.positions if shape.masked else None)
        scores, places = self.ops.look_up(ranges, looked, tables, slots)
        kept = max(int(COMPARED * shape.rerank), shape.k) if shape.reranker == "embeddings" else DOUBTED * shape.k
        scores, by = scores.topk(min(kept, slots), dim=1, sorted=False)
        place = places.gather(1, by).long()
        rows = torch.where(scores > -torch.inf, cells.view.order[place].long(), -1)
        last = shape.reranker == "codes"
        codes = cells.codes_at(place.flatten()).view(*place.shape, -1) if last else place
        return scores, rows, ranges.ends[:, -1].long().clamp(max=slots), codes

    def _dots(self, rows: Tensor) -> Tensor:
        """(Q, n) by their vectors; -inf where there is no row."""
        vectors = self.scan.vectors
        assert vectors is not None
        if self.scan.beside:
            taken = vectors.take(rows.clamp(min=0).flatten()).view(*rows.shape, -1)
            return torch.einsum("qrd,qd->qr", taken, self.dense).masked_fill(rows < 0, -torch.inf)
        values = None
        for (part, scales), start in zip(vectors.parts, vectors.starts, strict=True):
            own = rows if len(vectors.parts) == 1 else torch.where((rows >= start) & (rows < start + len(part)), rows - start, -1)
            here = self.ops.dots(self.dense, own, part, scales)
            values = here if values is None else torch.maximum(values, here)
        assert values is not None
        return values


def _laid_out(lo: Tensor, hi: Tensor, shared: Tensor, block: Tensor) -> Ranges:
    held = hi - lo
    ends = held.cumsum(1)
    return Ranges(ends.to(torch.int32), (lo - ends + held).to(torch.int32), shared, block)
