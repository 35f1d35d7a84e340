"""Kill -9 a writer at random moments, many times, and look whether anything it acknowledged is missing or doubled.

    python benchmarks/index_crash.py [--kills 50] [--out benchmarks/index_crash.json]

The writer adds, upserts, deletes and optimizes without pause on one index; after each kill the index is reopened and
compared, item by item, with the writer's log. As root it also fills a small disk for real (a tmpfs).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import processes
from crash import kill_and_check
from fake_encoder import fake_model

import index_data as data
from genius import Index, Item


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
        return {"batches before full": batches, "error": error, "nothing lost": intact, "search works": works, "goes on": again}
    finally:
        subprocess.run(["umount", "-l", str(folder)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        begin = time.perf_counter()
        findings = kill_and_check(Path(scratch), args.kills, args.seed, longest=1.5)
        body = {**data.environment(), "seed": args.seed, **asdict(findings), "seconds": round(time.perf_counter() - begin)}
        disk = Path(scratch) / "disk"
        disk.mkdir()
        body["full disk"] = full_disk(disk)
    text = json.dumps(body, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    if findings.problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
