"""A CLIP-shaped checkpoint that knows seven colours, and folders of made-up photos."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from pathlib import Path

import pytest
from colour_clip import COLOURS, photo, write_clip


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture
def photos(tmp_path: Path) -> Callable[..., Path]:
    """Write so many photos of every colour, without any words."""

    def write(each: int = 6, name: str = "photos", first: int = 0, side: int = 48) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for colour in COLOURS:
            for i in range(first, first + each):
                number = list(COLOURS).index(colour) * 1000 + i
                path = folder / f"IMG_{number:05}.png"
                if not path.exists():
                    photo(colour, number, side).save(path)
        return folder

    return write


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are of the way, not of how well a decoder is fitted (docs/onramp.md)."""
    from genius.fit import FitConfig

    monkeypatch.setattr(FitConfig, "__init__", partialmethod(FitConfig.__init__, steps=20))
