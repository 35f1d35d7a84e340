"""A sample of a collection keeps every positive of its queries and is the same on every call."""

from __future__ import annotations

import pytest

from genius.data.collection import Collection, Sample, check_collection
from genius.data.mbeir import MBeir
from genius.errors import GeniusError
from lab.mbeir.shapes import write_synthetic_mbeir


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MBeir:
    rows = ("mscoco_task0", "webqa_task1", "cirr_task7")
    return MBeir(write_synthetic_mbeir(tmp_path_factory.mktemp("m"), rows=rows, candidates=40, queries=20))


def test_a_sample_is_a_sound_collection(whole: MBeir) -> None:
    part = Sample(whole, queries=5, candidates=50)
    assert isinstance(part, Collection)
    summary = check_collection(part)  # every positive is in its task's pool
    assert set(summary.per_task.values()) == {5} and summary.items == 50
    assert [q.id for q in part.queries()] == [q.id for q in Sample(whole, queries=5, candidates=50).queries()]
    assert [i.id for i in part.pool()] != [i.id for i in Sample(whole, queries=5, candidates=50, seed=1).pool()]
    assert part.fingerprint() != whole.fingerprint() != Sample(whole, queries=6, candidates=50).fingerprint()


def test_positives_stay_even_when_few_candidates_are_asked_for(whole: MBeir) -> None:
    part = Sample(whole, candidates=1)
    needed = {p for q in whole.queries() for p in q.positives}
    assert {item.id for item in part.pool()} == needed


def test_zero_means_all(whole: MBeir) -> None:
    assert check_collection(Sample(whole)) == check_collection(whole)
    with pytest.raises(GeniusError, match="positive number"):
        Sample(whole, queries=-1)
