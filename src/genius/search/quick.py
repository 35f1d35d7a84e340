"""The re-ranked search on a CPU, planned by cost: compare all vectors, or one decoder row and a code scan.

- A collection whose vectors are read faster than the decoder runs is compared whole: same answers as exhaustive search. Many
  questions read them once.
- Otherwise the decoder's first row picks cells, `genius.search.scan` looks at the codes in them, and the vectors of the best few
  are compared (or none: the codes' own nearness ranks). That row is computed in numpy (`FirstRow`), where it is half the work.

`rerank` is the effort: SCANNED times as many codes are looked at, and the vectors of COMPARED of it are compared. Everything
that is allowed is compared where that is no more than `rerank`. Filters, deletions and additions are rows passed over or tries
scanned beside the first; the answer never has fewer than k items while k exist. Knows vectors, codes and masks over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.model.quantizer import ResidualQuantizer
from genius.search.beam import BROKEN, by_target
from genius.search.decoder import CodebookHead, Decoder, Writer
from genius.search.lookups import Floats, Found, Ints, Mask, Rounded, compiled, plain
from genius.search.params import SearchParams, SearchResult
from genius.search.rerank import Vectors
from genius.search.scan import Cells, CodeScan, Question
from genius.search.trie import CodeTrie

SCANNED = 12  # codes looked at for each item that `rerank` grants (2,000: 24,000 codes, a fifth of a millisecond)
COMPARED = 0.6  # vectors compared for each
FLAT_BYTES = 20 << 20  # of vectors that are compared whole: about as long as one decoder row and a scan
PICKED = 5  # vectors read in a row in the time of one that is picked out
READ = 4096  # vectors that many questions are compared with at a time: they stay in the cache meanwhile
FEW = 2  # questions up to which numpy is quicker than torch
AT_ONCE = 32  # questions whose first rows are decoded together
DOUBT = 2e-3  # by which a product in half precision may be wrong
ORDER = 1e-5  # by which one in float32 may differ that is summed in another order

Answer = tuple[Ints, Floats, int]  # rows and scores, best first, and how many items were looked at


class FirstRow:
    """What `Decoder.start`, `run` and `log_p` compute for the first code after the kind; a test holds them together. For a head
    that is tied to the codebooks, and in half the arithmetic: there is one row for the start, which sees nothing but itself, and
    one for each kind, which sees both; what they read first is the same for every question; and the few tokens of the prefix are
    multiplied with the rows that ask, never turned into keys and values of their own. Its weights are in 8 bits: it only says
    where to look."""

    def __init__(self, decoder: Decoder, head: CodebookHead) -> None:
        config = decoder.config
        self.heads, self.inner, self.eps = decoder.heads, decoder.inner, np.float32(decoder.eps)
        self.tokens, self.width = config.prefix_tokens, config.d_model
        self.prefix, self.prefix_bias = Rounded(decoder.prefix_weight.numpy().T), decoder.prefix_bias.numpy()
        self.prefix_norm = decoder.prefix_norm.numpy()
        self.nearer = (decoder.bias[0, :, 1, 1] - decoder.bias[0, :, 1, 0]).numpy()  # (heads,) a row itself over the start
        layers = []
        for layer in decoder.layers:
            keys, values = layer.cross_kv.view(self.width, 2, self.heads, -1).permute(1, 2, 3, 0).numpy()  # (heads, d_kv, d)
            own = (layer.qkv, layer.out, layer.cross_q, layer.cross_out, layer.ff_in, layer.ff_out)
            layers.append((*(weight.numpy() for weight in own), keys, values.transpose(0, 2, 1)))
        self.weights = [Rounded(np.stack(same)) for same in zip(*layers, strict=True)]  # of all layers
        # the rows of the start and of every kind after the first layer's attention to each other, and what they ask of the prefix
        qkv, out, cross_q, _, _, _, keys, _ = layers[0]
        read = np.concatenate([head.start.numpy()[None], head.modality_in.numpy()])
        self.read = read + self._attend((self._norm(read) @ qkv)[None])[0] @ out
        self.asked = np.ascontiguousarray(self._ask(self._norm(self.read) @ cross_q, keys))
        self.kind_weight, self.kind_bias = (part.numpy() for part in head.modality_out)
        # logits: a scale times products of the first codes with z and with what the state bends it by, and what never changes
        (bend, bend_bias), kinds = (part.numpy() for part in head.bend[0]), len(self.kind_bias)
        parts = (part[0].numpy() for part in (head.books, head.biases, head.doubled))
        books, biases, scale = (np.broadcast_to(part, (kinds, *part.shape[1:])) for part in parts)
        self.codes, self.scale = [Rounded(np.concatenate([book, book @ bend], 1).T) for book in books], scale[:, None]
        self.always = biases + self.scale * (books @ (bend_bias - head.means.numpy())[:, :, None])[:, :, 0]

    def liked(self, z: Floats, target: int) -> Floats:
        """z (Q, D) -> log p of every cell (Q, kinds, K), or, up to what is added to all alike, of those of one kind (Q, 1, K)."""
        kinds = range(len(self.kind_bias)) if target < 0 else range(target, target + 1)
        states = self._states(z, kinds)
        logits = np.empty((len(z), len(kinds), self.always.shape[1]), np.float32)
        for j, kind in enumerate(kinds):
            products = self.codes[kind].times(np.concatenate([z, states[:, j - len(kinds)]], 1), FEW)
            logits[:, j] = self.scale[kind] * products + self.always[kind]
        if target >= 0:
            return logits
        return _log_softmax(logits) + _log_softmax(states[:, 0] @ self.kind_weight.T + self.kind_bias)[:, :, None]

    def _states(self, z: Floats, kinds: range) -> Floats:
        """(Q, rows, d) after the last layer: the start's and one a kind. Of one kind alone its own: the start has served then."""
        queries, rows, told = len(z), 1 + len(kinds), len(kinds) == 1
        kernel = compiled("_states") if queries <= FEW else None
        if kernel is not None:
            out = np.empty((queries, rows - told, self.width), np.float32)
            begin = kinds.start, kinds.stop, self.read, self.asked, self.nearer, self.eps, self.prefix_bias, self.prefix_norm
            kernel(z, *begin, *self.prefix.parts, *(part for weight in self.weights for part in weight.parts), out)
            return out
        here = [0, *(1 + kind for kind in kinds)]
        memory = (z @ self.prefix.plain + self.prefix_bias).reshape(queries, self.tokens, self.width)
        memory = self._norm(memory) * self.prefix_norm
        x = np.broadcast_to(self.read[here], (queries, rows, self.width)).reshape(queries * rows, self.width)
        asked = self.asked[:, None, here]
        layers = list(zip(*(weight.plain for weight in self.weights), strict=True))
        for i, (qkv, out, cross_q, cross_out, ff_in, ff_out, keys, values) in enumerate(layers):
            if i:
                mixed = self._attend((self._norm(x) @ qkv).reshape(queries, rows, 3 * self.inner))
                if i == len(layers) - 1 and told:
                    mixed, x, rows = mixed[:, 1:], x.reshape(queries, rows, self.width)[:, 1:].reshape(queries, self.width), 1
                x = x + mixed.reshape(queries * rows, self.inner) @ out
                asked = self._ask(self._norm(x) @ cross_q, keys).reshape(self.heads, queries, rows, self.width)
            heard = _softmax(asked @ memory.transpose(0, 2, 1)) @ memory  # (heads, Q, rows, d)
            heard = heard.reshape(self.heads, queries * rows, self.width) @ values
            x = x + heard.transpose(1, 0, 2).reshape(queries * rows, self.inner) @ cross_out
            x = x + np.maximum(self._norm(x) @ ff_in, 0) @ ff_out
        return self._norm(x).reshape(queries, rows, self.width)

    def _norm(self, x: Floats) -> Floats:
        scaled: Floats = x * (1 / np.sqrt(np.einsum("...d,...d->...", x, x)[..., None] / np.float32(self.width) + self.eps))
        return scaled

    def _attend(self, qkv: Floats) -> Floats:
        """(Q, rows, 3 * inner) -> (Q, rows, inner): the first row hears itself, the others it and themselves."""
        q, k, v = qkv.reshape(*qkv.shape[:2], 3, self.heads, -1).transpose(2, 0, 1, 3, 4)
        own = 1 / (1 + np.exp(-(np.einsum("qrhk,qrhk->qrh", q[:, 1:], k[:, 1:] - k[:, :1]) + self.nearer)))
        mixed: Floats = np.concatenate([v[:, :1], v[:, :1] + own[..., None] * (v[:, 1:] - v[:, :1])], 1)
        return mixed.reshape(*qkv.shape[:2], self.inner)

    def _ask(self, q: Floats, keys: Floats) -> Floats:
        """(rows, inner) -> (heads, rows, d) what a token of the prefix is multiplied with."""
        asked: Floats = q.reshape(len(q), self.heads, -1).transpose(1, 0, 2) @ keys
        return asked


def _softmax(scores: Floats) -> Floats:
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    out: Floats = scores / scores.sum(-1, keepdims=True)
    return out


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
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._stored: NDArray[Any] | None = None  # all vectors, where they lie in one piece as they are
        if vectors is not None and len(vectors.parts) == 1 and vectors.parts[0][1] is None:
            self._stored = plain(vectors.parts[0][0].numpy())

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
        found = np.full((len(z), k), -1), np.full((len(z), k), -np.inf, np.float32), np.zeros(len(z), np.int64)
        masks = None if allowed is None else allowed.numpy()
        if masks is not None and masks.ndim == 2 and len(masks) != len(z):
            raise GeniusError(f"allowed has {len(masks)} rows for {len(z)} queries")
        asked, other = z.detach().numpy(), dense.detach().numpy()
        for code, queries in by_target(target, len(z), self.quantizer.config.level_sizes[0], z.device):
            for i in range(0, len(queries), AT_ONCE):
                part = queries[i : i + AT_ONCE].numpy()
                self._group(asked[part], other[part], k, params, code, masks, part, found)
        return SearchResult(*(torch.from_numpy(column) for column in found))

    def _group(
        self,
        z: Floats,
        dense: Floats,
        k: int,
        params: SearchParams,
        target: int,
        masks: Mask | None,
        queries: Ints,
        out: tuple[Ints, Floats, Ints],
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
                    tables = self.scan.tables(z, target, exact=params.reranker == "codes")
                    liked, middles = self._liked(z, target), z @ self.scan.means.T
                own = [None if table is None else table[i] for table in tables]
                asked = Question(target, liked[i], own, middles[i], mask)
                found = self._scanned(asked, z[i], dense[i], k, params, share)
            rows, scores, out[2][query] = found
            out[0][query, : len(rows)], out[1][query, : len(rows)] = rows, scores

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

    def _products(self, questions: Floats) -> Tensor:
        """(Q, rows) of questions and all vectors: one by one in the vectors' own precision, many in float32."""
        assert self.vectors is not None
        parts, dense = [part for part, _ in self.vectors.parts], torch.from_numpy(questions)
        if len(dense) <= FEW:
            return torch.stack([torch.cat([torch.mv(part, one.to(part.dtype)).float() for part in parts]) for one in dense])
        pieces = [piece for part in parts for piece in part.split(READ)]
        return torch.cat([dense @ piece.float().T for piece in pieces], 1)

    def _flat(self, rough: Tensor, dense: Floats, target: int, mask: Mask | None, k: int) -> Answer:
        """The best of all by their products (rows,); what may be among them is compared again, one way for everyone."""
        keep = self.kinds != 255 if target < 0 else self.kinds == target
        if mask is not None:
            keep = keep & mask
        wanted = min(k, int(np.count_nonzero(keep)))
        if not wanted:
            return _nothing()
        rough = rough.masked_fill(torch.from_numpy(~keep), -torch.inf)
        least = rough.topk(wanted).values[-1] - DOUBT * max(float(np.linalg.norm(dense)), 1.0)
        rows, scores, _ = self._compare(dense, (rough >= least).nonzero()[:, 0].numpy(), k)
        return rows, scores, int(np.count_nonzero(keep))

    def _few(self, target: int, mask: Mask | None, most: int) -> Ints | None:
        """The allowed rows, where the kind or the filter alone lets no more than `most` through."""
        if target not in self._ranges:
            self._ranges[target] = [self._range(trie, target) for trie in self.tries]
        ranges = self._ranges[target]
        held = sum(hi - lo for lo, hi in ranges)
        if min(held, held if mask is None else int(np.count_nonzero(mask))) > most:
            return None
        rows = np.concatenate([np.asarray(t.order[lo:hi], np.int64) for t, (lo, hi) in zip(self.tries, ranges, strict=True)])
        return rows if mask is None else rows[mask[rows]]

    def _compare(self, dense: Floats, rows: Ints, k: int) -> Answer:
        """The best of some rows by their vectors. Those that quick products leave in the running are measured one way for all, so
        that a score depends on nothing but the question and the item."""
        if (count := len(rows)) > k:
            rough = self._rough(dense, rows)
            doubt = ORDER * max(float(np.linalg.norm(dense)), 1.0)
            rows = rows[rough >= np.partition(rough, count - k)[count - k] - doubt]
        rows = np.sort(rows)
        return (*_best(rows, (self._taken(rows) * dense).sum(1), k), count)

    def _rough(self, dense: Floats, rows: Ints) -> Floats:
        """Products with the vectors of some rows, summed in any order."""
        kernel = None if self._stored is None or self._stored.dtype != np.float16 else compiled("_products")
        if kernel is None or self._stored is None:
            assert self.vectors is not None
            product: Floats = self.vectors.take(torch.from_numpy(rows)).numpy() @ dense  # of many rows torch takes more a second
            return product
        rough = np.empty(len(rows), np.float32)
        kernel(self._stored.view(np.uint16), rows, dense, rough)
        return rough

    def _taken(self, rows: Ints) -> Floats:
        """Vectors of some rows."""
        if self._stored is not None:
            return self._stored[rows].astype(np.float32, copy=False)
        assert self.vectors is not None
        return self.vectors.take(torch.from_numpy(rows)).numpy()

    # -- the scan ----------------------------------------------------------------------------------------------

    def _liked(self, z: Floats, target: int) -> Floats:
        """(Q, cells) log p, of the kind that is asked for."""
        if self.first_row is None:
            liked = self.scan.liked(self.writer, torch.from_numpy(z), target)
        else:
            liked = self.first_row.liked(z, target).reshape(len(z), -1)
        if np.isnan(liked.max()):
            raise GeniusError(BROKEN)
        return liked

    def _scanned(self, asked: Question, z: Floats, dense: Floats, k: int, params: SearchParams, share: float) -> Answer:
        """A filter lets a share through: so much more is passed over. If too few came of it, the next cells are looked at too."""
        if share == 0.0:
            return _nothing()
        budget = int(max(SCANNED * params.rerank, k) / share)
        found = self.scan.scan(asked, budget)
        while (looked_at := int(found.items.sum())) < k and budget < self.scan.held(asked.target):
            budget *= 4
            found = self.scan.scan(asked, budget)
        if not looked_at:
            return _nothing()
        if params.reranker == "codes":
            return (*self._by_codes(z, found, k, asked.allowed), looked_at)
        least = found.least_of_best(granted(params, k))
        near = self.scan.rows_of(found, least, asked.allowed)  # items with one ID go together
        rows, values, _ = self._compare(dense, near, k)
        return rows, values, looked_at

    def _by_codes(self, z: Floats, found: Found, k: int, mask: Mask | None) -> tuple[Ints, Floats]:
        """The best by their reconstructions: those that a length held in steps leaves in doubt are measured exactly."""
        least = float(found.least_of_best(k)) - 2 * self.scan.doubt * float(np.linalg.norm(z))
        rows, codes = self.scan.codes_of(found.ids[found.scores >= least], mask)
        whose = torch.zeros(len(rows), dtype=torch.long)
        exact = self.scan.lengths.cosine(torch.from_numpy(z)[None], whose, torch.from_numpy(codes))
        return _best(rows, exact.numpy(), k)


def _best(rows: Ints, scores: Floats, k: int) -> tuple[Ints, Floats]:
    """The best k; of equals, what came first."""
    at = np.argsort(-scores, kind="stable")[:k]
    return rows[at], scores[at]


def granted(params: SearchParams, k: int) -> int:
    """Items whose vectors are compared."""
    return max(int(COMPARED * params.rerank), k)


def _nothing() -> Answer:
    return np.empty(0, np.int64), np.empty(0, np.float32), 0
