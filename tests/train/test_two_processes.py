"""Two processes with half the batch each train exactly like one with the whole batch (real gloo processes)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).parent / "two_processes.py"


def run(kind: str, world: int, output: Path) -> list[dict[str, torch.Tensor]]:
    output.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(world):
        found = os.pathsep.join([str(SCRIPT.parent), *filter(None, [os.environ.get("PYTHONPATH")])])  # the fixtures beside it
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONPATH": found}
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
            subprocess.Popen([sys.executable, str(SCRIPT), kind, str(output)], env=environment, stderr=subprocess.PIPE, text=True)
        )
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert all((output / f"world-{rank}").read_text() == str(world) for rank in range(world))
    return [load_file(output / f"result-{rank}.safetensors") for rank in range(world)]


@pytest.mark.parametrize("kind", ["ours", "paper"])
def test_two_processes_equal_one_in_every_stage(kind: str, tmp_path: Path) -> None:
    (one,), (two, other) = run(kind, 1, tmp_path / "one"), run(kind, 2, tmp_path / "two")
    assert one.keys() == two.keys() == other.keys() and any("generator" in name for name in one)
    for name in one:
        assert torch.equal(two[name], other[name]), f"{name} differs between the processes"
        assert torch.allclose(one[name], two[name], atol=2e-5, rtol=1e-4), f"{name}: {(one[name] - two[name]).abs().max()}"
