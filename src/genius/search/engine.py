"""`SearchEngine`: queries in, item rows out. Checks the input once, picks a plan, re-ranks its candidates.

The rule: a beam search where one is wanted (`plan="beam"`, `rerank=0` or `reranker="none"`) or where there is nothing else to
compare; otherwise the cheaper one of `Flat` (all vectors) and `Scan` (product codes). The re-ranker is called once, after any
plan. Where the target modality of a query is unknown, log p(modality) is added to every score but a beam search's own, which
contains it. Where a bank of queries is known, the bias of each item is taken off (`genius.search.item_bias`); in a beam search
it is a prior of the items whose IDs were generated.

Knows arrays, and one collection that does not change; what is alive, and when it pays to start anew, the index decides.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.features import as_numpy, check_finite
from genius.optional import LazyPart, import_torch
from genius.search import rerank
from genius.search.arrays import HOST, Arrays, Floats, Ints
from genius.search.collection import Collection
from genius.search.flat import Flat
from genius.search.item_bias import ItemBias
from genius.search.params import SearchParams
from genius.search.scan import Scan, ScanCache
from genius.search.trie import CodeTrie
from genius.search.types import MODALITIES, Candidates, QueryBatch, SearchResult
from genius.search.vectors import StoredVectors, Vectors

BIAS_IN_LOG_P = 15.0  # what a bias of 1 takes off a log-probability; chosen on validation queries (`lab.item_bias`)
BACKGROUND = 256  # random items of a modality with which a query is compared, to see how similar it is to anything

if TYPE_CHECKING:  # these import torch
    from genius.model.generator import Generator
    from genius.model.quantizer import ResidualQuantizer
    from genius.model.query_bank import QueryBank
    from genius.search.beam import Beam, Trace
    from genius.search.decoder import CodeScorer


class Plan(Protocol):
    """One way to find candidates. Every plan obeys targets and `allowed`, and returns k items while k exist."""

    @property
    def name(self) -> str:
        """What `SearchParams.plan` and reports call it."""
        ...

    def suits(self, batch: QueryBatch, k: int, params: SearchParams) -> bool:
        """Whether it can serve this request at all.

        Args:
            batch: The queries.
            k: Candidates per query.
            params: Settings of the search.
        """
        ...

    def cost(self, batch: QueryBatch, k: int, params: SearchParams) -> float:
        """Rough milliseconds of this batch; the engine takes the cheapest plan that suits.

        Args:
            batch: The queries.
            k: Candidates per query.
            params: Settings of the search.
        """
        ...

    def run(self, batch: QueryBatch, k: int, params: SearchParams) -> Candidates:
        """At least k candidates of every query, while k exist.

        Args:
            batch: The queries.
            k: Candidates per query.
            params: Settings of the search.
        """
        ...


class SearchEngine:
    """One collection at one moment, ready to search on one device.

    Args:
        generator: The decoder: generates IDs and, without a bank, names the modality that a query wants. May be lazy.
        quantizer: What codes stand for; None: no re-ranking by codes. May be lazy.
        trie: Codes of all item rows.
        embeddings: (N, D) by item row, float32 or float16, possibly memory-mapped; or `Vectors`. None: only codes are stored.
        device: Where the search runs.
        on_host: Keep embeddings in host memory and bring to the device what a search compares.
        scorer: In place of the generator in a beam search (an ablation).
        bank: A sample of queries: the metric of a scan's codes, and a probe for the modality. None: the identity, the decoder.
        bias_bank: Queries that item biases follow from, in place of those of `bank`.
        cache: Where the index of a scan is kept between processes; None: in memory only.
        by_codes: Without embeddings: compare queries with what codes stand for, in every plan.

    Raises:
        GeniusError: If the parts do not fit each other.
    """

    def __init__(
        self,
        generator: Generator | LazyPart,
        quantizer: ResidualQuantizer | LazyPart | None,
        trie: CodeTrie,
        embeddings: Any = None,
        device: Any = "cpu",
        *,
        on_host: bool = False,
        scorer: CodeScorer | None = None,
        bank: QueryBank | None = None,
        bias_bank: QueryBank | None = None,
        cache: ScanCache | None = None,
        by_codes: bool = False,
    ) -> None:
        for name, part in (("Generator", generator), ("ResidualQuantizer", quantizer)):
            if part is not None and part.config.level_sizes != trie.level_sizes:
                raise GeniusError(f"the trie has levels {trie.level_sizes}, the {name} {part.config.level_sizes}")
        self.device = str(device)
        self.bank = bank
        self.bias_bank = bias_bank or bank
        self.cache = cache
        self.width = int(generator.config.width)
        self._generator = generator
        self._scorer = scorer
        self._bias_before: SearchEngine | None = None
        labelled = True
        reconstruct = None
        if quantizer is not None:
            labelled = quantizer.config.labelled
            reconstruct = _LazyReconstructions(quantizer)
        vectors = placed(embeddings, self.device, on_host)
        self.collection = Collection.of(
            trie, vectors, device=self.device, labelled=labelled, reconstruct=reconstruct, by_codes=by_codes
        )
        self.flat = Flat(self.collection)
        self.scan = Scan(self.collection, bank, cache)

    @cached_property
    def scorer(self) -> CodeScorer:
        """What scores codes: the decoder around the generator, or what was given in its place."""
        if self._scorer is not None:
            return self._scorer
        import_torch("the decoder")
        from genius.search.decoder import Decoder

        return Decoder(_loaded(self._generator))

    @cached_property
    def item_bias(self) -> ItemBias | None:
        """What the bank of queries says of each item; computed, extended or read when it is first needed."""
        if self.bias_bank is None:
            return None
        if self._bias_before is not None:
            before = self._bias_before.item_bias
            self._bias_before = None
            if before is not None:
                return before.extended(self.bias_bank, self.collection)
        if self.cache is None:
            return ItemBias.build(self.bias_bank, self.collection)
        identity = f"{self.cache.identity}-{self.bias_bank.digest()}"
        known = ItemBias.load(self.cache.folder, identity, self.collection.modality)
        if known is not None:
            return known
        made = ItemBias.build(self.bias_bank, self.collection)
        if made is not None and self.cache.writable:
            with suppress(OSError, GeniusError):  # on a full or read-only disk it serves from memory
                made.save(self.cache.folder, identity)
        return made

    @cached_property
    def code_bias(self) -> ItemBias | None:
        """What is taken off scores made of codes: the part of the item bias that held-out queries have judged for them."""
        if self.item_bias is None or self.bias_bank is None:
            return None
        return self.item_bias.for_codes(self.bias_bank)

    def bias_for(self, params: SearchParams) -> ItemBias | None:
        """What a search takes off the scores of items.

        Args:
            params: How to search.
        """
        if not params.item_bias:
            return None
        if params.reranker in ("codes", "none") or self.collection.by_codes:
            return self.code_bias
        return self.item_bias

    @cached_property
    def beam(self) -> Beam:
        """The beam search; its trie is merged with what was added when it is first needed."""
        import_torch("a beam search")
        from genius.search.beam import Beam

        return Beam(self.scorer, self.collection.trie, device=self.device)

    @property
    def rows(self) -> int:
        """Item rows given so far, dead or alive."""
        return len(self.collection)

    @property
    def vectors(self) -> Vectors | None:
        """Stored vectors by row."""
        return self.collection.vectors

    @property
    def segments(self) -> int:
        """Pieces that the embeddings lie in: every search visits each."""
        return int(getattr(self.collection.vectors, "segments", 0))

    def changed(
        self,
        first: int,
        added: NDArray[Any],
        embeddings: NDArray[Any] | None = None,
        alive: NDArray[np.bool_] | None = None,
        trie: CodeTrie | None = None,
    ) -> SearchEngine:
        """An engine over what the collection has become. This one stays as it is; both share the decoder.

        Args:
            first: Rows before it are in the trie.
            added: (n, M) codes of the rows from `first` on.
            embeddings: Of the rows that this engine lacks.
            alive: (N,) which rows can be found; None: all that have codes.
            trie: In place of this engine's.
        """
        new = copy.copy(self)
        new.__dict__.pop("beam", None)
        new.__dict__.pop("item_bias", None)
        new.__dict__.pop("code_bias", None)
        new.__dict__.pop("_background_sample", None)
        computed = "item_bias" in self.__dict__ or self._bias_before is None
        if computed:
            new._bias_before = self
        new.cache = None
        new.collection = self.collection.changed(first, added, embeddings, alive, trie)
        new.flat = Flat(new.collection)
        new.scan = self.scan.changed(new.collection)
        return new

    def prepare(self) -> None:
        """Load or build what a default search needs, so that the first one does not wait for it."""
        zeros = np.zeros((1, self.width), np.float32)
        batch = QueryBatch(zeros, zeros, np.full(1, -1))
        if self.pick(batch, 10, SearchParams()) is self.scan:
            self.scan.prepare()

    # -- search ------------------------------------------------------------------------------------------------

    def search(
        self,
        z: Any,
        *,
        k: int,
        params: SearchParams | None = None,
        dense: Any = None,
        target: Any = None,
        allowed: Any = None,
        modality: Any = None,
    ) -> SearchResult:
        """The k best items of every query; fewer only if fewer exist.

        Args:
            z: (Q, D) fused query embeddings; like the other arguments a numpy array or a tensor.
            k: Hits per query.
            params: How to search.
            dense: (Q, D) compared with stored vectors; default z.
            target: (Q,) given modality, -1 unknown; default unknown.
            allowed: (N,) or (Q, N) bool over item rows; default all.
            modality: (Q,) what each query consists of, -1 unknown; the item bias and the effort of a scan depend on it. Default
                unknown.

        Raises:
            GeniusError: If a query is not finite or of the wrong width, k is below 1, a filter has the wrong length, or the
                collection lacks what the plan or the re-ranker needs.
        """
        params = params or SearchParams()
        batch = self._batch(z, k, dense, target, allowed, modality, params)
        plan = self.pick(batch, k, params)
        if not self.collection.items or not len(batch):
            return self._ranked(batch, Candidates.empty(len(batch)), k, params, plan)
        if plan.name != "beam" or self._has_probe:
            batch = self._with_modality(batch)
        return self._ranked(batch, plan.run(batch, k, params), k, params, plan)

    def pick(self, batch: QueryBatch, k: int, params: SearchParams) -> Plan:
        """The plan that serves a request.

        Args:
            batch: The queries.
            k: Number of hits.
            params: Settings of the search.

        Raises:
            GeniusError: If the plan that is given by name cannot serve it.
        """
        plans: dict[str, Plan] = {"flat": self.flat, "scan": self.scan}
        if params.plan in plans:
            plan = plans[params.plan]
            if not plan.suits(batch, k, params):
                raise GeniusError(f"the plan {plan.name!r} does not suit this collection: it stores no vectors")
            return plan
        if params.generates:
            return self.beam
        suited = [plan for plan in plans.values() if plan.suits(batch, k, params)]
        if not suited:
            return self.beam
        return min(suited, key=lambda plan: plan.cost(batch, k, params))

    def _ranked(self, batch: QueryBatch, found: Candidates, k: int, params: SearchParams, plan: Plan) -> SearchResult:
        """The best k candidates by the re-ranker."""
        arrays: Arrays = HOST
        if self.collection.stored is not None:
            arrays = self.collection.stored.arrays
        scores = arrays.put(rerank.find(params.reranker)(batch, found, self.collection))
        if tuple(scores.shape) != found.rows.shape:
            shapes = f"{tuple(scores.shape)} for candidates {found.rows.shape}"
            raise GeniusError(f"the re-ranker {params.reranker!r} gave scores of shape {shapes}")
        if params.reranker != "none":
            prior = batch.prior(found.rows, self.collection.modality)
            if prior is not None:
                scores = scores + arrays.put(prior)
        elif plan.name == "beam":
            bias = batch.bias(found.rows)
            if bias is not None:
                scores = scores - arrays.put(np.float32(BIAS_IN_LOG_P / len(self.collection.level_sizes)) * bias)
        total = scores.sum()
        if total != total and (arrays.host(scores != scores) & (found.rows >= 0)).any():  # NaN in a sum is rare
            raise GeniusError(f"the re-ranker {params.reranker!r} gave NaN for an item")
        rows, values = rerank.top_k(found.rows, scores, k, arrays)
        return SearchResult(rows, values, found.considered, plan.name)

    def _with_modality(self, batch: QueryBatch) -> QueryBatch:
        """The batch with log p(modality | query), where a target is unknown and items of several modalities exist.

        It is relative to the likeliest modality that there is, so that the order is the same and scores keep their scale.
        """
        if not self.collection.has_several_modalities or int(batch.target.min()) >= 0:
            return batch
        exists = self.collection.modality_counts > 0
        log_probs = self.modality_log_probs(batch.z)
        likeliest = np.where(exists, log_probs, -np.inf).max(1, keepdims=True)
        relative = (log_probs - likeliest).astype(np.float32)
        return replace(batch, modality_log_probs=relative)  # items of the likeliest keep their similarity

    @property
    def _has_probe(self) -> bool:
        """Whether the query bank tells the target modality; beams of a model without one take the decoder's word."""
        return self.bank is not None and self.bank.probe_weight is not None

    def modality_log_probs(self, z: Any) -> Floats:
        """(Q, 3) log p(modality | query): by the bank's probe, or by the decoder's first step.

        Args:
            z: (Q, D) queries.
        """
        if self.bank is not None:
            known = self.bank.modality_log_probs(as_numpy(z))
            if known is not None:
                return known
        if self._scorer is None and isinstance(self._generator, LazyPart) and self._generator.modality_log_probs is not None:
            return as_numpy(self._generator.modality_log_probs(as_numpy(z)))
        from genius.search.decoder import first_log_probs

        return first_log_probs(self.scorer, as_numpy(z), self.device)

    @cached_property
    def _background_sample(self) -> list[Floats]:
        """(n, D) vectors of random items of each modality."""
        vectors = self.collection.vectors
        modality = self.collection.modality
        nothing = np.zeros((0, self.width), np.float32)
        if vectors is None or modality is None:
            return [nothing] * MODALITIES
        there = np.ones(len(modality), bool)
        if self.collection.alive is not None:
            there = self.collection.alive
        random = np.random.default_rng(0)
        parts = []
        for target in range(MODALITIES):
            rows = np.flatnonzero(there & (modality == target))
            rows = np.sort(random.permutation(rows)[:BACKGROUND])
            part = nothing
            if len(rows):
                part = vectors.arrays.host(vectors.take(rows))
            parts.append(part)
        return parts

    def background(self, dense: Any) -> Floats:
        """How similar queries are to items in general, by modality: what a similarity has to be compared with.

        Args:
            dense: (Q, D) queries.

        Returns:
            (Q, 3, 2) mean and standard deviation of the similarity to a sample of items of each modality; NaN without items.
        """
        queries = as_numpy(dense).astype(np.float32)
        out = np.full((len(queries), MODALITIES, 2), np.nan, np.float32)
        for target, vectors in enumerate(self._background_sample):
            if len(vectors):
                similarities = queries @ vectors.T
                out[:, target, 0] = similarities.mean(1)
                out[:, target, 1] = similarities.std(1)
        return out

    # -- input -------------------------------------------------------------------------------------------------

    def _batch(
        self, z: Any, k: int, dense: Any, target: Any, allowed: Any, modality: Any = None, params: SearchParams | None = None
    ) -> QueryBatch:
        """Queries, checked."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise GeniusError(f"k must be at least 1, got {k!r}")
        z = self._vectors(z, "z")
        compared = z
        if dense is not None and not self.collection.by_codes:  # codes stand for z
            compared = self._vectors(dense, "dense")
        if len(compared) != len(z):
            raise GeniusError(f"{len(compared)} dense vectors for {len(z)} queries")
        known = self._target(target, len(z))
        visible = self._allowed(allowed, len(z))
        if modality is None:
            return QueryBatch(z, compared, known, None, visible)
        of_queries = _modalities("modality", modality, len(z), MODALITIES)
        return QueryBatch(z, compared, known, None, visible, of_queries, self.bias_for(params or SearchParams()))

    def _vectors(self, vectors: Any, name: str) -> Floats:
        shape = getattr(vectors, "shape", None)
        if shape is None or len(shape) != 2 or shape[1] != self.width:
            given = type(vectors).__name__ if shape is None else tuple(shape)
            raise GeniusError(f"{name} must be (queries, {self.width}), got {given}")
        numbers = np.ascontiguousarray(as_numpy(vectors), np.float32)
        check_finite(numbers, f"queries' {name}")
        return numbers

    def _target(self, target: Any, queries: int) -> Ints:
        if target is None or not self.collection.labelled:
            return np.full(queries, -1, np.int64)
        return _modalities("target", target, queries, self.collection.level_sizes[0])

    def _allowed(self, allowed: Any, queries: int) -> NDArray[np.bool_] | None:
        if allowed is None:
            return self.collection.alive
        mask = as_numpy(allowed)
        if mask.dtype != bool or mask.ndim not in (1, 2) or mask.shape[-1] != self.rows:
            raise GeniusError(f"allowed must be bool with {self.rows} items last, got {mask.dtype} of shape {mask.shape}")
        if mask.ndim == 2 and len(mask) != queries:
            raise GeniusError(f"allowed has {len(mask)} rows for {queries} queries")
        return self.collection.allowed_rows(mask)

    # -- why ---------------------------------------------------------------------------------------------------

    def trace(
        self,
        z: Any,
        ids: Any,
        *,
        params: SearchParams | None = None,
        target: int = -1,
        allowed: Any = None,
        rejected: int = 5,
    ) -> Trace:
        """How a beam search generates IDs for one query, and how likely given IDs are.

        Args:
            z: (1, D).
            ids: (n, M) IDs whose log-probabilities are wanted, found or not.
            params: Its beams count.
            target: Given modality, -1 unknown.
            allowed: (N,) bool over item rows.
            rejected: How many of the best that were not kept are listed per level.
        """
        import_torch("the trace of a beam search")
        from genius.search.beam import modality_scores, trace
        from genius.search.tensors import tensor_arrays

        params = params or SearchParams()
        batch = self._batch(z, 1, None, np.array([target]), allowed)
        arrays = tensor_arrays(self.device)
        visible = None
        if batch.allowed is not None:
            visible = arrays.put(batch.allowed)
        first = None
        if self._has_probe:
            first = modality_scores(self._with_modality(batch), arrays)
        return trace(
            self.scorer,
            self.collection.trie.on(arrays),
            arrays.put(batch.z),
            params.beams,
            ids=arrays.put(as_numpy(ids)),
            target=int(batch.target[0]),
            allowed=visible,
            first=first,
            rejected=rejected,
        )


def _modalities(name: str, given: Any, queries: int, count: int) -> Ints:
    """(Q,) one per query, -1 unknown."""
    known = as_numpy(given).astype(np.int64)
    if known.shape != (queries,):
        raise GeniusError(f"{name} must be ({queries},), one per query, got {known.shape}")
    if queries and (int(known.min()) < -1 or int(known.max()) >= count):
        raise GeniusError(f"{name} codes must be -1..{count - 1}, got {int(known.min())}..{int(known.max())}")
    return known


def _loaded(part: Any) -> Any:
    """A part of a model, loaded where it is lazy."""
    if isinstance(part, LazyPart):
        return part.load()
    return part


class _LazyReconstructions:
    """What codes stand for; the quantizer is loaded when it is first needed."""

    def __init__(self, quantizer: Any) -> None:
        self._quantizer = quantizer

    @cached_property
    def _reconstructions(self) -> rerank.Reconstructions:
        return rerank.Reconstructions(_loaded(self._quantizer))

    def __call__(self, codes: Ints) -> Floats:
        return self._reconstructions(codes)


def placed(embeddings: Any, device: str = "cpu", on_host: bool = False) -> Vectors | None:
    """Stored vectors where they are compared.

    Args:
        embeddings: (N, D) array or tensor, or `Vectors`; None: there are none.
        device: "cpu", or a device of torch.
        on_host: Keep them in host memory and bring to the device what a search compares.
    """
    if embeddings is None:
        return None
    vectors = embeddings
    if hasattr(embeddings, "dtype"):
        vectors = StoredVectors.of(embeddings)
    if device == "cpu" or not isinstance(vectors, StoredVectors):
        on_cpu: Vectors = vectors
        return on_cpu
    from genius.search.tensors import TensorVectors, tensor_arrays

    return TensorVectors(vectors, tensor_arrays(device), on_host)
