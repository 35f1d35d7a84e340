"""The training loop of every stage: AdamW, warm-up and cosine, accumulation, clipping, checkpoints that resume exactly.

A stage defines a step's batch and its loss; the loop knows nothing of losses. It runs on a CPU, a GPU, or several of
them as processes that `torchrun` or Ray starts. The randomness of a step is a function of (seed, stage, step, process),
and the data order of (seed, step). A checkpoint therefore needs weights, moving averages, optimizer and step, and a
resumed run has the loss curve of an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from genius.encoders.base import find_device
from genius.errors import GeniusError
from genius.files import write_json, write_whole
from genius.torch_file import read_torch_file
from genius.train.config import RunConfig, Schedule, StageConfig
from genius.train.journal import Journal
from genius.train.losses import rank, send, world_size
from genius.train.selection import Selection
from genius.weight_files import read_tensors

CHECKPOINT_SECONDS = 30.0  # a checkpoint at least this often
LOOKS = 20  # validations, evenly spread over the steps
BAR_EVERY = 5  # steps between updates of the progress bar
PREFIX = "step-"
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.pt"
PROGRESS = "progress.json"


def step_seed(seed: int, stage: str, step: int, rank: int = 0) -> int:
    """One number for the randomness of one step of one stage on one process."""
    return (seed * 1_000_003 + sum(map(ord, stage)) * 7_919 + step * 31 + rank * 15_485_863) % (2**63 - 1)


class Stage(nn.Module):
    """One stage of training: its trainable modules as submodules, its data as plain attributes."""

    name: str
    accumulate = 1  # micro-batches of a step; the loop says how many
    schedule = Schedule()  # of its optimizer
    fixed_shapes = False  # every batch has the same shapes: the step can be compiled (`run.compile`)

    @abstractmethod
    def batch(self, step: int, micro: int, rank: int, world: int) -> Any:
        """This process's share of micro-batch `micro` of a step, on the device. A pure function of its arguments."""

    @abstractmethod
    def forward(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and what to log."""

    def before_step(self, step: int) -> None:
        """Called before every step, on every process (k-means at a given step, for instance)."""

    def finish(self) -> None:
        """Called after the last step, on every process, with the weights that are kept; before the last validation."""

    def validate(self) -> dict[str, float]:
        """Hit rates and other metrics on held-out queries. Does not change the weights."""
        return {}

    def quick(self) -> float | None:
        """One number on held-out queries, larger is better: weights are chosen by it. None: nothing is held out."""
        return None

    def problems(self, progress: float, values: Mapping[str, float]) -> dict[str, str]:
        """What goes wrong, with what to try: name of the problem -> one line for people.

        Args:
            progress: Share of the steps that are done.
            values: Losses and accuracies of the last step.
        """
        return {}


@dataclass
class Runtime:
    """Where training runs: this process's device, the journal, and what every stage's loop needs."""

    device: torch.device
    journal: Journal
    seed: int
    run: RunConfig

    @property
    def half(self) -> bool:
        """Whether steps run under bfloat16 autocast."""
        return self.run.precision == "auto" and self.device.type == "cuda"


def training_device(name: str = "auto") -> torch.device:
    """The device of this process. One of several, started by `torchrun` or Ray, joins the others first.

    Args:
        name: auto (a GPU if there is one), cpu or cuda.

    Raises:
        GeniusError: If there is no such device.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "cuda":
        name = f"cuda:{local}"
    device = find_device(name, local)
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
        backend = "nccl"
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group(backend)
    return device


def wait_for_all() -> None:
    """Return when every process is here."""
    if world_size() > 1:
        dist.barrier()


def for_all_processes(stage: Stage, device: torch.device) -> nn.Module:
    """The stage with gradients averaged over processes; codebooks are buffers that every process updates equally."""
    if world_size() == 1:
        return stage
    devices = None
    if device.type == "cuda":
        devices = [device]
    return DistributedDataParallel(stage, device_ids=devices, broadcast_buffers=False)


def learning_rate(schedule: Schedule, steps: int, step: int) -> float:
    """Share of the peak rate at a step: linear warm-up, then cosine to `final_lr`."""
    warm_up = schedule.warm_up
    if warm_up < 2:  # a share of the steps
        warm_up *= steps
    warm_up_steps = max(1, round(warm_up))
    if step < warm_up_steps:
        return (step + 1) / warm_up_steps
    done = (step - warm_up_steps) / max(1, steps - warm_up_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return schedule.final_lr + (1 - schedule.final_lr) * cosine


def make_optimizer(stage: Stage, config: StageConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only (norms, biases and position tables have none)."""
    trained = [(name, p) for name, p in stage.named_parameters() if p.requires_grad]
    decayed = [p for name, p in trained if p.ndim >= 2 and "position_bias" not in name]
    undecayed = [p for name, p in trained if p.ndim < 2 or "position_bias" in name]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
    fused = any(p.is_cuda for _, p in trained)
    return torch.optim.AdamW(groups, lr=config.lr, betas=stage.schedule.betas, eps=stage.schedule.eps, fused=fused)


def run_stage(stage: Stage, config: StageConfig, runtime: Runtime, folder: Path) -> dict[str, float]:
    """Train a stage to its last step, from the newest checkpoint in `folder` if there is one.

    Returns:
        The metrics of the last validation.
    """
    journal = runtime.journal
    run = runtime.run
    micro_batch = config.batch // run.accumulate
    if micro_batch % world_size():
        raise GeniusError(f"{stage.name}: a micro-batch of {micro_batch} does not divide among {world_size()} processes")
    stage.accumulate = run.accumulate
    stage.to(runtime.device).train()
    optimizer = make_optimizer(stage, config)
    selection = Selection(stage, run.average, run.patience)
    start = _resume(stage, optimizer, selection, folder, journal)
    journal.rewind(stage.name, start)
    module: Any = for_all_processes(stage, runtime.device)
    if run.compile and stage.fixed_shapes:
        module = torch.compile(module, mode="reduce-overhead")  # CUDA graphs on a GPU
    wait_for_all()
    saved = time.monotonic()
    validation_steps = {round(config.steps * (i + 1) / LOOKS) for i in range(LOOKS)}
    reported: set[str] = set()  # problems that were reported
    logs: list[dict[str, Tensor]] = []
    with journal.bar(stage.name, config.steps, start) as bar:
        for step in range(start, config.steps):
            logs = take_step(stage, module, optimizer, config, runtime, step)
            selection.update()
            done = step + 1
            if done % run.log_every == 0 or done == config.steps:
                values = _mean_logs(logs)
                if not math.isfinite(values["loss"]):
                    raise GeniusError(f"{stage.name}: the loss is not finite at step {done}; lower lr or check the features")
                rate = config.lr * learning_rate(stage.schedule, config.steps, step)
                journal.write(stage.name, done, {**values, "lr": rate})
                bar.update(done, values)
            elif done % BAR_EVERY == 0:
                bar.update(done)
            if done in validation_steps and done < config.steps:
                _report_problems(stage, runtime, done, done / config.steps, _mean_logs(logs), reported)
            if run.patience and done in validation_steps and _look(stage, selection, runtime, done):
                best = done - selection.waited * config.steps // LOOKS
                journal.note(f"{stage.name}: no better since step {best}")
                break
            due = time.monotonic() - saved > CHECKPOINT_SECONDS
            due = due or (run.checkpoint_steps > 0 and done % run.checkpoint_steps == 0)
            if due and done < config.steps and rank() == 0:
                tensors = {**stage.state_dict(), **selection.tensors()}
                save_checkpoint(folder, done, tensors, optimizer.state_dict(), selection.numbers())
                saved = time.monotonic()
    selection.finish()
    stage.eval()
    stage.finish()
    if logs:
        _report_problems(stage, runtime, config.steps, 1.0, _mean_logs(logs), reported)
    wait_for_all()
    del module, optimizer
    if runtime.device.type == "cuda":
        torch.cuda.empty_cache()
    return _validate(stage, runtime, config.steps)


def _resume(stage: Stage, optimizer: torch.optim.Optimizer, selection: Selection, folder: Path, journal: Journal) -> int:
    """Restore the newest checkpoint, if there is one; the step to start at."""
    checkpoint = latest_checkpoint(folder)
    if checkpoint is None:
        return 0
    weights, state, progress = load_checkpoint(checkpoint)
    stage_keys = stage.state_dict().keys()
    _restore(stage, {name: tensor for name, tensor in weights.items() if name in stage_keys}, checkpoint)
    selection.restore({name: tensor for name, tensor in weights.items() if name not in stage_keys}, progress)
    optimizer.load_state_dict(state)
    start = int(progress["step"])
    journal.note(f"{stage.name}: resuming at step {start}")
    return start


def _report_problems(
    stage: Stage, runtime: Runtime, step: int, progress: float, values: dict[str, float], reported: set[str]
) -> None:
    """Say each problem once."""
    if rank() > 0:
        return
    for name, line in stage.problems(progress, values).items():
        if name not in reported:
            reported.add(name)
            runtime.journal.warn(stage.name, step, line)


def _look(stage: Stage, selection: Selection, runtime: Runtime, step: int) -> bool:
    """Validate the weights that would be kept, on the main process; whether to stop, on all processes alike."""
    value = torch.full((), float("nan"), dtype=torch.float64, device=runtime.device)
    if rank() == 0:
        stage.eval()
        with torch.no_grad(), selection.kept():
            quick_metrics = stage.quick()
        stage.train()
        if quick_metrics is not None:
            value.fill_(quick_metrics)
    send([value])
    number = value.item()
    if math.isnan(number):
        return False  # nothing is held out
    runtime.journal.write(stage.name, step, {"validation": number})
    return selection.look(number)


def finish(stage: Stage, run: Callable[[], dict[str, float]], runtime: Runtime, folder: Path) -> dict[str, float]:
    """Run a stage, or read back what it left when it has already finished."""
    weights, values = _results(folder, stage.name)
    if finished(folder, stage.name):
        _restore(stage, read_tensors(weights), weights)
        stage.to(runtime.device).eval()
        runtime.journal.note(f"{stage.name}: already trained")
        return dict(json.loads(values.read_text(encoding="utf-8")))
    result = run()
    if rank() == 0:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in stage.state_dict().items()}
        write_whole(weights, lambda path: save_file(tensors, path))
        write_json(values, result)
    wait_for_all()
    stage.eval()
    return result


def _results(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.safetensors", folder / f"{name}.json"


def finished(folder: Path, name: str) -> bool:
    """Whether a stage of the run in this folder was trained to its end."""
    return all(path.exists() for path in _results(folder, name))


def take_step(
    stage: Stage, module: Any, optimizer: Any, config: StageConfig, runtime: Runtime, step: int
) -> list[dict[str, Tensor]]:
    """One optimizer step; losses and logs of its micro-batches.

    Args:
        stage: The stage itself.
        module: The stage as it is called: perhaps wrapped for several processes, or compiled.
        optimizer: Of the stage's parameters.
        config: Steps and rates.
        runtime: Device and processes.
        step: Number of the step, from 0.
    """
    torch.manual_seed(step_seed(runtime.seed, stage.name, step, rank()))
    stage.before_step(step)
    for group in optimizer.param_groups:
        group["lr"] = config.lr * learning_rate(stage.schedule, config.steps, step)
    logs = []
    for micro in range(stage.accumulate):
        batch = stage.batch(step, micro, rank(), world_size())
        last = micro + 1 == stage.accumulate
        synchronised = nullcontext() if last or world_size() == 1 else module.no_sync()
        with synchronised, torch.autocast(runtime.device.type, torch.bfloat16, enabled=runtime.half):
            loss, values = module(batch)
            (loss / stage.accumulate).backward()
        # copies: a compiled step writes its outputs to the same memory every time
        logs.append({name: value.detach().clone() for name, value in {"loss": loss, **values}.items()})
    if stage.schedule.clip > 0:
        nn.utils.clip_grad_norm_(stage.parameters(), stage.schedule.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return logs


def _mean_logs(logs: list[dict[str, Tensor]]) -> dict[str, float]:
    """Averages over micro-batches and processes."""
    names = list(logs[0])
    values = torch.stack([torch.stack([entry[name].float() for name in names]) for entry in logs]).mean(0)
    if world_size() > 1:
        dist.all_reduce(values)
        values /= world_size()
    return dict(zip(names, values.tolist(), strict=True))


def _validate(stage: Stage, runtime: Runtime, step: int) -> dict[str, float]:
    values: dict[str, float] = {}
    if rank() == 0:
        stage.eval()
        with torch.no_grad():
            values = stage.validate()
        stage.train()
        if values:
            runtime.journal.write(stage.name, step, values)
            shown = "  ".join(f"{name} {value:.3f}" for name, value in values.items() if "level" not in name)
            runtime.journal.note(f"{stage.name} {step}: {shown}")
    wait_for_all()
    return values


def _restore(stage: Stage, weights: Mapping[str, Tensor], path: Path) -> None:
    """Fill a stage with saved weights; `load_state_dict` decides whether they fit."""
    try:
        stage.load_state_dict(dict(weights))
    except RuntimeError:
        raise GeniusError(f"{path} is of other sizes than this config; choose another output") from None


# -- checkpoints: folders that are written under another name and renamed, so that a kill leaves the old or the new one -----


def save_checkpoint(
    folder: Path, step: int, weights: dict[str, Tensor], optimizer: dict[str, Any], progress: dict[str, Any]
) -> Path:
    """Write `folder/step-N` and remove older checkpoints. If the disk is full, the previous one stays."""
    target = folder / f"{PREFIX}{step:09d}"
    temporary = folder / f".writing-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, temporary / WEIGHTS)
        torch.save(optimizer, temporary / OPTIMIZER)
        (temporary / PROGRESS).write_text(json.dumps({"step": step, **progress}), encoding="utf-8")
        for path in temporary.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    except (OSError, RuntimeError, SafetensorError) as error:  # torch words it in its own way for a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        kept = "What is done is kept: start again when there is space"
        raise GeniusError(f"cannot write the checkpoint {target}: {reason}. {kept}") from None
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)  # from here on the new one counts
    for old in folder.iterdir():
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    return target


def latest_checkpoint(folder: Path) -> Path | None:
    checkpoints = sorted(folder.glob(f"{PREFIX}*"))
    if not checkpoints:
        return None
    return checkpoints[-1]


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """(weights, optimizer state, progress). The optimizer file is read without running any code from it."""
    try:
        weights = read_tensors(path / WEIGHTS)
        optimizer = read_torch_file(path / OPTIMIZER)
        progress = json.loads((path / PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise GeniusError(f"cannot read the checkpoint {path}: {error}; delete it to start the stage again") from None
    return weights, optimizer, progress
