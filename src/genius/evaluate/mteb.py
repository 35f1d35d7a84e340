"""GENIUS inside MTEB: a model as a search model. Needs the extra `mteb`.

    import mteb
    from genius.evaluate.mteb import GeniusSearch
    mteb.evaluate(GeniusSearch("bundled:mini"), mteb.get_tasks(tasks=["CIRRIT2IRetrieval"]))

`GeniusSearch` is MTEB's `SearchProtocol`: rows with `id` and any of `text`, `title`, `image`, `instruction` come in. Nothing of
MTEB is imported before it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from genius.encoders.base import batched, encode_items, encode_queries
from genius.errors import GeniusError
from genius.model.genius import Genius
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.types import Item, Modality, Query, instruction_for

_LETTERS = {"i": Modality.IMAGE, "t": Modality.TEXT, "it": Modality.PAIR}


class GeniusSearch:
    """Implements MTEB's `SearchProtocol`: encode and index a corpus once, then answer its queries.

    Args:
        model: A model with an encoder, or its URI.
        params: How to search; the model's defaults if None.
        name: That MTEB stores results under.
        chunk: Rows whose images are in memory at once.

    Raises:
        GeniusError: If the model has no encoder.
    """

    def __init__(
        self, model: str | Genius, *, params: SearchParams | None = None, name: str | None = None, chunk: int = 2048
    ) -> None:
        default_name = "genius/model"
        if isinstance(model, str):
            default_name = f"genius/{model.rsplit('/', 1)[-1]}"
            model = Genius.from_pretrained(model)
        self.model = model
        if self.model.encoder is None:
            raise GeniusError("MTEB evaluates images and texts: the model needs an encoder")
        self.params = params or SearchParams.of_model(self.model)
        self.name = name or default_name
        self.chunk = chunk
        self._ids: list[str] = []
        self._engine: SearchEngine | None = None

    # -- SearchProtocol ----------------------------------------------------------------------------------------

    def index(self, corpus: Any, *, encode_kwargs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Encode the corpus and build its trie.

        Args:
            corpus: Rows with `id` and any of `text`, `title`, `image`.
            encode_kwargs: `batch_size` of the encoder.
            _: What else MTEB hands over; not used.

        Raises:
            GeniusError: If the corpus is empty.
        """
        batch = int((encode_kwargs or {}).get("batch_size", 64))
        assert self.model.encoder is not None
        ids: list[str] = []
        codes = []
        dense = []
        for rows in batched(map(dict, corpus), self.chunk):
            items = [_item(row) for row in rows]
            features, _kept, _problems = encode_items(self.model.encoder, items, batch_size=batch)
            z, ranked = self.model.embed(features)
            codes.append(self.model.quantizer.encode(z, features.modality.to(self.model.device)).cpu().numpy())
            dense.append(ranked.half())
            ids += [item.id for item in items]
        if not ids:
            raise GeniusError("the MTEB corpus is empty")
        trie = CodeTrie.build(np.concatenate(codes), self.model.config.quantizer.level_sizes)
        self._ids = ids
        self._engine = SearchEngine(
            self.model.generator, self.model.quantizer, trie, torch.cat(dense), device=str(self.model.device)
        )

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any = None,
        top_k: int = 100,
        encode_kwargs: Mapping[str, Any] | None = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """The best documents of each query.

        Args:
            queries: Rows with `id` and any of `text`, `image`, `instruction`.
            task_metadata: MTEB's; its category says which modality is looked for.
            top_k: Documents of each query.
            encode_kwargs: `batch_size` of the encoder.
            top_ranked: Query id -> the only documents to rank (re-ranking tasks).
            _: What else MTEB hands over; not used.

        Returns:
            Query id -> document id -> score.

        Raises:
            GeniusError: If no corpus was indexed.
        """
        if self._engine is None:
            raise GeniusError("index a corpus first")
        batch = int((encode_kwargs or {}).get("batch_size", 64))
        assert self.model.encoder is not None
        target = _target(task_metadata)
        place = {name: row for row, name in enumerate(self._ids)}
        out: dict[str, dict[str, float]] = {}
        for rows in batched(map(dict, queries), self.chunk):
            batch_queries = [_query(row, target) for row in rows]
            z, dense = self.model.embed(encode_queries(self.model.encoder, batch_queries, batch_size=batch))
            names = [str(row["id"]) for row in rows]
            allowed = None
            if top_ranked is not None:
                allowed = _allowed(names, top_ranked, place, len(self._ids))
            result = self._engine.search(z, k=min(top_k, len(self._ids)), params=self.params, dense=dense, allowed=allowed)
            for name, items, scores in zip(names, result.rows.tolist(), result.scores.tolist(), strict=True):
                out[name] = {self._ids[row]: float(score) for row, score in zip(items, scores, strict=True) if row >= 0}
        return out

    @property
    def mteb_model_meta(self) -> Any:
        """What MTEB stores with the results."""
        try:
            from mteb.models import ModelMeta
        except ImportError:
            raise GeniusError("MTEB is not installed: pip install 'genius-search[mteb]'") from None
        count = sum(p.numel() for p in self.model.network.parameters())
        return ModelMeta(
            loader=None, name=self.name, revision=self.model.fingerprint()[:12], release_date=None, languages=None,
            n_parameters=count, memory_usage_mb=None, max_tokens=None, embed_dim=self.model.config.width, license=None,
            open_weights=True, public_training_code=None, public_training_data=None, framework=["PyTorch"],
            similarity_fn_name="cosine", use_instructions=True, training_datasets=None, modalities=["image", "text"],
        )  # fmt: skip


def _item(row: Mapping[str, Any]) -> Item:
    text = " ".join(part for part in (row.get("title"), row.get("text") or row.get("body")) if part)
    return Item(str(row["id"]), image=row.get("image"), text=text or None)


def _query(row: Mapping[str, Any], target: Modality | None) -> Query:
    text = row.get("text") or row.get("query")
    if isinstance(text, list):  # a conversation: what was said last
        text = text[-1]
        if isinstance(text, Mapping):
            text = text["content"]
        text = str(text)
    query = Query(text=text or None, image=row.get("image"))
    instruction = row.get("instruction")
    if not instruction and target is not None:
        instruction = instruction_for(query.modality, target)
    return Query(text=query.text, image=query.image, instruction=instruction or None)


def _target(metadata: Any) -> Modality | None:
    """What a task wants, from MTEB's category: "t2i" -> image, "it2t" -> text, "i2it" -> pair."""
    category = str(getattr(metadata, "category", "") or "")
    return _LETTERS.get(category.partition("2")[2])


def _allowed(names: Sequence[str], top_ranked: Mapping[str, Sequence[str]], place: Mapping[str, int], items: int) -> torch.Tensor:
    mask = torch.zeros(len(names), items, dtype=torch.bool)
    for i, name in enumerate(names):
        rows = [place[str(document)] for document in top_ranked.get(name, ()) if str(document) in place]
        mask[i, rows] = True
    return mask
