"""The page of `genius serve` as a person's browser meets it: first paint, bytes, requests, and what axe finds.

    python -m lab.page demo.genius         starts the service, opens five screens in Chromium, writes lab/results/page.json

Needs Chromium, playwright and axe-playwright-python.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

from lab.tab import FLAGS

OUT = Path(__file__).parent / "results" / "page.json"
SCREENS = {
    "start": "",
    "search": "#q=an+umbrella&target=image",
    "why": "#q=an+umbrella&target=image&why=1",
    "areas": "#map=",
    "plane": "#map=plane",
}
FACTS = """() => {
    const paint = Object.fromEntries(performance.getEntriesByType("paint").map((entry) => [entry.name, entry.startTime]));
    const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
    const own = all.filter((entry) => !/thumbnails|images/.test(entry.name));
    const bytes = (list) => list.reduce((sum, entry) => sum + entry.transferSize, 0);
    const first = Math.round(paint["first-contentful-paint"]);
    return { first_paint_ms: first, requests: all.length, bytes: bytes(all), bytes_without_pictures: bytes(own) };
}"""


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(home: str) -> dict[str, Any]:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    out: dict[str, Any] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, place in SCREENS.items():
            page = browser.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True).new_page()
            began = time.perf_counter()
            page.goto(home + place)
            while page.get_attribute("#results", "aria-busy") != "false":
                time.sleep(0.02)
            shown = time.perf_counter() - began
            page.wait_for_load_state("networkidle")
            faults = [
                {"impact": fault["impact"], "rule": fault["id"], "places": len(fault["nodes"])}
                for fault in Axe().run(page).response["violations"]
            ]
            out[name] = {**page.evaluate(FACTS), "shown_s": round(shown, 2), "axe": faults}
            page.context.close()
        browser.close()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.page", description=__doc__)
    parser.add_argument("index", type=Path)
    given = parser.parse_args()
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "genius", "serve", str(given.index), "--port", str(port)], stderr=subprocess.DEVNULL
    )
    try:
        home = f"http://127.0.0.1:{port}/"
        for _ in range(600):
            try:
                urllib.request.urlopen(home + "readyz")
                break
            except OSError:
                time.sleep(0.2)
        screens = measure(home)
    finally:
        server.terminate()
        server.wait()
    note = "a new browser context each, nothing cached; beside whatever else the machine did"
    body = {"date": datetime.date.today().isoformat(), "note": note, "screens": screens}
    OUT.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
