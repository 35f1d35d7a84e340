"""Memory and time of training and evaluating at M-BEIR's size: 5.6 million candidates, 1.1 million questions, 768 wide.

    python -m lab.mbeir.memory --output OUT.json [--folder DISK]

The features are made up, written in half precision as `genius features extract` writes them, and read as training reads them:
mapped from the disk. Every stage is the product's own, `builtin:paper` at its real sizes, for a bounded number of steps; what
does not depend on steps (checks, k-means, codes of all candidates, their trie) is done whole. The card is capped at what a 24 GB
card has (`--card`), so a stage that needs more fails here. For every part: seconds, the most GPU memory, and the most memory of
the process's own (mapped files do not count: the system drops them at will). Hours are seconds a step times the recipe's steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.extract import lay_out, layout
from genius.data.features import IDS, PAIRS, POOL, QUERIES, FeatureSet, write_json, write_tensors
from genius.evaluate import EvalConfig, evaluate
from genius.train import assemble, check, freeze
from genius.train.config import TrainConfig, read_train_config, with_steps
from genius.train.encoder import HeadsStage
from genius.train.generator import GeneratorStage
from genius.train.holdout import Split
from genius.train.journal import Journal
from genius.train.loop import Runtime, Stage, make_accelerator, run_stage
from genius.train.quantizer import QuantizerStage

CONCEPTS = 4096
TASKS = 8
# What four cards of 24 GB do in the time of one H200, by the slower of products (bf16) and memory: data sheets, RTX 3090.
FOUR_CARDS = min(4 * 71 / 989, 4 * 0.936 / 4.8)
GIB = 2.0**30


@dataclass(frozen=True)
class Size:
    candidates: int
    queries: int
    width: int


# -- features ------------------------------------------------------------------------------------------------------


def concept(row: Tensor) -> Tensor:
    return row * 2_654_435_761 % CONCEPTS


def kinds(row: Tensor) -> tuple[Tensor, Tensor]:
    """A third of the candidates are pictures, a third texts, a third pairs."""
    return row % 3 != 1, row % 3 != 0


def answer(query: Tensor, size: Size) -> Tensor:
    """The candidate that answers a question."""
    return query * 7919 % size.candidates


def vectors(which: Tensor, width: int, seed: int) -> Tensor:
    """(n, width) half-precision vectors around their concepts."""
    device = which.device
    random = torch.Generator(device).manual_seed(seed)
    centre = F.normalize(torch.randn(CONCEPTS, width, generator=torch.Generator(device).manual_seed(7), device=device), dim=1)
    noise = F.normalize(torch.randn(len(which), width, generator=random, device=device), dim=1)
    return F.normalize(centre[which] + 0.7 * noise, dim=1).half()


def write_features(folder: Path, size: Size, chunk: int = 131_072) -> None:
    """A feature folder of the real counts; never more than `chunk` rows in memory."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in ((QUERIES, size.queries), (POOL, size.candidates)):
        lay_out(folder / name, rows, size.width, half=True)
        _, places = layout(rows, size.width, half=True)
        with (folder / name).open("r+b") as file:
            for start in range(0, rows, chunk):
                row = torch.arange(start, min(start + chunk, rows), device=device)
                parts = _rows(name, row, size, start)
                for key, tensor in parts.items():
                    offset, shape, dtype = places[key]
                    file.seek(offset + start * int(np.prod(shape[1:])) * np.dtype(dtype).itemsize)
                    file.write(tensor.cpu().numpy().data.cast("B"))
    query = torch.arange(size.queries)
    write_tensors(folder / PAIRS, {"query": query, "positive": answer(query, size)})
    ids = {"queries": [f"q{i}" for i in range(size.queries)], "pool": [f"c{i}" for i in range(size.candidates)]}
    names = {str(task): f"task {task}" for task in range(TASKS)}
    write_json(folder / IDS, {"format": 1, **ids, "tasks": (query % TASKS).tolist(), "names": names})


def _rows(name: str, row: Tensor, size: Size, seed: int) -> dict[str, Tensor]:
    if name == POOL:
        image_mask, text_mask = kinds(row)
        which = concept(row)
    else:
        image_mask, text_mask = row % 2 == 0, torch.ones_like(row, dtype=torch.bool)
        which = concept(answer(row, size))
    zero = torch.zeros((), dtype=torch.half, device=row.device)
    image, text = (vectors(which, size.width, 2 * seed + side) for side in (0, 1))
    return {
        "image": torch.where(image_mask[:, None], image, zero),
        "text": torch.where(text_mask[:, None], text, zero),
        "image_mask": image_mask,
        "text_mask": text_mask,
    }


# -- what a part takes ---------------------------------------------------------------------------------------------


def own_memory() -> float:
    """GiB that are this process's own: not files mapped from the disk."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / GIB
    return 0.0


class TimeUp(Exception):
    """No part begins after this."""


class Meter:
    """Seconds and peaks of each part, written as soon as it is over."""

    def __init__(self, output: Path, about: dict[str, Any], end: float) -> None:
        self.output, self.about, self.end = output, about, end
        self.parts: list[dict[str, Any]] = []
        self.cuda = torch.cuda.is_available()

    @contextmanager
    def part(self, name: str) -> Iterator[dict[str, Any]]:
        if time.perf_counter() > self.end:
            raise TimeUp(name)
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        peak, over = [own_memory()], threading.Event()

        def watch() -> None:
            while not over.wait(0.1):
                peak.append(own_memory())

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        entry: dict[str, Any] = {"part": name}
        start = time.perf_counter()
        try:
            yield entry
        finally:
            if self.cuda:
                torch.cuda.synchronize()
            entry["seconds"] = round(time.perf_counter() - start, 2)
            over.set()
            thread.join()
            peak.append(own_memory())
            entry["host_gib"] = round(max(peak), 2)
            entry["gpu_gib"] = round(torch.cuda.max_memory_reserved() / GIB, 2) if self.cuda else 0.0
            self.parts.append(entry)
            self.write()
            print(json.dumps(entry), flush=True)

    def write(self, **more: Any) -> None:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.output.write_text(json.dumps({**self.about, **more, "parts": self.parts}, indent=1) + "\n", encoding="utf-8")


class Steps:
    """Times of single steps of a stage."""

    def __init__(self, stage: Stage) -> None:
        self.times: list[float] = []
        before = stage.before_step

        def timed(step: int) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())
            before(step)

        stage.before_step = timed  # type: ignore[method-assign]

    def seconds(self) -> float:
        """Of one step: the median of the later half, once everything is warm."""
        gaps = [b - a for a, b in zip(self.times, self.times[1:], strict=False)]
        return statistics.median(gaps[len(gaps) // 2 :])


# -- the stages ----------------------------------------------------------------------------------------------------


class Run:
    """Training and evaluation, part after part."""

    def __init__(self, folder: Path, config: TrainConfig, meter: Meter, steps: int) -> None:
        self.folder, self.config, self.meter, self.steps = folder, config, meter, steps
        self.accelerator = make_accelerator("auto")
        self.hours: dict[str, float] = {}

    @property
    def device(self) -> torch.device:
        return torch.device(self.accelerator.device)

    def all(self, asked: int) -> None:
        with self.meter.part("open the features"):
            data = FeatureSet.load(self.folder)
        with self.meter.part("check every row"):
            check(data, self.config)
        self.heads(data)
        second = self.codes(data)
        self.decoder(data, second, asked)

    def learn(self, name: str, stage: Stage, whole: int) -> None:
        """So many steps of a stage, and how long all of `whole` would take."""
        config = replace(getattr(self.config, stage.name), steps=self.steps, epochs=0.0)
        stage.validate = dict  # type: ignore[method-assign]  # a part of its own
        timed = Steps(stage)
        with self.meter.part(name) as entry, tempfile.TemporaryDirectory() as folder:
            runtime = Runtime(self.accelerator, Journal(Path(folder), quiet=True), 0, self.config.run)
            run_stage(stage, config, runtime, Path(folder))
            entry |= {
                "steps": self.steps,
                "batch": config.batch,
                "ms_a_step": round(1000 * timed.seconds(), 2),
                "steps_in_all": whole,
            }
        stage.eval()
        self.hours[name] = round(timed.seconds() * whole / 3600, 2)

    def heads(self, data: FeatureSet) -> None:
        """Not a part of the paper's recipe, whose towers are trained before: what it would take with heads on them."""
        config = replace(self.config.encoder, hard_negatives=0, modality_weight=0.0)
        stage = HeadsStage(data, None, self.config.model.width, config, 0, self.device)
        self.learn("stage 1, heads", stage, config.steps)

    def codes(self, data: FeatureSet) -> QuantizerStage:
        whole = with_steps(self.config.quantizer, len(data.visits())).steps
        stage = QuantizerStage(data, None, self.config.model, self.config.quantizer, 0, self.device)
        validate = stage.validate
        self.learn("stage 2, fusion and codebooks", stage, whole)
        with self.meter.part("k-means on a sample of the candidates"):
            stage.initialise(pool_only=True)
        with self.meter.part("codes of all candidates and what they tell apart"):
            validate()
        return stage

    def decoder(self, data: FeatureSet, second: QuantizerStage, asked: int) -> None:
        config = self.config
        with self.meter.part("codes for stage 3"):
            frozen, _ = freeze(second, Split(data, None, None, ""), config)
        third = GeneratorStage(data, frozen, None, second.quantizer, config.model, config.generator, 0)
        whole = with_steps(config.generator, len(data.visits())).steps
        self.learn("stage 3, decoder", third, whole)
        model = assemble(config, second, third)
        del third, frozen
        rows = torch.linspace(0, len(data.queries) - 1, min(asked, len(data.queries))).long()
        some = data.take_queries(rows)
        methods = ("dense", "genius", "genius-r", "default")
        with self.meter.part(f"evaluation, {len(rows)} questions over all candidates") as entry:
            found = evaluate(
                model, some, EvalConfig(methods=methods, pools=("universal",), survival=0, bootstrap=0, reference="")
            )
            entry["questions_a_second"] = {r.method: round(r.queries_per_second, 1) for r in found.results[: len(methods)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="where the features are written (21 GB); a temporary one otherwise")
    parser.add_argument("--candidates", type=int, default=5_600_000)
    parser.add_argument("--queries", type=int, default=1_100_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--asked", type=int, default=256, help="questions of the evaluation")
    parser.add_argument("--card", type=float, default=22.0, help="GiB of GPU memory that may be used; 0: all")
    parser.add_argument("--set", action="append", default=[], help="one field of the config, name=JSON")
    parser.add_argument("--seconds", type=float, default=3600, help="no part begins later than this; what is done is written")
    args = parser.parse_args()
    end = time.perf_counter() + args.seconds
    if args.card and torch.cuda.is_available():
        whole = torch.cuda.get_device_properties(0).total_memory / GIB
        torch.cuda.set_per_process_memory_fraction(min(1.0, args.card / whole))
    changes = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
    config = read_train_config("builtin:paper", {"model.width": args.width, **changes})
    size = Size(args.candidates, args.queries, args.width)
    about = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "cores": os.cpu_count(),
        "cap_of_the_card_gib": args.card,
        "candidates": size.candidates,
        "queries": size.queries,
        "width": size.width,
        "changes": changes,
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        start = time.perf_counter()
        if not FeatureSet.is_folder(folder):  # in a process of its own: its memory is not training's
            writer = multiprocessing.get_context("spawn").Process(target=write_features, args=(folder, size))
            writer.start()
            writer.join()
            if writer.exitcode:
                raise SystemExit("the features could not be written")
        print(f"features written in {time.perf_counter() - start:.0f} s", flush=True)
        run = Run(folder, config, Meter(args.output, about, end), args.steps)
        try:
            run.all(args.asked)
        except TimeUp as late:
            print(f"time is up before: {late}", flush=True)
    stages = {name: hours for name, hours in run.hours.items() if not name.startswith("stage 1")}
    told = {"hours_on_this_card": run.hours, "hours_of_the_recipe": round(sum(stages.values()), 2)}
    told["hours_on_four_24_gb_cards, estimated"] = round(sum(stages.values()) / FOUR_CARDS, 2)
    run.meter.write(**told)
    print(json.dumps(told))
    most = {key: max(part[key] for part in run.meter.parts) for key in ("host_gib", "gpu_gib")}
    print(f"most memory: {most['host_gib']} GiB of the host, {most['gpu_gib']} GiB of the card")


if __name__ == "__main__":
    main()
