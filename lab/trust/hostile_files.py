"""Folders of hostile files through `genius index`: does every other item get in, and is each bad one named?

    python -m lab.trust.hostile_files [--out lab/trust/hostile_files.json]

The files are made by `tests/helpers/hostile_files.py`. A run that ends early, with a traceback or a signal, is repeated with
halves of the kinds until those that end it are found; the rest is then judged without them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hostile_files import judge, kinds, write_all

from lab.trust.service import ROOT, Memory, environment, write_report

LIMIT_S = 900


def attempt(folder: Path, only: set[str] | None) -> dict[str, Any]:
    """One `genius index` over the kinds in `only`: how it ended, and what became of every file."""
    files = folder / "stranger"
    files.mkdir()
    fates = write_all(files, only)
    command = [sys.executable, "-m", "genius", "index", str(files), "-o", str(folder / "x.genius"), "--json"]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    memory = Memory(process.pid)
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"\nnot done after {LIMIT_S} s"
    memory.close()
    ended = {"status": process.returncode, "seconds": round(time.monotonic() - started, 1), "peak_mb": memory.peak}
    try:
        report = json.loads(out)
    except ValueError:
        return {**ended, "error": (err.strip().splitlines() or ["no output"])[-1][:300]}
    from genius.index import Index

    ids = {item.id for item in Index.open(folder / "x.genius", read_only=True).items()}
    return {**ended, "report": report, "wrong": judge(fates, ids, report["problems"], files.name), "files": len(fates)}


def find_ending(names: list[str]) -> dict[str, str]:
    """Kinds that end a run, with the last line they leave."""
    with tempfile.TemporaryDirectory() as folder:
        found = attempt(Path(folder), set(names))
    print(f"{len(names)} kinds ({names[0]!a} ...): {'ok' if 'report' in found else found['error']}", flush=True)
    if "report" in found:
        return {}
    if len(names) == 1:
        return {names[0]: found["error"]}
    middle = len(names) // 2
    return {**find_ending(names[:middle]), **find_ending(names[middle:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "trust" / "hostile_files.json")
    args = parser.parse_args()
    names = list(kinds())
    with tempfile.TemporaryDirectory() as folder:
        found = attempt(Path(folder), None)
    ending: dict[str, str] = {}
    if "report" not in found:
        print("the whole run:", found, flush=True)
        ending = find_ending(names)
        with tempfile.TemporaryDirectory() as folder:
            found = attempt(Path(folder), set(names) - set(ending))
    report = found.pop("report", {})
    write_report(
        args.out,
        kinds=len(names),
        by_folder=dict(Counter(name.split("/")[0] for name in names)),
        kinds_that_end_the_run=ending,
        run=found,
        added=report.get("added"),
        named=len(report.get("problems", [])),
        some_problems=sorted({line.split(", row")[0] for line in report.get("problems", [])})[::5],
    )


if __name__ == "__main__":
    main()
