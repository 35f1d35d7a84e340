"""Two processes with half the batch each train exactly like one with the whole batch (real gloo processes)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).parent / "two_processes.py"
KINDS = ("ours", "paper")


Weights = dict[str, torch.Tensor]


def run(kinds: Sequence[str], world: int, output: Path) -> dict[str, list[Weights]]:
    """What each process ends with, of every kind of training."""
    output.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(world):
        found = os.pathsep.join([str(SCRIPT.parent), *filter(None, [os.environ.get("PYTHONPATH")])])  # the fixtures beside it
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": found}
        if world > 1:
            environment |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        processes.append(
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(output), *kinds], env=environment, stderr=subprocess.PIPE, text=True
            )
        )
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert all((output / kind / f"world-{rank}").read_text() == str(world) for rank in range(world) for kind in kinds)
    return {kind: [load_file(output / kind / f"result-{rank}.safetensors") for rank in range(world)] for kind in kinds}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Weights]]]:
    """Of one process and of two: three starts of Python serve all kinds."""
    place = tmp_path_factory.mktemp("processes")
    return [run(KINDS, world, place / str(world)) for world in (1, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_equal_one_in_every_stage(kind: str, ends: list[dict[str, list[Weights]]]) -> None:
    (one,), (two, other) = (end[kind] for end in ends)
    assert one.keys() == two.keys() == other.keys() and any("generator" in name for name in one)
    for name in one:
        assert torch.equal(two[name], other[name]), f"{name} differs between the processes"
        assert torch.allclose(one[name], two[name], atol=2e-5, rtol=1e-4), f"{name}: {(one[name] - two[name]).abs().max()}"
