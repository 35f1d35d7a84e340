"""On a real Ray of this machine, one for all tests here: two workers, one of which is killed; and how it is without the extra."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from index_differences import differences, make_sources
from ray_processes import mark, marked

from genius.errors import GeniusError
from genius.index import Index
from genius.index.check import check
from genius.index.ingest import IngestConfig, ingest
from genius.scale.bulk import BulkConfig, bulk_index, connected


@pytest.fixture(scope="session")
def ray() -> Iterator[None]:
    pytest.importorskip("ray", reason="needs the extra: pip install 'genius-search[ray]'")
    mark()
    with connected("local", 2):
        yield


def kill_a_worker(told: list[int], killed: list[int]) -> None:
    """Once a batch is done, so that some are and some are not."""
    deadline = time.monotonic() + 120
    while not told and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in marked("ray::BatchEncoder")[:1]:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_two_workers_one_of_them_killed_make_the_same_index(tmp_path: Path, ray: None) -> None:
    ids = make_sources(tmp_path / "sources", rows=1200, pictures=8)
    config = IngestConfig(batch_size=32)
    killed: list[int] = []
    output = tmp_path / "bulk.genius"
    told: list[int] = []
    killer = threading.Thread(target=kill_a_worker, args=(told, killed))
    killer.start()
    how = BulkConfig(workers=2)
    report = bulk_index([tmp_path / "sources"], output, "bundled:mini", config, how, told.append)
    killer.join()
    assert killed and report.report.added == len(ids) and sum(told) >= len(ids)
    assert [line.partition(":")[0] for line in sorted(report.report.problems)] == [
        "sources/pictures/broken.png", "sources/pictures/empty.jpg",
    ]  # fmt: skip
    plain = Index(tmp_path / "plain.genius", "bundled:mini")
    ingest(plain, [tmp_path / "sources"], config)
    with Index.open(output) as opened:
        assert set(differences(plain, opened).values()) == {0}  # to the last bit of a vector, and after a kill
    assert not check(output).problems


def test_a_cluster_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise TimeoutError("the node did not come up\nin time")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    with pytest.raises(GeniusError, match=r"at 'local': the node did not come up in time$"), connected("local", 1):
        pass


WITHOUT = """
import sys
from genius.cli import main
def run(*arguments):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        return end.code
    return 0
source, index = sys.argv[1:]
assert not run("index", source, "-o", index) and not run("search", index, "words") and not run("info", index)
assert "ray" not in sys.modules
sys.modules["ray"] = None  # as if it were not installed
assert not run("index", source, "-o", index)
assert run("index", source, "-o", index + "2", "--ray", "local") == 2
"""


def test_without_the_extra_nothing_of_it_is_loaded_and_the_option_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words")
    command = [sys.executable, "-c", WITHOUT, str(tmp_path / "a.txt"), str(tmp_path / "a.genius")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("genius-search[ray]") == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "a.genius2").exists()


def test_no_other_extra_installs_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    of_ray = re.compile(r"(ray|pylance|lance-ray)\b|genius-search\[[^]]*\bray\b", re.IGNORECASE)
    assert {name for name, wanted in lists.items() if any(of_ray.match(one) for one in wanted)} == {"ray"}
