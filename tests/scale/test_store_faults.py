"""Requests to an object store that fail at any place: a sample. All of them: `lab/results/durability`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import object_store
import pytest
import store_faults
from fake_encoder import fake_model

from genius import Index, Item
from genius.index.check import check
from genius.scale.objects import fetch_index, publish

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")


def test_a_sample_of_failing_requests_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", store_faults.__file__, str(tmp_path), "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.stdout.splitlines() == ["finished"], done.stdout + done.stderr[-2000:]


def test_what_a_killed_fetch_left_is_removed_by_the_next(tmp_path: Path) -> None:
    url = "s3://shelf/x.genius"
    copy = tmp_path / "copy.genius"
    with object_store.running():
        with Index(tmp_path / "x.genius", fake_model()) as index:
            index.add([Item("1", text="one")])
        publish(tmp_path / "x.genius", url)
        (copy / "model").mkdir(parents=True)
        (copy / "items.lance").mkdir()
        left = [copy / ".genius.json.75-139", copy / "model" / ".weights.75-139", copy / "items.lance" / ".data.75-139"]
        for path in left:
            path.write_bytes(b"half")
        (copy / ".fetching").touch()
        fetch_index(url, copy)
    assert not [path for path in left if path.exists()]
    assert (copy / ".fetching").exists() and check(copy).ok
