"""Fixtures of the tests of scale: a tiny model on the disk, made-up sources, and workers that are no processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

import pytest
from fake_encoder import fake_model, register
from scale_fixtures import Killed

from genius.scale.bulk import Part, PartEncoder, Results, Say, Spread, Task

register()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "fake"
    fake_model().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def in_turn() -> Callable[..., Spread]:
    """A way to encode parts without Ray: one after the other, here; killed after the first `most`."""

    def spread(most: int = 10**9) -> Spread:
        def run(task: Task, parts: Sequence[Part], say: Say) -> Results:
            encoder = PartEncoder(task)
            for number, part in enumerate(parts):
                if number == most:
                    raise Killed
                yield part, pickle.loads(pickle.dumps(encoder.encode(part)))

        return run

    return spread
