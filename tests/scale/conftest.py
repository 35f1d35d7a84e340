"""Fixtures of the tests of scale: a tiny model on the disk, made-up sources, and workers that are no processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_encoder import fake_model, register
from scale_fixtures import Killed

from genius.scale.bulk import Batch, BatchEncoder, BulkConfig, Results, Say, Spread

register()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "fake"
    fake_model().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def in_turn() -> Callable[..., Spread]:
    """A way to encode batches without Ray: one after the other, here; killed after the first `most`."""

    def spread(most: int = 10**9) -> Spread:
        def run(folder: Path, config: BulkConfig, batches: Iterator[Batch], say: Say) -> Results:
            encoder = BatchEncoder(folder, config)
            for number, batch in enumerate(batches):
                if number == most:
                    raise Killed
                sent = pickle.loads(pickle.dumps(batch))
                yield batch, pickle.loads(pickle.dumps(encoder.encode(sent)))

        return run

    return spread
