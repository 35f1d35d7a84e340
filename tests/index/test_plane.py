"""The collection on a plane: places in bounds, deleted items gone, alike items near each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from genius import Index, Item
from genius.index.overview import Planes, principal


def test_alike_is_near() -> None:
    rng = torch.Generator().manual_seed(0)
    group = torch.arange(80) // 20
    vectors = F.normalize(torch.randn(4, 16, generator=rng)[group] + 0.1 * torch.randn(80, 16, generator=rng), dim=1)
    places = principal(vectors)
    assert places.min() >= 0 and places.max() <= 1
    far = torch.cdist(places, places)
    same = (group[:, None] == group) & ~torch.eye(80, dtype=torch.bool)
    assert far[same].mean() < 0.6 * far[group[:, None] != group].mean()
    assert principal(torch.zeros(2, 8)).shape == (2, 2) and not principal(torch.zeros(5, 8)).isnan().any()


def drawn(planes: Planes) -> tuple[Any, list[Any]]:
    plane = planes.now()
    return plane, [] if plane is None else plane.placed()


def test_a_sample_of_what_is_there(index: Index) -> None:
    planes = Planes(index)
    assert drawn(planes) == (None, [])
    index.add([Item(f"t{n}", text=f"a text about thing {n}", metadata={"n": n}) for n in range(9)])
    plane, placed = drawn(planes)
    assert {at.id for at in placed} == {item.id for item in index.items()}
    assert all(at.codes == index.codes(at.id) and 0 <= at.x <= 1 and 0 <= at.y <= 1 for at in placed)
    assert placed[0].title.startswith("a text about thing")
    assert planes.now() is plane  # once for a version
    index.delete("t3")
    assert "t3" not in {at.id for at in drawn(planes)[1]} and planes.now() is not plane
    few = Planes(index, most=4)
    plane, placed = drawn(few)
    assert len({at.id for at in placed}) == 4 and np.isfinite([at.x for at in placed]).all()
    found = few.locate(plane, [placed[0].id, "t8", "nobody", "t1"])
    assert {at.id for at in found} == {placed[0].id, "t8", "t1"}
    assert next(at for at in found if at.id == placed[0].id) == placed[0]  # in the sample: its own place
    low, high = plane.places.amin(0), plane.places.amax(0)
    assert all(low[0] <= at.x <= high[0] and low[1] <= at.y <= high[1] for at in found)  # others amid their neighbours


def test_kinds_do_not_fill_the_plane(index: Index) -> None:
    pictures = [np.full((16, 16, 3), 8 * n, np.uint8) for n in range(30)]
    index.add([Item(f"t{n}", text=f"a text about thing {n}") for n in range(30)])
    index.add([Item(f"p{n}", image=Image.fromarray(picture)) for n, picture in enumerate(pictures)])
    placed = drawn(Planes(index))[1]
    places = torch.tensor([[at.x, at.y] for at in placed])
    texts = torch.tensor([at.id.startswith("t") for at in placed])
    assert (places[texts].mean(0) - places[~texts].mean(0)).abs().max() < 0.2
