"""The collection on a plane: places in bounds, deleted items gone, alike items near each other, UMAP in the background."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from genius import GeniusError, Index, Item, flatten
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


def drawn(planes: Planes) -> tuple[Any, list[Any], bool]:
    plane, alive, better = planes.now()
    return plane, [] if plane is None else plane.placed(alive), better


def test_a_sample_of_what_is_there(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatten, "available", lambda: False)
    planes = Planes(index)
    assert drawn(planes) == (None, [], False)
    index.add([Item(f"t{n}", text=f"a text about thing {n}", metadata={"n": n}) for n in range(9)])
    plane, placed, better = drawn(planes)
    assert {at.id for at in placed} == {item.id for item in index.items()} and plane.method == "pca" and not better
    assert all(at.codes == index.codes(at.id) and 0 <= at.x <= 1 and 0 <= at.y <= 1 for at in placed)
    assert placed[0].title.startswith("a text about thing")
    assert planes.now()[0] is plane  # once for a version
    index.delete("t3")
    assert "t3" not in {at.id for at in drawn(planes)[1]} and planes.now()[0] is not plane
    few = Planes(index, most=4)
    plane, placed, _ = drawn(few)
    assert len({at.id for at in placed}) == 4 and np.isfinite([at.x for at in placed]).all()
    found = few.locate(plane, [placed[0].id, "t8", "nobody", "t1"])
    assert {at.id for at in found} == {placed[0].id, "t8", "t1"}
    assert next(at for at in found if at.id == placed[0].id) == placed[0]  # in the sample: its own place
    low, high = plane.places.amin(0), plane.places.amax(0)
    assert all(low[0] <= at.x <= high[0] and low[1] <= at.y <= high[1] for at in found)  # others amid their neighbours


def test_kinds_do_not_fill_the_plane(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatten, "available", lambda: False)
    pictures = [np.full((16, 16, 3), 8 * n, np.uint8) for n in range(30)]
    index.add([Item(f"t{n}", text=f"a text about thing {n}") for n in range(30)])
    index.add([Item(f"p{n}", image=Image.fromarray(picture)) for n, picture in enumerate(pictures)])
    placed = drawn(Planes(index))[1]
    places = torch.tensor([[at.x, at.y] for at in placed])
    texts = torch.tensor([at.id.startswith("t") for at in placed])
    assert (places[texts].mean(0) - places[~texts].mean(0)).abs().max() < 0.2


class Slow:
    """A flattening that ends when it is told."""

    made: list[Slow]

    def __init__(self, points: np.ndarray) -> None:
        self.points, self.go, self.stopped = points, threading.Event(), False
        Slow.made.append(self)

    def result(self) -> np.ndarray:
        assert self.go.wait(20)
        if self.stopped:
            raise GeniusError("UMAP gave no map: it was ended")
        return self.points[:, :2] * 30

    def stop(self) -> None:
        self.stopped = True
        self.go.set()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[Slow]:
    Slow.made = []
    monkeypatch.setattr(flatten, "available", lambda: True)
    monkeypatch.setattr(flatten, "Flattening", Slow)
    return Slow


def begun(slow: type[Slow], times: int) -> None:
    deadline = time.monotonic() + 60
    while len(slow.made) < times:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_better_plane_is_drawn_once_a_version_and_the_old_one_stays_meanwhile(index: Index, slow: type[Slow]) -> None:
    planes = Planes(index)
    index.add([Item(f"t{n}", text=f"a text about thing {n}") for n in range(40)])
    plane, placed, better = drawn(planes)
    assert plane.method == "pca" and len(placed) == 40 and better
    assert drawn(planes)[2] and len(slow.made) <= 1  # asked twice, drawn once
    begun(slow, 1)
    slow.made[0].go.set()
    planes.wait()
    plane, placed, better = drawn(planes)
    assert plane.method == "umap" and not better and len(slow.made) == 1
    assert all(0 <= at.x <= 1 and 0 <= at.y <= 1 for at in placed)
    index.delete("t7")
    assert not drawn(planes)[2]  # it rests for a while
    planes._rested = 0.0
    again, placed, better = drawn(planes)  # UMAP's last one, without what is gone, until the next is done
    assert again is plane and better and len(placed) == 39 and "t7" not in {at.id for at in placed}
    begun(slow, 2)
    planes.close()
    planes.wait()
    assert slow.made[1].stopped and not drawn(planes)[2]  # nothing is begun after the end


def test_too_few_items_get_no_umap(index: Index, slow: type[Slow]) -> None:
    index.add([Item(f"t{n}", text=f"a text about thing {n}") for n in range(5)])
    assert not drawn(Planes(index))[2] and slow.made == []


def test_a_failing_umap_leaves_the_plane_as_it_is(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatten, "available", lambda: True)
    monkeypatch.setattr(flatten.sys, "executable", "/bin/false")
    index.add([Item(f"t{n}", text=f"a text about thing {n}") for n in range(40)])
    planes = Planes(index)
    assert drawn(planes)[2]
    planes.wait()
    plane, placed, better = drawn(planes)
    assert plane.method == "pca" and len(placed) == 40 and not better
