"""What a query passes through: the modules of a scan over 50,000 items, of a flat search and of a beam search, in an index."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import genius
from genius import Genius, Index, Item
from genius.features import Features
from genius.search import SearchParams, SearchRequest, scan

ROOT = Path(genius.__file__).parent
ITEMS = 50_000
SHARED = {
    "index/searching.py", "index/results.py", "search/params.py", "search/types.py",
    "search/engine.py", "search/collection.py", "search/rerank.py", "search/item_bias.py",
    "search/arrays.py",
}  # fmt: skip
PLANS = {
    "flat": (SearchParams(plan="flat"), {"search/flat.py", "search/vectors.py"}),
    "scan": (SearchParams(plan="scan"), {"search/scan.py", "search/cells.py", "search/vectors.py"}),
    "beam": (
        SearchParams(rerank=0, reranker="none"),
        {"search/beam.py", "search/decoder.py", "search/trie.py", "search/tensors.py"},
    ),
}


@pytest.fixture(scope="module")
def large(model: Genius, tmp_path_factory: pytest.TempPathFactory) -> tuple[Index, Features]:
    """50,000 texts whose features stand in for the encoder."""
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(400, 32, generator=random)
    text = F.normalize(centres[torch.randint(400, (ITEMS,), generator=random)] + torch.randn(ITEMS, 32, generator=random), dim=1)
    nothing = torch.zeros(ITEMS, dtype=torch.bool)
    features = Features(torch.zeros(ITEMS, 32), text, nothing, ~nothing)
    path = tmp_path_factory.mktemp("walk") / "large.genius"
    index = Index(path, model)
    index.add([Item(f"t{i}", text=f"{i}") for i in range(ITEMS)], features=features, batch_size=ITEMS)
    index.optimize()
    return Index(path, model), features


def modules_of(index: Index, model: Genius, features: Features, params: SearchParams, k: int = 10) -> tuple[set[str], list[Any]]:
    """The modules in which a function was called, and the hits of 20 queries."""
    z, dense = model.embed(features[:20])
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            called.add(path.relative_to(ROOT).as_posix())

    sys.setprofile(note)
    try:
        hits = index.search_embedded(z, dense, request=SearchRequest(k, params=params))
    finally:
        sys.setprofile(None)
    return called, hits


@pytest.mark.parametrize("name", PLANS)
def test_a_query_passes_the_modules_of_its_plan_and_no_others_of_search(
    large: tuple[Index, Features], model: Genius, name: str
) -> None:
    params, own = PLANS[name]
    index, features = large
    modules_of(index, model, features, params)  # what is made once is made
    called, hits = modules_of(index, model, features, params)
    print(f"{name}: {len(called)} modules: {', '.join(sorted(called))}")
    assert {one.plan for one in hits} == {name} and all(len(one) == 10 for one in hits)
    passed = {module for module in called if module.startswith("search/")}
    allowed = own | {module for module in SHARED if module.startswith("search/")} | {"search/vectors.py", "search/trie.py"}
    assert own <= passed <= allowed, sorted(passed - allowed)
    assert {module for module in SHARED if module.startswith("index/")} - {"index/results.py"} <= called


def test_a_scan_considers_few_and_finds_what_flat_finds(large: tuple[Index, Features], model: Genius) -> None:
    index, features = large
    for k in (10, 100):
        _, scanned = modules_of(index, model, features, SearchParams(plan="scan"), k)
        _, flat = modules_of(index, model, features, SearchParams(plan="flat"), k)
        assert all(one.considered == ITEMS for one in flat) and all(0 < one.considered < ITEMS for one in scanned)
        same = [len({h.id for h in a} & {h.id for h in b}) / k for a, b in zip(scanned, flat, strict=True)]
        assert sum(same) / len(same) >= 0.98


def test_the_scan_is_kept_in_the_cache_of_the_index(
    large: tuple[Index, Features], model: Genius, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, features = large
    _, before = modules_of(index, model, features, SearchParams(plan="scan"))
    monkeypatch.setattr(scan.ScanIndex, "build", lambda *_: pytest.fail("it was built although it is in the cache"))
    again = Index(index.path, model, read_only=True)
    _, after = modules_of(again, model, features, SearchParams(plan="scan"))
    assert [[h.id for h in one] for one in before] == [[h.id for h in one] for one in after]
