"""The re-ranked search on a CPU, planned by cost: compare all vectors, or one decoder row and a code scan.

- A collection whose vectors are read faster than the decoder runs is compared whole: same answers as exhaustive search. Many
  questions read them once.
- Otherwise the decoder's first row picks cells, `genius.search.scan` looks at the codes in them, and the vectors of the best few
  are compared (or none: the codes' own nearness ranks). For a single question that row is computed in numpy (`FirstRow`): it is
  so little work that calling torch costs more than the arithmetic.

`rerank` is the effort: SCANNED times as many codes are looked at, and the vectors of COMPARED of it are compared. Everything
that is allowed is compared where that is no more than `rerank`. Filters, deletions and additions are rows passed over or tries
scanned beside the first; the answer never has fewer than k items while k exist. Knows vectors, codes and masks over rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.model.quantizer import ResidualQuantizer
from genius.search.beam import BROKEN, by_target
from genius.search.decoder import CodebookHead, Decoder, Writer
from genius.search.lookups import Floats, Found, Ints, Mask, compiled, plain
from genius.search.params import SearchParams, SearchResult
from genius.search.rerank import Vectors
from genius.search.scan import Cells, CodeScan
from genius.search.trie import CodeTrie

SCANNED = 15  # codes looked at for each item that `rerank` grants (2,000: 30,000 codes, a third of a millisecond)
COMPARED = 0.4  # vectors compared for each
FLAT_BYTES = 20 << 20  # of vectors that are compared whole: about as long as one decoder row and a scan
PICKED = 5  # vectors read in a row in the time of one that is picked out
READ = 4096  # vectors that many questions are compared with at a time: they stay in the cache meanwhile
FEW = 2  # questions up to which numpy is quicker than torch
AT_ONCE = 32  # questions whose first rows are decoded together
DOUBT = 2e-3  # by which a product in half precision may be wrong


class FirstRow:
    """What `Decoder.start`, `run` and `log_p` compute for the first code after the kind of a single question; a test holds them
    together. For a decoder whose head is tied to the codebooks; shares its weights, nothing is copied."""

    def __init__(self, decoder: Decoder, head: CodebookHead) -> None:
        config = decoder.config
        self.heads, self.inner, self.eps = decoder.heads, decoder.inner, decoder.eps
        self.tokens, self.d_model = config.prefix_tokens, config.d_model
        self.prefix, self.prefix_bias = decoder.prefix_weight.numpy().T, decoder.prefix_bias.numpy()
        self.prefix_norm = decoder.prefix_norm.numpy()
        self.bias = decoder.bias[0, :, :2, :2].numpy()  # (heads, 2, 2)
        self.layers = [
            tuple(
                weight.numpy()
                for weight in (layer.qkv, layer.out, layer.cross_q, layer.cross_kv, layer.cross_out, layer.ff_in, layer.ff_out)
            )
            for layer in decoder.layers
        ]
        self.start, self.kinds = head.start.numpy(), head.modality_in.numpy()
        self.kind_weight, self.kind_bias = (part.numpy() for part in head.modality_out)
        self.bend, self.bend_bias = (part.numpy() for part in head.bend[0])
        self.doubled, self.means = head.doubled[0].numpy(), head.means.numpy()  # (1 or 3,), (3, D)
        self.books, self.biases = head.books[0].numpy(), head.biases[0].numpy()

    def liked(self, z: Floats, kinds: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """z (D,) -> log p of the kinds (all of them), and of every first code of each of `kinds`: (n, K)."""
        memory = self._norm((z @ self.prefix + self.prefix_bias).reshape(self.tokens, self.d_model)) * self.prefix_norm
        beams = len(kinds)
        read = np.empty((beams, 2, self.d_model), np.float32)
        read[:, 0], read[:, 1] = self.start, self.kinds[kinds]
        x: Floats = read.reshape(2 * beams, self.d_model)
        for qkv, out, cross_q, cross_kv, cross_out, ff_in, ff_out in self.layers:
            q, k, v = np.split(self._norm(x) @ qkv, 3, axis=1)
            x = x + self._attend(self._split(q, beams), self._split(k, beams), self._split(v, beams), self.bias) @ out
            k, v = np.split(memory @ cross_kv, 2, axis=1)
            x = x + self._attend(self._split(self._norm(x) @ cross_q, 1), self._split(k, 1), self._split(v, 1)) @ cross_out
            x = x + np.maximum(self._norm(x) @ ff_in, 0) @ ff_out
        state = self._norm(x).reshape(beams, 2, self.d_model)
        scale = self.doubled if len(self.doubled) == 1 else self.doubled[kinds, None]
        aim = (state[:, 1] @ self.bend.T + self.bend_bias + z - self.means[kinds]) * scale
        if len(self.books) == 1:
            logits = aim @ self.books[0].T + self.biases[0]
        else:
            logits = np.stack([aim[i] @ self.books[kind].T + self.biases[kind] for i, kind in enumerate(kinds.tolist())])
        return _log_softmax(self.kind_weight @ state[0, 0] + self.kind_bias), _log_softmax(logits)

    def _norm(self, x: Floats) -> Floats:
        scaled: Floats = x * (1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(self.eps)))
        return scaled

    def _split(self, x: Floats, beams: int) -> Floats:
        return x.reshape(beams, -1, self.heads, self.inner // self.heads).transpose(0, 2, 1, 3)  # (beams, heads, length, d_kv)

    def _attend(self, q: Floats, k: Floats, v: Floats, bias: Floats | None = None) -> Floats:
        scores = q @ k.transpose(0, 1, 3, 2)
        if bias is not None:
            scores = scores + bias
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed: Floats = (scores @ v).transpose(0, 2, 1, 3).reshape(-1, self.inner)
        return mixed


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    out: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return out


class QuickSearch:
    """One collection at one moment: tries, vectors, and what was derived from them. Made again when a trie changes."""

    def __init__(
        self,
        quantizer: ResidualQuantizer,
        writer: Writer,
        tries: Sequence[CodeTrie],
        vectors: Vectors | None,
        before: QuickSearch | None = None,
    ) -> None:
        """`before`: what this takes the place of; what it knows of tries that stayed is kept."""
        self._cells: Sequence[Cells] = () if before is None or before._scan is None else before._scan.cells
        self.quantizer, self.writer, self.tries, self.vectors = quantizer, writer, list(tries), vectors
        self.first_row = None
        if type(writer) is Decoder and isinstance(writer.head, CodebookHead) and writer.dtype == torch.float32:
            self.first_row = FirstRow(writer, writer.head)
        self._scan: CodeScan | None = None
        self._kinds: NDArray[np.uint8] | None = None

    @staticmethod
    def suits(quantizer: ResidualQuantizer | None, tries: Sequence[CodeTrie]) -> bool:
        return CodeScan.suits(quantizer, tries)

    @property
    def scan(self) -> CodeScan:
        if self._scan is None:
            self._scan = CodeScan(self.quantizer, self.tries, self._cells)
        return self._scan

    def search(
        self, z: Tensor, dense: Tensor, k: int, params: SearchParams, target: Tensor | None, allowed: Tensor | None
    ) -> SearchResult:
        """`allowed` (N,) or (Q, N) bool: what is alive and passes the filter; None: everything."""
        result = SearchResult(
            torch.full((len(z), k), -1, dtype=torch.long),
            torch.full((len(z), k), -torch.inf),
            torch.zeros(len(z), dtype=torch.long),
        )
        masks = None if allowed is None else allowed.numpy()
        if masks is not None and masks.ndim == 2 and len(masks) != len(z):
            raise GeniusError(f"allowed has {len(masks)} rows for {len(z)} queries")
        for code, queries in by_target(target, len(z), self.quantizer.config.level_sizes[0], z.device):
            for part in queries.split(AT_ONCE):
                self._group(z[part], dense[part], k, params, code, masks, part.numpy(), result)
        return result

    def _group(
        self,
        z: Tensor,
        dense: Tensor,
        k: int,
        params: SearchParams,
        target: int,
        masks: Mask | None,
        queries: Ints,
        result: SearchResult,
    ) -> None:
        """Questions that want the same kind."""
        whole, most = self._wants_all(params, target), max(params.rerank, k)
        liked = tables = middles = few = rough = None
        share, shared = 1.0, masks is None or masks.ndim == 1
        for i, query in enumerate(queries.tolist()):
            mask = masks if masks is None or shared else masks[query]
            if i == 0 or not shared:
                share = 1.0 if mask is None else float(np.count_nonzero(mask)) / max(len(mask), 1)
                few = self._few(target, mask, most) if params.reranker == "embeddings" else None
                if few is not None and whole and PICKED * len(few) > len(self.kinds):
                    few = None
            if few is not None:
                found = self._compare(dense[i], few, k)
            elif whole:
                rough = self._products(dense) if rough is None else rough
                found = self._flat(rough[i], dense[i], target, mask, k)
            else:
                if liked is None or tables is None or middles is None:
                    liked = self._liked(z, target)
                    tables, middles = self.scan.tables(z, target), (z @ self.scan.means.T).numpy()
                own = [None if table is None else table[i] for table in tables]
                found = self._scanned(liked[i], own, middles[i], z[i], dense[i], k, params, mask, share)
            rows, scores, touched = found
            result.rows[query, : len(rows)], result.scores[query, : len(rows)] = rows, scores
            result.touched[query] = touched

    # -- everything --------------------------------------------------------------------------------------------

    def _wants_all(self, params: SearchParams, target: int) -> bool:
        """Whether reading all vectors is the cheaper plan. Which kind is meant, only the decoder says: it must be told, or there
        must be but one, or so few items that the codes of all would be looked at, whatever the decoder says."""
        if params.reranker != "embeddings" or self.vectors is None:
            return False
        if target < 0 and sum(trie.items for trie in self.tries) > SCANNED * params.rerank and self._several:
            return False
        return all(part.is_floating_point() for part, _ in self.vectors.parts) and self.vectors.nbytes <= FLAT_BYTES

    @property
    def _several(self) -> bool:
        return len({int(kind) for trie in self.tries for kind in np.asarray(trie.node_codes[0])}) > 1

    @property
    def kinds(self) -> NDArray[np.uint8]:
        """(rows,) kind of every row that has a code; 255: deleted before."""
        if self._kinds is None:
            assert self.vectors is not None
            self._kinds = np.full(len(self.vectors), 255, np.uint8)
            for trie in self.tries:
                for kind in np.asarray(trie.node_codes[0]).tolist():
                    lo, hi = self._range(trie, kind)
                    self._kinds[trie.order[lo:hi]] = kind
        return self._kinds

    @staticmethod
    def _range(trie: CodeTrie, target: int) -> tuple[int, int]:
        """Sorted positions of one kind, or of all (-1)."""
        lo, hi = (0, trie.items) if target < 0 else trie.item_range(1, *trie.find([target]))
        return int(lo), int(hi)

    def _products(self, dense: Tensor) -> Tensor:
        """(Q, rows) of questions and all vectors: one by one in the vectors' own precision, many in float32."""
        assert self.vectors is not None
        parts = [part for part, _ in self.vectors.parts]
        if len(dense) <= FEW:
            return torch.stack([torch.cat([torch.mv(part, one.to(part.dtype)).float() for part in parts]) for one in dense])
        pieces = [piece for part in parts for piece in part.split(READ)]
        return torch.cat([dense @ piece.float().T for piece in pieces], 1)

    def _flat(self, rough: Tensor, dense: Tensor, target: int, mask: Mask | None, k: int) -> tuple[Tensor, Tensor, int]:
        """The best of all by their products (rows,); what may be among them is compared again, one way for everyone."""
        keep = self.kinds != 255 if target < 0 else self.kinds == target
        if mask is not None:
            keep = keep & mask
        wanted = min(k, int(np.count_nonzero(keep)))
        if not wanted:
            return _nothing()
        rough = rough.masked_fill(torch.from_numpy(~keep), -torch.inf)
        least = rough.topk(wanted).values[-1] - DOUBT * float(dense.norm().clamp(min=1.0))
        rows, scores, _ = self._compare(dense, (rough >= least).nonzero()[:, 0].numpy(), k)
        return rows, scores, int(np.count_nonzero(keep))

    def _few(self, target: int, mask: Mask | None, most: int) -> Ints | None:
        """The allowed rows, where the kind or the filter alone lets no more than `most` through."""
        ranges = [self._range(trie, target) for trie in self.tries]
        held = sum(hi - lo for lo, hi in ranges)
        if min(held, held if mask is None else int(np.count_nonzero(mask))) > most:
            return None
        rows = np.concatenate([np.asarray(t.order[lo:hi], np.int64) for t, (lo, hi) in zip(self.tries, ranges, strict=True)])
        return rows if mask is None else rows[mask[rows]]

    def _compare(self, dense: Tensor, rows: Ints, k: int) -> tuple[Tensor, Tensor, int]:
        """The best of some rows by their vectors. Those that quick products leave in the running are measured one way for all, so
        that a score depends on nothing but the question and the item."""
        assert self.vectors is not None
        count, rows = len(rows), np.sort(rows)
        if count > k:
            rough = self._rough(dense, rows)
            rows = rows[rough >= np.partition(rough, count - k)[count - k] - DOUBT * float(dense.norm().clamp(min=1.0))]
        index = torch.from_numpy(rows)
        return (*_best(index, (self.vectors.take(index) * dense).sum(1), k), count)

    def _rough(self, dense: Tensor, rows: Ints) -> Floats:
        """Products with the vectors of some rows, summed in any order."""
        assert self.vectors is not None
        part, kernel = self.vectors.parts[0][0], compiled("_products")
        if kernel is None or len(self.vectors.parts) > 1 or part.dtype != torch.float16:
            return (self.vectors.take(torch.from_numpy(rows)) @ dense).numpy()
        rough = np.empty(len(rows), np.float32)
        kernel(plain(part.numpy().view(np.uint16)), rows, dense.numpy(), rough)
        return rough

    # -- the scan ----------------------------------------------------------------------------------------------

    def _liked(self, z: Tensor, target: int) -> Floats:
        liked = (
            self.scan.liked(self.writer, z, target)
            if self.first_row is None or len(z) > FEW
            else self._liked_one_by_one(z, target)
        )
        if np.isnan(liked).any():
            raise GeniusError(BROKEN)
        return liked

    def _liked_one_by_one(self, z: Tensor, target: int) -> Floats:
        assert self.first_row is not None
        kinds, size = self.scan.kinds, self.scan.sizes[1]
        asked = np.arange(kinds) if target < 0 else np.array([target])
        out = np.full((len(z), kinds, size), -np.inf, np.float32)
        for i, query in enumerate(z.numpy()):
            kind, codes = self.first_row.liked(query, asked)
            out[i, asked] = codes + (kind[asked, None] if target < 0 else 0)
        return out.reshape(len(z), -1)

    def _scanned(
        self,
        liked: Floats,
        tables: Sequence[Floats | None],
        middles: Floats,
        z: Tensor,
        dense: Tensor,
        k: int,
        params: SearchParams,
        mask: Mask | None,
        share: float,
    ) -> tuple[Tensor, Tensor, int]:
        """A filter lets a share through: so much more is passed over. If too few came of it, the next cells are looked at too."""
        if share == 0.0:
            return _nothing()
        budget = int(max(SCANNED * params.rerank, k) / share)
        found = self.scan.scan(liked, tables, middles, budget, mask)
        while (looked_at := int(found.items.sum())) < k and budget < int(self.scan.counts[liked > -np.inf].sum()):
            budget *= 4
            found = self.scan.scan(liked, tables, middles, budget, mask)
        if not looked_at:
            return _nothing()
        if params.reranker == "codes":
            return (*self._by_codes(z, found, k, mask), looked_at)
        least = found.least_of_best(granted(params, k))
        near = self.scan.rows_of(found.ids[found.scores >= least], mask)  # items with one ID go together
        rows, values, _ = self._compare(dense, near, k)
        return rows, values, looked_at

    def _by_codes(self, z: Tensor, found: Found, k: int, mask: Mask | None) -> tuple[Tensor, Tensor]:
        """The best by their reconstructions: those that a length held in steps leaves in doubt are measured exactly."""
        least = float(found.least_of_best(k)) - 2 * self.scan.doubt * float(z.norm())
        rows, codes = self.scan.codes_of(found.ids[found.scores >= least], mask)
        exact = self.scan.lengths.cosine(z[None], torch.zeros(len(rows), dtype=torch.long), torch.from_numpy(codes))
        return _best(torch.from_numpy(rows), exact, k)


def _best(rows: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The best k; of equals, what came first."""
    values, at = scores.sort(descending=True, stable=True)
    return rows[at[:k]], values[:k]


def granted(params: SearchParams, k: int) -> int:
    """Items whose vectors are compared."""
    return max(int(COMPARED * params.rerank), k)


def _nothing() -> tuple[Tensor, Tensor, int]:
    return torch.empty(0, dtype=torch.long), torch.empty(0), 0
