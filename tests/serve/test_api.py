"""What the service does when it is used as documented, over a real index."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serve_fixtures import COLOURS, SHAPES, draw, encoded
from starlette.testclient import TestClient

from genius import Item
from genius.index import Index
from genius.serve.backend import Backend

RED_CIRCLE = encoded(draw("circle", "red"))


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def ask(web: TestClient, **fields: Any) -> dict[str, Any]:
    answer = web.post("/v1/search", json=fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def best_image(body: dict[str, Any]) -> str:
    """The first hit that is an image: which modality comes first is up to the decoder, here an untrained one."""
    return next(str(hit["id"]) for hit in body["hits"] if hit["modality"] == "image")


def ids(body: dict[str, Any]) -> list[str]:
    return [hit["id"] for hit in body["hits"]]


class TestSearch:
    def test_text_finds_the_text_and_says_everything_about_it(self, web: TestClient) -> None:
        best = ask(web, text="a red circle on white paper", target="any", k=3)["hits"][0]
        assert best["id"] == "circle red text" and best["modality"] == "text"
        assert best["metadata"] == {"colour": "red", "shape": "circle", "price": 0, "round": True}
        assert len(best["codes"]) == 4 and best["codes"][0] == 1
        assert best["image_url"] is None and best["thumbnail_url"] is None

    def test_probabilities_have_their_place_in_every_answer(self, web: TestClient) -> None:
        body = web.post("/v1/search", json={"text": "red circle", "k": 2}).json()
        assert body["answerable"] is None and body["doubtful"] is False  # the stand-in model was never calibrated
        assert body["hits"][0]["probability"] is None

    def test_scores_descend_and_k_is_kept(self, web: TestClient) -> None:
        hits = ask(web, text="green ring", k=7)["hits"]
        scores = [hit["score"] for hit in hits]
        assert len(hits) == 7 and scores == sorted(scores, reverse=True)

    def test_image_as_base64_as_data_url_and_as_multipart_agree(self, web: TestClient) -> None:
        plain = ask(web, image=b64(RED_CIRCLE), target="any", k=100)
        data_url = ask(web, image=f"data:image/png;base64,{b64(RED_CIRCLE)}", target="any", k=100)
        form = web.post(
            "/v1/search", data={"k": "100", "target": "any"}, files={"image": ("a.png", RED_CIRCLE, "image/png")}
        ).json()
        assert best_image(plain) == "circle/red.png"
        assert ids(plain) == ids(data_url) == ids(form)

    def test_multipart_takes_every_field(self, web: TestClient) -> None:
        fields = {
            "text": "red circle",
            "target": "pair",
            "k": "4",
            "where": "price < 30",
            "min_score": "-1.5",
            "beams": "20",
            "rerank": "100",
        }
        form = web.post("/v1/search", data={**fields, "instruction": ""}, files={"image": ("a.png", RED_CIRCLE)})
        same = ask(
            web,
            text="red circle",
            target="pair",
            k=4,
            where="price < 30",
            min_score=-1.5,
            beams=20,
            rerank=100,
            image=b64(RED_CIRCLE),
        )
        assert form.status_code == 200 and ids(form.json()) == ids(same)

    @pytest.mark.parametrize("target", ["image", "text", "pair"])
    def test_target_decides_the_kind(self, web: TestClient, target: str) -> None:
        hits = ask(web, text="blue square", target=target, k=12)["hits"]
        kinds = {hit["modality"] for hit in hits}
        assert len(hits) == 12 and kinds <= {target, "pair"} and (target in kinds or target == "text")

    def test_where_filters_inside_the_search(self, web: TestClient) -> None:
        hits = ask(web, text="red circle", where="colour = 'green' AND price >= 20", target="any", k=50)["hits"]
        assert len(hits) == 4 * 3  # four of six shapes, three kinds each: all of them, though none is red
        assert {hit["metadata"]["colour"] for hit in hits} == {"green"}

    def test_min_score_cuts(self, web: TestClient) -> None:
        all_hits = ask(web, text="red circle", k=20)["hits"]
        limit = all_hits[4]["score"]
        assert ids(ask(web, text="red circle", k=20, min_score=limit)) == [hit["id"] for hit in all_hits[:5]]

    def test_like_leaves_the_item_itself_out(self, web: TestClient) -> None:
        found = ids(ask(web, like="circle/red.png", target="image", k=35))
        assert "circle/red.png" not in found and len(found) == 35

    def test_like_this_but_uses_picture_and_words(self, web: TestClient) -> None:
        composed = ids(ask(web, like="circle/red.png", text="blue ring", k=20))
        by_hand = ids(ask(web, image=b64(RED_CIRCLE), text="blue ring", k=21))
        assert composed == [found for found in by_hand if found != "circle/red.png"][:20]
        assert composed != ids(ask(web, like="circle/red.png", k=20))

    def test_like_a_text_extends_it(self, web: TestClient) -> None:
        assert (
            ids(ask(web, like="circle red text", text="striped", k=9))
            == ids(ask(web, text="a red circle on white paper striped", k=10, where="id != 'circle red text'"))[:9]
        )


class TestItems:
    def test_post_adds_many_and_can_be_repeated(self, web: TestClient) -> None:
        items = [
            {"id": "new-1", "text": "an orange whale", "metadata": {"colour": "orange"}},
            {"id": "new-2", "image": b64(encoded(draw("ring", "#114433")))},
        ]
        assert web.post("/v1/items", json={"items": items}).json() == {"added": 2, "unchanged": 0, "count": 110}
        assert web.post("/v1/items", json={"items": items}).json() == {"added": 0, "unchanged": 2, "count": 110}
        assert best_image(ask(web, image=items[1]["image"], target="any", k=100)) == "new-2"
        for item in items:
            assert web.delete(f"/v1/items/{item['id']}").status_code == 200

    def test_post_multipart(self, web: TestClient) -> None:
        form = {"id": "up/1.png", "text": "a drawing", "metadata": json.dumps({"price": 7.5, "round": False})}
        assert web.post("/v1/items", data=form, files={"image": ("x.png", RED_CIRCLE)}).json()["added"] == 1
        shown = web.get("/v1/items/up%2F1.png").json()
        assert shown["modality"] == "pair" and shown["metadata"] == {"price": 7.5, "round": False}
        assert web.delete("/v1/items/up/1.png").status_code == 200  # an unencoded slash works too

    def test_put_multipart_replaces_the_whole_item(self, web: TestClient) -> None:
        web.put("/v1/items/swap", json={"text": "before", "metadata": {"price": 1}})
        web.put("/v1/items/swap", files={"image": ("x.png", RED_CIRCLE)})
        shown = web.get("/v1/items/swap").json()
        assert shown["modality"] == "image" and shown["text"] is None and shown["metadata"] == {}
        web.delete("/v1/items/swap")

    def test_one_bad_item_adds_none(self, web: TestClient) -> None:
        good = {"id": "good", "text": "fine"}
        for bad in ({"id": "bad", "image": b64(b"not a picture")}, {"id": "bad", "text": "x", "metadata": {"price": "a string"}}):
            assert web.post("/v1/items", json={"items": [good, bad]}).status_code == 422
        assert web.get("/v1/items/good").status_code == 404

    def test_pictures_come_back_as_they_were_sent(self, web: TestClient) -> None:
        answer = web.get("/v1/images/circle%2Fred.png")
        assert answer.content == RED_CIRCLE and answer.headers["content-type"] == "image/png"
        small = web.get("/v1/thumbnails/circle%2Fred.png")
        assert small.content[:3] == b"\xff\xd8\xff" and small.headers["content-type"] == "image/jpeg"
        tag = small.headers["etag"]
        assert web.get("/v1/thumbnails/circle%2Fred.png", headers={"If-None-Match": tag}).status_code == 304

    def test_a_text_has_no_picture(self, web: TestClient) -> None:
        for kind in ("images", "thumbnails"):
            answer = web.get(f"/v1/{kind}/circle red text")
            assert answer.status_code == 404 and "has no picture" in answer.json()["error"]["message"]


class TestCodes:
    def test_walking_down_reaches_every_item_once(self, web: TestClient) -> None:
        seen: list[str] = []

        def walk(path: str) -> int:
            view = web.get(path).json()
            assert view["children_total"] == len(view["children"])
            if view["level"] == view["levels"]:
                assert view["children"] == []
                seen.extend(item["id"] for item in view["items"])
                return int(view["count"])
            counts = [child["count"] for child in view["children"]]
            assert counts == sorted(counts, reverse=True) and sum(counts) == view["count"]
            for child in view["children"]:
                assert child["examples"] and all(
                    "-".join(map(str, item["codes"])).startswith(child["prefix"]) for item in child["examples"]
                )
                assert walk(f"/v1/codes/{child['prefix']}") == child["count"]
            return int(view["count"])

        assert walk("/v1/codes") == 108
        assert len(seen) == len(set(seen)) == len(COLOURS) * len(SHAPES) * 3

    def test_the_path_of_an_item_narrows(self, web: TestClient) -> None:
        item = web.get("/v1/items/circle%2Fred.png").json()
        counts = [step["count"] for step in item["path"]]
        assert [step["code"] for step in item["path"]] == item["codes"]
        assert counts == sorted(counts, reverse=True) and counts[0] == 36 and counts[-1] >= 1
        for step in item["path"]:
            assert web.get(f"/v1/codes/{step['prefix']}").json()["count"] == step["count"]

    def test_counts_follow_writes(self, web: TestClient) -> None:
        before = web.get("/v1/codes/1").json()["count"]
        web.put("/v1/items/extra", json={"text": "one more"})
        assert web.get("/v1/codes/1").json()["count"] == before + 1
        assert web.get("/v1/items/extra").json()["path"][0]["count"] == before + 1
        web.delete("/v1/items/extra")
        assert web.get("/v1/codes/1").json()["count"] == before


class TestSystem:
    def test_info(self, web: TestClient) -> None:
        info = web.get("/v1/info").json()
        assert info["items"] == 108 and info["level_sizes"] == [3, 16, 16, 16] and info["scopes"] == ["read", "write"]
        assert info["fields"] == {"colour": "text", "shape": "text", "price": "number", "round": "boolean"}

    def test_health_ready_metrics(self, web: TestClient) -> None:
        assert web.get("/healthz").json() == {"status": "ok"} and web.get("/readyz").json() == {"status": "ready"}
        ask(web, text="x")
        text = web.get("/metrics").text
        assert 'genius_requests_total{method="POST",route="/v1/search",status="200"}' in text
        assert (
            'genius_items{collection="shapes"} 108.0' in text
            and "genius_batch_size_bucket" in text
            and "process_resident_memory_bytes" in text
        )

    def test_labels_do_not_grow_with_what_callers_send(self, web: TestClient) -> None:
        def series() -> int:
            return sum(line.startswith("genius_requests_total") for line in web.get("/metrics").text.splitlines())

        web.get("/v1/items/some-0"), web.get("/nowhere/0"), web.request("BREW", "/coffee/0")
        series()
        before = series()
        for i in range(1, 6):
            web.get(f"/v1/items/some-{i}"), web.get(f"/nowhere/{i}"), web.request(f"BREW{i}", f"/coffee/{i}")
        assert series() == before

    def test_request_id_is_ours_or_theirs(self, web: TestClient) -> None:
        assert web.get("/healthz", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
        assert web.get("/healthz", headers={"X-Request-ID": "bad id\x7f"}).headers["x-request-id"] != "bad id\x7f"
        error = web.get("/v1/items/none", headers={"X-Request-ID": "abc-2"}).json()["error"]
        assert error == {"code": "not_found", "message": "no item 'none'", "request_id": "abc-2"}

    def test_openapi_examples_are_valid_and_work(self, web: TestClient) -> None:
        document = web.get("/openapi.json").json()
        tried = 0
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                for example in (
                    operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("examples", {}).values()
                ):
                    if "like" in example["value"] or "where" in example["value"]:
                        continue  # they name things of another index
                    answer = web.request(
                        method, path.replace("{item_id}", "example").replace("{collection}", "shapes"), json=example["value"]
                    )
                    assert answer.status_code in (200, 201), (path, example, answer.text)
                    tried += 1
        assert tried >= 6
        for item_id in ("example", "bike-1", "photo-7"):
            web.delete(f"/v1/items/{item_id}")

    def test_the_page_and_its_files(self, web: TestClient) -> None:
        page = web.get("/")
        assert page.status_code == 200 and "script-src 'self'" in page.headers["content-security-policy"]
        assert "http://" not in page.text and "https://" not in page.text  # nothing from elsewhere
        for name in ("style.css", "main.js", "icon.svg"):
            assert web.get(f"/static/{name}").status_code == 200
        assert web.get("/docs").status_code == 200


class TestPicturesOnDisk:
    """Items whose picture is a path: the file is served, and the index's own preview when the file is gone."""

    @pytest.fixture
    def shelf(self, make_web: Callable[..., TestClient], make_index: Callable[..., Index], tmp_path: Path) -> TestClient:
        draw("circle", "red").save(tmp_path / "kept.webp", lossless=True)
        draw("ring", "blue").save(tmp_path / "photo.tiff")
        draw("bar", "green").save(tmp_path / "gone.png")
        (tmp_path / "drawing.svg").write_text(
            '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'
        )
        index = make_index(0)
        index.add(Item(path.name, image=path) for path in sorted(tmp_path.iterdir()))
        (tmp_path / "gone.png").unlink()
        return make_web(index)

    def test_as_they_are_where_browsers_can_show_them(self, shelf: TestClient, tmp_path: Path) -> None:
        answer = shelf.get("/v1/images/kept.webp")
        assert answer.headers["content-type"] == "image/webp" and answer.content == (tmp_path / "kept.webp").read_bytes()
        for name in ("photo.tiff", "drawing.svg"):
            answer = shelf.get(f"/v1/images/{name}")
            assert answer.headers["content-type"] == "image/png" and answer.content[:4] == b"\x89PNG"

    def test_a_file_that_is_gone(self, shelf: TestClient) -> None:
        answer = shelf.get("/v1/images/gone.png")
        assert answer.status_code == 404 and "no longer there" in answer.json()["error"]["message"]
        assert shelf.get("/v1/thumbnails/gone.png").status_code == 200
        assert len(ask(shelf, like="gone.png", k=5)["hits"]) == 3  # the preview stands in

    @pytest.mark.parametrize("path", ["a" * 5000 + ".png", "a\0b.png"])
    def test_a_path_that_no_file_can_have(self, shelf: TestClient, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
        monkeypatch.setattr(Backend, "_item", lambda backend, name: Item("kept.webp", image=path))
        assert shelf.get("/v1/images/kept.webp").status_code == 404
        assert shelf.post("/v1/search", json={"like": "kept.webp"}).status_code == 200  # the preview stands in

    def test_paths_are_not_shown(self, shelf: TestClient, tmp_path: Path) -> None:
        for path in ("/v1/items/kept.webp", "/v1/codes/0", "/v1/codes"):
            assert str(tmp_path) not in shelf.get(path).text
        assert str(tmp_path) not in json.dumps(ask(shelf, text="x"))


def test_explain_says_which_plan_ran_and_how_ids_are_generated(web: TestClient) -> None:
    found = ask(web, text="red circle", target="image", k=2)["hits"]
    answer = web.post("/v1/explain", json={"text": "red circle", "target": "image", "k": 2})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert [one["id"] for one in body["answers"]] == [hit["id"] for hit in found]
    assert all(web.get(one["thumbnail_url"]).status_code == 200 for one in body["answers"])
    assert {trace["target"] for trace in body["traces"]} == {"image", "pair"}
    assert body["summary"].startswith("plan: flat (") and body["plan"] == "flat" and body["considered"] > 0
    for trace in body["traces"]:
        assert trace["tree"][0]["log_p"] is None  # the modality was given
        for code in trace["steps"][1]["codes"]:
            assert (
                code["log_p"] <= 0 and code["items"] == web.get(f"/v1/codes/{'-'.join(map(str, code['prefix']))}").json()["count"]
            )
            assert all(web.get(body["thumbnails"][name]).status_code == 200 for name in code["examples"][:1])
    assert web.post("/v1/explain", json={"k": 2}).status_code == 422
    assert web.post("/v1/explain", json={"text": "x", "where": "no such"}).status_code == 422


def test_a_strict_kind_is_exactly_that_kind(web: TestClient) -> None:
    meant = ask(web, text="red circle", target="image", k=100)["hits"]
    exact = ask(web, text="red circle", modality="image", k=100)["hits"]
    assert {hit["modality"] for hit in meant} == {"image", "pair"} and {hit["modality"] for hit in exact} == {"image"}
    assert len(exact) == len(COLOURS) * len(SHAPES)
    both = web.post("/v1/search", json={"text": "x", "target": "image", "modality": "image"})
    assert both.status_code == 422 and "not both" in both.json()["error"]["message"]
