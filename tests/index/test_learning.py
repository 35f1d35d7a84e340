"""`Index.learn`: what queries change in an index, what is refused, and that nothing is lost by it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file, save_file

from genius import Genius, GeniusError, Index, Query, files
from genius.index import learned
from genius.index.learning import QueryLog, read_log
from genius.index.paths import LEARNED
from genius.model.query_bank import QueryBank
from genius.search import SearchParams, SearchRequest
from genius.types import Item

ITEMS = 60
HUB = "hub"


def vectors(count: int, width: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.fixture
def filled(index: Index) -> Index:
    """Texts, of which one is similar to every query by construction of the queries."""
    index.add([Item(f"item {number}", text=f"thing {number}") for number in range(ITEMS)])
    return index


def queries_near(index: Index, name: str, count: int, seed: int = 11) -> list[dict[str, Any]]:
    """Vectors of text queries for texts, each a bit of one item and a bit of anything."""
    stored = {item: vector for names, rows, _ in index.vectors() for item, vector in zip(names, rows, strict=True)}
    noise = vectors(count, index.about.width, seed)
    made = F.normalize(stored[name] + noise, dim=1)
    return [{"vector": row.tolist(), "query_modality": "text", "target": "text"} for row in made]


def test_a_hub_is_found_less_often_and_the_switch_restores(filled: Index) -> None:
    hub = "item 7"
    log = queries_near(filled, hub, 600)
    z = torch.tensor([entry["vector"] for entry in queries_near(filled, hub, 50, seed=1)])
    texts = torch.ones(50, dtype=torch.long)

    def first_hits(**more: Any) -> list[str]:
        request = SearchRequest(1, **more)
        return [hits[0].id for hits in filled.search_embedded(z, targets=texts, request=request, modality=texts)]

    before = first_hits()
    found = filled.learn(log)
    after = first_hits()
    assert found.queries == 600 and found.chosen_by == "agreement" and found.directions[0].weight == 0.3
    assert after.count(hub) < 0.8 * before.count(hub)
    assert first_hits(item_bias=False) == before
    assert first_hits(params=SearchParams(item_bias=False)) == before
    assert filled.info()["learned"]["queries"] == 600
    assert filled.forget() and first_hits() == before and not filled.forget()


def test_positives_decide(filled: Index) -> None:
    """Clicks on the hub itself say that there is nothing to correct; clicks on the others that there is."""
    hub = "item 7"
    log = queries_near(filled, hub, 300)
    wanted = filled.learn([{**entry, "clicked": hub} for entry in log])
    assert wanted.chosen_by == "positives" and wanted.directions[0].weight == 0
    stored = {item: vector for names, rows, _ in filled.vectors() for item, vector in zip(names, rows, strict=True)}
    names = list(stored)
    others = []
    for number in range(300):
        name = names[number % ITEMS]
        noise = 0.5 * vectors(1, filled.about.width, 1000 + number)[0]
        row = F.normalize(0.5 * stored[name] + 0.8 * stored[hub] + noise, dim=0)
        others.append({"vector": row.tolist(), "query_modality": "text", "target": "text", "clicked": [name]})
    corrected = filled.learn(others)
    assert corrected.chosen_by == "positives" and corrected.directions[0].weight > 0


def test_texts_are_embedded_as_a_search_embeds_them(filled: Index) -> None:
    log = [f"thing number {number}" for number in range(80)]
    found = filled.learn([*log, *log])  # equal ones count once
    assert found.queries == 80
    bank = learned.load(filled.path, filled.about.fingerprint, filled.about.width, None)
    assert bank is not None
    z = filled.model.embed_queries([Query(log[3])]).z[0]
    assert torch.allclose(torch.as_tensor(bank.z)[3], z.cpu(), atol=2e-3)


def test_added_items_and_other_processes_follow(filled: Index) -> None:
    other = Index.open(filled.path, filled.model)
    other.search("thing 1")
    hub = "item 7"
    filled.learn(queries_near(filled, hub, 300))
    filled.add([Item("later", text="thing 7")])  # as the hub
    text = torch.ones(1, dtype=torch.long)
    z = torch.tensor([queries_near(filled, hub, 1, seed=3)[0]["vector"]])

    def scores(index: Index, **more: Any) -> dict[str, float]:
        hits = index.search_embedded(z, targets=text, request=SearchRequest(ITEMS + 1, **more), modality=text)[0]
        return {hit.id: hit.score for hit in hits}

    own, without = scores(filled), scores(filled, item_bias=False)
    assert own["later"] == pytest.approx(own[hub], abs=2e-3)
    assert without[hub] - own[hub] > 0.005
    assert scores(other) == pytest.approx(own, abs=5e-3)  # its mean is over one item more
    explained = filled.explain(Query("thing 7"), SearchRequest(3))
    assert all(answer["item_bias"] is not None for answer in explained["answers"])


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ([], "0 different queries of 0"),
        (["the same"] * 500, "1 different queries of 500"),
        ([{"vector": [1.0, 2.0], "query_modality": "text"}] * 70, r"query 1: its vector has the shape \(2,\)"),
        ([{"vector": [float("nan")] * 32, "query_modality": "text"}] * 70, "query 1: .*its vector holds NaN"),
        ([{"vector": "AAAA", "fingerprint": "0123456789"}] * 70, "another model"),
        ([{"text": "a", "target": "sound"}] * 70, "unknown modality"),
        ([{"text": "a", "clicked": 7}] * 70, "clicked"),
    ],
)
def test_what_is_refused_changes_nothing(filled: Index, log: list[Any], line: str) -> None:
    with pytest.raises(GeniusError, match=line) as caught:
        filled.learn(log)
    assert "\n" not in str(caught.value)
    assert not (filled.path / LEARNED).exists()


def test_what_was_learned_before_survives_a_log_that_is_refused(filled: Index) -> None:
    filled.learn(queries_near(filled, "item 7", 100))
    before = (filled.path / LEARNED).read_bytes()
    hits = [(hit.id, hit.score) for hit in filled.search("thing 7")]
    nan = {"vector": [float("nan")] * filled.about.width, "query_modality": "text"}
    for log in ([], ["the same"] * 500, [*queries_near(filled, "item 9", 100), nan], [{"vector": "AAAA", "fingerprint": "0123"}]):
        with pytest.raises(GeniusError):
            filled.learn(log)
    assert (filled.path / LEARNED).read_bytes() == before
    assert [(hit.id, hit.score) for hit in filled.search("thing 7")] == hits


def own_bank(index: Index, weight: float) -> QueryBank:
    """Real queries of a model, near one item, whose weight held-out queries have chosen."""
    near = queries_near(index, "item 7", 400, seed=5)
    text = np.ones(400, np.int64)
    weights = np.full((3, 3), weight, np.float32)
    z = np.array([entry["vector"] for entry in near], np.float32)
    return QueryBank(z, text, text, bias_weights=weights, bias_temperatures=np.full((3, 3), 0.05, np.float32))


def test_queries_of_another_encoder_that_hide_it_are_refused(filled: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of the same width without a fingerprint: they look nowhere near the items."""
    monkeypatch.setattr(filled.model, "queries", own_bank(filled, 0.65))
    log = [{"vector": row.tolist(), "query_modality": "text", "target": "text"} for row in vectors(300, filled.about.width, 77)]
    with pytest.raises(GeniusError, match=r"no direction .* have nothing to do with this collection: the index is unchanged$"):
        filled.learn(log)
    assert not (filled.path / LEARNED).exists()


@pytest.mark.parametrize("weight", [0.65, 0.0])
def test_a_short_log_keeps_what_the_model_chose(filled: Index, weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """70 queries alone would have a weight near .1; the model's own bank completes them and keeps its weight."""
    monkeypatch.setattr(filled.model, "queries", own_bank(filled, weight))
    found = filled.learn(queries_near(filled, "item 7", 70))
    assert found.queries >= 64
    assert found.directions[0].weight == pytest.approx(weight)
    assert found.directions[0].queries == found.queries + 400
    assert filled.info()["learned"]["queries"] == found.queries


@pytest.mark.parametrize("length", [1e30, 1e-30])
def test_the_length_of_a_logged_vector_means_nothing(filled: Index, length: float) -> None:
    log = queries_near(filled, "item 7", 100)
    filled.learn(log)
    expected = load_file(filled.path / LEARNED)["z"]
    filled.learn([{**entry, "vector": [length * value for value in entry["vector"]]} for entry in log])
    assert np.array_equal(load_file(filled.path / LEARNED)["z"], expected)


def test_a_damaged_or_foreign_file_counts_as_none(filled: Index, model: Genius) -> None:
    filled.learn(queries_near(filled, "item 7", 100))
    plain = [hit.id for hit in filled.search("thing 7", item_bias=False)]
    path = filled.path / LEARNED
    arrays, about = load_file(path), learned.learned_metadata(filled.path)
    damaged = [
        ("bias_weights", np.full((3, 3), np.nan, np.float32)),
        ("z", np.zeros((4, 3), np.float16)),
        ("z", np.full_like(arrays["z"], np.nan)),
    ]
    for name, value in damaged:
        save_file({**arrays, name: value}, path, about)
        assert [hit.id for hit in Index.open(filled.path, model).search("thing 7")] == plain
    first = filled.versions()[0]["version"]
    for version in ("", "soon", "9" * 6000):  # of a folder from elsewhere
        save_file(arrays, path, {**about, "version": version})
        older = Index.open(filled.path, model, version=first)
        assert older.search("thing 7") == []
        assert older.info()["learned"] is None
    save_file(arrays, path, {**about, "fingerprint": "another"})
    assert learned.load(filled.path, filled.about.fingerprint, filled.about.width, None) is None
    path.write_bytes(b"nonsense")
    assert [hit.id for hit in Index.open(filled.path, model).search("thing 7")] == plain


def test_snapshots_have_it_and_older_versions_do_not(filled: Index, tmp_path: Path, model: Genius) -> None:
    first = filled.version
    filled.add([Item("more", text="more")])
    filled.learn(queries_near(filled, "item 7", 100))
    filled.snapshot(tmp_path / "copy.genius")
    assert Index.open(tmp_path / "copy.genius", model).info()["learned"]["queries"] == 100
    old = Index.open(filled.path, model, version=first)
    old.search("thing 7")
    assert old.live.learned is None and filled.live.learned is not None


def test_a_query_log_is_what_learn_reads(filled: Index, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    filled.query_log = QueryLog(log, filled.about.fingerprint, most=1 << 30).add
    for number in range(200):
        filled.search(f"thing {number * 7919:x} {number * 104729}", target="text")
    filled.query_log = None
    assert "thing" not in log.read_text()
    assert 64 <= filled.learn(read_log(log)).queries <= 200
    small = QueryLog(tmp_path / "small.jsonl", "f", most=200)
    for _ in range(10):
        small.add(torch.ones(1, 32), torch.ones(1, dtype=torch.long), [None])
    sizes = [path.stat().st_size for path in tmp_path.glob("small.jsonl*")]
    assert len(sizes) == 2 and max(sizes) < 600


def test_a_log_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for body, line in (("{", "line 1 is not JSON"), ("[]", "line 1 is not an object"), ('{"text": "a"}\n7', "line 2 is not")):
        path = tmp_path / "log.jsonl"
        path.write_text(body)
        with pytest.raises(GeniusError, match=line):
            list(read_log(path))
    with pytest.raises(GeniusError, match="cannot read"):
        list(read_log(tmp_path / "absent.jsonl"))


KILLED = """
import os, signal, sys
import genius.files as files
from genius.index import learned
from genius.model.query_bank import QueryBank
from pathlib import Path
import torch
bank = QueryBank.of(torch.eye(32).repeat(4, 1), torch.ones(128), torch.ones(128))
real = files.sync_file
def sync(path):
    if sys.argv[2] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    real(path)
files.sync_file = sync
learned.save(Path(sys.argv[1]), bank, {"fingerprint": "x"})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_kill_while_writing_leaves_the_former_file(filled: Index, model: Genius) -> None:
    filled.learn(queries_near(filled, "item 7", 100))
    former = (filled.path / LEARNED).read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(filled.path), "before"], env=dict(os.environ), check=False)
    assert done.returncode == -signal.SIGKILL
    assert (filled.path / LEARNED).read_bytes() == former
    half = [path for path in filled.path.iterdir() if path.name.startswith(f".{LEARNED}.")]
    assert half  # the kill came in the middle
    with Index.open(filled.path, model) as again:
        again.add([Item("next", text="next")])
    assert not any(path.exists() for path in half)


def test_the_command(filled: Index, model_folder: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from genius.cli import app

    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(entry) + "\n" for entry in queries_near(filled, "item 7", 100)))
    done = CliRunner().invoke(app, ["learn", str(filled.path), "--queries", str(log), "--model", str(model_folder), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["queries"] == 100
    shown = CliRunner().invoke(app, ["info", str(filled.path)])
    assert "learned   from 100 queries" in shown.stdout


@pytest.mark.parametrize(("body", "line"), [("", "0 different queries"), ('{"text": "a"}\n' * 90, "1 different queries of 90")])
def test_the_command_refuses_a_log_that_teaches_nothing(
    filled: Index, model_folder: Path, tmp_path: Path, body: str, line: str
) -> None:
    from typer.testing import CliRunner

    from genius.cli import app

    log = tmp_path / "log.jsonl"
    log.write_text(body)
    done = CliRunner().invoke(app, ["learn", str(filled.path), "--queries", str(log), "--model", str(model_folder)])
    assert done.exit_code == 2
    assert line in done.stderr and "the index is unchanged" in done.stderr and done.stderr.count("\n") == 1
    assert not (filled.path / LEARNED).exists()


def test_a_disk_that_fails_while_learning_is_one_line(filled: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors' own writer raised an error of its own."""
    log = queries_near(filled, "item 7", 600)

    def failing(path: Path, body: bytes) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_bytes", failing)
        with pytest.raises(GeniusError, match=r"cannot write .*Input/output error$"):
            filled.learn(log)
    assert learned.stamp(filled.path) is None


def test_learning_that_reports_an_error_although_done_says_so(filled: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "sync_directory", failing)
    with pytest.raises(GeniusError, match=r"Input/output error; the change is made, but a power cut may undo it$"):
        filled.learn(queries_near(filled, "item 7", 600))
    assert learned.stamp(filled.path) is not None
