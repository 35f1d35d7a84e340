"""A whole download of M-BEIR is whole and is counted; a part that is lost is one line. What else can be wrong with a download is
in tests/data/test_bad_downloads.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genius.data.mbeir import MBeir, splits_there
from lab.__main__ import app as lab
from lab.mbeir import check
from lab.mbeir.check import count_split, lost_parts, statistics
from lab.mbeir.shapes import write_synthetic_mbeir

ROWS = ("mscoco_task0", "webqa_task1", "webqa_task2", "oven_task6", "infoseek_task6")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_mbeir(tmp_path_factory.mktemp("whole") / "M-BEIR", rows=ROWS, candidates=10, queries=6)


def test_queries_positives_and_candidates_are_counted(whole: Path) -> None:
    counts = {split: count_split(MBeir(whole, split=split)) for split in splits_there(whole)}
    assert {key: count.queries for key, count in counts["test"].items()} == dict.fromkeys(ROWS, 6)
    assert {key: count.candidates for key, count in counts["test"].items()} == dict.fromkeys(ROWS, 10)
    table = statistics(counts)
    assert "| q_t -> c_t | WebQA | 6 | 6 | 6 |" in table and table.splitlines()[-1].startswith("| all |  | 30 | 30 | 30 |")


def test_a_part_of_the_real_pools_is_lost(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = count_split(MBeir(whole, split="test"))
    assert lost_parts(tests) == []  # no pool has the published size: another set in this layout
    monkeypatch.setattr(check, "POOL_SIZES", dict.fromkeys(check.POOL_SIZES, 10) | {"webqa_task1": 12})
    (line,) = lost_parts(tests)
    assert "webqa_task1 has 10 candidates, the published one 12" in line


def test_the_commands(tmp_path: Path) -> None:
    def run(module: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, timeout=120)

    folder = tmp_path / "made"
    made = CliRunner().invoke(lab, ["shapes", str(folder), "--candidates", "8", "--queries", "2"])
    assert made.exit_code == 0 and "16 tasks" in made.output
    assert CliRunner().invoke(lab, ["shapes", str(folder)]).exit_code == 2  # it is not empty
    good = run("lab", "check-mbeir", str(folder), "--table", str(tmp_path / "table.md"))
    assert good.returncode == 0 and "is whole" in good.stdout, good.stderr
    assert (tmp_path / "table.md").read_text() in good.stdout
    thin = run("genius", "data", "check", f"mbeir:{folder}")
    assert thin.returncode == 0 and thin.stdout.count("; complete") == 5, thin.stderr  # every split
    (folder / "instructions/query_instructions.tsv").write_text("nothing\n")
    for bad in (run("lab", "check-mbeir", str(folder)), run("genius", "data", "check", f"mbeir:{folder}")):
        assert bad.returncode == 2 and bad.stderr.count("\n") == 1 and "Traceback" not in bad.stderr
        assert "broken" in bad.stderr or "instruction" in bad.stderr
