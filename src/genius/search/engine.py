"""`SearchEngine`: queries in, item rows out. Checks the input once, picks a plan, re-ranks its candidates.

The rule: a beam search where one is asked for (`plan="beam"`, `rerank=0` or `reranker="none"`) or where there is nothing else to
compare; otherwise the cheaper one of `Flat` (all vectors) and `Scan` (product codes). The re-ranker is called once, after any
plan. Where the target modality of a query is unknown, log p(modality) is added to every score but a beam search's own, which
contains it. Where a bank of queries is known, the bias of each item is taken off (`genius.search.item_bias`).

Knows tensors, and one collection that does not change; what is alive, and when it pays to start anew, the index decides.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.features import check_finite
from genius.model.generator import Generator
from genius.model.quantizer import ResidualQuantizer
from genius.model.query_bank import QueryBank
from genius.search import rerank
from genius.search.beam import Beam, Trace, trace
from genius.search.collection import Collection
from genius.search.decoder import CodeScorer, Decoder
from genius.search.flat import Flat
from genius.search.item_bias import ItemBias
from genius.search.params import SearchParams
from genius.search.scan import Scan, ScanCache
from genius.search.trie import CodeTrie
from genius.search.types import Candidates, Plan, QueryBatch, SearchResult
from genius.search.vectors import Array, StoredVectors, Vectors


class SearchEngine:
    """One collection at one moment, ready to search on one device.

    Args:
        generator: The decoder: generates IDs and names the modality that a query wants.
        quantizer: What codes stand for; None: no re-ranking by codes.
        trie: Codes of all item rows.
        embeddings: (N, D) by item row, float32 or float16, possibly memory-mapped; or `Vectors`. None: only codes are stored.
        device: Where the search runs.
        on_host: Keep embeddings in host memory and bring to the device what a search compares.
        scorer: In place of the generator in a beam search (an ablation).
        bank: A sample of queries: the metric of a scan's codes, and a probe for the modality. None: the identity, the decoder.
        cache: Where the index of a scan is kept between processes; None: in memory only.

    Raises:
        GeniusError: If the parts do not fit each other.
    """

    def __init__(
        self,
        generator: Generator,
        quantizer: ResidualQuantizer | None,
        trie: CodeTrie,
        embeddings: Array | Vectors | None = None,
        device: str | torch.device = "cpu",
        *,
        on_host: bool = False,
        scorer: CodeScorer | None = None,
        bank: QueryBank | None = None,
        cache: ScanCache | None = None,
    ) -> None:
        for part in (generator, quantizer):
            if part is not None and part.config.level_sizes != trie.level_sizes:
                raise GeniusError(f"the trie has levels {trie.level_sizes}, the {type(part).__name__} {part.config.level_sizes}")
        self.device = torch.device(device)
        self.generator = generator
        self.scorer: CodeScorer = Decoder(generator) if scorer is None else scorer
        self.bank = bank
        vectors: Vectors | None = None
        if isinstance(embeddings, np.ndarray | Tensor):
            vectors = StoredVectors.of(embeddings, self.device, on_host)
        else:
            vectors = embeddings
        reconstruct = None if quantizer is None else rerank.Reconstructions(quantizer, self.device)
        labelled = quantizer is None or quantizer.config.labelled
        self.collection = Collection.of(trie, vectors, device=self.device, labelled=labelled, reconstruct=reconstruct)
        self.flat = Flat(self.collection)
        self.cache = cache
        self.scan = Scan(self.collection, None if bank is None else bank.metric, cache)
        self._bias_before: SearchEngine | None = None

    @cached_property
    def item_bias(self) -> ItemBias | None:
        """What the bank of queries says of each item; computed, extended or read when it is first asked for."""
        if self.bank is None:
            return None
        if self._bias_before is not None:
            before = self._bias_before.item_bias
            self._bias_before = None
            if before is not None:
                return before.extended(self.bank, self.collection)
        identity = "" if self.cache is None else f"{self.cache.identity}-{self.bank.digest()}"
        if self.cache is not None:
            known = ItemBias.load(self.cache.folder, identity, self.device)
            if known is not None and len(known) == self.rows:
                return known
        made = ItemBias.build(self.bank, self.collection)
        if made is not None and self.cache is not None and self.cache.writable:
            with suppress(OSError, GeniusError):  # without room or permission it serves from memory
                made.save(self.cache.folder, identity)
        return made

    @cached_property
    def beam(self) -> Beam:
        """The beam search; its trie is merged with what was added when it is first asked for."""
        return Beam(self.scorer, self.collection.trie)

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
        vectors = self.collection.vectors
        return len(vectors.segments) if isinstance(vectors, StoredVectors) else 0

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
        computed = "item_bias" in self.__dict__ or self._bias_before is None
        new._bias_before = self if computed else self._bias_before
        new.cache = None
        new.collection = self.collection.changed(first, added, embeddings, alive, trie)
        new.flat = Flat(new.collection)
        new.scan = self.scan.changed(new.collection)
        return new

    def prepare(self) -> None:
        """Load or build what a default search needs, so that the first one does not wait for it."""
        width = self.collection.vectors.width if self.collection.vectors is not None else 1
        batch = QueryBatch(torch.zeros(1, width), torch.zeros(1, width), torch.full((1,), -1))
        if self.pick(batch, 10, SearchParams()) is self.scan:
            self.scan.prepare()

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
        modality: Tensor | None = None,
    ) -> SearchResult:
        """The k best items of every query; fewer only if fewer exist.

        Args:
            z: (Q, D) fused query embeddings.
            k: Hits per query.
            params: How to search.
            dense: (Q, D) compared with stored vectors; default z.
            target: (Q,) given modality, -1 unknown; default unknown.
            allowed: (N,) or (Q, N) bool over item rows; default all.
            modality: (Q,) what each query consists of, -1 unknown; the item bias depends on it. Default unknown.

        Raises:
            GeniusError: If a query is not finite or of the wrong width, k is below 1, a filter has the wrong length, or the
                collection lacks what the plan or the re-ranker needs.
        """
        params = params or SearchParams()
        batch = self._batch(z, k, dense, target, allowed)
        if params.item_bias and modality is not None and self.item_bias is not None:
            batch = replace(batch, modality=modality.to(self.device), item_bias=self.item_bias)
        plan = self.pick(batch, k, params)
        if not self.collection.items or not len(batch):
            return self._ranked(batch, Candidates.empty(len(batch), self.device), k, params, plan)
        if plan.name != "beam":
            batch = self._with_modality(batch)
        return self._ranked(batch, plan.run(batch, k, params), k, params, plan)

    def pick(self, batch: QueryBatch, k: int, params: SearchParams) -> Plan:
        """The plan that serves a request.

        Args:
            batch: The queries.
            k: Number of hits.
            params: Settings of the search.

        Raises:
            GeniusError: If the plan that is asked for by name cannot serve it.
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
        scores = rerank.find(params.reranker)(batch, found, self.collection)
        if scores.shape != found.rows.shape:
            shapes = f"{tuple(scores.shape)} for candidates {tuple(found.rows.shape)}"
            raise GeniusError(f"the re-ranker {params.reranker!r} gave scores of shape {shapes}")
        prior = None if params.reranker == "none" else batch.prior(found.rows, self.collection.modality)
        if prior is not None:
            scores = scores + prior
        scores = scores.float().masked_fill(found.rows < 0, -torch.inf)
        if bool(torch.isnan(scores).any()):
            raise GeniusError(f"the re-ranker {params.reranker!r} gave NaN for an item")
        rows, values = rerank.top_k(found.rows, scores, k)
        return SearchResult(rows, values, found.considered, plan.name)

    def _with_modality(self, batch: QueryBatch) -> QueryBatch:
        """The batch with log p(modality | query), where a target is unknown and items of several modalities exist.

        It is relative to the likeliest modality that there is, so that the order is the same and scores keep their scale.
        """
        several = int((self.collection.modality_counts > 0).sum()) > 1
        if self.collection.modality is None or not several or bool((batch.target >= 0).all()):
            return batch
        log_probs = self.modality_log_probs(batch.z)
        there = torch.from_numpy(self.collection.modality_counts > 0).to(self.device)
        likeliest = log_probs.masked_fill(~there, -torch.inf).amax(1, keepdim=True)
        return replace(batch, modality_log_probs=log_probs - likeliest)  # items of the likeliest keep their similarity

    def modality_log_probs(self, z: Tensor) -> Tensor:
        """(Q, 3) log p(modality | query): by the bank's probe, or by the decoder's first step.

        Args:
            z: (Q, D) queries.
        """
        known = None if self.bank is None else self.bank.modality_log_probs(z)
        if known is not None:
            return known
        nothing = torch.empty(len(z), 1, 0, dtype=torch.long, device=z.device)
        log_probs, _ = self.scorer.next_log_probs(nothing, self.scorer.start(z))
        return log_probs[:, 0]

    # -- input -------------------------------------------------------------------------------------------------

    def _batch(
        self, z: Tensor, k: int, dense: Tensor | None, target: Tensor | None, allowed: NDArray[Any] | Tensor | None
    ) -> QueryBatch:
        """Queries on this device, checked."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise GeniusError(f"k must be at least 1, got {k!r}")
        z = self._vectors(z, "z")
        dense = z if dense is None else self._vectors(dense, "dense")
        if len(dense) != len(z):
            raise GeniusError(f"{len(dense)} dense vectors for {len(z)} queries")
        return QueryBatch(z, dense, self._target(target, len(z)), None, self._allowed(allowed, len(z)))

    def _vectors(self, vectors: Tensor, name: str) -> Tensor:
        width = self.generator.config.width
        if not isinstance(vectors, Tensor) or vectors.ndim != 2 or vectors.shape[1] != width:
            shape = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
            raise GeniusError(f"{name} must be (queries, {width}), got {shape}")
        check_finite(vectors, f"queries' {name}")
        return vectors.to(self.device, torch.float32)

    def _target(self, target: Tensor | None, queries: int) -> Tensor:
        if target is None or not self.collection.labelled:
            return torch.full((queries,), -1, dtype=torch.long, device=self.device)
        known = torch.as_tensor(target).to(self.device).long()
        size = self.collection.level_sizes[0]
        if known.shape != (queries,):
            raise GeniusError(f"target must be ({queries},), one per query, got {tuple(known.shape)}")
        if queries and (int(known.min()) < -1 or int(known.max()) >= size):
            raise GeniusError(f"target codes must be -1..{size - 1}, got {int(known.min())}..{int(known.max())}")
        return known

    def _allowed(self, allowed: NDArray[Any] | Tensor | None, queries: int) -> Tensor | None:
        if allowed is None:
            return self.collection.alive
        mask = torch.as_tensor(allowed, device=self.device)
        if mask.dtype != torch.bool or mask.ndim not in (1, 2) or mask.shape[-1] != self.rows:
            raise GeniusError(f"allowed must be bool with {self.rows} items last, got {mask.dtype} of shape {tuple(mask.shape)}")
        if mask.ndim == 2 and len(mask) != queries:
            raise GeniusError(f"allowed has {len(mask)} rows for {queries} queries")
        return mask if self.collection.alive is None else mask & self.collection.alive

    # -- why ---------------------------------------------------------------------------------------------------

    def trace(
        self,
        z: Tensor,
        ids: Tensor,
        *,
        params: SearchParams | None = None,
        target: int = -1,
        allowed: NDArray[Any] | Tensor | None = None,
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
        params = params or SearchParams()
        batch = self._batch(z, 1, None, None, allowed)
        return trace(
            self.scorer,
            self.collection.trie.to(self.device),
            batch.z,
            params.beams,
            ids=ids,
            target=target,
            allowed=batch.allowed,
            rejected=rejected,
        )
