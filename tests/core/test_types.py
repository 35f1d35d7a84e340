"""User input in all accepted forms, and one clear line for the rest."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from genius import GeniusError, Item, Modality, Query
from genius.errors import counted
from genius.types import TEMPLATES, coerce_content, format_text, instruction_for, load_image, query_text


def png(size: tuple[int, int] = (4, 3), mode: str = "RGB", colour: object = (255, 0, 0)) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, "PNG")  # type: ignore[arg-type]
    return buffer.getvalue()


def test_modality_follows_from_the_parts() -> None:
    assert Item("1", image=png()).modality is Modality.IMAGE
    assert Item("1", text="a").modality is Modality.TEXT
    assert Item("1", image=png(), text="a").modality is Modality.PAIR
    assert [Modality.parse(v) for v in ("image", 1, "image,text", Modality.PAIR)] == [0, 1, 2, 2]
    for bad in ("video", 3, -1, True):
        with pytest.raises(GeniusError, match="unknown modality"):
            Modality.parse(bad)


def test_empty_things_are_refused() -> None:
    for make in (
        lambda: Item("1"),
        lambda: Item("", text="a"),
        lambda: Item("1", text="  "),
        lambda: Query(),
        lambda: Query(text=" \n"),
    ):
        with pytest.raises(GeniusError):
            make()
    with pytest.raises(GeniusError, match="must be a string"):
        Item("1", text=3)  # type: ignore[arg-type]


def test_content_is_text_picture_path_or_mapping(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    assert coerce_content("a red bicycle") == {"text": "a red bicycle", "image": None}
    assert coerce_content(str(path)) == {"text": None, "image": str(path)}
    assert coerce_content("missing.png") == {"text": "missing.png", "image": None}
    assert coerce_content({"text": "a", "image": path}) == {"text": "a", "image": path}
    assert coerce_content(Image.new("RGB", (1, 1)))["image"] is not None
    for bad in ({"txt": "a"}, 3):
        with pytest.raises(GeniusError):
            coerce_content(bad)  # type: ignore[arg-type]


def test_transparency_becomes_white() -> None:
    assert load_image(png(mode="RGBA", colour=(0, 0, 0, 0))).getpixel((0, 0)) == (255, 255, 255)
    assert load_image(png(mode="LA", colour=(0, 255))).getpixel((0, 0)) == (0, 0, 0)


def test_broken_pictures_get_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cut.png").write_bytes(png((64, 64))[:60])
    (tmp_path / "text.jpg").write_text("hello")
    for source in (tmp_path / "cut.png", tmp_path / "text.jpg", tmp_path / "absent.png", tmp_path, b"", b"GIF89a"):
        with pytest.raises(GeniusError) as error:
            load_image(source)
        assert "\n" not in str(error.value)
    monkeypatch.setattr("genius.pictures.MAX_PIXELS", 100)
    with pytest.raises(GeniusError, match="pixels"):
        load_image(png((20, 20)))


def test_svg_is_drawn_on_white(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    path = tmp_path / "dot.svg"
    path.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10"><rect x="5" width="5" height="10" fill="#00f"/></svg>'
    )
    picture = load_image(path)
    assert picture.getpixel((10, 10)) == (255, 255, 255)
    assert picture.getpixel((picture.width - 10, 10)) == (0, 0, 255)


def test_text_format_is_the_published_one() -> None:
    assert format_text(' "a cat\r"') == "A cat."
    assert format_text("what is it?") == "What is it?"
    assert format_text("") == ""


def test_target_picks_an_instruction_and_words_override_it() -> None:
    assert query_text(Query(text="a cat", target=Modality.IMAGE)) == f"{TEMPLATES[Modality.TEXT, Modality.IMAGE][0]} a cat."
    assert query_text(Query(text="a cat", instruction="find it:", target=Modality.IMAGE)) == "Find it: a cat."
    assert query_text(Query(text="a cat")) == "A cat."
    assert query_text(Query(image=png())) == ""
    assert instruction_for(Modality.PAIR, Modality.PAIR, random.Random(0)) in TEMPLATES[Modality.PAIR, Modality.PAIR]
    assert len(TEMPLATES) == 9 and all(len(set(t)) == 4 for t in TEMPLATES.values())


def test_import_is_light() -> None:
    heavy = "torch lancedb transformers fastapi faiss pyarrow"
    code = f"import sys, genius; print([m for m in '{heavy}'.split() if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_counts_are_written_as_people_say_them() -> None:
    assert [counted(n, "item") for n in (0, 1, 2, 1234)] == ["0 items", "1 item", "2 items", "1,234 items"]
    assert (counted(1, "query"), counted(3, "query")) == ("1 query", "3 queries")
    assert len(counted(1, "item", 9)) == len(counted(12, "item", 9))  # columns stay columns


def test_an_item_prints_short() -> None:
    """Neither the bytes of an image nor a long text fill the screen."""
    shown = repr(Item("a", image=b"x" * 100_000, text="word " * 200, metadata={"price": 3}))
    assert shown.startswith("Item('a', image=<100,000 bytes>, text='word word") and len(shown) < 180
    assert "<image of 40 x 30>" in repr(Item("b", image=Image.new("RGB", (40, 30))))
    assert repr(Item("c", image="c.jpg")) == "Item('c', image='c.jpg')"
