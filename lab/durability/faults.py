"""Let calls of the operating system fail, at every place of every operation that writes an index.

    python -m lab.durability.faults LOG.jsonl [--only add,upsert] [--minutes 600] [--again] [--out lab/durability/faults.json]

Every operation (`tests/helpers/faults.py`) is run once from each of its states to count its calls; then the n-th call fails for
every n and in every way: an error once or for good, a full disk once or for good, a short write or read, an error although it was
done, a kill. Each injection is one line of the log; what is in the log is not run again, so a run that was ended goes on. The
first state of every operation comes first. Several runs may share the work with `--only` and logs of their own,
which are then put into one file. `--again` runs the violations of the log once more, and replaces their lines. `--summary` only
sums the log up.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import faults

from lab.durability import data

Key = tuple[str, str, str, int, str]  # operation, state, group of calls, n, how


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
    """The last line of each injection."""
    lines = path.read_text().splitlines() if path.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    return {tuple(entry["at"]): entry for entry in entries if "at" in entry}  # type: ignore[misc]


def plan(injector: faults.Injector, names: list[str], number: int, seed: int) -> list[Key]:
    """Every possible injection from the `number`-th state of each operation, in random order."""
    found: list[Key] = []
    for name in names:
        for state in list(faults.OPERATIONS[name].states)[number : number + 1]:
            for group in faults.GROUPS:
                for at, ways in enumerate(injector.ways(name, state, group), start=1):
                    found += [(name, state, group, at, how) for how in ways]
    random.Random(seed).shuffle(found)
    return found


def run(options: argparse.Namespace, folder: Path) -> None:
    started = time.monotonic()
    injector = faults.Injector(folder)
    names = options.only.split(",") if options.only else list(faults.OPERATIONS)
    done = read_log(options.log)
    if options.again:
        plans = [[key for key, entry in done.items() if entry["wrong"] is not None and key[0] in names]]
        done = {}
    else:
        most = max(len(faults.OPERATIONS[name].states) for name in names)
        plans = (plan(injector, names, number, options.seed) for number in range(most))  # type: ignore[assignment]
    with options.log.open("a") as log:
        for keys in plans:
            log.write(json.dumps({"planned": len(keys), "environment": data.environment()}) + "\n")
            for key in keys:
                if key in done:
                    continue
                if time.monotonic() - started > 60 * options.minutes:
                    return
                before = _processor_seconds()
                fired, wrong = injector.inject(*key)
                seconds = round(_processor_seconds() - before, 3)
                log.write(json.dumps({"at": key, "fired": fired, "wrong": wrong, "seconds": seconds}) + "\n")
                log.flush()
                if wrong is not None:
                    print(json.dumps({"at": key, "wrong": wrong}), flush=True)


def _processor_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


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
    violations = [{"at": list(key), "wrong": entry["wrong"]} for key, entry in entries.items() if entry["wrong"] is not None]
    lines = [json.loads(line) for line in options.log.read_text().splitlines() if line.startswith('{"at"')]
    wrong_once = {tuple(line["at"]): line["wrong"] for line in lines if line["wrong"] is not None}
    fixed = [{"at": list(key), "was": was} for key, was in wrong_once.items() if entries[key]["wrong"] is None]
    body = {
        "command": "python -m lab.durability.faults LOG.jsonl --out lab/durability/faults.json",
        "seed": options.seed,
        "injections": len(fired),
        "did_not_happen": len(entries) - len(fired),
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
