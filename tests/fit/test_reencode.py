"""Another encoder for an index in use: items and changes stay, whoever has it open follows, a kill loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import fake_encoder
import pytest
from PIL import Image
from typer.testing import CliRunner

from genius import Genius, GeniusError, Index, Item
from genius.cli import app
from genius.encoders.base import encode_items
from genius.fit import FitConfig
from genius.fit import reencode as switching
from genius.fit.reencode import OriginalsMissing, go_back, reencode
from genius.index import learned, learning, searching
from genius.index.check import check
from genius.index.folder import WriteLock, about_of
from genius.index.opened import RETRIES, Replaced
from genius.index.paths import previous_of, replacement_of, write_origin
from genius.index.reader import Vanished
from genius.index.repair import repair

WORDS = ("red", "blue", "green", "round", "square", "small", "large", "old")
QUERY = "red round thing"


@pytest.fixture(autouse=True)
def registered() -> None:
    fake_encoder.register()


def things(first: int, last: int) -> list[Item]:
    return [
        Item(f"t{i}", text=f"{WORDS[i % 8]} {WORDS[i * 3 % 8]} thing number {i}", metadata={"n": i}) for i in range(first, last)
    ]


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    """40 texts, two images by path and one by its bytes, under an encoder 32 wide; `other/` holds one 48 wide."""
    fake_encoder.fake_model().save_pretrained(tmp_path / "first")
    (tmp_path / "other").mkdir()
    fake_encoder.FakeEncoder(48, seed=1).save(tmp_path / "other")
    for number, colour in enumerate(("red", "blue")):
        Image.new("RGB", (24, 24), colour).save(tmp_path / f"{number}.png")
    path = tmp_path / "my.genius"
    with Index(path, tmp_path / "first") as index:
        index.add(things(0, 40))
        pictures = [Item(f"p{n}", image=tmp_path / f"{n}.png", text=f"picture {n}", metadata={"n": n}) for n in range(2)]
        index.add([*pictures, Item("bytes", image=(tmp_path / "0.png").read_bytes())])
    return path


def other(path: Path) -> str:
    return str(path.parent / "other")


def contents(index: Index) -> dict[str, object]:
    return {item.id: (item.text, dict(item.metadata), item.modality) for item in index.items()}


def best(index: Index) -> list[tuple[str, float]]:
    return [(hit.id, round(hit.score, 4)) for hit in index.search(QUERY, k=5, target="any")]


def test_items_stay_and_open_indexes_follow(index_path: Path) -> None:
    with Index.open(index_path) as open_before, Index.open(index_path, index_path.parent / "first") as with_model:
        kept = contents(open_before)
        before = best(open_before)
        done = reencode(index_path, other(index_path))
        assert (done.items, done.encoded, done.skipped.total) == (43, 43, 0)
        assert best(open_before) != before
        assert open_before.model.encoder is not None and open_before.model.encoder.width == 48
        assert contents(open_before) == kept
        assert open_before.get("bytes").image is not None
        with Index.open(index_path) as fresh:
            assert best(fresh) == best(open_before)
        open_before.add(things(40, 42))  # a write follows, too
        assert len(open_before) == 45
        with pytest.raises(GeniusError, match="replaced by another index"):
            with_model.search(QUERY)  # it was opened with a model of the user's own
    assert check(index_path).ok


def test_back_brings_the_encoder_of_before_and_keeps_later_changes(index_path: Path) -> None:
    first = about_of(index_path)
    with Index.open(index_path) as index:
        before = best(index)
    reencode(index_path, other(index_path))
    with Index.open(index_path) as index:
        index.add([Item("later", text="large old thing", metadata={"n": 99})])
        index.upsert([Item("t3", text="small green thing")])
        index.delete("t4")
        changed = contents(index)
        done = go_back(index_path)
        assert (done.carried, done.deleted) == (2, 1)
        assert about_of(index_path).fingerprint == first.fingerprint
        assert contents(index) == changed
        shared = [hit for hit in best(index) if hit[0] not in ("later", "t3")]
        assert shared[0] == next(hit for hit in before if hit[0] not in ("t3", "t4"))
        go_back(index_path)  # forward again
        assert about_of(index_path).fingerprint != first.fingerprint
        assert contents(index) == changed
    assert check(index_path).ok


def test_renames_that_fail_on_the_way_back(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails, one line says how it is, and the next writer has a whole index."""
    reencode(index_path, other(index_path))
    new = about_of(index_path).id
    rename = Path.rename

    def failing(target: Path) -> Callable[[Path, Path], object]:
        def run(source: Path, to: Path) -> object:
            if to == target:
                raise OSError(5, "Input/output error")
            return rename(source, to)

        return run

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", failing(index_path))
        with pytest.raises(GeniusError, match=r"lies whole in .*gives it its name again"):
            go_back(index_path)
    assert not index_path.exists()
    repair(index_path)
    assert about_of(index_path).id == new
    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", failing(previous_of(index_path)))
        with pytest.raises(GeniusError, match="is made what it was"):
            go_back(index_path)
    assert about_of(index_path).id != new and check(index_path).ok
    with Index(index_path) as index:
        index.add(things(60, 61))
    assert [path.name for path in index_path.parent.glob(".my.genius*")] == []


def test_changes_made_meanwhile_are_carried_over(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = switching._Run._model
    fitted = []

    def changing(run: switching._Run) -> Genius:
        with Index.open(index_path) as index:
            index.add(things(50, 53))
            index.upsert([Item("t5", text="replaced meanwhile")])
            index.delete("t6")
            fitted.append(contents(index))
        return fit(run)

    monkeypatch.setattr(switching._Run, "_model", changing)
    reencode(index_path, other(index_path))
    with Index.open(index_path) as index:
        assert contents(index) == fitted[0]
        assert index.get("t5").text == "replaced meanwhile"


def test_originals_that_are_gone_are_listed_and_nothing_changes(index_path: Path) -> None:
    (index_path.parent / "1.png").unlink()
    before = about_of(index_path)
    with pytest.raises(OriginalsMissing, match=r"1 item of .* cannot be encoded again.*p1.*--skip-missing") as refused:
        reencode(index_path, other(index_path))
    assert [line.partition(":")[0] for line in refused.value.problems] == ["p1"]
    assert about_of(index_path) == before
    result = CliRunner().invoke(app, ["reencode", str(index_path), "--encoder", other(index_path)])
    assert result.exit_code != 0 and "p1" in result.output and "Traceback" not in result.output
    done = reencode(index_path, other(index_path), skip_missing=True)
    assert (done.items, [line.partition(":")[0] for line in done.skipped]) == (42, ["p1"])
    with Index.open(index_path) as index:
        assert "p1" not in index
    go_back(index_path)
    with Index.open(index_path) as index:
        assert "p1" in index  # it was not deleted, only left out


def test_nothing_to_go_back_to(index_path: Path) -> None:
    with pytest.raises(GeniusError, match="nothing to go back to"):
        go_back(index_path)
    with pytest.raises(GeniusError, match="no such model"):
        reencode(index_path, "local-dir:/nowhere")


PROGRAM = """
import json, os, signal, sys
import fake_encoder
from genius import Index
from genius.fit import FitConfig, folder
from genius.fit import reencode as switching
from genius.index.check import check

fake_encoder.register()
path, encoder = sys.argv[1:]
switching.AT_ONCE = 8  # many parts


def child(work):  # LanceDB cannot be used on both sides of a fork: the parent only forks
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def dies_at(owner, name, call):
    "The process is killed before the given call of a function."
    function, calls = getattr(owner, name), [0]

    def counting(*args, **options):
        calls[0] += 1
        if calls[0] == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)

    setattr(owner, name, counting)
    switch()


def switch():
    done = switching.reencode(path, encoder, config=FitConfig(steps=20))
    print(json.dumps({"encoded": done.encoded}), flush=True)


def look():
    with Index.open(path) as index:
        found = len(index.search("red round thing", k=50, target="any"))
        print(json.dumps([sorted(item.id for item in index.items()), found, check(path).ok]), flush=True)


for owner, name, call in (
    (folder.Encoded, "add", 3),
    (switching, "stored_again", 1),
    (folder, "swap", 1),
):
    status = child(lambda: dies_at(owner, name, call))
    assert os.WIFSIGNALED(status), (name, status)
    assert child(look) == 0
assert child(switch) == 0
assert child(look) == 0
"""


def test_killed_at_any_stage_it_resumes(index_path: Path) -> None:
    """Real processes, killed at later and later stages; each leaves an index that answers, and the last one switches it."""
    with Index.open(index_path) as index:
        ids = sorted(contents(index))
    first = about_of(index_path).fingerprint
    path = os.pathsep.join([str(Path(fake_encoder.__file__).parent), *sys.path])
    command = [sys.executable, "-c", PROGRAM, str(index_path), other(index_path)]
    result = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    *looks, done, last = [json.loads(line) for line in result.stdout.splitlines()]
    assert [*looks, last] == [[ids, 43, True]] * 4
    assert done == {"encoded": 0}  # all parts were finished by processes that were killed
    assert about_of(index_path).fingerprint != first
    assert sorted(path.name for path in index_path.parent.iterdir() if path.name.startswith(".")) == [".my.genius.previous"]


def test_searches_during_the_switch_are_of_one_encoder(index_path: Path) -> None:
    with Index.open(index_path) as index:
        before = best(index)
        answers: list[list[tuple[str, float]]] = []
        broken: list[BaseException] = []
        stop = threading.Event()

        def search() -> None:
            while not stop.is_set():
                try:
                    answers.append(best(index))
                except BaseException as error:
                    broken.append(error)
                    return

        threads = [threading.Thread(target=search) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            reencode(index_path, other(index_path))
            go_back(index_path)
            reencode(index_path, other(index_path))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not broken, broken[0]
        after = best(index)
        assert before != after
        assert all(answer in (before, after) for answer in answers)


def test_a_service_follows(index_path: Path) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    from genius.serve.app import create_app

    with testclient.TestClient(create_app(Index.open(index_path)), base_url="http://localhost") as client:

        def found() -> list[str]:
            answer = client.post("/v1/search", json={"text": QUERY, "k": 5, "target": "any"})
            assert answer.status_code == 200, answer.text
            return [hit["id"] for hit in answer.json()["hits"]]

        ids = [item["id"] for item in client.get("/v1/items").json()["items"]]
        codes = client.get("/v1/items/t1").json()["codes"]
        assert found()
        reencode(index_path, other(index_path))
        assert client.get("/v1/items/t1").json()["codes"] != codes
        assert [item["id"] for item in client.get("/v1/items").json()["items"]] == ids
        with Index.open(index_path) as fresh:
            assert found() == [hit.id for hit in fresh.search(QUERY, k=5, target="any")]
        created = client.put("/v1/items/new", json={"text": "a small blue thing"})
        assert created.status_code == 201
        assert client.get("/readyz").status_code == 200


def test_two_at_once(index_path: Path) -> None:
    (index_path / "reencoded").mkdir()
    held = WriteLock(index_path / "reencoded" / ".lock", 0.0).hold()
    with held, pytest.raises(GeniusError, match="is being written by another process"):
        reencode(index_path, other(index_path))


# -- two encoders of one width: nothing but care keeps their vectors apart ---------------------------------------------


def switched(folder: Path, width: int) -> Path:
    """An index of 40 texts that were switched from an encoder 32 wide to another; the one before is kept."""
    fake_encoder.register()
    fake_encoder.fake_model().save_pretrained(folder / "first")
    (folder / "other").mkdir()
    fake_encoder.FakeEncoder(width, seed=1).save(folder / "other")
    with Index(folder / "my.genius", folder / "first") as index:
        index.add(things(0, 40))
    reencode(folder / "my.genius", str(folder / "other"), config=FitConfig(steps=20))
    return folder / "my.genius"


@pytest.fixture(scope="module")
def two_generations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both encoders are 32 wide."""
    return switched(tmp_path_factory.mktemp("same"), 32)


@pytest.fixture
def same_width(two_generations: Path, tmp_path: Path) -> Path:
    path = tmp_path / two_generations.name
    shutil.copytree(two_generations, path)
    shutil.copytree(previous_of(two_generations), previous_of(path))
    return path


def switch_and_follow(index: Index) -> None:
    """The other generation takes the place of this one, and another thread is the first that notices."""
    go_back(index.path)
    thread = threading.Thread(target=index.search, args=("something",))
    thread.start()
    thread.join()


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("switches", [1, 2, RETRIES + 1])
def test_a_switch_between_encoding_and_search(
    same_width: Path, monkeypatch: pytest.MonkeyPatch, switches: int, followed: bool
) -> None:
    references = {}
    for _ in range(2):
        with Index.open(same_width) as index:
            references[index.about.id] = best(index)
        go_back(same_width)
    assert len({str(reference) for reference in references.values()}) == 2
    left = [switches]
    searcher = threading.current_thread()

    def embed(*arguments: Any) -> Any:
        embedded = encode(*arguments)
        if threading.current_thread() is searcher and left[0]:
            left[0] -= 1
            if followed:
                switch_and_follow(index)
            else:
                go_back(same_width)
        return embedded

    encode = searching.embed_queries
    monkeypatch.setattr(searching, "embed_queries", embed)
    with Index.open(same_width) as index:
        if switches > RETRIES:
            with pytest.raises(Replaced):
                best(index)
        else:
            assert best(index) == references[about_of(same_width).id]
        assert left == [0]
        assert best(index) == references[about_of(same_width).id]


def test_a_search_that_a_switch_breaks_is_repeated_whatever_broke(
    same_width: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure that nobody knows yet is logged with its cause; without a switch it is told."""
    encode = searching.embed_queries
    switch = [True]

    def embed(*arguments: Any) -> Any:
        if switch.pop():
            go_back(same_width)
        raise KeyError("a row of the other generation")

    with Index.open(same_width) as index:
        monkeypatch.setattr(searching, "embed_queries", lambda *arguments: embed() if switch else encode(*arguments))
        assert len(best(index)) > 0 and not switch
        assert "a row of the other generation" in caplog.text
        switch.append(False)
        with pytest.raises(KeyError):
            best(index)


@pytest.fixture(scope="module")
def two_widths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second encoder is 48 wide, with other codes."""
    return switched(tmp_path_factory.mktemp("widths"), 48)


def exchange_in_two_steps(path: Path) -> threading.Thread:
    """For some milliseconds there is no folder under the name, as between the two renames of a switch."""
    previous = previous_of(path)
    aside = replacement_of(path)
    write_origin(previous, about_of(path).id)
    path.rename(aside)

    def finish() -> None:
        time.sleep(0.02)
        previous.rename(path)
        aside.rename(previous)

    thread = threading.Thread(target=finish)
    thread.start()
    return thread


def run_with_switches(call: Callable[[], Any], switch: Callable[[], Any], points: tuple[int, ...]) -> tuple[Any, int]:
    """What a call returns, if the index is switched before the given calls of functions of the library, and how many it made."""
    calls = 0

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        if event != "call" or f"{os.sep}genius{os.sep}" not in frame.f_code.co_filename:
            return
        calls += 1
        if calls in points:
            sys.setprofile(None)
            switch()
            sys.setprofile(on_event)

    sys.setprofile(on_event)
    try:
        return call(), calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("name", ["get", "search", "open"])
@pytest.mark.parametrize("way", ["at once", "in two steps", "there and back"])
def test_a_switch_at_any_point_of_a_read(two_widths: Path, name: str, way: str, caplog: pytest.LogCaptureFixture) -> None:
    """Twelve points of each call; it answers from one of the two, and fails in no way that is not foreseen."""
    waiting: list[threading.Thread] = []

    def switch() -> None:
        if way == "in two steps":
            waiting.append(exchange_in_two_steps(two_widths))
        else:
            switching._exchange(two_widths, previous_of(two_widths), about_of(two_widths))

    def opened() -> Any:
        with Index.open(two_widths) as fresh:
            return best(fresh)

    answers = []
    calls = 0
    for _ in range(2):
        with Index.open(two_widths) as index:
            reads = {"get": lambda: index.get("t3").text, "search": lambda: best(index), "open": opened}
            answer, made = run_with_switches(reads[name], switch, ())
        answers.append(answer)
        calls = max(calls, made)
        switching._exchange(two_widths, previous_of(two_widths), about_of(two_widths))
    for place in range(12):
        point = 1 + calls * place // 12
        points = (point,)
        if way == "there and back":
            points = (point, point + 1 + calls // 3)
        with Index.open(two_widths) as index:
            found, _ = run_with_switches(reads[name], switch, points)
        for thread in waiting:
            thread.join()
        assert found in answers, (point, calls)
    assert not caplog.records


def test_features_of_the_encoder_before_are_refused(same_width: Path) -> None:
    late = things(50, 52)
    with Index.open(same_width) as index:
        assert index.model.encoder is not None
        features = encode_items(index.model.encoder, late)[0]
        go_back(same_width)
        with pytest.raises(Replaced):
            index.add(late, features=features)
        assert len(index) == 40


def test_features_of_the_encoder_before_are_refused_between_two_batches(same_width: Path) -> None:
    """The index follows a switch between two batches: the features are still those of the encoder before."""
    late = things(50, 52)
    with Index.open(same_width) as index:
        assert index.model.encoder is not None
        features = encode_items(index.model.encoder, late)[0]

        def switching() -> Iterator[Item]:
            yield late[0]
            go_back(same_width)
            assert len(index) == 41  # it was carried over
            yield late[1]

        with pytest.raises(Replaced):
            index.add(switching(), batch_size=1, features=features)
        assert len(index) == 41


def test_a_switch_while_it_learns(same_width: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def embedded(state: Index, *arguments: Any) -> Any:
        used.append(state.about.fingerprint)
        bank = embed(state, *arguments)
        if len(used) == 1:
            switch_and_follow(state)
        return bank

    embed = learning._embedded
    monkeypatch.setattr(learning, "_embedded", embedded)
    with Index.open(same_width) as index:
        index.learn(f"{first} {second} thing" for first in WORDS for second in WORDS)
    assert len(set(used)) == 2
    assert learned.learned_metadata(same_width)["fingerprint"] == used[-1] == about_of(same_width).fingerprint


def test_a_reader_never_opens_the_table_of_another_generation(same_width: Path) -> None:
    previous = previous_of(same_width)
    with Index.open(same_width) as now, Index.open(previous) as before:
        while now.version != before.version:
            min(now, before, key=lambda index: index.version).upsert(things(0, 1))
        reader = now.store.at(now.version)
        same_width.rename(same_width.with_name("aside"))
        previous.rename(same_width)
        with pytest.raises(Vanished):
            list(reader.embeddings())
