"""URIs -> folders -> encoders, and one clear line for everything that is not one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from genius import GeniusError
from genius.encoders import load_encoder, read_spec, resolve, write_spec


def test_paths_and_local_dirs_resolve(tmp_path: Path) -> None:
    assert resolve(tmp_path) == resolve(f"local-dir:{tmp_path}") == tmp_path


@pytest.mark.parametrize(
    "uri",
    [
        "local-dir:/no/such/folder",
        "/no/such/folder",
        "bundled:no-such-model",
        "hf-hub:only-a-name",
        "uniir:/no/file.pth",
        "nonsense:x",
    ],
)
def test_unknown_places_say_so_in_one_line(uri: str) -> None:
    with pytest.raises(GeniusError) as error:
        load_encoder(uri)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match="no encoder at"):
        load_encoder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "blip"}))
    with pytest.raises(GeniusError, match="blip"):
        load_encoder(tmp_path)
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(GeniusError, match="cannot read"):
        load_encoder(tmp_path)


def test_a_spec_round_trips_and_unknown_families_are_refused(tmp_path: Path) -> None:
    write_spec(tmp_path, "clip", {"note": 1})
    assert read_spec(tmp_path) == ("clip", {"family": "clip", "note": 1})
    (tmp_path / "encoder.json").write_text(json.dumps({"family": "magic"}))
    with pytest.raises(GeniusError, match="magic"):
        read_spec(tmp_path)


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(GeniusError, match="is a file"):
        load_encoder(tmp_path / "x.bin")


def test_the_registry_imports_no_family() -> None:
    heavy = ("transformers", "onnxruntime", "tokenizers")
    code = f"import sys, genius.encoders; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
