"""Switch the encoder of an index again and again, kill the switch, and look whether any answer or item is lost.

    python -m lab.durability.reencode [--items 20000] [--clients 8] [--kills 50] [--seed 1] [--out FILE] [--append]

`genius serve` runs over the index. Clients search it all the time, one writer adds items. `genius reencode --encoder` and
`--back` run in processes of their own, which are killed at random moments until there were `--kills` kills. Every answer must be
complete and have the scores of one encoder; every acknowledged item must be there at the end, and `genius check` be clean.
After each process the generation that it left is asked for its own scores; generations of one encoder have so far had the same
scores, and the file says of how many that is so. Clients ask for items of the start only, which every generation has.
Encoding and fitting are cheap, so that the switch itself is what is tested: the encoder is hashed words
(`tests/helpers/fake_encoder.py`), codes and decoder are fitted with `FIT`. `--append` adds a run to those of the file.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from genius import Index, Item
from genius.index.check import check
from lab.durability import data

HELPERS = Path(__file__).parents[2] / "tests" / "helpers"
FIT = {"largest_codebook": 16, "iterations": 2, "steps": 5, "sample": 2000}  # of `FitConfig`; the defaults take minutes
LAUNCHER = f"""
import functools, fake_encoder
from genius.fit import FitConfig, reencode
from genius.cli import main
fake_encoder.register()
reencode.reencode = functools.partial(reencode.reencode, config=FitConfig(**{FIT}))
main()
"""
OTHER_WIDTH = 48  # of the other encoder; the first one is 32 wide
VOCABULARY = [f"word{n}" for n in range(300)]
K = 10
WHERE = "starts_with(id, 'i')"  # items of the start: what is added meanwhile must not change the answers
KILLED_AFTER = (0.2, 1.2)  # of the time that such a process last took; before that, little more than imports has run
TOLERANCE = 1e-4  # of a score: queries that share a pass are added up in another order than one alone


def launch(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A `genius` command in a process of its own, which knows the cheap encoder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}
    return subprocess.Popen([sys.executable, "-c", LAUNCHER, *arguments], env=environment, text=True, **options)


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(VOCABULARY, k=count))


class Traffic:
    """Clients that search, and one that adds items."""

    def __init__(self, url: str, queries: list[str], clients: int) -> None:
        self.url = url
        self.queries = queries
        self.answers: collections.Counter[tuple[str, tuple[float, ...]]] = collections.Counter()
        self.problems: collections.Counter[str] = collections.Counter()
        self.acknowledged: set[str] = set()
        self.slowest = 0.0
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._search, args=(number,)) for number in range(clients)]
        self.threads.append(threading.Thread(target=self._write))
        for thread in self.threads:
            thread.start()

    def _search(self, number: int) -> None:
        draw = random.Random(number)
        with httpx.Client(base_url=self.url, timeout=120, trust_env=False) as client:
            while not self.stop.is_set():
                query = draw.choice(self.queries)
                started = time.monotonic()
                try:
                    response = client.post("/v1/search", json={"text": query, "k": K, "where": WHERE})
                except httpx.HTTPError as error:
                    self.problems[type(error).__name__] += 1
                    continue
                self.slowest = max(self.slowest, time.monotonic() - started)
                if response.status_code != 200:
                    self.problems[f"{response.status_code} {response.text[:200]}"] += 1
                    continue
                hits = response.json()["hits"]
                self.answers[query, tuple(round(hit["score"], 5) for hit in hits)] += 1
                time.sleep(0.05)

    def _write(self) -> None:
        draw = random.Random(99)
        number = 0
        with httpx.Client(base_url=self.url, timeout=120, trust_env=False) as client:
            while not self.stop.is_set():
                name = f"late{number}"
                number += 1
                text = f"an item that was added meanwhile {words(draw, 40)}"
                try:
                    response = client.put(f"/v1/items/{name}", json={"text": text})
                except httpx.HTTPError as error:
                    self.problems[f"write: {type(error).__name__}"] += 1
                    continue
                if response.status_code == 201:
                    self.acknowledged.add(name)
                else:
                    self.problems[f"write: {response.status_code} {response.text[:200]}"] += 1
                time.sleep(1.0)

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


@dataclass
class Generation:
    """What one generation of the index answers."""

    encoder: str  # "first" or "other"
    scores: dict[str, tuple[float, ...]]  # of the k best items of each query
    answers: int = 0  # that clients had of it

    def gave(self, query: str, found: tuple[float, ...]) -> bool:
        own = self.scores[query]
        return len(own) == len(found) and bool(np.allclose(own, found, rtol=0, atol=TOLERANCE))


def note(path: Path, queries: list[str], generations: dict[str, Generation]) -> str:
    """Ask the present generation for its scores, unless that was done before. Returns its encoder's name."""
    with Index.open(path, read_only=True) as index:
        assert index.model.encoder is not None
        encoder = "other" if index.model.encoder.width == OTHER_WIDTH else "first"
        if index.about.id not in generations:
            scores = {query: tuple(hit.score for hit in index.search(query, k=K, where=WHERE)) for query in queries}
            generations[index.about.id] = Generation(encoder, scores)
    return encoder


def attribute(traffic: Traffic, generations: Sequence[Generation]) -> tuple[collections.Counter[str], list[dict[str, Any]]]:
    """How many answers are of which encoder, "neither" for those of no generation; and some of these."""
    by_encoder: collections.Counter[str] = collections.Counter()
    strange = []
    for (query, found), count in traffic.answers.items():
        own = next((generation for generation in generations if generation.gave(query, found)), None)
        if own is None:
            by_encoder["neither"] += count
            strange.append({"query": query, "count": count, "scores": found})
            continue
        own.answers += count
        by_encoder[own.encoder] += count
    return by_encoder, strange


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import fake_encoder

    fake_encoder.register()
    draw = random.Random(options.seed)
    fake_encoder.fake_model().save_pretrained(folder / "first")
    (folder / "other").mkdir()
    fake_encoder.FakeEncoder(OTHER_WIDTH, seed=1).save(folder / "other")
    path = folder / "my.genius"
    with Index(path, folder / "first", thumbnails=0) as index:
        index.add((Item(f"i{n}", text=words(draw, 6)) for n in range(options.items)), batch_size=5000)
        index.optimize()
    queries = [words(draw, 4) for _ in range(20)]
    generations: dict[str, Generation] = {}
    assert note(path, queries, generations) == "first"
    change = ("reencode", str(path), "--encoder", str(folder / "other"), "--json")
    back = ("reencode", str(path), "--back", "--json")
    started = time.monotonic()
    assert launch(*change, stdout=subprocess.DEVNULL).wait() == 0
    whole_s = time.monotonic() - started
    print(f"one switch: {whole_s:.1f} s", flush=True)
    assert note(path, queries, generations) == "other"
    started = time.monotonic()
    assert launch(*back, stdout=subprocess.DEVNULL).wait() == 0
    last_s = {"switched": whole_s, "back": time.monotonic() - started}
    assert note(path, queries, generations) == "first"
    log = folder / "serve.log"
    with log.open("w") as stderr:
        server = launch("serve", str(path), "--port", "0", "--json", stdout=subprocess.PIPE, stderr=stderr)
    assert server.stdout is not None
    traffic = Traffic(json.loads(server.stdout.readline())["url"], queries, options.clients)
    outcomes: collections.Counter[str] = collections.Counter()
    killed_while: collections.Counter[str] = collections.Counter()
    locked = []
    switched = False
    until = time.monotonic() + 60 * options.minutes
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())  # the run ends, and what was seen is written
    while outcomes["killed"] < options.kills and time.monotonic() < until and not ended.is_set():
        name = "back" if switched else "switched"
        started = time.monotonic()
        process = launch(*(back if switched else change), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            output, _ = process.communicate(timeout=draw.uniform(*KILLED_AFTER) * last_s[name])
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            outcomes["killed"] += 1
            killed_while["going back" if switched else "switching"] += 1
        else:
            last_s[name] = time.monotonic() - started
            outcomes[name if process.returncode == 0 else f"{name}: status {process.returncode}"] += 1
            if not switched:
                locked.append(json.loads(output).get("locked_seconds"))
        # a kill may come between the swap and the end of the process
        switched = note(path, queries, generations) == "other"
        print(dict(outcomes), sum(traffic.answers.values()), dict(traffic.problems), flush=True)
    traffic.end()
    server.send_signal(signal.SIGTERM)
    server.wait()
    for line in log.read_text(encoding="utf-8").splitlines():
        if '"level": "error"' in line or "Traceback" in line:
            print(line, flush=True)
    with Index.open(path, read_only=True) as index:
        there = {item.id for item in index.items()}
    lost = ({f"i{n}" for n in range(options.items)} | traffic.acknowledged) - there
    by_encoder, strange = attribute(traffic, list(generations.values()))
    first_of = {one.encoder: one for one in reversed(generations.values())}
    return {
        "command": f"python -m lab.durability.reencode --items {options.items} --clients {options.clients} "
        f"--kills {options.kills} --seed {options.seed} --minutes {options.minutes:g}",
        "encoder": "hashed words (tests/helpers/fake_encoder.py)",
        "fit": FIT,
        "items": options.items,
        "clients": options.clients,
        "queries": len(queries),
        "seed": options.seed,
        "one_switch_s": round(whole_s, 1),
        "writes_waited_s": locked,
        "outcomes": dict(outcomes),
        "killed_while": dict(killed_while),
        "answers": dict(by_encoder),
        "generations": len(generations),
        "generations_that_score_as_the_first_of_their_encoder": sum(
            all(one.gave(query, scores) for query, scores in first_of[one.encoder].scores.items()) for one in generations.values()
        ),
        "of_no_generation": strange[:20],
        "slowest_answer_s": round(traffic.slowest, 2),
        "refused_or_failed": dict(traffic.problems),
        "acknowledged_writes": len(traffic.acknowledged),
        "lost": sorted(lost)[:20],
        "lost_count": len(lost),
        "check_ok": check(path).ok,
        "environment": data.environment(),
    }


def total(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums over runs."""
    answers: collections.Counter[str] = collections.Counter()
    outcomes: collections.Counter[str] = collections.Counter()
    killed_while: collections.Counter[str] = collections.Counter()
    for one in runs:
        answers.update(one["answers"])
        outcomes.update(one["outcomes"])
        killed_while.update(one["killed_while"])
    return {
        "runs": len(runs),
        "outcomes": dict(outcomes),
        "killed_while": dict(killed_while),
        "answers": dict(answers),
        "answers_of_neither_encoder": answers["neither"],
        "refused_or_failed": sum(sum(one["refused_or_failed"].values()) for one in runs),
        "acknowledged_writes": sum(one["acknowledged_writes"] for one in runs),
        "lost_count": sum(one["lost_count"] for one in runs),
        "check_ok": all(one["check_ok"] for one in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0, help="End earlier than after --kills kills.")
    parser.add_argument("--out", type=Path, default=Path("lab/durability/reencode.json"))
    parser.add_argument("--append", action="store_true", help="Keep the runs that the file has.")
    options = parser.parse_args()
    sys.path.insert(0, str(HELPERS))
    runs = []
    if options.append and options.out.is_file():
        runs = json.loads(options.out.read_text())["runs"]
    with tempfile.TemporaryDirectory() as folder:
        runs.append(run(options, Path(folder)))
    body = {"total": total(runs), "runs": runs}
    options.out.write_text(json.dumps(body, indent=1) + "\n")
    print(json.dumps(body["total"]), flush=True)


if __name__ == "__main__":
    main()
