"""The front program: it measures what it says on a small collection, and its page says what the files say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from genius import Genius
from lab.front import report, run
from lab.front.data import Collection, Filler, questions, write


def small(folder: Path) -> Collection:
    random = torch.Generator().manual_seed(0)
    model = Genius.from_pretrained("bundled:mini")
    z = torch.nn.functional.normalize(torch.randn(240, 256, generator=random), dim=1)
    kind = torch.arange(240) % 3
    asked = torch.nn.functional.normalize(z[:12] + 0.02 * torch.randn(12, 256, generator=random), dim=1)
    pairs = torch.stack([torch.arange(12), torch.arange(12)], 1)
    tasks = {0: "text->image", 1: "text->text", 2: "text->pair"}
    write(folder, z, kind, model.quantizer.encode(z, kind), "bundled:mini", questions(asked, kind[:12], tasks, pairs, kind))
    return Collection.open(folder)


def test_a_small_front_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    collection = small(tmp_path / "small")
    Filler(collection, tmp_path / "filled", 400).run(recombined=True)
    filled = Collection.open(tmp_path / "filled")
    assert len(filled.z) == 400 and (filled.z[:240] == collection.z).all()
    assert np.allclose(np.linalg.norm(filled.z.astype(np.float32), axis=1), 1, atol=1e-2)
    monkeypatch.setattr(run, "ADDED", 20)
    monkeypatch.setattr(run, "OURS", run.OURS[:1] + run.OURS[-1:])
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["run", str(tmp_path / "filled"), "--out", str(out), "--rivals", "flat,nobody"])
    run.main()
    body = json.loads(out.read_text())
    by_name = {line["name"]: line for line in body["lines"]}
    assert by_name["Faiss flat"]["recall@10"] == 1.0 and by_name["Faiss flat"]["hit@5"] == 1.0
    assert by_name["ours, vectors on disk"]["recall@10"] == 1.0  # so few are compared whole
    assert by_name["ours, codes only"]["bytes_per_item"] > 10 and "failed" in by_name["nobody"]
    assert body["of_the_wanted_kind"] == int((filled.kind == 0).sum())
    table = "\n".join(report.table(body))
    assert "**ours, codes only**" in table and "nobody" in table


def test_the_page_says_what_the_files_say() -> None:
    assert (report.DOCS / "compare.md").read_text(encoding="utf-8") == report.page(), "python -m lab.front.report"
