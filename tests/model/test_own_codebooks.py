"""Codebooks of each modality: the same bits, three tables."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from genius.errors import GeniusError
from genius.model.config import QuantizerConfig
from genius.model.quantizer import ResidualQuantizer


def clouds(n: int, width: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit vectors of three modalities that vary in different directions."""
    random = torch.Generator().manual_seed(seed)
    modality = torch.randint(3, (n,), generator=random)
    spread = torch.rand(3, width, generator=random) ** 3
    return torch.nn.functional.normalize(torch.randn(n, width, generator=random) * spread[modality], dim=1), modality


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), own_from=st.integers(1, 2))
def test_codes_match_brute_force_in_the_modalitys_own_tables(seed: int, own_from: int) -> None:
    quantizer = ResidualQuantizer(QuantizerConfig(16, (3, 4, 5), modality_codebooks_from=own_from))
    z, modality = clouds(9, seed=seed)
    codes = quantizer.encode(z, modality)
    for row in range(9):
        kind = int(modality[row])
        tables = [quantizer.codebook(level).view(3 if level >= own_from else 1, -1, 16) for level in (1, 2)]
        first, second = (table[kind if len(table) == 3 else 0] for table in tables)
        rest = z[row] - quantizer.codebook(0)[kind]
        assert codes[row, 1] == (rest - first).norm(dim=1).argmin()
        assert codes[row, 2] == (rest - first[codes[row, 1]] - second).norm(dim=1).argmin()
        rebuilt = quantizer.codebook(0)[kind] + first[codes[row, 1]] + second[codes[row, 2]]
        assert torch.allclose(quantizer.decode(codes[row : row + 1])[0], rebuilt)


def test_three_tables_rebuild_more_at_the_same_bits() -> None:
    z, modality = clouds(6000)
    errors = []
    for own_from in (0, 2, 1):
        quantizer = ResidualQuantizer(QuantizerConfig(16, (3, 16, 16, 16), modality_codebooks_from=own_from))
        quantizer.initialise(z[:3000], modality[:3000])
        new, kind = z[3000:], modality[3000:]  # not seen by k-means
        codes = quantizer.encode(new, kind)
        assert codes.max() < 16
        errors.append((new - quantizer.decode(codes)).square().sum(1).mean().item())
    assert errors[0] > 1.1 * errors[1] and errors[1] > errors[2]


def test_a_step_moves_only_the_tables_of_what_it_saw() -> None:
    z, modality = clouds(600)
    quantizer = ResidualQuantizer(QuantizerConfig(16, (3, 8, 8), modality_codebooks_from=1))
    quantizer.initialise(z, modality)
    before = quantizer.codebook(2).clone().view(3, 8, 16)
    quantized = quantizer.quantize(z[modality == 1], modality[modality == 1])
    quantizer.update(quantized.codes, quantized.residuals)
    moved = (quantizer.codebook(2).view(3, 8, 16) - before).abs().amax((1, 2)) > 0
    assert moved.tolist() == [False, True, False]


def test_a_modality_of_few_items_learns_from_all() -> None:
    z, modality = clouds(2000)
    modality[modality == 2] = 0
    modality[:5] = 2
    quantizer = ResidualQuantizer(QuantizerConfig(16, (3, 16, 16), modality_codebooks_from=1))
    quantizer.initialise(z, modality)
    later, _ = clouds(500, seed=0)
    kind = torch.full((500,), 2)
    rest = later - quantizer.codebook(0)[2]
    error = (later - quantizer.decode(quantizer.encode(later, kind))).square().sum(1).mean()
    assert error < 0.6 * rest.square().sum(1).mean()  # five items alone would teach it nothing of these


def test_own_codebooks_need_a_told_modality() -> None:
    for change in ({"modality_code": "nearest"}, {"modality_code": "none"}, {"shared": True}):
        with pytest.raises(GeniusError, match="modality_codebooks_from"):
            QuantizerConfig(8, (3, 4, 4), modality_codebooks_from=1, **change)  # type: ignore[arg-type]


def test_dead_codes_are_revived_from_their_own_modality() -> None:
    """Pictures lie along the first axis, texts along the second: no code of pictures may end up among the texts."""
    quantizer = ResidualQuantizer(QuantizerConfig(4, (3, 6), modality_codebooks_from=1))
    quantizer.get_buffer("unused_1").fill_(1e6)
    random = torch.Generator().manual_seed(0)
    modality = torch.arange(60) % 2
    residual = torch.zeros(60, 4)
    residual[torch.arange(60), modality] = 1 + torch.rand(60, generator=random)
    quantizer.update(torch.stack([modality, torch.zeros(60, dtype=torch.long)], 1), [residual, residual])
    for kind in (0, 1):
        revived = quantizer.codebook_of(1, kind)[1:]  # code 0 was used
        assert (revived[:, kind] >= 1).all() and (revived[:, 1 - kind] == 0).all()
