"""Codebooks that fit each other: the error falls, prefixes stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_own_codebooks import clouds
from torch import Tensor

import genius.model.assignment
from genius.model.codebooks import fit_together
from genius.model.config import QuantizerConfig
from genius.model.quantizer import ResidualQuantizer

SIZES = (3, 16, 16, 16, 16)


def error(quantizer: ResidualQuantizer, z: Tensor, codes: Tensor) -> Tensor:
    return (z - quantizer.decode(codes)).square().sum(1)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    own=st.integers(0, 2),
    kind=st.sampled_from(["given", "classifier", "none"]),
    settled=st.integers(1, 3),
)
def test_choosing_again_never_makes_it_worse_and_keeps_the_prefix(seed: int, own: int, kind: str, settled: int) -> None:
    sizes, own = (SIZES[1:], 0) if kind == "none" else (SIZES, own)
    config = QuantizerConfig(16, sizes, modality_codebooks_from=own, modality_code=kind, settled=settled)  # type: ignore[arg-type]
    quantizer = ResidualQuantizer(config)
    z, modality = clouds(60, seed=seed)
    told = None if kind == "none" else modality
    quantizer.initialise(z, told, iterations=2, seed=seed)
    codes, again = quantizer.encode(z, told), swept(quantizer, 1).encode(z, told)
    assert torch.equal(again[:, :settled], codes[:, :settled])
    assert (error(quantizer, z, again) <= error(quantizer, z, codes) + 1e-5).all()


def swept(quantizer: ResidualQuantizer, sweeps: int) -> ResidualQuantizer:
    """The same codebooks, codes chosen again."""
    other = ResidualQuantizer(replace(quantizer.config, encode_sweeps=sweeps))
    other.load_state_dict(quantizer.state_dict())
    return other


def plainly(quantizer: ResidualQuantizer, z: Tensor, told: Tensor | None, sweeps: int) -> Tensor:
    """What choosing again means, item by item and in double precision: each level's nearest code to what the others leave."""
    levels, settled = range(quantizer.config.levels), quantizer.config.settled
    out = []
    for row, vector in enumerate(z.double()):
        kind = 0 if told is None else int(told[row])
        books = [quantizer.codebook_of(level, kind).double() for level in levels]
        codes = [kind if told is not None else 0] + [0] * (len(books) - 1)
        order = [level for level in levels if level or told is None] + list(levels[settled:]) * sweeps
        for step, level in enumerate(order):
            seen = range(level) if step < len(levels) - (told is not None) else levels
            rest = vector - sum((books[i][codes[i]] for i in seen if i != level), torch.zeros_like(vector))
            codes[level] = int((rest - books[level]).square().sum(1).argmin())
        out.append(codes)
    return torch.tensor(out)


@pytest.mark.parametrize("tabled", [True, False])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    own=st.integers(0, 2),
    kind=st.sampled_from(["given", "classifier", "none", "nearest"]),
    settled=st.integers(1, 5),
    sweeps=st.integers(0, 4),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
    at_once=st.integers(1, 400),
)
def test_codes_are_those_of_the_plain_way(
    tabled: bool, seed: int, own: int, kind: str, settled: int, sweeps: int, sizes: tuple[int, ...], at_once: int
) -> None:
    own = own if kind in ("given", "classifier") else 0
    fields: dict[str, Any] = {"modality_code": kind, "modality_codebooks_from": own, "settled": settled, "encode_sweeps": sweeps}
    config = QuantizerConfig(16, (3, *sizes), **fields)
    quantizer = ResidualQuantizer(config)
    z, modality = clouds(40, seed=seed)
    told = modality if config.labelled else None
    with mock.patch.multiple(genius.model.assignment, LARGEST_TABLES=2**24 if tabled else 0, SCORES_AT_ONCE=at_once):
        codes = quantizer.encode(z, told)
    assert torch.equal(codes, plainly(quantizer, z, told, sweeps))


def test_a_chosen_code_is_the_best_one_beside_the_others() -> None:
    """Brute force over the last level, which is chosen last."""
    quantizer = ResidualQuantizer(QuantizerConfig(16, SIZES, modality_codebooks_from=1, encode_sweeps=2))
    z, modality = clouds(80)
    quantizer.initialise(z, modality, together=2)
    codes = quantizer.encode(z, modality)
    for other in range(16):
        changed = codes.clone()
        changed[:, -1] = other
        assert (error(quantizer, z, codes) <= error(quantizer, z, changed) + 1e-5).all()


def test_what_is_settled_keeps_its_vectors_and_the_next_level_does_not() -> None:
    z, modality = clouds(200)
    quantizer = ResidualQuantizer(QuantizerConfig(16, SIZES, modality_codebooks_from=1, settled=3))
    quantizer.initialise(z, modality)
    before = [quantizer.codebook(level).clone() for level in range(len(SIZES))]
    fit_together(quantizer, z, quantizer.encode(z, modality), sweeps=2)
    assert [torch.equal(quantizer.codebook(level), book) for level, book in enumerate(before)][:4] == [True, True, True, False]


@pytest.mark.parametrize("own", [0, 1, 2])
def test_fitting_together_lowers_the_error_of_the_same_codes(own: int) -> None:
    quantizer = ResidualQuantizer(QuantizerConfig(16, SIZES, modality_codebooks_from=own))
    z, modality = clouds(1500)
    quantizer.initialise(z, modality)
    codes, before = quantizer.encode(z, modality), [book.clone() for book in quantizer.codebooks]
    old = error(quantizer, z, codes).mean()
    fit_together(quantizer, z, codes, sweeps=5)
    assert error(quantizer, z, codes).mean() < 0.98 * old
    assert torch.equal(quantizer.codebook(0), before[0]) and torch.equal(quantizer.codebook(1), before[1])
    unused = torch.ones(len(before[2]), dtype=torch.bool)
    unused[quantizer.rows_of(2, codes[:, 2], codes[:, 0])] = False
    assert torch.equal(quantizer.codebook(2)[unused], before[2][unused])  # nobody asked them to move


def test_both_rebuild_more_at_the_same_bits() -> None:
    z, modality = clouds(200)  # few items a code, as in a real collection
    errors = []
    for together, sweeps in ((0, 0), (3, 1)):
        quantizer = ResidualQuantizer(QuantizerConfig(16, SIZES, modality_codebooks_from=1, encode_sweeps=sweeps))
        quantizer.initialise(z, modality, together=together)
        errors.append(error(quantizer, z, quantizer.encode(z, modality)).mean())
        assert torch.allclose(quantizer.get_buffer("sums_3"), quantizer.codebook(3) * quantizer.get_buffer("sizes_3")[:, None])
    assert errors[1] < 0.95 * errors[0]


def test_a_modality_of_few_items_keeps_room_for_others() -> None:
    """2 items a code are known by heart; points between them make the codes say more of items that come later."""
    random = torch.Generator().manual_seed(0)
    every = torch.nn.functional.normalize(torch.randn(2000, 3, generator=random) @ torch.randn(3, 16, generator=random), dim=1)
    seen, later = every[:40], every[40:]
    errors = {}
    for between in (0, 8):
        quantizer = ResidualQuantizer(QuantizerConfig(16, (3, 16, 16, 16), modality_codebooks_from=1))
        quantizer.initialise(seen, torch.full((40,), 2), between=between)
        first = quantizer.codebook_of(1, 2)
        errors[between] = error(quantizer, later, quantizer.encode(later, torch.full((len(later),), 2))).mean()
    assert errors[8] < 0.9 * errors[0]
    plain = ResidualQuantizer(QuantizerConfig(16, (3, 16, 16, 16), modality_codebooks_from=1))
    plain.initialise(seen, torch.full((40,), 2))
    assert torch.equal(plain.codebook_of(1, 2), first)  # the first code is of the items themselves
