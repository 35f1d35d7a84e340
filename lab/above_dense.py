"""`builtin:default` trained on a benchmark and measured with the search that ships: every search beside dense search.

    python -m lab.above_dense train BENCHMARK FEATURES WORK OUT --seed N [--parts ...] [--set name=JSON]
    python -m lab.above_dense bundled ICONVEC WORK OUT                         the same of `bundled:mini`, as it ships
    python -m lab.above_dense unpack BENCHMARK FEATURES WORK PACK --seed N     vectors of such a training, on another machine

BENCHMARK: fashion or icons; FEATURES: as in `lab.accuracy`; WORK: a folder for the training and its vectors; OUT: a folder for
results, which are written after every line. "unseen": only candidates that no training or held-out query shows. Shares are of
dense search that is given the target modality, over the same candidates. Parts:

    unseen, all   the default search and codes only, with and without the item bias, target unknown and given
    beams         GENIUS and GENIUS^R with 50 beams on `BEAM_QUERIES` test queries, unseen candidates
    added         the default search, where a tenth or nine tenths of the items came after the fusion was trained
    filled        a million candidates: the pool and points between neighbouring items of the same modality

"whole bias": scores made of codes take the bias that was chosen for vectors. What else is needed to measure on another machine
(fusion, heads, codes) is packed into OUT.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genius.config import to_dict
from genius.encoders.towers import Heads
from genius.features import Features
from genius.model.bias_choice import choose
from genius.model.codebooks import neighbours
from genius.model.config import FusionConfig, GeniusConfig
from genius.model.genius import Genius
from genius.model.query_bank import QueryBank
from genius.search import SearchParams
from genius.train import Trained, train_stages
from genius.train.config import EncoderStageConfig, TrainConfig, read_train_config
from genius.train.generator import generator_config
from genius.train.handover import through_heads, training_queries
from genius.train.holdout import Split
from genius.train.journal import Journal
from genius.train.loop import OneProcess, Runtime
from genius.train.prepare import hold_out, settle_sizes
from genius.train.quantizer import quantizer_config
from lab import current_commit
from lab.accuracy import Data, added_later, fashion, icons, without
from lab.item_bias import Bench, Hits, Ints, Lines, bank_lines, existence

PARTS = ("unseen", "beams", "added", "all", "filled")
BEAM_QUERIES = 2000
SHARES = (0.1, 0.9)
FILLED = 1_000_000
PER_SEED = 3000  # queries of each direction in a bank of `bundled:mini`
CHUNK = 8192
FLAT = SearchParams(plan="flat")


@dataclass
class Run:
    """One training of a benchmark, and where it lies."""

    benchmark: str
    data: Data
    config: TrainConfig
    work: Path
    device: str

    @classmethod
    def of(
        cls,
        benchmark: str,
        features: Path,
        work: Path,
        seed: int,
        changes: dict[str, Any],
        device: str,
        products: int | None = None,
    ) -> Run:
        """A run that nothing was trained of yet; `products`: only the first so many of fashion."""
        data = {"fashion": fashion, "icons": icons}[benchmark](features, products)
        config = replace(read_train_config("builtin:default", changes), seed=seed, output=str(work / "model"))
        if data.honest is not None:
            data.honest.save(work / "held-out")
            config = replace(config, held_out_data=str(work / "held-out"))
        return cls(benchmark, data, config, work, device)

    def runtime(self) -> Runtime:
        journal = Journal(self.work / "training", quiet=True)
        return Runtime(OneProcess(self.device), journal, self.config.seed, self.config.run)

    def train(self) -> tuple[Trained, float]:
        """The trained model, and how long its training took."""
        runtime = self.runtime()
        settled = settle_sizes(self.config, self.data.train, runtime)
        start = time.monotonic()
        trained = train_stages(settled, self.data.train, runtime, self.work / "training")
        seconds = round(time.monotonic() - start, 2)
        return trained, seconds

    def split(self, heads: Heads | None) -> Split:
        """Training and held-out queries in the features that the fusion reads."""
        runtime = self.runtime()
        parts = hold_out(settle_sizes(self.config, self.data.train, runtime), self.data.train, runtime)
        if heads is None:
            return parts
        return parts.map(lambda part: through_heads(heads, part))


def vectors(model: Genius, features: Features) -> np.ndarray:
    """(n, D) z."""
    starts = range(0, max(len(features), 1), CHUNK)
    return np.concatenate([model.embed(features[first : first + CHUNK])[0].float().cpu().numpy() for first in starts])


def codes_of(model: Genius, z: np.ndarray, modality: torch.Tensor) -> np.ndarray:
    """(n, M) codes."""
    out = []
    for first in range(0, len(z), CHUNK):
        part = torch.from_numpy(z[first : first + CHUNK]).to(model.device)
        out.append(model.quantizer.encode(part, modality[first : first + CHUNK].to(model.device)).cpu().numpy())
    return np.concatenate(out)


def write_bench(run: Run, trained: Trained, out: Path, codes: np.ndarray | None = None) -> None:
    """z of items and queries, codes, and the split of every query, as `lab.item_bias.Bench` reads them."""
    model = trained.model
    parts = run.split(trained.heads)
    test = run.data.test
    if trained.heads is not None:
        test = through_heads(trained.heads, test)
    out.mkdir(parents=True, exist_ok=True)
    pool = test.pool
    z = vectors(model, pool)
    if codes is None:
        codes = codes_of(model, z, pool.modality)
    np.savez(out / "items.npz", z=z, modality=pool.modality.numpy(), codes=codes)
    rows_of = {name: row for row, name in enumerate(test.pool_ids)}
    named = {"learn": parts.train, "held-out": parts.offsets, "validation": parts.validation, "test": test}
    for name, part in named.items():
        assert part is not None
        rows = torch.tensor([rows_of[item] for item in part.pool_ids])
        pairs = torch.stack([part.pairs[:, 0], rows[part.pairs[:, 1]]], 1)
        target = torch.zeros(len(part.queries), dtype=torch.long)
        target[pairs[:, 0]] = pool.modality[pairs[:, 1]]
        tasks = np.array([part.task_name(int(task)) for task in part.tasks], np.str_)
        arrays: dict[str, Any] = {"modality": part.queries.modality.numpy(), "pairs": pairs.numpy(), "target": target.numpy()}
        np.savez(out / f"{name}.npz", z=vectors(model, part.queries), tasks=tasks, **arrays)
    sizes = {"width": model.config.quantizer.width, "level_sizes": list(model.config.quantizer.level_sizes)}
    about = {"benchmark": run.benchmark, "seed": run.config.seed, "items": len(pool), **sizes, "config": to_dict(run.config)}
    (out / "about.json").write_text(json.dumps(about), encoding="utf-8")


def pack(trained: Trained, bench: Bench, out: Path, name: str) -> None:
    """Fusion, heads and bank in half precision, and codes: z of everything follows from them and the frozen features."""
    model = trained.model
    assert model.queries is not None
    arrays = {f"fusion.{key}": value.half().cpu().numpy() for key, value in model.fusion.state_dict().items()}
    if trained.heads is not None:
        arrays |= {f"heads.{key}": value.half().cpu().numpy() for key, value in trained.heads.state_dict().items()}
    arrays["codes"] = bench.codes.astype(np.uint16)
    for key in ("bias_weights", "bias_temperatures", "code_shares"):
        arrays[f"bank.{key}"] = np.asarray(getattr(model.queries, key))
    np.savez_compressed(out / f"{name}.npz", **arrays)  # type: ignore[arg-type]


def pack_codebooks(model: Genius, out: Path, name: str) -> None:
    """Codebooks in 8 bits, a scale for each row."""
    arrays = {}
    for level, codebook in enumerate(model.quantizer.codebooks):
        rows = codebook.float().cpu()
        scale = (rows.abs().amax(1, keepdim=True) / 127).clamp(min=1e-8)
        arrays[f"rows_{level}"] = (rows / scale).round().to(torch.int8).numpy()
        arrays[f"scale_{level}"] = scale.numpy()
    np.savez_compressed(out / f"{name}.npz", **arrays)  # type: ignore[arg-type]


class Results:
    """Measured lines of one training, written after every one."""

    def __init__(self, file: Path, about: dict[str, Any]) -> None:
        self.file = file
        self.body: dict[str, Any] = about | {"lines": []}

    @property
    def lines(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = self.body["lines"]
        return lines

    def note(self, name: str, value: Any) -> None:
        self.body[name] = value
        self.write()

    def write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.body, indent=1) + "\n", encoding="utf-8")


class Measured(Lines):
    """Lines of one set of candidates that are written at once."""

    def __init__(self, results: Results, reference: Hits, candidates: str, items: int) -> None:
        super().__init__(results.lines, reference, candidates, items)
        self.results = results

    def add(self, search: str, target: str, hits: Hits, **more: Any) -> None:
        super().add(search, target, hits, **more)
        self.results.write()


def unpacked(run: Run, file: Path) -> Trained:
    """Fusion, heads and bank of a packed training; its codebooks and its decoder are not there."""
    runtime = run.runtime()
    config = settle_sizes(run.config, run.data.train, runtime)
    with np.load(file) as arrays:
        weights = {name: torch.from_numpy(arrays[name].astype(np.float32)) for name in arrays.files if name != "codes"}
    fusion = FusionConfig(config.model.width, config.model.projection, config.model.hidden)
    model = Genius(GeniusConfig(fusion, quantizer_config(config.model), generator_config(config.model)))
    model.generator.eval()
    model.fusion.load_state_dict(_below(weights, "fusion."))
    heads = None
    if config.encoder.train == "heads":
        pool = run.data.train.pool
        heads = Heads(pool.image.shape[1], pool.text.shape[1], config.model.width, config.encoder.hidden).eval()
        heads.load_state_dict(_below(weights, "heads."))
    parts = run.split(heads)
    queries, target, _ = training_queries(parts, config.seed)
    bank = QueryBank.of(vectors(model, queries), queries.modality, target, size=len(queries), seed=config.seed)
    chosen: dict[str, Any] = {name: value.numpy() for name, value in _below(weights, "bank.").items()}
    model.queries = replace(bank, **chosen)
    return Trained(model, heads, {}, run.data.train)


def unpack(args: argparse.Namespace) -> None:
    """Vectors of a packed training, as `lab.item_bias.Bench` reads them, with the codes that it had."""
    run = Run.of(args.benchmark, args.features, args.work, args.seed, {}, "cpu", args.products)
    trained = unpacked(run, args.pack)
    with np.load(args.pack) as arrays:
        codes = arrays["codes"].astype(np.int64)
    write_bench(run, trained, args.work / "vectors", codes)
    assert trained.model.queries is not None
    trained.model.queries.save(args.work)


def _below(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def candidate_lines(bench: Bench, bank: QueryBank, model: Genius, rows: Ints, candidates: str, results: Results) -> None:
    """The default search and codes only."""
    engine = bench.engine(bank, bank, model, rows)
    reconstructed = engine.collection.reconstructed
    assert reconstructed is not None
    by_codes = bench.engine(bank, bank, model, rows, vectors=reconstructed.take(np.arange(len(rows))))
    plain = replace(FLAT, item_bias=False)
    reference = bench.hits(engine, rows, plain, True)
    lines = Measured(results, reference, candidates, len(rows))
    lines.add("dense, target given", "given", reference)
    for given, target in ((False, "unknown"), (True, "given")):
        lines.add("default, no bias", target, bench.hits(engine, rows, plain, given))
        lines.add("default, with bias", target, bench.hits(engine, rows, FLAT, given))
        lines.add("codes, no bias", target, bench.hits(by_codes, rows, plain, given))
        for name, bias in (("with bias", engine.code_bias), ("whole bias", engine.item_bias)):
            by_codes.__dict__["item_bias"] = bias
            if bias is None:
                lines.add(f"codes, {name}", target, lines.lines[-1]["hit"])
            else:
                lines.add(f"codes, {name}", target, bench.hits(by_codes, rows, FLAT, given))


def beam_lines(bench: Bench, bank: QueryBank, model: Genius, rows: Ints, results: Results) -> None:
    """GENIUS and GENIUS^R."""
    engine = bench.engine(bank, bank, model, rows)
    only = np.zeros(len(bench.test.z), bool)
    only[np.random.default_rng(bench.about["seed"]).permutation(len(only))[:BEAM_QUERIES]] = True
    reference = bench.hits(engine, rows, replace(FLAT, item_bias=False), True, only)
    lines = Measured(results, reference, "unseen", len(rows))
    more = {"queries": int(only.sum())}
    lines.add("dense, target given, queries of beams", "given", reference, **more)
    for name, params in (
        ("GENIUS, 50 beams", SearchParams(plan="beam", reranker="none", beams=50)),
        ("GENIUS^R, 50 beams", SearchParams(plan="beam", beams=50)),
    ):
        lines.add(f"{name}, no bias", "unknown", bench.hits(engine, rows, replace(params, item_bias=False), False, only), **more)
        lines.add(f"{name}, with bias", "unknown", bench.hits(engine, rows, params, False, only), **more)
    engine.__dict__["code_bias"] = engine.item_bias
    params = SearchParams(plan="beam", reranker="none", beams=50)
    lines.add("GENIUS, 50 beams, whole bias", "unknown", bench.hits(engine, rows, params, False, only), **more)


def added_lines(run: Run, heads: Heads | None, results: Results) -> None:
    """The default search where a part of the items came later."""
    for share in SHARES:
        added_share(run, heads, share, results)


def added_share(run: Run, heads: Heads | None, share: float, results: Results) -> None:
    """The default search over a pool of which a share was seen by no stage but the heads; queries whose positives are new."""
    test = run.data.test
    new = added_later(test, share, run.config.seed)
    parts = run.split(None)
    kept = [part.query_ids for part in (parts.offsets, parts.validation) if part is not None]
    held_ids = {name for names in kept for name in names}
    every = run.data.train
    honest = run.data.honest
    if honest is None:
        held = torch.tensor([name in held_ids for name in every.query_ids])
        honest = every.take_queries(held.nonzero()[:, 0])
        every = every.take_queries((~held).nonzero()[:, 0])
    config = run.config
    if heads is not None:
        every = through_heads(heads, every)
        honest = through_heads(heads, honest)
        test = through_heads(heads, test)
        config = replace(config, encoder=EncoderStageConfig(train="none"))
    work = run.work / f"added-{share}"
    without(honest, new).save(work / "held-out")
    short = dataclasses.replace(config.generator, steps=20)  # the default search does not read the decoder
    config = replace(config, generator=short, held_out_data=str(work / "held-out"))
    again = Run(run.benchmark, Data(without(every, new), test), config, work, run.device)
    trained, _ = again.train()
    only_new = torch.ones(len(test.queries), dtype=torch.bool)
    only_new[test.pairs[~new[test.pairs[:, 1]], 0]] = False  # a query with a positive that is not new says nothing of new items
    write_bench(again, trained, work / "vectors")
    bench = Bench(work / "vectors", config.seed, run.device)
    model = trained.model
    assert model.queries is not None
    for candidates in ("unseen", "all"):
        rows = np.arange(len(bench.items))
        if candidates == "unseen":
            rows = np.flatnonzero(bench.unseen)
        engine = bench.engine(model.queries, model.queries, model, rows)
        reference = bench.hits(engine, rows, replace(FLAT, item_bias=False), True, only_new.numpy())
        lines = Measured(results, reference, candidates, len(rows))
        more = {"queries": int(only_new.sum()), "share_added": share}
        for params, name in ((FLAT, "with bias"), (replace(FLAT, item_bias=False), "no bias")):
            hits = bench.hits(engine, rows, params, False, only_new.numpy())
            lines.add(f"default, {name}, {share:.0%} of items added later", "unknown", hits, **more)


def filled_lines(bench: Bench, bank: QueryBank, model: Genius, results: Results) -> None:
    """The default search among a million candidates."""
    random = torch.Generator().manual_seed(bench.about["seed"])
    z = torch.from_numpy(bench.items).to(model.device)
    modality = torch.from_numpy(bench.modality)
    near = neighbours(z, modality.to(model.device), 16).cpu()
    rows = torch.randint(len(z), (FILLED - len(z),), generator=random)
    other = near[rows, torch.randint(16, (len(rows),), generator=random)]
    mix = torch.rand(len(rows), 1, generator=random)
    items = torch.from_numpy(bench.items)
    points = torch.nn.functional.normalize(torch.lerp(items[rows], items[other], mix), dim=1).numpy()
    bench.codes = np.concatenate([bench.codes, codes_of(model, points, modality[rows])])
    bench.items = np.concatenate([bench.items, points])
    every = np.arange(FILLED)
    engine = bench.engine(bank, bank, model, every)
    plain = replace(FLAT, item_bias=False)
    reference = bench.hits(engine, every, plain, True)
    lines = Measured(results, reference, "filled", FILLED)
    lines.add("dense, target given", "given", reference)
    lines.add("default, with bias", "unknown", bench.hits(engine, every, FLAT, False))
    lines.add("default, no bias", "unknown", bench.hits(engine, every, plain, False))


def write_bundled_vectors(features: Path, out: Path) -> None:
    """z of icons and their queries by `bundled:mini`, whose fusion has seen training and test queries, and no validation query.

    The bank has training queries, weights are chosen on test queries, and validation queries are measured. Items that a
    training query shows are left out.
    """
    from lab.icons.vectors import load

    model = Genius.from_pretrained("bundled:mini")
    parts = load(features)
    out.mkdir(parents=True, exist_ok=True)
    pool = parts["train"].pool
    new = torch.ones(len(pool), dtype=torch.bool)
    new[parts["train"].pairs[:, 1]] = False
    rows = new.nonzero()[:, 0]
    place = torch.full((len(pool),), -1, dtype=torch.long)
    place[rows] = torch.arange(len(rows))
    items = pool[rows]
    z = vectors(model, items)
    np.savez(out / "items.npz", z=z, modality=items.modality.numpy(), codes=codes_of(model, z, items.modality))
    for name, source in (("learn", "train"), ("validation", "test"), ("test", "val"), ("held-out", "val")):
        part = parts[source]
        if name == "held-out":
            part = part.take_queries([])
        target = torch.zeros(len(part.queries), dtype=torch.long)
        target[part.pairs[:, 0]] = pool.modality[part.pairs[:, 1]]
        pairs = torch.stack([part.pairs[:, 0], place[part.pairs[:, 1]]], 1)
        arrays: dict[str, Any] = {"modality": part.queries.modality.numpy(), "pairs": pairs[pairs[:, 1] >= 0].numpy()}
        tasks = np.array([part.task_name(int(task)) for task in part.tasks], np.str_)
        np.savez(out / f"{name}.npz", z=vectors(model, part.queries), target=target.numpy(), tasks=tasks, **arrays)
    about = {"model": "bundled:mini", "icons": len(pool), "items": len(rows), "training_queries": len(parts["train"].queries)}
    (out / "about.json").write_text(json.dumps(about), encoding="utf-8")


def bundled(args: argparse.Namespace) -> None:
    """Lines of `bundled:mini`, a bank and its choices for each seed."""
    if not (args.work / "about.json").exists():
        write_bundled_vectors(args.features, args.work)
    model = Genius.from_pretrained("bundled:mini")
    model.generator.eval()
    for seed in range(3):
        bench = Bench(args.work, seed)
        drawn = bench.bank(PER_SEED)
        every = np.arange(len(bench.items))
        reconstructed = bench.engine(drawn, None, model, every).collection.reconstructed
        assert reconstructed is not None
        start = time.process_time()
        bank = choose(
            drawn, bench.judged, bench.items, bench.modality, shown=bench.shown, reconstructed=reconstructed.take(every)
        )
        about = {
            "command": "python -m lab.above_dense bundled",
            "commit": current_commit(),
            "date": datetime.date.today().isoformat(),
            "device": "CPU",
            "threads": torch.get_num_threads(),
            "benchmark": "bundled",
            "seed": seed,
            "training": {"model": "bundled:mini", "seed": seed},
            "seconds_of_choosing": round(time.process_time() - start, 1),
        }
        results = Results(args.out / f"above-dense-bundled-{seed}.json", about)
        numbers = {key: np.round(np.asarray(getattr(bank, key), float), 3).tolist() for key in ("bias_weights", "code_shares")}
        results.note("bias", numbers | {"queries": len(bank)})
        results.note("test_queries", len(bench.test.z))
        rows = np.flatnonzero(bench.unseen)
        candidate_lines(bench, bank, model, rows, "unseen", results)
        if not seed:
            plain = replace(FLAT, item_bias=False)
            reference = bench.hits(bench.engine(bank, bank, model, rows), rows, plain, True)
            bank_lines(bench, bank, model, rows, Measured(results, reference, "unseen", len(rows)))
        results.note("existence", existence(bench, bank, model, ("unseen",)))


def described(command: str, run: Run, changes: dict[str, Any], device: str) -> dict[str, Any]:
    """What a result says of its run."""
    return {
        "command": command,
        "commit": os.environ.get("GENIUS_COMMIT", "") or current_commit(),
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "threads": torch.get_num_threads(),
        "benchmark": run.benchmark,
        "seed": run.config.seed,
        "changes": changes,
    }


def train(args: argparse.Namespace) -> None:
    """One training and its lines; a part that fails does not stop the others."""
    changes = {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
    run = Run.of(args.benchmark, args.features, args.work, args.seed, changes, device, args.products)
    about = described("python -m lab.above_dense train", run, changes, device) | {"products": args.products}
    name = f"{args.benchmark}-{args.seed}"
    results = Results(args.out / f"above-dense-{name}.json", about)
    start = time.monotonic()
    trained, seconds = run.train()
    model = trained.model
    bank = model.queries
    assert bank is not None
    write_bench(run, trained, args.work / "vectors")
    (args.work / "trained").write_text("stages 1 to 3\n", encoding="utf-8")
    bench = Bench(args.work / "vectors", args.seed, device)
    results.note("seconds_of_training", seconds)
    results.note("metrics", {stage: values for stage, values in trained.metrics.items() if stage != "quantizer"})
    numbers = {key: np.round(np.asarray(getattr(bank, key), float), 3).tolist() for key in ("bias_weights", "bias_temperatures")}
    results.note("bias", numbers | {"code_shares": np.asarray(bank.code_shares, float).tolist(), "queries": len(bank)})
    results.note("test_queries", len(bench.test.z))
    pack(trained, bench, args.out, f"pack-{name}")
    if name == "icons-0":
        pack_codebooks(model, args.out, f"codebooks-{name}")
    unseen = np.flatnonzero(bench.unseen)
    work: dict[str, Callable[[], None]] = {
        "unseen": lambda: candidate_lines(bench, bank, model, unseen, "unseen", results),
        "beams": lambda: beam_lines(bench, bank, model, unseen, results),
        "added": lambda: added_lines(run, trained.heads, results),
        "all": lambda: candidate_lines(bench, bank, model, np.arange(len(bench.items)), "all", results),
        "filled": lambda: filled_lines(bench, bank, model, results),
    }
    for part in args.parts.split(","):
        try:
            work[part]()
        except Exception as error:  # the other parts are worth having
            results.note(f"failed_{part}", repr(error))
            print(part, repr(error), flush=True)
        print(name, part, round(time.monotonic() - start), "s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("benchmark", choices=["fashion", "icons"])
    for folder in ("features", "work", "out"):
        training.add_argument(folder, type=Path)
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--parts", default=",".join(PARTS))
    training.add_argument("--set", action="append", default=[], help="one field of the config, name=JSON")
    mini = commands.add_parser("bundled")
    for folder in ("features", "work", "out"):
        mini.add_argument(folder, type=Path)
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("benchmark", choices=["fashion", "icons"])
    for path in ("features", "work", "pack"):
        unpacking.add_argument(path, type=Path)
    unpacking.add_argument("--seed", type=int, default=0)
    for command in (training, unpacking):
        command.add_argument("--products", type=int, help="only the first so many fashion products")
    args = parser.parse_args(arguments)
    if args.command == "train":
        train(args)
    elif args.command == "bundled":
        bundled(args)
    else:
        unpack(args)


if __name__ == "__main__":
    main()
