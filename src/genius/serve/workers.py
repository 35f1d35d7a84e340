"""`genius serve --workers N`: N processes that answer on one socket and read one index; this one only looks after them.

Every worker opens the index for itself. What they read of it is memory-mapped, so the system holds it once; each notices by
itself when another wrote (a search always sees the newest version), and writers take turns by the index's own lock. A worker
that dies is replaced. SIGTERM lets all of them finish; SIGHUP replaces them one by one, the next only when the last one answers:
for a new model under the same path, without a request that fails. Knows processes and signals; nothing of HTTP or indexes.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from genius.errors import GeniusError

WORKER = "GENIUS_SERVE_WORKER"
"""In the environment of a worker: the numbers of the listening socket and of the pipe that it says "ready" on."""

START_S = 600.0  # a large index may have to build its cache first
SOON = 3  # deaths before being ready, one after the other, after which there is no point in going on


def inherited() -> tuple[socket.socket, int] | None:
    """In a worker: the socket to listen on, and where to say that it does; elsewhere None."""
    given = os.environ.get(WORKER)
    if given is None:
        return None
    listener, ready = map(int, given.split(","))
    return socket.socket(fileno=listener), ready


class Workers:
    """The processes behind one listening socket."""

    def __init__(self, listener: socket.socket, count: int, drain_s: float, command: Sequence[str] | None = None) -> None:
        if not hasattr(os, "fork"):
            raise GeniusError("--workers needs a system where processes can share a socket; use one worker here")
        self.listener, self.count, self.drain_s = listener, count, drain_s
        self.command = list(command or sys.orig_argv)
        self.running: list[subprocess.Popen[bytes]] = []
        self.stopping = self.renewing = False
        self.failures, self.rest_until = 0, 0.0  # of workers that could not start
        cores = os.cpu_count() or 1
        self.threads = {"OMP_NUM_THREADS": str(max(1, cores // count)), "OMP_WAIT_POLICY": "passive"}

    # -- one of them -------------------------------------------------------------------------------------------

    def start(self) -> subprocess.Popen[bytes]:
        """A new worker, once it answers."""
        reading, writing = os.pipe()
        kept = (self.listener.fileno(), writing)
        environment = {**self.threads, **os.environ, WORKER: f"{kept[0]},{kept[1]}"}  # what is set already is obeyed
        process = subprocess.Popen(self.command, env=environment, pass_fds=kept)
        os.close(writing)
        deadline, answered = time.monotonic() + START_S, False
        while time.monotonic() < deadline and not self.stopping:
            if select.select([reading], [], [], 0.25)[0]:  # "ready", or the end of a process that is gone
                answered = bool(os.read(reading, 1))
                break
        os.close(reading)
        if not answered and not self.stopping:
            process.kill()
            process.wait()
            raise GeniusError(f"a worker ended with status {process.returncode} before it could answer; its own lines say why")
        return process

    def stop(self, workers: Sequence[subprocess.Popen[bytes]]) -> None:
        """Let workers finish what they have; those that do not in time are ended."""
        for worker in workers:
            worker.terminate()
        deadline = time.monotonic() + self.drain_s + 5.0
        for worker in workers:
            try:
                worker.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    # -- all of them -------------------------------------------------------------------------------------------

    def run(self, on_listening: Callable[[], None]) -> bool:
        """Until SIGTERM or SIGINT; True if every worker finished what it had."""
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        signal.signal(signal.SIGINT, self._ask_to_stop)
        signal.signal(signal.SIGHUP, self._ask_to_renew)
        self.running.append(self.start())  # alone: it may build the cache that the others then share
        while len(self.running) < self.count and not self.stopping:
            self.running.append(self.start())
        on_listening()
        while not self.stopping:
            time.sleep(0.2)
            self._replace_dead()
            if self.renewing:
                self.renewing = False
                self._renew()
        self.stop(self.running)
        # one that SIGTERM ended was still starting, and had nothing to finish
        return all(worker.returncode in (0, -signal.SIGTERM) for worker in self.running)

    def _replace_dead(self) -> None:
        for place, worker in enumerate(self.running):
            if worker.poll() is None or time.monotonic() < self.rest_until:
                continue
            try:
                self.running[place] = self.start()
                self.failures = 0
            except GeniusError:
                self.failures += 1
                self.rest_until = time.monotonic() + min(30.0, 2.0**self.failures)
                if self.failures >= SOON and all(one.poll() is not None for one in self.running):
                    raise
                return  # the others go on answering; it is tried again later

    def _renew(self) -> None:
        for place, old in enumerate(self.running):
            self.running[place] = self.start()
            self.stop([old])

    def _ask_to_stop(self, *_: object) -> None:
        self.stopping = True

    def _ask_to_renew(self, *_: object) -> None:
        self.renewing = True
