"""`genius train ... --ray`: the same training function as one process and `torchrun` run, started by Ray on several machines.

Ray forms the process group and starts it again when a worker or its machine is lost; what is resumed is our own checkpoint in
the output folder, which all machines must see. So a run may begin on Ray, go on with `torchrun` and end in one process.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from genius.files import read_json, write_whole
from genius.scale import connected
from genius.train import TRAINING
from genius.train import train as train_here
from genius.train.config import TrainConfig
from genius.train.losses import rank

FAILURES = 8  # workers or machines that may be lost before a run gives up


def train_on_ray(config: TrainConfig, address: str, workers: int = 0, quiet: bool = False) -> dict[str, Any]:
    """Train `config` with `workers` processes (0: one a GPU, or two). Its fingerprint and metrics; the model is in its folder."""
    config = _absolute(config)
    if not config.output:
        raise GeniusError("the config names no output folder")
    return run_on_ray(_train, {"config": config, "quiet": quiet}, Path(config.output) / TRAINING, address, workers, config.device)


def run_on_ray(
    loop: Callable[[dict[str, Any]], None],
    arguments: dict[str, Any],
    folder: Path,
    address: str,
    workers: int,
    device: str = "auto",
) -> dict[str, Any]:
    """Call `loop` in every process of a group. If a process is lost, the group is formed again and `loop` starts again.

    Returns what `report_outcome` was called with. `folder` is for Ray's own files, which are removed.
    """
    notes = folder / "ray"
    arguments = {**arguments, "outcome": notes / "outcome.json"}
    try:
        with connected(address, workers + 1 if workers else None) as ray:
            from ray.train import FailureConfig, RunConfig, ScalingConfig
            from ray.train.torch import TorchConfig, TorchTrainer

            gpus = int(ray.cluster_resources().get("GPU", 0)) if device != "cpu" else 0
            scaling = ScalingConfig(num_workers=workers or gpus or 2, use_gpu=gpus > 0)
            for failures in range(FAILURES + 1):
                run_config = RunConfig(
                    name=uuid.uuid4().hex,  # of a run of the same name, Ray would resume its own notes, not our checkpoint
                    storage_path=str(notes),
                    failure_config=FailureConfig(max_failures=FAILURES),
                )
                group = TorchConfig(backend=None if gpus else "gloo")
                try:
                    TorchTrainer(
                        loop, train_loop_config=arguments, scaling_config=scaling, torch_config=group, run_config=run_config
                    ).fit()
                    break
                except Exception as error:
                    if type(error).__module__.partition(".")[0] != "ray":
                        raise
                    # Ray itself does not begin again when a worker dies while the group is being formed
                    before_start = isinstance(getattr(error, "controller_failure", None), ray.exceptions.RayActorError)
                    if not before_start or failures == FAILURES:
                        raise GeniusError(f"training on Ray failed: {_reason(error)}") from None
            outcome: dict[str, Any] = read_json(arguments["outcome"])
            return outcome
    finally:
        shutil.rmtree(notes, ignore_errors=True)


def _train(arguments: dict[str, Any]) -> None:
    """One process of the group."""
    trained = train_here(arguments["config"], quiet=arguments["quiet"] or rank() != 0)
    report_outcome(arguments, {"fingerprint": trained.model.fingerprint(), "metrics": trained.metrics})


def report_outcome(arguments: dict[str, Any], outcome: dict[str, Any]) -> None:
    """In a process of the group: what came of it. (Ray keeps reports only together with checkpoints of its own.)"""
    if rank() == 0:
        write_whole(arguments["outcome"], lambda path: path.write_text(json.dumps(outcome)))


def _absolute(config: TrainConfig) -> TrainConfig:
    """Workers have a working folder of their own: paths that exist here are named in full."""
    named = {name: getattr(config, name) for name in ("output", "data", "held_out_data")}
    full = {n: str(Path(v).absolute()) for n, v in named.items() if v and (n == "output" or Path(v).exists())}
    return dataclasses.replace(config, **full)  # type: ignore[arg-type]


def _reason(error: BaseException) -> str:
    """The worker's own words, out of what Ray wraps them in."""
    failures = getattr(error, "worker_failures", None)
    inner = error
    if failures:
        inner = next(iter(failures.values()))
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    named = [line for line in lines if "GeniusError" in line]
    return (named[-1].partition("GeniusError:")[2].strip() if named else lines[-1] if lines else type(inner).__name__)[:300]
