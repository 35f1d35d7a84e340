"""Vectors, encoders and collection names that do not fit: one clear line each, and nothing is changed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import fake_encoder
import numpy as np
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from genius import Genius, GeniusError, Index, Item
from genius.cli import app as command_line

WIDTH = 3


@pytest.fixture
def own(tmp_path: Path) -> Index:
    index = Index.create(tmp_path / "own.genius", dim=WIDTH)
    index.add([Item("a", vector=[1, 0, 0]), Item("b", vector=[0, 1, 0])])
    return index


@pytest.fixture
def web(own: Index, tmp_path: Path) -> Iterator[TestClient]:
    from genius.serve.app import create_app
    from genius.serve.settings import ServeConfig

    other = Index.create(tmp_path / "other.genius", dim=WIDTH)
    with TestClient(create_app({"own": own, "other": other}, ServeConfig()), base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "status", "line"),
    [
        ("own/search", '{"vector": [1, 2]}', 422, "2 wide; vectors of this index are 3 wide"),
        ("own/items", '{"items": [{"id": "x", "vector": [1, 2]}]}', 422, "item 'x': its vector is 2 wide"),
        ("own/search", '{"vector": [NaN, 0, 1]}', 422, "finite number"),
        ("own/items", '{"items": [{"id": "x", "vector": [NaN, 0, 1]}]}', 422, "finite number"),
        ("own/search", '{"text": "a red bicycle"}', 422, "holds vectors only and has no encoder"),
        ("own%2Fother/search", '{"vector": [1, 0, 0]}', 404, "the name of a collection has no slash"),
        ("own/other/search", '{"vector": [1, 0, 0]}', 404, "the name of a collection has no slash"),
        ("none/search", '{"vector": [1, 0, 0]}', 404, "no collection 'none'"),
    ],
)
def test_over_http(web: TestClient, own: Index, path: str, body: str, status: int, line: str) -> None:
    answer = web.post(f"/v1/collections/{path}", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, line in answer.json()["error"]["message"]) == (status, True), answer.text
    assert "\n" not in answer.json()["error"]["message"]
    assert sorted(item.id for item in own) == ["a", "b"]


def test_on_the_command_line(own: Index, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.ones((2, WIDTH + 1), np.float32))
    np.save(tmp_path / "nan.npy", np.full((1, WIDTH), np.nan, np.float32))
    lines = {
        ("index", str(tmp_path / "wide.npy"), "-o", str(own.path)): "its vector is 4 wide; vectors of this index are 3 wide",
        ("index", str(tmp_path / "nan.npy"), "-o", str(own.path)): "its vector holds NaN or infinity",
    }
    for arguments, line in lines.items():
        result = CliRunner().invoke(command_line, arguments)
        assert result.exit_code == 1 and line in result.output, result.output
    result = CliRunner().invoke(command_line, ("search", str(own.path), "a red bicycle"))
    assert result.exit_code == 2 and "holds vectors only and has no encoder" in result.output
    assert sorted(item.id for item in own) == ["a", "b"]


def test_a_model_folder_with_another_encoder(tmp_path: Path) -> None:
    fake_encoder.register()
    fake_encoder.fake_model().save_pretrained(tmp_path / "model")
    Index(tmp_path / "my.genius", tmp_path / "model").add([Item("a", text="a boat")])
    for width, line in ((32, "not with this model"), (48, "the encoder is 48 wide, the model expects 32")):
        shutil.rmtree(tmp_path / "model" / "encoder")
        fake_encoder.FakeEncoder(width, seed=7).save(tmp_path / "model" / "encoder")
        with pytest.raises(GeniusError, match=line) as refused:
            Index.open(tmp_path / "my.genius")
        assert "\n" not in str(refused.value)


def test_a_model_for_an_index_of_vectors(own: Index) -> None:
    with pytest.raises(GeniusError, match="was built with the model in its own folder"):
        Index.open(own.path, Genius.from_pretrained("bundled:mini"))
