"""Words and hybrid search over HTTP and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable

from fastapi.testclient import TestClient
from typer.testing import CliRunner

from genius import Index, Item
from genius.cli import app


def test_modes_over_http_and_in_the_shell(make_index: Callable[..., Index], make_web: Callable[..., TestClient]) -> None:
    index = make_index(3)
    index.add([Item("notes/IMG_0412.txt", text="an umbrella stand of brass", metadata={"sku": "QQ-1"})])
    web = make_web(index)
    assert web.get("/v1/info").json()["words"] == []
    refused = web.post("/v1/search", json={"text": "umbrella", "mode": "hybrid"})
    assert refused.status_code == 422 and "index_words" in refused.text
    index.index_words(["sku"])
    assert web.get("/v1/info").json()["words"] == ["id", "sku", "text"]
    body = web.post("/v1/search", json={"text": "umbrella", "mode": "words"}).json()
    assert [hit["id"] for hit in body["hits"]] == ["notes/IMG_0412.txt"] and body["hits"][0]["ranks"] == {"words": 1}
    body = web.post("/v1/search", json={"text": "IMG_0412.txt", "mode": "hybrid", "words_weight": 2.0, "k": 2}).json()
    assert body["hits"][0]["id"] == "notes/IMG_0412.txt" and len(body["hits"]) == 2
    assert body["fusion"] == {"similarity": 1.0, "words": 2.0, "rank_constant": 5.0}
    explained = web.post("/v1/explain", json={"text": "umbrella", "mode": "hybrid"}).json()
    assert "words 4" in explained["summary"]
    for bad in ({"text": "a", "mode": "grep"}, {"mode": "words"}, {"text": "a", "words_weight": -1}):
        assert web.post("/v1/search", json=bad).status_code == 422
    plain = web.post("/v1/search", json={"text": "umbrella"}).json()
    assert plain["fusion"] is None and plain["hits"][0]["ranks"] is None


def test_modes_on_the_command_line(make_index: Callable[..., Index]) -> None:
    import fake_encoder

    fake_encoder.register()
    index = make_index(3)
    index.model.save_pretrained(index.path.parent / "model")
    index.add([Item("manual.txt", text="how to fold an umbrella")])
    model = ["--model", str(index.path.parent / "model")]
    result = CliRunner().invoke(app, ["optimize", str(index.path), "--words", *model])
    assert result.exit_code == 0, result.output
    for mode in ("words", "hybrid"):
        result = CliRunner().invoke(
            app, ["search", str(index.path), "umbrella", "--mode", mode, "--target", "any", "--json", *model]
        )
        assert result.exit_code == 0 and json.loads(result.stdout)["hits"][0]["id"] == "manual.txt", result.output
    result = CliRunner().invoke(app, ["search", str(index.path), "umbrella", "--mode", "grep", *model])
    assert result.exit_code == 2 and "mode must be one of" in result.output
