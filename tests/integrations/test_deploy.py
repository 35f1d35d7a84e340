"""The container files: what can be checked without an engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from genius import Index, Item
from genius.config import read_config
from genius.serve.settings import ServeConfig

ROOT = Path(__file__).parents[2]


def test_the_dockerfile_is_non_root_with_a_volume_and_a_health_check() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    known = {
        "ARG",
        "FROM",
        "ENV",
        "COPY",
        "RUN",
        "LABEL",
        "USER",
        "WORKDIR",
        "VOLUME",
        "EXPOSE",
        "HEALTHCHECK",
        "STOPSIGNAL",
        "CMD",
    }
    assert {line.split()[0] for line in lines} <= known
    users = [line.split()[1] for line in lines if line.startswith("USER")]
    assert users and users[-1] != "root"
    assert any(line.startswith("VOLUME /data") for line in lines)
    assert any(line.startswith("HEALTHCHECK") and "/readyz" in line for line in lines)
    assert ".whl" in text


def test_the_compose_file_has_a_proxy_with_tls_and_rate_limits() -> None:
    yaml = pytest.importorskip("yaml")
    body = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    services = body["services"]
    assert "ports" not in services["genius"] and services["genius"]["read_only"]
    assert services["proxy"]["depends_on"]["genius"]["condition"] == "service_healthy"
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.endswith((".conf", ".toml")):
                assert (ROOT / "deploy" / source).is_file()
    proxy = services["proxy"]["networks"]["inside"]["ipv4_address"]
    assert read_config(ServeConfig, ROOT / "deploy" / "serve.toml").trusted_proxies == (proxy,)


def test_the_proxy_limits_what_the_service_accepts() -> None:
    text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    assert text.count("{") == text.count("}")
    for directive in ("limit_req zone=", "limit_conn connections", "ssl_certificate_key", "proxy_pass http://genius:8000"):
        assert directive in text
    largest = re.search(r"client_max_body_size (\d+)m;", text)
    assert largest is not None and int(largest[1]) * 1_000_000 <= ServeConfig().max_body_bytes


def test_the_health_check_of_the_dockerfile_tells_a_service_that_answers_from_none(tmp_path: Path) -> None:
    """Its command, as it stands, against a real `genius serve` on another port; then without the service."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.search(r"^HEALTHCHECK.*?CMD (\[.*\])$", text, re.M)
    assert found is not None
    _, *arguments = json.loads(found[1])
    with Index.create(tmp_path / "own.genius", dim=3) as index:
        index.add([Item("a", vector=[1.0, 0.0, 0.0])])
    command = [sys.executable, "-m", "genius", "serve", str(tmp_path / "own.genius"), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            check = [sys.executable, *(argument.replace("http://127.0.0.1:8000", url) for argument in arguments)]
            assert subprocess.run(check, timeout=60).returncode == 0
        finally:
            process.terminate()
    assert subprocess.run(check, stderr=subprocess.DEVNULL, timeout=60).returncode != 0
