"""`genius serve --workers 2`: two processes on one socket and one index; they share what they read, and one may die."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn
from uvicorn.supervisors.multiprocess import Process

from genius import Index, Item
from genius.serve.run import Supervisor


def search(url: str, text: str = "a red circle") -> httpx.Response:
    """On a connection of its own, so that either worker may take it."""
    return httpx.post(f"{url}/v1/search", json={"text": text, "k": 3}, timeout=60, trust_env=False)


@contextmanager
def asleep(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def until(what: Callable[[], bool], seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def workers_of(parent: psutil.Process) -> set[int]:
    """Processes that uvicorn's supervisor started, without multiprocessing's own helper."""
    found = set()
    for child in parent.children():
        with contextlib.suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(child.cmdline()):
                found.add(child.pid)
    return found


def test_two_workers_answer_see_each_others_writes_and_outlive_a_kill(start_server: Callable[..., Any], tmp_path: Path) -> None:
    with Index(tmp_path / "texts.genius", "bundled:mini") as index:
        index.add(Item(str(number), text=f"a {colour} circle") for number, colour in enumerate(("red", "blue", "green")))
    server = start_server("--workers", "2", index=tmp_path / "texts.genius", model="bundled:mini")
    parent = psutil.Process(server.process.pid)
    started = lambda: sum(line["event"] == "start" for line in server.logged())  # noqa: E731
    until(lambda: started() == 2)
    first = workers_of(parent)
    for pid in first:  # each answers once the other is asleep
        with asleep(pid):
            assert search(server.url).status_code == 200
    one, other = first

    with asleep(other):  # so `one` answers, and writes
        assert search(server.url).status_code == 200
        body = {"items": [{"id": "zebra-1", "text": "a striped zebra"}]}
        assert httpx.post(f"{server.url}/v1/items", json=body, timeout=60, trust_env=False).status_code == 200
    with asleep(one):  # the other has not written it, and knows of it at once
        shown = httpx.get(f"{server.url}/v1/items/zebra-1", timeout=60, trust_env=False)
        assert shown.status_code == 200 and shown.json()["text"] == "a striped zebra"

    os.kill(one, signal.SIGKILL)
    until(lambda: one not in workers_of(parent))
    assert all(search(server.url).status_code == 200 for _ in range(5))  # the other goes on meanwhile
    until(lambda: started() == 3 and len(workers_of(parent)) == 2)

    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert not [pid for pid in first if psutil.pid_exists(pid)]


def test_a_worker_that_dies_while_it_is_asked_is_noticed_at_once() -> None:
    config = uvicorn.Config("nowhere:app", timeout_worker_healthcheck=1_000)
    worker = Process(config, [])
    worker.start()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)  # alive, but without an answer
    supervisor = object.__new__(Supervisor)  # without its handlers of signals
    supervisor.config = config
    supervisor.processes = [worker]
    supervisor.should_exit = threading.Event()
    asking = threading.Thread(target=supervisor.keep_subprocess_alive, daemon=True)
    asking.start()
    until(lambda: worker.child_conn.closed)
    time.sleep(0.2)  # by now it is asked
    supervisor.should_exit.set()  # no other one is started
    os.kill(worker.pid, signal.SIGKILL)
    asking.join(200)
    assert not asking.is_alive()
