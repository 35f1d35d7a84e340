"""An index that stores codes and no vectors: ranked by codes, written, copied, checked and repaired like any other; and what
needs vectors says so in one line."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from genius import Genius, GeniusError, Index, Item, Modality, Query
from genius.cli import app
from genius.fit.reencode import reencode
from genius.index import opened
from genius.index.check import check
from genius.index.folder import about_of
from genius.index.paths import ABOUT
from genius.index.repair import repair
from genius.search import SearchParams

NEEDS = "stores no vectors, only codes"


def texts(n: int, first: int = 0) -> list[Item]:
    return [Item(f"t{i}", text=f"word{i % 7} thing{i}", metadata={"rank": i}) for i in range(first, first + n)]


@pytest.fixture
def codes_only(model: Genius, tmp_path: Path) -> Index:
    index = Index(tmp_path / "codes.genius", model, lock_timeout=5, vectors=False)
    index.add(texts(60))
    return index


def by_codes(index: Index, model: Genius, text: str) -> dict[str, float]:
    """Brute force: similarity of a query to what the codes of every item stand for."""
    z = model.embed_queries([Query(text, target=Modality.TEXT)]).z
    ids = [item.id for item in index.items()]
    codes = np.array([index.codes(item_id) for item_id in ids])
    sums = torch.nn.functional.normalize(model.quantizer.decode(torch.from_numpy(codes)), dim=1)
    return dict(zip(ids, (sums @ z[0]).tolist(), strict=True))


def test_it_ranks_by_codes_and_stores_no_vectors(codes_only: Index, model: Genius) -> None:
    expected = by_codes(codes_only, model, "word3 thing10")
    found = codes_only.search("word3 thing10", target="text", k=60, item_bias=False)
    assert len(found) == 60 and found.plan == "flat"
    assert [hit.score for hit in found] == pytest.approx(sorted(expected.values(), reverse=True), abs=1e-5)
    assert [hit.score for hit in found] == pytest.approx([expected[hit.id] for hit in found], abs=1e-5)
    assert "_embedding" not in codes_only.reader().schema.names
    assert codes_only.info()["vectors"] is False


def test_changes_are_searched_and_stay(codes_only: Index, model: Genius, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "CACHE_FROM", 10)
    codes_only.search("word1")  # an engine exists that the changes below extend
    codes_only.delete(["t0", "t1"])
    codes_only.upsert([Item("t2", text="another thing"), *texts(30, first=60)])
    for index in (codes_only, Index.open(codes_only.path, model)):
        assert len(index) == 88
        expected = by_codes(index, model, "another thing")
        found = index.search("another thing", target="text", k=88, item_bias=False)
        assert [hit.score for hit in found] == pytest.approx([expected[hit.id] for hit in found], abs=1e-5)
        assert {hit.id for hit in found} == set(expected)
    codes_only.optimize(keep=timedelta(0))
    again = Index.open(codes_only.path, model)
    assert again.live.base.cached and not list(again.cache.rglob("embeddings.npy"))
    assert [hit.id for hit in again.search("word5", k=9)] == [hit.id for hit in codes_only.search("word5", k=9)]
    assert not check(codes_only.path).problems


def test_copies_and_repairs_stay_without_vectors(codes_only: Index, tmp_path: Path, model_folder: Path) -> None:
    expected = [hit.id for hit in codes_only.search("word4 thing4")]
    copied = codes_only.snapshot(tmp_path / "copy.genius").target
    (copied / ABOUT).unlink()
    repair(copied)
    (copied / ABOUT).unlink()
    (copied / "ledger.jsonl").unlink()
    repair(copied, model_folder)
    for folder in (codes_only.path, copied):
        assert not check(folder).problems and not about_of(folder).vectors
        assert [hit.id for hit in Index.open(folder, codes_only.model).search("word4 thing4")] == expected


def test_what_needs_vectors_says_so(codes_only: Index, model: Genius, tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match=NEEDS):
        next(codes_only.vectors())
    with pytest.raises(GeniusError, match="stores no embeddings"):
        codes_only.search("word", params=SearchParams(reranker="embeddings"))
    with pytest.raises(GeniusError, match="codes and no vectors"):
        reencode(codes_only.path, "bundled:mini")
    with pytest.raises(GeniusError, match="stores vectors"):
        Index(Index(tmp_path / "usual.genius", model).path, model, vectors=False)
    with pytest.raises(GeniusError, match="your own vectors stores them"):
        Index.create(tmp_path / "own.genius", dim=4, vectors=False)
    assert len(codes_only) == 60


def test_an_index_with_vectors_is_written_as_before(model: Genius, tmp_path: Path) -> None:
    index = Index(tmp_path / "usual.genius", model)
    assert index.about.format == 2 and "_embedding" in index.reader().schema.names
    assert "vectors" not in json.loads((index.path / ABOUT).read_text())


def test_the_command_line_makes_and_describes_one(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("word1 thing1")
    output = str(tmp_path / "made.genius")
    call = CliRunner().invoke
    made = call(app, ["index", str(tmp_path / "notes.txt"), "--model", str(model_folder), "--codes-only", "-o", output])
    assert made.exit_code == 0, made.output
    assert "ranked by codes" in call(app, ["info", output]).output
    refused = call(app, ["index", "--refit", "-o", output])
    assert refused.exit_code != 0 and "nothing to refit" in refused.output
