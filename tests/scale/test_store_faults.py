"""Requests to an object store that fail at any place: a sample. All of them: `python -m lab.durability.faults`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import store_faults

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")


def test_a_sample_of_failing_requests_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", store_faults.__file__, str(tmp_path), "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.stdout.splitlines() == ["finished"], done.stdout + done.stderr[-2000:]
