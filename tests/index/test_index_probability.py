"""Probabilities of hits: there with a calibrated model, absent without, and what people are told."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genius import Genius, Index, Item, Query
from genius.cli import app
from genius.errors import GeniusError
from genius.index.searching import not_rising
from genius.model.confidence import GROUPS, OF_ANSWER, OF_HIT

WORDS = ["red circle", "green square", "blue star", "old tall tree", "new round table"]


def weights(answer: float) -> dict[str, dict[str, list[float]]]:
    """A hit is as likely as its score says; there is an answer with the same probability for all questions."""
    hit = [-2.0] * GROUPS + [4.0] * GROUPS + [0.0, 0.0]
    body = {"hit": hit, "answer": [answer] * GROUPS + [0.0] * (OF_ANSWER - GROUPS)}
    assert len(hit) == OF_HIT
    return {"embeddings": body}


def calibrated(folder: Path, model: Genius, answer: float) -> Path:
    """A model folder with weights."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["model"]["confidence"] = weights(answer)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def filled(path: Path, model: Genius) -> Index:
    index = Index(path, model)
    index.add([Item(id=str(i), text=text) for i, text in enumerate(WORDS)])
    return index


def test_no_probability_without_calibration(index: Index) -> None:
    index.add([Item(id="1", text="red circle")])
    hits = index.search(text="red circle", k=1)
    assert hits[0].probability is None and hits.answerable is None and not hits.doubtful


def test_every_hit_has_one_and_it_follows_the_score(model: Genius, tmp_path: Path) -> None:
    sure = Genius.from_pretrained(calibrated(tmp_path / "model", model, 3.0))
    assert sure.fingerprint() == model.fingerprint()  # another calibration is no other model: indexes stay valid
    with filled(tmp_path / "a.genius", sure) as index:
        hits = index.search(text="red circle", target="any", k=3)
        assert len(hits) == 3 and hits[0].id == "0"
        likely = [hit.probability or 0 for hit in hits]
        assert likely == sorted(likely, reverse=True) and 0 < likely[-1] < likely[0] < 1
        assert hits.answerable == pytest.approx(0.9526, abs=1e-3) and not hits.doubtful
        few = index.search(text="red circle", target="any", k=1)
        assert few[0].probability == pytest.approx(hits[0].probability) and few.answerable == hits.answerable
        z = sure.embed_queries([Query(text="red circle")]).z
        assert index.search_embedded(z)[0].answerable is None  # nobody said whether the question has a picture


def test_people_are_told_when_there_is_probably_nothing(model: Genius, tmp_path: Path) -> None:
    folder = calibrated(tmp_path / "model", model, -3.0)
    filled(tmp_path / "a.genius", Genius.from_pretrained(folder)).close()
    arguments = ["search", str(tmp_path / "a.genius"), "--text", "red circle", "--model", str(folder)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0 and "probably no match" in shown.output and " %" in shown.output
    body = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout.strip().splitlines()[-1])
    assert body["doubtful"] and body["answerable"] < 0.1 and 0 < body["hits"][0]["probability"] < 1


def test_a_least_probability_leaves_nothing_and_says_so(model: Genius, tmp_path: Path) -> None:
    folder = calibrated(tmp_path / "model", model, -3.0)
    with filled(tmp_path / "a.genius", Genius.from_pretrained(folder)) as index:
        assert len(index.search(text="red circle", min_probability=0.01)) == len(index.search(text="red circle")) > 0
        nothing = index.search(text="red circle", min_probability=0.5)
        assert not nothing and nothing.answerable == pytest.approx(0.0474, abs=1e-3)
        assert nothing.why is not None and nothing.why.startswith("nothing like that here")
        for wrong in (1.5, -0.1, float("nan")):
            with pytest.raises(GeniusError, match="min_probability must be a number from 0 to 1"):
                index.search(text="red circle", min_probability=wrong)
    arguments = ["search", str(tmp_path / "a.genius"), "--text", "red circle", "--model", str(folder), "--min-probability"]
    shown = CliRunner().invoke(app, [*arguments, "0.5"])
    assert shown.exit_code == 0 and "nothing like that here" in shown.output
    assert "nothing like that here" not in CliRunner().invoke(app, [*arguments, "0.01"]).output


def test_a_least_probability_needs_calibration(index: Index) -> None:
    index.add([Item(id="1", text="red circle")])
    with pytest.raises(GeniusError, match="calibrated"):
        index.search(text="red circle", min_probability=0.5)


def test_foreign_weights_are_refused_when_the_model_is_read(model: Genius, tmp_path: Path) -> None:
    folder = calibrated(tmp_path / "model", model, 0.0)
    config = json.loads((folder / "config.json").read_text())
    config["model"]["confidence"] = {"embeddings": {"hit": ["x"], "answer": None}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(GeniusError, match="confidence"):
        Genius.from_pretrained(folder)
    assert dataclasses.asdict(model.config)["confidence"] == {}


def test_neighbours_in_the_wrong_order_are_averaged_by_their_number() -> None:
    """Three that rise become their mean: the first two together count twice as much as the third."""
    assert not_rising([0.9, 0.2, 0.4, 0.6]) == pytest.approx([0.9, 0.4, 0.4, 0.4])
    assert not_rising([0.5, 0.4, 0.1]) == [0.5, 0.4, 0.1]
