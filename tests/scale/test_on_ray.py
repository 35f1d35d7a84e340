"""On a real Ray of this machine, one for all tests here: two workers, one of which is killed; and how it is without the extra."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from genius.index import Index
from genius.index.check import check
from genius.index.ingest import IngestConfig, ingest
from genius.scale.bulk import BulkConfig, bulk_index
from genius.scale.cluster import connected
from genius.scale.staging import RECORDS, Staging
from lab.ray.compare import differences, make_sources
from lab.ray.processes import mark, marked


@pytest.fixture(scope="session")
def ray() -> Iterator[None]:
    pytest.importorskip("ray", reason="needs the extra: pip install 'genius-search[ray]'")
    mark()
    with connected("local", 2):
        yield


def kill_a_worker(output: Path, killed: list[int]) -> None:
    """Once a part is done, so that some are and some are not."""
    deadline = time.monotonic() + 120
    while not list((Staging(output).folder / RECORDS).glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in marked("ray::PartWriter")[:1]:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_two_workers_one_of_them_killed_make_the_same_index(tmp_path: Path, ray: None) -> None:
    ids = make_sources(tmp_path / "sources", rows=120, pictures=8)
    config = IngestConfig(batch_size=16)
    killed: list[int] = []
    output = tmp_path / "bulk.genius"
    killer = threading.Thread(target=kill_a_worker, args=(output, killed))
    killer.start()
    told: list[int] = []
    how = BulkConfig(workers=2, part_rows=16)
    report = bulk_index([tmp_path / "sources"], output, "bundled:mini", config, how, lambda done, _: told.append(done))
    killer.join()
    assert killed and not report.failed and report.report.added == len(ids) and sum(told) >= len(ids)
    assert [line.partition(":")[0] for line in sorted(report.report.problems)] == [
        "sources/pictures/broken.png", "sources/pictures/empty.jpg",
    ]  # fmt: skip
    plain = Index(tmp_path / "plain.genius", "bundled:mini")
    ingest(plain, [tmp_path / "sources"], config)
    with Index.open(output) as opened:
        found = differences(plain, opened)
    assert found["only_in_one"] == found["other_columns"] == 0
    assert found["codes"] <= 1, found  # batches that a kill cut otherwise may round otherwise
    assert not check(output).problems


BLOCKED = "import sys; sys.modules.update(ray=None); from genius.cli import main; main()"


def test_without_the_extra_all_else_works_and_the_option_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words")
    plain = [sys.executable, "-c", BLOCKED, "index", str(tmp_path / "a.txt"), "-o", str(tmp_path / "a.genius")]
    assert subprocess.run(plain, capture_output=True, text=True, timeout=240).returncode == 0
    asked = subprocess.run([*plain, "--ray"], capture_output=True, text=True, timeout=240)
    assert asked.returncode == 2 and "genius-search[ray]" in asked.stderr and "Traceback" not in asked.stderr
