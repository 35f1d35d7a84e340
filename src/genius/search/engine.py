"""`SearchEngine`: queries in, item rows out. Beam, early stop, re-ranking, filters, deletes and additions.

Knows tensors only: ids, files and metadata are the index's business. Item rows are stable: a deleted row is never
given again, `merge` changes no row.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.search import int8
from genius.search.batch_scan import BatchScan
from genius.search.beam import by_target, check_allowed, check_queries, decode
from genius.search.beams import Beams
from genius.search.decoder import Decoder, Int8Decoder, Writer
from genius.search.forest import Forest, TrieView
from genius.search.graph import GraphSearch
from genius.search.params import SearchParams, SearchResult
from genius.search.quick import QuickSearch
from genius.search.rerank import Int8Rows, Reconstructions, Rows, Vectors, top_rows
from genius.search.static import Parts
from genius.search.trie import CodeTrie

Precision = Literal["auto", "exact", "fast"]
QUERIES_AT_ONCE = 32  # queries decoded together: bounds memory, keeps products large enough


class SearchEngine:
    """One collection, ready to search on one device."""

    def __init__(
        self,
        generator: Generator,
        quantizer: ResidualQuantizer | None,
        trie: CodeTrie,
        embeddings: Rows | None = None,
        device: str | torch.device = "cpu",
        precision: Precision = "auto",
        writer: Writer | None = None,
    ) -> None:
        """`embeddings` (N, D) by item row: fp32, fp16 or `Int8Rows`, possibly memory-mapped. `precision` of the decoder:
        "exact" is float32; "fast" is float16 products on CUDA, int8 on the CPU; "auto" is exact where beams are the answer and
        fast where they only pick what is re-ranked. `writer` takes the place of the generator's decoder (an ablation)."""
        for part in (generator, quantizer):
            if part is not None and part.config.level_sizes != trie.level_sizes:
                raise GeniusError(f"the trie has levels {trie.level_sizes}, the {type(part).__name__} {part.config.level_sizes}")
        self.device = torch.device(device)
        self.quantizer = quantizer
        self.level_sizes = trie.level_sizes
        self.generator, self.precision, self.writer = generator, precision, writer
        self.decoder = Decoder(generator, self.device)
        self._int8: Decoder | None = None
        # below this width int8 gains nothing
        self.generator_is_large = generator.config.d_model >= 512 and int8.supported()
        self._reconstructions: Reconstructions | None = None
        self._graphs: dict[bool, GraphSearch] = {}  # recorded searches (CUDA), by whether they are fast
        self._quick: QuickSearch | None = None  # the planned search on a CPU
        self._scan: BatchScan | None = None  # what a GPU does where no search can be recorded
        self.base = TrieView(trie, self.device)
        self.delta: TrieView | None = None
        self.delta_codes = np.empty((0, trie.levels), dtype=np.int64)
        self.rows = int(trie.order.max()) + 1 if trie.items else 0  # rows given so far, dead or alive
        self.alive: Tensor | None = None  # (rows,) bool; None while nothing is deleted
        self.vectors = None if embeddings is None else Vectors(embeddings, self.device)
        if self.vectors is not None and len(self.vectors) < self.rows:
            raise GeniusError(f"{len(self.vectors)} embeddings for {self.rows} item rows")
        if self.vectors is not None:
            self.rows = len(self.vectors)  # rows without codes are items deleted before
        self.delta_start = self.rows

    @property
    def items(self) -> int:
        """Items that a search can return."""
        return self._views_items() if self.alive is None else int(self.alive.sum())

    def _views_items(self) -> int:
        return self.base.trie.items + (0 if self.delta is None else self.delta.trie.items)

    # -- changes -----------------------------------------------------------------------------------------------

    def add(self, codes: NDArray[Any] | Tensor, embeddings: Rows | None = None) -> int:
        """Add items; they are found by the next search. Returns the first of their rows, which are consecutive."""
        table = codes.detach().cpu().numpy() if isinstance(codes, Tensor) else np.asarray(codes)
        if (self.vectors is None) != (embeddings is None):
            raise GeniusError("items need embeddings exactly when the collection has them")
        if embeddings is not None and len(embeddings) != len(table):
            raise GeniusError(f"{len(embeddings)} embeddings for {len(table)} codes")
        both = (
            np.concatenate([self.delta_codes, table.astype(np.int64)])
            if table.ndim == 2 and table.shape[1] == len(self.level_sizes)
            else table
        )
        trie = CodeTrie.build(both, self.level_sizes, self.delta_start + np.arange(len(both)))  # checks the codes
        if self.vectors is not None and embeddings is not None:
            self.vectors.append(embeddings)
        first = self.rows
        self.delta_codes, self.delta = both, TrieView(trie, self.device)
        self.rows += len(table)
        if self.alive is not None:
            self.alive = torch.cat([self.alive, torch.ones(len(table), dtype=torch.bool, device=self.device)])
        return first

    def delete(self, rows: NDArray[Any] | Tensor | list[int]) -> int:
        """Take items out of every later search; returns how many were alive."""
        index = torch.as_tensor(np.asarray(rows.cpu() if isinstance(rows, Tensor) else rows, dtype=np.int64), device=self.device)
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= self.rows):
            raise GeniusError(f"rows must be 0..{self.rows - 1}, got {int(index.min())}..{int(index.max())}")
        if self.alive is None:
            self.alive = self._present()
        before = int(self.alive.sum())
        self.alive[index] = False
        return before - int(self.alive.sum())

    def _present(self) -> Tensor:
        alive = torch.zeros(self.rows, dtype=torch.bool, device=self.device)
        for view in (self.base, self.delta):
            if view is not None:
                alive[view.order.long()] = True
        return alive

    def merge(self) -> CodeTrie:
        """Fold additions and deletions into one trie (rows keep their numbers); returns it for saving."""
        base = self.base.trie
        codes = np.concatenate([base.codes_at(np.arange(base.items)), self.delta_codes])
        rows = np.concatenate([np.asarray(base.order, dtype=np.int64), self.delta_start + np.arange(len(self.delta_codes))])
        if self.alive is not None:
            keep = self.alive.cpu().numpy()[rows]
            codes, rows = codes[keep], rows[keep]
        merged = CodeTrie.build(codes, self.level_sizes, rows)
        self.base, self.delta = TrieView(merged, self.device), None
        self._graphs.clear()
        self.delta_codes, self.delta_start = self.delta_codes[:0], self.rows
        if len(rows) == self.rows:
            self.alive = None  # else it still guards the rows that are gone
        return merged

    # -- search ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def search(
        self,
        z: Tensor,
        *,
        k: int,
        params: SearchParams | None = None,
        dense: Tensor | None = None,
        target: Tensor | None = None,
        allowed: NDArray[Any] | Tensor | None = None,
    ) -> SearchResult:
        """The k best items of every query.

        z (Q, D) fused queries; dense (Q, D) for the embedding re-ranker (default z); target (Q,) known code of level 0,
        -1 unknown; allowed (N,) or (Q, N) bool over item rows. If k items exist, k come back: beams widen until they do.
        """
        params = params or SearchParams()
        if k < 1:
            raise GeniusError(f"k must be at least 1, got {k}")
        recordable = self._recordable(params, allowed)
        check_queries(z, finite=not recordable)  # a recorded search flags NaN itself, without waiting for the device
        z = z.to(self.device, torch.float32)
        dense = z if dense is None else dense.to(self.device, torch.float32)
        check_queries(dense, "dense", finite=not recordable)
        if len(dense) != len(z):
            raise GeniusError(f"{len(dense)} dense vectors for {len(z)} queries")
        if params.reranker == "embeddings" and self.vectors is None:
            raise GeniusError("this collection stores no embeddings: use reranker 'codes' or 'none'")
        if params.reranker == "codes" and self.quantizer is None:
            raise GeniusError("re-ranking by codes needs the quantizer")
        writer = self._writer(params)
        mask = check_allowed(allowed if allowed is None else torch.as_tensor(allowed), self.rows, self.device)
        quick = self._planned(params)
        if quick is not None:
            return quick.search(z, dense, k, params, target, self._alive_and(mask))
        if not recordable and len(z) and self._scannable(params, mask):
            known = None if target is None else torch.as_tensor(target, device=self.device).long()
            list(by_target(known, len(z), self.level_sizes[0], self.device))  # checks them
            return self.scan.search(self._writer(params), z, dense, k, params, known, self._alive_and(mask))
        if not recordable or not len(z):
            return self._search(writer, z, dense, k, params, target, mask)
        known = None if target is None else torch.as_tensor(target, device=self.device).long()
        if known is not None:
            list(by_target(known, len(z), self.level_sizes[0], self.device))  # checks them
        result, flags = self._graph(params).search(z, dense, k, params, known)
        again = flags.nonzero()[:, 0]  # waits for the device
        if len(again):  # queries that need another course than the recorded one, or hold NaN
            check_queries(z[again])
            check_queries(dense[again], "dense")
            part = self._search(writer, z[again], dense[again], k, params, None if known is None else known[again], None)
            result.rows[again], result.scores[again], result.touched[again] = part.rows, part.scores, part.touched
        return result

    def _recordable(self, params: SearchParams, allowed: object) -> bool:
        """Whether one recorded CUDA graph does this search: the plain case, no filter, nothing added or deleted."""
        return (
            self.device.type == "cuda"
            and self.writer is None
            and params.reranker != "codes"
            and params.beams <= 1024
            and allowed is None
            and self.alive is None
            and self.delta is None
            and self.base.trie.items > 0
            and (self.vectors is None or len(self.vectors.parts) == 1)
        )

    def _planned(self, params: SearchParams) -> QuickSearch | None:
        """The search planned by cost, where it serves: on a CPU, where items are re-ranked and cells can be cut."""
        tries = [view.trie for view in self._views]
        suits = self.device.type == "cpu" and self.writer is None and not params.full_depth and tries
        if not suits or self.quantizer is None or not QuickSearch.suits(self.quantizer, tries):
            return None
        if self._quick is None or self._quick.tries != tries or self._quick.vectors is not self.vectors:
            self._quick = QuickSearch(self.quantizer, self._writer(params), tries, self.vectors, self._quick)
        return self._quick

    def _scannable(self, params: SearchParams, mask: Tensor | None) -> bool:
        """Whether a GPU answers by a scan of codes: items are re-ranked, under one filter for all, deletions or additions."""
        views = self._views
        return (
            self.device.type != "cpu"
            and self.writer is None
            and not params.full_depth
            and (mask is None or mask.ndim == 1)
            and bool(views)
            and QuickSearch.suits(self.quantizer, [view.trie for view in views])
        )

    @property
    def scan(self) -> BatchScan:
        """The scan of codes for many questions at once."""
        if self._scan is None or self._scan.views != self._views or self._scan.vectors is not self.vectors:
            assert self.quantizer is not None
            self._scan = BatchScan(self.quantizer, self._views, self.vectors)
        return self._scan

    @property
    def _views(self) -> list[TrieView]:
        return [view for view in (self.base, self.delta) if view is not None and view.trie.items]

    def _graph(self, params: SearchParams) -> GraphSearch:
        from genius.search.kernels import TritonOps

        fast = self._fast(params)
        if fast not in self._graphs:
            decoder = Decoder(self.generator, self.device, torch.float16) if fast else self.decoder
            vectors, scales = (None, None) if self.vectors is None else self.vectors.parts[0]
            self._graphs[fast] = GraphSearch(Parts(decoder, self.base, TritonOps(), vectors, scales))
        return self._graphs[fast]

    def _writer(self, params: SearchParams) -> Writer:
        """The one for a search step by step."""
        if self.writer is not None:
            return self.writer
        if self.device.type != "cpu" or not self._fast(params) or not self.generator_is_large:
            return self.decoder
        if self._int8 is None:
            self._int8 = Int8Decoder(self.generator)
        return self._int8

    def _fast(self, params: SearchParams) -> bool:
        return self.precision == "fast" or (self.precision == "auto" and params.rerank > 0 and params.reranker != "none")

    def _search(
        self,
        writer: Writer,
        z: Tensor,
        dense: Tensor,
        k: int,
        params: SearchParams,
        target: Tensor | None,
        mask: Tensor | None,
    ) -> SearchResult:
        """The search step by step: any parameters, any filter, additions and deletions."""
        result = SearchResult(
            torch.full((len(z), k), -1, dtype=torch.long, device=self.device),
            torch.full((len(z), k), -torch.inf, device=self.device),
            torch.zeros(len(z), dtype=torch.long, device=self.device),
        )
        if mask is not None and mask.ndim == 2:
            if len(mask) != len(z):
                raise GeniusError(f"allowed has {len(mask)} rows for {len(z)} queries")
            for code, queries in by_target(target, len(z), self.level_sizes[0], self.device):
                for q in queries.tolist():
                    self._fill(
                        writer, self._forest(mask[q]), z, dense, torch.tensor([q], device=self.device), code, k, params, result
                    )
            return result
        forest = self._forest(mask)
        for code, queries in by_target(target, len(z), self.level_sizes[0], self.device):
            for part in queries.split(QUERIES_AT_ONCE):
                self._fill(writer, forest, z, dense, part, code, k, params, result)
        return result

    def _forest(self, allowed: Tensor | None) -> Forest:
        views = [view for view in (self.base, self.delta) if view is not None]
        return Forest(views, self.level_sizes, self._alive_and(allowed))

    def _alive_and(self, allowed: Tensor | None) -> Tensor | None:
        return self.alive if allowed is None else allowed if self.alive is None else allowed & self.alive

    def _fill(
        self,
        writer: Writer,
        forest: Forest,
        z: Tensor,
        dense: Tensor,
        queries: Tensor,
        target: int,
        k: int,
        params: SearchParams,
        result: SearchResult,
    ) -> None:
        """Search `queries` and write their rows of `result`; again with wider beams where fewer than k came back."""
        lo, hi = forest.root(1)
        if target >= 0:
            first = forest.expand(0, lo, hi)
            existing = int(first.items[first.code == target].sum())
        else:
            existing = int(forest.items_below(0, lo, hi).sum())
        wanted = min(k, existing)
        if wanted == 0:
            return
        stop = 0 if params.full_depth else max(params.rerank, wanted)
        beams = params.beams
        while len(queries):
            short = []
            for found in decode(writer, forest, z[queries], beams, target=target, stop=stop):
                where = queries[found.queries]
                rows, scores, counts = self._rank(forest, found, z[where], dense[where], k, params)
                result.rows[where], result.scores[where], result.touched[where] = rows, scores, counts
                short.append(where[(rows >= 0).sum(1) < wanted])
            queries = torch.cat(short)
            beams = max(4 * beams, wanted)

    def _rank(
        self, forest: Forest, found: Beams, z: Tensor, dense: Tensor, k: int, params: SearchParams
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Items below the beams of finished queries -> rows (G, k), scores (G, k), items looked at (G,)."""
        group, width = found.scores.shape
        owner, row = forest.rows(found.level, found.lo.flatten(1), found.hi.flatten(1))
        beam, owner = owner, owner // width
        if params.reranker == "none":
            score = (found.scores / len(self.level_sizes)).flatten()[beam]
            return top_rows(owner, row, score, group, k)
        if params.rerank:  # more only when items share an ID at full depth: the best beams' items go first
            place = torch.arange(len(owner), device=owner.device) - torch.searchsorted(owner, owner)
            keep = place < max(params.rerank, k)
            owner, row = owner[keep], row[keep]
        if params.reranker == "embeddings":
            assert self.vectors is not None
            score = self.vectors.dots(dense, owner, row)
        else:
            if self._reconstructions is None:
                assert self.quantizer is not None
                self._reconstructions = Reconstructions(self.quantizer, self.device)
            score = self._reconstructions.cosine(z, owner, self._codes(row))
        return top_rows(owner, row, score, group, k)

    def _codes(self, row: Tensor) -> Tensor:
        """Codes (C, M) of item rows, wherever they live."""
        index = row.cpu().numpy()
        out = np.empty((len(index), len(self.level_sizes)), dtype=np.int64)
        new = index >= self.delta_start
        out[new] = self.delta_codes[index[new] - self.delta_start]
        if (~new).any():
            out[~new] = self.base.trie.codes_of(index[~new])
        return torch.from_numpy(out).to(self.device)


__all__ = ["Int8Rows", "SearchEngine"]
