"""A writer that is killed, and the check that nothing it acknowledged is lost. Shared by the tests and a benchmark.

The writer appends one line to a log before each change (what it is about to do) and one after (done). After a
kill, every change with a "done" line must be in the index; the one without may be there or not, as a whole batch.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from fake_encoder import fake_model
from PIL import Image

from genius import Genius, Index, Item

Truth = dict[str, str]  # id -> text


def write_forever(folder: str, log: str, seed: int, durable: bool = True) -> None:
    """Random adds, upserts, deletes and clean-ups until killed."""
    import torch

    torch.set_num_threads(1)
    rng = random.Random(seed)
    with Path(log).open("a") as file:

        def note(kind: str, **body: Any) -> None:
            file.write(json.dumps({"kind": kind, **body}) + "\n")
            file.flush()

        note("started")
        index = Index(folder, fake_model(), lock_timeout=10, durable=durable)
        known = [item.id for item in index.items()]
        note("ready")
        for step in range(10**9):
            action = rng.choices(["add", "upsert", "delete", "optimize"], [8, 3, 2, 0.5])[0]
            if action == "add":
                batch = {f"{seed}-{step}-{i}": f"words {rng.randrange(10**6)}" for i in range(rng.randint(1, 24))}
            elif action == "upsert" and known:
                batch = {i: f"again {rng.randrange(10**6)}" for i in rng.sample(known, min(len(known), 6))}
            elif action == "delete" and known:
                batch = dict.fromkeys(rng.sample(known, min(len(known), 3)), "")
            else:
                index.optimize(keep=timedelta(0) if rng.random() < 0.5 else timedelta(days=7))
                continue
            note("try", action=action, batch=batch)
            if action == "delete":
                index.delete(list(batch))
                known = [i for i in known if i not in batch]
            else:
                items = [_item(item_id, text) for item_id, text in batch.items()]
                (index.add if action == "add" else index.upsert)(items)
                known = list(dict.fromkeys([*known, *batch]))
            note("done")


def _item(item_id: str, text: str) -> Item:
    pictured = hash(text) % 4 == 0
    return Item(item_id, text=text, image=Image.new("RGB", (40, 30), (len(text) * 9 % 256, 80, 80)) if pictured else None)


@dataclass
class Findings:
    """What a series of kills showed."""

    kills: int = 0
    acknowledged: int = 0  # changes that had returned
    in_flight: int = 0  # kills in the middle of a change
    landed: int = 0  # of those, changes that were found complete
    items: int = 0
    problems: list[str] = field(default_factory=list)


def kill_and_check(folder: Path, kills: int, seed: int, longest: float) -> Findings:
    """Start a writer, kill -9 it at a random moment, look; again and again on the same index."""
    from processes import context  # not at the top: the fork server imports both modules

    model, rng, findings = fake_model(), random.Random(seed), Findings()
    truth: Truth = {}
    path, log = folder / "crash.genius", folder / "log.jsonl"
    for round_number in range(kills):
        log.write_text("")
        writer = context.Process(target=write_forever, args=(str(path), str(log), 1000 * seed + round_number))
        writer.start()
        awaited = "started" if rng.random() < 0.2 else "ready"  # now and then while the index is being opened
        while awaited not in log.read_text():
            time.sleep(0.005)
        time.sleep(rng.uniform(0, longest))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        findings.kills += 1
        if writer.exitcode != -signal.SIGKILL:
            findings.problems.append(f"round {round_number}: the writer ended by itself with {writer.exitcode}")
            break
        compare(path, model, log, truth, findings, f"round {round_number}")
    findings.items = len(truth)
    return findings


def compare(path: Path, model: Genius, log: Path, truth: Truth, findings: Findings, label: str) -> None:
    """Look whether the index holds what the log says was acknowledged; the change in flight is in it whole or not at all."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    changes = [line for line in lines if line["kind"] == "try"]
    done = sum(line["kind"] == "done" for line in lines)
    for change in changes[:done]:
        _apply(truth, change)
    findings.acknowledged += done
    index = Index(path, model, lock_timeout=10)
    found = [(item.id, item.text or "") for item in index.items()]
    if len(changes) > done:  # killed in the middle: all of it or nothing
        findings.in_flight += 1
        after = dict(truth)
        _apply(after, changes[done])
        if dict(found) == after:
            truth.clear()
            truth.update(after)
            findings.landed += 1
    if len(found) != len(dict(found)):
        findings.problems.append(f"{label}: {len(found) - len(dict(found))} items twice")
    if dict(found) != truth:
        lost, extra = truth.keys() - dict(found).keys(), dict(found).keys() - truth.keys()
        findings.problems.append(f"{label}: {len(lost)} lost, {len(extra)} unexpected, or texts differ")
    if index.count() != len(truth):
        findings.problems.append(f"{label}: count is {index.count()}, not {len(truth)}")
    if truth:
        hits = index.search(text="words", target="any", k=min(len(truth), 1000), beams=10_000, rerank=10**6)
        if len(hits) != min(len(truth), 1000) or any(truth.get(hit.id) != hit.item.text for hit in hits):
            findings.problems.append(f"{label}: search gives {len(hits)} hits of {len(truth)}")
    stale = index.path / "cache"
    if stale.is_dir() and sum(child.name.startswith(".building") for child in stale.iterdir()) > 1:
        findings.problems.append(f"{label}: half-built caches pile up")


def _apply(truth: Truth, change: dict[str, Any]) -> None:
    for item_id, text in change["batch"].items():
        if change["action"] == "delete":
            truth.pop(item_id, None)
        else:
            truth[item_id] = text
