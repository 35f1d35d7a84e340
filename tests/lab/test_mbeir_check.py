"""A whole download of M-BEIR is whole, and each thing that goes wrong with one is one clear line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genius.errors import GeniusError
from lab.__main__ import app as lab
from lab.mbeir.check import Report, can_be_read, is_there, statistics, walk
from lab.mbeir.shapes import write_synthetic_mbeir

ROWS = ("mscoco_task0", "webqa_task1", "webqa_task2", "oven_task6", "infoseek_task6")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_mbeir(tmp_path_factory.mktemp("whole") / "M-BEIR", rows=ROWS, candidates=10, queries=6)


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "M-BEIR"))


def broken(root: Path, wanted: str) -> str:
    """The one line that says so."""
    report = walk(root, pictures=can_be_read)
    lines = [line for line in (*report.broken, *report.missing) if wanted in line]
    assert not report.sound and len(lines) == 1, (report.broken, report.missing)
    return lines[0]


def others(report: Report) -> list[str]:
    return [line for line in report.missing if "no queries of" not in line]  # only five of the sixteen tasks are here


def test_a_whole_download(whole: Path) -> None:
    report = walk(whole, pictures=can_be_read)
    assert report.broken == [] and others(report) == []
    counts = report.queries["union_train"]
    assert {key: c.queries for key, c in counts.items()} == dict.fromkeys(counts, 6) and set(counts) == set(ROWS)
    assert sum(c.occurrences for c in counts.values()) == 30 + 12  # WebQA's twelve are drawn again
    assert report.queries["test"]["oven_task6"].elsewhere > 0  # InfoSeek's candidates, which are no mistake
    assert report.pools["cand_pool/global/mbeir_union_test_cand_pool.jsonl"] == 50
    assert report.pictures > 10 and sum(report.sizes.values()) > 1000
    table = statistics(report)
    assert "| q_t -> c_t | WebQA | 6 | 6 | 6 |" in table and table.splitlines()[-1].startswith("| all |  | 30 | 30 | 30 |")


def test_a_truncated_file(root: Path) -> None:
    path = root / "cand_pool/local/mbeir_webqa_task2_cand_pool.jsonl"
    text = path.read_text()
    path.write_text(text[: int(len(text) * 0.55)])
    report = walk(root)
    said = [line for line in report.broken if line.startswith("cand_pool/local/mbeir_webqa_task2")]
    assert said == ["cand_pool/local/mbeir_webqa_task2_cand_pool.jsonl: 1 lines are not JSON (e.g. line 6)"]
    assert any("are in no local pool" in line for line in report.broken)  # what was lost is in the union file


def test_a_missing_pool(root: Path) -> None:
    (root / "cand_pool/local/mbeir_webqa_task1_cand_pool.jsonl").unlink()
    report = walk(root)
    assert [line for line in others(report) if "test queries" in line] == [
        "cand_pool/local/mbeir_webqa_task1_cand_pool.jsonl: needed by the test queries of webqa_task1"
    ]
    (root / "cand_pool/global/mbeir_union_train_cand_pool.jsonl").unlink()
    report = walk(root)
    assert any("mbeir_union_train_cand_pool.jsonl: needed by the train queries of" in line for line in report.missing)


def test_an_answer_in_no_pool(root: Path) -> None:
    path = root / "qrels/test/mbeir_webqa_task1_test_qrels.txt"
    lines = [line.split() for line in path.read_text().splitlines()]
    first = lines[0][0]
    path.write_text("".join(" ".join([q, z, "2:999" if q == first else d, *r]) + "\n" for q, z, d, *r in lines))
    assert broken(root, "in any pool").endswith(f"1 queries have no positive in any pool (e.g. {first} -> 2:999)")


def test_ids_that_occur_twice(root: Path) -> None:
    path = root / "cand_pool/local/mbeir_webqa_task1_cand_pool.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[2] + "\n")
    assert "1 candidate ids occur twice" in broken(root, "candidate ids")
    path = root / "query/val/mbeir_oven_task6_val.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    assert "1 query ids occur twice" in broken(root, "mbeir_oven_task6_val.jsonl: ")
    path = root / "query/union_train/mbeir_union_up_train.jsonl"
    row = json.loads(path.read_text().splitlines()[0])
    row["query_txt"] = "something else"
    path.write_text(path.read_text() + json.dumps(row) + "\n")
    assert "1 query ids stand for different queries" in broken(root, "up_train")


def test_pictures_that_are_missing_or_cannot_be_read(root: Path) -> None:
    pictures = sorted((root / "mbeir_images/oven_images").glob("*.jpg"))
    pictures[0].unlink()
    pictures[1].write_bytes(pictures[1].read_bytes()[:60])
    assert any("1 images are missing" in line for line in walk(root, pictures=is_there).broken)
    report = walk(root, pictures=can_be_read)
    assert any("1 images cannot be read" in line and pictures[1].name in line for line in report.broken)
    assert not any("pictures" in line for line in walk(root).broken)


def test_pointers_of_git_lfs_and_no_download_at_all(root: Path, tmp_path: Path) -> None:
    path = root / "query/test/mbeir_webqa_task1_test.jsonl"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    assert "git lfs pull" in broken(root, "webqa_task1_test.jsonl is a Git LFS pointer")
    with pytest.raises(GeniusError, match="no download of M-BEIR"):
        walk(tmp_path / "nothing")


def test_a_part_of_the_real_pools_is_lost(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.mbeir import check as mbeir_check

    sizes = dict.fromkeys(mbeir_check.POOL_SIZES, 10) | {"webqa_task1": 12}
    monkeypatch.setattr(mbeir_check, "POOL_SIZES", sizes)
    assert "has 10 candidates, the published one 12" in broken(root, "a part is lost")


def test_the_commands(root: Path, tmp_path: Path) -> None:
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
