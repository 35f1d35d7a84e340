"""System calls that fail at any place of any operation that writes: a sample. All of them: `lab/results/durability`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import faults
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and a C compiler")


def test_a_sample_of_failing_calls_loses_nothing(tmp_path: Path) -> None:
    shim = faults.compile_shim(tmp_path)
    place = tmp_path / "injections"
    place.mkdir()
    command = [sys.executable, "-W", "ignore", faults.__file__, str(place), "7"]
    done = subprocess.run(command, env=faults.preloaded(shim), capture_output=True, text=True, timeout=280)
    assert done.stdout.splitlines() == ["finished"], done.stdout + done.stderr[-2000:]
