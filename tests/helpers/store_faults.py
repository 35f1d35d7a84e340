"""Requests to an object store that fail, at every place of what sends or fetches an index (`genius.scale.objects`).

As `faults.py`, with an object store (`object_store.py`) in place of the operating system. What was bulk-indexed is published, a
follower fetches it, or sources are fetched and bulk-indexed, and the n-th request fails in some way. Then

    done without an error      followers see the new version
    one line of `GeniusError`  they see the one before, unless the line says that it is made, or that this is not known
    killed                     they see one of the two, as a whole

After each: the same process, a new process, the full check of what a follower has, the same again, which ends well, and another
write that is published and followed. No claim, and no object that the ledger does not name, is left then.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import faults
import object_store
import pyarrow.fs
from fake_encoder import fake_model, register
from faults import Contents, contents, in_child, void

from genius import Genius, GeniusError, Index, Item
from genius.index.check import check
from genius.index.ingest import IngestConfig, ingest
from genius.index.ledger import Ledger
from genius.scale.objects import CLAIMS, fetch_index, fetch_sources, publish

URL = "s3://shelf/x.genius"
SOURCES = "s3://shelf/texts"
WAIT_S = 1.0  # for an answer of the store; pyarrow's own default is 3 s
READS = ("error once", "error for good", "hang once", "hang for good", "cut once", "kill before")


def impatient() -> None:
    """Let requests of this process wait for `WAIT_S`, and not be tried again by the library: every fault is seen."""
    vars(pyarrow.fs)["S3FileSystem"] = functools.partial(
        pyarrow.fs.S3FileSystem,
        request_timeout=WAIT_S,
        connect_timeout=WAIT_S,
        retry_strategy=pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )


# -- states ------------------------------------------------------------------------------------------------------


def write_sources(folder: Path, model: Genius) -> None:
    (folder.parent / "texts").mkdir(exist_ok=True)
    for number in range(5):
        (folder.parent / "texts" / f"{number}.txt").write_text(f"thing number {number}")


def commit_in_bulk(folder: Path, model: Genius) -> None:
    """A bulk commit, where the extra `ray` is installed."""
    if faults.WITH_LANCE:
        faults.bulk(folder, model)
        return
    with Index(folder / "x.genius", model, thumbnails=0) as index:
        ingest(index, [folder.parent / "texts"], IngestConfig())


def publish_it(folder: Path, model: Genius) -> None:
    publish(folder / "x.genius", URL)


def follow_it(folder: Path, model: Genius) -> None:
    fetch_index(URL, folder / "copy.genius")


def tidy(folder: Path, model: Genius) -> None:
    with Index(folder / "x.genius", model, thumbnails=0) as index:
        index.optimize(keep=timedelta(0))


def send_sources(folder: Path, model: Genius) -> None:
    from genius.scale.objects import Place

    for path in (folder.parent / "texts").iterdir():
        Place(SOURCES).send(path, path.name)


def fetch_and_commit(folder: Path, model: Genius) -> None:
    texts = fetch_sources(SOURCES, folder / "fetched")
    with Index(folder / "x.genius", model, thumbnails=0) as index:
        ingest(index, [texts], IngestConfig())


@dataclass(frozen=True)
class Operation:
    """What talks to the store.

    Attributes:
        run: Does it; also what people do again after it failed.
        steps: What it starts from.
        seen: The index that shows whether it is done: of a follower, of who follows already, or the writer's own.
    """

    run: Callable[[Path, Genius], object]
    steps: tuple[Callable[[Path, Genius], object], ...]
    seen: str = "a new follower"


START = (faults.base, write_sources)
OPERATIONS = {
    "publish first": Operation(publish_it, (*START, commit_in_bulk)),
    "publish": Operation(publish_it, (*START, publish_it, commit_in_bulk)),
    "publish tidied": Operation(publish_it, (*START, publish_it, commit_in_bulk, tidy)),
    "fetch": Operation(follow_it, (*START, publish_it, follow_it, commit_in_bulk, publish_it), "copy.genius"),
    "sources": Operation(fetch_and_commit, (*START, send_sources), "x.genius"),
}


# -- one injection -----------------------------------------------------------------------------------------------


class Injector:
    """Runs injections below a folder, against a store that runs.

    Args:
        folder: Where indexes are written.
        store: The store.
    """

    def __init__(self, folder: Path, store: object_store.Control) -> None:
        register()
        self.folder = folder.resolve()
        self.store = store
        saved = self.folder / "model"
        fake_model().save_pretrained(saved)
        self.model = Genius.from_pretrained(saved)
        self.work = self.folder / "work"
        self.store("save", name="nothing")
        self.requests: dict[str, list[str]] = {}
        self.known: dict[str, tuple[Contents | None, Contents]] = {}

    def prepare(self, name: str) -> None:
        """Make what an operation starts from, here and in the store, and look at what it is before and after."""
        if name in self.requests:
            return
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        self.store("back", name="nothing")
        for step in OPERATIONS[name].steps:
            self._child(lambda step=step: void(step(self.work, self.model)))  # type: ignore[misc]
        shutil.copytree(self.work, self.folder / f"base {name}")
        self.store("save", name=name)
        before = self._child(lambda: self._seen(name))
        self._fresh(name)
        done = self._child(lambda: self._run(name, 0, ""))
        if done["error"] is not None or done["bare"] is not None or done["seen"] is None:
            raise RuntimeError(f"{name} fails without a fault: {done}")
        self.requests[name] = done["requests"]
        self.known[name] = before, done["seen"]

    def _child(self, work: Callable[[], Any]) -> Any:
        result, ended = in_child(work, 120)
        if ended != 0:
            raise RuntimeError(f"a process ended with {ended}")
        return result

    def ways(self, name: str) -> list[list[str]]:
        """The requests of an operation, and how each can fail."""
        self.prepare(name)
        return [list(READS if line.startswith(("GET", "HEAD")) else object_store.HOW) for line in self.requests[name]]

    def _fresh(self, name: str) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.folder / f"base {name}", self.work)
        self.store("back", name=name)

    def _seen(self, name: str) -> Contents | None:
        """What the index holds that shows whether an operation is done; None: there is none."""
        target = OPERATIONS[name].seen
        path = self.work / target
        if target == "a new follower":
            path = self.work / f"follower {os.getpid()}.genius"
            shutil.rmtree(path, ignore_errors=True)
            try:
                fetch_index(URL, path)
            except GeniusError as error:
                if "no index at" in str(error):
                    return None
                raise
        with Index.open(path, self.model, read_only=True) as index:
            return contents(index)

    def _run(self, name: str, n: int, how: str) -> dict[str, Any]:
        """In a child: the operation under a fault, then what the same process sees."""
        impatient()
        error = None
        bare = None
        self.store("arm", n=n, how=how, client=os.getpid())
        try:
            OPERATIONS[name].run(self.work, self.model)
        except GeniusError as problem:
            error = str(problem)
        except BaseException as problem:
            place = traceback.extract_tb(problem.__traceback__)[-1]
            bare = f"{type(problem).__name__}: {problem} ({Path(place.filename).name}:{place.lineno}, {place.name})"
        requests = self.store("stop")
        seen = None
        trouble = None
        try:
            seen = self._seen(name)
        except Exception as problem:
            trouble = f"{type(problem).__name__}: {problem}"
        return {"error": error, "bare": bare, "requests": requests, "seen": seen, "trouble": trouble}

    def _afterwards(self, name: str) -> dict[str, Any]:
        """In another child: what a new process sees, the same again, and another write that is published and followed."""
        operation = OPERATIONS[name]
        found = self._seen(name)
        again = None
        try:
            operation.run(self.work, self.model)
        except GeniusError as problem:
            again = str(problem)
            if "--alone" in again:
                publish(self.work / "x.genius", URL, alone=True)
                again = None
        finished = self._seen(name)
        with Index(self.work / "x.genius", self.model, thumbnails=0) as index:
            index.add([Item("written afterwards", text="goes on")])
            wanted = contents(index)
        publish(self.work / "x.genius", URL)
        fetch_index(URL, self.work / "copy.genius")
        with Index.open(self.work / "copy.genius", self.model, read_only=True) as copy:
            followed = contents(copy) == wanted
        problems = [*check(self.work / "copy.genius").problems, *check(self.work / "x.genius").problems]
        return {
            "seen": found,
            "again": again,
            "finished": finished,
            "followed": followed,
            "problems": problems,
            "left": self._left(),
        }

    def _left(self) -> list[str]:
        """Objects that nobody needs, and half-fetched files."""
        state = Ledger(self.work / "x.genius").read()
        assert state is not None
        left = []
        for name in self.store("names"):
            inside = name.removeprefix("shelf/x.genius/")
            if inside == name or name.endswith("/"):
                continue
            table = inside.startswith("items.lance/") and inside.removeprefix("items.lance/") not in state.files
            if table or inside.startswith(CLAIMS):
                left.append(name)
        return [*left, *(path.name for path in self.work.glob("copy.genius/.*") if path.name != ".lock")]

    def inject(self, name: str, n: int, how: str) -> tuple[bool, str | None]:
        """Let the n-th request fail.

        Returns:
            Whether it came to that, and what is wrong, or None.
        """
        self.prepare(name)
        self._fresh(name)
        result, ended = in_child(lambda: self._run(name, n, how), 120)
        self.store("stop")
        if ended is None:
            return True, "it hangs"
        if result is None and ended != signal.SIGKILL:
            return True, f"the process ended with {ended}"
        later, ended = in_child(lambda: self._afterwards(name), 120)
        fired = result is None or len(result["requests"]) >= n
        if later is None:
            return fired, f"a new process cannot go on ({'hangs' if ended is None else ended})"
        return fired, self._judge(name, result, later)

    def _judge(self, name: str, result: dict[str, Any] | None, later: dict[str, Any]) -> str | None:
        before, after = self.known[name]
        found = later["seen"]
        if later["problems"]:
            return f"check: {later['problems'][0]}"
        if later["left"]:
            return f"left over: {later['left'][0]}"
        if later["again"] is not None:
            return f"run again, it is refused: {later['again']}"
        if later["finished"] != after or not later["followed"]:
            return "run again, it does not end with what it should"
        if found not in (before, after):
            return "the state is neither before nor after"
        if result is None:
            return None
        wrong = faults.wrong_words(result, found == after)
        if wrong is not None:
            return wrong
        error = result["error"]
        made = error is not None and "is made" in error
        if error is not None and "not known" not in error and found != (after if made else before):
            return f"says {'made' if made else 'not made'}, but is the other: {error}"
        if result["seen"] != found:
            return "the same process and a new one see different things"
        return None


if __name__ == "__main__":  # a sample, for the suite: FOLDER SEED -> lines of violations, one injection for each operation
    import random

    with object_store.running() as control:
        injector = Injector(Path(sys.argv[1]), control)
        draw = random.Random(int(sys.argv[2]))
        chosen = []
        for name in OPERATIONS:
            every = injector.ways(name)
            at = draw.randint(1, len(every))
            chosen.append((name, at, draw.choice(every[at - 1])))
        counts = [line.startswith("POST shelf/x.genius/ledger.jsonl?uploadId") for line in injector.requests["publish"]]
        chosen.append(("publish", counts.index(True) + 1, "lost, then errors"))  # from this request on the new version counts
        for name, at, way in chosen:
            fired, wrong = injector.inject(name, at, way)
            if wrong is not None or not fired:
                print(f"{name}, request {at}, {way}: {wrong or 'it did not happen'}", flush=True)
    print("finished", flush=True)
