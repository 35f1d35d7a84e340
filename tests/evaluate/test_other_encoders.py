"""Dense rows by other encoders (`--dense`), from the encoder to the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_encoder import FakeEncoder, register
from torch.nn.functional import normalize
from typer.testing import CliRunner

from genius.cli import app
from genius.data.features import FeatureSet
from genius.data.mbeir import MBeir
from genius.encoders import load_encoder
from genius.model.quantizer import score_fusion
from genius.types import format_text, load_image, query_text
from lab.__main__ import app as lab

World = Any  # tests/helpers/small_world.py


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Two encoders under names of the paper's tables."""
    register()
    found = {}
    for seed, name in enumerate(("BLIP-SF", "BLIP-FF")):
        found[name] = tmp_path / "encoders" / name
        FakeEncoder(24, seed).save(found[name])
    return found


def call(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output if code else json.loads(result.stdout.strip().splitlines()[-1])


def vectors_by_hand(folder: Path, data: MBeir) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors of all queries and candidates, one by one, from the encoder itself."""
    encoder = load_encoder(folder)

    def one(image: Any, text: str) -> torch.Tensor:
        vector = torch.zeros(24)
        if image is not None:
            vector = vector + encoder.encode_images([load_image(image)])[0]
        if text:
            vector = vector + encoder.encode_texts([text])[0]
        return vector

    asked = [one(judged.query.image, query_text(judged.query)) for judged in data.queries()]
    pool = [one(item.image, format_text(item.text or "")) for item in data.pool()]
    return normalize(torch.stack(asked)), normalize(torch.stack(pool))


def test_encoders_named_on_the_command_line_are_rows_of_the_evaluation(
    world: World, folders: dict[str, Path], seeing: None, tmp_path: Path
) -> None:
    named = [f"--dense={name}={path}" for name, path in folders.items()]
    arguments = [
        "eval", str(world.model), f"mbeir:{world.root}", "--methods", "dense", "--bootstrap", "0", "--pools", "local",
        "--cache", str(tmp_path / "cache"), "--json",
    ]  # fmt: skip
    found = call(*arguments, *named)["results"]
    assert {r["method"] for r in found} == {"dense", "BLIP-SF", "BLIP-FF"}
    assert len(list((tmp_path / "cache").iterdir())) == 3  # the model's, BLIP-SF, BLIP-FF
    mark = load_encoder(folders["BLIP-FF"]).fingerprint()[:12]
    data = FeatureSet.load(next(path for path in (tmp_path / "cache").iterdir() if mark in path.name))
    asked, pool = vectors_by_hand(folders["BLIP-FF"], MBeir(world.root))
    for features, by_hand in ((data.queries, asked), (data.pool, pool)):
        same = (score_fusion(features.to("cpu", torch.float32)) * by_hand).sum(1)
        assert same.min() > 0.99  # stored as fp16; large images are decoded at a smaller size
    asked, pool = (score_fusion(features.to("cpu", torch.float32)).double() for features in (data.queries, data.pool))
    per = {(r["method"], r["task"]): r["metrics"] for r in found}
    for number, task in data.names.items():
        rows, queries = data.pools[number].sort().values, (data.tasks == number).nonzero()[:, 0]
        scores = (asked[queries][:, None] * pool[rows][None]).sum(2)  # texts of unknown words are equal: ties go by row
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :5]
        gold = data.positives()
        hits = [bool(set(rows[top].tolist()) & set(gold[q])) for q, top in zip(queries.tolist(), best, strict=True)]
        assert per["BLIP-FF", task]["hit@5"] == pytest.approx(np.mean(hits)), task
    assert any(metrics != per["BLIP-SF", task] for (method, task), metrics in per.items() if method == "BLIP-FF")


@pytest.mark.parametrize("name", ["table-1", "table-2", "supplement-8", "supplement-9"])
def test_tables_of_the_paper_have_the_row_beside_the_papers(
    name: str, world: World, folders: dict[str, Path], tmp_path: Path
) -> None:
    """With features extracted beforehand, as one would for 5.6 million candidates."""
    extracted = tmp_path / "ff"
    runner = CliRunner().invoke(app, ["features", "extract", str(folders["BLIP-FF"]), str(world.root), str(extracted)])
    assert runner.exit_code == 0, runner.output
    done = CliRunner().invoke(
        lab, ["reproduce", name, "--data", str(world.test), "--model", str(world.model), f"--dense=BLIP-FF={extracted}",
        "--output", str(tmp_path / "out"), "--json"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert {"BLIP-FF", "score-fusion"} <= {r["method"] for r in found["results"]}
    text = (tmp_path / "out" / f"{name}.md").read_text()
    assert "| BLIP-FF |" in text and "| BLIP-FF (paper) |" in text
    absent = "for want of their encoders (--dense NAME=FEATURES): CLIP-FF, BLIP-SF."
    assert (absent in text) == (name == "supplement-9")  # the others show BLIP-FF only


def test_one_line_errors(world: World, folders: dict[str, Path], seeing: None, tmp_path: Path) -> None:
    start = ["eval", str(world.model), f"mbeir:{world.root}", "--cache", str(tmp_path / "cache")]
    narrow = ["eval", str(world.model), str(world.test)]
    for arguments, words in (
        ([*start, "--dense", "blip.pth"], "--dense takes NAME=URI"),
        ([*start, "--dense", "genius=blip.pth"], "with a name that is not in use"),
        ([*start, "--dense", f"X={tmp_path / 'gone.pth'}"], "no such model"),
        ([*narrow, "--dense", f"X={folders['BLIP-FF']}"], "holds features, not pictures and texts"),
        ([*narrow, "--dense", f"X={world.train}"], "belong to other queries or candidates than this evaluation"),
    ):
        lines = [line for line in call(*arguments, code=2).splitlines() if line.startswith("genius:")]
        assert len(lines) == 1 and words in lines[0], (arguments, lines)
