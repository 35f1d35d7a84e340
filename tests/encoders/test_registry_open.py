"""An encoder family of somebody else's package is read like ours, once it has been registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from genius.encoders import FAMILIES, load_encoder, register, write_spec
from genius.errors import GeniusError


class Stranger:
    """Enough of an encoder to be loaded."""

    def __init__(self, colour: str) -> None:
        self.colour = colour

    @classmethod
    def load(cls, directory: Path, spec: dict[str, Any]) -> Stranger:
        return cls(spec["colour"])


def test_a_registered_family_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.encoders.FAMILIES", dict(FAMILIES))
    write_spec(tmp_path, "strange", {"colour": "red"})
    with pytest.raises(GeniusError, match="unknown encoder family"):
        load_encoder(str(tmp_path))
    register("strange", f"{__name__}:Stranger")
    register("strange", f"{__name__}:Stranger")  # twice is once
    found: Any = load_encoder(str(tmp_path))
    assert found.colour == "red"
    for family, place, words in (("clip", "mine:Clip", "already"), ("new", "no_colon", "module:class")):
        with pytest.raises(GeniusError, match=words):
            register(family, place)
