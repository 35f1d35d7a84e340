"""QueryBank: the metric, the probe, and its file beside the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from genius import Genius
from genius.errors import GeniusError
from genius.model.query_bank import FILE, SHRINKAGE, QueryBank


def bank(count: int = 3000, width: int = 16) -> QueryBank:
    random = torch.Generator().manual_seed(0)
    target = torch.arange(count) % 3
    z = torch.randn(count, width, generator=random) * 0.3
    z[torch.arange(count), target] += 1
    return QueryBank.of(F.normalize(z, dim=1), torch.ones(count).long(), target, size=2000)


def test_the_metric_is_the_second_moment_of_the_queries_that_want_a_modality() -> None:
    own = bank()
    wanted = own.z[own.target == 1]
    moment = np.mean([np.outer(q, q) for q in wanted], axis=0)
    expected = moment + SHRINKAGE * moment.diagonal().mean() * np.eye(16)
    assert np.allclose(own.metric(1), expected, atol=1e-5)
    assert not np.allclose(own.metric(1), own.metric(0), atol=1e-2)
    assert np.allclose(own.metric(), (own.z.T @ own.z) / len(own) * 1.0 + own.metric() - own.z.T @ own.z / len(own))
    few = QueryBank.of(own.z[:200], own.modality[:200], torch.where(torch.arange(200) < 3, 2, 0))
    assert np.array_equal(few.metric(2), few.metric())  # three queries say nothing of their own


def test_the_probe_names_the_modality_of_queries_it_has_not_seen() -> None:
    random = torch.Generator().manual_seed(1)
    target = torch.arange(300) % 3
    z = torch.randn(300, 16, generator=random) * 0.3
    z[torch.arange(300), target] += 1
    log_probs = bank().modality_log_probs(F.normalize(z, dim=1))
    assert log_probs is not None and np.allclose(np.exp(log_probs).sum(1), 1)
    assert (log_probs.argmax(1) == target.numpy()).mean() > 0.9
    one = QueryBank.of(z, target * 0, target * 0)
    assert one.modality_log_probs(z) is None  # one modality teaches nothing


def test_a_bank_is_saved_with_its_model(tmp_path: Path) -> None:
    model = Genius.from_pretrained("bundled:mini")
    model.queries = bank(width=256)
    fingerprint = model.fingerprint()
    model.save_pretrained(tmp_path)
    loaded = Genius.from_pretrained(tmp_path)
    assert loaded.queries is not None and loaded.fingerprint() == fingerprint
    assert np.array_equal(loaded.queries.z, model.queries.z) and np.array_equal(loaded.queries.target, model.queries.target)
    assert loaded.queries.digest() == model.queries.digest()
    z = F.normalize(torch.randn(5, 256), dim=1)
    assert np.array_equal(loaded.queries.modality_log_probs(z), model.queries.modality_log_probs(z))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"z": torch.zeros(4, 8)}, "8 wide"),
        ({"z": torch.full((4, 256), torch.nan)}, "not finite"),
        ({"target": torch.full((4,), 7).to(torch.int8)}, "targets must be"),
        ({"modality": torch.zeros(3, dtype=torch.int8)}, "one modality"),
        ({"probe_weight": torch.zeros(3, 8), "probe_bias": torch.zeros(3)}, "probe of shape"),
        ({"z": None}, "lacks z"),
        ({"z": torch.zeros(4, 256, dtype=torch.int8)}, "lacks scale"),
        ({"z": torch.zeros(4, 256, dtype=torch.int8), "scale": torch.ones(3, 1).half()}, "without a scale for each"),
        ({"z": torch.ones(4, 256, dtype=torch.int8), "scale": torch.full((4, 1), torch.inf).half()}, "not finite"),
    ],
)
def test_a_file_that_is_no_bank_is_refused(tmp_path: Path, change: dict[str, torch.Tensor | None], said: str) -> None:
    good = {"z": torch.zeros(4, 256), "modality": torch.zeros(4, dtype=torch.int8), "target": torch.zeros(4, dtype=torch.int8)}
    merged = {name: value for name, value in (good | change).items() if value is not None}
    save_file(merged, tmp_path / FILE)
    with pytest.raises(GeniusError, match=said):
        QueryBank.load(tmp_path, 256)
    assert QueryBank.load(tmp_path / "nowhere", 256) is None


def test_a_bank_takes_a_byte_per_number_and_older_files_keep_their_halves(tmp_path: Path) -> None:
    own = bank(300, width=64)
    own.save(tmp_path)
    assert (tmp_path / FILE).stat().st_size < 300 * 64 * 1.3
    z = F.normalize(torch.randn(50, 64, generator=torch.Generator().manual_seed(3)), dim=1).half()
    kinds = torch.zeros(50, dtype=torch.int8)
    save_file({"z": z, "modality": kinds, "target": kinds.clone()}, tmp_path / FILE)  # as it was stored before
    before = QueryBank.load(tmp_path, 64)
    assert before is not None and np.array_equal(before.z, z.float().numpy())
    before.save(tmp_path)
    again = QueryBank.load(tmp_path, 64)
    assert again is not None and again.digest() == before.digest()  # written again, they lose nothing
    rounded = QueryBank.of(z.float(), kinds, kinds)
    assert 0 < np.abs(rounded.z - z.float().numpy()).max() < 0.003


def test_banks_that_differ_have_other_digests() -> None:
    """Caches are told apart by it: each part that metric or item bias follow from counts."""
    own = bank(300)
    numbers = np.full((3, 3), 0.5, np.float32)
    others = [
        replace(own, z=own.z[::-1].copy()),
        replace(own, modality=1 - own.modality),
        replace(own, target=(own.target + 1) % 3),
        replace(own, bias_weights=numbers, bias_temperatures=numbers),
        replace(own, bias_weights=numbers, bias_temperatures=2 * numbers),
    ]
    assert len({one.digest() for one in (own, *others)}) == 1 + len(others)
    assert bank(300).digest() == own.digest()
