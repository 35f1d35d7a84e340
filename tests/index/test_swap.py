"""One index takes the place of another: killed at any moment both are whole, and nobody else's folder is touched."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genius import Genius, GeniusError, Index, Item
from genius.cli import app
from genius.index import cache, paths
from genius.index import folder as swapping
from genius.index.check import check
from genius.index.folder import deleted_ids, keep_deleted
from genius.index.repair import repair

PREVIOUS = ".my.genius.previous"


def two(tmp_path: Path, model: Genius) -> tuple[Path, Path]:
    """An index of one item, and a whole one of two, beside it, that is to take its place."""
    folder = tmp_path / "my.genius"
    with Index(folder, model) as index:
        index.add([Item("old", text="the old one")])
        index.snapshot(tmp_path / "new.genius")
    fresh = swapping.begin_replacement(folder, swapping.about_of(folder))
    for path in (tmp_path / "new.genius").iterdir():
        shutil.move(path, fresh)
    (tmp_path / "new.genius").rmdir()
    with Index(fresh, model) as index:
        index.add([Item("new", text="the new one")])
    return folder, fresh


def ids(folder: Path, model: Genius) -> set[str]:
    with Index.open(folder, model, read_only=True) as index:
        return {item.id for item in index.items()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tree(folder: Path) -> dict[str, object]:
    """Everything below a folder, with its time: equal if nothing was written or deleted."""
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*")}


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


def failing(path: Path) -> None:
    raise OSError(5, "Input/output error")


def test_a_new_generation_whose_name_cannot_be_synced_is_said_to_be_made(
    model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fresh = two(tmp_path, model)
    monkeypatch.setattr(swapping, "sync_directory", failing)
    with pytest.raises(GeniusError, match=r"is made anew, but a power cut may undo it: Input/output error$"):
        swapping.swap(folder, fresh)
    assert ids(folder, model) == {"old", "new"}


def test_killed_at_every_step_nothing_is_lost(model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill leaves the old index, the new one, or one line that names the command which finishes it."""
    outcomes = []
    begun, ready = two(tmp_path / "start", model)
    for step in range(20):
        place = tmp_path / str(step)
        shutil.copytree(begun.parent, place)
        folder, fresh = place / begun.name, place / ready.name
        died = killed(lambda: swapping.swap(folder, fresh), monkeypatch, step)  # noqa: B023
        before = tree(place)
        if folder.exists():
            outcomes.append(len(ids(folder, model)))
        else:
            with pytest.raises(GeniusError, match="genius repair"):
                Index.open(folder, model, read_only=True)
            assert check_says(folder) and tree(place) == before  # reading changes nothing
            repair(folder)
            outcomes.append(-len(ids(folder, model)))
        with Index(folder, model) as index:
            index.add([Item("later", text="goes on")])
        assert check(folder).ok
        swapping.clear(folder, swapping.about_of(folder))
        assert set(names(place)) <= {"my.genius", PREVIOUS}
        if not died:
            break
    else:
        pytest.fail("the swap never came to its end")
    assert set(outcomes) == {1, -2, 2}
    assert ids(place / PREVIOUS, model) == {"old"}  # one generation is kept, an index like any other


def check_says(folder: Path) -> bool:
    result = CliRunner().invoke(app, ["info", str(folder)])
    return result.exit_code != 0 and "genius repair" in result.output


def test_creating_finishes_a_swap_instead_of_an_empty_index(model: Genius, tmp_path: Path) -> None:
    folder, fresh = two(tmp_path, model)
    folder.rename(tmp_path / PREVIOUS)
    with Index(folder, model) as index:
        assert len(index) == 2
    assert not fresh.exists()


def test_an_index_that_was_deleted_does_not_come_back(model: Genius, tmp_path: Path) -> None:
    folder, fresh = two(tmp_path, model)
    swapping.swap(folder, fresh)
    shutil.rmtree(folder)
    assert len(Index(folder, model)) == 0


def test_only_one_generation_is_kept(model: Genius, tmp_path: Path) -> None:
    folder, fresh = two(tmp_path, model)
    swapping.swap(folder, fresh)
    about = swapping.about_of(folder)
    again = swapping.begin_replacement(folder, about)
    for path in folder.iterdir():
        if path.name not in (paths.ORIGIN, ".lock"):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, again / path.name)
    swapping.swap(folder, again)
    assert names(tmp_path) == [PREVIOUS, "my.genius"] and ids(tmp_path / PREVIOUS, model) == {"old", "new"}


def test_another_process_opens_it_between_the_renames(model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens the index meanwhile waits, and changes nothing."""
    folder, fresh = two(tmp_path, model)
    folder.rename(tmp_path / PREVIOUS)
    looked = []

    def sleep(_: float) -> None:
        looked.append(names(tmp_path))
        if len(looked) == 3:
            fresh.rename(folder)

    monkeypatch.setattr(swapping.time, "sleep", sleep)
    assert ids(folder, model) == {"old", "new"} and len(looked) == 3


def test_a_folder_that_cannot_be_moved_stays(model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for failing in (1, 2):  # of the two renames
        place = tmp_path / str(failing)
        folder, fresh = two(place, model)
        rename, calls = Path.rename, [0]

        def refused(
            path: Path, target: Path, failing: int = failing, rename: object = rename, calls: list[int] = calls
        ) -> object:
            calls[0] += 1
            if calls[0] == failing:
                raise PermissionError(13, "Permission denied")
            return rename(path, target)  # type: ignore[operator]

        with monkeypatch.context() as broken:
            broken.setattr(Path, "rename", refused)
            with pytest.raises(GeniusError, match="it is unchanged"):
                swapping.swap(folder, fresh)
        assert ids(folder, model) == {"old"} and names(place) == ["my.genius"]


def failing_renames(monkeypatch: pytest.MonkeyPatch, fail: Callable[[int], bool], *, done: bool = False) -> None:
    """Let calls of `Path.rename` fail, by their number from 1; `done`: after they did their work."""
    rename = Path.rename
    calls = [0]

    def failing(path: Path, target: Path) -> object:
        calls[0] += 1
        if not fail(calls[0]):
            return rename(path, target)
        if done:
            rename(path, target)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", failing)


def test_a_disk_that_dies_between_the_renames(model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the new one nor the old one can take the name: one line says where both lie, and the next writer finishes it."""
    folder, fresh = two(tmp_path, model)
    with monkeypatch.context() as broken:
        failing_renames(broken, lambda call: call > 1)
        with pytest.raises(GeniusError, match=r"is made anew, but cannot be renamed.*genius repair") as told:
            swapping.swap(folder, fresh)
    assert fresh.name in str(told.value) and PREVIOUS in str(told.value) and names(tmp_path) == sorted([PREVIOUS, fresh.name])
    repair(folder)
    assert ids(folder, model) == {"old", "new"} and ids(tmp_path / PREVIOUS, model) == {"old"}


@pytest.mark.parametrize("call", [1, 2])
def test_renames_that_report_errors_although_done(
    call: int, model: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fresh = two(tmp_path, model)
    with monkeypatch.context() as broken:
        failing_renames(broken, lambda number: number == call, done=True)
        swapping.swap(folder, fresh)
    assert ids(folder, model) == {"old", "new"} and ids(tmp_path / PREVIOUS, model) == {"old"}


def test_ids_that_stay_deleted_move_along_again_and_again(model: Genius, tmp_path: Path) -> None:
    """`deleted.json` in a generation was taken for somebody else's, and kept the next replacement from its place."""
    folder, fresh = two(tmp_path, model)
    keep_deleted(folder, ["a.txt"])
    swapping.swap(folder, fresh)
    again = swapping.begin_replacement(folder, swapping.about_of(folder))
    shutil.copytree(folder, again, dirs_exist_ok=True, ignore=shutil.ignore_patterns(paths.ORIGIN, ".lock", paths.DELETED))
    swapping.swap(folder, again)
    assert deleted_ids(folder) == {"a.txt"} and names(tmp_path) == [PREVIOUS, "my.genius"]


# -- what others may have put there ------------------------------------------------------------------------------

RECORDS = [
    {"fresh": "nothing", "aside": "docs"},
    {"fresh": "nothing", "aside": ".."},
    {"fresh": "nothing", "aside": "."},
    {"fresh": "nothing", "aside": ""},
    {"fresh": "../../etc", "aside": 7},
    {"fresh": "docs", "aside": "docs/sub"},
    {"fresh": "nothing", "aside": "linked"},
    [],
]


@pytest.mark.parametrize("record", RECORDS, ids=str)
@pytest.mark.parametrize("command", ["info", "search", "check", "repair", "open", "read_only", "add", "refit"])
def test_a_record_beside_an_index_deletes_nothing(record: object, command: str, model: Genius, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "docs" / "sub").mkdir(parents=True)
    (home / "docs" / "thesis.txt").write_text("all of it")
    (tmp_path / "elsewhere").mkdir()
    (home / "linked").symlink_to(tmp_path / "elsewhere")
    folder = home / "x.genius"
    Index(folder, model).add([Item("1", text="one")])
    (home / ".x.genius.swap.json").write_text(json.dumps(record))
    if command == "open":
        Index(folder, model)
    elif command == "read_only":
        Index(folder, model, read_only=True)
    elif command == "add":
        Index(folder, model).add([Item("2", text="two")])
    elif command == "refit":
        swapping.begin_replacement(folder, swapping.about_of(folder))
    else:
        CliRunner().invoke(app, [command, str(folder), *(["one"] if command == "search" else [])])
    assert (home / "docs" / "thesis.txt").read_text() == "all of it" and (home / "docs" / "sub").is_dir()
    assert (home / "linked").is_symlink() and (tmp_path / "elsewhere").is_dir() and len(Index(folder, model)) >= 1


@pytest.mark.parametrize("name", sorted(paths.OWN - {".lock"}))
def test_a_link_in_an_index_is_refused(name: str, model: Genius, tmp_path: Path) -> None:
    """`ln -s /home/me x.genius/cache` emptied /home/me."""
    outside = tmp_path / "outside"
    (outside / "photos").mkdir(parents=True)
    (outside / "photos" / "10").write_text("dear")
    folder = tmp_path / "x.genius"
    Index(folder, model).add([Item("1", text="one")])
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(outside if "." not in name or name.endswith("lance") else outside / "photos" / "10")
    for call in (lambda: Index(folder, model), lambda: Index.open(folder, model, read_only=True), lambda: repair(folder)):
        with pytest.raises(GeniusError, match="is a link"):
            call()
    assert any("is a link" in line for line in check(folder).problems)
    for command in ("info", "search", "optimize", "repair", "check"):
        result = CliRunner().invoke(app, [command, str(folder), *(["one"] if command == "search" else [])])
        assert result.exit_code != 0 and "is a link" in " ".join(result.output.split()), command
    assert (outside / "photos" / "10").read_text() == "dear"


def test_a_cache_is_forgotten_by_name_only(tmp_path: Path) -> None:
    root = tmp_path / "x.genius" / "cache"
    outside = tmp_path / "outside"
    for path in (root / "3", root / "4", root / ".building-x", root / "photos", outside):
        path.mkdir(parents=True)
        (path / "file").write_text("x")
    (root / "5").symlink_to(outside)
    cache.forget(root, keep=4)
    assert names(root) == ["4", "5", "photos"] and (outside / "file").exists()
    linked = tmp_path / "y.genius"
    linked.mkdir()
    (linked / "cache").symlink_to(root)
    cache.forget(linked / "cache", keep=None)
    assert names(root) == ["4", "5", "photos"]


def test_deleting_needs_proof(tmp_path: Path) -> None:
    index = tmp_path / "x.genius"
    (index / "cache" / "1").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (index / "away").symlink_to(tmp_path)
    strange = tmp_path / ".x.genius.next"
    strange.mkdir()
    (strange / "letters").mkdir()
    paths.write_origin(strange, "me")
    (tmp_path / ".x.genius.snapshot").symlink_to(tmp_path / "docs")
    refused = [tmp_path / "docs", index, tmp_path, index / ".." / "docs", index / "away" / "docs", index / "away"]
    for path in (*refused, strange, tmp_path / ".x.genius.snapshot", Path("/"), Path("..")):
        with pytest.raises(GeniusError, match="not deleted"):
            paths.remove(path, index, "me")
    assert (tmp_path / "docs").is_dir() and (strange / "letters").is_dir()
    (strange / "letters").rmdir()
    with pytest.raises(GeniusError, match="not deleted"):
        paths.remove(strange, index, "another")
    paths.remove(strange, index, "me")
    paths.remove(index / "cache" / "1", index)
    assert not strange.exists() and names(index / "cache") == []


def test_someone_elses_folder_is_not_taken_for_a_generation(model: Genius, tmp_path: Path) -> None:
    folder = tmp_path / "x.genius"
    Index(folder, model).add([Item("1", text="one")])
    (tmp_path / ".x.genius.previous").mkdir()
    (tmp_path / ".x.genius.previous" / "letters").write_text("dear")
    with pytest.raises(GeniusError, match="in the way"):
        swapping.begin_replacement(folder, swapping.about_of(folder))
    assert (tmp_path / ".x.genius.previous" / "letters").read_text() == "dear"
