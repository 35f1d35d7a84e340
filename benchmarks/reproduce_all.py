"""Every experiment of `genius reproduce` on the fashion photos or the icon benchmark, one after the other.

    python benchmarks/reproduce_all.py fashion --features PACKED --output OUT     (PACKED: see fashion.py)
    python benchmarks/reproduce_all.py icons   --features FOLDER --output OUT     (train, val, test FeatureSets)
    ... --device cpu --part     a part of the data and small models, for one core: see PART

Makes the features of one width (fashion: trains heads), a task's own pools, the base model, and calls `genius.evaluate.reproduce`
for each table. Rows of a table are trained alike: the same data, steps and search settings. What is finished stays in `--work`: a
second call goes on from there. OUT gets one tar of all tables and the log.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import re
import shlex
import shutil
import tarfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from genius.config import to_dict
from genius.data.features import FeatureSet
from genius.data.mbeir import DIRECTIONS
from genius.evaluate import reproduce
from genius.evaluate.methods import generative
from genius.evaluate.reproduce import Request, read_experiment
from genius.train.calibrate import Calibration
from genius.train.config import TrainConfig, read_train_config
from genius.train.encoder import HeadsStage
from genius.train.loop import Runtime, make_accelerator, run_stage
from genius.train.progress import Journal
from genius.train.run import through_heads, train

HERE = Path(__file__).parent
ORDER = (
    "table-4", "table-5", "supplement-3", "supplement-6", "supplement-5", "table-1", "table-2", "supplement-9", "supplement-8",
    "table-3", "supplement-7", "supplement-4", "figure-4", "supplement-2",
)  # fmt: skip
# GENIUS as the model's own settings have it (finished by nearness), and as the paper has it (log p alone)
BOTH = ("genius", "genius-r", "paper", "paper-r")
METHODS: dict[str, tuple[str, ...]] = {
    "table-1": ("score-fusion", "dense", *BOTH, "default"),
    "table-2": ("score-fusion", "dense", *BOTH, "default"),
    "supplement-8": ("score-fusion", *BOTH),
    "supplement-9": ("score-fusion", *BOTH),
    "table-3": BOTH,
    "supplement-7": BOTH,
    "figure-4": ("dense", "genius", "paper", "default"),
}
ABLATION = ("genius", "paper")
FASHION_TASKS = {0: 0, 1: 3, 2: 2, 3: 5, 4: 7}  # the bench's task -> M-BEIR's number of the same direction
# supplement-5: three decoders, all three with fewer and smaller steps and a rate that suits the largest
LARGE_DECODERS = {"generator.steps": 250, "generator.batch": 192, "generator.lr": 3e-4, "generator.warm_up": 0.1}
SAME_CODES = {
    "table-4": ("w/o query augmentation",),
    "supplement-5": ("T5-small", "T5-base", "T5-large"),
}  # stage 2 is the base's
# trainings of the base model's size that an experiment costs, to know whether it still fits
COST = {"table-4": 4.0, "table-5": 5.0, "supplement-3": 1.3, "supplement-6": 5.0, "supplement-5": 6.0, "table-1": 2.0}
COST |= {"supplement-7": 2.0}
SMALL: dict[str, Any] = {
    "encoder.steps": 3, "encoder.batch": 64, "quantizer.steps": 3, "quantizer.batch": 64, "quantizer.kmeans_iterations": 1,
    "quantizer.hard_negatives": 1, "generator.batch": 16, "generator.neighbours": 4, "model.decoder": "tiny",
}  # fmt: skip

# a part of the data and small models: minutes of one core. `reproduce-part/` has rows of such sizes in place of the paper's.
PART: dict[str, Any] = {
    "model.level_sizes": [3] + [256] * 8, "model.decoder": "tiny", "model.prefix_tokens": 4,
    "encoder.steps": 200, "encoder.batch": 512, "encoder.hard_negatives": 2,
    "quantizer.steps": 150, "quantizer.batch": 384, "quantizer.hard_negatives": 2, "quantizer.kmeans_iterations": 8,
    "generator.lr": 3e-3,
}  # fmt: skip
PART_PRODUCTS = 8000
PART_ICONS = {"train": (24_000, 6000), "val": (20_000, 60), "test": (20_000, 150)}  # candidates, queries (later: a task)
PART_DECODERS = {"generator.steps": 200, "generator.batch": 64, "generator.lr": 1e-3, "generator.warm_up": 0.1}


class OutOfTime(Exception):
    pass


class Run:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.started = args, time.monotonic()
        self.work: Path = args.work or Path(f"/tmp/reproduce-{args.data}")
        self.results = self.work / "results"
        self.results.mkdir(parents=True, exist_ok=True)
        args.output.mkdir(parents=True, exist_ok=True)
        self.times: dict[str, float] = {}
        self.base_seconds = 30.0

    # -- the clock and the log -------------------------------------------------------------------------------------

    def passed(self) -> float:
        return time.monotonic() - self.started

    def say(self, line: str) -> None:
        print(f"{self.passed():7.1f} {line}", flush=True)
        with (self.results / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{self.passed():7.1f} {line}\n")
        if self.passed() > self.args.seconds:
            raise OutOfTime

    def tar(self) -> None:
        target = self.args.output / f"reproduce-{self.args.data}.tar"
        with tarfile.open(target.with_suffix(".part"), "w") as tar:
            tar.add(self.results, f"reproduce-{self.args.data}")
        target.with_suffix(".part").replace(target)

    # -- data ------------------------------------------------------------------------------------------------------

    def config(self) -> TrainConfig:
        args = self.args
        changes: dict[str, Any] = {
            "output": str(self.work / "model"),
            "validation": 0.0,  # the search's settings are chosen once, for the base, on other queries
            "device": args.device,
            "model.level_sizes": [3] + [4096] * 8,  # the paper's, so that rows are what they are called
            "model.own_books_from": 0,  # one codebook a level and no L_cl on codes, as the paper
            "quantizer.codes_weight": 0.0,
            "quantizer.steps": 300,
            "quantizer.hard_negatives": 4,
            "generator.steps": args.steps,
            "generator.batch": args.batch,
            **(PART if args.part else {}),
            **(SMALL | {"model.level_sizes": [3, 16, 16, 16]} if args.small else {}),
        }
        return read_train_config(str(HERE / f"{args.data}.toml"), changes)

    def features(self, config: TrainConfig) -> tuple[FeatureSet, FeatureSet, FeatureSet]:
        """Training, dev and test sets of one width, their tasks named by direction, every task with its own pool."""
        made = [self.work / f"features-{name}" for name in ("train", "dev", "test")]
        if not all(FeatureSet.is_folder(folder) for folder in made):
            self.say("making features")
            parts = self.fashion(config) if self.args.data == "fashion" else self.icons()
            numbers = FASHION_TASKS if self.args.data == "fashion" else {n: n for n in DIRECTIONS}
            for part, folder in zip(parts, made, strict=True):
                part.names = {task: f"{self.args.data}_task{number}" for task, number in numbers.items()}
                wanted = {task: DIRECTIONS[numbers[task]][1] for task in sorted(set(part.tasks.tolist()))}
                part.pools = {task: (part.pool.modality == int(kind)).nonzero()[:, 0] for task, kind in wanted.items()}
                part.check().save(folder)
        train_set, dev, test = (FeatureSet.load(folder) for folder in made)
        sizes = {test.task_name(task): len(rows) for task, rows in test.pools.items()}
        self.say(f"{len(train_set.queries)} training, {len(dev.queries)} dev, {len(test.queries)} test queries; pools {sizes}")
        return train_set, dev, test

    def fashion(self, config: TrainConfig) -> list[FeatureSet]:
        from fashion import feature_set
        from fashion_data import TASKS, load

        photos = load(self.args.features, 300 if self.args.small else PART_PRODUCTS if self.args.part else None)
        test, count = feature_set(photos, test=True), 5 if self.args.small else self.args.dev
        first = torch.cat([(test.tasks == t).nonzero()[:-count, 0] for t in TASKS])
        last = torch.cat([(test.tasks == t).nonzero()[-count:, 0] for t in TASKS])
        parts = [feature_set(photos, test=False), test.take_queries(last), test.take_queries(first)]
        accelerator = make_accelerator(self.args.device)
        runtime = Runtime(accelerator, Journal(self.work / "heads", quiet=True), config.seed)
        stage = HeadsStage(parts[0], None, config.model.width, config.encoder, config.seed, runtime.device)
        start = time.monotonic()
        run_stage(stage, config.encoder, runtime, self.work / "heads")
        heads = stage.heads.eval()
        self.say(f"heads: {config.encoder.steps} steps in {time.monotonic() - start:.1f} s")
        parts = [through_heads(heads, part) for part in parts]
        return [dataclasses.replace(p, queries=p.queries.to("cpu"), pool=p.pool.to("cpu")) for p in parts]

    def icons(self) -> list[FeatureSet]:
        sets = [FeatureSet.load(self.args.features / f"features-{name}") for name in ("train", "val", "test")]
        if self.args.small:
            sets = [reproduce.shrink(part, 1500, count) for part, count in zip(sets, (400, 60, 120), strict=True)]
        if self.args.part:
            (size, count), *others = PART_ICONS.values()
            sets[0] = reproduce.shrink(sets[0], size, count)
            for place, (size, count) in enumerate(others, 1):
                sets[place] = reproduce.shrink(_of_each_task(sets[place], count), size, 0)
        sets[1] = _of_each_task(sets[1], self.args.dev)
        return sets

    # -- the base model --------------------------------------------------------------------------------------------

    def base(self, config: TrainConfig, train_set: FeatureSet, dev: FeatureSet) -> dict[str, Any]:
        """Train the model of the tables, choose its search settings on the dev queries; the config that rows are changes of."""
        path = self.work / "base.json"
        if path.is_file():
            body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self.base_seconds = body["seconds"]
            return body
        self.say("training the base model")
        start = time.monotonic()
        config = dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, train="none"))
        model = train(config, train_set, quiet=True).model.to(self.args.device).eval()
        self.base_seconds = time.monotonic() - start
        self.say(f"base model: {self.base_seconds:.1f} s")
        pool, _ = model.embed(dev.pool)
        codes = model.quantizer.encode(pool, dev.pool.modality.to(model.device))
        distinct = len(torch.unique(codes, dim=0)) / len(codes)
        trial = Calibration(model.generator, model.quantizer, codes, pool, model.embed(dev.queries)[0], dev)
        (geometry, tried), (finish, more) = trial.geometry(), trial.finish()
        search = {"finish": finish, "geometry": geometry}
        model.config = dataclasses.replace(model.config, search=search)
        model.save_pretrained(self.work / "model")
        config = dataclasses.replace(config, search=search)
        (self.work / "recipe.json").write_text(json.dumps(to_dict(config)), encoding="utf-8")
        body = {
            "config": to_dict(config), "seconds": self.base_seconds, "search": search, "tried": {**tried, **more},
            "distinct_ids": distinct, "torch": torch.__version__, "fingerprint": model.fingerprint(),
        }  # fmt: skip
        path.write_text(json.dumps(body, indent=1), encoding="utf-8")
        shutil.copy(path, self.results / "base.json")
        self.say(f"search: {search}; distinct ids {distinct:.3f}; {body['tried']}")
        return body

    # -- the experiments -------------------------------------------------------------------------------------------

    def request(self, name: str) -> Request:
        args, work = self.args, self.work
        experiment = read_experiment(self.named(name))
        overrides: dict[str, Any] = {}
        if experiment.baselines:
            overrides = {"generator.steps": args.steps, "generator.batch": 16 if args.small else args.batch}
        if name == "supplement-5":
            overrides = dict(PART_DECODERS if args.part else LARGE_DECODERS)
            overrides = {"generator.steps": 2, "model.decoder": "tiny"} if args.small else overrides
        if name == "table-5" and args.small:
            overrides = {"model.level_sizes": [3, 16, 16]}
        variants = {}
        if name == "supplement-3" and (work / "table-4" / "w-o-modality-decoupled" / "config.json").is_file():
            variants = {"no modality code": str(work / "table-4" / "w-o-modality-decoupled")}  # the same model in both tables
        return Request(
            data=str(work / "features-test"),
            model=str(work / "model"),
            variants=variants,
            train=str(work / "features-train"),
            base=str(work / "recipe.json"),
            work=work,
            overrides=overrides,
            methods=METHODS.get(name, () if name == "supplement-2" else ABLATION),
            queries=0 if name == "figure-4" else args.queries,
            device=args.device,
        )

    def named(self, name: str) -> str:
        """The experiment, or the one of smaller rows in its place."""
        ours = HERE / "reproduce-part" / f"{name}.toml"
        return str(ours) if self.args.part and ours.is_file() else name

    def experiment(self, name: str) -> None:
        request = self.request(name)
        experiment = self.named(name)
        same = ("tiny", "compact", "mini") if name == "supplement-5" and self.args.part else SAME_CODES.get(name, ())
        for row in same:
            target = self.work / name / re.sub(r"[^A-Za-z0-9]+", "-", row).strip("-").lower() / "training"
            target.mkdir(parents=True, exist_ok=True)
            for file in ("quantizer.safetensors", "quantizer.json"):
                shutil.copy(self.work / "model" / "training" / file, target / file)
        if experiment == "supplement-5":  # the base has another decoder: its first row is a model of its own
            row = reproduce.AblationRow("T5-small", set={"model.decoder": "small"})
            self.say("training T5-small")
            reproduce._train(name, row, request, FeatureSet.load(request.train))
            request = dataclasses.replace(request, variants={"T5-small": str(self.work / name / "t5-small")})
        table = reproduce.run(experiment, request, self.say)
        table.about["seconds"] = self.passed()
        table.write(self.results, self.command(name, request))

    def command(self, name: str, request: Request) -> str:
        """The same by the command line."""
        named = self.named(name)
        experiment = read_experiment(named)
        shown = name if named == name else str(Path(named).relative_to(HERE.parent))
        parts = ["genius", "reproduce", shown, "--data", "TEST", "--model", "MODEL"]
        if experiment.rows or experiment.baselines:
            parts += ["--train", "TRAIN"]
        if experiment.rows:
            parts += ["--base", "RECIPE.json"]
        for row, path in request.variants.items():
            parts += ["--variant", f"{row}={Path(path).relative_to(self.work)}"]
        for key, value in request.overrides.items():
            parts += ["--set", f"{key}={json.dumps(value)}"]
        parts += ["--methods", ",".join(request.methods)] if request.methods else []
        parts += ["--queries", str(request.queries)] if request.queries else []
        return shlex.join([*parts, "--device", request.device.partition(":")[0]])

    def __call__(self) -> None:
        config = self.config()
        train_set, dev, _ = self.features(config)
        self.base(config, train_set, dev)
        del train_set, dev
        self.tar()
        wanted = self.args.only.split(",") if self.args.only else list(ORDER)
        for name in wanted:
            if (self.results / f"{name}.md").is_file():
                print(f"{name}: done before", flush=True)
                continue
            left = self.args.seconds - self.passed()
            if COST.get(name, 0.2) * self.base_seconds > left:
                print(f"{self.passed():7.1f} {name}: skipped, {left:.0f} s left", flush=True)
                continue
            start = time.monotonic()
            try:
                self.experiment(name)
                outcome = "done"
            except OutOfTime:
                outcome = "out of time"
            except Exception:
                traceback.print_exc()
                (self.results / f"{name}.failed.txt").write_text(traceback.format_exc(), encoding="utf-8")
                outcome = "FAILED"
            self.times[name] = time.monotonic() - start
            print(f"{self.passed():7.1f} == {name}: {outcome}, {self.times[name]:.1f} s", flush=True)
            (self.results / "seconds.json").write_text(json.dumps(self.times), encoding="utf-8")
            self.tar()
            gc.collect()
            if self.args.device == "cuda":
                torch.cuda.empty_cache()
        print(f"{self.passed():7.1f} end", json.dumps({name: round(value, 1) for name, value in self.times.items()}), flush=True)


def _of_each_task(data: FeatureSet, count: int) -> FeatureSet:
    """Evenly spread queries, `count` of each task."""
    rows = [(data.tasks == task).nonzero()[:, 0] for task in sorted(set(data.tasks.tolist()))]
    return data.take_queries(torch.cat([r[torch.linspace(0, len(r) - 1, min(count, len(r))).long()] for r in rows]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["fashion", "icons"])
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="where models, features and finished tables stay (default /tmp/reproduce-DATA)")
    parser.add_argument("--seconds", type=float, default=100_000, help="stop after so long; what is finished stays")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=600, help="of every generator, the base's and the rows'")
    parser.add_argument("--batch", type=int, default=512, help="of every generator")
    parser.add_argument("--queries", type=int, default=300, help="asked per task")
    parser.add_argument("--dev", type=int, default=100, help="queries per task that choose the search settings")
    parser.add_argument("--only", default="", help="only these experiments, by comma")
    parser.add_argument("--part", action="store_true", help="a part of the data and small models, for one core")
    parser.add_argument("--small", action="store_true", help="a few products and steps: does everything run?")
    args = parser.parse_args()
    generative.EngineMethod._reached = lambda *_: None  # type: ignore[method-assign]  # candidate recall is in none of these tables
    Run(args)()


if __name__ == "__main__":
    main()
