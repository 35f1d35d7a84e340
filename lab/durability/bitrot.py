"""Flip single bits in every file of an index and see whether anything changes unnoticed.

    python -m lab.durability.bitrot [--flips 600] [--seed 1] [--out lab/durability/bitrot.json]

An index with several fragments, deleted and replaced rows, a row index, a cache, versions of the past. Each flip is made in
a fresh copy: found at opening, found by `genius check`, or not found; and are the items and the answers the same as before?
A part of the damaged copies is repaired, and the repaired index compared with the whole one. Each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from fake_encoder import fake_model
from PIL import Image

import genius.index.opened
import genius.index.store
from genius import Genius, GeniusError, Index, Item
from genius.index.check import check
from genius.index.repair import repair
from lab.durability import data

MODEL = fake_model()
genius.index.opened.CACHE_FROM = genius.index.store.INDEX_FROM = 50  # small, and yet with a cache and a row index


def make(folder: Path, items: int) -> Path:
    """An index that has every kind of file."""
    path = folder / "whole.genius"
    index = Index(path, MODEL)
    for start in range(0, items, 100):
        index.add([_item(i) for i in range(start, min(start + 100, items))])
    index.delete([f"t{i}" for i in range(0, items, 17)])
    index.upsert([Item(f"t{i}", text=f"again {i}", metadata={"n": -i}) for i in range(1, items, 23)])
    index.optimize()
    index.add([_item(i) for i in range(items, items + 30)])
    index.delete(["t3", f"t{items + 2}"])
    index.upsert([Item("t5", text="five again")])
    return path


def _item(i: int) -> Item:
    picture = Image.new("RGB", (24, 16), (i % 256, 80, 80)) if i % 5 == 0 else None
    return Item(f"t{i}", text=f"word{i % 7} thing{i}", image=picture, metadata={"n": i, "odd": bool(i % 2), "shop": f"s{i % 3}"})


def answers(path: Path, model: Genius) -> dict[str, Any]:
    """Everything that can be asked, as plain values."""
    index = Index(path, model, read_only=True)
    stored = {i.id: (i.text, sorted(i.metadata.items()), i.image if isinstance(i.image, bytes) else b"") for i in index.items()}
    asked = [index.search(text=t, k=20) for t in ("word3", "thing9", "again 24")] + [
        index.search(text="word1", k=20, where="n > 50")
    ]
    asked.append(index.search(text="word2", k=10_000, beams=10_000, rerank=10**6))
    return {
        "items": stored,
        "codes": {i: index.codes(i) for i in list(stored)[::7]},
        "thumbnails": [index.thumbnail(i) for i in list(stored)[::9]],
        "counts": [index.count(), index.count("odd"), index.count("shop = 's1'")],
        "found": ["t10" in index, "t20" in index, "nope" in index],
        "hits": [[(h.id, round(h.score, 6), h.codes, h.item.text) for h in hits] for hits in asked],
    }


def prepare(folder: Path, items: int) -> dict[str, Any]:
    path = make(folder, items)
    (folder / "answers").write_bytes(pickle.dumps(answers(path, MODEL)))
    return {}


def attempt(path: Path, mend: bool) -> dict[str, Any]:
    """Open, ask, check, and perhaps repair one damaged index."""
    whole = pickle.loads((path.parent / "answers").read_bytes())
    found = refusal(path)
    result: dict[str, Any] = {"opening": found is not None, "line": found or ""}
    report = check(path)
    result |= {"check": not report.ok or bool(report.notes), "problem": report.problems[0] if report.problems else ""}
    if found is None:
        try:
            result["same"] = answers(path, MODEL) == whole
        except GeniusError as error:
            result |= {"same": False, "asking": str(error)}
    if mend:
        fixed = repair(path)
        now = answers(path, MODEL)["items"]
        wrong = [i for i, item in now.items() if whole["items"].get(i) != item]
        result |= {"repaired": len(now), "wrong after repair": len(wrong), "lost": fixed.lost.total, "sound": check(path).ok}
    return result


SILENT = "items with wrong contents, in silence"


def refusal(path: Path) -> str | None:
    """The line with which opening is refused; None if it is not."""
    try:
        Index(path, MODEL, read_only=True)
    except GeniusError as error:
        return str(error)
    return None


def flipped(whole: Path, scratch: Path, name: str, bit: int) -> Path:
    target = scratch / "damaged.genius"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(whole, target, copy_function=os.link)  # links: one file is replaced
    body = bytearray((whole / name).read_bytes())
    body[bit // 8] ^= 1 << (bit % 8)
    (target / name).unlink()
    (target / name).write_bytes(body)
    return target


def forked(function: Any, *args: Any) -> dict[str, Any]:
    """What a function returns in a process of its own. This one never touches LanceDB, whose threads do not survive a fork."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        signal.alarm(120)
        try:
            body = json.dumps(function(*args), default=str)
        except BaseException as error:
            body = json.dumps({"crashed": f"{type(error).__name__}: {error}"[:300]})
        os.write(writer, body.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return dict(json.loads(text)) if text else {"crashed": f"status {status}"}


def run(flips: int, seed: int, items: int, repairs: int) -> dict[str, Any]:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        forked(prepare, scratch, items)
        path = scratch / "whole.genius"
        whole = pickle.loads((scratch / "answers").read_bytes())
        files = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file() and p.stat().st_size)
        plan = [(name, rng.randrange(8 * (path / name).stat().st_size)) for name in files]  # every file once
        while len(plan) < flips:
            name = rng.choice(files)
            plan.append((name, rng.randrange(8 * (path / name).stat().st_size)))
        outcomes: Counter[str] = Counter()
        kinds: dict[str, Counter[str]] = {}
        bad: list[dict[str, Any]] = []
        mended: list[dict[str, Any]] = []
        for number, (name, bit) in enumerate(plan):
            mend = number % max(len(plan) // repairs, 1) == 0 if repairs else False
            result = forked(attempt, flipped(path, scratch, name, bit), mend)
            where = "opening" if result.get("opening") else "check" if result.get("check") else "nobody"
            effect = "" if where == "opening" else ", same answers" if result.get("same") else ", OTHER ANSWERS OR NONE"
            outcome = result.get("crashed") or f"found by {where}{effect}"
            outcomes[outcome] += 1
            kinds.setdefault(kind_of(name), Counter())[outcome] += 1
            if "crashed" in result or where == "nobody":
                bad.append({"file": name, "bit": bit, **result})
            if mend:
                mended.append(result)
        return {
            "files": len(files),
            "items": len(whole["items"]),
            "flips": len(plan),
            "outcomes": dict(outcomes),
            "silent changes": sum(not r.get("same", True) for r in bad),
            "found by nobody": len(bad),
            "by kind of file": {kind: dict(counts) for kind, counts in sorted(kinds.items())},
            "bad": bad,
            "repairs": {
                "tried": len(mended),
                "all sound afterwards": all(r.get("sound") for r in mended),
                "items as in an earlier version, which the repair named": sum(
                    r.get("wrong after repair", 0) for r in mended if r.get("lost")
                ),
                SILENT: sum(r.get("wrong after repair", 999) for r in mended if not r.get("lost")),
                "fewest items brought back": min((r.get("repaired", 0) for r in mended), default=None),
                "crashed": [r["crashed"] for r in mended if "crashed" in r],
            },
        }


def kind_of(name: str) -> str:
    parts = name.split("/")
    if parts[0] == "items.lance":
        return f"items.lance/{parts[1]}" if len(parts) > 2 else name
    return f"cache/{parts[-1]}" if parts[0] == "cache" else name


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flips", type=int, default=600)
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--repairs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    body = {**data.environment(), "seed": args.seed, **run(args.flips, args.seed, args.items, args.repairs)}
    body["seconds"] = round(time.perf_counter() - begin)
    text = json.dumps(body, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    if body["bad"] or body["repairs"][SILENT] or not body["repairs"]["all sound afterwards"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
