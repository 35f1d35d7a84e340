"""Kills a worker, a machine (its raylet) or the driver with -9 at a random moment of `genius index --ray`, then runs it again.

After every round: the ids in the index are those of the sources, none twice; codes, vectors, metadata and answers are those of
one process without Ray; every file of the table is one that the ledger names; no part that had a record when the kill came was
done again; nothing is left in the staging folder.

Rounds go to the file one by one, and a second call goes on behind the last (`--anew` begins again). A cluster that does not
start in Ray's own time is a fault of this bench, not of a round: it is made anew, and the file says how often.

    python -m lab.ray.kills --rounds 24
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
from genius.index.ingest import IngestConfig, ingest
from genius.scale import load_ray
from genius.scale.bulk import BulkConfig, bulk_index
from genius.scale.parts import RECORDS, Staging
from lab.ray.compare import differences, make_sources
from lab.ray.processes import mark, marked

RESULT = Path(__file__).parent / "kills.json"
KINDS = ("worker", "raylet", "driver")
WORKER = "ray::PartWriter"
STARTS = 5  # attempts to start a cluster


class Rounds:
    def __init__(self, folder: Path, rows: int, pictures: int, seed: int) -> None:
        self.folder, self.seed, self.chance = folder, seed, random.Random(seed)
        mark()
        self.ids = make_sources(folder / "sources", rows, pictures, seed)
        self.plain = Index(folder / "plain.genius", "bundled:mini")
        ingest(self.plain, [folder / "sources"], IngestConfig(batch_size=64))
        self.ray = load_ray()
        self.cluster: Any = None
        self.second: Any = None
        self.failed_starts = 0
        self.start()

    def start(self) -> None:
        """A cluster of two machines; what was there before goes."""
        from ray.cluster_utils import Cluster

        for left in reversed(range(STARTS)):
            self.stop()
            try:
                self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
                self.second = self.cluster.add_node(num_cpus=1)
                self.ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")
                return
            except Exception as error:  # Ray has no class of its own for a start that took too long
                self.failed_starts += 1
                print(f"the cluster did not start: {error!r:.200}", file=sys.stderr, flush=True)
                if not left:
                    raise

    def stop(self) -> None:
        self.ray.shutdown()
        if self.cluster is not None:
            self.cluster.shutdown()
            self.cluster = None

    def second_machine(self) -> None:
        """Again, after its raylet was killed."""
        try:
            self.second = self.cluster.add_node(num_cpus=1)
        except Exception as error:  # as above
            self.failed_starts += 1
            print(f"the second machine did not start: {error!r:.200}", file=sys.stderr, flush=True)
            self.start()

    def index(self, output: Path, workers: int = 2) -> dict[str, Any]:
        config = BulkConfig(self.cluster.address, workers=workers, part_rows=64)
        report = bulk_index([self.folder / "sources"], output, "bundled:mini", IngestConfig(batch_size=64), config)
        return report.to_dict()

    def round(self, number: int) -> dict[str, Any]:
        kind, output = KINDS[number % len(KINDS)], self.folder / f"round{number}.genius"
        started, self.chance = time.monotonic(), random.Random(f"{self.seed} {number}")
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
            self.second_machine()
        state |= self._verify(output, before, first, again)
        state["seconds"] = round(time.monotonic() - started)
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
            different = differences(self.plain, index) if len(held) == len(set(held)) else {}
        left = [path.name for path in (output / "staging").iterdir() if path.name != ".lock"]
        if first is not None:  # the job itself got over it: the second run must find everything unchanged
            again_done = again["added"] + again["replaced"]
        else:  # what had a record is taken over, not done again
            again_done = len(before) - again["resumed"]
        wrong = {
            "ids_lost_or_foreign": len(set(held) ^ self.ids),
            "ids_doubled": len(held) - len(set(held)),
            "content_other_than_without_ray": sum(different.values()),
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
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--anew", action="store_true", help="forget the rounds that the file holds")
    parser.add_argument("--rows", type=int, default=700)
    parser.add_argument("--pictures", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    work = {name: getattr(options, name) for name in ("rows", "pictures", "seed")}
    settings = {**work, "nodes": 2, "processors": 1, "model": "bundled:mini"}
    kept = json.loads(RESULT.read_text()) if RESULT.exists() and not options.anew else {}
    if kept and kept["settings"] != settings:
        raise SystemExit(f"{RESULT.name} holds rounds of other settings: --anew forgets them")
    done: list[dict[str, Any]] = kept.get("each", [])
    folder = Path(tempfile.mkdtemp(prefix="genius-kills-"))
    rounds = Rounds(folder, **work)
    rounds.failed_starts += kept.get("starts_of_ray_that_failed", 0)
    try:
        for number in range(len(done), options.rounds):
            done.append(rounds.round(number))
            print(json.dumps(done[-1]), flush=True)
            body = {
                "what": "kill -9 during genius index --ray, then again: ids, doubles, files and parts checked after every round",
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "settings": settings,
                "items": len(rounds.ids),
                "rounds": len(done),
                "rounds_with_a_kill": sum(one["records_at_kill"] is not None for one in done),
                "kinds": {kind: sum(one["kind"] == kind for one in done) for kind in KINDS},
                "wrong": {name: sum(one["wrong"][name] for one in done) for name in done[0]["wrong"]},
                "starts_of_ray_that_failed": rounds.failed_starts,
                "seconds": sum(one["seconds"] for one in done),
                "load_average": [round(value, 1) for value in os.getloadavg()],
                "each": done,
            }
            RESULT.write_text(json.dumps(body, indent=1) + "\n")
    finally:
        rounds.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
