"""How long does opening a large index take? Builds one, then opens it in fresh processes.

    python -m lab.speed.open [--items 1000000] [--out lab/speed/open.json]

Times exclude importing Python modules and include everything else: reading the folder, checking the model's
fingerprint, comparing the cache with the table, and (listed apart) the first search.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from genius import Genius, Index
from genius.search import SearchRequest
from lab.durability import data

WIDTH, LEVELS = 64, (3, 256, 256, 256, 256)


def open_once(folder: str, model_folder: str) -> dict[str, Any]:
    """In a fresh process: open, search, filter, get."""
    import lancedb  # noqa: F401  (importing is not what is measured)
    import torch

    model = Genius.from_pretrained(model_folder)
    times: dict[str, Any] = {}

    def timed(name: str, call: Any) -> Any:
        begin = time.perf_counter()
        value = call()
        times[name] = round(time.perf_counter() - begin, 4)
        return value

    index = timed("open", lambda: Index.open(folder, model))
    times["items"] = len(index)
    z = torch.from_numpy(data.vectors(1, WIDTH, 2000, seed=99)[0])
    plain, filtered = SearchRequest(10, params=data.SEARCH), SearchRequest(10, "share < 10", params=data.SEARCH)
    timed("first search", lambda: index.search_embedded(z, request=plain))
    timed("second search", lambda: index.search_embedded(z, request=plain))
    timed("search, new filter", lambda: index.search_embedded(z, request=filtered))
    timed("search, same filter", lambda: index.search_embedded(z, request=filtered))
    timed("count where", lambda: index.count("share < 50 AND even"))
    timed("get 10", lambda: index.get([f"item-{6000 + i * 997}" for i in range(10)]))
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    times["resident MB"] = round(int(resident.split()[1]) / 1024)
    return times


def fresh(folder: Path, model_folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "lab.speed.open", "--open", str(folder), str(model_folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(result.stderr)
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--open", nargs=2, metavar=("FOLDER", "MODEL"))
    args = parser.parse_args()
    if args.open:
        print(json.dumps(open_once(*args.open)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder, model_folder = Path(scratch) / "big.genius", Path(scratch) / "model"
        points = data.vectors(args.items, WIDTH, 2000)[0]
        data.make_model(WIDTH, LEVELS, points[:20_000]).save_pretrained(model_folder)
        index = Index(folder, model_folder)
        begin = time.perf_counter()
        for done in data.fill(index, points):
            print(f"{done:,} items", file=sys.stderr)
        body: dict[str, Any] = {"items": args.items, "width": WIDTH, "levels": LEVELS, **data.environment()}
        body["write, items/s"] = round(args.items / (time.perf_counter() - begin))
        body["no cache"] = fresh(folder, model_folder)
        body["cached"] = [fresh(folder, model_folder) for _ in range(3)]
        extra = data.vectors(10_000, WIDTH, 2000, seed=5)[0]
        for _ in data.fill(index, extra, start=args.items, batch=1000):
            pass
        index.delete([f"item-{i}" for i in range(0, 5000, 5)])
        body["cached, then 10,000 added and 1,000 deleted"] = fresh(folder, model_folder)
        begin = time.perf_counter()
        index.optimize()
        body["optimize, s"] = round(time.perf_counter() - begin, 2)
        body["after optimize"] = fresh(folder, model_folder)
        body["bytes per item"] = round(index.info()["bytes"] / len(index), 1)
    text = json.dumps(body, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
