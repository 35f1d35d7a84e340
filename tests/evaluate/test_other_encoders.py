"""Dense rows by other encoders (`--dense`): UniIR's checkpoints, from the file to the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize
from typer.testing import CliRunner

from genius.cli import app
from genius.data.features import FeatureSet
from genius.data.mbeir import MBeir
from genius.encoders import load_encoder
from genius.model.quantizer import score_fusion
from genius.types import format_text, load_image, query_text
from lab.__main__ import app as lab

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from uniir_layouts import blip, write_checkpoint

pytest.importorskip("transformers")
World = Any  # tests/helpers/small_world.py


@pytest.fixture
def checkpoints(tmp_path: Path) -> dict[str, Path]:
    kinds = ("sf", "ff")
    return {f"BLIP-{kind.upper()}": write_checkpoint(blip(kind), tmp_path / "uniir" / f"blip_{kind}_large.pth") for kind in kinds}


def call(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output if code else json.loads(result.stdout.strip().splitlines()[-1])


def vectors_by_hand(path: Path, data: MBeir) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors of all queries and candidates, one by one, from the encoder itself."""
    encoder: Any = load_encoder(f"uniir:{path}")

    def one(image: Any, text: str) -> torch.Tensor:
        return encoder.encode_pairs([None if image is None else load_image(image)], [text])[0]

    asked = [one(judged.query.image, query_text(judged.query)) for judged in data.queries()]
    pool = [one(item.image, format_text(item.text or "")) for item in data.pool()]
    return normalize(torch.stack(asked)), normalize(torch.stack(pool))


def test_encoders_named_on_the_command_line_are_rows_of_the_evaluation(
    world: World, checkpoints: dict[str, Path], seeing: None, tmp_path: Path
) -> None:
    named = [f"--dense={name}=uniir:{path}" for name, path in checkpoints.items()]
    arguments = [
        "eval", str(world.model), f"mbeir:{world.root}", "--methods", "dense", "--bootstrap", "0", "--pools", "local",
        "--cache", str(tmp_path / "cache"), "--json",
    ]  # fmt: skip
    found = call(*arguments, *named)["results"]
    assert {r["method"] for r in found} == {"dense", "BLIP-SF", "BLIP-FF"}
    assert len(list((tmp_path / "cache").iterdir())) == 3  # the model's, BLIP-SF, BLIP-FF
    mark = load_encoder(f"uniir:{checkpoints['BLIP-FF']}").fingerprint()[:12]
    data = FeatureSet.load(next(path for path in (tmp_path / "cache").iterdir() if mark in path.name))
    asked, pool = vectors_by_hand(checkpoints["BLIP-FF"], MBeir(world.root))
    assert torch.allclose(score_fusion(data.queries.to("cpu", torch.float32)), asked, atol=1e-3)  # stored as fp16
    assert torch.allclose(score_fusion(data.pool.to("cpu", torch.float32)), pool, atol=1e-3)
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
def test_tables_of_the_paper_have_the_row_beside_the_papers(name: str, world: World, tmp_path: Path) -> None:
    """With features extracted beforehand, as one would for 5.6 million candidates."""
    path = write_checkpoint(blip("ff"), tmp_path / "uniir" / "blip_ff_large.pth")
    extracted = tmp_path / "ff"
    runner = CliRunner().invoke(app, ["features", "extract", f"uniir:{path}", str(world.root), str(extracted)])
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
    absent = "for want of their encoders (--dense NAME=uniir:FILE.pth): CLIP-FF, BLIP-SF."
    assert (absent in text) == (name == "supplement-9")  # the others show BLIP-FF only


def test_one_line_errors(world: World, checkpoints: dict[str, Path], seeing: None, tmp_path: Path) -> None:
    start = ["eval", str(world.model), f"mbeir:{world.root}", "--cache", str(tmp_path / "cache")]
    narrow = ["eval", str(world.model), str(world.test)]
    for arguments, words in (
        ([*start, "--dense", "blip.pth"], "--dense takes NAME=URI"),
        ([*start, "--dense", "genius=blip.pth"], "with a name that is not in use"),
        ([*start, "--dense", f"X={tmp_path / 'gone.pth'}"], "no such model"),
        ([*narrow, "--dense", f"X=uniir:{checkpoints['BLIP-FF']}"], "holds features, not pictures and texts"),
        ([*narrow, "--dense", f"X={world.train}"], "belong to other queries or candidates than this evaluation"),
    ):
        lines = [line for line in call(*arguments, code=2).splitlines() if line.startswith("genius:")]
        assert len(lines) == 1 and words in lines[0], (arguments, lines)
