"""What the decoder contributes to beam search: ablations on fashion, candidates that no training query shows, target unknown.

    python -m lab.decoder_ablation OUT TRAINING [--add]       one seed -> lab/results/decoder_fashion.json
    python -m lab.decoder_ablation --table                    docs/engine.md from that JSON

OUT and TRAINING as in `lab.item_bias`. 50 beams, plain (log-probability) and re-ranked, with and without the item bias; shares of
hit@5 of dense search that is given the target modality. Variants:

    decoder, own modality    as trained; the decoder's first step names the modality (where stage 3 was trained)
    decoder                  as trained; the query bank's probe names the modality, as the product does
    no state                 without U h, the decoder's correction of the residual; scales as trained
    no state, one scale      one a for all levels and modalities and b = 1, chosen on validation queries
    ... code bias            a bias per code, by maximum likelihood of held-out queries (marginal matching)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from genius.model.bias_choice import choose
from genius.model.generator import Generator
from genius.search import SearchEngine, SearchParams
from genius.search.beam import Beam
from genius.search.decoder import DecoderState
from genius.train.calibration import part_of_pool
from lab.item_bias import BANK, Bench, Part, compact, run_details, stages
from lab.tables import write_between

RESULT = Path("lab/results/decoder_fashion.json")
PAGE = Path("docs/engine.md")
BEGIN = "<!-- decoder -->"
END = "<!-- end of decoder -->"
PER_TASK = 250
BEAMS = 50
SCALES = (2.5, 5.0, 10.0, 20.0, 40.0)
VALIDATION_SHARE = 0.16  # of the pool, besides the positives
PENALTY = 1.0  # on squared code biases
STEPS = 100
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
        out = torch.empty(len(z), self.level_sizes[level])
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
            return torch.zeros(queries, beams, self.level_sizes[0]), state
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
    z = torch.from_numpy(part.z)
    codes = torch.from_numpy(bench.codes[rows].astype(np.int64))
    residuals = scorer.generator.codebook_head.residuals(z, codes)
    out = {}
    for level in range(1, codes.shape[1]):
        for modality in range(3):
            own = (codes[:, 0] == modality).nonzero()[:, 0]
            logits = scorer.logits(level, modality, residuals[level][own]).detach()
            bias = torch.zeros(scorer.level_sizes[level], requires_grad=True)
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
        engine.__dict__["beam"] = Beam(Stateless(generator, scale), engine.collection.trie)
        found[str(scale)] = round(float(np.mean([*hits(engine, rows, bench.validation, asked, params).values()])), 4)
    best = max(SCALES, key=lambda scale: found[str(scale)])
    return best, found


def measure(folder: Path, training: Path) -> dict[str, Any]:
    """All variants of one seed."""
    seed = json.loads((folder / "about.json").read_text(encoding="utf-8"))["seed"]
    bench = Bench(folder, seed)
    _, model, decodes = stages(training)
    bank = bench.bank(BANK // 5)
    biased = choose(bank, bench.judged, bench.items, bench.modality)
    part = bench.validation
    validation_rows = part_of_pool(len(bench.items), part.positives, VALIDATION_SHARE)
    validation = bench.engine(bank, biased, model, validation_rows)
    scale, by_scale = chosen_scale(bench, validation, validation_rows, model.generator)
    rows = np.flatnonzero(bench.unseen)
    engine = bench.engine(bank, biased, model, rows)
    asked = sample(bench.test)
    reference = hits(engine, rows, bench.test, asked, SearchParams(plan="flat", item_bias=False), given=True)
    trie = engine.collection.trie
    one_scale = Stateless(model.generator, scale)
    with_bias = Stateless(model.generator, scale)
    with_bias.code_bias = fitted_code_bias(with_bias, bench, bench.held_out)
    variants: dict[str, Any] = {}
    steps = None
    if decodes:
        steps = sorted(path.name for path in training.glob("generator/step-*"))[-1:]
        variants["decoder"] = model.generator
        variants["no state"] = Stateless(model.generator)
    variants["no state, one scale"] = one_scale
    variants["no state, one scale, code bias"] = with_bias
    lines = []
    if decodes:
        without_probe = SearchEngine(
            model.generator, model.quantizer, trie, bench.items[rows].astype(np.float16), bias_bank=biased
        )
        lines += _lines("decoder, own modality", without_probe, rows, bench, asked, reference)
    for name, scorer in variants.items():
        engine.__dict__["beam"] = Beam(scorer, trie)
        lines += _lines(name, engine, rows, bench, asked, reference)
    about = {"seed": seed, "items": len(rows), "queries": len(asked), "decoder": steps}
    return {**about, "scale": scale, "by_scale": by_scale, "dense, target given": reference, "lines": lines}


def _lines(
    name: str, engine: SearchEngine, rows: Ints, bench: Bench, asked: Ints, reference: dict[str, float]
) -> list[dict[str, Any]]:
    out = []
    for search, reranker in (("GENIUS", "none"), ("GENIUS^R", "embeddings")):
        for bias in (False, True):
            params = SearchParams(plan="beam", reranker=reranker, beams=BEAMS, item_bias=bias)
            found = hits(engine, rows, bench.test, asked, params)
            share = {task: round(found[task] / max(reference[task], 1e-9), 4) for task in found}
            line = {"variant": name, "search": search, "item_bias": bias, "share": share}
            out.append(line | {"mean": round(float(np.mean([*share.values()])), 4), "worst": min(share.values())})
            print(json.dumps(out[-1]), flush=True)
    return out


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


def table(body: dict[str, Any]) -> str:
    """Markdown of the summary."""
    runs = body["runs"]
    steps = ", ".join(f"{int(step.removeprefix('step-'))}" for run in runs if run["decoder"] for step in run["decoder"])
    scales = ", ".join(f"{run['scale']:g}" for run in runs)
    out = [
        f"Fashion, {runs[0]['items']:,} candidates that no training query shows, {runs[0]['queries']:,} test queries,",
        f"five tasks, {BEAMS} beams, target unknown, {body['date']}. hit@5 as a share of dense search that is",
        "given the target, mean / worst task.",
        f"The decoder of the first seed was trained, until step {steps}; a of the stateless scorers: {scales}.",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="*", help="OUT TRAINING of a seed")
    parser.add_argument("--add", action="store_true", help="add this seed to the runs that the JSON has")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        body = json.loads(RESULT.read_text(encoding="utf-8"))
        write_between(PAGE, BEGIN, END, table(body))
        return
    made = run_details()
    runs = []
    if args.add:
        runs = json.loads(RESULT.read_text(encoding="utf-8"))["runs"]
    runs.append({"commit": made["commit"], **measure(*args.run)})
    body = {"command": "python -m lab.decoder_ablation", **made, "summary": summary(runs), "runs": runs}
    RESULT.write_text(compact(body), encoding="utf-8")


if __name__ == "__main__":
    main()
