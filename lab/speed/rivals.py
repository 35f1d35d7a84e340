"""The rivals that `python -m lab bench` measures beside our search, on the same weights and data, in the same run.

Heavy libraries are imported where they are used. Nothing in the product imports this file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import GeniusError
from genius.model.generator import START, Block, Generator

Array = NDArray[Any]


class PublishedSearch:
    """The published way: `transformers` beam search, a python callback over a nested-dict trie at every step of every beam."""

    def __init__(self, generator: Generator, codes: Array) -> None:
        self.config = generator.config
        self.model = published_model(generator)
        self.offsets = np.array(self.config.offsets)
        self.trie = nested_trie(codes + self.offsets)

    def allowed(self, _batch: int, sentence: Tensor) -> list[int]:
        node = self.trie
        for token in sentence.tolist():
            node = node[token]
        return list(node)

    @torch.inference_mode()
    def search(self, z: Tensor, beams: int) -> tuple[Tensor, Tensor]:
        """Codes (Q, B, M) and scores (Q, B) = sum of log p / M."""
        queries, levels = len(z), self.config.levels
        prefix = self.prefix(z).unflatten(1, (self.config.prefix_tokens, self.config.d_model))
        out = self.model.generate(
            inputs_embeds=prefix,
            num_beams=beams,
            num_return_sequences=beams,
            prefix_allowed_tokens_fn=self.allowed,
            max_new_tokens=levels,
            early_stopping=True,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
        codes = out.sequences[:, 1 : levels + 1].cpu() - torch.from_numpy(self.offsets)
        return codes.view(queries, beams, levels), out.sequences_scores.cpu().view(queries, beams)

    def prefix(self, z: Tensor) -> Tensor:
        return self.projector(z)

    projector: Callable[[Tensor], Tensor]


def published_model(generator: Generator) -> Any:
    """T5 with a 0-layer encoder, as published, holding our generator's weights."""
    try:
        import transformers
    except ImportError:
        raise GeniusError("the published way needs transformers: pip install 'genius-search[hub]'") from None
    transformers.logging.set_verbosity_error()
    config = generator.config
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=config.vocabulary,
            d_model=config.d_model,
            d_kv=config.d_kv,
            d_ff=config.d_ff,
            num_layers=0,
            num_decoder_layers=config.layers,
            num_heads=config.heads,
            relative_attention_num_buckets=config.buckets,
            relative_attention_max_distance=config.max_distance,
            dropout_rate=0.0,
            decoder_start_token_id=START,
            pad_token_id=0,
            eos_token_id=1,
            tie_word_embeddings=True,
        )
    ).eval()
    copies: dict[str, Tensor] = {
        "shared.weight": generator.tokens.weight,
        "encoder.final_layer_norm.weight": generator.prefix_norm.weight,
        "decoder.final_layer_norm.weight": generator.final_norm.weight,
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": generator.position_bias.weight,
    }
    for i, block in enumerate(generator.blocks):
        assert isinstance(block, Block)
        at = f"decoder.block.{i}.layer"
        for name in "qkvo":
            copies[f"{at}.0.SelfAttention.{name}.weight"] = getattr(block.self_attention, name).weight
            copies[f"{at}.1.EncDecAttention.{name}.weight"] = getattr(block.cross_attention, name).weight
        for j, norm in enumerate((block.self_norm, block.cross_norm, block.ff_norm)):
            copies[f"{at}.{j}.layer_norm.weight"] = norm.weight
        copies[f"{at}.2.DenseReluDense.wi.weight"] = block.ff_in.weight
        copies[f"{at}.2.DenseReluDense.wo.weight"] = block.ff_out.weight
    missing, unexpected = model.load_state_dict({k: v.detach().clone() for k, v in copies.items()}, strict=False)
    tied = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    if unexpected or set(missing) - tied:
        raise GeniusError(f"this transformers version names T5 weights differently: {sorted(set(missing) - tied) + unexpected}")
    model.tie_weights()
    return model.to(generator.tokens.weight.device)


def nested_trie(tokens: Array) -> dict[int, Any]:
    """Dicts in dicts, starting with the decoder's start token."""
    root: dict[int, Any] = {}
    for row in tokens.tolist():
        node = root
        for token in row:
            node = node.setdefault(token, {})
    return {START: root}


def published_search(generator: Generator, codes: Array) -> PublishedSearch:
    """Ready to search; building the trie takes about 15 s and 1.4 GB per million items."""
    search = PublishedSearch(generator, codes)
    search.projector = generator.prefix
    return search


def faiss_index(kind: str, vectors: Array, threads: int) -> Callable[[Array, int], tuple[Array, Array]]:
    """`flat`, `hnsw` or `ivfpq` over unit vectors; returns search(queries, k) -> (scores, rows)."""
    try:
        import faiss
    except ImportError:
        raise GeniusError("the Faiss rivals need faiss: pip install 'genius-search[eval]'") from None
    faiss.omp_set_num_threads(threads)
    width = vectors.shape[1]
    index: Any
    if kind == "flat":
        index = faiss.IndexFlatIP(width)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(width, 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = 80, 128
    elif kind == "ivfpq":
        cells = max(4, min(int(4 * len(vectors) ** 0.5), len(vectors) // 40))
        index = faiss.index_factory(width, f"IVF{cells},PQ{max(1, width // 16)}", faiss.METRIC_INNER_PRODUCT)
        for clustering in (index.cp, index.pq.cp):  # small collections train on what they have, quietly
            clustering.min_points_per_centroid = 1
            clustering.niter = 10
        index.train(vectors[: min(len(vectors), 50 * cells)])
        index.nprobe = 32
    else:
        raise GeniusError(f"unknown Faiss index {kind!r}: use flat, hnsw or ivfpq")
    index.add(vectors)
    return index.search  # type: ignore[no-any-return]


RIVALS: Sequence[str] = ("published", "faiss-flat", "faiss-hnsw", "faiss-ivfpq", "gpu-flat")
