"""Index folders from somebody else: nothing outside is read, changed or deleted, nothing hangs, each answer is one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from hostile_indexes import SECRET, Hostile, all_hostile, state_of, write_home

from genius import Genius, GeniusError, Index, Item
from genius.index import opened
from genius.index.check import check
from genius.index.folder import about_of, begin_replacement
from genius.index.repair import repair, snapshot

ALL = all_hostile()
SECONDS = 60.0  # far more than any answer takes; who waits for a pipe waits for ever


def test_there_are_many_kinds() -> None:
    assert len({hostile.name for hostile in ALL}) == len(ALL) >= 110


@pytest.fixture(scope="module")
def good(model: Genius, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a good index in it."""
    home = tmp_path_factory.mktemp("hostile") / "home"
    write_home(home)
    with Index(home / "x.genius", model, thumbnails=0) as index:
        index.add([Item(f"t{i}", text=f"thing {i}", metadata={"n": i}) for i in range(30)])
        index.optimize()
        index.add([Item("later", text="came later")])
    return home


def commands(folder: Path, model: Genius) -> dict[str, Callable[[], object]]:
    """Everything that can be done with an index folder, reading first."""
    target = folder.with_name("y.genius")

    def searched(**options: bool) -> object:
        with Index.open(folder, model, **options) as index:
            return [hit.item.text for hit in index.search("thing 3", k=50)], [item.text for item in index.items()]

    def written() -> object:
        with Index(folder, model, thumbnails=0) as index:
            index.add([Item("more", text="one more")])
            return index.optimize(keep=timedelta(0))

    return {
        "read": lambda: searched(read_only=True),
        "check": lambda: check(folder).problems,
        "snapshot": lambda: snapshot(folder, target),
        "write": written,
        "refit": lambda: begin_replacement(folder, about_of(folder)),
        "repair": lambda: repair(folder).to_dict(),
    }


@pytest.mark.parametrize("hostile", ALL, ids=[hostile.name for hostile in ALL])
def test_nothing_outside_is_touched(
    hostile: Hostile, good: Path, model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "CACHE_FROM", 10)
    home = tmp_path / "home"
    shutil.copytree(good, home)
    folder = home / "x.genius"
    hostile.make(home, folder)
    before = state_of(home)
    answers: dict[str, str] = {}
    for name, command in commands(folder, model).items():
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(command)
            try:
                answer = str(future.result(SECONDS))
            except TimeoutError:
                pytest.fail(f"{name} hangs")
            except GeniusError as error:
                answer = f"refused: {error}"
                assert "\n" not in str(error)
        answers[name] = answer
        assert SECRET not in answer, name
        left = {path: body for path, body in state_of(home).items() if not path.startswith("y.genius")}
        assert left == before, name
    if not hostile.opens:
        assert answers["read"].startswith("refused: "), answers["read"][:200]
    if hostile.opens and not hostile.name.startswith("swap"):
        assert "came later" in answers["read"]
