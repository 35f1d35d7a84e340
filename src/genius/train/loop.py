"""The only training loop: AdamW, warm-up and cosine, accumulation, clipping, checkpoints that resume exactly.

A stage says what a step's batch is and what its loss is; the loop knows nothing of losses. `accelerate` carries it to
GPUs and several processes. The randomness of a step is a function of (seed, stage, step, process), and the data order
of (seed, step), so a checkpoint needs weights, moving averages, optimizer and step, and a resumed run has the loss curve
of an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from genius.errors import GeniusError, said
from genius.files import write_whole
from genius.train.config import RunConfig, Schedule, StageConfig
from genius.train.holdout import Selection
from genius.train.journal import Interrupt, Journal, latest_checkpoint, load_checkpoint, save_checkpoint

CHECKPOINT_SECONDS = 30.0  # a checkpoint at least this often
LOOKS = 20  # at the honest questions, evenly spread over the steps
WARM_UP = 3  # plain steps before one is recorded, as CUDA graphs ask for


def step_seed(seed: int, stage: str, step: int, rank: int = 0) -> int:
    """One number for the randomness of one step of one stage on one process."""
    return (seed * 1_000_003 + sum(map(ord, stage)) * 7_919 + step * 31 + rank * 15_485_863) % (2**63 - 1)


class Stage(nn.Module):
    """One stage of training: its trainable modules as submodules, its data as plain attributes."""

    name: str
    accumulate = 1  # micro-batches of a step; the loop says how many
    schedule = Schedule()  # of its optimizer
    fixed_shapes = False  # whether every batch has the same shapes and forward changes nothing but gradients

    @abstractmethod
    def batch(self, step: int, micro: int, rank: int, world: int) -> Any:
        """This process's share of micro-batch `micro` of a step, on the device. A pure function of its arguments."""

    @abstractmethod
    def forward(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and what to log."""

    def before_step(self, step: int) -> None:
        """Called in front of every step, on every process (k-means at a given step, for instance)."""

    def validate(self) -> dict[str, float]:
        """Hit rates and the like, on honest questions; must not touch the weights."""
        return {}

    def quick(self) -> float | None:
        """One number on honest questions, larger is better: what weights are chosen by. None: there are no such questions."""
        return None


@dataclass
class Runtime:
    """Where training runs: the accelerator, this process's place, the journal."""

    accelerator: Any
    journal: Journal
    seed: int
    run: RunConfig

    @property
    def device(self) -> torch.device:
        return self.accelerator.device  # type: ignore[no-any-return]

    @property
    def half(self) -> bool:
        """Whether steps are computed in bfloat16 where that does no harm."""
        return self.run.precision == "auto" and self.device.type == "cuda"

    @property
    def rank(self) -> int:
        return int(self.accelerator.process_index)

    @property
    def world(self) -> int:
        return int(self.accelerator.num_processes)

    @property
    def main(self) -> bool:
        return bool(self.accelerator.is_main_process)


class OneProcess:
    """What `run_stage` asks of an accelerator, for one process: short fits need no package for that."""

    process_index, num_processes, is_main_process = 0, 1, True

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def prepare(self, *parts: Any) -> tuple[Any, ...]:
        return parts

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def clip_grad_norm_(self, parameters: Any, most: float) -> None:
        nn.utils.clip_grad_norm_(parameters, most)

    def wait_for_everyone(self) -> None: ...

    def free_memory(self) -> None: ...


def make_accelerator(device: str = "auto") -> Any:
    """The process group and device. Autocast is the loop's own, so that a stage may go without."""
    try:
        from accelerate import Accelerator, DistributedDataParallelKwargs
        from accelerate.state import AcceleratorState
    except ImportError:
        raise GeniusError("training needs accelerate: pip install 'genius-search[train]'") from None
    cuda = torch.cuda.is_available() and device != "cpu"
    if device == "cuda" and not cuda:
        raise GeniusError("device = 'cuda', but this machine has no GPU that torch can use")
    AcceleratorState._reset_state()  # the settings of an earlier run in this process
    if cuda:
        torch.set_float32_matmul_precision("high")
    # codebooks are buffers that every process updates equally: sending them at every step would only cost time
    return Accelerator(
        cpu=not cuda, mixed_precision="no", kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)]
    )


def learning_rate(schedule: Schedule, steps: int, step: int) -> float:
    """Share of the peak rate at a step: linear warm-up, then cosine to `final_lr`."""
    warm = max(1, round(schedule.warm_up * steps if schedule.warm_up < 2 else schedule.warm_up))
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return schedule.final_lr + (1 - schedule.final_lr) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def make_optimizer(stage: Stage, config: StageConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only (norms, biases and position tables have none)."""
    trained = [(name, p) for name, p in stage.named_parameters() if p.requires_grad]
    decayed = [p for name, p in trained if p.ndim >= 2 and "position_bias" not in name]
    plain = [p for name, p in trained if p.ndim < 2 or "position_bias" in name]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    fused = trained[0][1].is_cuda if trained else False
    return torch.optim.AdamW(groups, lr=config.lr, betas=stage.schedule.betas, eps=stage.schedule.eps, fused=fused)


def run_stage(stage: Stage, config: StageConfig, runtime: Runtime, folder: Path) -> dict[str, float]:
    """Train `stage` to its last step, from the newest checkpoint in `folder` if there is one; the last validation."""
    accelerator, journal, run = runtime.accelerator, runtime.journal, runtime.run
    micro_batch = config.batch // run.accumulate
    if micro_batch % runtime.world:
        raise GeniusError(f"{stage.name}: a micro-batch of {micro_batch} does not divide among {runtime.world} processes")
    stage.accumulate = run.accumulate
    stage.to(runtime.device).train()
    start = 0
    optimizer = make_optimizer(stage, config)
    selection = Selection(stage, run.average, run.patience)
    found = latest_checkpoint(folder)
    if found is not None:
        weights, state, progress = load_checkpoint(found)
        start = int(progress["step"])
        own = stage.state_dict().keys()
        _restore(stage, {name: tensor for name, tensor in weights.items() if name in own}, found)
        selection.restore({name: tensor for name, tensor in weights.items() if name not in own}, progress)
        optimizer.load_state_dict(state)
        journal.note(f"{stage.name}: going on at step {start}")
    journal.rewind(stage.name, start)
    module, optimizer = accelerator.prepare(stage, optimizer)
    accelerator.wait_for_everyone()
    saved = time.monotonic()
    recorder = Recorder(stage, runtime)
    looks = {round(config.steps * (i + 1) / LOOKS) for i in range(LOOKS)} if run.patience else set()
    with journal.bar(stage.name, config.steps, start) as bar, Interrupt() as ctrl_c:
        for step in range(start, config.steps):
            logs = take_step(stage, module, optimizer, config, runtime, step, recorder)
            selection.update()
            done = step + 1
            if done % run.log_every == 0 or done == config.steps:
                values = _mean_logs(logs, runtime)
                if not math.isfinite(values["loss"]):
                    raise GeniusError(f"{stage.name}: the loss is not finite at step {done}; lower lr or check the features")
                journal.write(stage.name, done, {**values, "lr": config.lr * learning_rate(stage.schedule, config.steps, step)})
                bar.update(done, values)
            elif done % 5 == 0:
                bar.update(done)
            if done in looks and _look(stage, selection, runtime, done):
                journal.note(f"{stage.name}: no better since step {done - selection.waited * config.steps // LOOKS}")
                break
            due = time.monotonic() - saved > CHECKPOINT_SECONDS
            due = due or (run.checkpoint_steps > 0 and done % run.checkpoint_steps == 0)
            if ((due and done < config.steps) or ctrl_c.asked) and runtime.main:
                tensors = {**stage.state_dict(), **selection.tensors()}
                save_checkpoint(folder, done, tensors, optimizer.state_dict(), selection.numbers())
                saved = time.monotonic()
            if ctrl_c.asked:
                raise KeyboardInterrupt
    selection.finish()
    accelerator.wait_for_everyone()
    if runtime.device.type == "cuda":
        accelerator.free_memory()  # not on a CPU: it walks through every object of the process, and gives nothing back
    return _validate(stage, runtime, config.steps)


def _look(stage: Stage, selection: Selection, runtime: Runtime, step: int) -> bool:
    """Judge the weights that would be kept, on the main process; whether to stop, on all of them alike."""
    value = torch.full((), float("nan"), dtype=torch.float64, device=runtime.device)
    if runtime.main:
        stage.eval()
        with torch.no_grad(), selection.kept():
            found = stage.quick()
        stage.train()
        if found is not None:
            value.fill_(found)
    if runtime.world > 1:
        torch.distributed.broadcast(value, src=0)
    if math.isnan(number := value.item()):
        return False  # no questions to judge by
    runtime.journal.write(stage.name, step, {"honest": number})
    return selection.look(number)


def finish(stage: Stage, run: Callable[[], dict[str, float]], runtime: Runtime, folder: Path) -> dict[str, float]:
    """Run a stage, or read back what it left when it has already finished."""
    weights, values = _results(folder, stage.name)
    if finished(folder, stage.name):
        _restore(stage, load_file(weights), weights)
        stage.to(runtime.device).eval()
        runtime.journal.note(f"{stage.name}: already trained")
        return dict(json.loads(values.read_text(encoding="utf-8")))
    result = run()
    if runtime.main:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in stage.state_dict().items()}
        write_whole(weights, lambda path: save_file(tensors, path))
        write_whole(values, lambda path: path.write_text(json.dumps(result), encoding="utf-8"))
    runtime.accelerator.wait_for_everyone()
    stage.eval()
    return result


def _results(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.safetensors", folder / f"{name}.json"


def finished(folder: Path, name: str) -> bool:
    """Whether a stage of the run in this folder was trained to its end."""
    return all(path.exists() for path in _results(folder, name))


class CapturedStep:
    """A stage's forward and backward as one recorded CUDA graph: small decoders are bound by launching kernels, not running them.

    For stages whose batches have the same shapes at every step. Call it with a batch: gradients are left in the parameters, as
    `loss.backward()` would leave them."""

    def __init__(self, module: nn.Module, batch: Any, half: bool) -> None:
        self.module, self.half = module, half
        self.inputs = type(batch)(*(part.clone() if isinstance(part, Tensor) else part for part in batch))
        random = torch.cuda.get_rng_state()  # recording must not change what later steps draw
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._zero()
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        self._zero()
        with torch.cuda.graph(self.graph):
            self.loss, self.values = self._run()
        self._zero()
        torch.cuda.set_rng_state(random)

    def __call__(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        for mine, given in zip(self.inputs, batch, strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(given)
            elif mine != given:
                raise ValueError("a recorded step takes batches of one shape")
        self._zero()
        self.graph.replay()
        return self.loss, self.values

    def _run(self) -> tuple[Tensor, dict[str, Tensor]]:
        # without autocast's cache: what it holds would outlive the recording
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half, cache_enabled=False):
            loss, values = self.module(self.inputs)
            loss.backward()
        return loss.detach(), {name: value.detach() for name, value in values.items()}

    def _zero(self) -> None:
        """Gradients stay where the graph adds to them."""
        grads = [p.grad for p in self.module.parameters() if p.grad is not None]
        if grads:
            torch._foreach_zero_(grads)


class Recorder:
    """Decides whether a stage's step is recorded, and keeps it; where recording fails, training goes on without."""

    def __init__(self, stage: Stage, runtime: Runtime) -> None:
        self.stage, self.half = stage, runtime.half
        single = runtime.world == 1 and runtime.run.accumulate == 1 and runtime.device.type == "cuda"
        self.wanted = single and stage.fixed_shapes
        self.captured: CapturedStep | None = None
        self.journal = runtime.journal

    def step(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Loss, logs and gradients of a recorded step; None: do it the plain way."""
        if not self.wanted:
            return None
        if self.captured is None:
            try:
                self.captured = CapturedStep(self.stage, batch, self.half)
            except RuntimeError as error:  # some operation cannot be recorded
                self.wanted = False
                self.stage.zero_grad(set_to_none=True)
                self.journal.note(f"{self.stage.name}: not recorded as a graph ({said(error)})")
                return None
        return self.captured(batch)


def take_step(
    stage: Stage, module: Any, optimizer: Any, config: StageConfig, runtime: Runtime, step: int, recorder: Recorder
) -> list[dict[str, Tensor]]:
    torch.manual_seed(step_seed(runtime.seed, stage.name, step, runtime.rank))
    stage.before_step(step)
    for group in optimizer.param_groups:
        group["lr"] = config.lr * learning_rate(stage.schedule, config.steps, step)
    logs = []
    for micro in range(stage.accumulate):
        batch = stage.batch(step, micro, runtime.rank, runtime.world)
        done = recorder.step(batch)
        if done is not None:
            logs.append({"loss": done[0], **done[1]})
            continue
        last = micro + 1 == stage.accumulate
        waiting = nullcontext() if last or runtime.world == 1 else module.no_sync()
        with waiting, torch.autocast(runtime.device.type, torch.bfloat16, enabled=runtime.half):
            loss, values = module(batch)
            runtime.accelerator.backward(loss / stage.accumulate)
        logs.append({"loss": loss.detach(), **{name: value.detach() for name, value in values.items()}})
    if stage.schedule.clip > 0:
        runtime.accelerator.clip_grad_norm_(stage.parameters(), stage.schedule.clip)
    optimizer.step()
    if recorder.captured is None:
        optimizer.zero_grad(set_to_none=True)
    return logs


def _mean_logs(logs: list[dict[str, Tensor]], runtime: Runtime) -> dict[str, float]:
    """Averages over micro-batches and processes."""
    names = list(logs[0])
    values = torch.stack([torch.stack([entry[name].float() for name in names]) for entry in logs]).mean(0)
    if runtime.world > 1:
        values = runtime.accelerator.reduce(values, reduction="mean")
    return dict(zip(names, values.tolist(), strict=True))


def _validate(stage: Stage, runtime: Runtime, step: int) -> dict[str, float]:
    values: dict[str, float] = {}
    if runtime.main:
        stage.eval()
        with torch.no_grad():
            values = stage.validate()
        stage.train()
        if values:
            runtime.journal.write(stage.name, step, values)
            shown = "  ".join(f"{name} {value:.3f}" for name, value in values.items() if "level" not in name)
            runtime.journal.note(f"{stage.name} {step}: {shown}")
    runtime.accelerator.wait_for_everyone()
    return values


def _restore(stage: Stage, weights: Mapping[str, Tensor], path: Path) -> None:
    """Fill a stage with saved weights. Whether they fit the stage says itself: a part may save itself shorter than it is."""
    try:
        stage.load_state_dict(dict(weights))
    except RuntimeError:
        raise GeniusError(f"{path} is of other sizes than this config; choose another output") from None
