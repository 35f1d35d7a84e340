"""Two writers, four readers and a service on one index, against a dictionary (`tests/helpers/model_based.py`).

    python -m lab.durability.model [--seed 1] [--operations 100000] [--kills 0.1] [--minutes 600] [--out FILE.json]

The same seed does the same operations and kills again. The run ends at the first violation, which names its round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faults
import model_based

from lab.durability import data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--kills", type=float, default=0.1, help="share of rounds in which a process is to be killed")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        if faults.SHIM not in os.environ:
            environment = faults.preloaded(faults.compile_shim(Path(folder)))
            command = [sys.executable, "-W", "ignore", "-m", "lab.durability.model", *sys.argv[1:]]
            sys.exit(subprocess.run(command, env=environment).returncode)
        started = time.monotonic()
        about = data.environment()
        findings = model_based.Run(Path(folder), options.seed, options.kills).run(options.operations, options.minutes)
    body = {
        "command": f"python -m lab.durability.model {' '.join(sys.argv[1:])}",
        **vars(findings),
        "done": dict(sorted(findings.done.items())),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "environment": about,
    }
    text = json.dumps(body, indent=1)
    print(text, flush=True)
    if options.out is not None:
        options.out.write_text(text + "\n")
    sys.exit(int(bool(findings.violations)))


if __name__ == "__main__":
    main()
