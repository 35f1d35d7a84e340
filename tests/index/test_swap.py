"""One index takes the place of another: killed at any moment, one of the two is there under the name."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from genius import Genius, GeniusError, Index, Item
from genius.index import folder as swapping


def two(tmp_path: Path, model: Genius) -> tuple[Path, Path]:
    """An index of one item, and a whole one of two beside it."""
    folder = tmp_path / "my.genius"
    with Index(folder, model) as index:
        index.add([Item("old", text="the old one")])
        index.snapshot(tmp_path / "new.genius")
    fresh = swapping.beside(folder)
    shutil.move(tmp_path / "new.genius", fresh)
    with Index(fresh, model) as index:
        index.add([Item("new", text="the new one")])
    return folder, fresh


def killed(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch, step: int) -> bool:
    """Run `work` in a process that dies by SIGKILL before its file operation number `step`; False: it had fewer."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status)
    done = [0]

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **options: object) -> object:
            if done[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)
            done[0] += 1
            return call(*args, **options)

        return run

    for owner, name in ((Path, "rename"), (Path, "replace"), (Path, "unlink"), (shutil, "rmtree")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    try:
        work()
    finally:
        os._exit(0)


def test_killed_at_every_step_the_index_opens(model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = []
    begun, ready = two(tmp_path / "start", model)
    for step in range(20):
        place = tmp_path / str(step)
        shutil.copytree(begun.parent, place)
        folder, fresh = place / begun.name, place / ready.name
        died = killed(lambda: swapping.swap(folder, fresh), monkeypatch, step)  # noqa: B023
        with Index.open(folder, model) as index:
            held = {item.id for item in index.items()}
            assert held in ({"old"}, {"old", "new"}) and index.search("one", k=1)
        outcomes.append(len(held))
        with Index.open(folder, model) as index:  # under the lock, what is left over goes
            swapping.clear(folder)
            index.add([Item("later", text="goes on")])
        assert sorted(p.name for p in place.iterdir()) == ["my.genius"]
        if not died:
            break
    else:
        pytest.fail("the swap never came to its end")
    assert outcomes == sorted(outcomes) and set(outcomes) == {1, 2} and len(outcomes) > 4


def test_two_may_finish_it_at_once(model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process opens the index between the two renames: it puts the new one in place, and the first goes on."""
    folder, fresh = two(tmp_path, model)
    settle, opened = swapping.settle, []

    def meanwhile(path: Path) -> None:
        monkeypatch.setattr(swapping, "settle", settle)  # whoever opens it comes there as usual
        settle(path)
        opened.append({item.id for item in Index.open(path, model).items()})
        settle(path)

    monkeypatch.setattr(swapping, "settle", meanwhile)
    swapping.swap(folder, fresh)
    assert opened == [{"old", "new"}] and sorted(p.name for p in tmp_path.iterdir()) == ["my.genius"]


def test_a_folder_that_cannot_be_moved_stays(model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, fresh = two(tmp_path, model)

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", refused)
        with pytest.raises(GeniusError, match="it is as it was"):
            swapping.swap(folder, fresh)
    assert {item.id for item in Index.open(folder, model).items()} == {"old"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my.genius"]


def test_a_record_of_nonsense_harms_nobody(model: Genius, tmp_path: Path) -> None:
    folder, _ = two(tmp_path, model)
    (tmp_path / ".my.genius.swap.json").write_text('{"fresh": "../../etc", "aside": 7}')
    assert {item.id for item in Index.open(folder, model).items()} == {"old"}
    (tmp_path / ".my.genius.swap.json").write_text("[")
    assert len(Index.open(folder, model)) == 1
