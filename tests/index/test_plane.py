"""The collection on a plane: places in bounds, deleted items gone, alike items near each other."""

from __future__ import annotations

import numpy as np
import torch

from genius import Index, Item
from genius.index.plane import _flat, plane


def test_alike_is_near_and_kinds_do_not_fill_the_plane() -> None:
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 16, generator=rng)
    kinds = torch.arange(80) % 2
    group = torch.arange(80) // 20
    vectors = centres[group] + 0.1 * torch.randn(80, 16, generator=rng) + 50.0 * kinds[:, None]
    places = _flat(vectors, kinds)
    assert places.min() >= 0 and places.max() <= 1
    far = torch.cdist(places, places)
    same = (group[:, None] == group) & ~torch.eye(80, dtype=torch.bool)
    assert far[same].mean() < 0.6 * far[group[:, None] != group].mean()
    assert far[kinds[:, None] != kinds].mean() < 1.2 * far[kinds[:, None] == kinds].mean()
    assert _flat(torch.zeros(2, 8), torch.zeros(2)).shape == (2, 2) and not _flat(torch.zeros(5, 8), torch.zeros(5)).isnan().any()


def test_a_sample_of_what_is_there(index: Index) -> None:
    assert plane(index) == []
    index.add([Item(f"t{n}", text=f"a text about thing {n}") for n in range(9)])
    gone = "t3"
    index.delete(gone)
    placed = plane(index)
    assert {at.item.id for at in placed} == {item.id for item in index.items()} and gone not in {at.item.id for at in placed}
    assert all(at.codes == index.codes(at.item.id) and 0 <= at.x <= 1 and 0 <= at.y <= 1 for at in placed[:5])
    few = plane(index, most=4)
    assert len(few) == 4 and len({at.item.id for at in few}) == 4
    assert np.isfinite([at.x for at in few]).all()
