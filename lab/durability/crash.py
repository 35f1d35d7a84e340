"""Kill -9 writers at random moments, many times, and look whether anything they acknowledged is missing or doubled.

    python -m lab.durability.crash [--kills 150] [--cli 60] [--race 40] [--out lab/durability/crash.json]

1. A writer adds, upserts, deletes and optimizes without pause on one index; after each kill the index is reopened and compared,
   item by item, with the writer's log.
2. `genius index` itself is killed; what it had acknowledged (the ledger's count at the moment of the kill) must be there, and
   run to its end it must have indexed every file once.
3. Two writers with the same ids, one that optimizes and drops versions, and a reader at once, one of the writers killed now
   and then.
4. As root: a small disk (a tmpfs) is filled for real.
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
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import processes
import torch
from crash import kill_and_check
from fake_encoder import fake_model

from genius import GeniusError, Index, Item
from genius.index.check import check
from genius.index.ledger import Ledger
from lab import provenance

ENDED = "processes that ended by themselves"


def full_disk(folder: Path) -> dict[str, Any]:
    """Fill a tmpfs of 3 MB, then free some room and go on."""
    if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]).returncode:
        return {"skipped": "needs root to mount a small disk"}
    try:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(500_000))
        index = Index(folder / "full.genius", fake_model())
        batches, items, works, error = processes.fill(index)
        intact = len(Index(folder / "full.genius", fake_model())) == 20 * batches == items
        ballast.unlink()
        again = index.add([Item("more", text="more")]).added == 1 and len(index) == items + 1
        sound = check(folder / "full.genius").ok
        return {
            "batches before full": batches,
            "error": error,
            "nothing lost": intact,
            "search works": works,
            "goes on": again,
            "check": "all is well" if sound else "DAMAGED",
        }
    finally:
        subprocess.run(["umount", "-l", str(folder)])


# -- the command line ----------------------------------------------------------------------------------------------


def kill_command(scratch: Path, kills: int, seed: int) -> dict[str, Any]:
    """`genius index FOLDER`, killed again and again; every fourth round with other texts, so that items are replaced, too."""
    rng = random.Random(seed)
    folder, path = scratch / "texts", scratch / "cli.genius"
    folder.mkdir()
    names = [f"f{i:03}.txt" for i in range(400)]
    acknowledged, problems, killed = 0, [], 0
    command = [
        sys.executable,
        "-m",
        "genius",
        "index",
        str(folder),
        "-o",
        str(path),
        "--batch",
        "3",
        "--model",
        "bundled:mini",
        "--json",
    ]
    for round_number in range(kills):
        if round_number % 4 == 0:
            for name in names:
                (folder / name).write_text(f"{name} in edition {round_number} word{rng.randrange(99)}")
        writer = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        before = _head(path)
        deadline = time.monotonic() + 60
        while _head(path) == before and writer.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)  # it has begun to write
        time.sleep(rng.uniform(0, 0.6))
        seen = Ledger(path).read()
        if writer.poll() is None:
            writer.send_signal(signal.SIGKILL)
            killed += 1
        writer.wait()
        if seen is None:
            continue
        acknowledged += seen.head
        index = Index(path, "bundled:mini")
        found = {item.id: item.text for item in index.items()}
        if len(index) < seen.items or len(found) != len(index) or not set(found) <= {f"texts/{n}" for n in names}:
            problems.append(f"round {round_number}: {len(index)} items, {len(found)} distinct; {seen.items} were acknowledged")
        report = check(path)
        if not report.ok:
            problems.append(f"round {round_number}: {report.problems[0]}")
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    whole = {item.id: item.text for item in Index(path, "bundled:mini").items()}
    expected = {f"texts/{name}": (folder / name).read_text() for name in names}
    return {
        "rounds": kills,
        "killed": killed,
        "acknowledged versions seen": acknowledged,
        "complete at the end": whole == expected,
        "problems": problems,
    }


def _head(path: Path) -> int:
    try:
        state = Ledger(path).read()
    except GeniusError:
        return -1
    return 0 if state is None else state.head


# -- at the same time --------------------------------------------------------------------------------------------------


def add_in_race(folder: str, log: str, seed: int) -> None:
    """Adds batches of ids that others add, too; a line for every batch that was acknowledged."""
    index, rng = Index(folder, fake_model(), lock_timeout=60), random.Random(seed)
    with Path(log).open("a") as file:
        for step in range(10**9):
            ids = [f"{number}" for number in rng.sample(range(4000), rng.randint(1, 12))]
            index.add([Item(i, text=f"thing {i}") for i in ids])
            file.write(json.dumps(ids) + "\n")
            file.flush()
            if step % 9 == 8:
                index.delete([i for i in ids if int(i) % 5 == 0], missing="skip")


def clean_in_race(folder: str) -> None:
    index = Index(folder, fake_model(), lock_timeout=60)
    while True:
        index.optimize(keep=timedelta(0))
        time.sleep(0.3)


def read_in_race(folder: str, log: str) -> None:
    """Reads without pause; a line for every failure."""
    index = Index(folder, fake_model(), read_only=True)
    rounds = 0
    while True:
        try:
            listed = [item.id for item in index.items()]
            if len(listed) != len(set(listed)):
                raise AssertionError("an item came twice")
            index.search(text="thing 7", k=5)
            rounds += 1
            Path(f"{log}.rounds").write_text(str(rounds))
        except Exception as error:
            with Path(log).open("a") as file:
                file.write(f"{type(error).__name__}: {error}\n")


def race(scratch: Path, seconds: float, seed: int) -> dict[str, Any]:
    path, rng = scratch / "race.genius", random.Random(seed)
    Index(path, fake_model())
    logs = [scratch / "a.log", scratch / "b.log"]

    def start(number: int) -> Any:
        writer = processes.context.Process(target=add_in_race, args=(str(path), str(logs[number]), rng.randrange(10**6)))
        writer.start()
        return writer

    writers = [start(0), start(1)]
    others = [
        processes.context.Process(target=clean_in_race, args=(str(path),)),
        processes.context.Process(target=read_in_race, args=(str(path), str(scratch / "reader.log"))),
    ]
    for process in others:
        process.start()
    kills, ended, end = 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(rng.uniform(1, 4))
        number = rng.randrange(2)
        ended += not writers[number].is_alive()  # by itself, so with an error
        writers[number].kill()
        writers[number].join()
        writers[number] = start(number)
        kills += 1
    for process in (*writers, *others):
        ended += not process.is_alive()
        process.kill()
        process.join()
    batches = [json.loads(line) for log in logs if log.exists() for line in log.read_text().splitlines() if line.endswith("]")]
    kept = {i for batch in batches for i in batch if int(i) % 5}  # the others may have been deleted again
    index = Index(path, fake_model())
    found = [item.id for item in index.items()]
    failures = (scratch / "reader.log").read_text().splitlines() if (scratch / "reader.log").exists() else []
    return {
        "seconds": seconds,
        "writers killed": kills,
        ENDED: ended,
        "batches acknowledged": len(batches),
        "items": len(found),
        "lost": len(kept - set(found)),
        "twice": len(found) - len(set(found)),
        "reader: rounds": int((scratch / "reader.log.rounds").read_text() or 0),
        "reader: failures": failures[:3],
        "check": check(path).problems[:3],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=150)
    parser.add_argument("--cli", type=int, default=60)
    parser.add_argument("--race", type=float, default=40)
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch, begin = Path(folder), time.perf_counter()
        for name in ("kills", "cli", "race", "disk"):
            (scratch / name).mkdir()
        findings = kill_and_check(scratch / "kills", args.kills, args.seed, longest=1.0)
        commands = kill_command(scratch / "cli", args.cli, args.seed)
        together = race(scratch / "race", args.race, args.seed)
        body = {
            **provenance(),
            "threads": torch.get_num_threads(),
            "seed": args.seed,
            "library": asdict(findings),
            "command line": commands,
            "two writers, a cleaner, a reader": together,
            "full disk": full_disk(scratch / "disk"),
            "seconds": round(time.perf_counter() - begin),
        }
    text = json.dumps(body, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    bad = findings.problems or commands["problems"] or not commands["complete at the end"]
    if bad or together["lost"] or together["twice"] or together["reader: failures"] or together["check"] or together[ENDED]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
