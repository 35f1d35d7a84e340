"""FeatureSet: the folder comes back as it went in, and broken ones fail with one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from genius.data.features import FeatureSet
from genius.errors import GeniusError
from genius.features import Features


def features(rows: int, image: int = 6, text: int = 6, seed: int = 0) -> Features:
    random = torch.Generator().manual_seed(seed)
    masks = torch.randint(0, 3, (rows,), generator=random)
    return Features(torch.randn(rows, image, generator=random), torch.randn(rows, text, generator=random), masks != 1, masks != 0)


def example(**widths: int) -> FeatureSet:
    pairs = torch.tensor([[0, 2], [0, 5], [1, 1], [3, 6]])
    return FeatureSet(
        features(4, seed=1, **widths),
        features(7, seed=2, **widths),
        pairs,
        [f"9:{i}" for i in range(4)],
        [f"9:{i}" for i in range(7)],
        torch.tensor([0, 0, 3, -1]),
        {0: "text->image", 3: "image->text"},
        {0: torch.tensor([1, 2, 5]), 3: torch.tensor([0, 6])},
    )


def same(a: Features, b: Features) -> None:
    assert torch.equal(a.image_mask, b.image_mask) and torch.equal(a.text_mask, b.text_mask)
    for one, other in zip(a.masked(), b.masked(), strict=True):  # a missing row's content is nobody's business
        assert torch.equal(one, other)


@pytest.mark.parametrize("widths", [{}, {"image": 4, "text": 9}])
def test_folder_round_trip(tmp_path: Path, widths: dict[str, int]) -> None:
    original = example(**widths)
    original.save(tmp_path / "set")
    loaded = FeatureSet.load(tmp_path / "set")
    assert FeatureSet.is_folder(tmp_path / "set")
    for a, b in ((original.queries, loaded.queries), (original.pool, loaded.pool)):
        assert torch.equal(torch.where(a.image_mask[:, None], a.image, 0), b.image)
        assert torch.equal(torch.where(a.text_mask[:, None], a.text, 0), b.text)
        assert torch.equal(a.image_mask, b.image_mask)
    assert torch.equal(loaded.pairs, original.pairs) and torch.equal(loaded.tasks, original.tasks)
    assert (loaded.query_ids, loaded.pool_ids, loaded.names) == (original.query_ids, original.pool_ids, original.names)
    assert loaded.pool_rows(0).tolist() == [1, 2, 5] and loaded.pool_rows(8).tolist() == list(range(7))


def test_positives_and_subset() -> None:
    data = example()
    assert data.positives() == [[2, 5], [1], [], [6]]
    part = data.take_queries([3, 0])
    assert part.query_ids == ["9:3", "9:0"] and part.positives() == [[6], [2, 5]] and part.tasks.tolist() == [-1, 0]


def test_broken_folders_and_sets(tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match="is not a feature set"):
        FeatureSet.load(tmp_path)
    data = example()
    data.save(tmp_path)
    (tmp_path / "pool.safetensors").write_bytes(b"\x00" * 32)
    with pytest.raises(GeniusError, match="cannot read"):
        FeatureSet.load(tmp_path)
    with pytest.raises(GeniusError, match="rows that do not exist"):
        FeatureSet(data.queries, data.pool, torch.tensor([[0, 99]]), data.query_ids, data.pool_ids)
    with pytest.raises(GeniusError, match="more than once"):
        FeatureSet(data.queries, data.pool, data.pairs, ["a", "a", "b", "c"], data.pool_ids)
