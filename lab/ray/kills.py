"""Kills a worker, a machine (its raylet) or the driver with -9 at a random moment of `genius index --ray`, then runs it again.

After every round: the ids in the index are those of the sources, none twice; every file of the table is one that the ledger
names; no part that had a record when the kill came was done again; nothing is left in the staging folder.

    python -m lab.ray.kills --rounds 21
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from genius.index import Index
from genius.index.check import check
from genius.index.ingest import IngestConfig
from genius.scale.bulk import BulkConfig, bulk_index
from genius.scale.cluster import load_ray
from genius.scale.staging import RECORDS, Staging
from lab.ray.compare import make_sources
from lab.ray.processes import mark, marked

RESULT = Path(__file__).parent / "kills.json"
KINDS = ("worker", "raylet", "driver")
WORKER = "ray::PartWriter"


class Rounds:
    def __init__(self, folder: Path, rows: int, pictures: int, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        mark()
        self.ids = make_sources(folder / "sources", rows, pictures, seed)
        self.ray = load_ray()
        from ray.cluster_utils import Cluster

        self.cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self.second: Any = self.cluster.add_node(num_cpus=1)
        self.ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")

    def index(self, output: Path, workers: int = 2) -> dict[str, Any]:
        config = BulkConfig(self.cluster.address, workers=workers, part_rows=64)
        report = bulk_index([self.folder / "sources"], output, "bundled:mini", IngestConfig(batch_size=64), config)
        return report.to_dict()

    def round(self, number: int) -> dict[str, Any]:
        kind, output = KINDS[number % len(KINDS)], self.folder / f"round{number}.genius"
        wanted = self.chance.randrange(0, 11)  # records that are there when the kill comes
        driver = None
        if kind == "driver":
            driver = self._driver(output)
        state: dict[str, Any] = {"kind": kind, "records_at_kill": None}
        killer = threading.Thread(target=self._kill, args=(kind, output, wanted, driver, state), daemon=True)
        killer.start()
        first: dict[str, Any] | None = None
        if driver is None:
            first = self.index(output)
        else:
            driver.wait(timeout=300)
        state["over"] = True
        killer.join(timeout=300)
        del state["over"]
        before = self._records(output)
        again = self.index(output, workers=1)
        if kind == "raylet":
            self.second = self.cluster.add_node(num_cpus=1)
        state |= self._verify(output, before, first, again)
        shutil.rmtree(output)
        return state

    def _driver(self, output: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "genius", "index", str(self.folder / "sources"), "-o", str(output), "--json"]
        command += ["--ray", self.cluster.address, "--workers", "2", "--part-rows", "64", "--batch", "64"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _records(self, output: Path) -> set[str]:
        return {path.name for path in (Staging(output).folder / RECORDS).glob("[!.]*.json")}

    def _kill(self, kind: str, output: Path, wanted: int, driver: subprocess.Popen[bytes] | None, state: dict[str, Any]) -> None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and "over" not in state and (len(self._records(output)) < wanted or not marked(WORKER)):
            time.sleep(0.02)
        time.sleep(self.chance.random() * 0.2)
        if "over" in state:
            return  # it was quicker than the kill: such a round says so and counts for nothing
        state["records_at_kill"] = len(self._records(output))
        if driver is not None:
            driver.kill()
        elif kind == "raylet":
            self.second.kill_raylet()
            self.cluster.remove_node(self.second, allow_graceful=False)
        else:
            for pid in marked(WORKER)[:1]:
                os.kill(pid, signal.SIGKILL)

    def _verify(self, output: Path, before: set[str], first: dict[str, Any] | None, again: dict[str, Any]) -> dict[str, Any]:
        with Index.open(output, read_only=True) as index:
            held = [row["id"] for row in index._state.reader().stream(["id"])]
        left = [path.name for path in (output / "staging").iterdir() if path.name != ".lock"]
        if first is not None:  # the job itself got over it: the second run must find everything unchanged
            again_done = again["added"] + again["replaced"]
        else:  # what had a record is taken over, not done again
            again_done = len(before) - again["resumed"]
        wrong = {
            "ids_lost_or_foreign": len(set(held) ^ self.ids),
            "ids_doubled": len(held) - len(set(held)),
            "damaged_files": check(output).problems.total,
            "left_in_staging": len(left),
            "failed_parts": len(again["failed"]) + len((first or {"failed": []})["failed"]),
            "done_twice": again_done,
        }
        return {
            "finished_by": "the same run" if first is not None else "the second run",
            "lost_workers": (first or again)["lost_workers"],
            "parts": again["parts"],
            "kept_for_second_run": len(before),
            "wrong": wrong,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--rows", type=int, default=700)
    parser.add_argument("--pictures", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="genius-kills-"))
    started, done = time.monotonic(), []
    rounds = Rounds(folder, options.rows, options.pictures, options.seed)
    try:
        for number in range(options.rounds):
            done.append(rounds.round(number))
            print(json.dumps(done[-1]), flush=True)
            body = {
                "what": "kill -9 during genius index --ray, then again: ids, doubles, files and parts checked after every round",
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "settings": {**vars(options), "nodes": 2, "processors": 1, "model": "bundled:mini"},
                "items": len(rounds.ids),
                "rounds": len(done),
                "rounds_with_a_kill": sum(one["records_at_kill"] is not None for one in done),
                "kinds": {kind: sum(one["kind"] == kind for one in done) for kind in KINDS},
                "wrong": {name: sum(one["wrong"][name] for one in done) for name in done[0]["wrong"]},
                "seconds": round(time.monotonic() - started),
                "each": done,
            }
            RESULT.write_text(json.dumps(body, indent=1) + "\n")
    finally:
        rounds.ray.shutdown()
        rounds.cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
