"""Extraction: resumes where it stopped, is the same however it is sharded, and refuses to mix encoders or data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image
from shapes_encoder import ShapesEncoder
from torch import Tensor

from genius.data.extract import ExtractConfig, extract
from genius.data.features import FeatureSet
from genius.data.mbeir import MBeir
from genius.encoders.base import encode_items, encode_queries
from genius.errors import GeniusError
from lab.mbeir.shapes import write_synthetic_mbeir

ROWS = ("mscoco_task0", "nights_task4", "infoseek_task8")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_mbeir(tmp_path_factory.mktemp("mbeir"), rows=ROWS, candidates=20, queries=7)


class Counting(ShapesEncoder):
    """Counts pictures, and stops the run (as a crash would) after so many."""

    def __init__(self, stop_after: int = 10**9) -> None:
        super().__init__(width=16)
        self.pictures, self.stop_after = 0, stop_after

    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        self.pictures += len(images)
        if self.pictures > self.stop_after:
            raise KeyboardInterrupt
        return super().encode_images(images)


SMALL = ExtractConfig(batch_size=4, shard_rows=8, half=False)


def test_equals_encoding_everything_at_once(root: Path, tmp_path: Path) -> None:
    data, encoder = MBeir(root), ShapesEncoder(16)
    result = extract(encoder, data, tmp_path / "f", SMALL)
    assert result is not None
    items, queries = list(data.pool()), list(data.queries())
    pool = encode_items(encoder, items)[0]
    asked = encode_queries(encoder, [q.query for q in queries])
    for mine, theirs in ((result.pool, pool), (result.queries, asked)):
        assert torch.equal(mine.image, theirs.image) and torch.equal(mine.text, theirs.text)
        assert torch.equal(mine.modality, theirs.modality)
    assert result.pool_ids == [i.id for i in items] and result.query_ids == [q.id for q in queries]
    expected = [sorted(result.pool_ids.index(p) for p in q.positives) for q in queries]
    assert [sorted(rows) for rows in result.positives()] == expected
    assert [result.task_name(int(t)) for t in result.tasks] == [data.tasks[q.task].key for q in queries]
    assert {t: len(rows) for t, rows in result.pools.items()} == {0: 20, 1: 20, 2: 20}
    assert not (tmp_path / "f" / "progress").exists()


def test_resumes_after_a_crash_without_repeating_finished_shards(root: Path, tmp_path: Path) -> None:
    whole = Counting()
    expected = extract(whole, MBeir(root), tmp_path / "whole", SMALL)
    broken = Counting(stop_after=30)
    with pytest.raises(KeyboardInterrupt):
        extract(broken, MBeir(root), tmp_path / "resumed", SMALL)
    assert not FeatureSet.is_folder(tmp_path / "resumed")
    second = Counting()
    resumed = extract(second, MBeir(root), tmp_path / "resumed", SMALL)
    assert expected is not None and resumed is not None
    assert torch.equal(resumed.pool.image, expected.pool.image) and torch.equal(resumed.queries.text, expected.queries.text)
    assert second.pictures < whole.pictures
    third = Counting()
    assert extract(third, MBeir(root), tmp_path / "resumed", SMALL) is not None and third.pictures == 0


def test_two_processes_share_the_shards(root: Path, tmp_path: Path) -> None:
    expected = extract(ShapesEncoder(16), MBeir(root), tmp_path / "one", SMALL)
    halves = [ExtractConfig(batch_size=4, shard_rows=8, half=False, rank=r, world=2) for r in (0, 1)]
    assert extract(ShapesEncoder(16), MBeir(root), tmp_path / "two", halves[0]) is None
    both = extract(ShapesEncoder(16), MBeir(root), tmp_path / "two", halves[1])
    assert expected is not None and both is not None
    assert torch.equal(both.pool.image, expected.pool.image) and both.pool_ids == expected.pool_ids


def test_other_encoders_or_data_are_refused(root: Path, tmp_path: Path) -> None:
    extract(ShapesEncoder(16), MBeir(root), tmp_path / "f", SMALL)
    with pytest.raises(GeniusError, match="another encoder"):
        extract(ShapesEncoder(32), MBeir(root), tmp_path / "f", SMALL)
    with pytest.raises(GeniusError, match="another collection"):
        extract(ShapesEncoder(16), MBeir(root, split="val"), tmp_path / "f", SMALL)


def test_broken_images_stop_or_are_dropped_as_asked(tmp_path: Path) -> None:
    root = write_synthetic_mbeir(tmp_path / "data", rows=("mscoco_task0",), candidates=20, queries=7)
    victim = next(item for item in MBeir(root).pool())
    Path(str(victim.image)).write_bytes(b"not a picture")
    with pytest.raises(GeniusError, match="as an image"):
        extract(ShapesEncoder(16), MBeir(root), tmp_path / "a", SMALL)
    config = ExtractConfig(batch_size=4, shard_rows=8, half=False, on_error="skip")
    result = extract(ShapesEncoder(16), MBeir(root), tmp_path / "b", config)
    assert result is not None and len(result.pool) == 19 and victim.id not in result.pool_ids
    assert victim.id in (tmp_path / "b" / "problems.txt").read_text()
    assert all(len(rows) == 19 for rows in result.pools.values())
