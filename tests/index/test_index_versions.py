"""Versions, caches and threads: every call sees one version, and no cache is ever believed without proof."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import genius.index.opened
import genius.index.writing
from genius import Genius, GeniusError, Index, Item
from genius.index import cache
from genius.index.ledger import Ledger, seal
from genius.index.reader import HIT_COLUMNS
from genius.index.repair import repair
from genius.index.store import Store
from genius.search import CodeTrie, SearchRequest


def texts(start: int, stop: int, word: str = "thing") -> list[Item]:
    return [Item(f"t{i}", text=f"{word}{i} w{i % 5}", metadata={"n": i}) for i in range(start, stop)]


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small indexes leave caches."""
    monkeypatch.setattr(genius.index.opened, "CACHE_FROM", 1)


def everything(index: Index) -> dict[str, tuple[str | None, tuple[int, ...]]]:
    """What search finds when it may look at all: ids, texts, codes."""
    return {h.id: (h.item.text, h.codes) for h in index.search(text="w1", k=10_000, beams=10_000, rerank=10**6)}


def test_an_old_version_can_be_opened_and_searched(index: Index, model: Genius) -> None:
    index.add(texts(0, 5))
    old = index.version
    index.upsert([Item("t1", text="changed")])
    index.delete("t2")
    index.add(texts(5, 8))
    past = Index(index.path, model, version=old)
    assert past.read_only and past.version == old and len(past) == 5 and past.get("t1").text == "thing1 w1"
    assert everything(past).keys() == {f"t{i}" for i in range(5)}
    with pytest.raises(GeniusError, match=f"read-only at version {old}"):
        past.add(texts(9, 10))
    listed = {v["version"]: v["items"] for v in index.versions()}
    assert listed[old] == 5 and listed[index.version] == 7
    with pytest.raises(GeniusError, match="version 9999"):
        Index(index.path, model, version=9999)


def test_cleaned_versions_are_refused_and_open_handles_go_on(index: Index, model: Genius) -> None:
    index.add(texts(0, 20), batch_size=2)
    reader, old = Index(index.path, model), index.version
    past = Index(index.path, model, version=old - 3)
    index.delete("t3")
    index.optimize(keep=timedelta(0))
    assert len(index.versions()) <= 2
    assert everything(reader) == everything(index) and len(reader) == 19
    with pytest.raises(GeniusError, match=f"version {old - 3} of .* removed by genius optimize"):
        past.get("t1")
    with pytest.raises(GeniusError):
        Index(index.path, model, version=old)


@pytest.mark.usefixtures("cached")
def test_a_cache_is_used_and_brought_up_to_date(index: Index, model: Genius, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add(texts(0, 50))
    first = Index(index.path, model)
    assert first.live.base.cached
    index.delete(["t1", "t2"])
    index.upsert([Item("t3", text="other")])
    index.add(texts(50, 55))
    monkeypatch.setattr(cache, "build", lambda *_: pytest.fail("built anew although a cache was there"))
    monkeypatch.setattr(CodeTrie, "build", None)
    again = Index(index.path, model)
    assert again.live.base.version == first.live.base.version
    monkeypatch.undo()
    assert everything(again) == everything(index) and len(everything(again)) == 53


def shown(index: Index) -> list[tuple[str, object]]:
    return [(hit.id, hit.item) for hit in index.search("w1", k=20)]


@pytest.mark.usefixtures("cached")
def test_hits_of_a_cached_version_are_shown_without_the_table_and_say_what_the_table_says(index: Index, model: Genius) -> None:
    odd = [Item("é", text='say "ä" \\ 😀', metadata={"n": 1.5, "what": "x\ty"}), Item("bare", text="w1")]
    index.add([*texts(0, 30), *odd])
    index.delete("t7")
    index.upsert([Item("t8", text="w1 anew", metadata={"n": -1})])
    index.optimize()
    first = Index(index.path, model)
    reader = first.live.reader
    assert "_opened" not in vars(reader) and reader.shown is not None
    found = shown(first)
    assert "_opened" not in vars(reader) and len(found) == 20  # nobody opened the table for it
    reader.shown = None
    assert shown(first) == found and "_opened" in vars(reader)
    reader.shown = first.live.base.shown
    everyone = first.live.seqs[~first.live.dead]
    from_cache = reader.rows([*everyone, 5], HIT_COLUMNS)
    reader.shown = None
    assert from_cache == reader.rows(everyone, HIT_COLUMNS) and len(from_cache) == 31


def test_searching_a_cached_index_does_not_load_the_database(tmp_path: Path) -> None:
    index = Index(tmp_path / "things.genius", "bundled:mini")
    index.add(texts(0, 30))
    index.optimize()
    code = (
        f"import sys; from genius import Index; index = Index.open({str(index.path)!r}); "
        "assert len(index.search('w1')) == 10 and index.modalities(); index.advice(); "
        "assert not {'lancedb', 'pyarrow', 'pandas', 'transformers', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.usefixtures("cached")
def test_a_damaged_or_foreign_cache_is_not_believed(index: Index, model: Genius) -> None:
    index.add(texts(0, 40))
    expected = everything(Index(index.path, model))
    (folder,) = [p for p in (index.path / "cache").iterdir() if p.name.isdigit()]
    about = json.loads((folder / "base.json").read_text())

    def cut(name: str) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    damages = [
        lambda: cut("extents.npy" if (folder / "extents.npy").exists() else "embeddings.npy"),
        lambda: cut("shown_starts.npy"),
        lambda: cut("trie_order.npy"),
        lambda: (folder / "seqs.npy").unlink(),
        lambda: cut("shown.bin"),
        lambda: cut("base.json"),
        lambda: (folder / "base.json").write_text(seal({**cache.read_base(folder), "fingerprint": "0" * 32})),
        lambda: (folder / "base.json").write_text(seal({**cache.read_base(folder), "index": "another"})),
    ]
    for damage in damages:
        damage()
        opened = Index(index.path, model)
        assert everything(opened) == expected
        assert opened.live.base.items == 40 and (folder / "base.json").is_file()  # and it was repaired
        made = cache.read_base(folder)
        assert (made["index"], made["fingerprint"]) == (about["index"], about["fingerprint"])
    shutil.rmtree(index.path / "cache")
    assert everything(Index(index.path, model)) == expected


@pytest.mark.usefixtures("cached")
def test_a_table_put_back_from_a_copy_does_not_meet_its_old_cache(index: Index, model: Genius, tmp_path: Path) -> None:
    index.add(texts(0, 20))
    shutil.copytree(index.path / "items.lance", tmp_path / "backup")
    index.add(texts(20, 30, "first"))
    index.optimize()  # a cache of this turn of the story
    running = Index(index.path, model)
    everything(running)
    shutil.rmtree(index.path / "items.lance")
    shutil.copytree(tmp_path / "backup", index.path / "items.lance")
    with pytest.raises(GeniusError, match="the last that was acknowledged, is not there"):
        Index(index.path, model)  # an older table in place of a newer is noticed
    assert "is not there any more" in repair(index.path).lost[0]
    writer = Index(index.path, model)
    assert everything(writer).keys() == {f"t{i}" for i in range(20)}
    writer.add(texts(20, 30, "second"))  # with the version numbers of the first turn
    writer.upsert([Item("more", text="more")])
    while writer.version <= running.live.version:
        writer.upsert([Item("more", text=f"version {writer.version}")])
    for handle in (Index(index.path, model), running):
        found = everything(handle)
        assert found == everything(writer) and len(found) == 31 and found["t25"][0] == "second25 w0"
        own = handle.model.embed_items([Item("t25", text="second25 w0")])
        assert handle.search_embedded(own.z, own.dense, request=SearchRequest(1, "id = 't25'"))[0][0].score == pytest.approx(
            1, abs=2e-3
        )


def test_another_story_of_equal_length_is_noticed(index: Index, model: Genius, tmp_path: Path) -> None:
    """As many items as this process expects, and not those it knows: counting them says nothing."""
    index.add(texts(0, 20))
    shutil.copytree(index.path / "items.lance", tmp_path / "backup")
    index.delete([f"t{i}" for i in range(5)])
    index.add(texts(20, 25))
    running = Index(index.path, model)
    assert {hit.id for hit in running.search(text="w0", k=50)} == {f"t{i}" for i in range(5, 25)}
    shutil.rmtree(index.path / "items.lance")
    shutil.copytree(tmp_path / "backup", index.path / "items.lance")
    repair(index.path)
    writer = Index(index.path, model)
    writer.add([Item("more", text="more")])
    while writer.version <= running.live.version:
        writer.upsert([Item("more", text=f"version {writer.version}")])
    expected = {"more", *(f"t{i}" for i in range(20))}
    assert {hit.id for hit in writer.search(text="w0", k=50)} == expected
    assert {hit.id for hit in running.search(text="w0", k=50)} == expected


def test_crashed_cache_builds_are_swept_up(index: Index, model: Genius, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add(texts(0, 10))
    (index.path / "cache" / ".building-dead").mkdir(parents=True)
    index.optimize()
    assert [p.name for p in (index.path / "cache").iterdir()] == [str(index.version)]


def test_many_small_commits_are_tidied_up(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genius.index.writing, "COMPACT_EVERY", 8)
    monkeypatch.setattr(genius.index.writing, "COMPACT_AT", 4)
    index.add(texts(0, 32), batch_size=1)
    assert index.store.fragments() <= 12
    assert len(everything(index)) == 32


def test_rows_left_by_upserts_are_dropped_in_time(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genius.index.opened, "WASTE_FROM", 10)
    for _ in range(10):
        index.upsert(texts(0, 5))
    assert len(index.live.seqs) < 30 and len(everything(index)) == 5


def test_many_alternating_adds_and_searches_keep_the_engine_small(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genius.index.opened, "MAX_ADDITIONS", 3)
    for i in range(12):
        index.add(texts(i, i + 1))
        if i % 3 == 2:
            index.delete(f"t{i - 1}")
        assert len(everything(index)) == len(index)
        engine = index.live.engine()
        assert engine is not None and engine.segments <= 4


def test_every_answer_belongs_to_one_version_while_a_writer_works(index: Index) -> None:
    """The writer keeps all items on one generation number, replaced in single commits; no answer may mix two."""
    ids = [f"t{i}" for i in range(12)]

    def generation(number: int) -> list[Item]:
        return [Item(i, text=f"{i} generation", metadata={"gen": number}) for i in ids]

    index.add(generation(0))
    stop, failures = threading.Event(), []

    def look(seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            try:
                where = rng.choice([None, "gen >= 0"])
                hits = index.search(text="generation", k=20, where=where, beams=1000, rerank=10**5)
                seen = {hit.item.metadata["gen"] for hit in hits}
                if len(hits) != len(ids) or len(seen) != 1:
                    failures.append(f"{len(hits)} hits of generations {seen}")
                whole = {item.metadata["gen"] for item in index.get(ids)}
                if len(whole) != 1:
                    failures.append(f"get mixes {whole}")
            except Exception as error:
                failures.append(repr(error))

    readers = [threading.Thread(target=look, args=(seed,)) for seed in range(2)]
    for thread in readers:
        thread.start()
    for number in range(1, 25):
        index.upsert(generation(number))
        if number % 8 == 0:
            index.optimize(keep=timedelta(0))
    stop.set()
    for thread in readers:
        thread.join()
    assert failures == []


def test_another_handle_sees_changes_without_being_told(index: Index, model: Genius) -> None:
    other = Index(index.path, model)
    index.add(texts(0, 5))
    assert len(other) == 5 and everything(other) == everything(index)
    other.delete("t0")
    index.upsert([Item("t1", text="new words")])
    assert "t0" not in index and other.get("t1").text == "new words"
    assert everything(other) == everything(index)


def test_a_killed_change_does_not_come_back_with_a_later_one(
    index: Index, model: Genius, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that opened the table at a killed writer's version built on it after another process had put it away."""
    index.add(texts(0, 3))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(Ledger, "acknowledge", killed)
        dying.setattr(Store, "recover", lambda _: [])  # nothing is tidied up behind a kill
        with pytest.raises(KeyboardInterrupt):
            Index.open(index.path, model).add(texts(10, 12))
    late = Index.open(index.path, model)
    assert late.store.newest() > index.version  # the killed writer's
    Store(index.path).recover()  # of another process
    late.delete("t0")
    assert everything(Index.open(index.path, model)).keys() == {"t1", "t2"}
