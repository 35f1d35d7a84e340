"""The code scan for many questions at once, in tensor operations of fixed shapes: what a GPU does with filters, deletions and
additions.

As `genius.search.scan`: one decoder row for each kind, the likeliest cells until a budget of items, their cosines by codes, the
vectors of the best. Every question has the same number of slots, which its cells' items are laid out in, so nothing waits for a
value. A filter is turned into the list of the places it lets through, once a call, and cells count only those: a question looks
at as many allowed items as without a filter. Knows tries, codebooks, vectors and masks over rows. Any device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.errors import GeniusError
from genius.model.quantizer import ResidualQuantizer
from genius.search.beam import BROKEN
from genius.search.decoder import Writer
from genius.search.forest import TrieView
from genius.search.params import SearchParams, SearchResult
from genius.search.rerank import Reconstructions, Vectors

SCANNED, COMPARED = 15, 0.4  # as `genius.search.quick`'s: whole cells take more codes for the same recall
CELLS = 128  # likeliest cells laid out at first; all of them where these hold too few items
SLOTS = 1 << 24  # laid out at once, over all questions
ITEMS_AT_ONCE = 1 << 20


class BatchCells:
    """One trie: where each cell's items are, the codes of every item after its cell's, and one over its length."""

    def __init__(self, view: TrieView, lengths: Reconstructions) -> None:
        trie, device = view.trie, view.device
        kinds, size = trie.level_sizes[:2]
        self.order = view.order
        below, first = view.node_child[1].long(), view.node_child[0].long()
        owner = torch.repeat_interleave(view.node_codes[0].long(), first.diff())
        cell = owner * size + _widened(view.node_codes[1])
        self.lo = torch.zeros(kinds * size, dtype=torch.long, device=device)
        self.hi = torch.zeros_like(self.lo)
        self.lo[cell], self.hi[cell] = view.item_range(2, below[:-1], below[1:])
        items = trie.items
        self.codes = torch.empty(trie.levels - 2, items, dtype=torch.int16, device=device)  # a level after the other
        self.inverse = torch.empty(items, dtype=torch.float16, device=device)
        for i in range(0, items, ITEMS_AT_ONCE):
            at = torch.arange(i, min(i + ITEMS_AT_ONCE, items), device=device)
            ids = (
                at
                if view.item_start is None
                else torch.searchsorted(view.item_start, at.to(view.item_start.dtype), right=True) - 1
            )
            codes = view.codes_of_ids(ids)
            self.codes[:, at] = codes[:, 2:].T.to(torch.int16)
            self.inverse[at] = (1 / lengths.lengths(codes)).half()

    def allowed(self, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """First place and number of allowed items of every cell, and the positions that places stand for (None: themselves)."""
        if mask is None:
            return self.lo, self.hi - self.lo, None
        passes = mask[self.order.long()]
        before = F.pad(passes.cumsum(0, dtype=torch.int32), (1, 0)).long()
        return before[self.lo], before[self.hi] - before[self.lo], passes.nonzero()[:, 0]


class BatchScan:
    """Tries that are searched as one, on one device."""

    def __init__(self, quantizer: ResidualQuantizer, views: Sequence[TrieView], vectors: Vectors | None) -> None:
        device = views[0].device
        config = quantizer.config
        self.vectors, self.views = vectors, list(views)
        self.kinds, self.size, self.sizes = config.level_sizes[0], config.level_sizes[1], config.level_sizes
        self.lengths = Reconstructions(quantizer, device)
        self.cells = [BatchCells(view, self.lengths) for view in views]
        self.means = quantizer.codebook(0).detach().to(device, torch.float32)
        own = config.own_books_from > 0
        books = [
            torch.cat([quantizer.book_of(level, kind) for level in range(1, config.levels)])
            for kind in range(self.kinds if own else 1)
        ]
        self.books = torch.stack(books).detach().to(device, torch.float32)  # (kinds or 1, sum of K, D)

    def search(
        self,
        writer: Writer,
        z: Tensor,
        dense: Tensor,
        k: int,
        params: SearchParams,
        target: Tensor | None,
        allowed: Tensor | None,
    ) -> SearchResult:
        """target (Q,), -1 unknown; allowed (N,) bool: what is alive and passes the filter."""
        ready = [cells.allowed(allowed) for cells in self.cells]
        slots = max(SCANNED * params.rerank, k)
        step = max(SLOTS // slots, 1)
        parts = []
        for i in range(0, len(z), step):
            at = slice(i, i + step)
            liked = self._liked(writer, z[at], None if target is None else target[at])
            parts.append(self._part(liked, z[at], dense[at], k, params, ready, slots, CELLS))
        rows, scores, touched = (torch.cat(column) for column in zip(*parts, strict=True))
        return SearchResult(rows, scores, touched)

    def _liked(self, writer: Writer, z: Tensor, target: Tensor | None) -> Tensor:
        """(Q, kinds * K) log p of every cell; -inf for those of another kind than the target."""
        codes = torch.arange(self.kinds, device=z.device).expand(len(z), -1)[:, :, None].contiguous()
        before = writer.start(z)
        out, memory = writer.run(codes, before)
        score = writer.log_p(1, out[:, :, 1], memory, codes).view(len(z), self.kinds, self.size).float()
        score = score + writer.log_p(0, out[:, :1, 0], before, codes[:, :1, :0]).view(len(z), self.kinds, 1).float()
        if target is not None:
            other = (target[:, None] >= 0) & (target[:, None] != torch.arange(self.kinds, device=z.device))
            score = score.masked_fill(other[:, :, None], -torch.inf)
        return score.flatten(1)

    def _part(
        self,
        liked: Tensor,
        z: Tensor,
        dense: Tensor,
        k: int,
        params: SearchParams,
        ready: list[tuple[Tensor, Tensor, Tensor | None]],
        slots: int,
        most: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if torch.isnan(liked).any():
            raise GeniusError(BROKEN)
        tables = torch.einsum("qd,ktd->qkt", z, self.books)  # (Q, kinds or 1, sum of K)
        total = torch.stack([count for _, count, _ in ready]).sum(0)
        likely, best = liked.masked_fill(total[None] == 0, -torch.inf).topk(min(most, liked.shape[1]), dim=1)
        found = [
            self._scan(cells, *here, likely, best, tables, z @ self.means.T, slots)
            for cells, here in zip(self.cells, ready, strict=True)
        ]
        scores, rows = (torch.cat([part[i] for part in found], 1) for i in (0, 1))
        touched = (rows >= 0).sum(1)
        kept = min(k if params.reranker == "codes" else max(int(COMPARED * params.rerank), k), scores.shape[1])
        scores, at = scores.topk(kept, dim=1)
        rows = rows.gather(1, at)
        if params.reranker == "embeddings":
            scores = self._dots(dense, rows).masked_fill(rows < 0, -torch.inf)
            scores, at = scores.topk(min(k, kept), dim=1)
            rows = rows.gather(1, at)
        rows, scores = F.pad(rows, (0, k - rows.shape[1]), value=-1), F.pad(scores, (0, k - scores.shape[1]), value=-torch.inf)
        if most < liked.shape[1]:
            reachable = torch.where(liked > -torch.inf, total, 0).sum(1)
            short = ((rows >= 0).sum(1) < reachable.clamp(max=k)).nonzero()[:, 0]  # waits for the device
            if len(short):
                again = self._part(liked[short], z[short], dense[short], k, params, ready, slots, liked.shape[1])
                rows[short], scores[short], touched[short] = again
        return rows, scores, touched

    def _scan(
        self,
        cells: BatchCells,
        first: Tensor,
        count: Tensor,
        positions: Tensor | None,
        likely: Tensor,
        best: Tensor,
        tables: Tensor,
        middles: Tensor,
        slots: int,
    ) -> tuple[Tensor, Tensor]:
        """Cosines by codes (Q, slots) and item rows, -1 in empty slots."""
        held = torch.where(likely > -torch.inf, count[best], 0)  # (Q, C)
        ends = held.cumsum(1)
        slot = torch.arange(slots, device=best.device).expand(len(best), slots).contiguous()
        which = torch.searchsorted(ends, slot, right=True).clamp(max=best.shape[1] - 1)
        inside = slot < ends[:, -1:]
        cell = best.gather(1, which)
        place = torch.where(inside, first[cell] + slot - (ends - held).gather(1, which), 0)
        if positions is not None:
            place = positions[place] if len(positions) else place
        kind = cell // self.size
        score = middles.gather(1, kind)
        flat = tables.flatten(1)
        block = kind * tables.shape[2] if tables.shape[1] > 1 else torch.zeros_like(kind)
        score = score + flat.gather(1, block + cell % self.size)
        start = self.size
        for level, size in enumerate(self.sizes[2:]):
            score += flat.gather(1, block + start + _widened(cells.codes[level][place]))
            start += size
        score = score * cells.inverse[place]
        rows = cells.order[place].long()
        return score.masked_fill(~inside, -torch.inf), torch.where(inside, rows, -1)

    def _dots(self, dense: Tensor, rows: Tensor) -> Tensor:
        assert self.vectors is not None
        taken = self.vectors.take(rows.clamp(min=0).flatten()).view(*rows.shape, -1)
        return torch.einsum("qrd,qd->qr", taken, dense)


def _widened(codes: Tensor) -> Tensor:
    return codes.long() & 0xFFFF if codes.dtype == torch.int16 else codes.long()
