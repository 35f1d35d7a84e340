"""Fixtures of the service's tests: a real index over drawn shapes, in process and behind a real `genius serve`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from serve_fixtures import book
from starlette.testclient import TestClient

from genius.index import Index
from genius.serve.app import create_app
from genius.serve.auth import Keys
from genius.serve.settings import ServeConfig

LOCAL = "http://localhost"  # what an open server answers to
HELPERS = Path(__file__).parents[1] / "helpers"
LAUNCHER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import fake_encoder; fake_encoder.register(); "
    "from genius.cli import main; main()"
)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fake_encoder import fake_model

    folder = tmp_path_factory.mktemp("model")
    fake_model().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_index(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Index]:
    """A fresh index folder with the picture book, opened."""
    from fake_encoder import fake_model

    def make(items: int | None = None) -> Index:
        index = Index(tmp_path_factory.mktemp("shapes") / "shapes.genius", fake_model())
        index.add(book()[:items])
        return index

    return make


@pytest.fixture(scope="module")
def web(make_index: Callable[..., Index]) -> Iterator[TestClient]:
    """The app over a real index, in process, without keys. Tests that write clean up after themselves."""
    app = create_app(make_index(), ServeConfig(max_image_bytes=1_000_000, max_body_bytes=2_000_000))
    with TestClient(app, base_url=LOCAL) as client:
        yield client


@pytest.fixture
def make_web() -> Iterator[Callable[..., TestClient]]:
    """An app over anything that looks like an index."""
    opened: list[TestClient] = []

    def make(index: Any, keys: Keys | None = None, **config: Any) -> TestClient:
        client = TestClient(create_app(index, ServeConfig(**config), keys), base_url=LOCAL)
        client.__enter__()
        opened.append(client)
        return client

    yield make
    for client in opened:
        client.__exit__(None, None, None)


@dataclass
class Running:
    """A `genius serve` process."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def logged(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().split("\n")[:-1]  # without one that is being written
        return [json.loads(line) for line in lines if line.startswith("{")]

    def logged_requests(self, *ids: str) -> list[dict[str, Any]]:
        """The lines of requests with these `X-Request-ID`: they are written after the answers."""
        deadline = time.monotonic() + 60
        while True:
            found = [line for line in self.logged() if line["event"] == "request" and line["request_id"] in ids]
            if len(found) == len(ids):
                return found
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)


@pytest.fixture(scope="session")
def start_server(
    model_folder: Path, make_index: Callable[..., Index], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Running]]:
    """Start `genius serve` on a free port of this machine; every one is stopped at the end."""
    started: list[Running] = []

    def start(
        *options: str,
        environ: dict[str, str] | None = None,
        items: int | None = None,
        verify: Any = True,
        index: Path | None = None,
        model: str | None = None,
    ) -> Running:
        path = make_index(items).path if index is None else index
        log = tmp_path_factory.mktemp("log") / "serve.log"
        command = [
            sys.executable,
            "-c",
            LAUNCHER,
            str(HELPERS),
            "serve",
            str(path),
            "--model",
            model or str(model_folder),
            "--port",
            "0",
            "--json",
        ]
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [*command, *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        running = Running(json.loads(line)["url"], process, log)
        started.append(running)
        deadline = time.monotonic() + 180
        while True:
            try:
                if httpx.get(f"{running.url}/readyz", trust_env=False, verify=verify, timeout=60).status_code == 200:
                    return running
            except httpx.HTTPError:
                pass
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.terminate()
            try:
                running.process.wait(60)
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()
        if running.process.stdout is not None:
            running.process.stdout.close()


@pytest.fixture(scope="session")
def live(start_server: Callable[..., Running]) -> Running:
    """One server for all tests that only read or clean up after themselves."""
    return start_server()


@pytest.fixture(scope="session")
def live_two(start_server: Callable[..., Running], make_index: Callable[..., Index]) -> Running:
    """One server of two collections: the picture book, and the first nine items of it as "few"."""
    return start_server(f"few={make_index(9).path}")
