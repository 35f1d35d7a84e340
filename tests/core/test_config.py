"""Config files: unknown fields, wrong types and broken files each get one line that names the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from genius.config import from_dict, read_config, to_dict
from genius.errors import GeniusError
from genius.model.config import GeniusConfig


def test_round_trip() -> None:
    config = GeniusConfig()
    assert from_dict(GeniusConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[quantizer]\ncolour = 1", "quantizer: unknown field 'colour'"),
        ("[quantizer]\nwidth = 'wide'", "width must be int"),
        ("[quantizer]\nmodality_code = 'guess'", "must be one of 'given'"),
        ("[quantizer]\nlevel_sizes = 3", "must be a list"),
        ("quantizer = 3", "expected a table"),
        ("[quantizer", "cannot read"),
        ("[quantizer]\nlevel_sizes = [3, 16]", "differ"),
        ("[fusion]\nwidth = 5", "different widths"),
    ],
)
def test_bad_files_get_one_line(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(body)
    with pytest.raises(GeniusError, match=message) as error:
        read_config(GeniusConfig, path)
    assert "\n" not in str(error.value)


def test_missing_file() -> None:
    with pytest.raises(GeniusError, match="no such config"):
        read_config(GeniusConfig, "absent.toml")
