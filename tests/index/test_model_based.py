"""Two writers, four readers and a service at once, with kills, against a dictionary. More: `lab/results/durability`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import faults
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and a C compiler")


def test_a_thousand_operations_of_seven_processes_agree_with_a_dictionary(tmp_path: Path) -> None:
    shim = faults.compile_shim(tmp_path)
    place = tmp_path / "run"
    place.mkdir()
    command = [sys.executable, "-W", "ignore", str(Path(faults.__file__).with_name("model_based.py")), str(place), "1", "1000"]
    done = subprocess.run(command, env=faults.preloaded(shim), capture_output=True, text=True, timeout=500)
    assert done.stdout, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["violations"] == []
    assert found["operations"] >= 1000 and found["acknowledged_changes"] > 100 and found["kills"] > 0
