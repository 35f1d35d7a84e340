"""Real processes for the index tests, quick to start: a fork server has imported the heavy modules once.

Each function here runs in a process of its own through `call` and returns what it saw.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fake_encoder import fake_model

from genius import GeniusError, Index, Item

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch", "lancedb", "genius.index", "processes"])


def start(function: Callable[..., Any], *args: Any) -> tuple[multiprocessing.context.ForkServerProcess, Connection]:
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, args))
    process.start()
    theirs.close()
    return process, mine


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Run `function` in another process; its return value, or its exception as text."""
    process, answer = start(function, *args)
    try:
        return answer.recv()
    finally:
        process.join()


def _answer(connection: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        connection.send(function(*args))
    except BaseException as error:
        connection.send(f"{type(error).__name__}: {error}")


def fill_until_full(folder: str, limit: int) -> tuple[int, int, bool, str]:
    """Add ever larger batches with files limited to `limit` bytes: batches done, items, whether search works, the error."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing beyond the limit fails like a full disk instead of killing
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    index = Index(folder, fake_model())
    return fill(index)


def fill(index: Index) -> tuple[int, int, bool, str]:
    for step in range(100):
        batch = [Item(f"{step}-{i}", text="words " + f"{step * 7919 + i:020x}" * (40 * step)) for i in range(20)]
        try:
            index.add(batch)
        except GeniusError as error:
            return step, index.count(), len(index.search(text="words")) > 0, str(error)
    return 100, index.count(), True, "never full"


def open_without_room(folder: str, limit: int) -> tuple[int, int, list[str]]:
    """Open an index whose cache does not fit on the disk: items, hits, what the cache folder holds."""
    import genius.index.opened

    genius.index.opened.CACHE_FROM = 1
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    index = Index(folder, fake_model())
    cache = index.path / "cache"
    return len(index), len(index.search(text="words", k=5)), [p.name for p in cache.iterdir()] if cache.is_dir() else []


def use_read_only(folder: str) -> list[str]:
    """Open, search and try to change an index as someone who may not write it."""
    with tempfile.TemporaryDirectory() as warm:  # import everything while we still may
        Index(f"{warm}/w.genius", fake_model()).add([Item("a", text="a")])
        Index(f"{warm}/w.genius", fake_model()).search(text="a")
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    index = Index(folder, fake_model(), lock_timeout=1)
    seen = [f"{len(index)} {index.search(text='a')[0].id}"]
    changes: list[Callable[[], object]] = [
        lambda: index.add([Item("b", text="b")]),
        lambda: index.delete("a"),
        index.optimize,
        lambda: Index(f"{folder}/sub/new.genius", fake_model()),
    ]
    for change in changes:
        try:
            change()
            seen.append("no error")
        except GeniusError as error:
            seen.append(str(error))
    return seen


def add_numbers(folder: str, count: int) -> dict[str, Any]:
    index = Index(folder, fake_model())
    return index.add([Item(f"{i}", text=f"thing {i}") for i in range(count)], batch_size=3).to_dict()


def add_with_patience(folder: str, seconds: float) -> str:
    try:
        Index(folder, fake_model(), lock_timeout=seconds).add([Item("patient", text="patient")])
    except GeniusError as error:
        return str(error)
    return "added"


def on_ramp_without_room(folder: str, output: str, clip: str, limits: list[int]) -> list[str]:
    """Fit an index to photos with one limit of bytes a file after the other, -1 for none: what was said each time."""
    from genius.fit import FitConfig
    from genius.fit.folder import index_with_encoder
    from genius.index.ingest import IngestConfig

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    said = []
    for limit in limits:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most if limit < 0 else limit, most))
        try:
            done = index_with_encoder([folder], Path(output), clip, IngestConfig(), fit_config=FitConfig(steps=5))
            said.append(f"{done.items} items, {done.report.added} added")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def held_after_questions(folder: str) -> int:
    """Megabytes that this process holds after it has made up questions from pictures, beyond what it held before."""
    from fake_encoder import FakeEncoder

    from genius.fit.synthetic_queries import synthesize_queries

    def held() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))

    items = [Item(path.name, image=path) for path in sorted(Path(folder).iterdir())]
    encoder, before = FakeEncoder(), held()
    assert len(synthesize_queries(encoder, items)) > len(items)
    return held() - before
