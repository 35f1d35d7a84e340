"""Two writers, four readers and a service on one index at once, against a dictionary.

Operations come in rounds. In a round several processes each get one operation at the same moment; some are killed in the middle
of theirs, at the n-th call of the operating system (`faults.c`). The dictionary knows every state that the index
may be in: all orders of the round's changes that agree with what was acknowledged, with and without the changes that were killed.
Whatever a process answers must be the answer of one of these states; after the round one reader says which of them it is.

Which operations a round has, and who is killed where, follows from the seed and the number of the round alone: the same seed does
the same again (who of several is quicker is the machine's choice). This process never opens the index: it forks those who do.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import select
import signal
import socket
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import faults
from fake_encoder import fake_model, register
from starlette.testclient import TestClient

from genius import Genius, GeniusError, Index, Item
from genius.index import opened
from genius.index.check import check
from genius.index.repair import restore, snapshot
from genius.serve.app import create_app

State = dict[str, tuple[str, int]]  # id -> text and n
Frozen = frozenset[tuple[str, tuple[str, int]]]
Operation = dict[str, Any]
Answer = Any

WRITERS = ("writer 1", "writer 2")
READERS = ("reader 1", "reader 2", "reader 3", "reader 4")
SERVICE = "service"
SHARED = [f"s{number}" for number in range(16)]
FIXED: State = {f"f{number}": (f"fixed {number}", number) for number in range(8)}
SECONDS = 120.0
CHANGES = ("add", "upsert", "delete", "restore")
READINGS = ("items", "search", "count", "get", "snapshot")
CALLS = {"writes": 50, "reads": 40}  # a kill comes at one of so many calls


# -- what operations do to a dictionary --------------------------------------------------------------------------


def steps_of(operation: Operation) -> int:
    """An addition looks first for ids that are there, and later writes the others: two steps."""
    return 2 if operation["do"] == "add" else 1


def apply(operation: Operation, step: int, state: State, seen: frozenset[str]) -> tuple[State, frozenset[str], Answer]:
    """One step of a change: the state after it, the ids that were there at the first look, and the answer of the last step."""
    do = operation["do"]
    batch = {item_id: (text, n) for item_id, text, n in operation.get("items", ())}
    if do == "add" and step == 0:
        return state, frozenset(batch.keys() & state.keys()), None
    if do == "add":
        fresh = {item_id: value for item_id, value in batch.items() if item_id not in seen and item_id not in state}
        return {**state, **fresh}, seen, [len(fresh), len(batch) - len(fresh)]
    if do == "upsert":
        return {**state, **batch}, seen, [len(batch.keys() - state.keys()), len(batch.keys() & state.keys())]
    if do == "delete":
        gone = [item_id for item_id in operation["ids"] if item_id in state]
        return {item_id: value for item_id, value in state.items() if item_id not in gone}, seen, len(gone)
    if do == "restore":
        return dict(FIXED), seen, len(FIXED)
    raise AssertionError(f"{do} is no change")


def expected(operation: Operation, state: State) -> Answer:
    """What reading answers in this state."""
    do = operation["do"]
    below = operation.get("below")
    matching = {item_id: value for item_id, value in state.items() if below is None or value[1] < below}
    if do in ("items", "search", "snapshot"):
        return sorted([item_id, text, n] for item_id, (text, n) in matching.items())
    if do == "count":
        return len(matching)
    if do == "get":
        return [list(state[item_id]) if item_id in state else None for item_id in operation["ids"]]
    return None


def possible(name: str, operation: Operation, answer: Answer, states: list[State]) -> bool:
    """Whether this is the answer of one of these states.

    The service's pages show, of the ids of one state, what they are in that state or a later one.
    """
    if name != SERVICE or operation["do"] != "items":
        return answer in [expected(operation, state) for state in states]
    shown = {item_id: (text, n) for item_id, text, n in answer}
    return any(shown == {i: new[i] for i in old if i in new} for old in states for new in states)


@dataclass
class Change:
    """An operation of a round: acknowledged with an answer, or killed."""

    operation: Operation
    answer: Answer = None
    killed: bool = False


def reachable(start: State, changes: list[Change]) -> tuple[list[State], list[State]]:
    """States that may be seen while these changes are made, and those that may be left when they are over."""
    during: dict[Frozen, State] = {}
    final: dict[Frozen, State] = {}
    looked = set()

    def go(state: State, done: tuple[int, ...], seen: tuple[frozenset[str], ...]) -> bool:
        """Whether an order leads from here to the end."""
        frozen = frozenset(state.items())
        if (frozen, done, seen) in looked:
            return frozen in during
        looked.add((frozen, done, seen))
        ends = all(d == steps_of(c.operation) or c.killed for d, c in zip(done, changes, strict=True))
        if ends:
            final[frozen] = state
        for number, change in enumerate(changes):
            step = done[number]
            if step == steps_of(change.operation):
                continue
            after, known, answer = apply(change.operation, step, state, seen[number])
            last = step + 1 == steps_of(change.operation)
            if last and not change.killed and answer != change.answer:
                continue
            ends |= go(after, (*done[:number], step + 1, *done[number + 1 :]), (*seen[:number], known, *seen[number + 1 :]))
        if ends:
            during[frozen] = state
        return ends

    go(start, (0,) * len(changes), (frozenset(),) * len(changes))
    return list(during.values()), list(final.values())


# -- what a round does -------------------------------------------------------------------------------------------


def drawn(seed: int, number: int, kills: float, readings: int = 2) -> dict[str, Operation]:
    """The operations of a round by process; "kill": classes of calls and which of them ends the process.

    Args:
        seed: Of the run.
        number: Of the round.
        kills: Share of rounds in which a process is to be killed, if it makes so many calls.
        readings: Most operations of a reader.
    """
    draw = random.Random(f"{seed} {number}")
    chosen: dict[str, Operation] = {}
    for name in WRITERS:
        if draw.random() < 0.6:
            chosen[name] = _change(draw, number)
    if draw.random() < 0.8:
        chosen[SERVICE] = _service_change(draw, number) if draw.random() < 0.5 else _reading(draw, ids=1)
    for name in READERS:
        for _ in range(draw.randint(0, readings)):
            chosen.setdefault(name, {"do": "several", "each": []})["each"].append(_reading(draw))
    if draw.random() < kills and chosen:
        changing = sorted(name for name, operation in chosen.items() if operation["do"] in CHANGES)
        if changing and draw.random() < 0.5:
            name = draw.choice(changing)
        else:
            name = draw.choice(sorted(chosen))
        group = "reads" if name in READERS or draw.random() < 0.2 else "writes"
        chosen[name]["kill"] = [group, draw.randint(1, CALLS[group])]
    return chosen


def _items(draw: random.Random, number: int, most: int = 4) -> list[tuple[str, str, int]]:
    return [(i, f"thing {number} {i}", draw.randrange(100)) for i in draw.sample(SHARED, draw.randint(1, most))]


def _change(draw: random.Random, number: int) -> Operation:
    do = draw.choices(["add", "upsert", "delete", "optimize", "restore", "reopen"], [30, 35, 25, 4, 1, 3])[0]
    if do in ("add", "upsert"):
        return {"do": do, "items": _items(draw, number)}
    if do == "delete":
        return {"do": do, "ids": draw.sample(SHARED, draw.randint(1, 4))}
    return {"do": do, "keep": draw.choice([0, 7])}


def _service_change(draw: random.Random, number: int) -> Operation:
    do = draw.choice(["add", "upsert", "delete"])
    if do == "delete":
        return {"do": do, "ids": draw.sample(SHARED, 1)}
    return {"do": do, "items": _items(draw, number, most=1 if do == "upsert" else 3)}


def _reading(draw: random.Random, ids: int = 3) -> Operation:
    do = draw.choices(["items", "search", "count", "get", "snapshot"], [20, 35, 20, 24, 1])[0]
    operation: Operation = {"do": do}
    if do in ("search", "count") and draw.random() < 0.6:
        operation["below"] = draw.randrange(100)
    if do == "get":
        operation["ids"] = draw.sample(SHARED, ids)
    return operation


# -- processes ---------------------------------------------------------------------------------------------------


class Library:
    """Does operations through an `Index`."""

    def __init__(self, folder: Path, model: Genius, read_only: bool) -> None:
        self.folder = folder
        self.model = model
        self.read_only = read_only
        self._open()

    def _open(self) -> None:
        path = self.folder / "x.genius"
        self.index = Index.open(path, self.model, read_only=self.read_only, lock_timeout=60)

    def do(self, operation: Operation) -> Answer:
        work: Callable[[Operation], Answer] = getattr(self, f"_{operation['do']}")
        return work(operation)

    def _several(self, operation: Operation) -> Answer:
        return [self.do(one) for one in operation["each"]]

    def _add(self, operation: Operation) -> Answer:
        report = self.index.add(_as_items(operation))
        return [report.added, report.existing]

    def _upsert(self, operation: Operation) -> Answer:
        report = self.index.upsert(_as_items(operation))
        return [report.added, report.replaced]

    def _delete(self, operation: Operation) -> Answer:
        return self.index.delete(operation["ids"], missing="skip")

    def _optimize(self, operation: Operation) -> Answer:
        self.index.optimize(keep=timedelta(days=operation["keep"]))

    def _restore(self, operation: Operation) -> Answer:
        return restore(self.folder / "copy.genius", self.folder / "x.genius", replace_items=True).items

    def _reopen(self, operation: Operation) -> Answer:
        self.index.close()
        self._open()

    def _items(self, operation: Operation) -> Answer:
        return sorted([item.id, item.text, item.metadata["n"]] for item in self.index.items())

    def _search(self, operation: Operation) -> Answer:
        hits = self.index.search("thing 7", target="any", k=1000, where=_where(operation))
        return sorted([hit.id, hit.item.text, hit.item.metadata["n"]] for hit in hits)

    def _count(self, operation: Operation) -> Answer:
        return self.index.count(_where(operation))

    def _get(self, operation: Operation) -> Answer:
        ids: list[str] = operation["ids"]
        found = {item.id: [item.text, item.metadata["n"]] for item in self.index.get(ids, missing="skip")}
        return [found.get(item_id) for item_id in ids]

    def _snapshot(self, operation: Operation) -> Answer:
        target = self.folder / f"copy-{os.getpid()}-{time.monotonic_ns()}.genius"
        snapshot(self.folder / "x.genius", target)
        with Index.open(target, self.model, read_only=True) as copy:
            items = sorted([item.id, item.text, item.metadata["n"]] for item in copy.items())
        assert check(target).ok
        return items


class Service:
    """Does operations through the HTTP API, in its own process."""

    def __init__(self, folder: Path, model: Genius) -> None:
        logging.disable(logging.CRITICAL)
        index = Index.open(folder / "x.genius", model, lock_timeout=60)
        self.client = TestClient(create_app(index), base_url="http://localhost")
        self.client.__enter__()
        self.library = Library(folder, model, read_only=True)

    def do(self, operation: Operation) -> Answer:
        do = operation["do"]
        if do == "add":
            items = [{"id": i, "text": text, "metadata": {"n": n}} for i, text, n in operation["items"]]
            body = self._call("POST", "/v1/items", {"items": items})
            return [body["added"], body["unchanged"]]
        if do == "upsert":
            [(item_id, text, n)] = operation["items"]
            body = self._call("PUT", f"/v1/items/{item_id}", {"text": text, "metadata": {"n": n}})
            return [1, 0] if body["created"] else [0, 1]
        if do == "delete":
            return 0 if self._call("DELETE", f"/v1/items/{operation['ids'][0]}") is None else 1
        if do == "search":
            body = self._call("POST", "/v1/search", {"text": "thing 7", "target": "any", "k": 1000, "where": _where(operation)})
            return sorted([hit["id"], hit["text"], hit["metadata"]["n"]] for hit in body["hits"])
        if do == "get":
            found = [self._call("GET", f"/v1/items/{item_id}") for item_id in operation["ids"]]
            return [None if one is None else [one["text"], one["metadata"]["n"]] for one in found]
        if do in ("items", "count"):
            where = _where(operation)
            body = self._call("GET", "/v1/items?limit=64" + (f"&where={where.replace('<', '%3C')}" if where else ""))
            rows = sorted([item["id"], item["text"], item["metadata"]["n"]] for item in body["items"])
            return rows if do == "items" else body["total"]
        return self.library.do(operation)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client.request(method, path, json=body) if body is not None else self.client.request(method, path)
        if answer.status_code == 404:
            return None
        if answer.status_code not in (200, 201):
            raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json()


def _as_items(operation: Operation) -> list[Item]:
    return [Item(item_id, text=text, metadata={"n": n}) for item_id, text, n in operation["items"]]


def _where(operation: Operation) -> str | None:
    return None if operation.get("below") is None else f"n < {operation['below']}"


class Worker:
    """A forked process that does operations until it is killed."""

    def __init__(self, start: Callable[[], Library | Service], library: ctypes.CDLL) -> None:
        here, there = socket.socketpair()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if not self.pid:
            try:
                here.close()
                _serve(start, there, library)
            finally:
                os._exit(1)
        there.close()
        self.socket = here
        self.pending = b""

    def send(self, operation: Operation) -> None:
        self.socket.sendall(json.dumps(operation).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """What has arrived, if it is a whole answer; a dead process is {"dead": signal}."""
        part = self.socket.recv(1 << 20)
        if not part:
            return {"dead": self.end()}
        self.pending += part
        if not self.pending.endswith(b"\n"):
            return None
        body: dict[str, Any] = json.loads(self.pending)
        self.pending = b""
        return body

    def end(self) -> int:
        """Kill it if it lives; the signal that it died of, or -1."""
        self.socket.close()
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -1


def _serve(start: Callable[[], Library | Service], there: socket.socket, library: ctypes.CDLL) -> None:
    doer = start()
    for line in there.makefile("r"):
        operation = json.loads(line)
        group, n = operation.pop("kill", ("writes", 0))
        if n:
            library.fault_arm(faults.GROUPS[group], n, faults.HOW["kill"])
        try:
            answer: dict[str, Any] = {"answer": doer.do(operation)}
        except GeniusError as error:
            answer = {"error": f"GeniusError: {error}"}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        library.fault_stop()
        there.sendall(json.dumps(answer).encode() + b"\n")


# -- a run -------------------------------------------------------------------------------------------------------


@dataclass
class Findings:
    """What a run did and found."""

    seed: int
    rounds: int = 0
    operations: int = 0
    acknowledged_changes: int = 0
    kills: int = 0
    killed_changes: int = 0  # of these, in the middle of a change
    landed: int = 0  # of these, changes that were found complete
    done: Counter[str] = field(default_factory=Counter)
    violations: list[dict[str, Any]] = field(default_factory=list)


class Run:
    """A seeded run below a folder. The process must have been started with `faults.preloaded`."""

    def __init__(self, folder: Path, seed: int, kills: float = 0.25, readings: int = 2) -> None:
        register()
        self.share_of_kills = kills
        self.readings = readings
        self.folder = folder.resolve()
        fake_model().save_pretrained(self.folder / "model")
        self.model = Genius.from_pretrained(self.folder / "model")
        self.library = ctypes.CDLL(os.environ[faults.SHIM])
        self.library.fault_root(str(self.folder).encode())
        self.findings = Findings(seed)
        self.states: list[State] = [dict(FIXED)]
        self.workers: dict[str, Worker] = {}

    def run(self, operations: int, minutes: float = 600.0) -> Findings:
        """Rounds until so many operations are done, the time is over, or something is wrong."""
        end = time.monotonic() + 60 * minutes
        opened.CACHE_FROM = 4
        opened.MERGE_FROM = 4
        _, ended = faults.in_child(self._create)
        assert ended == 0
        try:
            while self.findings.operations < operations and time.monotonic() < end and not self.findings.violations:
                self._round(drawn(self.findings.seed, self.findings.rounds, self.share_of_kills, self.readings))
                self.findings.rounds += 1
        finally:
            for worker in self.workers.values():
                worker.end()
        wrong, ended = faults.in_child(self._last_look)
        if wrong or ended != 0:
            self._note("at the end", {}, wrong or [f"the process ended with {ended}"])
        return self.findings

    def _create(self) -> None:
        with Index(self.folder / "x.genius", self.model, thumbnails=0) as index:
            index.add([Item(item_id, text=text, metadata={"n": n}) for item_id, (text, n) in FIXED.items()])
        snapshot(self.folder / "x.genius", self.folder / "copy.genius")

    def _last_look(self) -> list[str]:
        wrong = []
        path = self.folder / "x.genius"
        with Index.open(path, self.model) as index:
            index.upsert([Item("last", text="last", metadata={"n": 1})])
            index.optimize(keep=timedelta(0))
            found = {item.id: (item.text, item.metadata["n"]) for item in index.items()}
            found.pop("last")
        snapshot(path, self.folder / "last.genius")
        if found not in self.states and not self.findings.violations:
            wrong.append("the index does not hold what was acknowledged")
        wrong += check(path).problems
        wrong += [
            f"left over: {name}"
            for name in faults.left_over(self.folder)
            if name not in ("model", "last.genius") and name[:5] != "copy-"
        ]
        return wrong

    def _worker(self, name: str) -> Worker:
        if name not in self.workers:
            start: Callable[[], Library | Service]
            if name == SERVICE:
                start = lambda: Service(self.folder, self.model)  # noqa: E731
            else:
                start = lambda: Library(self.folder, self.model, name in READERS)  # noqa: E731
            self.workers[name] = Worker(start, self.library)
        return self.workers[name]

    def _note(self, who: str, operation: Operation, wrong: Any) -> None:
        entry = {"seed": self.findings.seed, "round": self.findings.rounds, "who": who, "operation": operation, "wrong": wrong}
        self.findings.violations.append(json.loads(json.dumps(entry)))

    def _answers(self, operations: dict[str, Operation]) -> dict[str, dict[str, Any]]:
        """Let all of them start at once; what each answered."""
        for name, operation in operations.items():
            self._worker(name).send(operation)
        answers: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + SECONDS
        while len(answers) < len(operations):
            waiting = {self.workers[name].socket: name for name in operations if name not in answers}
            ready, _, _ = select.select(list(waiting), [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                answers.update({name: {"error": f"no answer after {SECONDS:g} s"} for name in waiting.values()})
            for one in ready:
                answer = self.workers[waiting[one]].receive()
                if answer is not None:
                    answers[waiting[one]] = answer
                if answer is not None and "dead" in answer:
                    del self.workers[waiting[one]]
        return answers

    def _round(self, operations: dict[str, Operation]) -> None:
        findings = self.findings
        answers = self._answers(operations)
        changes: list[Change] = []
        readings: list[tuple[str, Operation, Answer]] = []
        for name, operation in operations.items():
            answer = answers[name]
            each = operation["each"] if operation["do"] == "several" else [operation]
            findings.operations += len(each)
            findings.done.update(f"{_sort_of(name)}: {one['do']}" for one in each)
            killed = "dead" in answer
            findings.kills += killed
            if answer.get("dead", signal.SIGKILL) != signal.SIGKILL or (killed and "kill" not in operation):
                self._note(name, operation, f"the process ended by itself ({answer})")
            if "error" in answer:
                self._note(name, operation, answer["error"])
            if operation["do"] in CHANGES and "error" not in answer:
                changes.append(Change(operation, answer.get("answer"), killed))
            if operation["do"] == "several" and "answer" in answer:
                readings += [(name, one, got) for one, got in zip(each, answer["answer"], strict=True)]
            elif operation["do"] in READINGS and "answer" in answer:
                readings.append((name, operation, answer["answer"]))
        self._compare(changes, readings)

    def _compare(self, changes: list[Change], readings: list[tuple[str, Operation, Answer]]) -> None:
        findings = self.findings
        [before] = self.states
        findings.acknowledged_changes += sum(not change.killed for change in changes)
        during, final = reachable(before, changes)
        if not final:
            described = [{**change.operation, "answer": change.answer, "killed": change.killed} for change in changes]
            self._note("the changes of the round", {"all": described}, "no order of them gives these answers")
            return
        for name, operation, answer in readings:
            if not possible(name, operation, answer, during):
                self._note(name, operation, f"answers {answer}, which is true of no state of this round")
        self.states = final
        killed = [change for change in changes if change.killed]
        if len(final) > 1 or killed:
            self._look(final)
        if killed:
            findings.killed_changes += len(killed)
            findings.landed += self.states[0] not in reachable(before, [change for change in changes if not change.killed])[1]

    def _look(self, possible: list[State]) -> None:
        """Let a reader say in which of the possible states the index is."""
        name = READERS[self.findings.rounds % len(READERS)]
        answer = self._answers({name: {"do": "items"}})[name]
        self.findings.operations += 1
        self.findings.done["reader: items"] += 1
        found = {item_id: (text, n) for item_id, text, n in answer.get("answer") or ()}
        if found not in possible:
            self._note(name, {"do": "items"}, f"{answer} is none of the possible states")
        self.states = [found]


def _sort_of(name: str) -> str:
    return name.split()[0]


if __name__ == "__main__":  # for the suite: FOLDER SEED OPERATIONS -> the findings as JSON
    print(json.dumps(vars(Run(Path(sys.argv[1]), int(sys.argv[2])).run(int(sys.argv[3])))), flush=True)
