"""Photos as cameras and phones leave them: EXIF, HEIC, and a folder that is watched."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from genius import Index
from genius.cli import app
from genius.cli import index as command
from genius.pictures import exif_of


def photo(path: Path, **tags: object) -> Path:
    exif = Image.Exif()
    exif[271], exif[272] = tags.get("make", "Canon"), tags.get("model", "Canon EOS 5D")
    exif.get_ifd(0x8769)[36867] = tags.get("taken", "2024:05:01 12:00:03")
    exif.get_ifd(0x8825).update({1: "S", 2: tags.get("south", (33.0, 51.0, 36.0)), 3: "E", 4: (151.0, 12.0, 40.0)})
    Image.new("RGB", (40, 30), "teal").save(path, exif=exif)
    return path


def test_date_camera_and_place_are_read(tmp_path: Path) -> None:
    found = exif_of(photo(tmp_path / "a.jpg"))
    assert found == {"taken": "2024-05-01T12:00:03", "camera": "Canon EOS 5D", "latitude": -33.86, "longitude": 151.211111}
    assert exif_of(photo(tmp_path / "b.jpg", make="Apple", model="iPhone 15"))["camera"] == "Apple iPhone 15"


@pytest.mark.parametrize(
    "tags", [{"taken": "yesterday"}, {"south": (1000.0, 0.0, 0.0)}, {"make": "\x00\x1b[31m", "model": "x" * 500}]
)
def test_odd_tags_are_left_out(tmp_path: Path, tags: dict[str, object]) -> None:
    found = exif_of(photo(tmp_path / "a.jpg", **tags))
    assert "taken" not in found or found["taken"] == "2024-05-01T12:00:03"
    assert found.get("latitude", 0.0) in (0.0, -33.86) and len(str(found.get("camera", ""))) <= 161
    assert "\x1b" not in str(found.get("camera", ""))
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    assert exif_of(tmp_path / "broken.jpg") == {}


def test_exif_can_be_filtered_by(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "p").mkdir()
    photo(tmp_path / "p" / "a.jpg")
    Image.new("RGB", (9, 9), "red").save(tmp_path / "p" / "plain.png")
    path = tmp_path / "i.genius"
    done = CliRunner().invoke(app, ["index", str(tmp_path / "p"), "-o", str(path), "--model", str(model_folder), "--exif"])
    assert done.exit_code == 0, done.output
    with Index.open(path) as index:
        assert index.count() == 2 and index.count("latitude < 0 AND taken > '2024'") == 1
        assert [hit.id for hit in index.search("x", where="camera = 'Canon EOS 5D'")] == ["p/a.jpg"]


def test_heic_is_read_where_its_plug_in_is_installed(tmp_path: Path) -> None:
    plug_in = pytest.importorskip("pillow_heif")
    from genius.pictures import IMAGE_SUFFIXES, load_image

    plug_in.register_heif_opener()
    Image.new("RGB", (64, 48), (200, 40, 30)).save(tmp_path / "a.heic")
    assert ".heic" in IMAGE_SUFFIXES and load_image(tmp_path / "a.heic").size == (64, 48)


def test_a_watched_folder_follows_its_files(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, path, looks = tmp_path / "p", tmp_path / "i.genius", [0]
    folder.mkdir()
    Image.new("RGB", (9, 9), "red").save(folder / "a.png")

    def meanwhile(seconds: float) -> None:
        assert seconds == 5
        looks[0] += 1
        if looks[0] == 2:
            Image.new("RGB", (9, 9), "blue").save(folder / "b.png")
        if looks[0] == 3:
            (folder / "a.png").unlink()
        if looks[0] == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", meanwhile)
    call = ["index", str(folder), "-o", str(path), "--model", str(model_folder), "--watch", "5", "--prune"]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 130 and "1 added, 0 replaced, 0 deleted: 2 items" in done.output, done.output
    assert "0 added, 0 replaced, 1 deleted: 1 item" in done.output and done.output.count("deleted:") == 2
    assert [item.id for item in Index.open(path).items()] == ["p/b.png"]
    assert "without --refit and --json" in CliRunner().invoke(app, [*call, "--json"]).output
