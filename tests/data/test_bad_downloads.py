"""`genius features extract` on downloads that went wrong: one clear line, status 2, and what was done is kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shapes_encoder import ShapesEncoder
from typer.testing import CliRunner

from genius.cli import app
from genius.data.features import FeatureSet
from lab.mbeir.shapes import write_synthetic_mbeir

POOL = "cand_pool/local/mbeir_webqa_task1_cand_pool.jsonl"
QRELS = "qrels/test/mbeir_webqa_task1_test_qrels.txt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "M-BEIR"
    return write_synthetic_mbeir(root, rows=("mscoco_task0", "webqa_task1"), candidates=12, queries=4, splits=("test",))


@pytest.fixture(autouse=True)
def quick_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.encoders.load_encoder", lambda *_: ShapesEncoder(16))


def extract(root: Path, output: Path, *more: str) -> Any:
    arguments = ["features", "extract", "any", f"mbeir:{root}", str(output), "--rows", "4", "--batch", "4", *more]
    return CliRunner().invoke(app, arguments)


def truncated(root: Path) -> None:
    text = (root / POOL).read_text()
    (root / POOL).write_text(text[: int(0.6 * len(text))])


def no_pool(root: Path) -> None:
    (root / POOL).unlink()


def answered_by_nothing(root: Path) -> None:
    lines = (root / QRELS).read_text().splitlines()
    first = lines[0].split()[0]
    changed = [" ".join([*line.split()[:2], "2:999", *line.split()[3:]]) if line.split()[0] == first else line for line in lines]
    (root / QRELS).write_text("\n".join(changed) + "\n")


def doubled(root: Path) -> None:
    for name in (POOL, "cand_pool/global/mbeir_union_test_cand_pool.jsonl"):
        (root / name).write_text((root / name).read_text() + (root / name).read_text().splitlines()[0] + "\n")


def doubled_in_its_own_pool(root: Path) -> None:
    (root / POOL).write_text((root / POOL).read_text() + (root / POOL).read_text().splitlines()[0] + "\n")


def lost_picture(root: Path) -> None:
    sorted((root / "mbeir_images").rglob("*.jpg"))[0].unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (truncated, "not JSON"),
        (no_pool, "is missing"),
        (answered_by_nothing, "2:999"),
        (doubled, "twice"),
        (doubled_in_its_own_pool, "1 candidate ids of the pool of webqa_task1 occur twice (e.g. "),
        (lost_picture, "images are missing"),
    ],
)
def test_one_clear_line_before_anything_is_encoded(spoil: Callable[[Path], None], said: str, whole: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(whole, tmp_path / "M-BEIR"))
    spoil(root)
    result = extract(root, tmp_path / "features")
    lines = [line for line in result.stderr.splitlines() if line.startswith("genius: ")]
    assert result.exit_code == 2 and len(lines) == 1 and said in lines[0], result.output
    assert "Traceback" not in result.output and not FeatureSet.is_folder(tmp_path / "features")
    shutil.rmtree(root)
    shutil.copytree(whole, root)  # mended: the same command goes through
    assert extract(root, tmp_path / "features").exit_code == 0


def test_an_unreadable_picture_stops_late_and_nothing_is_done_twice(whole: Path, tmp_path: Path, monkeypatch: Any) -> None:
    root = Path(shutil.copytree(whole, tmp_path / "M-BEIR"))
    last = [json.loads(line)["img_path"] for line in (root / "cand_pool/local/mbeir_mscoco_task0_test_cand_pool.jsonl").open()][
        -1
    ]
    good = (root / last).read_bytes()
    (root / last).write_bytes(good[:40])
    result = extract(root, tmp_path / "features")
    assert result.exit_code == 2 and result.stderr.count("genius: ") == 1 and "cannot" in result.stderr, result.output
    assert result.stderr.splitlines()[-1].startswith("genius: ") and "\r" not in result.stderr  # not behind a line of progress
    done = len(list((tmp_path / "features" / "progress").glob("*.json")))
    assert done > 0
    (root / last).write_bytes(good)
    seen: list[int] = []
    real = ShapesEncoder.encode_images
    monkeypatch.setattr(ShapesEncoder, "encode_images", lambda self, images: seen.append(len(images)) or real(self, images))
    assert extract(root, tmp_path / "features").exit_code == 0
    assert extract(whole, tmp_path / "whole").exit_code == 0
    kept, expected = (FeatureSet.load(tmp_path / name) for name in ("features", "whole"))
    assert torch.equal(kept.pool.image, expected.pool.image) and torch.equal(kept.queries.text, expected.queries.text)
    assert sum(seen) < 2 * int(expected.pool.image_mask.sum())  # the second call did not begin anew
