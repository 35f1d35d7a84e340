"""Screenshots of the page and of the browser tab, over our own drawings: docs/images/page.png and docs/images/tab.png.

    python -m lab.draw.screenshots

Builds an index of 288 pictograms that `lab.draw.pictograms` draws, serves it, exports it, and takes both pictures in Chromium.
Needs Chromium, playwright and the extras `serve`, `svg` and `export`.
"""

from __future__ import annotations

import functools
import http.server
import io
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from PIL import Image

from genius.export.web import export_web
from genius.index import Index
from genius.model.genius import Genius
from genius.types import Item
from lab.draw.pictograms import PICTOGRAMS, names, picture

OUT = Path(__file__).parents[2] / "docs" / "images"
PAGE_QUERY = "safe and secret"
TAB_QUERY = "protect against rain"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
SIZE = {"width": 1280, "height": 800}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def build(folder: Path) -> Path:
    """An index of every pictogram in every colour, and of their names."""
    files = folder / "drawings"
    files.mkdir()
    items = []
    for name in names():
        path = files / f"{name.replace(' ', '-')}.svg"
        path.write_text(picture(name), encoding="utf-8")
        items.append(Item(name, image=path, metadata={"name": name}))
    items += [Item(name, text=name) for name in PICTOGRAMS]
    path = folder / "drawings.genius"
    with Index(path, Genius.from_pretrained("bundled:mini"), durable=False) as index:
        index.add(items)
    return path


def save(png: bytes, name: str) -> None:
    """Write a screenshot with a palette of 128 colours: a quarter of the size, and no visible difference."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(OUT / name, optimize=True)


def shoot_page(browser: Any, index: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "genius", "serve", str(index), "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        home = f"http://127.0.0.1:{port}/"
        for _ in range(240):
            try:
                urllib.request.urlopen(home + "readyz", timeout=1)
                break
            except OSError:
                time.sleep(0.5)
        page = browser.new_context(viewport=SIZE).new_page()
        page.goto(home + f"#q={PAGE_QUERY.replace(' ', '+')}&target=image")
        page.wait_for_selector('#results[aria-busy="false"]', timeout=60_000)
        page.wait_for_load_state("networkidle")
        time.sleep(1)
        save(page.screenshot(), "page.png")
        page.context.close()
    finally:
        server.terminate()
        server.wait()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def shoot_tab(browser: Any, index: Path, folder: Path) -> None:
    with Index.open(index) as opened:
        export_web(opened, folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = browser.new_context(viewport=SIZE).new_page()
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
        box = page.wait_for_selector("input[type=search], input[type=text], textarea", timeout=60_000)
        box.fill(TAB_QUERY)
        box.press("Enter")
        page.wait_for_load_state("networkidle")
        time.sleep(8)
        save(page.screenshot(), "tab.png")
        page.context.close()
    finally:
        server.shutdown()


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        index = build(folder)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        shoot_page(browser, index)
        shoot_tab(browser, index, folder / "site")
        browser.close()


if __name__ == "__main__":
    main()
