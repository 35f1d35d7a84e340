"""`SearchEngine`: queries in, item rows out. Beam, early stop, re-ranking, filters.

Knows tensors only, and one collection that does not change: one trie, another of the rows added since, and which rows are alive.
What is alive, and when it pays to fold the two tries into one, the index decides; `changed` gives an engine that shows it.
"""

from __future__ import annotations

import copy
import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.search.batch_scan import BatchScan
from genius.search.beam import Beams, Trace, by_target, check_allowed, check_queries, decode, trace
from genius.search.cuda_graphs import GraphSearch
from genius.search.cuda_search import Parts
from genius.search.decoder import Decoder, Int8Decoder, Writer
from genius.search.forest import Forest, TrieView
from genius.search.head import int8_works
from genius.search.params import SearchParams, SearchResult
from genius.search.quick import QuickSearch
from genius.search.rerank import Reconstructions, Rows, Vectors, top_rows
from genius.search.trie import CodeTrie

Precision = Literal["auto", "exact", "fast"]
QUERIES_AT_ONCE = 32  # queries decoded together: bounds memory, keeps products large enough


@cache
def has_kernels(device: str) -> bool:
    """Whether searches can be recorded on this kind of device: on CUDA, where Triton is. Elsewhere they go step by step."""
    return device == "cuda" and importlib.util.find_spec("triton") is not None


@dataclass(frozen=True, slots=True)
class _Asked:
    """Queries of one call on this device, what is asked of them, and where the answers are written."""

    z: Tensor  # (Q, D)
    dense: Tensor  # (Q, D)
    k: int
    params: SearchParams
    result: SearchResult

    @classmethod
    def of(cls, z: Tensor, dense: Tensor, k: int, params: SearchParams) -> _Asked:
        nothing = SearchResult(
            torch.full((len(z), k), -1, dtype=torch.long, device=z.device),
            torch.full((len(z), k), -torch.inf, device=z.device),
            torch.zeros(len(z), dtype=torch.long, device=z.device),
        )
        return cls(z, dense, k, params, nothing)


class SearchEngine:
    """One collection at one moment, ready to search on one device."""

    def __init__(
        self,
        generator: Generator,
        quantizer: ResidualQuantizer | None,
        trie: CodeTrie,
        embeddings: Rows | None = None,
        device: str | torch.device = "cpu",
        precision: Precision = "auto",
        writer: Writer | None = None,
        beside: bool = False,
    ) -> None:
        """`embeddings` (N, D) by item row: fp32, fp16 or `Int8Rows`, possibly memory-mapped; `beside`: they stay in host memory,
        and a search brings the rows that it compares to the device. `precision` of the decoder:
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
        self.generator_is_large = generator.config.d_model >= 512 and int8_works()
        self._reconstructions: Reconstructions | None = None
        self._graphs: dict[bool, GraphSearch] = {}  # recorded searches (CUDA), by whether they are fast
        self._quick: QuickSearch | None = None  # the planned search on a CPU
        self._scans: dict[bool, BatchScan] = {}  # the same on a GPU, by whether it is fast
        self.base = TrieView(trie, self.device)
        self.delta: TrieView | None = None
        self.delta_codes = np.empty((0, trie.levels), dtype=np.int64)
        self.rows = int(trie.order.max()) + 1 if trie.items else 0  # rows given so far, dead or alive
        self.alive: Tensor | None = None  # (rows,) bool; None while nothing is deleted
        self.vectors = None if embeddings is None else Vectors(embeddings, self.device, beside)
        if self.vectors is not None and len(self.vectors) < self.rows:
            raise GeniusError(f"{len(self.vectors)} embeddings for {self.rows} item rows")
        if self.vectors is not None:
            self.rows = len(self.vectors)  # rows without codes are items deleted before
        self.delta_start = self.rows

    @property
    def blocks(self) -> int:
        """Pieces that the embeddings lie in: every search visits each."""
        return 0 if self.vectors is None else len(self.vectors.parts)

    def changed(
        self,
        first: int,
        added: NDArray[Any],
        embeddings: Rows | None = None,
        alive: NDArray[np.bool_] | None = None,
        trie: CodeTrie | None = None,
    ) -> SearchEngine:
        """An engine over what the collection has become. This one stays as it is; both share the decoder.

        added (n, M): codes of the rows from `first` on, which are all that the trie lacks. embeddings: of the rows that this
        engine lacks. alive (rows,): which rows can be found, None for all. trie: in place of this engine's.
        """
        new = copy.copy(self)
        if trie is not None:
            new.base, new._graphs = TrieView(trie, self.device), {}
        if embeddings is not None:
            if self.vectors is None:
                raise GeniusError("this collection stores no embeddings")
            new.vectors = self.vectors.extended(embeddings)
        new.rows, new.delta_start = first + len(added), first
        if new.vectors is not None and len(new.vectors) != new.rows:
            raise GeniusError(f"{len(new.vectors)} embeddings for {new.rows} item rows")
        if alive is not None and alive.shape != (new.rows,):
            raise GeniusError(f"alive has shape {alive.shape} for {new.rows} item rows")
        codes = np.asarray(added).astype(np.int64)
        if first != self.delta_start or not np.array_equal(codes, self.delta_codes):  # else: nothing was added, something died
            second = CodeTrie.build(codes, self.level_sizes, first + np.arange(len(codes)))  # checks the codes
            new.delta_codes, new.delta = codes, TrieView(second, self.device) if len(codes) else None
        new.alive = None if alive is None else torch.as_tensor(alive, device=self.device)
        return new

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
        scannable = self._scannable(params, allowed)
        recordable = self._recordable(params, allowed)
        calm = not (recordable or scannable)  # a recorded search flags NaN itself, without waiting for the device
        check_queries(z, finite=calm)
        z = z.to(self.device, torch.float32)
        dense = z if dense is None else dense.to(self.device, torch.float32)
        check_queries(dense, "dense", finite=calm and dense is not z)
        if len(dense) != len(z):
            raise GeniusError(f"{len(dense)} dense vectors for {len(z)} queries")
        if params.reranker == "embeddings" and self.vectors is None:
            raise GeniusError("this collection stores no embeddings: use reranker 'codes' or 'none'")
        if params.reranker == "codes" and self.quantizer is None:
            raise GeniusError("re-ranking by codes needs the quantizer")
        mask = check_allowed(allowed if allowed is None else torch.as_tensor(allowed), self.rows, self.device)
        quick = self._planned(params)
        if quick is not None:
            return quick.search(z, dense, k, params, target, self._alive_and(mask))
        if not (recordable or scannable) or not len(z):
            return self._search(_Asked.of(z, dense, k, params), target, mask)
        known = None if target is None else torch.as_tensor(target, device=self.device).long()
        if known is not None:
            list(by_target(known, len(z), self.level_sizes[0], self.device))  # checks them
        if scannable:
            own = None if mask is None else mask.clone()  # the caller may change it: what was made of it would be kept
            return self._scan(params).search(z, dense, k, params, known, self._alive_and(own))
        result, flags = self._graph(params).search(z, dense, k, params, known)
        again = flags.nonzero()[:, 0]  # waits for the device
        if len(again):  # queries that need another course than the recorded one, or hold NaN
            check_queries(z[again])
            check_queries(dense[again], "dense")
            asked = _Asked.of(z[again], dense[again], k, params)
            part = self._search(asked, None if known is None else known[again], None)
            result.rows[again], result.scores[again], result.touched[again] = part.rows, part.scores, part.touched
        return result

    def trace(
        self,
        z: Tensor,
        asked: Tensor,
        *,
        params: SearchParams | None = None,
        target: int = -1,
        allowed: NDArray[Any] | Tensor | None = None,
        rejected: int = 5,
    ) -> Trace:
        """How IDs are written for one query z (1, D), and how likely the IDs `asked` (n, M) are, whether found or not."""
        params = params or SearchParams()
        check_queries(z)
        mask = check_allowed(allowed if allowed is None else torch.as_tensor(allowed), self.rows, self.device)
        writer: Writer = self.decoder if self.writer is None else self.writer
        stop = 0 if params.full_depth else params.rerank
        z = z.to(self.device, torch.float32)
        return trace(writer, self._forest(mask), z, params.beams, target=target, stop=stop, rejected=rejected, asked=asked)

    def _recordable(self, params: SearchParams, allowed: object) -> bool:
        """Whether one recorded CUDA graph writes these IDs: the plain case, no filter, nothing added or deleted."""
        return (
            has_kernels(self.device.type)
            and self.writer is None
            and params.full_depth
            and params.reranker != "codes"
            and params.beams <= 1024
            and allowed is None
            and self.alive is None
            and self.delta is None
            and self.base.trie.items > 0
            and (self.vectors is None or (len(self.vectors.parts) == 1 and self.vectors.place == self.device))
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

    def _scannable(self, params: SearchParams, allowed: object) -> bool:
        """Whether a GPU answers by a scan of codes: items are re-ranked, under one filter for all or none."""
        views = self._views
        return (
            has_kernels(self.device.type)
            and self.writer is None
            and not params.full_depth
            and getattr(allowed, "ndim", 1) == 1
            and bool(views)
            and QuickSearch.suits(self.quantizer, [view.trie for view in views])
        )

    def _scan(self, params: SearchParams) -> BatchScan:
        """The scan of codes for many questions at once."""
        from genius.search.cuda_kernels import TritonOps

        fast = self._fast(params)
        scan = self._scans.get(fast)
        if scan is None or scan.views != self._views or scan.vectors is not self.vectors:
            assert self.quantizer is not None
            known = next(iter(self._scans.values()), None)
            made = BatchScan(self._decoder(fast), TritonOps(), self.quantizer, self._views, self.vectors, known)
            self._scans = {**self._scans, fast: made}  # engines that share this one's keep theirs
        return self._scans[fast]

    def _decoder(self, fast: bool) -> Decoder:
        """The one of a recorded search."""
        return Decoder(self.generator, self.device, torch.float16) if fast else self.decoder

    @property
    def _views(self) -> list[TrieView]:
        return [view for view in (self.base, self.delta) if view is not None and view.trie.items]

    def _graph(self, params: SearchParams) -> GraphSearch:
        from genius.search.cuda_kernels import TritonOps

        fast = self._fast(params)
        if fast not in self._graphs:
            vectors, scales = (None, None) if self.vectors is None else self.vectors.parts[0]
            self._graphs[fast] = GraphSearch(Parts(self._decoder(fast), self.base, TritonOps(), vectors, scales))
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

    def _search(self, asked: _Asked, target: Tensor | None, mask: Tensor | None) -> SearchResult:
        """The search step by step: any parameters, any filter, additions and deletions."""
        own = mask is not None and mask.ndim == 2  # a filter of its own for every query
        if own and mask is not None and len(mask) != len(asked.z):
            raise GeniusError(f"allowed has {len(mask)} rows for {len(asked.z)} queries")
        forest = None if own else self._forest(mask)
        for code, queries in by_target(target, len(asked.z), self.level_sizes[0], self.device):
            for part in queries.split(1 if own else QUERIES_AT_ONCE):
                here = self._forest(None if mask is None else mask[part[0]]) if forest is None else forest
                self._fill(asked, here, part, code)
        return asked.result

    def _forest(self, allowed: Tensor | None) -> Forest:
        views = [view for view in (self.base, self.delta) if view is not None]
        return Forest(views, self.level_sizes, self._alive_and(allowed))

    def _alive_and(self, allowed: Tensor | None) -> Tensor | None:
        return self.alive if allowed is None else allowed if self.alive is None else allowed & self.alive

    def _fill(self, asked: _Asked, forest: Forest, queries: Tensor, target: int) -> None:
        """Search `queries` and write their answers; again with wider beams where fewer than k came back."""
        params, result, writer = asked.params, asked.result, self._writer(asked.params)
        lo, hi = forest.root(1)
        if target >= 0:
            first = forest.expand(0, lo, hi)
            existing = int(first.items[first.code == target].sum())
        else:
            existing = int(forest.items_below(0, lo, hi).sum())
        wanted = min(asked.k, existing)
        if wanted == 0:
            return
        stop = 0 if params.full_depth else max(params.rerank, wanted)
        beams = params.beams
        while len(queries):
            short = []
            for found in decode(writer, forest, asked.z[queries], beams, target=target, stop=stop):
                where = queries[found.queries]
                rows, scores, counts = self._rank(asked, forest, found, where)
                result.rows[where], result.scores[where], result.touched[where] = rows, scores, counts
                short.append(where[(rows >= 0).sum(1) < wanted])
            queries = torch.cat(short)
            beams = max(4 * beams, wanted)

    def _rank(self, asked: _Asked, forest: Forest, found: Beams, queries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Items below the beams of finished queries (G,) -> rows (G, k), scores (G, k), items looked at (G,)."""
        params, k = asked.params, asked.k
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
            score = self.vectors.dots(asked.dense[queries], owner, row)
        else:
            if self._reconstructions is None:
                assert self.quantizer is not None
                self._reconstructions = Reconstructions(self.quantizer, self.device)
            score = self._reconstructions.cosine(asked.z[queries], owner, self._codes(row))
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
