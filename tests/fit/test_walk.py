"""The walk of a new user: a checkpoint, a folder of photos, no pairs, and the three commands of the README."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import lancedb
import numpy as np
import pytest
from colour_clip import COLOURS, photo
from PIL import Image
from processes import call as other_process
from processes import held_after_questions, on_ramp_without_room
from typer.testing import CliRunner, Result

from genius import Genius, GeniusError, Index, Item
from genius.cli import app
from genius.encoders.base import encode_items
from genius.errors import counted
from genius.fit import folder as onramp
from genius.search import scan

Photos = Callable[..., Path]


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def answers(index: Path, *words: object) -> list[dict[str, object]]:
    result = run("search", index, *words, "--json")
    assert result.exit_code == 0, result.output
    return list(json.loads(result.stdout)["hits"])


def colour_of(item_id: object) -> str:
    return list(COLOURS)[int(str(item_id).split("_")[-1].split(".")[0]) // 1000]


def test_from_a_folder_of_photos_to_good_answers(
    clip: Path, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, index = photos(6), tmp_path / "my.genius"
    (folder / "broken.jpg").write_bytes(b"no picture")
    photo("red", 1, 48).save(folder / "two\nlines.png")  # no id that an index takes: said, and not encoded for nothing
    encode, encoded = onramp.encode_items, list[str]()

    def recorded(encoder: object, items: list[Item], **options: object) -> object:
        encoded.extend(item.id for item in items)
        return encode(encoder, items, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(onramp, "encode_items", recorded)
    made = run("index", folder, "-o", index, "--encoder", clip)
    assert made.exit_code == 1 and "2 entries skipped" in made.output, made.output
    assert f"{6 * len(COLOURS)} items" in made.output and "nothing had to be fitted" in made.output
    assert f'next: genius search {index} "what you look for"' in made.output
    assert "broken.jpg" in made.output and not (index / "encoded").exists()
    assert "no control characters" in made.output and len(encoded) == 6 * len(COLOURS) + 1 and "two\nlines.png" not in encoded
    right = 0
    for colour in COLOURS:
        hits = answers(index, colour, "-k", 3)
        right += sum(colour_of(hit["id"]) == colour for hit in hits)
        assert all(Path(str(hit["image"])).is_file() for hit in hits)
    assert right >= 18, f"{right} of 21 answers are of the colour that was asked for"
    assert colour_of(answers(index, "--image", folder / "IMG_02003.png", "-k", 1)[0]["id"]) == "blue"
    assert "nothing fitted yet" in run("info", index).output


def test_a_later_run_adds_and_the_folder_may_move(clip: Path, photos: Photos, tmp_path: Path) -> None:
    index, moved = tmp_path / "my.genius", tmp_path / "elsewhere" / "renamed.genius"
    assert run("index", photos(3), "-o", index, "--encoder", clip).exit_code == 0
    again = run("index", photos(5), "-o", index)
    assert f"{2 * len(COLOURS)} added" in again.output and f"{3 * len(COLOURS)} unchanged" in again.output, again.output
    same = run("index", photos(5), "-o", index, "--encoder", clip)
    assert same.exit_code == 0 and f"{5 * len(COLOURS)} unchanged" in same.output, same.output
    moved.parent.mkdir()
    shutil.move(index, moved)
    assert colour_of(answers(moved, "red", "-k", 1)[0]["id"]) == "red"
    with Index.open(moved) as opened:
        opened.snapshot(tmp_path / "copy.genius")
    shutil.rmtree(moved)
    assert colour_of(answers(tmp_path / "copy.genius", "blue", "-k", 1)[0]["id"]) == "blue"


@pytest.mark.parametrize("stage", ["encoding", "fitting", "indexing"])
def test_a_run_that_is_broken_off_goes_on(
    clip: Path, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    folder, index = photos(4), tmp_path / "my.genius"
    monkeypatch.setattr(onramp, "AT_ONCE", 8)
    encoded: list[int] = []
    whole = onramp.encode_items

    def tallied(encoder: object, items: list[Item], **options: object) -> object:
        if stage == "encoding" and len(encoded) == 2:
            raise KeyboardInterrupt
        encoded.append(len(items))
        return whole(encoder, items, **options)  # type: ignore[arg-type]

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(onramp, "encode_items", tallied)
        if stage == "fitting":
            broken.setattr(onramp, "synthesize_queries", stopped)
        if stage == "indexing":
            broken.setattr(onramp.writing, "write", stopped)
        first = run("index", folder, "-o", index, "--encoder", clip, "--fit")
    assert first.exit_code == 130 and "run the same command to continue" in first.output, first.output
    before, stage = sum(encoded), "over"
    encoded.clear()
    monkeypatch.setattr(onramp, "encode_items", tallied)
    second = run("index", folder, "-o", index, "--encoder", clip, "--fit")
    assert second.exit_code == 0 and f"{4 * len(COLOURS)} added" in second.output, second.output
    assert before >= 16 and sum(encoded) == 4 * len(COLOURS) - before  # nothing is encoded twice
    assert len(answers(index, "red", "-k", 100)) == 4 * len(COLOURS)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.filterwarnings("error")
def test_very_few_pictures_are_a_collection_too(clip: Path, tmp_path: Path, count: int) -> None:
    folder, index = tmp_path / "few", tmp_path / "few.genius"
    folder.mkdir()
    for number, colour in enumerate(list(COLOURS)[:count]):
        photo(colour, number).save(folder / f"{colour}.png")
    made = run("index", folder, "-o", index, "--encoder", clip)
    assert made.exit_code == 0 and f": {counted(count, 'item')}\n" in made.output and "had to be fitted" in made.output, (
        made.output
    )
    assert answers(index, "a photo of red")[0]["id"] == "few/red.png"


def test_what_cannot_be_is_said_in_one_line(clip: Path, photos: Photos, tmp_path: Path) -> None:
    folder, index, empty, words = photos(3), tmp_path / "my.genius", tmp_path / "empty", tmp_path / "words"
    empty.mkdir()
    (empty / "a.xyz").write_text("?")
    words.mkdir()
    (words / "config.json").write_text('{"model_type": "bert"}')
    seeing, spoiled = tmp_path / "seeing", tmp_path / "spoiled"
    seeing.mkdir()
    (seeing / "config.json").write_text('{"model_type": "resnet"}')
    spoiled.mkdir()
    for number in range(3):
        (spoiled / f"{number}.jpg").write_bytes(b"no picture")
    other = tmp_path / "other"
    shutil.copytree(clip, other)
    assert run("index", folder, "-o", index, "--encoder", clip).exit_code == 0
    for call, said in (
        (("index", empty, "-o", tmp_path / "e.genius", "--encoder", clip), "nothing to index"),
        (("index", spoiled, "-o", tmp_path / "s.genius", "--encoder", clip), "could be read (spoiled/0.jpg: cannot read"),
        (
            ("index", folder, "-o", tmp_path / "w.genius", "--encoder", words),
            "reads texts only: choose an encoder with an image",
        ),
        (("index", folder, "-o", tmp_path / "w.genius", "--encoder", seeing), "not an encoder this version reads"),
        (("index", folder, "-o", tmp_path / "w.genius", "--encoder", empty), "no encoder at"),
        (("index", folder, "-o", tmp_path / "m.genius", "--model", clip), "--encoder"),
        (("index", folder, "-o", index, "--encoder", other), "was made with the encoder"),
        (("index", folder, "-o", index, "--encoder", clip, "--model", "bundled:mini"), "use either"),
        (("index", folder, "-o", tmp_path / "d.genius", "--encoder", clip, "--device", "nonsense"), "no device 'nonsense'"),
        (("search", index, "red", "--text", "blue"), "give the query text once"),
    ):
        result = run(*call)
        assert result.exit_code == 2 and said in result.output and len(result.output.splitlines()) <= 2, result.output
        assert "Traceback" not in result.output
    assert not [path.name for path in tmp_path.glob("*.genius") if path != index], "a call that failed left something behind"


def test_a_full_disk_loses_nothing(clip: Path, photos: Photos, tmp_path: Path) -> None:
    """It fills up while features are kept, while the model is saved, while items are written; then there is room."""
    folder, index = photos(6, side=200), tmp_path / "my.genius"
    *full, last = other_process(on_ramp_without_room, str(folder), str(index), str(clip), [2_000, 60_000, 380_000, -1])
    for said, stage in zip(full, ("encoded", "model", "cannot add items"), strict=True):
        assert said.startswith("GeniusError: cannot ") and stage in said and "disk is full" in said, said
        assert said.endswith("free disk space and run it again")
    assert last.startswith(f"{6 * len(COLOURS)} items"), last
    assert len(answers(index, "red", "-k", 100)) == 6 * len(COLOURS)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says how much a process holds")
def test_cut_outs_are_given_back_before_anything_is_fitted(tmp_path: Path) -> None:
    for number in range(200):
        photo("red", number).resize((500, 500)).save(tmp_path / f"{number}.jpg")
    assert other_process(held_after_questions, str(tmp_path)) < 40  # two hundred cut-outs of 400 x 400 are more than 100


def test_python(clip: Path, tmp_path: Path) -> None:
    items = [Item(f"{colour}-{i}", image=photo(colour, i)) for colour in COLOURS for i in range(4)]
    model = Genius.from_encoder(clip).fit(items)
    assert model.knows is not None and model.knows.fit["exhaustive"] and model.knows.items == len(items)
    model.save_pretrained(tmp_path / "model")
    with Index(tmp_path / "a.genius", tmp_path / "model") as index:
        index.add(items)
        assert [hit.id.split("-")[0] for hit in index.search(text="green", k=3)] == ["green"] * 3
        assert index.search(image=photo("purple", 77), target="image", k=1)[0].id.startswith("purple")
    with pytest.raises(GeniusError, match="expected an Item"):
        Genius.from_encoder(clip).fit(["a"])  # type: ignore[list-item]
    with pytest.raises(GeniusError, match="none of the"):
        Genius.from_encoder(clip).fit([Item("x", image=tmp_path / "gone.png")])


def test_version() -> None:
    from genius import __version__

    assert run("--version").output.strip() == f"genius {__version__}"


def test_the_bundled_model_says_that_it_does_not_know_photos(tmp_path: Path) -> None:
    """Drawings of shapes are what it knows; photographs (here: of grain, light and blur) are not."""
    rng = np.random.default_rng(0)
    for name in ("photos", "drawings"):
        (tmp_path / name).mkdir()
    for i in range(24):
        ground = np.linspace(0, 255, 96)[None, :, None] * rng.uniform(0.2, 1, 3) + rng.normal(0, 30, (96, 96, 3)).cumsum(0) / 3
        Image.fromarray(ground.clip(0, 255).astype(np.uint8)).save(tmp_path / "photos" / f"{i}.jpg")
    svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="#000" stroke-width="2">{}</svg>'
    for i in range(24):
        shape = f'<circle cx="12" cy="12" r="{3 + i % 8}"/>' if i % 2 else f'<path d="M{2 + i % 5} 20 L12 {2 + i % 7} L22 20 Z"/>'
        (tmp_path / "drawings" / f"{i}.svg").write_text(svg.format(shape))
    said = run("index", tmp_path / "photos", "-o", tmp_path / "p.genius").output
    assert "look unlike what this model knows (drawings" in said and "--encoder" in said, said
    assert "look unlike" in run("info", tmp_path / "p.genius").output
    assert "look unlike" in run("search", tmp_path / "p.genius", "a horse").output
    assert "look unlike" not in run("index", tmp_path / "drawings", "-o", tmp_path / "d.genius").output


def test_refit_gives_new_codes_to_all_items(clip: Path, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "my.genius"
    monkeypatch.setattr(scan, "FEWEST_ITEMS", 30)
    assert run("index", photos(3), "-o", index, "--encoder", clip, "--fit").exit_code == 0
    grown = run("index", photos(15), "-o", index)
    assert "outgrown its codes" in grown.output and "--refit" in grown.output, grown.output
    with Index.open(index) as before:
        old = {item.id: (item, before.codes(item.id)) for item in before.items()}
    again = run("index", photos(15), "-o", index, "--refit")
    assert again.exit_code == 0 and f"fitted to {15 * len(COLOURS)} items" in again.output, again.output
    with Index.open(index) as after:
        assert {item.id: item for item in after.items()} == {name: item for name, (item, _) in old.items()}
        assert any(after.codes(name) != codes for name, (_, codes) in old.items())
        features, _, _ = encode_items(after.model.encoder, [after.get("photos/IMG_00000.png")])  # stored vectors are float16
        assert after.codes("photos/IMG_00000.png")[:3] == tuple(after.model.encode(features)[0].tolist())[:3]
    assert run("check", index).exit_code == 0 and "outgrown" not in run("info", index).output
    assert colour_of(answers(index, "red", "-k", 1)[0]["id"]) == "red"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [".my.genius.previous"]
    bundled = tmp_path / "b.genius"
    assert run("index", tmp_path / "photos", "-o", bundled).exit_code == 0
    assert "was not made with --encoder" in run("index", tmp_path / "photos", "-o", bundled, "--refit").output


def test_nothing_is_fitted_until_the_collection_grows(
    clip: Path, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "my.genius"
    with monkeypatch.context() as forbidden:
        for name in ("synthesize_queries", "fit_vectors"):
            forbidden.setattr(onramp, name, lambda *_, **__: pytest.fail("something was fitted"))
        forbidden.setattr("genius.fit.fit_vectors", lambda *_, **__: pytest.fail("something was fitted"))
        assert run("index", photos(3), "-o", index, "--encoder", clip).exit_code == 0
        found = answers(index, "red", "-k", 10)
        assert colour_of(found[0]["id"]) == "red"
        assert len(answers(index, "red", "-k", 4, "--diverse")) == 4
    said = run("explain", index, "red").output
    assert "plan: flat (21 vectors compared)" in said and "nothing fitted yet" in said and "log-prob" not in said, said
    for call in (
        ("search", index, "red", "--rerank", 0),
        ("explain", index, "--prefix", 0),
        ("export", "web", index, "-o", tmp_path / "t"),
    ):
        refused = run(*call)
        assert refused.exit_code == 2 and "genius index --fit -o my.genius" in refused.output, refused.output
    monkeypatch.setattr(scan, "FEWEST_ITEMS", 30)
    grown = run("index", photos(6), "-o", index)
    assert grown.exit_code == 0 and "has grown to 42 items, and nothing is fitted yet" in grown.output, grown.output
    fitted = run("index", "--fit", "-o", index)
    assert fitted.exit_code == 0 and "fitted to 42 items" in fitted.output and "added" not in fitted.output, fitted.output
    assert "fitted already" in run("index", "--fit", "-o", index).output
    assert "nothing fitted yet" not in run("info", index).output
    with Index.open(index) as opened:
        assert opened.model.fitted and opened.model.knows is not None and opened.model.knows.items == 42
        assert opened.search(text="red", k=3, rerank=0)[0].id.startswith("photos/")
        same = {hit["id"]: hit["score"] for hit in found}
        after = {hit.id: hit.score for hit in opened.search(text="red", k=42)}
        assert all(abs(after[name] - score) < 2e-3 for name, score in same.items())  # vectors are the same
    assert "give files or folders" in run("index", "-o", index).output


@pytest.mark.parametrize("damaged", ["rows", "model"])
def test_a_refit_that_cannot_be_read_back_leaves_the_index(
    damaged: str, clip: Path, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failed write destroyed the index: the old one was deleted for a new one that nobody had read."""
    index = tmp_path / "my.genius"
    assert run("index", photos(6), "-o", index, "--encoder", clip).exit_code == 0
    items = len(Index.open(index))
    fill, save = onramp.Store.fill, Genius.save_pretrained

    def broken_rows(folder: Path, *args: object, **options: object) -> object:
        create = lancedb.db.LanceDBConnection.create_table

        def cut(*words: object, **more: object) -> object:
            table = create(*words, **more)  # type: ignore[arg-type]
            newest = max((folder / "items.lance" / "data").glob("*.lance"), key=lambda path: path.stat().st_mtime_ns)
            with newest.open("r+b") as file:
                file.truncate(newest.stat().st_size // 2)
            return table

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(lancedb.db.LanceDBConnection, "create_table", cut)
            return fill(folder, *args, **options)  # type: ignore[arg-type]

    def broken_model(model: Genius, directory: Path, **options: object) -> None:
        save(model, directory, **options)  # type: ignore[arg-type]
        weights = max(directory.glob("*.safetensors"), key=lambda path: path.stat().st_size)
        body = bytearray(weights.read_bytes())
        body[-8] ^= 64
        weights.write_bytes(bytes(body))

    with monkeypatch.context() as patched:
        if damaged == "rows":
            patched.setattr(onramp.Store, "fill", broken_rows)
        else:
            patched.setattr(Genius, "save_pretrained", broken_model)
        with pytest.raises(GeniusError):
            onramp.refit(index)
    assert len(Index.open(index)) == items and run("check", index).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.genius", "photos"]
    onramp.refit(index)
    assert len(Index.open(index)) == items and run("check", index).exit_code == 0
    assert len(Index.open(tmp_path / ".my.genius.previous", read_only=True)) == items
