"""Calls of the operating system that fail, at every place of every operation that writes an index.

An injection runs an operation in a forked process, on a copy of a folder, and lets the n-th call of a class fail in some way
(`faults.c`, preloaded). Then the same process, a new process, the full check and another write must agree:

    done without an error      the change is made
    one line of `GeniusError`  the change is not made, unless the line says that it is, or that this is not known
    killed                     the change is made or not made, as a whole

Anything else is a violation: an exception of another type, a state between, a check that is not clean, something left over.
A new operation is one entry of `OPERATIONS`.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import lancedb.index  # noqa: F401
import pandas  # noqa: F401
import torch
from fake_encoder import FakeEncoder, fake_model, register

from genius import Genius, GeniusError, Index, Item, fit
from genius.features import Features
from genius.fit import Fit, FitConfig
from genius.fit import folder as fit_folder
from genius.fit.folder import index_with_encoder, refit, write_anew
from genius.fit.reencode import go_back, reencode
from genius.index import commit, learned, opened
from genius.index.check import check
from genius.index.folder import WriteLock, about_of, begin_replacement, open_store, read_about, swap, unfinished_swap
from genius.index.ingest import IngestConfig
from genius.index.ledger import Ledger
from genius.index.paths import ORIGIN, remove
from genius.index.repair import repair, restore, snapshot
from genius.scale.bulk import BatchEncoder, BulkConfig, bulk_index

CLASSES = {"open": 1, "write": 2, "sync": 4, "rename": 8, "link": 16, "unlink": 32, "mkdir": 64, "read": 128, "mmap": 256}
WRITES = sum(CLASSES[name] for name in ("open", "write", "sync", "rename", "link", "unlink", "mkdir"))
READS = CLASSES["read"] | CLASSES["mmap"]
GROUPS = {"writes": WRITES, "reads": READS}
HOW = {"eio once": 1, "eio for good": 2, "full once": 3, "full for good": 4, "short": 5, "lie": 6, "kill": 7}
CAN_BE_FULL = 2  # what `fault_ways` says of a call
CAN_BE_SHORT = 4
COUNT = 0
SECONDS = 60.0
SHIM = "GENIUS_FAULTS"

Contents = dict[str, Any]
Step = Callable[[Path, Genius], object]


def compile_shim(folder: Path) -> Path:
    source = Path(__file__).with_name("faults.c")
    target = folder / "faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(target), str(source), "-ldl"], check=True)
    return target


def preloaded(shim: Path) -> dict[str, str]:
    """The environment of a process that injects faults."""
    return {**os.environ, "LD_PRELOAD": str(shim), SHIM: str(shim), "OMP_NUM_THREADS": "1", "LANCE_IO_THREADS": "2"}


# -- states: what an operation starts from. Each step runs in a process of its own -------------------------------


def things(first: int, last: int) -> list[Item]:
    return [Item(f"t{i}", text=f"thing number {i}", metadata={"n": i, "even": i % 2 == 0}) for i in range(first, last)]


def contents(index: Index) -> Contents:
    """All items, each once, and that a search finds exactly them."""
    listed = list(index.items())
    items: Contents = {item.id: [item.text, dict(item.metadata)] for item in listed}
    found = [hit.id for hit in index.search("thing number 3", target="any", k=1000)]
    if len(items) != len(listed) or len(items) != len(index):
        raise AssertionError(f"{len(listed)} items are listed, {len(items)} have ids of their own, {len(index)} are counted")
    if sorted(found) != sorted(items):
        raise AssertionError(f"a search finds {sorted(found)}, the table holds {sorted(items)}")
    about = learned.learned_metadata(index.path)
    if about:
        items["*learned"] = about["chosen_by"]
    items["*width"] = index.about.width
    fields = index.words_fields()
    if fields:
        items["*words"] = [sorted(fields), sorted(hit.id for hit in index.search("number", target="any", k=1000, mode="words"))]
    return items


def base(folder: Path, model: Genius, vectors: bool = True) -> None:
    """A small index with several fragments, an upsert, a deletion and a compaction."""
    with Index(folder / "x.genius", model, thumbnails=0, vectors=vectors) as index:
        index.add(things(0, 12))
        index.upsert(things(3, 5))
        index.delete("t7")
        index.optimize()
        index.add(things(12, 15))


def codes_alone(folder: Path, model: Genius) -> None:
    """The same without vectors."""
    base(folder, model, vectors=False)


def many_changes(folder: Path, model: Genius) -> None:
    """An index that was never compacted: eight fragments, some with deleted rows, many versions."""
    with Index(folder / "x.genius", model, thumbnails=0) as index:
        for first in range(0, 16, 2):
            index.add(things(first, first + 2))
        index.upsert(things(2, 5))
        index.delete(["t0", "t9"])


def cached(folder: Path, model: Genius) -> None:
    """An index with a cache that is three changes behind; every process that opens it writes caches."""
    opened.CACHE_FROM = 1
    base(folder, model)
    with Index(folder / "x.genius", model, thumbnails=0) as index:
        index.optimize()
        contents(index)
        index.upsert(things(5, 7))
        index.delete("t11")
        index.add(things(15, 18))


def die_before_the_ledger(folder: Path, model: Genius) -> None:
    """A writer that ends between the table's commit and the line of the ledger."""
    Ledger.acknowledge = lambda *_: os._exit(0)
    Index.open(folder / "x.genius", model).upsert(things(2, 20))


def copy_and_change(folder: Path, model: Genius) -> None:
    snapshot(folder / "x.genius", folder / "copy.genius")
    with Index(folder / "x.genius", model) as index:
        index.delete(["t1", "t2"])


def lose_ledger(folder: Path, model: Genius) -> None:
    (folder / "x.genius" / "ledger.jsonl").unlink()


def lose_about(folder: Path, model: Genius) -> None:
    (folder / "x.genius" / "genius.json").unlink()


def lose_newest_manifest(folder: Path, model: Genius) -> None:
    newest = commit.versions_on_disk(folder / "x.genius")[-1]
    (commit.table_folder(folder / "x.genius") / commit.manifest_name(newest)).write_bytes(b"damaged")


def lose_cache(folder: Path, model: Genius) -> None:
    shutil.rmtree(folder / "x.genius" / "cache", ignore_errors=True)


def sources(folder: Path, model: Genius) -> None:
    """Texts, and an encoder to index them with. They lie where no call fails: a text that cannot be read is skipped and named."""
    (folder.parent / "texts").mkdir(exist_ok=True)
    for number in range(5):
        (folder.parent / "texts" / f"{number}.txt").write_text(f"thing number {number}")
    FakeEncoder().save(folder.parent / "encoder")


def index_sources(folder: Path, model: Genius | None) -> None:
    paths = [folder.parent / "texts"]
    uri = str(folder.parent / "encoder")
    index_with_encoder(paths, folder / "x.genius", uri, IngestConfig(), fit_config=FitConfig(seed=0))


PLAIN: dict[str, tuple[Step, ...]] = {
    "fragments": (base,),
    "many changes": (many_changes,),
    "cached": (cached,),
    "interrupted": (base, die_before_the_ledger),
}
LOST: dict[str, tuple[Step, ...]] = {
    "no ledger": (base, lose_ledger, lose_cache),
    "no genius.json": (many_changes, lose_about),
    "newest manifest damaged": (base, lose_newest_manifest),
}


# -- operations --------------------------------------------------------------------------------------------------


def replace_index(folder: Path, model: Genius) -> None:
    """What a refit does once it has a model."""
    path = folder / "x.genius"
    with WriteLock(path / ".lock", 30.0).hold():
        about = about_of(path)
        reader = open_store(path, about).at(open_store(path, about).latest())
        fresh = begin_replacement(path, about)
        try:
            write_anew(model, reader, fresh)
        except BaseException:
            remove(fresh, path, about.id)
            raise
        swap(path, fresh)


def after_replacement(folder: Path, model: Genius) -> None:
    about = about_of(folder / "x.genius")
    with suppress(GeniusError):
        remove(begin_replacement(folder / "x.genius", about), folder / "x.genius", about.id)


FITS: dict[int, Fit] = {}
WIDTH = 32
OTHER_WIDTH = 48


def fit_in_advance(folder: Path) -> None:
    """Fit the models of "index" (seed 0), "refit" (1) and "reencode" (2) now: a fit takes a second, and touches no file."""
    for seed, (name, encoder, items) in enumerate(
        (("encoder", FakeEncoder(), 5), ("encoder", FakeEncoder(), 5), ("other encoder", FakeEncoder(OTHER_WIDTH), 14))
    ):
        z = encoder.encode_texts([f"thing number {number}" for number in range(items)])
        nothing = torch.zeros(len(z), dtype=torch.bool)
        features = Features(torch.zeros_like(z), z, nothing, ~nothing)
        few = FitConfig(steps=1, iterations=2, seed=seed)
        FITS[seed] = fit.fit_collection(features, None, encoder, fit.settled(str(folder.parent / name)), few)

    def known(*given: Any, **_: Any) -> Fit:
        return FITS[next(value.seed for value in given if isinstance(value, FitConfig))]

    for module in (fit, fit_folder):
        vars(module)["fit_vectors"] = known


def refit_quickly(folder: Path, model: Genius) -> None:
    refit(folder / "x.genius", FitConfig(seed=1))


def other_encoder(folder: Path, model: Genius) -> None:
    FakeEncoder(OTHER_WIDTH).save(folder.parent / "other encoder")


def switch(folder: Path, model: Genius) -> None:
    reencode(folder / "x.genius", str(folder.parent / "other encoder"), config=FitConfig(seed=2))


def finish_switch(folder: Path, model: Genius) -> None:
    if about_of(folder / "x.genius").width == WIDTH:
        switch(folder, model)


def change_after_switch(folder: Path, model: Genius) -> None:
    with Index(folder / "x.genius", thumbnails=0) as index:
        index.upsert([Item("t1", text="changed since"), *things(40, 42)])
        index.delete("t3")


def finish_going_back(folder: Path, model: Genius) -> None:
    if about_of(folder / "x.genius").width == OTHER_WIDTH:
        go_back(folder / "x.genius")


def learn_before(folder: Path, model: Genius) -> None:
    with Index(folder / "x.genius", model, thumbnails=0) as index:
        index.learn(QUERIES)


def words_before(folder: Path, model: Genius) -> None:
    """A full-text index that some rows came after."""
    with Index(folder / "x.genius", model, thumbnails=0) as index:
        index.index_words()
        index.upsert(things(1, 3))
        index.add(things(16, 18))


def open_building_a_cache(folder: Path, model: Genius) -> Contents:
    opened.CACHE_FROM = 1
    return contents(Index.open(folder / "x.genius", model))


def bulk(folder: Path, model: Genius) -> None:
    """Batches are encoded here. All texts are one batch, which is one commit."""

    def in_turn(index: Path, config: BulkConfig, batches: Any, say: Any) -> Any:
        encoder = BatchEncoder(index, config)
        for batch in batches:
            yield batch, encoder.encode(batch)

    config = BulkConfig(thumbnails=0, device="cpu")
    bulk_index([folder.parent / "texts"], folder / "x.genius", model, IngestConfig(), config, spread=in_turn)  # type: ignore[arg-type]


def own_model(folder: Path, model: Genius) -> None:
    """The one inside the index."""


def the_model(folder: Path, model: Genius) -> Genius:
    return model


@dataclass(frozen=True)
class Operation:
    """A change of an index.

    Attributes:
        run: Makes the change: folder, model, the index that was open before (None unless `opens`).
        states: What it starts from, by name.
        opens: Whether an index is open before, and looked at afterwards in the same process.
        target: The index that is looked at afterwards.
        finish: What people do after it failed: go on with it, or start another, which tidies up.
        completes: Whether the change is made after `finish`, whatever happened before.
        partly: Whether an empty index may be left: it is made first, items are added afterwards.
        broken: Whether an index does not open before.
        model: With which model it is opened.
    """

    run: Callable[[Path, Genius, Any], object]
    states: Mapping[str, tuple[Step, ...]] = field(default_factory=lambda: PLAIN)
    opens: bool = True
    target: str = "x.genius"
    finish: Step | None = None
    completes: bool = False
    partly: bool = False
    broken: bool = False
    model: Callable[[Path, Genius], Genius | None] = the_model


def _with(*steps: Step, states: Mapping[str, tuple[Step, ...]] = PLAIN) -> dict[str, tuple[Step, ...]]:
    return {name: (*first, *steps) for name, first in states.items()}


QUERIES = [{"text": f"number {number}", "target": "text"} for number in range(80)]
OPERATIONS: dict[str, Operation] = {
    "add": Operation(lambda f, m, i: i.add(things(20, 23))),
    "upsert": Operation(lambda f, m, i: i.upsert([Item("t2", text="anew"), *things(30, 32)])),
    "upsert codes": Operation(lambda f, m, i: i.upsert([Item("t2", text="anew")]), {"codes alone": (codes_alone,)}),
    "delete": Operation(lambda f, m, i: i.delete(["t4", "t13"])),
    "optimize": Operation(lambda f, m, i: i.optimize(keep=timedelta(0))),
    "add a field": Operation(lambda f, m, i: i.add([Item("t20", text="thing number 20", metadata={"colour": "red"})])),
    "index words": Operation(lambda f, m, i: i.index_words()),
    "index words anew": Operation(lambda f, m, i: i.index_words(), {"words": (base, words_before)}),
    "optimize words": Operation(lambda f, m, i: i.optimize(keep=timedelta(0)), {"words": (base, words_before)}),
    "learn": Operation(lambda f, m, i: i.learn(QUERIES)),
    "forget": Operation(lambda f, m, i: i.forget(), {"fragments": (base, learn_before)}),
    "restore": Operation(
        lambda f, m, i: restore(f / "copy.genius", f / "x.genius", replace_items=True),
        {"fragments": (base, copy_and_change), "cached": (cached, copy_and_change)},
    ),
    "restore anew": Operation(
        lambda f, m, i: restore(f / "copy.genius", f / "new.genius"),
        {"fragments": (base, copy_and_change)},
        target="new.genius",
        finish=lambda f, m: snapshot(f / "copy.genius", f / "other.genius"),
    ),
    "snapshot": Operation(
        lambda f, m, i: i.snapshot(f / "new.genius"),
        target="new.genius",
        finish=lambda f, m: snapshot(f / "x.genius", f / "other.genius"),
    ),
    "repair": Operation(
        lambda f, m, i: repair(f / "x.genius", m),
        LOST,
        opens=False,
        broken=True,
        finish=lambda f, m: repair(f / "x.genius", m),
        completes=True,
    ),
    "replace": Operation(lambda f, m, i: replace_index(f, m), opens=False, finish=after_replacement),
    "refit": Operation(
        lambda f, m, i: refit_quickly(f, m),
        {"texts": (sources, index_sources)},
        opens=False,
        finish=after_replacement,
        model=own_model,
    ),
    "reencode": Operation(
        lambda f, m, i: switch(f, m),
        {"fragments": (base, other_encoder)},
        finish=finish_switch,
        completes=True,
        model=own_model,
    ),
    "go back": Operation(
        lambda f, m, i: go_back(f / "x.genius"),
        {"fragments": (base, other_encoder, switch, change_after_switch)},
        finish=finish_going_back,
        completes=True,
        model=own_model,
    ),
    "index": Operation(
        lambda f, m, i: index_sources(f, m),
        {"texts": (sources,)},
        opens=False,
        finish=index_sources,
        completes=True,
        partly=True,
        model=own_model,
    ),
    "cache": Operation(lambda f, m, i: open_building_a_cache(f, m), _with(lose_cache), opens=False),
    "create": Operation(
        lambda f, m, i: Index(f / "x.genius", m, thumbnails=0).add(things(0, 3)), {"nothing": ()}, opens=False, partly=True
    ),
    "bulk": Operation(
        lambda f, m, i: bulk(f, m),
        {"fragments": (base, sources), "interrupted": (base, die_before_the_ledger, sources)},
        opens=False,
        finish=bulk,
        completes=True,
    ),
}


# -- one injection -----------------------------------------------------------------------------------------------


def in_child(work: Callable[[], Any], seconds: float = SECONDS) -> tuple[Any, int | None]:
    """What `work` returns in a forked process, and the signal that ended it; (None, None) if it hangs."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks: nothing of LanceDB runs in this process
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
    """Runs injections below a folder. The process must have been started with `preloaded`.

    Args:
        folder: Where copies of indexes are written. In memory (a tmpfs) it is several times quicker.
    """

    def __init__(self, folder: Path) -> None:
        register()
        self.folder = folder.resolve()
        saved = self.folder / "model"
        fake_model().save_pretrained(saved)
        self.model = Genius.from_pretrained(saved)
        self.library = ctypes.CDLL(os.environ[SHIM])
        self.made: dict[tuple[Step, ...], Path] = {}
        self.calls: dict[tuple[str, str, str], list[int]] = {}
        self.known: dict[tuple[str, str], tuple[Contents | None, Contents, Contents | None]] = {}
        self.work = self.folder / "work"
        self.library.fault_root(str(self.work).encode())

    def prepare(self, name: str, state: str, group: str) -> None:
        """Look at what an operation starts from, what it leaves without a fault, and which calls of a group it makes."""
        if (name, state, group) in self.calls:
            return
        operation = OPERATIONS[name]
        if operation.model is own_model and not FITS:
            fit_in_advance(self.work)
        self._fresh(name, state)
        source = target = None
        if not operation.broken:
            source, _ = in_child(lambda: self._contents(operation, "x.genius"))
            target = source
            if operation.target != "x.genius":
                target, _ = in_child(lambda: self._contents(operation, operation.target))
        self._fresh(name, state)
        done, ended = in_child(lambda: self._run(name, state, GROUPS[group], 1, COUNT))
        if ended != 0 or done is None or done["state"] is None or done["error"] or done["bare"] or done["trouble"]:
            raise RuntimeError(f"{name}, {state} fails without a fault: {done}")
        self.known[name, state] = target, done["state"], source
        self.calls[name, state, group] = done["ways"]

    def ways(self, name: str, state: str, group: str) -> list[list[str]]:
        """The calls of a group that an operation makes, in order, and how each can fail."""
        self.prepare(name, state, group)
        possible = []
        for flags in self.calls[name, state, group]:
            how = ["eio once", "eio for good", "kill"]
            if group == "writes":
                how.append("lie")
            if flags & CAN_BE_FULL:
                how += ["full once", "full for good"]
            if flags & CAN_BE_SHORT:
                how.append("short")
            possible.append(how)
        return possible

    def _fresh(self, name: str, state: str) -> None:
        """Put what an operation starts from into the working folder. States are made once: several operations share one."""
        steps = OPERATIONS[name].states[state]
        shutil.rmtree(self.work, ignore_errors=True)
        if steps in self.made:
            shutil.copytree(self.made[steps], self.work)
            return
        self.work.mkdir()
        for step in steps:  # at the place where it is used: some paths are absolute
            _, ended = in_child(lambda step=step: void(step(self.work, self.model)), 300)  # type: ignore[misc]
            if ended != 0:
                raise RuntimeError(f"cannot set up {name}, {state}: {ended}")
        self.made[steps] = self.folder / f"base-{len(self.made)}"
        shutil.copytree(self.work, self.made[steps])

    def _contents(self, operation: Operation, target: str) -> Contents | None:
        path = self.work / target
        if read_about(path) is None:
            return None
        return contents(Index.open(path, operation.model(self.work, self.model), read_only=True))

    def _run(self, name: str, state: str, classes: int, n: int, how: int) -> dict[str, Any]:
        """In a child: the operation under a fault, then what the same process sees."""
        operation = OPERATIONS[name]
        if state == "cached":
            opened.CACHE_FROM = 1
        model = operation.model(self.work, self.model)
        index = Index.open(self.work / "x.genius", model, thumbnails=0) if operation.opens else None
        if index is not None:
            contents(index)
        error = None
        bare = None
        self.library.fault_arm(classes, n, how)
        try:
            operation.run(self.work, self.model, index)
        except GeniusError as problem:
            error = str(problem)
        except BaseException as problem:
            place = traceback.extract_tb(problem.__traceback__)[-1]
            bare = f"{type(problem).__name__}: {problem} ({Path(place.filename).name}:{place.lineno}, {place.name})"
        finally:
            calls = self.library.fault_stop()
        fired = bool(self.library.fault_fired())
        ways = [self.library.fault_ways(i + 1) for i in range(calls)] if how == COUNT else []
        seen = None
        trouble = None
        try:
            if index is not None and operation.target == "x.genius":
                seen = contents(index)
            elif error is None and bare is None:
                seen = self._contents(operation, operation.target)
        except Exception as problem:
            if (self.work / "x.genius").exists() or not isinstance(
                problem, GeniusError
            ):  # else: to be finished by the next writer
                trouble = f"{type(problem).__name__}: {problem}"
        return {"ways": ways, "fired": fired, "error": error, "bare": bare, "state": seen, "trouble": trouble}

    def _afterwards(self, name: str, state: str) -> dict[str, Any]:
        """In another child: what a new process finds, the full check, and another write."""
        operation = OPERATIONS[name]
        if state == "cached":
            opened.CACHE_FROM = 1
        path = self.work / "x.genius"
        target = self.work / operation.target
        problems: list[str] = []
        if operation.broken and not _opens(path, self.model) and operation.finish is not None:
            operation.finish(self.work, self.model)  # it can be run again
        if unfinished_swap(path) is not None:
            repair(path)  # what a reader is told to do
        source = None
        found = None
        if target.exists() and (target / "genius.json").exists():
            problems += check(target).problems
            found = contents(Index.open(target, operation.model(self.work, self.model)))
        if target != path:
            source = self._contents(operation, "x.genius")
        if operation.finish is not None and not operation.broken:
            operation.finish(self.work, self.model)
        finished = self._contents(operation, operation.target) if operation.completes else None
        with Index(path, operation.model(self.work, self.model), thumbnails=0) as index:
            before = contents(index)
            index.add([Item("written afterwards", text="goes on")])
            if contents(index).keys() != before.keys() | {"written afterwards"}:
                problems.append("another write is not as it should be")
        problems += check(path).problems
        left = list(left_over(self.work))
        return {"state": found, "source": source, "finished": finished, "problems": problems, "left": left}

    def inject(self, name: str, state: str, group: str, n: int, how: str) -> tuple[bool, str | None]:
        """Let the n-th call of a group fail.

        Returns:
            Whether it failed (threads may make another number of calls this time), and what is wrong, or None.
        """
        self.prepare(name, state, group)
        self._fresh(name, state)
        result, ended = in_child(lambda: self._run(name, state, GROUPS[group], n, HOW[how]))
        if ended is None:
            return True, "it hangs"
        if result is None and (how != "kill" or ended != signal.SIGKILL):
            return True, f"the process ended with {ended}"
        fired = result is None or result["fired"]
        later, ended = in_child(lambda: self._afterwards(name, state))
        if later is None:
            return fired, f"a new process cannot go on ({'hangs' if ended is None else ended})"
        return fired, self._judge(name, state, result, later)

    def _judge(self, name: str, state: str, result: dict[str, Any] | None, later: dict[str, Any]) -> str | None:
        operation = OPERATIONS[name]
        before, after, source = self.known[name, state]
        found = later["state"]
        if later["problems"]:
            return f"check: {later['problems'][0]}"
        if later["left"]:
            return f"left over: {later['left'][0]}"
        if operation.partly and _is_empty(found):
            found = before  # the index was made, the items were not added
        if operation.completes and later["finished"] != after:
            return "run again, it does not end with what it should"
        if operation.target != "x.genius" and later["source"] != source:
            return "the index that was copied is another now"
        if found not in (before, after):
            return "the state is neither before nor after"
        if result is None:
            return None
        wrong = wrong_words(result, found == after)
        if wrong is not None:
            return wrong
        error = result["error"]
        in_steps = operation.broken or (operation.partly and operation.completes)  # what is done stays, and is gone on with
        if error is not None and before != after and not in_steps:
            made = "is made" in error
            unknown = "not known" in error
            if not unknown and found != (after if made else before):
                return f"says {'made' if made else 'not made'}, but is the other: {error}"
        if result["state"] is not None and result["state"] != found and not (operation.partly and _is_empty(result["state"])):
            return "the same process and a new one see different things"
        return None


def _is_empty(found: Contents | None) -> bool:
    """Whether an index is there, without any item."""
    return found is not None and all(name.startswith("*") for name in found)


def void(_: object) -> None:
    """For work whose result is of no interest."""


def wrong_words(result: dict[str, Any], done: bool) -> str | None:
    """What is wrong with what an operation said, whatever state it left; None: nothing."""
    if result["bare"] is not None:
        return f"bare exception: {result['bare']}"
    if result["trouble"] is not None:
        return f"the same process cannot go on: {result['trouble']}"
    error = result["error"]
    if error is None and not done:
        return "said done, but is not"
    if error is not None and "\n" in error:
        return f"more than one line: {error!r}"
    return None


def _opens(path: Path, model: Genius) -> bool:
    try:
        return check(path).ok and len(Index.open(path, model)) >= 0
    except GeniusError:
        return False


def left_over(folder: Path) -> Iterator[str]:
    """Names that nobody needs any more."""
    known = {"x.genius", "copy.genius", "new.genius", "other.genius", ".x.genius.previous", "old"}
    for path in folder.iterdir():
        if path.name not in known:
            yield path.name
    for path in folder.glob("*.genius/*"):
        hidden = path.name.startswith(".") and path.name != ".lock"
        origin = path.name == ORIGIN and path.parent.name != "x.genius"
        features = path.name == "reencoded" and any(child.is_dir() for child in path.iterdir())
        if hidden or origin or features or path.name == "encoded":
            yield str(path.relative_to(folder))
    for path in folder.glob("*.genius/cache/.building-*"):
        yield str(path.relative_to(folder))


if __name__ == "__main__":  # a sample, for the suite: FOLDER SEED -> lines of violations, one injection for each operation
    import random

    injector = Injector(Path(sys.argv[1]))
    draw = random.Random(int(sys.argv[2]))
    for chosen in OPERATIONS:
        state_name = draw.choice(sorted(OPERATIONS[chosen].states))
        group_name = draw.choice(("writes", "writes", "reads"))
        every = injector.ways(chosen, state_name, group_name)
        if not every:  # forgetting what was learned reads nothing
            every = injector.ways(chosen, state_name, group_name := "writes")
        at = draw.randint(1, len(every))
        way = draw.choice(every[at - 1])
        _, wrong = injector.inject(chosen, state_name, group_name, at, way)
        if wrong is not None:
            print(f"{chosen}, {state_name}, {group_name} {at} of {len(every)}, {way}: {wrong}", flush=True)
    print("finished", flush=True)
