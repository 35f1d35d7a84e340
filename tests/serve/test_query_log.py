"""A real service: it collects vectors of queries from which an index learns, and returns nothing below a probability."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_encoder import fake_model, register
from serve_fixtures import book
from typer.testing import CliRunner

from genius import Genius, Index, Query
from genius.cli import app
from genius.model.confidence import GROUPS, OF_ANSWER, OF_HIT

QUERIES = 80


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that finds an answer in one of twenty collections, whatever the query is."""
    register()
    folder = tmp_path_factory.mktemp("calibrated")
    fake_model().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    answer = [-3.0] * GROUPS + [0.0] * (OF_ANSWER - GROUPS)
    config["model"]["confidence"] = {"embeddings": {"hit": [0.0] * OF_HIT, "answer": answer}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_service_logs_queries_from_which_the_index_learns(
    calibrated: Path, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "book.genius"
    with Index(path, Genius.from_pretrained(calibrated)) as index:
        index.add(book())
    log = tmp_path / "queries.jsonl"
    server = start_server("--query-log", str(log), index=path, model=str(calibrated))
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        for number in range(QUERIES):
            body = {"text": f"thing {number * 7919:x} {number * 104729}", "target": "image"}
            assert client.post("/v1/search", json=body).status_code == 200
        likely = client.post("/v1/search", json={"text": "a red circle", "min_probability": 0.01}).json()
        unlikely = client.post("/v1/search", json={"text": "a red circle", "min_probability": 0.5}).json()
        assert client.post("/v1/search", json={"text": "a red circle", "min_probability": 2}).status_code == 422
    server.process.terminate()
    server.process.wait(60)
    assert likely["hits"] and not unlikely["hits"]
    assert unlikely["why"].startswith("nothing like that here") and unlikely["answerable"] < 0.1
    text = log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) >= QUERIES and "thing" not in text and "circle" not in text
    assert all(line["query_modality"] == "text" and line["fingerprint"] for line in lines)
    arguments = ["learn", str(path), "--queries", str(log), "--model", str(calibrated), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    learned = json.loads(done.stdout)
    assert QUERIES <= learned["queries"] <= 2 * (QUERIES + 2)  # images may be searched bare and in pairs
    with Index.open(path, Genius.from_pretrained(calibrated)) as index:
        explained = index.explain(Query("a red circle"))
    assert any(answer["item_bias"] is not None for answer in explained["answers"])
