"""Cut the power under a writer, many times: is what it acknowledged still there?

    python -m lab.durability.powercut [--rounds 60] [--states 4] [--seed 5] [--out lab/durability/powercut.json]

The writer runs on a disk that forgets (`powercut.c`, preloaded): it adds, upserts, deletes and optimizes without pause and is
killed at a random moment. From what it had synced, and any part of what it had not, folders are built that a power cut could
have left; each is opened and compared with the writer's log. The writing goes on from one of them. As a control, the same is
done with `durable=False`, where a power cut may take acknowledged changes: a test that cannot fail proves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import powercut
from crash import Findings, Truth, compare
from fake_encoder import fake_model

import genius.index.opened
from genius import GeniusError
from genius.index.check import check
from lab.durability import data

HELPERS = Path(powercut.__file__).parent
WRITER = """
import sys
sys.path.insert(0, {helpers!r})
import genius.index.opened
genius.index.opened.CACHE_FROM = 100
from crash import write_forever
write_forever({folder!r}, {log!r}, {seed}, {durable})
"""


def cut(folder: Path, log: Path, shim: Path, seed: int, durable: bool, rng: random.Random) -> tuple[powercut.Disk, powercut.Disk]:
    """Run a writer, kill it: (what was synced, what was there)."""
    store = folder.parent / f"store-{seed}"
    store.mkdir()
    log.write_text("")
    before = powercut.look(folder)
    code = WRITER.format(helpers=str(HELPERS), folder=str(folder / "i.genius"), log=str(log), seed=seed, durable=durable)
    shimmed = {"LD_PRELOAD": str(shim), "POWERCUT_ROOT": str(folder), "POWERCUT_STORE": str(store), "OMP_NUM_THREADS": "1"}
    writer = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **shimmed}, stderr=subprocess.DEVNULL)
    awaited = "started" if rng.random() < 0.15 else "ready"
    while awaited not in log.read_text() and writer.poll() is None:
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 2.0))
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    return powercut.synced(before, store), powercut.look(folder)


def rounds(scratch: Path, number: int, states: int, seed: int, durable: bool, say: Callable[[str], None]) -> dict[str, Any]:
    rng, model, shim = random.Random(seed), fake_model(), powercut.compile_shim(scratch)
    folder, log = scratch / "disk-0", scratch / "log.jsonl"
    folder.mkdir()
    truth: Truth = {}
    totals = Findings()
    built = strictest = damaged_caches = 0
    for round_number in range(number):
        safe, actual = cut(folder, log, shim, 1000 * seed + round_number, durable, rng)
        results: list[tuple[Path, Truth]] = []
        for state in range(states):
            target = scratch / f"disk-{round_number + 1}-{state}"
            powercut.after_cut(safe, actual, target, rng, strict=state == 0)
            held, findings, label = dict(truth), Findings(), f"round {round_number}, state {state}"
            built, strictest = built + 1, strictest + (state == 0)
            if not (target / "i.genius" / "genius.json").exists() and not held and '"done"' not in log.read_text():
                results.append((target, held))  # cut before there was an index
                continue
            try:
                report = check(target / "i.genius")
                damaged_caches += any(line.startswith("cache/") for line in report.problems)
                table = [line for line in report.problems if not line.startswith("cache/") and "harmless" not in line]
                if table:
                    findings.problems.append(f"{label}: check says {table[0]}")
                compare(target / "i.genius", model, log, held, findings, label)
            except GeniusError as error:
                findings.problems.append(f"{label}: {error}")
            totals.problems += findings.problems
            if state == 0:
                totals.acknowledged += findings.acknowledged
            totals.in_flight += findings.in_flight
            totals.landed += findings.landed
            results.append((target, held))
        totals.kills += 1
        folder, truth = rng.choice(results)
        say(f"round {round_number}: {totals.acknowledged} acknowledged, {len(totals.problems)} problems, {len(truth)} items")
        if not durable and totals.problems:
            break  # the control has shown what it should
    totals.items = len(truth)
    return {
        **asdict(totals),
        "states": built,
        "of which only what was synced": strictest,
        "states with torn caches": damaged_caches,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--states", type=int, default=4)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    genius.index.opened.CACHE_FROM = 100
    begin = time.perf_counter()
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "durable").mkdir()
        (Path(scratch) / "control").mkdir()
        found = rounds(Path(scratch) / "durable", args.rounds, args.states, args.seed, True, say)
        control = rounds(Path(scratch) / "control", 20, args.states, args.seed, False, say)
    body = {
        **data.environment(),
        "seed": args.seed,
        "durable (default)": found,
        "control, durable=False": {
            **control,
            "problems": control["problems"][:3],
            "rounds until the first loss": control["kills"],
        },
        "seconds": round(time.perf_counter() - begin),
    }
    text = json.dumps(body, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    if found["problems"] or not control["problems"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
