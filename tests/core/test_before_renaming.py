"""What was written before the vocabulary of November 2026: a model, an index, a training config, requests and command lines.

`tests/kept/before_renaming.tar.xz` was made by commit 93ca01f over the tests' fake encoder. Its names are the former ones:
`own_books_from`, `nearness` and `bend` among the weights, `inputs = "questions"`, `minus`.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from fake_encoder import register
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from genius import Genius, Index, Item
from genius.cli import app
from genius.config import to_dict
from genius.index.check import check
from genius.serve.app import create_app
from genius.train.config import read_train_config

KEPT = Path(__file__).parents[1] / "kept" / "before_renaming.tar.xz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    register()
    with tarfile.open(KEPT) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Genius:
    return Genius.from_pretrained(folder / "model")


def saved_requests(folder: Path) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = json.loads((folder / "requests.json").read_text())
    return requests


def test_the_model_gives_the_codes_it_gave(folder: Path, model: Genius, tmp_path: Path) -> None:
    assert model.config.search == {"beams": 20, "rerank": 50}
    with Index.open(folder / "index.genius", model, read_only=True) as index:
        old = {item.id: (item.text, index.codes(item.id)) for item in index.items() if item.image is None}
    again = Index(tmp_path / "again.genius", model)
    again.add([Item(item_id, text=text) for item_id, (text, _) in old.items()])
    assert len(old) == 7
    assert {item_id: again.codes(item_id) for item_id in old} == {item_id: codes for item_id, (_, codes) in old.items()}


def test_requests_are_answered_as_before(folder: Path, model: Genius) -> None:
    with (
        Index.open(folder / "index.genius", model, read_only=True) as index,
        TestClient(create_app(index), base_url="http://localhost") as client,
    ):
        for saved in saved_requests(folder):
            answer = client.post("/v1/search", json=saved["request"])
            assert answer.status_code == 200, answer.text
            hits = answer.json()["hits"]
            assert len(hits) == len(saved["hits"])
            if "modality" not in saved["request"]:
                continue  # scores of several modalities are brought to one scale today before they are merged
            assert [[hit["id"], hit["codes"]] for hit in hits] == [hit[:2] for hit in saved["hits"]]
            assert [hit["score"] for hit in hits] == pytest.approx([hit[2] for hit in saved["hits"]], abs=1e-4)


def test_the_index_takes_writes(folder: Path, model: Genius, tmp_path: Path) -> None:
    place = tmp_path / "index.genius"
    shutil.copytree(folder / "index.genius", place)
    with Index.open(place, model) as index:
        assert len(index) == 23
        index.add([Item("new", text="a new boat")])
        index.upsert([Item("red-car", text="no car")])
        index.delete("red-hat")
        index.optimize()
    with Index.open(place, model) as index:
        assert len(index) == 23
        assert index.search("a new boat", modality="text", k=1)[0].id == "new"
        assert index.get("red-car").text == "no car"
    assert check(place).ok


def test_the_training_config_means_what_it_meant(folder: Path) -> None:
    saved = json.loads((folder / "train.json").read_text())
    config = to_dict(read_train_config(str(folder / "train.json")))
    assert saved.pop("tensorboard") is False  # read, and without effect
    assert saved["generator"].pop("virtual") == 1.0  # the share of synthetic items that every config has now
    assert saved["generator"].pop("inputs") == "questions"
    assert config["generator"].pop("inputs") == "queries"
    for name, value in saved.items():
        if isinstance(value, dict):
            read = {key: config[name][key] for key in value}
            assert read == value, name
        else:
            assert config[name] == value, name


def test_a_command_line_of_before_works(folder: Path) -> None:
    saved = next(saved for saved in saved_requests(folder) if {"minus", "modality"} <= saved["request"].keys())
    place = str(folder / "index.genius")
    arguments = [
        "search",
        place,
        saved["request"]["text"],
        "--model",
        str(folder / "model"),
        "--minus",
        saved["request"]["minus"],
    ]
    result = CliRunner().invoke(app, [*arguments, "--modality", "image", "--beams", "20", "-k", "4", "--json"])
    assert result.exit_code == 0, result.output
    assert [hit["id"] for hit in json.loads(result.stdout)["hits"]] == [hit[0] for hit in saved["hits"]]
