"""A model goes to a hub and comes back, through `huggingface_hub` and a stand-in server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fake_encoder
import pytest
from hub_server import COMMIT, Hub

from genius import GeniusError

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: pip install 'genius-search[hub]'")

PROGRAM = """
import sys, fake_encoder
fake_encoder.register()
from genius import Genius, GeniusError
model = fake_encoder.fake_model()
uri = model.push_to_hub("someone/tiny", token="hf_test", card={"license": "apache-2.0"})
print(uri)
print(Genius.from_pretrained(uri).fingerprint() == model.fingerprint())
try:
    Genius.from_pretrained("hf-hub:someone/nothing")
except GeniusError as error:
    print(error)
"""


def test_a_model_goes_to_a_hub_and_comes_back(tmp_path: Path) -> None:
    hub = Hub()
    path = os.pathsep.join([str(Path(fake_encoder.__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        environment.pop(name, None)
    try:
        result = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300)
    finally:
        hub.close()
    assert result.returncode == 0, result.stderr[-2000:]
    uri, same, refused = result.stdout.splitlines()[-3:]
    assert uri == f"hf-hub:someone/tiny@{COMMIT}" and same == "True"
    assert refused.startswith("cannot fetch hf-hub:someone/nothing")
    card = hub.files["someone/tiny"]["README.md"].decode()
    assert card.startswith("---\nlibrary_name:") and 'license: "apache-2.0"' in card
    assert fake_encoder.fake_model().fingerprint() in card and "3 x 16 x 16 x 16" in card
    assert "hf-hub:someone/tiny" in card


def test_a_name_without_an_owner_is_refused() -> None:
    with pytest.raises(GeniusError, match="OWNER/NAME, got 'tiny'"):
        fake_encoder.fake_model().push_to_hub("tiny")
