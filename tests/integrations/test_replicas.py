"""Several services on one index: what the files of deploy/ run, and searches while a replica is killed."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from genius import Index, Item
from genius.cli import app

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_what_kubernetes_runs_is_a_command_of_ours_on_the_port_that_it_asks() -> None:
    yaml = pytest.importorskip("yaml")
    deployment, service, scaler = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    program, name, *arguments = container["args"]
    context = typer.main.get_command(app).commands[name].make_context(name, arguments)  # type: ignore[attr-defined]
    assert program == "genius" and context.params["read_only"]
    assert context.params["port"] == container["ports"][0]["containerPort"] == service["spec"]["ports"][0]["port"]
    folders = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert folders.keys() == {volume["name"] for volume in pod["volumes"]}
    assert all(str(path).startswith(tuple(folders.values())) for path in (*context.params["indexes"], context.params["keys"]))
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


@contextmanager
def running(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, text=True, stderr=subprocess.DEVNULL, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def answered(search: Callable[[], int], stop: threading.Event, statuses: list[int]) -> None:
    while not stop.is_set():
        statuses.append(search())


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_no_search_fails_while_a_replica_is_killed(tmp_path: Path) -> None:
    """The proxy of deploy/replicas.conf, with the addresses of two replicas that run here."""
    path = tmp_path / "own.genius"
    with Index.create(path, dim=3) as index:
        index.add([Item("a", vector=[1.0, 0.0, 0.0]), Item("b", vector=[0.0, 1.0, 0.0])])
    serve = [sys.executable, "-m", "genius", "serve", str(path), "--read-only", "--port", "0", "--json"]
    port = free_port()
    config = (DEPLOY / "replicas.conf").read_text(encoding="utf-8").replace("listen 8080", f"listen 127.0.0.1:{port}")
    with ExitStack() as stack:
        replicas = [stack.enter_context(running(*serve, stdout=subprocess.PIPE)) for _ in range(2)]
        for number, replica in enumerate(replicas, start=1):
            assert replica.stdout is not None
            address = json.loads(replica.stdout.readline())["url"].removeprefix("http://")
            config = config.replace(f"replica-{number}:8000", address)
        file = tmp_path / "nginx.conf"
        file.write_text(
            f"pid {tmp_path}/pid;\nerror_log {tmp_path}/errors;\n{config}".replace("http {", "http {\n access_log off;")
        )
        stack.enter_context(running(*shlex.split(f"nginx -p {tmp_path} -c {file} -g 'daemon off;'")))
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False))
        body = {"vector": [0.9, 0.1, 0.0], "target": "any", "k": 1}

        def search() -> int:
            found = client.post("/v1/search", json=body, headers={"Host": "localhost"})
            assert found.status_code != 200 or found.json()["hits"][0]["id"] == "a"
            return found.status_code

        until(lambda: _is_up(search))
        statuses: list[int] = []
        stop = threading.Event()
        clients = [threading.Thread(target=answered, args=(search, stop, statuses)) for _ in range(4)]
        for one in clients:
            one.start()
        until(lambda: len(statuses) > 50)
        replicas[0].kill()
        before = len(statuses)
        until(lambda: len(statuses) > before + 100)
        stop.set()
        for one in clients:
            one.join()
    assert set(statuses) == {200}


def _is_up(search: Callable[[], int]) -> bool:
    try:
        return search() == 200
    except httpx.HTTPError:
        return False
