"""Listing items page by page, many queries in one request, results in another order, and several collections in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from serve_fixtures import book
from starlette.testclient import TestClient

from genius import GeniusError, Item
from genius.index import Index
from genius.serve.app import collection_name, create_app
from genius.serve.client import GeniusClient, ServerError
from genius.serve.settings import ServeConfig


@pytest.fixture
def client(web: TestClient) -> Iterator[GeniusClient]:
    """The typed client over the app in process."""
    opened = GeniusClient("http://localhost")
    opened._http = web
    yield opened


class TestListing:
    def test_pages_hold_every_item_once_ordered_by_id(self, web: TestClient, client: GeniusClient) -> None:
        expected = sorted(item.id for item in book())
        for size in (7, 54, 100):
            assert [item.id for item in client.items(page_size=size)] == expected
        page = web.get("/v1/items?limit=2").json()
        assert page["total"] == len(expected) and page["next_cursor"] and len(page["items"]) == 2
        assert set(page["items"][0]) == {"id", "modality", "text", "metadata", "image_url", "thumbnail_url"}

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("field", ["price", "colour", "round"])
    def test_order_by_a_field_is_that_of_sorting(self, client: GeniusClient, field: str, descending: bool) -> None:
        by_id = sorted(book(), key=lambda item: item.id)
        expected = [item.id for item in sorted(by_id, key=lambda item: item.metadata[field], reverse=descending)]
        assert [item.id for item in client.items(order_by=field, descending=descending, page_size=13)] == expected

    def test_a_filter_counts_only_what_matches(self, web: TestClient) -> None:
        page = web.get("/v1/items", params={"where": "colour = 'red' AND price < 20", "order_by": "price"}).json()
        assert page["total"] == 6 == len(page["items"]) and page["next_cursor"] is None
        assert [item["metadata"]["price"] for item in page["items"]] == [0, 0, 0, 10, 10, 10]

    def test_items_without_the_field_come_last(self, web: TestClient, client: GeniusClient) -> None:
        web.put("/v1/items/bare", json={"text": "no price"})
        try:
            for descending in (False, True):
                assert [item.id for item in client.items(order_by="price", descending=descending, page_size=9)][-1] == "bare"
        finally:
            web.delete("/v1/items/bare")

    def test_pages_survive_changes_between_them(self, web: TestClient) -> None:
        """The item that the cursor names is deleted and others are added: nothing else is repeated or skipped."""
        first = web.get("/v1/items?limit=50").json()
        last = first["items"][-1]["id"]
        kept = web.get(f"/v1/items/{last}").json()
        web.put("/v1/items/aaa", json={"text": "sorts first"})
        web.put("/v1/items/zzz", json={"text": "sorts last"})
        web.delete(f"/v1/items/{last}")
        rest = web.get("/v1/items", params={"limit": 100, "cursor": first["next_cursor"]}).json()
        shown = [item["id"] for item in first["items"] + rest["items"]]
        assert shown == sorted({*(item.id for item in book()), "zzz"})
        for name in ("aaa", "zzz"):
            web.delete(f"/v1/items/{name}")
        item = next(item for item in book() if item.id == kept["id"])
        web.app.state.service.backend.index.add([item])  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("query", "message"),
        [
            ({"limit": 0}, "limit"),
            ({"limit": 101}, "at most 100"),
            ({"cursor": "nonsense"}, "cursor"),
            ({"cursor": "WzEsIDJd"}, "cursor"),  # [1, 2]
            ({"cursor": "WyJhIiwgIngiXQ", "order_by": "price"}, "cursor"),  # ["a", "x"]: another order's
            ({"order_by": "nothing"}, "no field 'nothing', there are: colour, price"),
            ({"where": "nothing = 1"}, "nothing"),
        ],
    )
    def test_bad_listings_are_one_line(self, web: TestClient, query: dict[str, Any], message: str) -> None:
        found = web.get("/v1/items", params=query)
        assert found.status_code == 422 and message in found.json()["error"]["message"], found.text


class TestBatch:
    def test_results_are_those_of_single_searches(self, web: TestClient, client: GeniusClient) -> None:
        queries: list[dict[str, Any]] = [
            {"text": "a red circle", "k": 5},
            {"text": "blue", "k": 3, "where": "price > 10"},
            {"like": "circle/red.png", "k": 4},
            {"text": "a ring", "target": "image"},
            {"text": "a red circle", "k": 2, "min_score": 2.0},
        ]
        found = web.post("/v1/search/batch", json={"queries": queries}).json()
        for query, result in zip(queries, found["results"], strict=True):
            single = web.post("/v1/search", json=query).json()
            assert [hit["id"] for hit in result["hits"]] == [hit["id"] for hit in single["hits"]]
            assert result["why"] == single["why"]
        texts = [f"{colour} ring" for colour in ("red", "blue")] * 60
        many = client.search_many(texts, k=2)
        assert len(many) == 120 and [hit.id for hit in many[1].hits] == [hit.id for hit in client.search("blue ring", k=2).hits]

    @pytest.mark.parametrize(
        ("queries", "status", "message"),
        [
            ([], 422, "queries"),
            ([{"text": "x"}] * 101, 413, "at most 100"),
            ([{"text": "x"}, {"k": 3}], 422, "queries.1"),
            ([{"text": "x"}, {"text": "y", "where": "nothing = 1"}], 422, "queries.1: "),
            ([{"text": "x"}, {"like": "nobody"}], 404, "queries.1: no item 'nobody'"),
            ([{"text": "x", "image": "%%%"}], 422, "queries.0: image"),
        ],
    )
    def test_one_bad_query_fails_the_batch_and_is_named(
        self, web: TestClient, queries: list[Any], status: int, message: str
    ) -> None:
        found = web.post("/v1/search/batch", json={"queries": queries})
        assert found.status_code == status and message in found.json()["error"]["message"], found.text


class TestCollections:
    @pytest.fixture
    def two(self, make_index: Callable[..., Index]) -> Iterator[TestClient]:
        shapes, notes = make_index(9), make_index(0)
        notes.add([Item("n1", text="a note about rain", metadata={"year": 2020}), Item("p1", image=book()[0].image)])
        with TestClient(create_app({"shapes": shapes, "notes": notes}), base_url="http://localhost") as web:
            yield web

    def test_each_has_its_own_items_and_the_first_has_the_short_paths(self, two: TestClient) -> None:
        assert two.get("/v1/collections").json()["collections"] == [
            {"name": "shapes", "items": 9, "default": True},
            {"name": "notes", "items": 2, "default": False},
        ]
        for path, items in (("/v1", 9), ("/v1/collections/shapes", 9), ("/v1/collections/notes", 2)):
            assert two.get(f"{path}/info").json()["items"] == items
            assert two.get(f"{path}/items").json()["total"] == items
            hits = two.post(f"{path}/search", json={"text": "rain", "k": 20, "target": "any"}).json()["hits"]
            assert len(hits) == items
        assert two.get("/v1/items/n1").status_code == 404
        assert two.get("/v1/collections/notes/items/n1").json()["text"] == "a note about rain"
        assert two.put("/v1/collections/notes/items/n2", json={"text": "another"}).json()["count"] == 3
        assert two.get("/v1/info").json()["items"] == 9
        assert 'genius_items{collection="notes"} 3.0' in two.get("/metrics").text

    def test_urls_of_images_lead_to_the_right_collection(self, two: TestClient) -> None:
        shown = two.get("/v1/collections/notes/items/p1").json()
        assert shown["image_url"] == "/v1/collections/notes/images/p1"
        assert two.get(shown["image_url"]).status_code == two.get(shown["thumbnail_url"]).status_code == 200

    def test_the_client_takes_a_collection(self, two: TestClient) -> None:
        client = GeniusClient("http://localhost", collection="notes")
        client._http = two
        assert client.info().items == 2 and client.get("n1").id == "n1" and [item.id for item in client.items()] == ["n1", "p1"]
        assert client.image("p1")[:4] == b"\x89PNG" and client.codes().count == 2
        with pytest.raises(ServerError, match="no collection 'none'"):
            other = GeniusClient("http://localhost", collection="none")
            other._http = two
            other.info()

    def test_names_that_cannot_be_used(self, two: TestClient, make_index: Callable[..., Index]) -> None:
        assert two.post("/v1/collections/a%2Fb/search", json={"text": "x"}).status_code in (404, 422)
        assert two.post("/v1/collections/..%2e/search", json={"text": "x"}).status_code in (404, 422)
        index = make_index(0)
        for name in ("a/b", "", "..", "x" * 65):
            with pytest.raises(GeniusError, match="collection name"):
                create_app({name: index}, ServeConfig())
        with pytest.raises(GeniusError, match="at least one"):
            create_app({})
        assert collection_name("/data/my photos.genius") == "my-photos" and collection_name("/") == "default"


def test_two_indexes_on_the_command_line(live_two: Any) -> None:
    found = httpx.get(f"{live_two.url}/v1/collections", trust_env=False, timeout=60).json()["collections"]
    assert [(one["name"], one["items"]) for one in found] == [("shapes", len(book())), ("few", 9)]
