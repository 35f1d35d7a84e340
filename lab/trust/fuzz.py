"""Coverage-guided fuzzing (atheris) of what strangers hand in: conditions, tables, checkpoints, pictures, requests.

    pip install 'genius-search[fuzz]'
    python -m lab.trust.fuzz [--seconds 600] [--only filters http ...] [--out lab/trust/fuzz.json]

Each target runs in a process of its own, so that a crash of native code is seen. What must not happen: a crash, a hang (over
20 s for one input), more than 3 GB, and what the targets forbid (`fuzz_readers`, `fuzz_requests`). Results of
targets that were not run this time stay in the file, each with its date.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.trust import fuzz_readers as readers
from lab.trust import fuzz_requests as requests
from lab.trust.service import ROOT, commit, environment, write_report

TARGETS = {**readers.TARGETS, **requests.TARGETS}
INSTRUMENTED = ["genius", "PIL", "starlette", "fastapi", "python_multipart"]
SEED = 19


def fuzz(name: str, folder: Path, seconds: int) -> None:
    """In a process of its own: never returns."""
    import atheris

    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # libFuzzer's, which would kill the interpreter as it ends
    kind = readers if name in readers.TARGETS else requests
    with atheris.instrument_imports(include=INSTRUMENTED if kind is requests else list(readers.MODULES)):
        for module in kind.MODULES:
            importlib.import_module(module)
    run, seeds = TARGETS[name]()
    for number, seed in enumerate(seeds):
        (folder / "corpus" / f"seed-{number}").write_bytes(seed)
    (folder / "words").write_text("".join(f"{_quoted(word)}\n" for word in kind.WORDS))
    limits = ["-timeout=20", "-rss_limit_mb=3000", f"-max_total_time={seconds}", "-max_len=65536", f"-seed={SEED}"]
    places = [f"-artifact_prefix={folder}/found/", f"-dict={folder}/words", "-print_final_stats=1", str(folder / "corpus")]
    atheris.Setup([sys.argv[0], *limits, *places], run)
    atheris.Fuzz()


def _quoted(word: str) -> str:
    """As libFuzzer's dictionaries want it."""
    plain = (c if c.isalnum() or c in " <>=!()',`%_+-.;:/&" else f"\\x{ord(c):02x}" for c in word)
    return f'"{"".join(plain)}"'


def measure(name: str, seconds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for part in ("corpus", "found"):
            (folder / part).mkdir()
        started = time.monotonic()
        command = [sys.executable, "-m", "lab.trust.fuzz", "--inside", name, "--folder", scratch, "--seconds", str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment())
        stats = {key: int(value) for key, value in re.findall(r"stat::(\w+):\s+(\d+)", done.stderr)}
        coverage = [int(edges) for edges in re.findall(r"cov: (\d+) ft:", done.stderr)]
        found = sorted((folder / "found").iterdir())
        return {
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "commit": commit(),
            "seconds": round(time.monotonic() - started),
            "inputs": stats.get("number_of_executed_units"),
            "edges_covered_from_to": [coverage[0], coverage[-1]] if coverage else None,
            "slowest_input_s": stats.get("slowest_unit_time_sec"),
            "peak_mb": stats.get("peak_rss_mb"),
            "status": done.returncode,
            "found": [{"name": file.name, "hex": file.read_bytes()[:2000].hex()} for file in found],
            "last_lines": done.stderr.splitlines()[-25:] if done.returncode or found else [],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "trust" / "fuzz.json")
    parser.add_argument("--inside", choices=TARGETS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        fuzz(args.inside, args.folder, args.seconds)
        return
    results = json.loads(args.out.read_text()).get("targets", {}) if args.out.exists() else {}
    for name in args.only:
        results[name] = measure(name, args.seconds)
        write_report(args.out, seed=SEED, targets=results)
    if any(result["status"] or result["found"] for result in results.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
