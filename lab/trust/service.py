"""What the programs about trust share: a real `genius serve` and a report."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from lab import ROOT, current_commit


class Server:
    """A running `genius serve`."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, trust_env=False, **options)

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def mistakes(self) -> list[dict[str, Any]]:
        """Lines of the log that say we did something wrong."""
        return [line for line in self.logged() if line["event"] == "bug" or line["level"] in ("error", "critical")]


@contextmanager
def serve(folder: Path, *options: str) -> Iterator[Server]:
    """`genius serve` with these arguments on a free port, as a process of its own."""
    log = folder / f"serve-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "genius", "serve", *options, "--port", "0", "--json"]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment())
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(log.read_text())
    server = Server(process, json.loads(line)["url"], log)
    try:
        with server.client() as client:
            while True:
                try:
                    if client.get("/readyz").status_code == 200:
                        break
                except httpx.HTTPError:
                    time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}


def write_report(path: Path, **parts: Any) -> None:
    """Results as readable JSON, with what is needed to judge them."""
    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": current_commit(),
        "cpus": os.cpu_count(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "python": platform.python_version(),
    }
    text = json.dumps({**about, **parts}, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files may be no text
    print(path.read_text(encoding="utf-8"))
