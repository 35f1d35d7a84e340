"""Fixtures of the index tests: a tiny deterministic model, and an index in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_encoder import fake_model, register

from genius import Genius, Index

register()


@pytest.fixture(scope="session")
def model() -> Genius:
    return fake_model()


@pytest.fixture(scope="session")
def model_folder(model: Genius, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model on disk, for what loads it by URI."""
    folder = tmp_path_factory.mktemp("models") / "fake"
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def index(model: Genius, tmp_path: Path) -> Index:
    return Index(tmp_path / "test.genius", model, lock_timeout=5)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
