"""Codes: purity by construction, round trips, brute force, moving codebooks that do not churn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.errors import GeniusError
from genius.model.config import QuantizerConfig
from genius.model.quantizer import ResidualQuantizer


def vectors(n: int, width: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(n, width, generator=torch.Generator().manual_seed(seed)), dim=1)


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_first_code_is_the_modality_whatever_the_vectors(n: int, seed: int, sizes: list[int]) -> None:
    quantizer = ResidualQuantizer(QuantizerConfig(8, (3, *sizes)))
    modality = torch.randint(3, (n,), generator=torch.Generator().manual_seed(seed))
    codes = quantizer.encode(vectors(n, seed=seed), modality)
    assert torch.equal(codes[:, 0], modality)
    quantizer.check_codes(codes)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_codes_of_a_reconstruction_error_match_brute_force(seed: int) -> None:
    quantizer = ResidualQuantizer(QuantizerConfig(8, (3, 4, 5)))
    z, modality = vectors(6, seed=seed), torch.tensor([0, 1, 2, 0, 1, 2])
    greedy = quantizer.encode(z, modality)
    residual = z - quantizer.codebook(0)[modality]
    for level in (1, 2):
        distances = (residual[:, None] - quantizer.codebook(level)[None]).square().sum(-1)
        assert torch.equal(greedy[:, level], distances.argmin(1))
        residual = residual - quantizer.codebook(level)[greedy[:, level]]


def test_a_code_vector_sum_encodes_back_to_its_codes() -> None:
    """Round trip where it must hold: levels of shrinking scale, so that the greedy choice is the true one."""
    quantizer = ResidualQuantizer(QuantizerConfig(8, (3, 6, 6)))
    for level, scale in enumerate((1.0, 0.1, 0.001)):
        quantizer.codebook(level).copy_(
            torch.nn.functional.normalize(torch.randn(quantizer.codebook(level).shape), dim=1) * scale
        )
    codes = torch.stack([torch.randint(3, (50,)), torch.randint(6, (50,)), torch.randint(6, (50,))], 1)
    assert torch.equal(quantizer.encode(quantizer.decode(codes), codes[:, 0]), codes)


def test_kmeans_start_lowers_the_error_and_uses_every_code() -> None:
    z, modality = vectors(4000, 16), torch.randint(3, (4000,), generator=torch.Generator().manual_seed(1))
    quantizer = ResidualQuantizer(QuantizerConfig(16, (3, 32, 32)))
    before = (z - quantizer.decode(quantizer.encode(z, modality))).square().sum(1).mean()
    quantizer.initialise(z, modality)
    codes = quantizer.encode(z, modality)
    assert (z - quantizer.decode(codes)).square().sum(1).mean() < 0.8 * before
    statistics = quantizer.statistics(codes)
    assert [s["usage"] for s in statistics] == [1.0, 1.0, 1.0]
    assert statistics[2]["collisions"] < statistics[1]["collisions"]


def replaced_per_step(published: bool) -> float:
    """Share of a codebook that jumps in a step, on batches smaller than the codebook."""
    torch.manual_seed(0)
    config = QuantizerConfig(16, (3, 512), published_revival=published)
    quantizer = ResidualQuantizer(config)
    z, modality = vectors(8000, 16), torch.randint(3, (8000,))
    quantizer.initialise(z, modality, iterations=5)
    moved = 0.0
    for step in range(10):
        batch = slice(step * 256, step * 256 + 256)
        before = quantizer.codebook(1).clone()
        quantized = quantizer.quantize(z[batch], modality[batch])
        quantizer.update(quantized.codes, quantized.residuals)
        unused = torch.bincount(quantized.codes[:, 1], minlength=512) == 0
        moved += ((quantizer.codebook(1) - before).norm(dim=1) > 0.5)[unused].float().sum().item() / 512
    return moved / 10


def test_revival_does_not_churn() -> None:
    assert replaced_per_step(published=True) > 0.1  # what the published rule does
    assert replaced_per_step(published=False) < 0.01


def test_a_code_that_got_nothing_keeps_its_place() -> None:
    """Its averages decay; the code itself must not go with them to the origin."""
    torch.manual_seed(0)
    quantizer = ResidualQuantizer(QuantizerConfig(16, (3, 64)))
    z, modality = vectors(2000, 16), torch.randint(3, (2000,))
    quantizer.initialise(z, modality)
    before = quantizer.codebook(1).clone()
    for _ in range(3):
        quantized = quantizer.quantize(z[:40], modality[:40])
        quantizer.update(quantized.codes, quantized.residuals)
    used = torch.bincount(quantizer.encode(z[:40], modality[:40])[:, 1], minlength=64) > 0
    assert 0 < used.sum() < 64 and torch.equal(quantizer.codebook(1)[~used], before[~used])
    assert not torch.isclose(quantizer.codebook(1)[used], before[used]).all(1).any()


def test_codes_move_to_the_smoothed_mean() -> None:
    """By hand: averages of sizes and sums decay, sizes are smoothed by epsilon, and keep their total."""
    quantizer = ResidualQuantizer(QuantizerConfig(2, (3, 2), decay=0.75, epsilon=0.5))
    quantizer.get_buffer("sizes_1").copy_(torch.tensor([4.0, 8.0]))
    quantizer.get_buffer("sums_1").copy_(torch.tensor([[4.0, 0.0], [0.0, 8.0]]))
    quantizer._move(1, slice(None), torch.tensor([8.0, 4.0]), torch.tensor([[8.0, 8.0], [4.0, 0.0]]))
    # sizes become 5 and 7, sums (5, 2) and (1, 6); smoothed sizes (5 + 1/2) and (7 + 1/2), times 12 / (12 + 2 * 1/2)
    smoothed = torch.tensor([[5.5], [7.5]]) * 12 / 13
    assert torch.allclose(quantizer.codebook(1), torch.tensor([[5.0, 2.0], [1.0, 6.0]]) / smoothed)


def test_a_dead_code_comes_back() -> None:
    torch.manual_seed(0)
    quantizer = ResidualQuantizer(QuantizerConfig(8, (3, 4)))
    z, modality = vectors(64), torch.zeros(64, dtype=torch.long)
    quantizer.initialise(z, modality)
    quantizer.codebook(1)[2] = 100.0  # nobody's nearest
    for _ in range(10):
        quantized = quantizer.quantize(z, modality)
        quantizer.update(quantized.codes, quantized.residuals)
    assert (quantizer.encode(z, modality)[:, 1] == 2).any()


def test_a_revived_code_stays_where_it_was_put() -> None:
    """Its running sum is weighted as its size is: chosen for its own vector again, it does not move."""
    torch.manual_seed(0)
    quantizer = ResidualQuantizer(QuantizerConfig(8, (3, 4), decay=0.5))
    z = vectors(64)
    modality = torch.zeros(64, dtype=torch.long)
    quantizer.initialise(z, modality)
    quantized = quantizer.quantize(z, modality)
    quantizer.update(quantized.codes, quantized.residuals)  # an average code now stands for several vectors
    block = slice(None)
    quantizer._revive(1, block, torch.tensor([2]), z[:1])
    revived = quantizer.codebook(1)[2].clone()
    assert torch.allclose(revived, z[0]) and quantizer.get_buffer("sizes_1")[2] > 2
    counts = torch.tensor([0.0, 0.0, 5.0, 0.0])
    sums = counts[:, None] * revived
    quantizer._move(1, block, counts, sums)
    assert torch.allclose(quantizer.codebook(1)[2], revived, atol=1e-3)


def test_bad_input_gets_one_line() -> None:
    quantizer = ResidualQuantizer(QuantizerConfig(8, (3, 4)))
    modality = torch.zeros(2, dtype=torch.long)
    with pytest.raises(GeniusError, match="expected"):
        quantizer.encode(torch.zeros(2, 7), modality)
    with pytest.raises(GeniusError, match="NaN"):
        quantizer.encode(torch.full((2, 8), float("nan")), modality)
    with pytest.raises(GeniusError, match="modality"):
        quantizer.encode(torch.zeros(2, 8))
    with pytest.raises(GeniusError, match="modality"):
        quantizer.encode(torch.zeros(2, 8), torch.tensor([0, 7]))
    with pytest.raises(GeniusError, match="out of range"):
        quantizer.decode(torch.tensor([[0, 4]]))
    with pytest.raises(GeniusError, match="size 3"):
        QuantizerConfig(8, (4, 4))
    assert quantizer.encode(torch.zeros(0, 8), modality[:0]).shape == (0, 2)


@pytest.mark.parametrize("kind", ["given", "nearest", "classifier", "none"])
def test_every_kind_of_modality_code_trains(kind: str) -> None:
    sizes = (8, 8) if kind == "none" else (3, 8)
    quantizer = ResidualQuantizer(QuantizerConfig(8, sizes, modality_code=kind))  # type: ignore[arg-type]
    z, modality = vectors(100).requires_grad_(), torch.randint(3, (100,))
    quantizer.initialise(z.detach(), modality)
    quantized = quantizer.quantize(z, modality)
    quantized.vectors.square().sum().backward()
    assert z.grad is not None and z.grad.abs().sum() > 0
    quantizer.update(quantized.codes, quantized.residuals)
    if kind == "classifier":
        assert torch.equal(quantizer.codebook(0), torch.zeros(3, 8))
        assert torch.equal(quantized.codes[:, 0], modality)
