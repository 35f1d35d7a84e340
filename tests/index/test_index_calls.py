"""Calls with wrong arguments are one clear line; an index can be copied and sent to another process."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import processes
import pytest
import torch

from genius import Genius, GeniusError, Index, Item, Query
from genius.index.opened import Live
from genius.index.reader import Reader, Vanished
from genius.search import SearchParams


def texts(start: int, stop: int) -> list[Item]:
    return [Item(f"t{i}", text=f"thing{i}", metadata={"n": i}) for i in range(start, stop)]


BAD = {
    "another width": (lambda i: i.search_embedded(torch.zeros(1, 7)), "z has vectors 7 wide; those of this index are 32 wide"),
    "one dimension": (lambda i: i.search_embedded(torch.zeros(32)), "must be an array"),
    "a list": (lambda i: i.search_embedded([[0.0] * 32]), "must be an array"),  # type: ignore[arg-type]
    "whole numbers": (lambda i: i.search_embedded(torch.zeros(1, 32, dtype=torch.long)), "must be an array"),
    "dense of another width": (lambda i: i.search_embedded(torch.ones(1, 32), torch.ones(1, 8)), "dense has vectors 8 wide"),
    "dense of another number": (lambda i: i.search_embedded(torch.ones(1, 32), torch.ones(2, 32)), "1 queries but 2"),
    "too many targets": (lambda i: i.search_embedded(torch.ones(1, 32), targets=torch.tensor([0, 1])), "targets must be"),
    "a target of 7": (lambda i: i.search_embedded(torch.ones(1, 32), targets=torch.tensor([7])), "targets must be"),
    "beams as a text": (lambda i: i.search(text="a", beams="5"), "beams must be a whole number"),
    "rerank as a fraction": (lambda i: i.search(text="a", rerank=1.5), "rerank must be a whole number"),
    "k as a text": (lambda i: i.search(text="a", k="3"), "k must be"),
    "min_score as a text": (lambda i: i.search(text="a", min_score="x"), "min_score is not a number"),
    "where as a number": (lambda i: i.search(text="a", where=5), "where must be a condition"),
    "a number for a request": (lambda i: i.search_embedded(torch.zeros(1, 32), request=3), "must be a SearchRequest, got int"),
    "many, a number for a request": (lambda i: i.search_many([Query(text="a")], 3), "must be a SearchRequest, got int"),
    "params as a dictionary": (lambda i: i.search(text="a", params={"beams": 3}), "params must be SearchParams"),
    "beams without end": (lambda i: i.search(text="a", params=SearchParams(beams=10**9)), "beams must be"),
    "text as a number": (lambda i: i.search(text=5), "text must be a string"),
    "a lone surrogate": (lambda i: i.search(text="\ud800"), "not valid Unicode"),
    "in the instruction": (lambda i: i.search(text="a", instruction="\udfff"), "not valid Unicode"),
    "target as a list": (lambda i: i.search(text="a", target=[1]), "unknown modality"),
    "image as a number": (lambda i: i.search(image=5), "cannot read"),
    "get a number": (lambda i: i.get(5), "ids are strings"),
    "get numbers": (lambda i: i.get([5]), "ids are strings, got 5"),
    "get a surrogate": (lambda i: i.get("\ud800"), "no item"),
    "delete a number": (lambda i: i.delete(5), "ids are strings"),
    "delete a surrogate": (lambda i: i.delete("\ud800"), "no item"),
    "add a surrogate": (lambda i: i.add([Item("\ud800", text="a")]), "not valid Unicode"),
    "add a number": (lambda i: i.add(5), "expected items"),
    "add texts": (lambda i: i.add(["a"]), "expected an Item"),
    "batches of texts": (lambda i: i.add([], batch_size="7"), "batch_size must be"),
    "a prefix of words": (lambda i: i.below("abc"), "whole numbers"),
    "a limit of words": (lambda i: i.below(limit="5"), "limit must be"),
    "a version of words": (lambda i: Index(i.path, i.model, version="3"), "a version is a whole number"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_arguments_are_one_clear_line(index: Index, name: str) -> None:
    index.add(texts(0, 3))
    call, message = BAD[name]
    with pytest.raises(GeniusError, match=message) as caught:
        call(index)
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)


def test_nothing_strange_is_in_an_index(index: Index) -> None:
    index.add(texts(0, 3))
    assert 5 not in index and None not in index and "\ud800" not in index and "t1" in index


def test_a_models_defaults_are_bounded(tmp_path: Path) -> None:
    from fake_encoder import fake_model

    index = Index(tmp_path / "i.genius", fake_model(search={"beams": 10**9}))
    index.add(texts(0, 3))
    with pytest.raises(GeniusError, match="beams must be a whole number from 1 to 10,000"):
        index.search(text="a")


def count_items(index: Index) -> int:
    return len(index)


def test_pickled_it_is_opened_anew(model_folder: Path, tmp_path: Path, index: Index) -> None:
    stored = Index(tmp_path / "stored.genius", str(model_folder), lock_timeout=3)
    stored.add(texts(0, 4))
    other = pickle.loads(pickle.dumps(stored))
    assert len(other) == 4 and other.search(text="thing1", target="any")[0].id == "t1" and other.options == stored.options
    assert len(pickle.dumps(stored)) < 1000
    old = Index(tmp_path / "stored.genius", str(model_folder), version=stored.version)
    stored.delete("t1")
    assert len(pickle.loads(pickle.dumps(old))) == 4
    with pytest.raises(GeniusError, match="was never saved"):
        pickle.dumps(index)


def test_adding_survives_an_optimize_that_drops_the_version_it_looked_at(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add(texts(0, 3))
    looks = 0

    def find(state: Index, ids: Sequence[str]) -> dict[str, int]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise Vanished("cannot read the index: a file of this version is gone")
        return state.current().find(ids)

    monkeypatch.setattr(Index, "find", find)
    report = index.add(texts(0, 5))
    assert (report.added, report.existing, looks) == (2, 3, 2)


def test_opening_survives_an_optimize_that_drops_the_version_it_opens(
    index: Index, model: Genius, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(texts(0, 3))
    opened, tries = Index._open, []

    def open_late(state: Index, reader: Reader) -> Live:
        tries.append(reader.version)
        if len(tries) == 1:
            raise Vanished("cannot read the index: a file of this version is gone")
        return opened(state, reader)

    monkeypatch.setattr(Index, "_open", open_late)
    assert len(Index(index.path, model)) == 3 and len(tries) == 2


def test_items_survive_an_optimize_that_drops_their_version(index: Index, model: Genius) -> None:
    """Each item once, none twice, whatever is cleaned away meanwhile."""
    index.add(texts(0, 300), batch_size=10)
    reader = Index(index.path, model)
    expected = {f"t{i}" for i in range(300)}
    stop, failures = threading.Event(), []

    def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            index.upsert([Item(f"t{number % 300}", text=f"again {number}")])
            if number % 2:
                index.optimize(keep=timedelta(0))

    writer = threading.Thread(target=churn)
    writer.start()
    try:
        for _ in range(25):
            found = []
            for item in reader.items():
                found.append(item.id)
                if len(found) % 64 == 0:
                    stop.wait(0.01)
            if sorted(found) != sorted(expected):
                failures.append(f"{len(found)} items, {len(set(found))} distinct")
    finally:
        stop.set()
        writer.join()
    assert failures == []


def test_a_second_process_may_not_write_meanwhile(index: Index) -> None:
    """The lock is the operating system's, through a library that has one on every system."""
    index.add(texts(0, 3))
    with index.write_lock.hold():
        answer = processes.call(processes.add_with_patience, str(index.path), 0.2)
    assert "written by another process (pid" in answer and "waited 0.2 s" in answer
    assert processes.call(processes.add_with_patience, str(index.path), 5.0) == "added"
    assert (index.path / ".lock").read_bytes() == b""
