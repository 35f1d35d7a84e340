"""Every command that the pages about the paper name is run by a test, at a tiny size on the CPU.

Those of docs/mbeir.md run from top to bottom (tests/demo), experiments one by one (test_reproduce), programs of `lab.paper`
here."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from genius.data.features import FeatureSet
from genius.features import Features
from lab.paper import given, page, published_report
from lab.paper.reproduce import listing

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("results/paper.md", "results/mbeir.md", "mbeir.md")
ELSEWHERE = {
    "published": "test_published.test_the_command_runs_rows_in_processes_and_goes_on",
    "published_report": "test_published.test_a_trial_writes_every_kind_of_row_and_a_second_call_goes_on",
}
TINY = {"model.decoder": "nano", "model.width": 8, "model.projection": 8, "model.hidden": 8, "encoder.steps": 2,
        "quantizer.steps": 2, "generator.steps": 2, "encoder.batch": 16, "quantizer.batch": 16, "generator.batch": 16,
        "model.level_sizes": [3, 4, 4]}  # fmt: skip


def text() -> str:
    return "\n".join((DOCS / name).read_text(encoding="utf-8") for name in PAGES)


def call(module: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [module, *words])
    importlib.import_module(f"lab.paper.{module}").main()


def fashion(folder: Path) -> Path:
    """Made-up fashion vectors of 60 products."""
    random = np.random.default_rng(0)
    folder.mkdir()
    products = 60
    np.save(folder / "images-0.npy", random.standard_normal((products, 10)).astype(np.float16))
    np.save(folder / "texts.npy", random.standard_normal((2 * products, 6)).astype(np.float16))
    asked = [(task, p) for task in range(4) for p in range(products)]
    queries = [(task, -1 if task in (0, 2) else p, products + p, [p], int(p < 25)) for task, p in asked]
    meta = {"titles": list(range(products)), "test": list(range(25)), "queries": queries, "texts": 2 * products}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return folder


def run_fair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [f"--set={name}={json.dumps(value)}" for name, value in TINY.items()]
    call(
        "fair", monkeypatch, "fashion", "--features", str(fashion(folder / "features")), "--output", str(folder / "fair.json"),
        "--tables", "table-4", "--rows", "GENIUS; w/o query augmentation", "--seeds", "0", "--processes", "1", *fields,
    )  # fmt: skip
    lines = json.loads((folder / "fair.json").read_text(encoding="utf-8"))["lines"]
    assert [line["row"] for line in lines] == ["GENIUS", "w/o query augmentation"]


def run_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are asked for by text: given the modality, dense search finds them; without it every text is nearer."""
    vectors = torch.nn.functional.normalize(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    zero = torch.zeros_like(vectors)
    yes, no = torch.ones(40, dtype=torch.bool), torch.zeros(40, dtype=torch.bool)
    pool = Features.cat([Features(vectors, zero, yes, no), Features(zero, vectors + 0.01, no, yes)])
    queries = Features(zero, vectors + 0.01, no, yes)
    pairs = torch.stack([torch.arange(40), torch.arange(40)], 1)
    names = [str(i) for i in range(80)]
    data = FeatureSet(queries, pool, pairs, names[:40], names, torch.zeros(40, dtype=torch.long), {0: "text->image"})
    monkeypatch.setattr(given, "load", lambda _: {"test": data})
    hits = {f"genius-r@{beams}": {"hit@5": {"text->image": 0.5}} for beams in (30, 50)}
    line = {"part": "published", "data": "icons", "seed": 0, "last": hits}
    (folder / "published.json").write_text(json.dumps({"lines": [line]}), encoding="utf-8")
    monkeypatch.setattr(given, "PUBLISHED", folder / "published.json")
    call("given", monkeypatch, "features", str(folder / "given.json"))
    body = json.loads((folder / "given.json").read_text(encoding="utf-8"))
    assert body["hit@5 of dense"]["given"]["text->image"] == 1.0
    assert [line["worst task"] for line in body["lines"]] == [0.5, 0.5]


def run_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = folder / "paper.md"
    monkeypatch.setattr(page, "PAGE", written)
    page.main()
    assert written.read_text(encoding="utf-8") == (DOCS / "results" / "paper.md").read_text(encoding="utf-8")


HERE: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {"fair": run_fair, "given": run_given, "page": run_page}


def test_every_program_that_the_pages_name_is_run_by_a_test() -> None:
    named = set(re.findall(r"lab\.paper\.(\w+)", text()))
    assert {"published", "fair", "page"} <= named <= {*HERE, *ELSEWHERE}
    for test in ELSEWHERE.values():
        module, _, name = test.partition(".")
        assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("program", HERE)
def test_a_program_runs_at_a_tiny_size(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    HERE[program](tmp_path, monkeypatch)


def test_every_experiment_that_the_pages_name_exists() -> None:
    """Each is run by test_reproduce."""
    named = set(re.findall(r"reproduce ([\w-]+)", text())) - {"NAME", "list", "refuses"}
    assert len(named) > 10 and named <= set(listing())


def test_the_report_and_the_page_read_the_same_file() -> None:
    assert published_report.RESULTS.is_file() and page.FOLDER == published_report.FOLDER
