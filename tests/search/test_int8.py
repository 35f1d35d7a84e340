"""int8 decoding: close to float32, and used only where beams pick what is re-ranked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from genius.model.generator import Generator, GeneratorConfig
from genius.search import CodeTrie, SearchEngine, SearchParams
from genius.search.decoder import Decoder, Int8Decoder
from genius.search.head import Int8Matrix, int8_works

SIZES = (3, 64, 32, 32)
pytestmark = pytest.mark.skipif(not int8_works(), reason="this torch has no int8 products")


def wide_generator(normalizer: str = "vocabulary") -> Generator:
    torch.manual_seed(0)
    config = GeneratorConfig(
        width=16, level_sizes=SIZES, layers=1, heads=4, d_kv=16, d_ff=256, prefix_tokens=4, normalizer=normalizer
    )
    return Generator(config).eval()


def test_products_are_close() -> None:
    x, weight = torch.randn(9, 256), torch.randn(256, 40)
    truth = x @ weight
    assert ((x @ Int8Matrix(weight)) - truth).norm() / truth.norm() < 0.03


def test_log_probabilities_are_close() -> None:
    generator, z = wide_generator(), torch.randn(4, 16)
    exact, fast = Decoder(generator, torch.device("cpu")), Int8Decoder(generator)
    values, codes = [], torch.zeros(4, 1, 1, dtype=torch.long)
    for decoder in (exact, fast):
        with torch.inference_mode():
            hidden, memory = decoder.run(codes, decoder.start(z))
            values.append(decoder.log_p(1, hidden[:, :, 1], memory, codes))
            mass = decoder.mass(hidden[:, 0, 1])  # with and without what is known already: the same
            assert torch.allclose(values[-1], decoder.log_p(1, hidden[:, :, 1], memory, codes, mass), atol=1e-4)
    assert (values[0] - values[1]).abs().max() < 0.2


def test_ranking_is_kept_and_exact_stays_exact() -> None:
    generator = wide_generator()
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, 3000) for size in SIZES], axis=1)
    trie, vectors, z = CodeTrie.build(codes, SIZES), torch.randn(3000, 16), torch.randn(20, 16)
    engines = {name: SearchEngine(generator, None, trie, vectors, precision=name) for name in ("exact", "auto", "fast")}
    early = SearchParams(beams=20, rerank=200)
    exact, auto = engines["exact"].search(z, k=5, params=early), engines["auto"].search(z, k=5, params=early)
    same = [len(set(a.tolist()) & set(b.tolist())) / 5 for a, b in zip(exact.rows, auto.rows, strict=True)]
    assert np.mean(same) > 0.8
    plain = SearchParams(beams=20, rerank=0, reranker="none")
    assert (engines["exact"].search(z, k=5, params=plain).rows == engines["auto"].search(z, k=5, params=plain).rows).all()
    assert engines["auto"]._int8 is not None and engines["exact"]._int8 is None
