"""What the decoder contributes to beam search: ablations, candidates that no training query shows, target unknown.

    python -m lab.decoder_ablation run BENCHMARK FEATURES WORK OUT --seed N     one training -> OUT/decoder-BENCHMARK-N.json
    python -m lab.decoder_ablation merge FOLDER                                 -> lab/results/decoder_BENCHMARK.json

Arguments as in `lab.above_dense`, whose training in WORK is read back or made. 50 beams, plain (log-probability) and re-ranked,
with and without the item bias; shares of hit@5 of dense search that is given the target. Variants:

    decoder                        the recipe
    decoder, own modality          its first step names the modality, in place of the query bank's probe
    no state                       without U h, the decoder's correction of the residual; scales as trained
    no state, one scale            one a for all levels and modalities and b = 1, chosen on validation queries
    ... code bias                  beside it a bias per code, by maximum likelihood of held-out queries (marginal matching)
    8, 64 synthetic queries        stage 3 reads so many fixed synthetic queries of every item, in place of synthetic items
    training queries               stage 3 reads training queries, mixed with their positives (Eq. 11 at unit length)
    training queries, features     the same; its prefix reads the image and text vectors of a query as well as z
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.data.features import FeatureSet
from genius.features import Features
from genius.model.generator import ByModality, Generator
from genius.search import SearchEngine, SearchParams
from genius.search.beam import Beam
from genius.search.decoder import Decoder, DecoderState
from genius.train import Trained
from genius.train.calibration import part_of_pool
from genius.train.generator import Batch, Frozen, GeneratorStage, ShiftedItems, generator_config
from genius.train.handover import freeze, through_heads
from genius.train.loop import finish, run_stage, step_seed
from genius.train.prepare import count_steps, settle_sizes
from genius.train.quantizer import QuantizerStage
from lab.trained import DENSE, Bench, Ints, Part, Results, Run, add_arguments, described, hit_rates, summary, write_json

BENCHMARKS = ("fashion", "icons")
PER_TASK = 400  # test queries, at most
BEAMS = 50
SCALES = (2.5, 5.0, 10.0, 20.0, 40.0)
VALIDATION_SHARE = 0.16  # of the pool, besides the positives
PENALTY = 1.0  # on squared code biases
BIAS_STEPS = 100


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
    device = scorer.generator.device
    rows = np.array([own[0] for own in part.positives])
    z = torch.from_numpy(part.z).to(device)
    codes = torch.from_numpy(bench.codes[rows].astype(np.int64)).to(device)
    residuals = scorer.generator.codebook_head.residuals(z, codes)
    out = {}
    for level in range(1, codes.shape[1]):
        for modality in range(3):
            own = (codes[:, 0] == modality).nonzero()[:, 0]
            logits = scorer.logits(level, modality, residuals[level][own]).detach()
            bias = torch.zeros(scorer.level_sizes[level], requires_grad=True, device=device)
            optimizer = torch.optim.Adam([bias], lr=0.05)
            for _ in range(BIAS_STEPS):
                optimizer.zero_grad()
                loss = F.cross_entropy(logits + bias, codes[own, level], reduction="sum") + PENALTY * bias.square().sum()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            out[level, modality] = bias.detach()
    return out


# -- stage 3 in other ways -----------------------------------------------------------------------------------------


class SyntheticQueries(ShiftedItems):
    """A fixed set of so many synthetic queries of every item; what `ShiftedItems` would draw anew at every step."""

    def __init__(self, frozen: Frozen, stage: GeneratorStage, each: int, seed: int) -> None:
        super().__init__(frozen.pool, frozen.modality, frozen.codes, frozen.offsets, stage.quantizer, seed)
        assert len(self.codes) == len(frozen.codes), "only a part of the items is drawn from"
        device = self.codes.device
        random = torch.Generator(device).manual_seed(seed)
        parts = []
        for first in range(0, len(self.codes), 4096):
            items = torch.arange(first, min(first + 4096, len(self.codes)), device=device)
            rows = items.repeat_interleave(each)
            offsets = self.directions.draw(rows, random)
            scale = self.shortest + (self.longest - self.shortest) * torch.rand(len(rows), 1, generator=random, device=device)
            direction = F.normalize(torch.randn(offsets.shape, generator=random, device=device), dim=1)
            moved = scale * (offsets + self.noise * offsets.norm(dim=1, keepdim=True) * direction)
            parts.append(F.normalize(frozen.pool[items].repeat_interleave(each, 0) + moved, dim=1).half())
        self.each = each
        self.queries = torch.cat(parts)  # (N * each, D)

    def _draw_modality(self, modality: int, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        candidates = self.rows[modality]
        rows = candidates[torch.randint(len(candidates), (count,), generator=random, device=candidates.device)]
        copies = torch.randint(self.each, (count,), generator=random, device=candidates.device)
        return self.queries[rows * self.each + copies].float(), self.codes[rows]


class MixedQueries(GeneratorStage):
    """Stage 3 on training queries that are mixed with their positives, at unit length."""

    def _mixed(self, step: int, micro: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows of queries and of positives, mu, and what the decoder reads."""
        frozen = self.frozen
        seed = step_seed(self.seed, self.name, step, micro)
        rows, targets = self.draws(step, micro, self.accumulate, seed)
        mu = self.augment.draw(len(rows), self.quantizer.config.width, frozen.codes.device, seed)
        assert frozen.queries is not None
        z = F.normalize(mu * frozen.queries[rows] + (1 - mu) * frozen.pool[targets], dim=1)
        return rows, targets, mu, z

    def batch(self, step: int, micro: int, rank: int, world: int) -> Batch:
        _, targets, _, z = self._mixed(step, micro)
        return Batch(z, self.frozen.codes[targets], ())


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


class FeatureStage(MixedQueries):
    """Stage 3 on training queries, with the features of queries and positives beside z."""

    def __init__(self, further: tuple[Tensor, Tensor, Tensor], **settings: Any) -> None:
        super().__init__(**settings)
        self.__dict__["further"] = further  # of training queries, items, validation queries

    def batch(self, step: int, micro: int, rank: int, world: int) -> Batch:
        rows, targets, mu, z = self._mixed(step, micro)
        queries, items, _ = self.__dict__["further"]
        beside = mu * queries[rows] + (1 - mu) * items[targets]
        return Batch(torch.cat([z, beside], 1), self.frozen.codes[targets], ())

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


class Decoders:
    """Further decoders on stages 1 and 2 of a training."""

    def __init__(self, run: Run, trained: Trained) -> None:
        self.run = run
        self.runtime = run.runtime()
        self.parts = run.split(trained.heads)
        config = settle_sizes(run.config, run.data.train, self.runtime)
        self.config = count_steps(config, len(self.parts.train.visits()), self.runtime)
        self.second = QuantizerStage(
            self.parts.train, self.parts.validation, config.model, config.quantizer, config.seed, self.runtime.device
        )
        folder = run.work / "training"
        again = partial(run_stage, self.second, config.quantizer, self.runtime, folder / self.second.name)
        finish(self.second, again, self.runtime, folder)  # reads it back
        with_queries = dataclasses.replace(config, generator=dataclasses.replace(config.generator, inputs="linear"))
        self.frozen, self.validation = freeze(self.second, self.parts, with_queries)

    def _settings(self, **changes: Any) -> dict[str, Any]:
        """Of a generator stage."""
        return {
            "data": self.parts.train,
            "frozen": self.frozen,
            "validation": self.validation,
            "quantizer": self.second.quantizer,
            "model": self.config.model,
            "config": dataclasses.replace(self.config.generator, **changes),
            "seed": self.config.seed,
        }

    def _trained(self, stage: GeneratorStage, name: str) -> Generator:
        stage.to(self.runtime.device)
        run_stage(stage, stage.config, self.runtime, self.run.work / "decoders" / name)
        return stage.generator.eval()

    def synthetic(self, each: int) -> Generator:
        stage = GeneratorStage(**self._settings())
        stage.items = SyntheticQueries(self.frozen, stage, each, self.config.seed)
        return self._trained(stage, f"synthetic-{each}")

    def training_queries(self) -> Generator:
        return self._trained(MixedQueries(**self._settings(inputs="linear")), "queries")

    def features(self, test: FeatureSet, bench: Bench) -> WithFeatures:
        """A decoder that reads features, for test queries."""
        device = self.runtime.device
        parts = self.parts
        assert parts.validation is not None
        further = (
            further_inputs(parts.train.queries, device),
            further_inputs(parts.train.pool, device),
            further_inputs(parts.validation.queries, device),
        )
        generator = FeatureGenerator(generator_config(self.config.model), self.second.quantizer, further[0].shape[1])
        stage = FeatureStage(further, **self._settings(inputs="linear"), generator=generator)
        trained = self._trained(stage, "features")
        return WithFeatures(trained, bench.test.z, further_inputs(test.queries, device))


# -- measuring -----------------------------------------------------------------------------------------------------


def sample(part: Part) -> Ints:
    """At most `PER_TASK` queries of each task."""
    random = np.random.default_rng(0)
    tasks = sorted(set(part.tasks.tolist()))
    return np.concatenate([random.permutation(np.flatnonzero(part.tasks == task))[:PER_TASK] for task in tasks])


class Ablation:
    """Beam searches of one training over candidates that no training query shows."""

    def __init__(self, bench: Bench, trained: Trained, results: Results) -> None:
        self.bench = bench
        self.model = trained.model
        self.results = results
        random = np.random.default_rng(bench.about["seed"])
        self.rows = random.permutation(np.flatnonzero(bench.unseen))
        assert self.model.queries is not None
        self.bank = self.model.queries
        self.engine = bench.engine(self.model, self.rows, self.bank, self.bank)
        self.asked = sample(bench.test)
        self.reference = bench.hits(self.engine, self.rows, DENSE, given=True, asked=self.asked)
        results.note("items", len(self.rows))
        results.note("queries", len(self.asked))
        results.note("dense, target given", self.reference)

    def add(self, name: str, scorer: Any) -> None:
        """Lines of one variant."""
        self.engine.__dict__["beam"] = Beam(scorer, self.engine.collection.trie, device=self.engine.device)
        self.add_searches(name, self.engine)

    def add_searches(self, name: str, engine: SearchEngine) -> None:
        """GENIUS and GENIUS^R, with the item bias."""
        for search, reranker in (("GENIUS", "none"), ("GENIUS^R", "embeddings")):
            for bias in (False, True):
                params = SearchParams(plan="beam", reranker=reranker, beams=BEAMS, item_bias=bias)
                found = self.bench.hits(engine, self.rows, params, asked=self.asked)
                self.results.add(self.reference, found, variant=name, search=search, item_bias=bias, tied=self.bench.tied)

    def own_modality(self) -> None:
        """The decoder's first step in place of the bank's probe."""
        trie = self.engine.collection.trie
        vectors = self.bench.items[self.rows].astype(np.float16)
        device = self.bench.device
        without_probe = SearchEngine(self.model.generator, self.model.quantizer, trie, vectors, device, bias_bank=self.bank)
        self.add_searches("decoder, own modality", without_probe)

    def one_scale(self) -> None:
        """The scale with the best mean hit@5 of plain beams on validation queries."""
        part = self.bench.validation
        rows = part_of_pool(len(self.bench.items), part.positives, VALIDATION_SHARE)
        engine = self.bench.engine(self.model, rows, self.bank, self.bank)
        asked = sample(part)
        params = SearchParams(plan="beam", reranker="none", beams=BEAMS, item_bias=False)
        by_scale = {}
        for scale in SCALES:
            scorer = Stateless(self.model.generator, scale)
            engine.__dict__["beam"] = Beam(scorer, engine.collection.trie, device=engine.device)
            rates = hit_rates(part, asked, self.bench.found(engine, rows, part, asked, params))
            by_scale[scale] = round(float(np.mean([five for _, five in rates.values()])), 4)
        best = max(SCALES, key=lambda scale: by_scale[scale])
        self.results.note("scale", best)
        self.results.note("by_scale", by_scale)
        scorer = Stateless(self.model.generator, best)
        self.add("no state, one scale", scorer)
        scorer.code_bias = fitted_code_bias(scorer, self.bench, self.bench.held_out)
        self.add("no state, one scale, code bias", scorer)


def measure(args: argparse.Namespace) -> None:
    """All variants of one training; one that fails does not stop the others."""
    run = Run.of(args)
    results = Results(
        args.out / f"decoder-{args.benchmark}-{args.seed}.json", described("python -m lab.decoder_ablation run", run)
    )
    trained = run.train()
    decoders = Decoders(run, trained)
    bench = run.bench(trained)
    ablation = Ablation(bench, trained, results)
    generator = trained.model.generator
    test = run.data.test
    if trained.heads is not None:
        test = through_heads(trained.heads, test)
    steps = decoders.config.generator.steps
    results.note("generator_inputs_per_item", round(steps * decoders.config.generator.batch / len(bench.items), 1))
    variants: dict[str, Callable[[], None]] = {
        "decoder": lambda: ablation.add("decoder", Decoder(generator)),
        "own modality": ablation.own_modality,
        "no state": lambda: ablation.add("no state", Stateless(generator)),
        "one scale": ablation.one_scale,
        "8": lambda: ablation.add("decoder, 8 synthetic queries of every item", Decoder(decoders.synthetic(8))),
        "64": lambda: ablation.add("decoder, 64 synthetic queries of every item", Decoder(decoders.synthetic(64))),
        "queries": lambda: ablation.add("decoder, training queries", Decoder(decoders.training_queries())),
        "features": lambda: ablation.add("decoder, training queries, features", decoders.features(test, bench)),
    }
    for name in args.variants.split(",") if args.variants else variants:
        results.measure(name, variants[name])


def result_file(benchmark: str) -> Path:
    return Path(f"lab/results/decoder_{benchmark}.json")


def finished(run: dict[str, Any]) -> dict[str, Any]:
    """A training's result without the lines of a variant that it did not finish."""
    counts = Counter(line["variant"] for line in run["lines"])
    return {**run, "lines": [line for line in run["lines"] if counts[line["variant"]] == max(counts.values())]}


def merge(folder: Path) -> None:
    """The JSON of each benchmark from files of single trainings."""
    for benchmark in BENCHMARKS:
        files = sorted(folder.glob(f"decoder-{benchmark}-*.json"))
        own = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        if not own:
            continue
        body = {name: own[0][name] for name in ("command", "commit", "date", "device", "threads", "changes")}
        lines = summary([finished(run) for run in own], ("variant", "search", "item_bias"))
        body |= {"seeds": [run["seed"] for run in own], "summary": lines, "runs": own}
        write_json(result_file(benchmark), body)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    add_arguments(running)
    running.add_argument("--variants", help="their names, in order; default all")
    merging = commands.add_parser("merge")
    merging.add_argument("folder", type=Path)
    args = parser.parse_args(arguments)
    if args.command == "run":
        measure(args)
    else:
        merge(args.folder)


if __name__ == "__main__":
    main()
