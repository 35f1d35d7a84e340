"""Random adds, upserts, deletes, re-openings and clean-ups against a plain dictionary: the same answers at every step."""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import genius.index.opened
import genius.index.store
from genius import Genius, GeniusError, Index, Item, Query

WORDS = ["red", "green", "blue", "round", "square", "tall", "small", "old", "new", "bright"]
ids = st.sampled_from([f"item {i}" for i in range(12)])
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
metadata = st.fixed_dictionaries(
    {},
    optional={
        "price": st.one_of(st.integers(-5, 5), st.floats(-5, 5, allow_nan=False)),
        "shop": st.sampled_from(["a", "b's", 'c"c', "d%"]),
        "sold": st.booleans(),
    },
)
items = st.builds(lambda i, t, m: Item(i, text=t, metadata=m), ids, texts, metadata)

FILTERS: list[tuple[str, Any]] = [
    ("price < 2", lambda m: "price" in m and m["price"] < 2),
    ("NOT price < 2", lambda m: "price" in m and not m["price"] < 2),
    ("shop = 'b''s' OR sold", lambda m: m.get("shop") == "b's" or m.get("sold") is True),
    ("shop IN ('a', 'd%') AND price IS NOT NULL", lambda m: m.get("shop") in ("a", "d%") and "price" in m),
    ("shop IS NULL", lambda m: "shop" not in m),
    ("price BETWEEN -1 AND 1", lambda m: "price" in m and -1 <= m["price"] <= 1),
    ("sold = false", lambda m: m.get("sold") is False),
]


class IndexMachine(RuleBasedStateMachine):
    model: Genius  # set by the test

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="genius-stateful-"))
        self.truth: dict[str, Item] = {}

    @initialize()
    def create(self) -> None:
        self.index = Index(self.folder / "i.genius", self.model)

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- changes

    @rule(batch=st.lists(items, min_size=1, max_size=8), size=st.integers(1, 8))
    def add(self, batch: list[Item], size: int) -> None:
        before = len(self.truth)
        for item in batch:
            self.truth.setdefault(item.id, item)
        report = self.index.add(batch, batch_size=size)
        assert report.added == len(self.truth) - before
        assert report.existing == len(batch) - report.added

    @rule(batch=st.lists(items, min_size=1, max_size=8), size=st.integers(1, 8))
    def upsert(self, batch: list[Item], size: int) -> None:
        new = {item.id for item in batch} - self.truth.keys()
        report = self.index.upsert(batch, batch_size=size)
        self.truth.update((item.id, item) for item in batch)
        assert report.added == len(new)

    @rule(wanted=st.lists(ids, min_size=1, max_size=4))
    def delete(self, wanted: list[str]) -> None:
        known = {i for i in wanted if i in self.truth}
        if len(known) < len(set(wanted)):
            with pytest.raises(GeniusError, match="no item"):
                self.index.delete(wanted)
            assert self.index.count() == len(self.truth)
        assert self.index.delete(wanted, missing="skip") == len(known)
        for item_id in known:
            del self.truth[item_id]

    @rule()
    def reopen(self) -> None:
        self.index = Index(self.folder / "i.genius", self.model)

    @rule(keep=st.sampled_from([timedelta(0), timedelta(days=7)]))
    def optimize(self, keep: timedelta) -> None:
        self.index.optimize(keep=keep)

    @rule(item=items)
    def another_process(self, item: Item) -> None:
        """A second handle writes; the first must notice by itself."""
        Index(self.folder / "i.genius", self.model).upsert([item])
        self.truth[item.id] = item

    # -- questions

    @invariant()
    def same_items(self) -> None:
        if not hasattr(self, "index"):
            return
        assert self.index.count() == len(self.truth)
        assert {item.id: item for item in self.index.items()} == self.truth
        wanted = sorted(self.truth)
        assert self.index.get(wanted) == [self.truth[i] for i in wanted]

    @rule(item_id=ids)
    def get_one(self, item_id: str) -> None:
        assert (item_id in self.index) == (item_id in self.truth)
        if item_id in self.truth:
            assert self.index.get(item_id) == self.truth[item_id]
        else:
            with pytest.raises(GeniusError, match="no item"):
                self.index.get(item_id)

    @rule(query=texts, k=st.integers(1, 15), filtered=st.one_of(st.none(), st.sampled_from(FILTERS)))
    def search(self, query: str, k: int, filtered: tuple[str, Any] | None) -> None:
        where, keep = filtered or (None, lambda _: True)
        if where is not None and not {"price", "shop", "sold"} <= self.index.columns().keys():
            return  # a filter on a column that never was is an error, tested elsewhere
        matching = {i: item for i, item in self.truth.items() if keep(item.metadata)}
        if where is not None:
            assert self.index.count(where) == len(matching)
        hits = self.index.search(text=query, target="any", k=k, where=where, beams=10_000, rerank=1_000_000)
        assert len(hits) == min(k, len(matching))
        assert len({hit.id for hit in hits}) == len(hits)
        best = sorted(self.brute_force(query, matching).values(), reverse=True)[:k]
        np.testing.assert_allclose([hit.score for hit in hits], best, atol=2e-3)
        for hit in hits:
            assert hit.item == matching[hit.id] and len(hit.codes) == 4
        usual = self.index.search(text=query, target="any", k=k, where=where)
        assert len(usual) == len(hits) and all(hit.item == matching[hit.id] for hit in usual)

    def brute_force(self, query: str, matching: dict[str, Item]) -> dict[str, float]:
        if not matching:
            return {}
        wanted = self.model.embed_queries([Query(text=query)]).dense[0]
        stored = self.model.embed_items(list(matching.values())).dense
        return dict(zip(matching, (stored @ wanted).tolist(), strict=True))


class CodesMachine(IndexMachine):
    """The same of an index without vectors: items are compared by what their codes stand for."""

    @initialize()
    def create(self) -> None:
        self.index = Index(self.folder / "i.genius", self.model, vectors=False)

    def brute_force(self, query: str, matching: dict[str, Item]) -> dict[str, float]:
        if not matching:
            return {}
        wanted = self.model.embed_queries([Query(text=query)]).z[0]
        codes = torch.tensor([self.index.codes(item_id) for item_id in matching])
        sums = torch.nn.functional.normalize(self.model.quantizer.decode(codes), dim=1)
        return dict(zip(matching, (sums @ wanted).tolist(), strict=True))


@pytest.mark.parametrize(
    ("machine", "cache_from", "examples"),
    [(IndexMachine, 3, 12), (IndexMachine, 1_000_000, 6), (CodesMachine, 3, 6)],
    ids=["cached", "uncached", "codes alone"],
)
def test_same_answers_as_a_dictionary(
    model: Genius, monkeypatch: pytest.MonkeyPatch, machine: type[IndexMachine], cache_from: int, examples: int
) -> None:
    monkeypatch.setattr(genius.index.opened, "CACHE_FROM", cache_from)
    monkeypatch.setattr(genius.index.store, "INDEX_FROM", cache_from)
    monkeypatch.setattr(genius.index.opened, "MERGE_FROM", 4)
    monkeypatch.setattr(genius.index.opened, "WASTE_FROM", 10)
    IndexMachine.model = model
    torch.manual_seed(0)
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )
