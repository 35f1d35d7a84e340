"""Fixtures of the tests of scale: a tiny model on the disk, made-up sources, and workers that are no processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_encoder import fake_model, register
from scale_fixtures import Killed

register()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "fake"
    fake_model().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def in_turn() -> Callable[..., Callable[[Any], None]]:
    """A way to do parts without Ray: one after the other, here; killed after the first `parts`."""

    def spread(parts: int = 10**9) -> Callable[[Any], None]:
        def run(work: Any) -> None:
            from genius.scale.parts import PartIndexer

            writer = PartIndexer(*work.arguments())
            for number, part in enumerate(work.parts):
                if number == parts:
                    raise Killed
                done, _ = writer.write(part, work.first[part.name])
                work.tell(done, 0)

        return run

    return spread
