"""The laboratory: programs that train, measure and draw what the documentation shows. Not part of the installed package.

Run from the root of a clone (`python -m lab`, `python -m lab.accuracy`). Some programs try the product with the fakes and the
hostile files of its tests, so those are importable from here.
"""

import datetime
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HELPERS = ROOT / "tests" / "helpers"
if str(HELPERS) not in sys.path:
    sys.path.insert(0, str(HELPERS))


def current_commit() -> str:
    """Short hash of the commit that is checked out: every result names it. `LAB_COMMIT` names it where there is no checkout."""
    if "LAB_COMMIT" in os.environ:
        return os.environ["LAB_COMMIT"]
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def provenance() -> dict[str, str]:
    """What every result says of its run: date, commit and device."""
    import torch

    device = f"CPU, {os.cpu_count()} cores"
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    return {"date": datetime.date.today().isoformat(), "commit": current_commit(), "device": device}
