"""Let calls of the operating system, and requests to an object store, fail: at every place of every operation that writes.

    python -m lab.durability.faults LOG.jsonl [--only add,upsert] [--minutes 600] [--again] [--out lab/durability/faults.json]

Every operation (`tests/helpers/faults.py`) is run once from each of its states to count its calls; then the n-th call fails for
every n and in every way: an error once or for good, a full disk once or for good, a short write or read, an error although it was
done, a kill. Each injection is one line of the log; what is in the log is not run again, so a run that was ended goes on. The
first state of every operation comes first. Several runs may share the work with `--only` and logs of their own,
which are then put into one file. `--again` runs the violations of the log once more, and replaces their lines. `--summary` only
sums the log up.

Operations whose names begin with "store: " (`tests/helpers/store_faults.py`) talk to an object store: there the n-th request
fails, hangs, is done without an answer, or the process is killed at it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import faults
import object_store
import store_faults

from lab.durability import data

Key = tuple[str, str, str, int, str]  # operation, state, group of calls, n, how
STORE = "store: "  # how the names of operations begin that talk to an object store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--only", default="", help="operations, with commas between them")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.summary:
        summarise(options)
        return
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        if faults.SHIM not in os.environ:
            environment = faults.preloaded(faults.compile_shim(Path(folder)))
            command = [sys.executable, "-W", "ignore", "-m", "lab.durability.faults", *sys.argv[1:]]
            sys.exit(subprocess.run(command, env=environment).returncode)
        run(options, Path(folder))
    summarise(options)


def read_log(path: Path) -> dict[Key, dict[str, Any]]:
    """The last line of each injection, with the commit that it was made on: its own, or that of the header before it."""
    lines = path.read_text().splitlines() if path.exists() else []
    found: dict[Key, dict[str, Any]] = {}
    commit = "unknown"
    for entry in (json.loads(line) for line in lines if line.endswith("}")):
        if "at" in entry:
            found[tuple(entry["at"])] = {"commit": commit, **entry}  # type: ignore[index]
        else:
            commit = entry["environment"]["commit"]
    return found


class Injectors:
    """Those of system calls and of requests; each is made when it is first needed."""

    def __init__(self, folder: Path, held: contextlib.ExitStack) -> None:
        self.folder = folder
        self.held = held

    @functools.cached_property
    def calls(self) -> faults.Injector:
        return faults.Injector(self.folder)

    @functools.cached_property
    def requests(self) -> store_faults.Injector:
        folder = self.folder / "store"
        folder.mkdir()
        return store_faults.Injector(folder, self.held.enter_context(object_store.running()))

    def inject(self, key: Key) -> tuple[bool, str | None]:
        name, _, _, n, how = key
        if name.startswith(STORE):
            return self.requests.inject(name.removeprefix(STORE), n, how)
        return self.calls.inject(*key)


def plan(injectors: Injectors, names: list[str], number: int, seed: int) -> list[Key]:
    """Every possible injection from the `number`-th state of each operation, in random order."""
    found: list[Key] = []
    for name in names:
        if name.startswith(STORE) and number == 0:
            for at, ways in enumerate(injectors.requests.ways(name.removeprefix(STORE)), start=1):
                found += [(name, "object store", "requests", at, how) for how in ways]
        if name.startswith(STORE):
            continue
        injector = injectors.calls
        for state in list(faults.OPERATIONS[name].states)[number : number + 1]:
            for group in faults.GROUPS:
                for at, ways in enumerate(injector.ways(name, state, group), start=1):
                    found += [(name, state, group, at, how) for how in ways]
    random.Random(seed).shuffle(found)
    return found


def run(options: argparse.Namespace, folder: Path) -> None:
    with contextlib.ExitStack() as held:
        run_with(options, Injectors(folder, held))


def run_with(options: argparse.Namespace, injectors: Injectors) -> None:
    started = time.monotonic()
    commit = data.environment()["commit"]
    names = options.only.split(",") if options.only else [*faults.OPERATIONS, *(STORE + name for name in store_faults.OPERATIONS)]
    done = read_log(options.log)
    if options.again:
        plans = [[key for key, entry in done.items() if entry["wrong"] is not None and key[0] in names]]
        done = {}
    else:
        most = max(len(faults.OPERATIONS[name].states) if name in faults.OPERATIONS else 1 for name in names)
        plans = (plan(injectors, names, number, options.seed) for number in range(most))  # type: ignore[assignment]
    with options.log.open("a") as log:
        for keys in plans:
            log.write(json.dumps({"planned": len(keys), "environment": data.environment()}) + "\n")
            for key in keys:
                if key in done:
                    continue
                if time.monotonic() - started > 60 * options.minutes:
                    return
                before = _processor_seconds()
                fired, wrong = injectors.inject(key)
                seconds = round(_processor_seconds() - before, 3)
                log.write(json.dumps({"at": key, "fired": fired, "wrong": wrong, "seconds": seconds, "commit": commit}) + "\n")
                log.flush()
                if wrong is not None:
                    print(json.dumps({"at": key, "wrong": wrong}), flush=True)


def _processor_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _without_folders(line: str) -> str:
    """A line with the names of files in place of their paths."""
    return re.sub(r"/[^\s'\":]*/", "", line)


def summarise(options: argparse.Namespace) -> None:
    entries = read_log(options.log)
    headers = [json.loads(line) for line in options.log.read_text().splitlines() if line.startswith('{"planned"')]
    fired = {key: entry for key, entry in entries.items() if entry["fired"]}
    by_operation: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    states: collections.Counter[str] = collections.Counter()
    for name, state, group, _, how in fired:
        by_operation[name][how] += 1
        by_operation[name][group] += 1
        states[state] += 1
    violations = [
        {"at": list(key), "wrong": _without_folders(entry["wrong"])}
        for key, entry in entries.items()
        if entry["wrong"] is not None
    ]
    lines = [json.loads(line) for line in options.log.read_text().splitlines() if line.startswith('{"at"')]
    wrong_once = {tuple(line["at"]): line["wrong"] for line in lines if line["wrong"] is not None}
    fixed = [{"at": list(key), "was": _without_folders(was)} for key, was in wrong_once.items() if entries[key]["wrong"] is None]
    body = {
        "command": "python -m lab.durability.faults LOG.jsonl --out lab/durability/faults.json",
        "seed": options.seed,
        "injections": len(fired),
        "did_not_happen": len(entries) - len(fired),
        "by_commit": dict(collections.Counter(entry["commit"] for entry in fired.values())),
        "by_way": dict(sorted(collections.Counter(key[4] for key in fired).items())),
        "by_operation": {name: dict(sorted(ways.items())) for name, ways in sorted(by_operation.items())},
        "by_state": dict(sorted(states.items())),
        "violations": violations,
        "fixed_and_injected_again": fixed,
        "processor_seconds_per_injection": round(sum(e["seconds"] for e in entries.values()) / max(len(entries), 1), 3),
        "environment": headers[-1]["environment"],
    }
    if options.out is not None:
        options.out.write_text(json.dumps(body, indent=1) + "\n")
    print(f"{len(fired)} injections, {len(violations)} violations", flush=True)


if __name__ == "__main__":
    main()
