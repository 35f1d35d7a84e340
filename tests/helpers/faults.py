"""Calls of the operating system that fail, at every place of every operation that writes an index.

An injection runs an operation in a process of its own, on a copy of a folder, and lets the n-th call of a class fail in some way
(`lab/durability/faults.c`, preloaded). Then the same process, a new process, the full check and another write must agree:

    done without an error      the change is made
    one line of `GeniusError`  the change is not made, unless the line says that it is, or that this is not known
    killed                     the change is made or not made, as a whole

Anything else is a violation: an exception of another type, a state between, a check that is not clean, something left over.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import lancedb.index  # noqa: F401
import pandas  # noqa: F401
from fake_encoder import fake_model, register

from genius import Genius, GeniusError, Index, Item
from genius.fit.folder import _write_anew
from genius.index import opened
from genius.index.check import check
from genius.index.folder import WriteLock, about_of, begin_replacement, open_store, swap
from genius.index.paths import ORIGIN, remove
from genius.index.repair import repair, restore, snapshot

CLASSES = {"open": 1, "write": 2, "sync": 4, "rename": 8, "link": 16, "unlink": 32, "mkdir": 64, "read": 128, "mmap": 256}
WRITES = sum(CLASSES[name] for name in ("open", "write", "sync", "rename", "link", "unlink", "mkdir"))
READS = CLASSES["read"] | CLASSES["mmap"]
HOW = {"eio once": 1, "eio for good": 2, "full once": 3, "full for good": 4, "short": 5, "lie": 6, "kill": 7}
COUNT = 0
SECONDS = 60.0
SHIM = "GENIUS_FAULTS"

Contents = dict[str, Any]


def compile_shim(folder: Path) -> Path:
    source = Path(__file__).parents[2] / "lab" / "durability" / "faults.c"
    target = folder / "faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(target), str(source), "-ldl"], check=True)
    return target


def preloaded(shim: Path) -> dict[str, str]:
    """The environment of a process that injects faults."""
    return {**os.environ, "LD_PRELOAD": str(shim), SHIM: str(shim), "OMP_NUM_THREADS": "1", "LANCE_IO_THREADS": "2"}


# -- operations --------------------------------------------------------------------------------------------------


def things(first: int, last: int) -> list[Item]:
    return [Item(f"t{i}", text=f"thing number {i}", metadata={"n": i, "even": i % 2 == 0}) for i in range(first, last)]


def contents(index: Index) -> Contents:
    """All items, and that a search finds exactly them."""
    items = {item.id: [item.text, dict(item.metadata)] for item in index.items()}
    found = {hit.id for hit in index.search("thing number 3", target="any", k=1000)}
    if found != items.keys():
        raise AssertionError(f"a search finds {sorted(found)}, the table holds {sorted(items)}")
    return items


def base(folder: Path, model: Genius) -> None:
    """A small index with several fragments, an upsert, a deletion, a compaction and a cache."""
    with Index(folder / "x.genius", model, thumbnails=0) as index:
        index.add(things(0, 12))
        index.upsert(things(3, 5))
        index.delete("t7")
        index.optimize()
        index.add(things(12, 15))


def with_snapshot(folder: Path, model: Genius) -> None:
    base(folder, model)
    snapshot(folder / "x.genius", folder / "copy.genius")
    with Index(folder / "x.genius", model) as index:
        index.delete(["t1", "t2"])


def without_ledger(folder: Path, model: Genius) -> None:
    base(folder, model)
    (folder / "x.genius" / "ledger.jsonl").unlink()
    shutil.rmtree(folder / "x.genius" / "cache")


def without_cache(folder: Path, model: Genius) -> None:
    base(folder, model)
    shutil.rmtree(folder / "x.genius" / "cache")


def nothing(folder: Path, model: Genius) -> None:
    pass


def replace_index(folder: Path, model: Genius) -> None:
    """What a refit does once it has a model."""
    path = folder / "x.genius"
    with WriteLock(path / ".lock", 30.0).hold():
        about = about_of(path)
        reader = open_store(path, about).at(open_store(path, about).latest())
        fresh = begin_replacement(path, about)
        try:
            _write_anew(model, reader, fresh)
        except BaseException:
            remove(fresh, path, about.id)
            raise
        swap(path, fresh)


def open_building_a_cache(folder: Path, model: Genius) -> Index:
    opened.CACHE_FROM = 1
    return Index.open(folder / "x.genius", model)


@dataclass(frozen=True)
class Operation:
    """`setup` makes a folder; `run` changes it, with an index that was open before where `opens`."""

    setup: Callable[[Path, Genius], None]
    run: Callable[[Path, Genius, Index | None], object]
    opens: bool = True
    target: str = "x.genius"  # what is looked at afterwards


OPERATIONS: dict[str, Operation] = {
    "add": Operation(base, lambda f, m, i: i.add(things(20, 23))),  # type: ignore[union-attr]
    "upsert": Operation(base, lambda f, m, i: i.upsert([Item("t2", text="anew"), *things(30, 32)])),  # type: ignore[union-attr]
    "delete": Operation(base, lambda f, m, i: i.delete(["t4", "t13"])),  # type: ignore[union-attr]
    "optimize": Operation(base, lambda f, m, i: i.optimize(keep=timedelta(0))),  # type: ignore[union-attr]
    "rename": Operation(base, lambda f, m, i: i.rename_field("n", "number")),  # type: ignore[union-attr]
    "restore": Operation(with_snapshot, lambda f, m, i: restore(f / "copy.genius", f / "x.genius", replace_items=True)),
    "snapshot": Operation(base, lambda f, m, i: i.snapshot(f / "new.genius"), target="new.genius"),  # type: ignore[union-attr]
    "repair": Operation(without_ledger, lambda f, m, i: repair(f / "x.genius", m), opens=False),
    "replace": Operation(base, lambda f, m, i: replace_index(f, m), opens=False),
    "cache": Operation(without_cache, lambda f, m, i: contents(open_building_a_cache(f, m)), opens=False),
    "create": Operation(nothing, lambda f, m, i: Index(f / "x.genius", m, thumbnails=0).add(things(0, 3)), opens=False),
}


# -- one injection -----------------------------------------------------------------------------------------------


def in_child(work: Callable[[], Any], seconds: float = SECONDS) -> tuple[Any, int | None]:
    """What `work` returns in a forked process, and the signal that ended it; (None, None) if it hangs."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # LanceDB's, of forks; nothing of it runs in this process
        child = os.fork()
    if not child:
        try:
            os.close(read)
            result = work()
            with os.fdopen(write, "w") as pipe:
                json.dump(result, pipe)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(write)
    os.set_blocking(read, False)
    body = b""
    deadline = time.monotonic() + seconds
    while True:
        try:
            part = os.read(read, 1 << 16)
            body += part
            if not part:
                break
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                os.close(read)
                return None, None
            time.sleep(0.002)
    os.close(read)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return (json.loads(body) if body else None), 0


class Injector:
    """Runs injections below a folder. The process must have been started with `preloaded`."""

    def __init__(self, folder: Path) -> None:
        register()
        self.folder = folder.resolve()
        self.model = fake_model()
        self.saved = self.folder / "model"
        self.model.save_pretrained(self.saved)
        self.model = Genius.from_pretrained(self.saved)
        self.library = ctypes.CDLL(os.environ[SHIM])
        self.bases: dict[str, Path] = {}
        self.counts: dict[tuple[str, int], int] = {}
        self.known: dict[str, tuple[Contents | None, Contents]] = {}
        self.work = self.folder / "work"
        self.library.fault_root(str(self.work).encode())

    def prepare(self, name: str) -> None:
        """Make the folder that an operation starts from, and look at what it is before and after."""
        if name in self.bases:
            return
        operation = OPERATIONS[name]
        place = self.folder / f"base-{name}"
        place.mkdir()
        _, ended = in_child(lambda: operation.setup(place, self.model), 300)
        if ended != 0:
            raise RuntimeError(f"cannot set up {name}: {ended}")
        self.bases[name] = place
        before = None
        if (place / operation.target).exists() and name != "repair":
            before, _ = in_child(lambda: contents(Index.open(place / operation.target, self.model, read_only=True)))
        self._fresh(name)
        after, ended = in_child(lambda: self._run(name, 0, 1, COUNT)["state"])
        if ended != 0 or after is None:
            raise RuntimeError(f"{name} fails without a fault")
        self.known[name] = before, after

    def count(self, name: str, classes: int) -> int:
        """How many calls of these classes an operation makes."""
        self.prepare(name)
        if (name, classes) not in self.counts:
            self._fresh(name)
            result, _ = in_child(lambda: self._run(name, classes, 1, COUNT))
            self.counts[name, classes] = int(result["calls"])
        return self.counts[name, classes]

    def _fresh(self, name: str) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.bases[name], self.work)

    def _run(self, name: str, classes: int, n: int, how: int) -> dict[str, Any]:
        """In a child: the operation under a fault, then what the same process sees."""
        operation = OPERATIONS[name]
        index = Index.open(self.work / "x.genius", self.model, thumbnails=0) if operation.opens else None
        if index is not None:
            contents(index)
        error = bare = None
        self.library.fault_arm(classes, n, how)
        try:
            operation.run(self.work, self.model, index)
        except GeniusError as problem:
            error = str(problem)
        except BaseException as problem:
            bare = f"{type(problem).__name__}: {problem}"
        finally:
            calls = self.library.fault_stop()
        state = None
        trouble = None
        try:
            if index is not None and operation.target == "x.genius":
                state = contents(index)
            elif error is None and bare is None:
                state = contents(Index.open(self.work / operation.target, self.model, read_only=True))
        except Exception as problem:
            trouble = f"{type(problem).__name__}: {problem}"
        return {"calls": calls, "error": error, "bare": bare, "state": state, "trouble": trouble}

    def _afterwards(self, name: str) -> dict[str, Any]:
        """In another child: what a new process finds, the full check, and another write."""
        operation = OPERATIONS[name]
        path = self.work / operation.target
        if name == "repair" and not _opens(path, self.model):
            repair(path, self.model)  # it can be run again
        if name == "replace" and not path.exists():
            repair(path)
        if not path.exists() or not (path / "genius.json").exists():
            state = None
            problems: list[str] = []
        else:
            problems = list(check(path).problems)
            with Index.open(path, self.model) as index:
                state = contents(index)
        with Index(self.work / "x.genius", self.model, thumbnails=0) as index:
            before = contents(index)
            index.add([Item("later", text="goes on")])
            if contents(index).keys() != before.keys() | {"later"}:
                problems.append("another write is not as it should be")
        if name == "snapshot":  # the next one removes what the broken one left
            with Index.open(self.work / "x.genius", self.model) as index:
                index.snapshot(self.work / "other.genius")
        if name == "replace":
            about = about_of(self.work / "x.genius")
            remove(begin_replacement(self.work / "x.genius", about), self.work / "x.genius", about.id)
        problems += check(self.work / "x.genius").problems
        return {"state": state, "problems": problems, "left": list(left_over(self.work))}

    def inject(self, name: str, classes: int, n: int, how: str) -> str | None:
        """One injection; what is wrong, or None."""
        self.prepare(name)
        before, after = self.known[name]
        self._fresh(name)
        result, ended = in_child(lambda: self._run(name, classes, n, HOW[how]))
        if ended is None:
            return "it hangs"
        if result is None and (how != "kill" or ended != signal.SIGKILL):
            return f"the process ended with {ended}"
        later, ended = in_child(lambda: self._afterwards(name))
        if later is None:
            return f"a new process cannot go on ({'hangs' if ended is None else ended})"
        if later["problems"]:
            return f"check: {later['problems'][0]}"
        if later["left"]:
            return f"left over: {later['left'][0]}"
        if name == "create" and later["state"] == {}:
            later["state"] = before  # the index was made, the items were not added
        if later["state"] not in (before, after):
            return "the state is neither before nor after"
        if result is None:
            return None
        if result["bare"] is not None:
            return f"bare exception: {result['bare']}"
        if result["trouble"] is not None:
            return f"the same process cannot go on: {result['trouble']}"
        error = result["error"]
        if error is None and later["state"] != after:
            return "said done, but is not"
        if error is not None and "\n" in error:
            return f"more than one line: {error!r}"
        if error is not None and before != after and name != "repair":
            made = "is made" in error
            unknown = "not known" in error
            if not unknown and later["state"] != (after if made else before):
                return f"says {'made' if made else 'not made'}, but is the other: {error}"
        if result["state"] is not None and result["state"] != later["state"]:
            return "the same process and a new one see different things"
        return None


def _opens(path: Path, model: Genius) -> bool:
    try:
        return check(path).ok and len(Index.open(path, model)) >= 0
    except GeniusError:
        return False


def left_over(folder: Path) -> Iterator[str]:
    """Names that nobody needs any more."""
    known = {"x.genius", "copy.genius", "new.genius", "other.genius", ".x.genius.previous"}
    for path in folder.iterdir():
        if path.name not in known:
            yield path.name
    for path in folder.glob("*.genius/*"):
        if (path.name.startswith(".") and path.name != ".lock") or (path.name == ORIGIN and path.parent.name != "x.genius"):
            yield str(path.relative_to(folder))
    for path in folder.glob("*.genius/cache/.building-*"):
        yield str(path.relative_to(folder))


if __name__ == "__main__":  # a sample, for the suite: FOLDER SEED NUMBER -> lines of violations
    import random

    injector = Injector(Path(sys.argv[1]))
    draw = random.Random(int(sys.argv[2]))
    wanted = int(sys.argv[3])
    names = sorted(OPERATIONS)
    for number in range(wanted):
        chosen = names[number % len(names)]
        group = WRITES if draw.random() < 0.7 else READS
        calls = injector.count(chosen, group)
        at = draw.randint(1, max(calls, 1))
        way = draw.choice(sorted(HOW))
        wrong = injector.inject(chosen, group, at, way)
        if wrong is not None:
            print(f"{chosen}, {'writes' if group == WRITES else 'reads'} {at} of {calls}, {way}: {wrong}", flush=True)
    print("finished", wanted, flush=True)
