"""Pictures in terminals: each protocol is read back as a terminal reads it, and terminals are asked over a real one."""

from __future__ import annotations

import base64
import io
import os
import pty
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from genius.cli import common as screen
from genius.cli.common import inline, protocol, says_sixel, sixel


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def read_sixel(text: str) -> Image.Image:
    """What a terminal draws: written from the description of the format, not from our writer."""
    head = re.fullmatch(r'\x1bP[\d;]*q"(\d+);(\d+);(\d+);(\d+)(.*)\x1b\\', text, re.S)
    assert head is not None and head[1] == head[2] == "1"
    width, height = int(head[3]), int(head[4])
    canvas = np.zeros((height, width, 3), np.uint8)
    palette: dict[int, tuple[int, ...]] = {}
    colour = x = y = 0
    for token in re.finditer(r"#(\d+)(?:;2;(\d+);(\d+);(\d+))?|!(\d+)([?-~])|([?-~])|(\$)|(-)", head[5]):
        number, red, green, blue, count, many, one, back, down = token.groups()
        if red is not None:
            palette[int(number)] = tuple(round(int(part) * 2.55) for part in (red, green, blue))
        elif number is not None:
            colour = int(number)
        elif back:
            x = 0
        elif down:
            x, y = 0, y + 6
        else:
            bits, length = ord(many or one) - 63, int(count or 1)
            for row in range(6):
                if bits >> row & 1:
                    assert y + row < height and x + length <= width, "drawn outside of the picture"
                    canvas[y + row, x : x + length] = palette[colour]
            x += length
    return Image.fromarray(canvas)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 300), st.integers(0, 9))
def test_a_sixel_picture_is_the_picture_in_few_colours(width: int, height: int, colours: int, seed: int) -> None:
    few = noise(width, height, seed).quantize(min(colours, 256)).convert("RGB")
    drawn = np.asarray(read_sixel(sixel(few)), int)
    expected = np.asarray(few.quantize(256).convert("RGB"), int)
    assert np.abs(drawn - expected).max() <= 2  # its colours are written in hundredths


def test_a_photo_is_still_itself_as_a_sixel_thumbnail() -> None:
    x, y = np.meshgrid(np.linspace(0, 255, 640), np.linspace(0, 255, 480))
    photo = Image.fromarray(np.stack([x, y, 255 - x], 2).astype(np.uint8))
    drawn = read_sixel(inline(photo, "sixel"))
    assert drawn.size == (128, 96)
    assert np.abs(np.asarray(drawn, int) - np.asarray(photo.resize((128, 96)), int)).mean() < 8


def test_kitty_and_iterm_get_a_png() -> None:
    kitty = inline(noise(300, 200), "kitty")
    pieces = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", kitty)
    assert pieces[0][0] == "a=T,f=100,m=1" and [piece[0] for piece in pieces[1:]] == ["m=1"] * (len(pieces) - 2) + ["m=0"]
    iterm = re.fullmatch(r"\x1b\]1337;File=inline=1;preserveAspectRatio=1:(.*)\x07", inline(noise(300, 200), "iterm"))
    assert iterm is not None
    for data in ("".join(piece[1] for piece in pieces), iterm[1]):
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == (144, 96)


@pytest.mark.parametrize(
    ("answer", "can"),
    [(b"\x1b[?62;4;22c", True), (b"\x1b[?4c", True), (b"\x1b[?62;22c", False), (b"\x1b[?64;14;44c", False), (b"", False)],
)
def test_a_terminal_is_asked_and_left_as_it_was(answer: bytes, can: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import termios

    monkeypatch.setattr(screen, "PATIENCE", 20.0 if answer else 0.05)  # one that answers is waited for, on a slow machine too
    keyboard, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    asked: list[bytes] = []

    def emulator() -> None:
        asked.append(os.read(keyboard, 16))
        if answer:
            os.write(keyboard, answer)

    thread = threading.Thread(target=emulator)
    thread.start()
    try:
        assert says_sixel(terminal) is can
        thread.join(20)
        assert asked == [b"\x1b[c"] and termios.tcgetattr(terminal) == before
    finally:
        os.close(terminal)
        os.close(keyboard)


def test_terminals_that_show_pictures_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_terminal_says_sixel", lambda: False)
    assert protocol({"TERM": "xterm-kitty"}, True) == "kitty" and protocol({"TERM_PROGRAM": "iTerm.app"}, True) == "iterm"
    assert protocol({"TERM": "xterm"}, True) is None and protocol({"TERM": "xterm-kitty"}, False) is None
    monkeypatch.setattr(screen, "_terminal_says_sixel", lambda: True)
    assert protocol({"TERM": "xterm"}, True) == "sixel" and protocol({"TERM": "xterm"}, False) is None
    with Path(os.devnull).open() as nowhere:
        assert not says_sixel(nowhere.fileno())
