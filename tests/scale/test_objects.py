"""Sources and indexes in an object store of this machine: fetched, published, followed; and refused in one line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import object_store
import pytest

from genius import Index, Item
from genius.errors import GeniusError
from genius.files import url_of
from genius.index.check import check
from genius.index.ingest import ingest
from genius.scale.objects import CLAIMS, Place, fetch_index, fetch_sources, publish


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store.running():
        yield "s3://shelf"


def put(url: str, name: str, body: bytes, folder: Path) -> None:
    path = folder / "put"
    path.write_bytes(body)
    Place(url).send(path, name)


def test_what_was_deleted_stays_deleted_in_a_published_copy(bucket: str, tmp_path: Path, model_folder: str) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a", "b"):
        (texts / f"{name}.txt").write_text(f"the text {name}")
    with Index(tmp_path / "i.genius", model_folder) as index:
        ingest(index, [texts])
        index.delete("texts/a.txt")
    publish(tmp_path / "i.genius", f"{bucket}/deleted")
    fetch_index(f"{bucket}/deleted", tmp_path / "copy.genius")
    with Index.open(tmp_path / "copy.genius", model_folder) as copy:
        assert ingest(copy, [texts]).left_deleted == 1 and "texts/a.txt" not in copy


def test_sources_are_fetched_and_only_what_changed_is_read_again(bucket: str, tmp_path: Path, model_folder: str) -> None:
    url = f"{bucket}/texts"
    for name in ("a", "b", "deep/c"):
        put(url, f"{name}.txt", f"the text {name}".encode(), tmp_path)
    index = Index(tmp_path / "i.genius", model_folder)
    local = fetch_sources(url, tmp_path / "copy")
    assert ingest(index, [local]).added == 3 and "texts/deep/c.txt" in index
    assert ingest(index, [fetch_sources(url, tmp_path / "copy")]).unchanged == 3
    time.sleep(1.1)  # the store counts whole seconds
    put(url, "a.txt", b"quite another text", tmp_path)
    Place(url).remove("b.txt")
    assert not (fetch_sources(url, tmp_path / "copy") / "b.txt").exists()
    report = ingest(index, [local])
    assert (report.replaced, report.unchanged) == (1, 1) and index.get("texts/a.txt").text == "quite another text"
    assert fetch_sources(f"{url}/deep/c.txt", tmp_path / "other").read_text() == "the text deep/c"
    with pytest.raises(GeniusError, match="nothing is stored at"):
        fetch_sources(f"{bucket}/none", tmp_path / "copy")


def test_an_index_is_published_and_followed_by_those_who_have_it_open(bucket: str, tmp_path: Path, model_folder: str) -> None:
    url = f"{bucket}/shop.genius"
    index = Index(tmp_path / "i.genius", model_folder)
    index.add([Item(f"{n}", text=f"thing {n}") for n in range(30)])
    publish(index.path, url)
    copy = tmp_path / "copy.genius"
    fetch_index(url, copy)
    reader = Index.open(copy, read_only=True)
    assert len(reader) == 30 and [h.id for h in reader.search("thing 7")] == [h.id for h in index.search("thing 7")]
    index.upsert([Item("7", text="seven no more"), Item("new", text="new")])
    index.delete("3")
    assert len(reader) == 30 and reader.get("7").text == "thing 7"  # not published yet
    publish(index.path, url)
    fetch_index(url, copy)
    assert len(reader) == 30 and "new" in reader and "3" not in reader and reader.get("7").text == "seven no more"
    from datetime import timedelta

    index.optimize(keep=timedelta(0))  # other files altogether
    publish(index.path, url)
    fetch_index(url, copy)
    assert len(reader) == 30 and reader.get("new").text == "new" and not check(copy).problems


def test_somebody_elses_place_is_not_written_to(bucket: str, tmp_path: Path, model_folder: str) -> None:
    url = f"{bucket}/taken.genius"
    one, other = Index(tmp_path / "1.genius", model_folder), Index(tmp_path / "2.genius", model_folder)
    one.add([Item("a", text="a")])
    publish(one.path, url)
    with pytest.raises(GeniusError, match="another index"):
        publish(other.path, url)
    fetch_index(url, tmp_path / "fork.genius")
    one.add([Item("b", text="b")])
    publish(one.path, url)
    fork = Index(tmp_path / "fork.genius", model_folder)
    with pytest.raises(GeniusError, match="another process"):
        publish(fork.path, url)
    for name in ("c", "d", "e"):  # as far, and farther
        fork.add([Item(name, text=name)])
        with pytest.raises(GeniusError, match="another process"):
            publish(fork.path, url)
    with pytest.raises(GeniusError, match="holds other objects"):
        publish(one.path, bucket)
    with pytest.raises(GeniusError, match="no index at"):
        fetch_index(f"{bucket}/nowhere", tmp_path / "n.genius")


def test_two_who_publish_forks_at_once_do_not_both_succeed(bucket: str, tmp_path: Path, model_folder: str) -> None:
    one = Index(tmp_path / "1.genius", model_folder)
    one.add([Item("a", text="a")])
    for number in range(3):
        url = f"{bucket}/fork{number}.genius"
        publish(one.path, url)
        fetch_index(url, tmp_path / f"fork{number}.genius")
        forks = [one, Index(tmp_path / f"fork{number}.genius", model_folder)]
        for name, fork in enumerate(forks):
            fork.add([Item(f"{number}-{name}", text="mine")])
        together = Barrier(2)

        def go(fork: Index, url: str = url, together: Barrier = together) -> bool:
            together.wait()
            try:
                publish(fork.path, url)
            except GeniusError as error:
                assert "publishing there" in str(error) or "publishes there" in str(error)
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(go, forks))
        assert sum(done) <= 1
        fetch_index(url, tmp_path / f"copy{number}.genius")
        with Index.open(tmp_path / f"copy{number}.genius") as copy:
            assert [f"{number}-{name}" in copy for name in (0, 1)] == done and not check(copy.path).problems


def test_a_claim_that_vanishes_while_it_is_read_is_a_claim(
    bucket: str, tmp_path: Path, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket}/vanishing.genius"
    index = Index(tmp_path / "i.genius", model_folder)
    index.add([Item("a", text="a")])
    put(url, f"{CLAIMS}/other", b"host", tmp_path)
    whole = Place.read

    def torn(place: Place, name: str) -> bytes | None:
        if name.startswith(CLAIMS):
            raise GeniusError("cannot read: failed to flush response stream")
        return whole(place, name)

    monkeypatch.setattr(Place, "read", torn)
    with pytest.raises(GeniusError, match="somebody is publishing there"):
        publish(index.path, url)


def test_a_claim_keeps_others_out_until_it_is_forgotten(bucket: str, tmp_path: Path, model_folder: str) -> None:
    url = f"{bucket}/claimed.genius"
    index = Index(tmp_path / "i.genius", model_folder)
    index.add([Item("a", text="a")])
    put(url, f"{CLAIMS}/somebody", b"host since yesterday", tmp_path)
    with pytest.raises(GeniusError, match=r"host since yesterday is publishing there.*--alone"):
        publish(index.path, url)
    assert set(Place(url).files()) == {f"{CLAIMS}/somebody"}  # nothing else, and no claim of who was refused
    publish(index.path, url, alone=True)
    assert not [name for name in Place(url).files() if name.startswith(CLAIMS)]


def test_addresses() -> None:
    assert url_of(Path("s3://b/a.genius")) == url_of("s3://b/a.genius/") == "s3://b/a.genius"
    assert url_of("photos/s3:/b") is None and url_of("C:/photos") is None


def test_the_commands_take_addresses(bucket: str, tmp_path: Path, model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from genius.cli import app

    monkeypatch.setenv("GENIUS_CACHE", str(tmp_path / "cache"))
    put(f"{bucket}/notes", "a.txt", b"a red bicycle", tmp_path)
    output, run = tmp_path / "n.genius", CliRunner().invoke
    done = run(app, ["index", f"{bucket}/notes", "-o", str(output), "--model", model_folder])
    assert done.exit_code == 0 and "1 added" in done.output, done.output
    assert run(app, ["publish", str(output), f"{bucket}/n.genius"]).exit_code == 0
    found = run(app, ["search", f"{bucket}/n.genius", "--text", "bicycle", "--json"])
    assert found.exit_code == 0 and "notes/a.txt" in found.output, found.output
    refused = run(app, ["index", str(tmp_path), "-o", f"{bucket}/new.genius"])
    assert refused.exit_code == 2 and "genius publish" in refused.output
    assert run(app, ["publish", str(output), "elsewhere"]).exit_code == 2
