"""Answers that differ, and answers that are not like something, asked for over HTTP: they are those of the index itself, and
what a question gets does not depend on who asks beside it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from serve_fixtures import draw, encoded
from starlette.testclient import TestClient

from genius import Index, Query
from genius.search import SearchRequest
from genius.serve.backend import Backend, Job
from genius.serve.client import GeniusClient, ServerError


def test_a_pass_that_is_shared_changes_no_answer(make_index: Callable[..., Index]) -> None:
    index = make_index()
    backend = Backend(index)
    jobs = [Job(Query(text="red circle"), SearchRequest(k, diverse=True), backend) for k in (2, 3, 4, 5, 6, 8, 12, 16)]
    assert len({job.group for job in jobs}) == 1  # so the service runs them together
    together, alone = backend.run(jobs), [backend.run([job])[0] for job in jobs]
    for job, one, other in zip(jobs, together, alone, strict=True):
        wanted = [hit.id for hit in index.search_many([job.query], job.request)[0]]
        assert [hit.id for hit in one.hits] == [hit.id for hit in other.hits] == wanted


def test_what_is_unwanted_is_the_questions_own_affair(make_index: Callable[..., Index]) -> None:
    """Questions with and without something unwanted share a pass, and each gets what it gets alone."""
    index = make_index()
    said = (None, "a red circle", "a blue square", None, "red")
    backend = Backend(index)
    jobs = [Job(Query("a circle", minus=None if one is None else Query(one)), SearchRequest(9), backend) for one in said]
    assert len({job.group for job in jobs}) == 1
    for job, one in zip(jobs, backend.run(jobs), strict=True):
        hits = index.search_many([job.query], job.request)[0]
        assert [(hit.id, pytest.approx(hit.score, abs=1e-5)) for hit in hits] == [(hit.id, hit.score) for hit in one.hits]


def ids(found: object) -> list[str]:
    return [hit.id for hit in (found.hits if hasattr(found, "hits") else found)]  # type: ignore[attr-defined]


def test_http_and_its_client_take_what_is_unwanted(make_index: Callable[..., Index], live: Any) -> None:
    index = make_index()  # holds the same as the server
    picture = draw("circle", "red")
    with GeniusClient(live.url) as client:
        plain = ids(client.search("a red circle", target="any", k=20))
        for unwanted, over_http in (
            ("red paper", {"minus": "red paper"}),
            (picture, {"minus": encoded(picture)}),
            ({"text": "red", "image": encoded(picture)}, {"minus": {"text": "red", "image": encoded(picture)}}),
            (index.get("square/red.png").image, {"minus_like": "square/red.png"}),
        ):
            expected = ids(index.search("a red circle", minus=unwanted, target="any", k=20))  # type: ignore[arg-type]
            assert ids(client.search("a red circle", target="any", k=20, **over_http)) == expected != plain  # type: ignore[arg-type]
            why = client.explain("a red circle", target="any", k=5, **over_http)  # type: ignore[arg-type]
            assert [answer["id"] for answer in why.answers] == expected[:5]
        strict = client.explain("a red circle", modality="pair", k=5)
        assert ids(index.search("a red circle", modality="pair", k=5)) == [answer["id"] for answer in strict.answers]
        with pytest.raises(ServerError, match="nothing is left to search for") as caught:
            client.search("a red circle", minus="a red circle", target="any")
        assert caught.value.status == 422
        with pytest.raises(ServerError, match="no item 'nobody'") as caught:
            client.search("a red circle", minus_like="nobody")
        assert caught.value.status == 404


def test_a_form_may_say_what_is_unwanted(web: TestClient) -> None:
    red = encoded(draw("circle", "red"))
    body = {"text": "a circle", "minus_image": base64.b64encode(red).decode(), "k": 9}
    told = web.post("/v1/search", json=body).json()["hits"]
    form = web.post("/v1/search", data={key: str(value) for key, value in body.items()}, files={"image": ("", b"")})
    assert [hit["id"] for hit in form.json()["hits"]] == [hit["id"] for hit in told] != []
    both = web.post("/v1/search", json={"text": "a", "minus_image": "aaaa", "minus_like": "x"})
    assert both.status_code == 422 and "not both" in both.json()["error"]["message"]


def test_nothing_found_says_why_over_http(web: TestClient) -> None:
    def why(**asked: object) -> str:
        answer = web.post("/v1/search", json={"text": "a circle", **asked}).json()
        assert answer["hits"] == []
        return str(answer["why"])

    assert "'price > 1000'" in why(where="price > 1000")
    assert "no result scores 2 or more" in why(min_score=2.0)
    assert web.post("/v1/search", json={"text": "a circle"}).json()["why"] is None
    asked = {"text": "a circle", "where": "price > 1000"}
    assert "'price > 1000'" in web.post("/v1/explain", json=asked).json()["why"]
