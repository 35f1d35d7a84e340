"""Show the library files of weights and models that try to act, to fill the memory or to take for ever.

    python -m lab.trust.hostile_models [--out lab/trust/hostile_models.json]

Every case (`tests/helpers/hostile_models.py`) is opened in a process of its own, forked from one that has imported
everything, through the door that such files come in by: `convert official`, `uniir:`, a checkpoint of
training, a model folder, an encoder folder. Counted: cases that acted (a marker file), that ended other than by one clear
line, and the most time and memory that one took.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import hostile_models
import torch
from hostile_archives import Case

from genius.errors import GeniusError
from lab import provenance

SECONDS, MEGABYTES = 2.0, 500


def run(case: Case) -> dict[str, Any]:
    """One case in a forked process: how it ended, how long it took, how much memory it held at most."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, mark = Path(scratch) / "in", Path(scratch) / "MARK"
        folder.mkdir()
        if not (author := os.fork()):  # in a process of its own, too: some take a gigabyte to write
            (Path(scratch) / "path").write_text(str(case.write(folder, mark)))
            mark.unlink(missing_ok=True)
            os._exit(0)
        os.waitpid(author, 0)
        path = Path((Path(scratch) / "path").read_text())
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            os.write(writer, json.dumps(_attempt(case, path)).encode()[:60_000])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            body = answer.read()
        _, status = os.waitpid(child, 0)
        result = json.loads(body) if body else {"end": f"died with status {status}"}
        return {"name": case.name, "door": case.door, **result, "acted": mark.exists()}


def _attempt(case: Case, path: Path) -> dict[str, Any]:
    signal.alarm(60)
    Path("/proc/self/clear_refs").write_text("5")  # forget the parent's peak
    before = _peak()
    started = time.process_time()  # not wall time: other processes may be busy
    try:
        hostile_models.go_through(case.door, path)
        end = "loaded, without the hostile part" if case.harmless else "LOADED"
    except GeniusError as error:
        end = "one line" if "\n" not in str(error) else "SEVERAL LINES"
    except BaseException as error:
        end = f"TRACEBACK {type(error).__name__}"
    return {"end": end, "seconds": round(time.process_time() - started, 3), "peak_mb": _peak(), "grown_mb": _peak() - before}


def _peak() -> int:
    """Megabytes: the most that this process has held."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    import transformers.models.clip.modeling_clip  # noqa: F401 - imported once, here

    results = [run(case) for case in hostile_models.all_cases()]
    ends = Counter(result["end"] for result in results)
    bad = [r for r in results if r["acted"] or r["end"] not in ("one line", "loaded, without the hostile part")]
    slow = [r for r in results if r.get("seconds", 99) > SECONDS or r.get("peak_mb", 10**6) > MEGABYTES]
    body = {
        **provenance(),
        "threads": torch.get_num_threads(),
        "cases": len(results),
        "acted": sum(r["acted"] for r in results),
        "ends": dict(ends),
        "most seconds": max(r.get("seconds", 99) for r in results),
        "most megabytes in all": max(r.get("peak_mb", 10**6) for r in results),
        "most megabytes grown": max(r.get("grown_mb", 10**6) for r in results),
        "over 2 s or 500 MB": [r["name"] for r in slow],
        "bad": bad,
        "by door": dict(Counter(r["door"] for r in results)),
        "results": [f"{r['name']}: {r['end']}, {r.get('seconds')} s, {r.get('grown_mb')} MB more" for r in results],
    }
    text = json.dumps(body, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    if bad or slow:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
