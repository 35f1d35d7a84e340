"""What the decoder contributes to beam search: ablations, candidates that no training query shows, target unknown.

    python -m lab.decoder_ablation run BENCHMARK FEATURES WORK OUT --seed N     one training -> OUT/decoder-BENCHMARK-N.json
    python -m lab.decoder_ablation merge FILE ...                               -> lab/results/decoder_BENCHMARK.json
    python -m lab.decoder_ablation table                                        docs/engine.md from these

BENCHMARK, FEATURES and WORK as in `lab.above_dense`, whose training (stages 1 and 2) is waited for and read. 50 beams, plain
(log-probability) and re-ranked, with and without the item bias; shares of hit@5 of dense search that is given the target.
Variants:

    decoder                        the recipe
    decoder, own modality          its first step names the modality, in place of the query bank's probe
    no state                       without U h, the decoder's correction of the residual; scales as trained
    no state, one scale            one a for all levels and modalities and b = 1, chosen on validation queries
    ... code bias                  a bias per code, by maximum likelihood of held-out queries (marginal matching)
    8, 64 invented queries         stage 3 reads so many fixed invented queries of every item, in place of new ones at every step
    four times the steps           a longer stage 3
    training queries               stage 3 reads training queries, mixed with their positives (Eq. 11 at unit length)
    training queries, features     the same; its prefix reads the image and text vectors of a query as well as z
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from genius.data.features import FeatureSet
from genius.features import Features
from genius.model.generator import ByModality, Generator
from genius.model.genius import Genius
from genius.model.query_bank import QueryBank
from genius.search import SearchEngine, SearchParams
from genius.search.beam import Beam
from genius.search.decoder import Decoder, DecoderState
from genius.train.calibration import part_of_pool
from genius.train.config import GeneratorStageConfig, StageConfig, TrainConfig
from genius.train.encoder import HeadsStage
from genius.train.generator import Batch, Frozen, GeneratorStage, ShiftedItems, generator_config
from genius.train.handover import assemble, freeze, sampled_query_bank, through_heads
from genius.train.holdout import Split
from genius.train.loop import Stage, finish, run_stage
from genius.train.prepare import count_steps, hold_out, settle_sizes
from genius.train.quantizer import QuantizerStage
from lab.above_dense import Results, Run, described
from lab.item_bias import Bench, Part, compact
from lab.tables import write_between

BENCHMARKS = ("fashion", "icons")
PAGE = Path("docs/engine.md")
BEGIN = "<!-- decoder -->"
END = "<!-- end of decoder -->"
PER_TASK = 250
BEAMS = 50
SCALES = (2.5, 5.0, 10.0, 20.0, 40.0)
VALIDATION_SHARE = 0.16  # of the pool, besides the positives
PENALTY = 1.0  # on squared code biases
STEPS = 100
LONGER = 4  # times the steps of stage 3
WAIT = 5.0  # seconds between looks at a training
PATIENCE = 1500  # seconds that a training is waited for
Ints = NDArray[np.int64]


class Stateless:
    """Codes scored by the residual alone (`genius.search.decoder.CodeScorer`); the query bank names the modality.

    Args:
        generator: Whose codebooks and, without `scale`, whose scales are taken.
        scale: a of all levels; None: those of the generator.
    """

    def __init__(self, generator: Generator, scale: float | None = None) -> None:
        self.generator = generator
        self.scale = scale
        self.level_sizes = generator.config.level_sizes
        self.code_bias: dict[tuple[int, int], Tensor] = {}

    def start(self, z: Tensor) -> DecoderState:
        return DecoderState(z, [], [])

    def logits(self, level: int, modality: int, residual: Tensor) -> Tensor:
        """(R, K) of residuals (R, D) of items of one modality."""
        head = self.generator.codebook_head
        if self.scale is None:
            return head._logits_of(level, modality, residual)
        codebook = head._codebook(level, modality)
        return self.scale * (2 * residual @ codebook.T - codebook.square().sum(1))

    def _log_probs(self, z: Tensor, codes: Tensor) -> Tensor:
        level = codes.shape[1]
        residual = self.generator.residual(z, codes)
        assert residual is not None
        out = torch.empty(len(z), self.level_sizes[level], device=z.device)
        for modality in range(3):
            rows = (codes[:, 0] == modality).nonzero()[:, 0]
            logits = self.logits(level, modality, residual[rows])
            if self.code_bias:
                logits = logits + self.code_bias[level, modality]
            out[rows] = logits.log_softmax(-1)
        return out

    def next_log_probs(self, codes: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        queries, beams, level = codes.shape
        if level == 0:
            return torch.zeros(queries, beams, self.level_sizes[0], device=codes.device), state
        z = state.z.repeat_interleave(beams, 0)
        return self._log_probs(z, codes.flatten(0, 1)).view(queries, beams, -1), state

    def path_log_probs(self, codes: Tensor, state: DecoderState, level: int) -> Tensor:
        queries, beams, levels = codes.shape
        rows = codes.flatten(0, 1)
        z = state.z.repeat_interleave(beams, 0)
        parts = [self._log_probs(z, rows[:, :now]).gather(1, rows[:, now : now + 1]) for now in range(level, levels)]
        return torch.cat(parts, 1).view(queries, beams, -1)


def fitted_code_bias(scorer: Stateless, bench: Bench, part: Part) -> dict[tuple[int, int], Tensor]:
    """A bias per code that matches how often held-out queries want it, given the codes before it."""
    rows = np.array([own[0] for own in part.positives])
    device = scorer.generator.device
    z = torch.from_numpy(part.z).to(device)
    codes = torch.from_numpy(bench.codes[rows].astype(np.int64)).to(device)
    residuals = scorer.generator.codebook_head.residuals(z, codes)
    out = {}
    for level in range(1, codes.shape[1]):
        for modality in range(3):
            own = (codes[:, 0] == modality).nonzero()[:, 0]
            logits = scorer.logits(level, modality, residuals[level][own]).detach()
            bias = torch.zeros(scorer.level_sizes[level], device=device, requires_grad=True)
            optimizer = torch.optim.Adam([bias], lr=0.05)
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss = F.cross_entropy(logits + bias, codes[own, level], reduction="sum") + PENALTY * bias.square().sum()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            out[level, modality] = bias.detach()
    return out


def hits(
    engine: SearchEngine, rows: Ints, part: Part, asked: Ints, params: SearchParams, given: bool = False
) -> dict[str, float]:
    """hit@5 of each task."""
    found = []
    for first in range(0, len(asked), 256):
        queries = asked[first : first + 256]
        target = None
        if given:
            target = part.target[queries]
        result = engine.search(part.z[queries], k=5, params=params, target=target, modality=part.modality[queries])
        found.append(np.where(result.rows >= 0, rows[result.rows], -1))
    top = np.concatenate(found).tolist()
    hit = np.array([bool(set(line) & set(part.positives[query])) for line, query in zip(top, asked, strict=True)])
    tasks = part.tasks[asked]
    return {task: float(hit[tasks == task].mean()) for task in sorted(set(tasks.tolist()))}


def sample(part: Part) -> Ints:
    """At most `PER_TASK` queries of each task."""
    random = np.random.default_rng(0)
    tasks = sorted(set(part.tasks.tolist()))
    return np.concatenate([random.permutation(np.flatnonzero(part.tasks == task))[:PER_TASK] for task in tasks])


def chosen_scale(bench: Bench, engine: SearchEngine, rows: Ints, generator: Generator) -> tuple[float, dict[str, float]]:
    """The scale with the best mean hit@5 of plain beams on validation queries."""
    asked = sample(bench.validation)
    params = SearchParams(plan="beam", reranker="none", beams=BEAMS, item_bias=False)
    found = {}
    for scale in SCALES:
        engine.__dict__["beam"] = Beam(Stateless(generator, scale), engine.collection.trie, device=engine.device)
        found[str(scale)] = round(float(np.mean([*hits(engine, rows, bench.validation, asked, params).values()])), 4)
    best = max(SCALES, key=lambda scale: found[str(scale)])
    return best, found


# -- stage 3 in other ways -----------------------------------------------------------------------------------------


class InventedQueries(ShiftedItems):
    """A fixed set of so many invented queries of every item; what `ShiftedItems` would draw anew at every step."""

    def __init__(self, frozen: Frozen, stage: GeneratorStage, each: int, seed: int) -> None:
        super().__init__(frozen.pool, frozen.modality, frozen.codes, frozen.offsets, stage.quantizer, 0.0, seed)
        random = torch.Generator(self.z.device).manual_seed(seed)
        parts = []
        for first in range(0, len(self.z), 4096):
            rows = torch.arange(first, min(first + 4096, len(self.z)), device=self.z.device).repeat_interleave(each)
            offsets = self.directions.draw(rows, random)
            scale = self.shortest + (self.longest - self.shortest) * torch.rand(
                len(rows), 1, generator=random, device=rows.device
            )
            direction = F.normalize(torch.randn(offsets.shape, generator=random, device=rows.device), dim=1)
            moved = scale * (offsets + self.noise * offsets.norm(dim=1, keepdim=True) * direction)
            parts.append(F.normalize(self.z[rows] + moved, dim=1).half())
        self.each = each
        self.invented = torch.cat(parts)  # (N * each, D)

    def _draw_modality(self, modality: int, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        candidates = self.rows[modality]
        rows = candidates[torch.randint(len(candidates), (count,), generator=random, device=candidates.device)]
        copies = torch.randint(self.each, (count,), generator=random, device=candidates.device)
        return self.invented[rows * self.each + copies].float(), self.codes[rows]


class FeatureGenerator(Generator):
    """A decoder whose prefix reads further numbers beside z: inputs are (B, D + F), z first."""

    def __init__(self, config: Any, quantizer: Any, further: int) -> None:
        super().__init__(config, quantizer)
        self.prefix = nn.Linear(config.width + further, config.prefix_tokens * config.d_model)

    def residual(self, z: Tensor, codes: Tensor) -> Tensor | None:
        return super().residual(z[:, : self.config.width], codes)

    def code_log_probs(
        self, z: Tensor, codes: Tensor, rows: ByModality | None = None, states: Tensor | None = None
    ) -> list[Tensor]:
        hidden = self.states(z, codes) if states is None else states
        return super().code_log_probs(z[:, : self.config.width], codes, rows, hidden)


def further_inputs(features: Features, device: torch.device) -> Tensor:
    """(n, F) unit image and text vectors, zeros where there is none."""
    image, text = (F.normalize(part.float(), dim=1).to(device) for part in features.masked())
    return torch.cat([image, text], 1)


class FeatureStage(GeneratorStage):
    """Stage 3 on training queries, with the features of queries and positives beside z."""

    def __init__(self, further: tuple[Tensor, Tensor, Tensor], **settings: Any) -> None:
        super().__init__(**settings)
        self.__dict__["further"] = further  # of training queries, items, validation queries

    def batch(self, step: int, micro: int, rank: int, world: int) -> Batch:
        from genius.train.loop import step_seed

        frozen = self.frozen
        queries, items, _ = self.__dict__["further"]
        seed = step_seed(self.seed, self.name, step, micro)
        rows, targets = self.draws(step, micro, self.accumulate, seed)
        mu = self.augment.draw(len(rows), self.quantizer.config.width, frozen.codes.device, seed)
        assert frozen.queries is not None
        z = self.augment(frozen.queries[rows], frozen.pool[targets], mu)
        beside = mu * queries[rows] + (1 - mu) * items[targets]
        return Batch(torch.cat([z, beside], 1), frozen.codes[targets], ())

    def quick(self) -> float | None:
        """Minus the cross-entropy of validation queries."""
        held = self.validation
        assert held is not None
        pairs = held.data.pairs.to(held.pool.device)
        inputs = torch.cat([held.queries, self.__dict__["further"][2]], 1)
        nats, _ = self._code_metrics(inputs[pairs[:, 0]], held.codes[pairs[:, 1]])
        return -float(nats.mean())

    def validate(self) -> dict[str, float]:
        return {"validation_ce": -(self.quick() or 0.0)}


class WithFeatures(Decoder):
    """A decoder that knows the features of the queries that will come, by their z."""

    def __init__(self, generator: Generator, z: np.ndarray, further: Tensor) -> None:
        super().__init__(generator)
        self.row_of = {row.tobytes(): place for place, row in enumerate(z.astype(np.float32))}
        self.further = further

    def start(self, z: Tensor) -> DecoderState:
        places = [self.row_of[row.tobytes()] for row in z.float().cpu().numpy()]
        return super().start(torch.cat([z, self.further[torch.tensor(places, device=z.device)]], 1))


class Trainings:
    """Stages 1 and 2 of a finished training, and further decoders on them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.runtime = run.runtime()
        config = settle_sizes(run.config, run.data.train, self.runtime)
        parts = hold_out(config, run.data.train, self.runtime)
        config = count_steps(config, len(parts.train.visits()), self.runtime)
        device = self.runtime.device
        self.heads = None
        if config.encoder.train == "heads":
            first = HeadsStage(parts.train, parts.validation, config.model.width, config.encoder, config.seed, device)
            self._read(first, config.encoder)
            self.heads = first.heads
            parts = parts.map(partial(through_heads, first.heads))
        self.second = QuantizerStage(parts.train, parts.validation, config.model, config.quantizer, config.seed, device)
        self._read(self.second, config.quantizer)
        generator = dataclasses.replace(config.generator, inputs="scalar", virtual=GeneratorStageConfig().virtual)
        with_queries = dataclasses.replace(config, generator=generator)
        self.frozen, self.validation = freeze(self.second, parts, with_queries)  # with z of training queries
        self.config: TrainConfig = config
        self.parts: Split = parts

    def _read(self, stage: Stage, config: StageConfig) -> None:
        folder = self.run.work / "training"
        finish(stage, partial(run_stage, stage, config, self.runtime, folder / stage.name), self.runtime, folder)

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Of a generator stage."""
        config = dataclasses.replace(self.config.generator, **changes)
        return {
            "data": self.parts.train,
            "frozen": self.frozen,
            "validation": self.validation,
            "quantizer": self.second.quantizer,
            "model": self.config.model,
            "config": config,
            "seed": self.config.seed,
        }

    def trained(self, stage: GeneratorStage, name: str) -> Generator:
        stage.to(self.runtime.device)
        run_stage(stage, stage.config, self.runtime, self.run.work / "decoders" / name)
        return stage.generator.eval()

    def recipe(self) -> GeneratorStage:
        """The decoder of the training, read back."""
        stage = GeneratorStage(**self.settings())
        self._read(stage, self.config.generator)
        return stage

    def invented(self, each: int) -> Generator:
        stage = GeneratorStage(**self.settings())
        stage.items = InventedQueries(self.frozen, stage, each, self.config.seed)
        return self.trained(stage, f"invented-{each}")

    def longer(self) -> Generator:
        stage = GeneratorStage(**self.settings(steps=LONGER * self.config.generator.steps))
        return self.trained(stage, "longer")

    def training_queries(self) -> Generator:
        return self.trained(GeneratorStage(**self.settings(inputs="scalar", virtual=1.0)), "queries")

    def features(self, test: FeatureSet, bench: Bench) -> WithFeatures:
        """A decoder that reads features, for validation and test queries."""
        device = self.runtime.device
        parts = self.parts
        assert parts.validation is not None and self.validation is not None
        further = (
            further_inputs(parts.train.queries, device),
            further_inputs(parts.train.pool, device),
            further_inputs(parts.validation.queries, device),
        )
        generator = FeatureGenerator(generator_config(self.config.model), self.second.quantizer, further[0].shape[1])
        stage = FeatureStage(further, **self.settings(inputs="scalar", virtual=1.0), generator=generator)
        trained = self.trained(stage, "features")
        return WithFeatures(trained, bench.test.z, further_inputs(test.queries, device))


# -- measuring -----------------------------------------------------------------------------------------------------


class Ablation:
    """Beam searches of one training over candidates that no training query shows."""

    def __init__(self, bench: Bench, model: Genius, bank: QueryBank, results: Results) -> None:
        self.bench = bench
        self.results = results
        self.rows = np.flatnonzero(bench.unseen)
        self.engine = bench.engine(bank, bank, model, self.rows)
        self.asked = sample(bench.test)
        dense = SearchParams(plan="flat", item_bias=False)
        self.reference = hits(self.engine, self.rows, bench.test, self.asked, dense, given=True)
        results.body |= {"items": len(self.rows), "queries": len(self.asked), "dense, target given": self.reference}

    def add(self, name: str, scorer: Any, engine: SearchEngine | None = None) -> None:
        """Lines of one variant."""
        engine = engine or self.engine
        if scorer is not None:
            engine.__dict__["beam"] = Beam(scorer, engine.collection.trie, device=engine.device)
        for search, reranker in (("GENIUS", "none"), ("GENIUS^R", "embeddings")):
            for bias in (False, True):
                params = SearchParams(plan="beam", reranker=reranker, beams=BEAMS, item_bias=bias)
                found = hits(engine, self.rows, self.bench.test, self.asked, params)
                share = {task: round(found[task] / max(self.reference[task], 1e-9), 4) for task in found}
                line: dict[str, Any] = {"variant": name, "search": search, "item_bias": bias, "share": share}
                line |= {"mean": round(float(np.mean([*share.values()])), 4), "worst": min(share.values())}
                self.results.lines.append(line)
                self.results.write()
                print(json.dumps(line), flush=True)


def measure(args: argparse.Namespace) -> None:
    """All variants of one training; one that fails does not stop the others."""
    changes = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
    waited = time.monotonic()
    while not (args.work / "trained").exists():
        if (args.work / "ended").exists() or time.monotonic() - waited > PATIENCE:
            raise SystemExit(f"no training ended in {args.work}")
        time.sleep(WAIT)
    run = Run.of(args.benchmark, args.features, args.work, args.seed, changes, device)
    about = described("python -m lab.decoder_ablation run", run, changes, device)
    results = Results(args.out / f"decoder-{args.benchmark}-{args.seed}.json", about)
    trainings = Trainings(run)
    stage = trainings.recipe()
    model = assemble(trainings.config, trainings.second, stage)
    start = time.monotonic()
    bank = sampled_query_bank(trainings.second, trainings.parts, trainings.config.seed)
    results.body["seconds_of_choosing_the_item_bias"] = round(time.monotonic() - start, 2)
    bench = Bench(args.work / "vectors", args.seed, device)
    model.generator.eval()
    ablation = Ablation(bench, model, bank, results)
    test = run.data.test
    if trainings.heads is not None:
        test = through_heads(trainings.heads, test)

    def stateless() -> None:
        validation_rows = part_of_pool(len(bench.items), bench.validation.positives, VALIDATION_SHARE)
        validation = bench.engine(bank, bank, model, validation_rows)
        scale, by_scale = chosen_scale(bench, validation, validation_rows, model.generator)
        results.body |= {"scale": scale, "by_scale": by_scale}
        ablation.add("no state, one scale", Stateless(model.generator, scale))
        with_bias = Stateless(model.generator, scale)
        with_bias.code_bias = fitted_code_bias(with_bias, bench, bench.held_out)
        ablation.add("no state, one scale, code bias", with_bias)

    def own_modality() -> None:
        trie = ablation.engine.collection.trie
        vectors = bench.items[ablation.rows].astype(np.float16)
        without_probe = SearchEngine(model.generator, model.quantizer, trie, vectors, device, bias_bank=bank)
        ablation.add("decoder, own modality", None, without_probe)

    variants: dict[str, Callable[[], None]] = {
        "decoder": lambda: ablation.add("decoder", model.generator),
        "no state": lambda: ablation.add("no state", Stateless(model.generator)),
        "stateless": stateless,
        "8": lambda: ablation.add("decoder, 8 invented queries of every item", trainings.invented(8)),
        "64": lambda: ablation.add("decoder, 64 invented queries of every item", trainings.invented(64)),
        "longer": lambda: ablation.add(f"decoder, {LONGER} times the steps", trainings.longer()),
        "queries": lambda: ablation.add("decoder, training queries", trainings.training_queries()),
        "features": lambda: ablation.add("decoder, training queries, features", trainings.features(test, bench)),
        "own modality": own_modality,
    }
    for name in args.variants.split(",") if args.variants else variants:
        start = time.monotonic()
        try:
            variants[name]()
        except Exception as error:  # the other variants are worth having
            results.note(f"failed_{name}", repr(error))
            print(name, repr(error), flush=True)
        print(args.benchmark, args.seed, name, round(time.monotonic() - start), "s", flush=True)


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every line over the seeds that have it: shares of each task averaged over seeds, then their mean and the worst."""
    found: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for run in runs:
        for line in run["lines"]:
            found.setdefault((line["variant"], line["search"], line["item_bias"]), []).append(line)
    out = []
    for (variant, search, bias), lines in found.items():
        share = {task: round(float(np.mean([line["share"][task] for line in lines])), 4) for task in lines[0]["share"]}
        mean = round(float(np.mean([*share.values()])), 4)
        body = {"variant": variant, "search": search, "item_bias": bias, "seeds": len(lines), "mean": mean}
        out.append(body | {"worst": min(share.values()), "by_seed": [[line["mean"], line["worst"]] for line in lines]})
    return out


def result_file(benchmark: str) -> Path:
    return Path(f"lab/results/decoder_{benchmark}.json")


def merge(files: Sequence[Path]) -> None:
    """The JSON of each benchmark from files of single trainings."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for benchmark in BENCHMARKS:
        own = sorted((run for run in runs if run["benchmark"] == benchmark), key=lambda run: run["seed"])
        if not own:
            continue
        body = {name: own[0][name] for name in ("command", "commit", "date", "device", "threads")}
        body |= {"seeds": [run["seed"] for run in own], "summary": summary(own), "runs": own}
        result_file(benchmark).write_text(compact(body), encoding="utf-8")


def table(benchmark: str, body: dict[str, Any]) -> str:
    """Markdown of the summary."""
    runs = body["runs"]
    scales = ", ".join(f"{run['scale']:g}" for run in runs if "scale" in run)
    tasks = len(runs[0]["lines"][0]["share"])
    seeds = ", ".join(str(run["seed"]) for run in runs)
    out = [
        f"{benchmark.capitalize()}, {runs[0]['items']:,} candidates that no training query shows, {runs[0]['queries']:,} test "
        f"queries, {tasks} tasks,",
        f"{BEAMS} beams, target unknown, seeds {seeds}, {body['device']}, {body['date']}. hit@5 as a share of dense search",
        f"that is given the target, mean / worst task; a of the stateless scorers: {scales}.",
    ]
    steps = [step for run in runs for step in run.get("decoder") or ()]
    if steps:
        out.append(f"The decoder of the first seed was trained until step {steps[0].removeprefix('step-')}.")
    out += [
        "",
        "| codes scored by | seeds | GENIUS | with item bias | GENIUS^R | with item bias |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines = body["summary"]
    for name in dict.fromkeys(line["variant"] for line in lines):
        own = [line for line in lines if line["variant"] == name]
        cells = " | ".join(f"{line['mean']:.3f} / {line['worst']:.3f}" for line in own)
        out.append(f"| {name} | {own[0]['seeds']} | {cells} |")
    return "\n".join(out)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("benchmark", choices=BENCHMARKS)
    for folder in ("features", "work", "out"):
        running.add_argument(folder, type=Path)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--variants", help="their names, in order; default all")
    running.add_argument("--set", action="append", default=[], help="one field of the config, name=JSON")
    merging = commands.add_parser("merge")
    merging.add_argument("files", type=Path, nargs="+")
    commands.add_parser("table")
    args = parser.parse_args(arguments)
    if args.command == "run":
        measure(args)
    elif args.command == "merge":
        merge(args.files)
    else:
        known = [name for name in BENCHMARKS if result_file(name).exists()]
        made = [table(name, json.loads(result_file(name).read_text(encoding="utf-8"))) for name in known]
        write_between(PAGE, BEGIN, END, "\n\n".join(made))


if __name__ == "__main__":
    main()
