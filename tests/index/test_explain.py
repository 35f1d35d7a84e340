"""`Index.explain`: what it says must be what the search does, and what lives in the index."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from genius import GeniusError, Index, Item, Modality, Query
from genius.search import SearchParams, SearchRequest

COLOURS = ("red", "green", "blue", "orange", "purple")


def fill(index: Index) -> None:
    for number, colour in enumerate(COLOURS * 6):
        name = f"{colour} thing {number}"
        picture = Image.new("RGB", (8 + number, 8), colour)
        index.add([Item(f"t{number}", text=name), Item(f"p{number}", image=picture, metadata={"name": name, "n": number})])


def test_steps_follow_from_each_other_and_lead_to_the_answers(index: Index) -> None:
    fill(index)
    params = SearchParams(beams=4, rerank=0, reranker="none")
    request = SearchRequest(3, params=params, any_modality=True)
    found = index.explain(Query("a red thing"), request, shown=3, rejected=2)
    (trace,) = found["traces"]
    assert trace["target"] is None and [step["level"] for step in trace["steps"]] == [0, 1, 2, 3]
    assert found["plan"] == "beam" and found["considered"] == trace["steps"][-1]["items"]
    assert found["summary"] == f"plan: beam ({found['considered']} items below its beams) · target: any modality"
    hits = index.search_many([Query("a red thing")], request)[0]
    assert [answer["id"] for answer in found["answers"]] == [hit.id for hit in hits]
    for answer, hit in zip(found["answers"], hits, strict=True):
        assert answer["lost_at"] is None  # plain GENIUS finds nothing that its beams do not hold
        total = sum(value for value in answer["log_p"] if value is not None)
        assert hit.score == pytest.approx(total / 4, abs=1e-4)
    for step in trace["steps"]:
        prefixes = [code["prefix"] for code in step["codes"]]
        assert len(set(prefixes)) == len(prefixes)
        for code in step["codes"]:
            prefix = code["prefix"]
            assert index.below(prefix, limit=0).count == code["items"]
            assert code["answer"] == any(hit.codes[: len(prefix)] == prefix for hit in hits)
            assert code["examples"] and all(index.codes(name)[: len(prefix)] == prefix for name in code["examples"])
            assert code["kept"] == (code["rank"] is not None)
        assert sum(not code["kept"] for code in step["codes"]) <= 2


def test_the_tree_holds_every_code_once_under_the_one_before_it(index: Index) -> None:
    fill(index)
    found = index.explain(Query("a blue thing"), SearchRequest(2, beams=4, rerank=0))
    nodes = []

    def walk(branches: list[dict[str, object]], above: tuple[int, ...]) -> None:
        for node in branches:
            assert node["prefix"][:-1] == above  # type: ignore[index]
            nodes.append(node["prefix"])
            walk(node["children"], node["prefix"])  # type: ignore[arg-type]

    walk(found["traces"][0]["tree"], ())
    assert sorted(nodes) == sorted(code["prefix"] for step in found["traces"][0]["steps"] for code in step["codes"])
    json.dumps(found)


def test_a_given_modality_is_not_generated(index: Index) -> None:
    fill(index)
    found = index.explain(Query("a green thing", target=Modality.IMAGE), SearchRequest(2))
    (trace,) = found["traces"]  # there are no pairs
    first = trace["steps"][0]["codes"][0]
    assert trace["target"] == "image" and first["prefix"] == (0,) and first["log_p"] is None and first["items"] == 30
    assert found["summary"] == "plan: flat (30 vectors compared) · target: image" and found["pictures"]
    assert all(answer["log_p"][0] is None for answer in found["answers"])


def test_words_are_those_of_the_items_below(index: Index) -> None:
    fill(index)
    found = index.explain(Query("an orange thing", target=Modality.TEXT), SearchRequest(3, beams=4, rerank=0))
    for step in found["traces"][0]["steps"][1:]:
        for code in step["codes"]:
            below = " ".join(item.text or "" for item in index.below(code["prefix"], limit=100).items)
            assert code["words"] and all(word in below for word in code["words"])


def test_a_filter_counts_only_what_may_be_found(index: Index) -> None:
    fill(index)
    found = index.explain(Query("red", target=Modality.IMAGE), SearchRequest(3, "n < 7"))
    assert found["traces"][0]["steps"][0]["codes"][0]["items"] == 7
    assert all(answer["metadata"]["n"] < 7 for answer in found["answers"])


def test_what_cannot_be_explained_is_said(index: Index) -> None:
    assert index.explain(Query("anything"))["answers"] == []
    fill(index)
    with pytest.raises(GeniusError, match="takes a Query, got str"):
        index.explain("words")  # type: ignore[arg-type]
    with pytest.raises(GeniusError, match="rejected must be a whole number"):
        index.explain(Query("words"), rejected=-1)
