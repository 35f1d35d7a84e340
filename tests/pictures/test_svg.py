"""Untrusted drawings: rendered in a process of their own, with limits, and without a look at any other file."""

from __future__ import annotations

import base64
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from genius import GeniusError
from genius.pictures import load_image
from genius.pictures import svg as sandbox
from genius.pictures.svg import MAX_DEPTH, clean_svg

pytest.importorskip("resvg_py")

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 10 10"'
RED = f'{HEAD}><rect width="10" height="10" fill="#f00"/></svg>'
SLOW = (
    f'{HEAD}><filter id="f"><feTurbulence baseFrequency="9" numOctaves="1000000000"/></filter>'
    '<rect width="10" height="10" filter="url(#f)"/></svg>'
)
LAUGHS = "".join(f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(9))
LAUGHS = f'<!DOCTYPE svg [{LAUGHS}<!ENTITY a0 "lol">]>{HEAD}>&a9;</svg>'


def nested(depth: int) -> str:
    return f"{HEAD}>" + "<g>" * depth + '<rect width="10" height="10"/>' + "</g>" * depth + "</svg>"


def bomb() -> str:
    """A picture that claims 20,000 x 20,000 pixels, inside a small drawing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    body = zlib.compress(bytes(100_000))
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 6, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    return f'{HEAD}><image width="9" height="9" href="data:image/png;base64,{base64.b64encode(png).decode()}"/></svg>'


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    def write(svg: str | bytes, name: str = "a.svg") -> Path:
        path = tmp_path / name
        path.write_bytes(svg.encode() if isinstance(svg, str) else svg)
        return path

    return write


def test_nesting_that_overflows_a_stack_costs_one_picture(put: Callable[..., Path]) -> None:
    for depth in (MAX_DEPTH, 500, 20_000, 200_000):
        with pytest.raises(GeniusError, match="nested more than"):
            load_image(put(nested(depth)))
    assert load_image(put(nested(MAX_DEPTH - 2))).getpixel((99, 99)) == (0, 0, 0)


def test_what_crashes_hangs_or_eats_memory_is_named_and_the_next_is_drawn(
    put: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GeniusError, match=r"longer than 0\.5 s"):
        sandbox.draw_svg(put(SLOW), seconds=0.5)
    with pytest.raises(GeniusError, match=r"crashed|memory"):
        load_image(put(bomb()))
    assert load_image(put(RED)).getpixel((9, 9)) == (255, 0, 0)
    for worker in filter(None, sandbox._workers.queue):  # killed by the system while nobody drew
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
    assert load_image(put(RED)).getpixel((9, 9)) == (255, 0, 0)


def test_many_threads_and_one_bad_drawing(put: Callable[..., Path], tmp_path: Path) -> None:
    colours = [f"#{i:02x}{255 - i:02x}40" for i in range(0, 240, 6)]
    paths = [put(RED.replace("#f00", colour), f"{i}.svg") for i, colour in enumerate(colours)]
    paths.insert(7, put(SLOW, "slow.svg"))

    def attempt(path: Path) -> object:
        try:
            return sandbox.draw_svg(path, seconds=2).getpixel((9, 9))
        except GeniusError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(attempt, paths))
    assert "longer than" in str(drawn.pop(7))
    assert drawn == [(i, 255 - i, 0x40) for i in range(0, 240, 6)]


@pytest.mark.parametrize(
    "element",
    [
        '<image {} width="10" height="10"/>',
        '<filter id="f"><feImage {}/></filter><rect width="10" height="10" filter="url(#f)"/>',
        '<s:image xmlns:s="http://www.w3.org/2000/svg" {} width="10" height="10"/>',
        '<g><g><image width="10" {} height="10"/></g></g>',
    ],
)
@pytest.mark.parametrize("how", ["href", "xlink:href", "y:href"])
def test_references_to_files_are_refused(put: Callable[..., Path], tmp_path: Path, element: str, how: str) -> None:
    secret = tmp_path / "secret.png"
    Image.new("RGB", (8, 8), (255, 0, 255)).save(secret)
    head = f'{HEAD} xmlns:y="http://www.w3.org/1999/xlink">'
    for target in (str(secret), "secret.png", f"file://{secret}", f" {secret}", "../secret.png", "http://localhost/x.png"):
        drawing = head + element.format(f'{how}="{target}"') + "</svg>"
        with pytest.raises(GeniusError, match="not refer to files"):
            load_image(put(drawing))
        hidden = f'<!DOCTYPE svg [<!ENTITY e "{target}">]>' + head + element.format(f'{how}="&e;"') + "</svg>"
        with pytest.raises(GeniusError, match="not refer to files"):
            load_image(put(hidden))


def test_no_other_way_shows_a_file(put: Callable[..., Path], tmp_path: Path) -> None:
    secret, other = tmp_path / "secret.png", tmp_path / "other.svg"
    Image.new("RGB", (8, 8), (255, 0, 255)).save(secret)
    other.write_text(f'{HEAD}><rect id="r" width="10" height="10" fill="#f0f"/></svg>')
    picture = f'<image href="{secret}" width="10" height="10"/>'
    inner = base64.b64encode(f'{HEAD} width="10" height="10">{picture}</svg>'.encode()).decode()
    ways = [
        f'{HEAD}><image href="data:image/svg+xml;base64,{inner}" width="10" height="10"/></svg>',
        f'{HEAD}><use href="{other}#r"/></svg>',
        f'{HEAD}><rect width="10" height="10" fill="url({other}#r)"/></svg>',
        f'{HEAD}><style>@import url({secret}); rect {{ fill: url({other}#r) }}</style><rect width="10" height="10"/></svg>',
        f'{HEAD}><image width="10" height="10" style="href:{secret}"/></svg>',
        f'{HEAD}><image width="10" height="10"><set attributeName="href" to="{secret}"/></image></svg>',
        f'<?xml-stylesheet href="{secret}"?>{HEAD}><rect width="1" height="1"/></svg>',
        f'<!DOCTYPE svg [<!ATTLIST image href CDATA "{secret}">]>{HEAD}><image width="10" height="10"/></svg>',
        f"<!DOCTYPE svg [<!ENTITY e \"<image href='{secret}' width='10' height='10'/>\">]>{HEAD}>&e;</svg>",
        f'<!DOCTYPE svg [<!ENTITY e SYSTEM "{other}">]>{HEAD}>&e;</svg>',
        f'<!DOCTYPE svg SYSTEM "{other}">{HEAD}><rect width="1" height="1"/></svg>',
    ]
    for svg in ways:
        try:
            colours = load_image(put(svg)).getcolors(100_000)
        except GeniusError:
            continue
        assert colours is not None and (255, 0, 255) not in {colour for _, colour in colours}, svg


def test_pictures_inside_links_and_local_references_are_drawn(put: Callable[..., Path]) -> None:
    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M/wHwAEBgIApD5fRAAAAABJRU5ErkJggg=="
    inside = f'{HEAD}><image href="data:image/png;base64,{png}" width="10" height="10"/></svg>'
    assert load_image(put(inside)).size == (256, 256)
    shape = '<defs><rect id="r" width="10" height="10" fill="#0f0"/></defs>'
    used = f'{HEAD}>{shape}<a href="https://example.org"><use xlink:href="#r"/></a></svg>'
    assert load_image(put(used)).getpixel((99, 99)) == (0, 255, 0)
    entity = f'<!DOCTYPE svg [<!ENTITY c "#00f">]>{RED.replace("#f00", "&c;")}'
    assert load_image(put(entity)).getpixel((99, 99)) == (0, 0, 255)


@pytest.mark.parametrize(
    ("svg", "problem"),
    [
        (b"", "not valid XML"),
        (b"<svg", "not valid XML"),
        (b"\xff\xfe<\0s\0v\0g\0", "not valid XML"),
        (b"<html></html>", "cannot read"),
        (b"\x00\x01\x02", "not valid XML"),
        (LAUGHS, r"not valid XML|expands"),
    ],
)
def test_broken_drawings_get_one_line(put: Callable[..., Path], svg: str | bytes, problem: str) -> None:
    with pytest.raises(GeniusError, match=problem) as error:
        load_image(put(svg))
    assert "\n" not in str(error.value) and "a.svg" in str(error.value)


def test_a_huge_file_is_not_read(put: Callable[..., Path]) -> None:
    path = put(RED)
    with path.open("r+b") as file:
        file.truncate(10**12)  # sparse
    with pytest.raises(GeniusError, match="too large"):
        load_image(path)


def test_cleaning_keeps_what_is_drawn() -> None:
    head = f"<?xml version='1.0' encoding='latin-1'?><!-- c --><!DOCTYPE svg>{HEAD}>"
    svg = f'{head}<style><![CDATA[a > b {{}}]]></style>é &amp; &lt; "x"</svg>'
    clean = clean_svg(svg.encode())
    assert clean == f'{HEAD}><style>a &gt; b {{}}</style>é &amp; &lt; "x"</svg>'
    assert clean_svg(clean.encode()) == clean


def test_a_forked_child_has_workers_of_its_own(put: Callable[..., Path]) -> None:
    """Parent and child draw at the same time: with pipes shared between them they would get each other's pictures."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    red, blue = put(RED, "red.svg"), put(RED.replace("#f00", "#00f"), "blue.svg")
    load_image(red)  # the parent has a worker now

    def colours(path: Path) -> set[object]:
        return {load_image(path).getpixel((9, 9)) for _ in range(40)}

    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if colours(blue) == {(0, 0, 255)} else 1)
        except BaseException:
            os._exit(2)
    assert colours(red) == {(255, 0, 0)}
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_script_without_a_main_guard_and_no_process_left_behind(put: Callable[..., Path], tmp_path: Path) -> None:
    """Workers are no multiprocessing children: they do not run the caller's program. And they end with it, also by kill."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, sys, time
        from genius.pictures import load_image
        from genius.pictures import svg as sandbox
        print("ran", load_image({str(put(RED))!r}).getpixel((9, 9)))
        print(*[worker.process.pid for worker in filter(None, sandbox._workers.queue)], flush=True)
        if sys.argv[1] == "stay":
            time.sleep(60)
        """)
    )
    secret = {**os.environ, "GENIUS_API_KEYS": "read:secret-0123456789abcdef"}
    for way in ("end", "stay"):
        started = subprocess.Popen([sys.executable, script, way], stdout=subprocess.PIPE, text=True, env=secret)
        assert started.stdout is not None
        assert started.stdout.readline() == "ran (255, 0, 0)\n"  # once
        workers = [int(pid) for pid in started.stdout.readline().split()]
        assert workers
        if way == "stay":
            environ = Path(f"/proc/{workers[0]}/environ")
            assert not environ.exists() or b"GENIUS_API_KEYS" not in environ.read_bytes()
            started.kill()
        started.wait(30)
        started.stdout.close()
        deadline = time.monotonic() + 10
        while any(_alive(pid) for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
