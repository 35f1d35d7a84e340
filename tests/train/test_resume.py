"""A run that stops at any moment goes on exactly: same metrics line by line, same weights bit by bit."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from train_fixtures import SMALL, small_config, small_data

from genius.errors import GeniusError
from genius.train import train
from genius.train.encoder import HeadsStage
from genius.train.generator import GeneratorStage
from genius.train.loop import Stage, latest_checkpoint, load_checkpoint, save_checkpoint
from genius.train.quantizer import QuantizerStage


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", [HeadsStage, QuantizerStage, GeneratorStage])
def test_interrupted_equals_uninterrupted(kind: type[Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    changes = {"run__checkpoint_steps": 3}
    data = small_data()
    whole = train(small_config(tmp_path / "whole", **changes), data, quiet=True)

    calls = {"n": 0}
    original = kind.forward

    def failing(self: Stage, batch: object) -> object:
        calls["n"] += 1
        if calls["n"] == 8:  # after the checkpoint at 6
            raise Stop
        return original(self, batch)

    config = small_config(tmp_path / "parts", **changes)
    monkeypatch.setattr(kind, "forward", failing)
    with pytest.raises(Stop):
        train(config, data, quiet=True)
    monkeypatch.setattr(kind, "forward", original)
    found = latest_checkpoint(tmp_path / "parts" / "training" / kind.name)
    assert found is not None and found.name.endswith("6")
    resumed = train(config, data, quiet=True)

    lines = [(tmp_path / name / "training" / "metrics.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    assert lines[0] == lines[1]
    assert resumed.model.fingerprint() == whole.model.fingerprint()
    assert resumed.metrics == whole.metrics


def test_accumulation_is_the_average_gradient(tmp_path: Path) -> None:
    """Two micro-batches of half the size train, and differ from one whole batch only through in-batch negatives."""
    data = small_data()
    split = train(
        small_config(tmp_path / "split", run__accumulate=2),
        data,
        quiet=True,
    )
    assert torch.isfinite(torch.tensor([v for m in split.metrics.values() for v in m.values()])).all()


def test_kill_9_and_the_same_command_goes_on(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "genius", "train", "builtin:tiny", "--json"]
    for name, value in {**SMALL, "quantizer.steps": 24, "generator.steps": 24}.items():
        arguments += ["--set", f"{name}={json.dumps(value)}"]
    arguments += ["--set", "run.checkpoint_steps=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def command(output: Path) -> list[str]:
        return [*arguments, "--output", str(output)]

    killed = tmp_path / "killed"
    metrics = killed / "training" / "metrics.jsonl"
    for wanted in ('"quantizer", "step": 10', '"generator", "step": 8'):
        process = subprocess.Popen(command(killed), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if metrics.exists() and wanted in metrics.read_text():
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (killed / "config.json").exists()  # no half-written model
    finished = subprocess.run(command(killed), env=environment, capture_output=True, text=True, check=True)
    whole = subprocess.run(command(tmp_path / "whole"), env=environment, capture_output=True, text=True, check=True)
    assert json.loads(finished.stdout)["fingerprint"] == json.loads(whole.stdout)["fingerprint"]
    assert metrics.read_text() == (tmp_path / "whole" / "training" / "metrics.jsonl").read_text()


@contextmanager
def full_disk(largest: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes: what a full disk looks like from inside."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    weights = {"w": torch.arange(20_000.0)}
    first = save_checkpoint(tmp_path, 1, {"w": torch.ones(3)}, {"state": {}}, {})
    for large in ((weights, {"state": {}}), ({"w": torch.ones(3)}, {"state": weights})):
        with full_disk(40_000), pytest.raises(GeniusError, match="What is done is kept"):
            save_checkpoint(tmp_path, 2, *large, {})
        assert list(tmp_path.iterdir()) == [first] and torch.equal(load_checkpoint(first)[0]["w"], torch.ones(3))


def test_a_full_disk_in_the_middle_of_training_keeps_the_stages_that_are_done(tmp_path: Path) -> None:
    whole = train(small_config(tmp_path / "whole"), small_data(), quiet=True)
    sizes = {
        name: (tmp_path / "whole" / "training" / f"{name}.safetensors").stat().st_size for name in ("quantizer", "generator")
    }
    assert sizes["quantizer"] < sizes["generator"] - 1
    with full_disk(sizes["generator"] - 1), pytest.raises(GeniusError, match="cannot write"):
        train(small_config(tmp_path / "full"), small_data(), quiet=True)
    left = {path.name for path in (tmp_path / "full" / "training").iterdir()}
    assert "quantizer.safetensors" in left and "generator.safetensors" not in left
    again = train(small_config(tmp_path / "full"), small_data(), quiet=True)
    assert again.model.fingerprint() == whole.model.fingerprint()
