"""`genius eval` and `genius features extract` end to end: files, tables, JSON, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trec import read_run
from typer.testing import CliRunner

from genius.cli import app
from genius.data.features import FeatureSet
from genius.data.mbeir import ROWS
from genius.ranking import judge, per_query

World = Any  # tests/helpers/small_world.py


def call(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


def test_report_files_agree_with_each_other(world: World, tmp_path: Path) -> None:
    result = call(
        "eval", str(world.model), str(world.test), "--methods", "dense,genius,genius-r,no-decoder,default,codes",
        "--tasks", "infoseek_task8,mscoco_task0,visualnews_task0",
        "--beams", "4,8", "--output", str(tmp_path / "r"), "--bootstrap", "50", "--rerank", "20", "--json",
    )  # fmt: skip
    body = json.loads(result.stdout.strip().splitlines()[-1])
    methods = {r["method"] for r in body["results"]}
    assert {"dense", "genius@4", "genius@8", "genius-r@8", "no-decoder@4", "default", "codes"} <= methods
    assert len(body["results"]) == 2 * 3 * len(methods)
    # the TREC files give the same numbers again, read by nothing but ids
    data = FeatureSet.load(world.test)
    place = {name: row for row, name in enumerate(data.pool_ids)}
    for entry in body["results"]:
        if entry["task"] not in ("mscoco_task0", "infoseek_task8") or entry["method"] not in ("genius@8", "dense"):
            continue
        run = read_run(tmp_path / "r" / "runs" / f"{entry['task']}.{entry['pool']}.{entry['method']}.trec")
        qrels: dict[str, list[int]] = {}
        for line in (tmp_path / "r" / "qrels" / f"{entry['task']}.{entry['pool']}.trec").read_text().splitlines():
            qrels.setdefault(line.split()[0], []).append(place[line.split()[2]])
        rows = np.full((len(qrels), 50), -1)
        for i, query in enumerate(qrels):
            ranked = [place[name] for name, _ in run.get(query, [])]
            rows[i, : len(ranked)] = ranked
        again = per_query(judge(rows, list(qrels.values())), (1, 5, 10))
        for name, value in entry["metrics"].items():
            assert again[name].mean() == pytest.approx(value), (entry["task"], entry["method"], name)
    text = (tmp_path / "r" / "results.md").read_text()
    order = [text.index(f"| {name} |") for name in ("VisualNews", "MSCOCO", "InfoSeek")]
    assert order == sorted(order)  # the paper's order
    assert "Task-specific pools" in text and "Universal pool" in text
    assert json.loads((tmp_path / "r" / "results.json").read_text())["results"] == body["results"]


def test_markdown_on_stdout(world: World, tmp_path: Path) -> None:
    result = call(
        "eval", str(world.model), f"features:{world.test}", "--methods", "dense,genius", "--tasks", "cirr_task7,webqa_task1",
        "--pools", "universal", "--beams", "4", "-o", str(tmp_path), "--bootstrap", "0", "--queries", "5",
    )  # fmt: skip
    assert "| q_(i,t) → c_i | CIRR | R@5 |" in result.stdout and "10 queries" in result.stdout


def test_one_line_errors(world: World, tmp_path: Path) -> None:
    for arguments, words in (
        (["eval", str(world.model), str(world.test), "--methods", "bm25"], "unknown method 'bm25'"),
        (["eval", str(world.model), str(world.root)], "has no encoder"),
        (["eval", str(world.model), str(tmp_path / "gone")], "no encoder"),
        (["eval", str(world.model), str(world.test), "--beams", "many"], "whole numbers"),
        (["eval", str(world.model), str(world.test), "--pools", "deep"], "--pools must be local"),
        (["eval", str(tmp_path / "none"), str(world.test)], "no such model"),
    ):
        result = CliRunner().invoke(app, arguments)
        lines = [line for line in result.output.splitlines() if line.startswith("genius:")]
        assert result.exit_code == 2 and len(lines) == 1 and words in lines[0], (arguments, result.output)


def test_feature_widths_must_fit(world: World, tmp_path: Path) -> None:
    from genius.data.synthetic import synthetic_features

    synthetic_features(10, 20, 8).save(tmp_path / "narrow")
    result = call("eval", str(world.model), str(tmp_path / "narrow"), code=2)
    assert "features are [8] wide, the model expects 32" in result.output


def test_list_of_methods() -> None:
    text = call("eval", "--list").stdout
    assert "genius-r" in text and "default-codes" in text


def test_extraction_command(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shapes_encoder import ShapesEncoder

    monkeypatch.setattr("genius.encoders.load_encoder", lambda uri, device="cpu", share=0: ShapesEncoder(32))
    result = call("features", "extract", "shapes", f"mbeir:{world.root}", str(tmp_path / "f"), "--fp32", "--json")
    body = json.loads(result.stdout.strip().splitlines()[-1])
    assert body["complete"] and body["queries"] == 16 * 8 and sum(body["candidates"].values()) == 16 * 14
    mine, theirs = FeatureSet.load(tmp_path / "f"), FeatureSet.load(world.test)
    assert mine.pool_ids == theirs.pool_ids and (mine.pool.image == theirs.pool.image).all()
    assert set(mine.names.values()) == set(ROWS)
    missing = call("features", "extract", "shapes", str(world.root), str(tmp_path / "val"), "--split", "val", code=2)
    assert "no M-BEIR queries" in missing.output


@pytest.mark.usefixtures("seeing")
def test_a_models_own_encoder_extracts_into_the_cache(world: World, tmp_path: Path) -> None:
    arguments = ["eval", str(world.model), f"mbeir:{world.root}", "--methods", "dense", "--bootstrap", "0", "--json"]
    one = json.loads(call(*arguments, "--cache", str(tmp_path)).stdout.strip().splitlines()[-1])
    two = json.loads(call("eval", str(world.model), str(world.test), *arguments[3:]).stdout.strip().splitlines()[-1])
    assert [(r["task"], r["pool"]) for r in one["results"]] == [(r["task"], r["pool"]) for r in two["results"]]
    for a, b in zip(one["results"], two["results"], strict=True):  # the cache holds fp16: near ties may change places
        assert a["metrics"]["ndcg@10"] == pytest.approx(b["metrics"]["ndcg@10"], abs=0.1)
    folders = list(tmp_path.iterdir())
    assert len(folders) == 1 and FeatureSet.is_folder(folders[0])


@pytest.mark.usefixtures("seeing")
def test_how_the_encoder_runs_is_said_before_it_does(world: World, tmp_path: Path) -> None:
    arguments = ["eval", str(world.model), f"mbeir:{world.root}", "--methods", "dense", "--bootstrap", "0", "--json"]
    arguments += ["--cache", str(tmp_path), "--precision", "bf16", "--encode-batch", "16"]
    told = " ".join(call(*arguments).stderr.split())  # lines are wrapped
    assert "bf16, batches of 16, no worker processes" in told and "genius features extract" in told
    assert [folder.name.endswith("-bf16") for folder in tmp_path.iterdir()] == [True]  # fp32 features never meet bf16 ones
    assert "worker processes" not in call(*arguments).stderr  # they are there
    assert "--precision must be" in call(*arguments[:3], "--precision", "fp8", code=2).output
