"""Let calls of the operating system fail, at every place of every operation that writes an index.

    python -m lab.durability.faults [--share 1.0] [--seed 1] [--minutes 600] [--only add,upsert] [--out FILE]

Every operation (`tests/helpers/faults.py`) is run once to count its calls; then the n-th call fails for every n and in every way:
an error once or for good, a full disk once or for good, a short write or read, an error although it was done, a kill. `--share`
draws that share of all injections at random; `--minutes` ends the run early, and the JSON says how many were left.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faults

from lab.durability import data

WAYS = {
    "writes": ("eio once", "eio for good", "full once", "full for good", "short", "lie", "kill"),
    "reads": ("eio once", "eio for good", "short", "kill"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("lab/durability/faults.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if faults.SHIM not in os.environ:
            environment = faults.preloaded(faults.compile_shim(Path(folder)))
            command = [sys.executable, "-m", "lab.durability.faults", *sys.argv[1:]]
            sys.exit(subprocess.run(command, env=environment).returncode)
        run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> None:
    started = time.monotonic()
    injector = faults.Injector(folder)
    names = options.only.split(",") if options.only else sorted(faults.OPERATIONS)
    groups = {"writes": faults.WRITES, "reads": faults.READS}
    calls = {name: {group: injector.count(name, mask) for group, mask in groups.items()} for name in names}
    every = [
        (name, group, n, how)
        for name in names
        for group in groups
        for n in range(1, calls[name][group] + 1)
        for how in WAYS[group]
    ]
    random.Random(options.seed).shuffle(every)
    chosen = every[: round(options.share * len(every))]
    done: collections.Counter[str] = collections.Counter()
    violations = []
    for name, group, n, how in chosen:
        if time.monotonic() - started > 60 * options.minutes:
            break
        wrong = injector.inject(name, groups[group], n, how)
        done[f"{name}, {group}"] += 1
        if wrong is not None:
            violations.append({"operation": name, "calls": group, "n": n, "how": how, "wrong": wrong})
            print(json.dumps(violations[-1]), flush=True)
    body = {
        "command": "python -m lab.durability.faults " + " ".join(sys.argv[1:]),
        "seed": options.seed,
        "calls": calls,
        "all_injections": len(every),
        "done": sum(done.values()),
        "left_out": len(every) - sum(done.values()),
        "by_operation": dict(sorted(done.items())),
        "violations": violations,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "environment": data.environment(),
    }
    options.out.write_text(json.dumps(body, indent=1) + "\n")
    print(f"{sum(done.values())} of {len(every)} injections, {len(violations)} violations", flush=True)


if __name__ == "__main__":
    main()
