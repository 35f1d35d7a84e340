"""Reading pictures: one list of formats, no larger than needed, upright, and every tone where it belongs."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from genius import GeniusError, pictures
from genius.index.ingest import IngestConfig, IngestReport, find_files
from genius.pictures import FORMATS, IMAGE_SUFFIXES, RASTER, load_image, tones


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.skipif(sys.platform == "win32", reason="pipes are no files there")
@pytest.mark.parametrize("name", ["pipe.png", "pipe.svg"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(load_image, tmp_path / name)
        try:
            with pytest.raises(GeniusError, match="not a regular file"):
                future.result(60)
        finally:
            os.close(os.open(tmp_path / name, os.O_RDWR | os.O_NONBLOCK))  # whoever waits goes on


# -- formats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_every_listed_format_is_read(kind: str) -> None:
    picture = Image.new("RGB", (40, 30), (200, 40, 10))
    assert load_image(saved(picture, kind)).size == (40, 30)


@pytest.mark.parametrize("kind", ["EPS", "PPM", "TGA", "ICO", "PCX", "PDF", "JPEG2000", "SGI", "IM", "DDS"])
def test_no_other_format_is_read_whatever_it_is_called(kind: str, tmp_path: Path) -> None:
    data = saved(Image.new("RGB", (40, 30)), kind)
    (tmp_path / "innocent.png").write_bytes(data)
    for source in (data, tmp_path / "innocent.png"):
        with pytest.raises(GeniusError, match="PNG, JPEG, WebP"):
            load_image(source)


def test_ghostscript_is_never_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker, gs = tmp_path / "started", tmp_path / "gs"
    gs.write_text(f"#!/bin/sh\necho >> {marker}\n")
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "photo.png").write_bytes(saved(Image.new("RGB", (40, 30)), "EPS"))
    with pytest.raises(GeniusError):
        load_image(tmp_path / "photo.png")
    assert not marker.exists()


def test_files_that_are_indexed_are_those_that_are_read(tmp_path: Path) -> None:
    for suffix in [*IMAGE_SUFFIXES, ".eps", ".ps", ".pdf", ".ico"]:
        (tmp_path / f"a{suffix}").write_bytes(b"x")
    found = {file.path.suffix for file in find_files([tmp_path], IngestConfig(), IngestReport())}
    assert found == IMAGE_SUFFIXES == {s for suffixes in RASTER.values() for s in suffixes} | {".svg"}


# -- size ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_large_pictures_come_smaller_and_small_ones_as_they_are(kind: str) -> None:
    smooth = Image.linear_gradient("L").resize((900, 1500)).convert("RGB")
    small = load_image(saved(smooth, kind), least=100)
    assert 100 <= min(small.size) < 200 and abs(small.height / small.width - 1500 / 900) < 0.03
    whole = np.asarray(smooth.resize(small.size, Image.Resampling.BOX), int)
    assert np.abs(np.asarray(small, int) - whole).mean() < 3
    assert load_image(saved(smooth, kind), least=2000).size == (900, 1500)
    assert load_image(saved(smooth, kind)).size == (900, 1500)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["RGB", "L", "P", "RGBA", "LA", "CMYK", "1", "I;16", "F", "YCbCr"]),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 7),
    st.integers(1, 300),
    st.integers(0, 9),
)
def test_bands_change_nothing(mode: str, width: int, height: int, factor: int, band: int, seed: int) -> None:
    """A picture flattened and shrunk band by band is the one flattened and shrunk whole."""
    values = np.random.default_rng(seed)
    if mode == "I;16":
        picture = Image.fromarray(values.integers(0, 65536, (height, width), dtype=np.uint16))
    elif mode == "F":
        picture = Image.fromarray(values.random((height, width), dtype=np.float32) * 300 - 20)
    else:
        picture = noise(width, height, seed).convert(mode)
    whole = tones.to_rgb(picture, factor)
    old, tones.BAND = tones.BAND, band
    try:
        banded = tones.to_rgb(picture, factor)
    finally:
        tones.BAND = old
    assert banded.size == whole.size == (-(-width // factor), -(-height // factor)) and banded.mode == "RGB"
    assert banded.tobytes() == whole.tobytes()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_pictures_stand_upright_also_when_shrunk(orientation: int, kind: str, tmp_path: Path) -> None:
    picture = Image.new("RGB", (60, 40), "white")
    picture.paste((255, 0, 0), (0, 0, 20, 10))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(picture, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    with Image.open(io.BytesIO(data)) as opened:
        expected = ImageOps.exif_transpose(opened).convert("RGB")
    whole = load_image(data)
    assert whole.size == expected.size and np.abs(np.asarray(whole, int) - np.asarray(expected, int)).max() <= 1
    assert load_image(data, least=20).size == tuple(side // 2 for side in expected.size)


def test_a_callers_picture_stays_as_it_was() -> None:
    lazy = Image.open(io.BytesIO(saved(noise(64, 48), "PNG")))
    small = load_image(lazy, least=10)
    assert small.size < (20, 20) and lazy.size == (64, 48) and lazy.getpixel((5, 5)) == noise(64, 48).getpixel((5, 5))


# -- tones -----------------------------------------------------------------------------------------------------


def ramp(dtype: type, low: float, high: float) -> Image.Image:
    return Image.fromarray(np.tile(np.linspace(low, high, 256, dtype=np.float64), (8, 1)).astype(dtype))


@pytest.mark.parametrize(
    ("picture", "kind"),
    [
        (ramp(np.uint16, 0, 65535), "PNG"),
        (ramp(np.uint16, 0, 65535), "TIFF"),
        (ramp(np.float32, 0, 1), "TIFF"),
        (ramp(np.float32, 0, 255), "TIFF"),
        (ramp(np.float32, -400, 8848), "TIFF"),
        (ramp(np.int32, 0, 65535), "TIFF"),
        (ramp(np.int32, -100_000, 100_000), "TIFF"),
        (ramp(np.uint8, 0, 255), "PNG"),
    ],
)
def test_deep_pictures_are_scaled_not_clipped(picture: Image.Image, kind: str) -> None:
    for least in (None, 4):
        grey = np.asarray(load_image(saved(picture, kind), least=least), float)
        assert abs(grey.mean() - 127.5) < 1.5 and grey.min() < 3 and grey.max() > 252
        assert (np.diff(grey[0, :, 0]) >= 0).all()


def test_dark_and_constant_deep_pictures_stay_what_they_are() -> None:
    assert np.asarray(load_image(saved(ramp(np.uint16, 0, 6553), "PNG"))).max() == 25  # a tenth of white, as stored
    assert np.asarray(load_image(saved(ramp(np.float32, 0.5, 0.5), "TIFF"))).mean() == pytest.approx(127.5, abs=1)
    assert np.asarray(load_image(saved(ramp(np.float32, 9000, 9000), "TIFF"))).std() == 0


def test_numbers_that_are_none_do_not_spoil_the_rest() -> None:
    values = np.tile(np.linspace(0, 1, 256, dtype=np.float32), (8, 1))
    values[0, 0], values[0, 1], values[0, 2] = np.nan, np.inf, -np.inf
    grey = np.asarray(load_image(saved(Image.fromarray(values), "TIFF")), float)[1:]
    assert abs(grey.mean() - 127.5) < 1.5
    nothing = load_image(saved(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "TIFF"))
    assert nothing.getextrema() == ((0, 0),) * 3


def test_memory_is_that_of_one_picture_and_given_back() -> None:
    """Eight threads, twelve pictures of 10 megapixels: the peak is a few at a time, and nothing of it stays."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux")
    code = """
import io, sys
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
from genius.pictures import load_image
def kb(name): return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))
buffer = io.BytesIO(); Image.new("RGB", (3200, 3200), (9, 9, 200)).save(buffer, "PNG"); data = buffer.getvalue()
load_image(data, least=400)
open("/proc/self/clear_refs", "w").write("5"); before = kb("VmRSS")
with ThreadPoolExecutor(8) as pool: list(pool.map(lambda _: load_image(data, least=400), range(12)))
print((kb("VmHWM") - before) // 1024, (kb("VmRSS") - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peak, left = map(int, done.stdout.split())
    assert peak < 300 and left < 55, (peak, left)  # about 55 MB each, four at a time: all eight would be 440


# -- limits ----------------------------------------------------------------------------------------------------


def test_a_large_jpeg_is_read_scaled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 300_000)
    smooth = Image.linear_gradient("L").resize((1000, 700)).convert("RGB")
    assert load_image(saved(smooth, "JPEG")).size == (500, 350)
    assert min(load_image(saved(smooth, "JPEG"), least=100).size) in range(100, 200)
    with pytest.raises(GeniusError, match=r"has 1000 x 700 pixels, more than 300,000"):
        load_image(saved(smooth, "PNG"))


def test_larger_pictures_are_shrunk_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 300_000)
    monkeypatch.setattr(pictures, "MAX_DECODING", 2_400_000)
    monkeypatch.setattr(pictures, "LARGE_PIXELS", 700_000)
    monkeypatch.setattr(pictures, "LARGE_DECODING", 5_600_000)
    smooth = Image.linear_gradient("L").resize((1000, 700)).convert("RGB")
    for kind in ("PNG", "TIFF", "BMP"):
        small = load_image(saved(smooth, kind), least=100, large=True)
        assert small.size == (143, 100) and small.getpixel((0, 50)) == pytest.approx((127, 127, 127), abs=3)
        for refused in ({"least": 100}, {"large": True}):
            with pytest.raises(GeniusError, match="more than 300,000"):
                load_image(saved(smooth, kind), **refused)  # type: ignore[arg-type]
    progressive = saved(smooth, "JPEG", progressive=True)
    assert load_image(progressive, least=100, large=True).size == (250, 175)
    with pytest.raises(GeniusError, match="more than 2 MB to decode"):
        load_image(progressive, least=100)
    with pytest.raises(GeniusError, match="more than 300,000"):
        load_image(saved(smooth, "WEBP"), least=100, large=True)
    with pytest.raises(GeniusError, match=r"1001 x 700 pixels, more than 700,000"):
        load_image(saved(smooth.resize((1001, 700)), "PNG"), least=100, large=True)


@pytest.mark.parametrize("kind", ["WEBP", "AVIF"])
def test_memory_of_decoding_is_bounded_by_the_declared_size(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(noise(100, 80), kind)
    monkeypatch.setattr(pictures, "MAX_DECODING", 100 * 80 * 15)
    with pytest.raises(GeniusError, match=rf"{kind}, 100 x 80 pixels"):
        load_image(data)
    assert load_image(saved(noise(100, 80), "PNG")).size == (100, 80)


def test_a_progressive_jpeg_counts_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    smooth = Image.linear_gradient("L").resize((1000, 700)).convert("RGB")
    monkeypatch.setattr(pictures, "MAX_DECODING", 1000 * 700 * 6)
    with pytest.raises(GeniusError, match="to decode"):
        load_image(saved(smooth, "JPEG", progressive=True), least=100)
    assert load_image(saved(smooth, "JPEG"), least=100).width < 300


def test_a_callers_lazy_jpeg_stays_as_it_was() -> None:
    lazy = Image.open(io.BytesIO(saved(noise(800, 640), "JPEG")))
    load_image(lazy, least=50)
    assert lazy.size == (800, 640)


def test_heic_without_its_extra_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "HEIF", False)
    (tmp_path / "photo.heic").write_bytes(b"no picture")
    with pytest.raises(GeniusError, match=r"genius-search\[heic\]"):
        load_image(tmp_path / "photo.heic")
