"""Two writers, four readers and a service on one index, against a dictionary (`tests/helpers/model_based.py`).

    python -m lab.durability.model LOG.jsonl [--seed 1] [--operations 100000] [--minutes 600] [--out FILE.json]

The operations are cut into runs on an index of their own each, with the seeds N, N + 1, N + 2, ...; each is one line of the log.
What is in the log is not run again, so a run that was ended goes on. The same seed does the same operations and kills again.
A run ends at its first violation, which names its seed and round.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import faults
import model_based

from lab.durability import data

SUMMED = ("rounds", "operations", "acknowledged_changes", "kills", "killed_changes", "landed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--each", type=int, default=2_000, help="operations of a run")
    parser.add_argument("--kills", type=float, default=0.12, help="share of rounds in which a process is to be killed")
    parser.add_argument("--readings", type=int, default=6, help="most operations of a reader in a round")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        if faults.SHIM not in os.environ:
            environment = faults.preloaded(faults.compile_shim(Path(folder)))
            command = [sys.executable, "-W", "ignore", "-m", "lab.durability.model", *sys.argv[1:]]
            sys.exit(subprocess.run(command, env=environment).returncode)
        run(options, Path(folder))
    sys.exit(int(bool(summarise(options)["violations"])))


def read_log(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def run(options: argparse.Namespace, folder: Path) -> None:
    """Runs with seeds that are not in the log, until there are enough operations or the time is over."""
    end = time.monotonic() + 60 * options.minutes
    done = {entry["seed"]: entry["operations"] for entry in read_log(options.log)}
    about = data.environment()
    seed = options.seed
    while sum(done.values()) < options.operations and time.monotonic() < end:
        if seed not in done:
            place = folder / str(seed)
            place.mkdir()
            started = time.monotonic()
            findings = model_based.Run(place, seed, options.kills, options.readings).run(options.each)
            body = {**vars(findings), "minutes": round((time.monotonic() - started) / 60, 2), "environment": about}
            with options.log.open("a") as log:
                log.write(json.dumps(body) + "\n")
            done[seed] = findings.operations
        seed += 1


def summarise(options: argparse.Namespace) -> dict[str, Any]:
    entries = read_log(options.log)
    done: collections.Counter[str] = collections.Counter()
    for entry in entries:
        done.update(entry["done"])
    settings = f"--seed {options.seed} --each {options.each} --kills {options.kills} --readings {options.readings}"
    body = {
        "command": f"python -m lab.durability.model LOG.jsonl {settings} --out lab/durability/model.json",
        "seeds": [entry["seed"] for entry in entries],
        **{name: sum(entry[name] for entry in entries) for name in SUMMED},
        "done": dict(sorted(done.items())),
        "violations": [violation for entry in entries for violation in entry["violations"]],
        "minutes": round(sum(entry["minutes"] for entry in entries), 1),
        "by_commit": dict(collections.Counter(entry["environment"]["commit"] for entry in entries)),
        "environment": entries[-1]["environment"],
    }
    text = json.dumps(body, indent=1)
    print(text, flush=True)
    if options.out is not None:
        options.out.write_text(text + "\n")
    return body


if __name__ == "__main__":
    main()
