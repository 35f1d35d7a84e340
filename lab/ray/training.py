"""Two training workers on Ray against one process, all three stages; and the same with a worker killed half way.

The same weights to rounding: no dropout, since every process draws its own, and no layers that start at zero, since Adam blows up
rounding in gradients of about 0 (as in tests/train/two_processes.py). A killed run must end with the losses of one that was not.

    python -m lab.ray.training
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from genius.data.synthetic import synthetic_features
from genius.scale import connected
from genius.scale.training import run_on_ray, tell
from genius.train import train
from genius.train.config import TrainConfig, read_train_config
from genius.types import Modality
from lab.ray.processes import keep, mark, marked

RESULT = Path(__file__).parent / "training.json"
SETTINGS = {
    "model.width": 16,
    "model.projection": 32,
    "model.hidden": 32,
    "model.level_sizes": [3, 8, 8],
    "encoder.train": "heads",
    "encoder.batch": 32,
    "encoder.hidden": 16,
    "encoder.dropout": 0.0,
    "quantizer.batch": 32,
    "quantizer.kmeans_iterations": 3,
    "quantizer.quantize_from": 0.0,
    "generator.batch": 32,
    "generator.lr": 1e-4,
    "held_out": 0.1,
    "search.beams": 4,
    "run.log_every": 1,
    "run.patience": 1000,
    "run.checkpoint_steps": 2,
    "device": "cpu",
}


def config(folder: Path, data: Path, steps: int) -> TrainConfig:
    sizes = {f"{stage}.steps": steps for stage in ("encoder", "quantizer", "generator")}
    return read_train_config("builtin:tiny", {**SETTINGS, **sizes, "output": str(folder), "data": str(data)})


def train_plainly(arguments: dict[str, Any]) -> None:
    """Train without dropout in the decoder, which no setting takes away; in a worker, or here."""
    import genius.train.generator as stage

    plain = stage.generator_config
    stage.generator_config = lambda model: dataclasses.replace(plain(model), dropout=0.0)
    try:
        trained = train(arguments["config"], quiet=True)
    finally:
        stage.generator_config = plain
    if "outcome" in arguments:
        tell(arguments, {"metrics": trained.metrics})


def losses(folder: Path) -> dict[str, float]:
    """The last loss of each stage, by what the run's journal says."""
    found: dict[str, float] = {}
    for line in (folder / "training" / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "loss" in entry:
            found[entry["stage"]] = entry["loss"]
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    return {f"{path.name}:{name}": tensor for path in files for name, tensor in load_file(path).items()}


def largest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def kill_one(folder: Path, stage: str, killed: list[int]) -> None:
    """The first training worker that is seen once this stage has a checkpoint."""
    deadline = time.monotonic() + 900
    while not list((folder / "training" / stage).glob("step-*")):
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)
    for pid in marked("ray::RayTrainWorker")[:1]:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="of each stage")
    parser.add_argument("--kill-in", default="quantizer")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="genius-train-"))
    mark()
    try:
        directions = ((Modality.TEXT, Modality.IMAGE), (Modality.IMAGE, Modality.TEXT), (Modality.TEXT, Modality.PAIR))
        synthetic_features(120, 120, 16, directions=directions, seed=0).save(folder / "data")
        torch.set_num_threads(1)
        train_plainly({"config": config(folder / "one", folder / "data", options.steps)})

        def on_ray(name: str) -> dict[str, Any]:
            arguments = {"config": config(folder / name, folder / "data", options.steps)}
            return run_on_ray(train_plainly, arguments, folder / name / "training", "local", 2, "cpu")

        with connected("local", 3):
            whole = on_ray("two")
            killed: list[int] = []
            killer = threading.Thread(target=kill_one, args=(folder / "killed", options.kill_in, killed), daemon=True)
            killer.start()
            on_ray("killed")
            killer.join()
        one, two, again = (weights(folder / name) for name in ("one", "two", "killed"))
        body: dict[str, Any] = {
            "what": "genius train --ray with two workers against one process, and with a worker killed (-9)",
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "settings": {**vars(options), "workers": 2},
            "stages": sorted(whole["metrics"]),
            "largest_difference_of_a_weight": {"two_against_one": largest(one, two), "killed_against_two": largest(two, again)},
            "last_losses": {name: losses(folder / name) for name in ("one", "two", "killed")},
            "workers_killed": len(killed),
        }
        keep(RESULT, body)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
