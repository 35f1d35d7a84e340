"""Two processes train like one, on one GPU: all three stages; weights, losses and IDs compared, beside what rounding does.

    python -m lab.mbeir.two_ranks --output OUT.json

Starts itself: alone, as two ranks (`torch.distributed.run`) that share the card, and alone again on features that were changed
by one part in ten million, or whatever `--nudges` says, every time in another direction. NCCL refuses two ranks on one card, so
they speak gloo there; what is computed is the same. Products are made in float32 without TF32, sums in a fixed order, without
dropout, since every process draws its own: what is left is the order in which two ranks add. k-means and the choice of codes make
much of little, which is what the nudged runs show: two ranks are as one where they differ from it no more than those. Two kinds:
the paper's recipe and ours.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from genius.data.synthetic import synthetic_features
from genius.features import Features
from genius.train import generator, through_heads, train_stages, with_sizes
from genius.train.config import RECIPES, RecipeName, TrainConfig, read_train_config
from genius.train.journal import METRICS, Journal
from genius.train.loop import Runtime, make_accelerator
from genius.types import Modality

KINDS: tuple[RecipeName, ...] = ("paper", "default")
SAME: dict[str, Any] = {
    "encoder.train": "heads", "encoder.dropout": 0.0, "encoder.steps": 6, "encoder.batch": 256, "quantizer.steps": 12,
    "quantizer.batch": 256, "generator.steps": 8, "generator.batch": 256, "generator.lr": 1e-4, "run.patience": 0,
    "run.precision": "fp32", "run.log_every": 1, "held_out": 0.1,
}  # fmt: skip
LARGE = {"model.width": 256, "model.level_sizes": [3, 256, 256, 256], "model.decoder": "mini"}
IDS = "ids of the pool"
NUDGES = "1e-7"
TOLD = 1e-5  # a loss that differs by more than this share is no longer the same but for rounding
SMALL = {"model.width": 16, "model.level_sizes": [3, 60, 40], "model.decoder": "nano", "model.projection": 16, "model.hidden": 16}
SMALL |= {f"{stage}.batch": 32 for stage in ("encoder", "quantizer", "generator")}


def config_of(kind: RecipeName, folder: Path, small: bool, device: str) -> TrainConfig:
    """The recipe in this process, without what shows rounding: layers that start at zero have gradients of about zero, which Adam
    blows up to the size of all others, and clipping divides by a norm."""
    recipe = RECIPES[kind]
    RECIPES[kind] = dataclasses.replace(recipe, start_from_sum=False, quantizer=dataclasses.replace(recipe.quantizer, clip=0.0))
    changes = {**SAME, **(SMALL if small else LARGE), "output": str(folder), "device": device, "seed": 0}
    return read_train_config(f"builtin:{kind}", changes)


def nudged(features: Features, size: float, seed: int) -> Features:
    """Beside what they are by that share, one part in ten million for instance."""
    random = torch.Generator().manual_seed(seed)

    def beside(rows: Tensor) -> Tensor:
        return rows * (1 + size * torch.randn(rows.shape, generator=random))

    return dataclasses.replace(features, image=beside(features.image), text=beside(features.text))


def train_here(kind: RecipeName, folder: Path, small: bool, device: str, nudge: str) -> None:
    """All three stages in this process, alone or as a rank of several."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:  # before accelerate does: it would take NCCL
        if torch.cuda.is_available() and device != "cpu":
            torch.cuda.set_device(0)
        torch.distributed.init_process_group("gloo")
        os.environ["LOCAL_RANK"] = "0"  # one card for all
    config = config_of(kind, folder, small, device)
    plain = generator.generator_config
    generator.generator_config = lambda model: dataclasses.replace(plain(model), dropout=0.0)
    accelerator = make_accelerator(device)
    torch.set_float32_matmul_precision("highest")
    rank = torch.distributed.get_rank() if world > 1 else 0
    journal = Journal(folder, quiet=True, active=accelerator.is_main_process)
    runtime = Runtime(accelerator, journal, config.seed, config.run)
    directions = ((Modality.TEXT, Modality.IMAGE), (Modality.IMAGE, Modality.TEXT), (Modality.TEXT, Modality.PAIR))
    data = synthetic_features(300 if small else 3000, 300 if small else 6000, 16 if small else 256, directions=directions, seed=0)
    if nudge:
        size, seed = float(nudge.split(":")[0]), int(nudge.split(":")[1])
        data = dataclasses.replace(data, queries=nudged(data.queries, size, seed), pool=nudged(data.pool, size, seed))
    config = with_sizes(config, data, runtime)
    trained = train_stages(config, data, runtime, folder / "training")
    assert trained.heads is not None
    state = trained.model.network.state_dict()
    tensors = {f"heads.{name}": tensor for name, tensor in trained.heads.state_dict().items()} | dict(state)
    tensors[IDS] = trained.model.encode(through_heads(trained.heads, data).pool)
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(kept, folder / f"result-{rank}.safetensors")
    (folder / f"world-{rank}").write_text(f"{runtime.world} on {runtime.device}", encoding="utf-8")
    if world > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def launch(kind: str, world: int, folder: Path, small: bool, device: str, nudge: str, longest: float) -> float:
    """Seconds that it took."""
    folder.mkdir(parents=True)
    own = ["-m", "lab.mbeir.two_ranks", "--kind", kind, "--folder", str(folder), "--device", device]
    own += ["--small"] * small + ["--nudge", nudge]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    several = ["-m", "torch.distributed.run", "--nproc-per-node", str(world), "--master-port", str(port)]
    start = time.monotonic()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **({"ACCELERATE_USE_CPU": "true"} if device == "cpu" else {}),
    }
    command = [sys.executable, *(several if world > 1 else []), *own]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=longest)
    except subprocess.TimeoutExpired as late:
        raise SystemExit(f"{kind} in {world} processes took more than {longest:g} s\n{(late.stderr or b'')[-3000:]!r}") from None
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return time.monotonic() - start


class Run:
    """What one training left."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.tensors = load_file(folder / f"result-{rank}.safetensors")
        self.codes = self.tensors.pop(IDS)
        metrics = folder / METRICS
        lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
        self.losses = {(line["stage"], line["step"]): line["loss"] for line in map(json.loads, lines) if "loss" in line}

    def beside(self, other: Run) -> dict[str, Any]:
        """Largest differences: of a weight as a share of its tensor's largest, of a loss as a share of it; IDs that differ; and
        the first step whose losses tell the two apart."""
        weights: dict[str, float] = {}
        for name, tensor in self.tensors.items():
            part = name.split(".")[0]  # heads, fusion, quantizer, generator
            gap = (tensor.float() - other.tensors[name].float()).abs().max() / tensor.float().abs().max().clamp(min=1e-12)
            weights[part] = max(weights.get(part, 0.0), float(gap))
        losses: dict[str, float] = {}
        first = ""
        for (stage, step), loss in self.losses.items():
            gap_of_loss = abs(other.losses[stage, step] - loss) / max(abs(loss), 1e-12)
            losses[stage] = max(losses.get(stage, 0.0), gap_of_loss)
            if gap_of_loss > TOLD and not first:
                first = f"{stage}, step {step}"
        ids = float((self.codes != other.codes).any(1).float().mean())
        return {"weights": weights, "losses": losses, "ids": ids, "losses_differ_from": first}


def compare(kind: str, folder: Path, small: bool, device: str, nudges: list[str], longest: float) -> dict[str, Any]:
    twins = [f"{size}:{seed}" for seed, size in enumerate(nudges)]
    runs = {"one": (1, ""), "two": (2, ""), **{f"nudged by {twin}": (1, twin) for twin in twins}}
    seconds = {name: launch(kind, world, folder / name, small, device, nudge, longest) for name, (world, nudge) in runs.items()}
    one, two, other = Run(folder / "one"), Run(folder / "two"), Run(folder / "two", rank=1)
    where = [(folder / name / f"world-{rank}").read_text(encoding="utf-8") for name, rank in (("one", 0), ("two", 0), ("two", 1))]
    return {
        "kind": kind,
        "ranks": where,
        "ranks_equal_to_the_bit": all(torch.equal(two.tensors[name], other.tensors[name]) for name in two.tensors),
        "two_processes_to_one": one.beside(two),
        "one_to_itself_nudged": {twin: one.beside(Run(folder / f"nudged by {twin}")) for twin in twins},
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--kind", choices=KINDS, help="train this one here (used by the program itself)")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--longest", type=float, default=120, help="seconds of one training")
    parser.add_argument("--nudge", default="", help="SIZE:SEED, with --kind")
    parser.add_argument("--nudges", default=NUDGES, help="sizes of the changes of features, one for each nudged run")
    parser.add_argument("--kinds", default=",".join(KINDS))
    args = parser.parse_args()
    if args.kind:
        train_here(args.kind, args.folder, args.small, args.device, args.nudge)
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() and args.device != "cpu" else "CPU"
    body: dict[str, Any] = {"date": datetime.date.today().isoformat(), "device": device, "settings": SAME, "lines": []}
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.kinds.split(","):
            line = compare(kind, Path(folder) / kind, args.small, args.device, args.nudges.split(","), args.longest)
            body["lines"].append(line)
            if args.output is not None:
                args.output.parent.mkdir(parents=True, exist_ok=True)
                args.output.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
