"""Two processes with half the batch each train exactly like one with the whole batch (real gloo processes)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).parent / "two_processes.py"


def run(world: int, output: Path) -> dict[str, torch.Tensor]:
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
            subprocess.Popen([sys.executable, str(SCRIPT), str(output)], env=environment, stderr=subprocess.PIPE, text=True)
        )
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert (output / "world").read_text() == str(world)
    return load_file(output / "result.safetensors")


def test_two_processes_equal_one(tmp_path: Path) -> None:
    one, two = run(1, tmp_path / "one"), run(2, tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        assert torch.allclose(one[name], two[name], atol=2e-5, rtol=1e-4), f"{name}: {(one[name] - two[name]).abs().max()}"
