"""What every model does with its encoder: items and queries -> vectors, with what a query does not want taken out.

`Embedder` is the common part of `Genius` (torch) and `GraphModel` (stored graphs, numpy): it is written over what tensors and
numpy arrays have in common. Knows features and vectors; nothing of codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genius.encoders.base import Encoder, OnError, encode_items, encode_queries
from genius.errors import GeniusError
from genius.features import Features, module_of
from genius.instructions import KnownInstructions
from genius.model.confidence import Confidence
from genius.model.config import GeniusConfig
from genius.model.known_items import Knows, load_knows
from genius.model.query_bank import QueryBank
from genius.types import Item, Query

if TYPE_CHECKING:
    from torch import Tensor

LEAST_LEFT = 1e-3  # length of what is left of a query without its unwanted part


@dataclass(frozen=True, slots=True)
class Embedded:
    """Items or queries in the model's space: tensors, or numpy arrays of a model without torch."""

    z: Tensor  # (N, D) fused unit vectors: what codes are made of and what the generator reads
    dense: Tensor  # (N, D) unit vectors for re-ranking and for the dense baseline
    modality: Tensor  # (N,) what each row consists of
    kept: list[int]  # positions of the inputs that could be read
    problems: list[str]  # one line for each that could not


class Embedder:
    """A model's encoder and what it is used for."""

    config: GeniusConfig
    encoder: Encoder | None
    knows: Knows | None
    queries: QueryBank | None
    instructions: KnownInstructions | None = None  # that it was trained with; None: instructions are encoded as they are

    @property
    def fitted(self) -> bool:
        """Whether its codes and decoder mean something; not, where a collection is compared whole and nothing was fitted yet."""
        return self.knows is None or self.knows.fitted

    def embed(self, features: Features) -> tuple[Any, Any]:
        """Features -> (z, dense), unit vectors (N, D)."""
        raise NotImplementedError

    def assign(self, z: Any, modality: Any) -> Any:
        """Codes (N, M) of unit vectors (N, D) whose items have these modalities (N,)."""
        raise NotImplementedError

    def encode(self, features: Features, chunk: int = 65_536) -> Any:
        """Codes (N, M) of items, int64.

        Args:
            features: the items as an encoder gave them.
            chunk: rows at a time, so that only codes grow with N: vectors of millions of items do not fit on a GPU.
        """
        codes = []
        for start in range(0, max(len(features), 1), chunk):
            part = features[start : start + chunk]
            codes.append(self.assign(self.embed(part)[0], part.modality))
        return module_of(codes[0]).concatenate(codes)

    def _on_device(self, array: Any) -> Any:
        """An array where z is."""
        return array

    def confidence(self, reranker: str) -> Confidence | None:
        """How scores become probabilities; None where the model was not calibrated for it.

        Args:
            reranker: where the scores come from: embeddings, codes or none.
        """
        weights = self.config.confidence.get(reranker)
        if weights is None:
            return None
        return Confidence.read(weights)

    def embed_items(self, items: Sequence[Item], *, on_error: OnError = "raise", batch_size: int = 64) -> Embedded:
        """Vectors of items.

        Args:
            items: what to embed.
            on_error: "raise", or "skip" to leave out what cannot be read: `problems` says what, `kept` are the others.
            batch_size: items that the encoder takes at a time.

        Examples:
            >>> from genius import Genius, Item
            >>> model = Genius.from_pretrained("bundled:mini")
            >>> model.embed_items([Item("1", text="a red bicycle"), Item("2", text="a blue boat")]).z.shape
            torch.Size([2, 256])
        """
        features, kept, problems = encode_items(self._encoder(), items, batch_size=batch_size, on_error=on_error)
        z, dense = self.embed(features)
        return Embedded(z, dense, self._on_device(features.modality), kept, problems)

    def embed_queries(self, queries: Sequence[Query], *, batch_size: int = 64) -> Embedded:
        """Vectors of queries; their instructions, or those of their target modalities, are part of them.

        An instruction in other words than those of training is replaced by one of those, if it names a target modality
        (`genius.instructions`); content in it stays.

        Args:
            queries: what to embed. What is not wanted (`Query.minus`) is taken out of each.
            batch_size: queries that the encoder takes at a time.

        Examples:
            >>> from genius import Genius, Query
            >>> model = Genius.from_pretrained("bundled:mini")
            >>> wanted, unwanted = model.embed_queries([Query("a bicycle", minus="a child"), Query("a child")]).z
            >>> abs(float(wanted @ unwanted)) < 1e-6
            True
        """
        unwanted = [query.minus for query in queries if query.minus is not None]
        both = [*queries, *unwanted]
        if self.instructions is not None:
            both = [self.instructions.in_own_words(query) for query in both]
        features = encode_queries(self._encoder(), both, batch_size=batch_size, instructions=self.config.instructions)
        z, dense = self.embed(features)
        if unwanted:
            rows = [row for row, query in enumerate(queries) if query.minus is not None]
            z = _without_unwanted(z, rows, len(queries))
            dense = _without_unwanted(dense, rows, len(queries))
        modality = self._on_device(features.modality[: len(queries)])
        return Embedded(z, dense, modality, list(range(len(queries))), [])

    def _learn_from(self, directory: Path) -> None:
        """Read what a model folder knows besides weights; the encoder classifies words that no list of instructions has."""
        self.knows = load_knows(directory)
        self.queries = QueryBank.load(directory, self.config.width)
        self.instructions = KnownInstructions.load(directory)
        if self.instructions is not None and self.encoder is not None:
            frozen = getattr(self.encoder, "tower_texts", None)  # before trained heads, which know the words of their data alone
            self.instructions.read_words_by(frozen or self.encoder.encode_texts)

    def _take(self, encoder: Encoder | None) -> None:
        if encoder is not None and encoder.width != self.config.width:
            raise GeniusError(f"the encoder is {encoder.width} wide, the model expects {self.config.width}")
        self.encoder = encoder

    def _encoder(self) -> Encoder:
        if self.encoder is None:
            raise GeniusError("this model has no encoder: it works on pre-extracted features only")
        return self.encoder


def _without_unwanted(vectors: Any, rows: list[int], queries: int) -> Any:
    """(Q, D) unit vectors of queries, those of `rows` without what they share with the unwanted ones that follow."""
    wanted = vectors[rows]
    unwanted = vectors[queries:]
    shared = (wanted * unwanted).sum(1).clip(0)
    left = wanted - shared[:, None] * unwanted
    lengths = (left * left).sum(1) ** 0.5
    if bool((lengths < LEAST_LEFT).any()):
        raise GeniusError("the query and its negative are the same: nothing is left to search for")
    out = vectors[:queries] + 0  # a copy
    out[rows] = left / lengths[:, None]
    return out
